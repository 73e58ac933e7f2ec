"""Addresses and refusals, before anything starts."""

import dataclasses
import pathlib
import socket

import launchpad as lp
import pytest

from launch import rpc
from launch.engines import prepare


@dataclasses.dataclass
class Config:
  server: object


def test_a_handle_inside_a_dataclass_is_refused():
  program = lp.Program('test')
  with program.group('server'):
    server = program.add_node(rpc.Node(object))
  with program.group('client'):
    program.add_node(lp.PyNode(print, {'config': Config([server])}))
  with pytest.raises(ValueError, match='inside a Config .* client/0'):
    prepare.prepare(program, lp.LaunchType.LOCAL_MULTI_THREADING)


def test_every_node_has_a_port_of_its_own_outside_the_ephemeral_range():
  program = lp.Program('test')
  with program.group('server'):
    for _ in range(20):
      program.add_node(rpc.Node(object))
  nodes = prepare.prepare(program, lp.LaunchType.LOCAL_MULTI_THREADING)
  ports = {port for node in nodes for port in node.ports}
  assert len(ports) == 20
  path = pathlib.Path('/proc/sys/net/ipv4/ip_local_port_range')
  first_ephemeral = int(path.read_text().split()[0])
  assert first_ephemeral < 12_000 or max(ports) < first_ephemeral


def test_a_port_in_use_is_named_with_its_node():
  with socket.socket() as listener:
    listener.bind(('', 0))
    listener.listen()
    port = listener.getsockname()[1]
    with pytest.raises(OSError, match=f'server/3 cannot listen on port {port}'):
      prepare.check_ports('server/3', [port])
  prepare.check_ports('server/3', [port])
