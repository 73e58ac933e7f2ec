"""The directory of addresses of a run on several hosts, as its nodes see it.

A node asks the agent of its own host (engines/cluster/host.py), over a unix
socket. A server of ours listens on a unix socket, for its own host, and, in a
run on several hosts, at a TLS address for the others; an agent tells each
client the one that it needs.
"""

from __future__ import annotations

import functools
import pathlib
from typing import Any

from launch.rpc import client
from launch.rpc import directory
from launch.rpc import errors
from launch.rpc import tls

SOCKET = 'agent'  # in a run's directory on a host
TUNNEL = 'tunnel'  # likewise, in a run on several hosts
_TIMEOUT_S = 15.0

# Of this process: there is one run in it at a time, and what nodes were sent
# (pickled) has to find the agent of the host where it arrives.
_agent: client.Client | None = None
_tunnel = ''  # the address of this host's
_claimed: dict[str, str] = {}


class Directory(directory.Directory):
  """Asks the agent of this host; pickles to the one of another host."""

  def __init__(self, place: pathlib.Path | None = None):
    """Makes a directory.

    Args:
      place: the run's directory on this host; None: `found` says it later, or
        the process has it already.
    """
    if place is not None:
      found(place)

  def __reduce__(self):
    return Directory, ()

  def claim(self, name: str, kind: directory.Kind = 'rpc') -> str:
    _claimed[name] = address = _here().claim(name, kind)
    return address

  def find(self, name: str, timeout_s: float | None = None) -> str | None:
    # Its own server, at its own door: others may be sent another way.
    if name in _claimed:
      return _claimed[name]
    if _agent is None:
      return None
    try:
      return _agent.with_deadline(timeout_s or _TIMEOUT_S).find(name)
    except (errors.Unavailable, errors.RemoteError) as e:
      # The run is over, or the agent is busy, or its question to the actor of
      # names failed or took too long.
      said = str(e).splitlines()[0]
      raise directory.Unknown(f'it cannot be looked up ({said})') from e

  def near(self, server: client.Client, name: str) -> Any:
    several = _agent is not None and self.credentials is not None
    return Near(name, server.timeout_s) if several else server

  @property
  def credentials(self) -> tls.Credentials | None:
    return _credentials(_here())


def found(place: pathlib.Path) -> None:
  """Says where the agent of this host is."""
  global _agent, _tunnel
  _agent = client.Client(f'unix:{place / SOCKET}', _TIMEOUT_S)
  _tunnel = f'unix:{place / TUNNEL}'
  _claimed.clear()


class Near:
  """Serves a learner's parameters from this host's copy of them."""

  def __init__(self, name: str, timeout_s: float):
    self.address = name
    self._tunnel = client.Client(_tunnel, timeout_s)

  def with_deadline(self, timeout_s: float) -> Near:
    return Near(self.address, timeout_s)

  def get_parameters(self, have_version: int) -> dict[str, Any]:
    """As of the learner itself, and with its errors."""
    try:
      return self._tunnel.parameters(self.address, have_version)
    except errors.RemoteError as e:
      if e.type_name != errors.Unavailable.__name__:
        raise
      raise errors.Unavailable(
        self.address, 'get_parameters', True, e.message
      ) from None


def ask_to_stop(mark_as_completed: bool = False) -> None:
  """What lp.stop() does in a node."""
  del mark_as_completed
  _here().ask_to_stop()


def _here() -> client.Client:
  if _agent is None:
    raise RuntimeError('this process belongs to no run on a cluster')
  return _agent


@functools.lru_cache(maxsize=1)
def _credentials(agent: client.Client) -> tls.Credentials | None:
  given = agent.credentials()
  return tls.Credentials(*given) if given else None
