"""Hosts of a little cluster, as far as that needs no root."""

import socket

import pytest

from tests.faults import namespaces


def test_the_bytes_of_a_link_are_counted_both_ways():
  host = object.__new__(namespaces.Host)
  host.name, host._link = 'host1', 'lo'
  before = host.traffic()
  with socket.create_server(('127.0.0.1', 0)) as listener:
    with socket.create_connection(listener.getsockname()) as client:
      client.sendall(bytes(50_000))
  after = host.traffic()
  for earlier, later in zip(before, after, strict=True):
    assert later - earlier >= 50_000


def test_a_host_without_its_link_is_named():
  host = object.__new__(namespaces.Host)
  host.name, host._link = 'host7', 'port7'
  with pytest.raises(RuntimeError, match='host7 has no link port7'):
    host.traffic()
