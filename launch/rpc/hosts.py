"""The directory of server addresses in a run on a cluster.

A node asks the agent of its own host (engines/cluster/host.py), over a unix
socket. A server of this project listens on a unix socket for clients on its own
host and, in a run on several hosts, at a TLS address for the others; the agent
tells each client which one to use.
"""

from __future__ import annotations

import functools
import os
import pathlib

from murmuration.launch.rpc import calls
from murmuration.launch.rpc import directory
from murmuration.launch.rpc import tls

SOCKET = 'agent'  # in a run's directory on a host
_TIMEOUT_S = 15.0

# Global to the process, which has one run at a time: a pickled `Directory` must
# find the agent of the host where it is unpickled.
_agent: calls.Client | None = None
_claimed: dict[str, str] = {}


class Directory(directory.Directory):
  """Asks the agent of the host on which it was made or unpickled."""

  def __init__(self, place: pathlib.Path | None = None):
    """`place` is the run's directory on this host; None: `found` sets it."""
    if place is not None:
      found(place)

  def __reduce__(self):
    return Directory, ()

  def claim(self, name: str, kind: directory.Kind = 'rpc') -> str:
    _claimed[name] = address = _here().claim(name, kind)
    return address

  def find(self, name: str, timeout_s: float | None = None) -> str | None:
    # A server of this process: clients elsewhere may need another address.
    if name in _claimed:
      return _claimed[name]
    if _agent is None:
      return None
    try:
      address = _agent.with_deadline(timeout_s or _TIMEOUT_S).find(name)
    except (calls.Unavailable, calls.RemoteError) as e:
      # The run is over, the agent is busy, or the agent's own call to the actor
      # that holds the names failed or timed out.
      said = str(e).splitlines()[0]
      raise directory.Unknown(f'it cannot be looked up ({said})') from e
    if address is not None and '://' not in address:
      _without_proxy(address.rpartition(':')[0])
    return address

  @property
  def credentials(self) -> tls.Credentials | None:
    return _credentials(_here())


def found(place: pathlib.Path) -> None:
  """Connects this process to the agent in `place`, the run's directory here."""
  global _agent
  _agent = calls.Client(f'unix:{place / SOCKET}', _TIMEOUT_S)
  _claimed.clear()


def ask_to_stop(mark_as_completed: bool = False) -> None:
  """Implements lp.stop() in a node."""
  del mark_as_completed
  _here().ask_to_stop()


def _without_proxy(host: str) -> None:
  """Has Reverb's gRPC connect to a host of the run itself.

  A proxy of the shell (http_proxy) is for other networks. gRPC reads the
  variable when it makes a channel.
  """
  direct = os.environ.get('no_grpc_proxy') or os.environ.get('no_proxy') or ''
  if host not in direct.split(','):
    os.environ['no_grpc_proxy'] = f'{host},{direct}'.rstrip(',')


def _here() -> calls.Client:
  if _agent is None:
    raise RuntimeError('this process belongs to no run on a cluster')
  return _agent


@functools.lru_cache(maxsize=1)
def _credentials(agent: calls.Client) -> tls.Credentials | None:
  given = agent.credentials()
  return tls.Credentials(*given) if given else None
