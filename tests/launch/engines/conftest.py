"""Hosts of a cluster, all on this machine."""

import contextlib

import pytest

from launch.engines.cluster import addresses
from tests import loopback_hosts


@pytest.fixture
def on_hosts(tmp_path, monkeypatch):
  """on_hosts(number): agents' addresses and tunnels, all on this machine."""
  monkeypatch.setattr(addresses, '_FRESH_S', 0.0)
  with contextlib.ExitStack() as stack:
    yield lambda number, plain=False: stack.enter_context(
      loopback_hosts.make(tmp_path, number, plain)
    )
