"""Ray's control store (gcs_server): whether it is there, and calls that ask it.

Without it Ray places nothing, and after 60 s each of Ray's processes ends, the
launcher's too, without a word to us. So the launcher looks by itself, and has
the run end before that. Processes that know each other, as the launcher and its
agents do, go on talking meanwhile: nodes can still be asked to stop.
"""

from __future__ import annotations

from collections.abc import Callable
import errno
import os
import threading
import time
from typing import Any, TypeVar

from launch.engines import output
from launch.engines.cluster import reach

_T = TypeVar('_T')

# Until the run ends. With 4 s to notice, 9 until all nodes have stopped, 8 for
# the agents to end and 10 to leave Ray that is less than Ray's own 60.
WAIT_S = 25.0
_LOOK_S = 1.0
_CONNECT_S = 3.0  # a packet that got lost is sent again after 1 s
_CALL_S = 5.0
# Errors of this process, which say nothing of the store.
_OURS = (
  errno.EMFILE,
  errno.ENFILE,
  errno.ENOBUFS,
  errno.ENOMEM,
  errno.EADDRNOTAVAIL,
)


class Store:
  """Looks again and again whether the store takes connections.

  It does so while its context is open, in a thread of its own. A store that
  hangs and leaves its port open looks as one that is there.
  """

  def __init__(self, address: str):
    """Is of the store at HOST:PORT."""
    self._address = address
    self._since: float | None = None
    self._lost = ''
    self._hangs = False
    self._closing = threading.Event()

  def __enter__(self) -> Store:
    threading.Thread(target=self._watch, name='store', daemon=True).start()
    return self

  def __exit__(self, *unused) -> None:
    self._closing.set()

  @property
  def away(self) -> bool:
    """Whether it was away at the last look."""
    return self._since is not None

  def lost(self) -> str:
    """Why the run has to end; '' if it has not."""
    return self._lost

  def look(self) -> None:
    """Looks once, and says what is new."""
    began = time.monotonic()
    why = _why_away(self._address)
    if not why:
      if self._since is not None:
        away_s = began - self._since
        self._since = None
        output.warn(f"note: Ray's control store is back after {away_s:.0f} s.")
    elif self._since is None:
      self._since = began
      output.warn(
        f"note: Ray's control store (gcs_server at {self._address}) is away "
        f'since {time.strftime("%H:%M:%S")}: {why}. Nodes go on, and none can '
        f'be placed. If it is not back in {WAIT_S:.0f} s, the run ends.'
      )
    elif began - self._since >= WAIT_S and not self._lost:
      self._lost = (
        f'Ray lost its control store (gcs_server at {self._address}), which '
        f'was not back after {WAIT_S:.0f} s: {why}'
      )

  def kill(self, actor: Any) -> None:
    """Ends an actor."""
    import ray

    if self.away or self._hangs:
      # It ends itself: Ray, which ends without the store, leaves some there.
      # A lambda is sent with its code, and a seat needs no more.
      actor.__ray_call__.remote(lambda unused: os._exit(0))
    else:
      try:
        within(_CALL_S, lambda: ray.kill(actor))
      except TimeoutError:
        self._hangs = True  # Each further call would take as long.

  def nodes(self) -> list[dict[str, Any]]:
    """Of ray.nodes() those that are alive.

    Raises:
      TimeoutError: the store is away.
    """
    import ray

    if self.away:
      raise TimeoutError("Ray's control store is away")
    found = within(_CALL_S, ray.nodes)
    self._hangs = False
    return [node for node in found if node['Alive']]

  def _watch(self) -> None:
    while not self._closing.wait(_LOOK_S):
      self.look()


def within(seconds: float, call: Callable[[], _T]) -> _T:
  """What a call of Ray returns, which may wait for the store for ever.

  Raises:
    TimeoutError: not within that time; its thread is left to itself.
    Exception: what the call raises.
  """
  answers: list[_T] = []
  errors: list[Exception] = []

  def ask() -> None:
    try:
      answers.append(call())
    except Exception as e:
      errors.append(e)

  thread = threading.Thread(target=ask, daemon=True)
  thread.start()
  thread.join(seconds)
  if errors:
    raise errors[0]
  if not answers:
    raise TimeoutError(f'Ray has not answered within {seconds:g} s')
  return answers[0]


def _why_away(address: str) -> str:
  """What is wrong with a connection to the store; '' if nothing."""
  try:
    reach.connect(address, _CONNECT_S)
  except OSError as e:
    return '' if e.errno in _OURS else str(e)
  return ''
