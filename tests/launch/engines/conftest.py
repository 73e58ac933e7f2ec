"""Hosts of a cluster, all on this machine."""

import contextlib

import pytest

from tests import loopback_hosts


@pytest.fixture
def on_hosts(tmp_path):
  """on_hosts(number): agents' addresses and tunnels, all on this machine."""
  with contextlib.ExitStack() as stack:
    yield lambda number, plain=False: stack.enter_context(
      loopback_hosts.make(tmp_path, number, plain)
    )
