"""Parameters that came to a host once, for all actors on it."""

from __future__ import annotations

from collections.abc import Callable
import threading
import time
from typing import Any

from launch.rpc import errors

# So long an answer is good for others: of that much an actor's parameters may
# be older than with a learner of its own to ask.
_FRESH_S = 0.01


class Copies:
  """Asks servers of parameters, each for all who ask here."""

  def __init__(self, connect: Callable[[str], Any]):
    """Makes copies of nothing.

    Args:
      connect: name of a server to a client of it.
    """
    self._connect = connect
    self._copies: dict[str, _Copy] = {}
    self._lock = threading.Lock()

  @property
  def received_bytes(self) -> int:
    """Of theta, from all servers."""
    with self._lock:
      return sum(copy.received_bytes for copy in self._copies.values())

  def get(self, name: str, have_version: int) -> dict[str, Any]:
    """As `get_parameters(have_version)` of that server.

    Raises:
      rpc.Unavailable, rpc.RemoteError: as a client of that server.
    """
    with self._lock:
      if name not in self._copies:
        self._copies[name] = _Copy(self._connect(name))
      copy = self._copies[name]
    return copy.get(have_version)


class _Copy:
  """Of the parameters of one server."""

  def __init__(self, server: Any):
    self._server = server
    self._lock = threading.Lock()
    self._asked = -float('inf')
    self._error: Exception | None = None
    self._version, self._theta = -1, None
    self.received_bytes = 0

  def get(self, have_version: int) -> dict[str, Any]:
    # Who waits here finds what another has just brought, or why it has not.
    with self._lock:
      if time.monotonic() - self._asked > _FRESH_S:
        self._ask()
        self._asked = time.monotonic()
      if self._error is not None:
        raise self._error
      theta = None if self._version == have_version else self._theta
      return {'version': self._version, 'theta': theta}

  def _ask(self) -> None:
    try:
      answer = self._server.get_parameters(self._version)
    except (errors.Unavailable, errors.RemoteError) as e:
      self._error = e
      return
    self._error = None
    # Both or neither: a learner that was started again says that it has none
    # yet, and ours must not be handed out with that version.
    if answer['theta'] is not None:
      self._version, self._theta = answer['version'], answer['theta']
      self.received_bytes += len(answer['theta'])
