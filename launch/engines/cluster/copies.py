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
# How long who asks waits for parameters on their way; more than a learner has
# to begin its answer, and less than an actor waits for ours (variables.py).
_WAIT_S = 1.75


class Copies:
  """Asks servers of parameters, each for all who ask here."""

  def __init__(self, connect: Callable[[str], Any]):
    """`connect` makes a client of a server, by its name."""
    self._connect = connect
    self._copies: dict[str, _Copy] = {}
    self._lock = threading.Lock()

  def get(self, name: str, have_version: int) -> dict[str, Any]:
    """As `get_parameters(have_version)` of that server, but never for long.

    Parameters that take longer to come, as over a slow link, come while actors
    act on with those before: they are told that there are none newer yet.

    Raises:
      rpc.Unavailable: as a client of that server; or the first parameters are
        still on their way.
      rpc.RemoteError: as a client of that server.
    """
    with self._lock:
      if name not in self._copies:
        self._copies[name] = _Copy(name, self._connect(name))
      copy = self._copies[name]
    return copy.get(have_version)


class _Copy:
  """Of the parameters of one server."""

  def __init__(self, name: str, server: Any):
    self._name, self._server = name, server
    self._changed = threading.Condition()
    self._bringing, self._began = False, 0.0
    self._asked = -float('inf')
    self._error: Exception | None = None
    self._version, self._theta = -1, None

  def get(self, have_version: int) -> dict[str, Any]:
    with self._changed:
      if not self._bringing and time.monotonic() - self._asked > _FRESH_S:
        threading.Thread(target=self._bring, daemon=True).start()
        self._bringing, self._began = True, time.monotonic()
      # Who waits here finds what another's question has just brought, or why it
      # has not.
      left = self._began + _WAIT_S - time.monotonic()
      self._changed.wait_for(lambda: not self._bringing, left)
      if self._bringing and self._theta is None:
        why = 'the first parameters are on their way to this host'
        raise errors.Unavailable(self._name, 'get_parameters', True, why)
      if not self._bringing and self._error is not None:
        raise self._error
      theta = None if self._version == have_version else self._theta
      return {'version': self._version, 'theta': theta}

  def _bring(self) -> None:
    error: Exception | None = None
    answer: dict[str, Any] = {'theta': None}
    try:
      answer = self._server.get_parameters(self._version)
    except Exception as e:  # whatever it is, those who asked hear of it
      error = e
    with self._changed:
      # Both or neither: a learner that was started again says that it has none
      # yet, and ours must not be handed out with that version.
      if answer['theta'] is not None:
        self._version, self._theta = answer['version'], answer['theta']
      self._error, self._bringing = error, False
      self._asked = time.monotonic()
      self._changed.notify_all()
