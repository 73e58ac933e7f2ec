"""A wait that is logged, and limited in time."""

from __future__ import annotations

from collections.abc import Callable
import logging
import time

from launch import pulse

_logger = logging.getLogger(__name__)
SAY_S = 15.0  # before the first warning; doubles with each one
_TELL_S = 2.0  # before the launcher is told


class NoAnswer(TimeoutError):
  """The inference server has not answered a request for too long."""


class Wait:
  """A wait of at most `patience_s`, which starts with this object."""

  def __init__(
    self, patience_s: float, clock: Callable[[], float] = time.monotonic
  ):
    self._patience_s = patience_s
    self._clock = clock
    self._since = clock()
    self._say_after_s = SAY_S
    self._why = ''  # last result of the argument `why`

  def say(self, why: Callable[[], str]) -> None:
    """Reports the reason for the wait, if that is due. Call it repeatedly."""
    waited_s = self._clock() - self._since
    due = waited_s >= self._say_after_s
    if not due and waited_s < _TELL_S:
      return
    if due or not self._why:
      self._why = why()  # This may call the server, which takes time.
    pulse.waits(self._why)
    if due:
      self._say_after_s *= 2
      _logger.warning(
        'Still waiting, for %.0f s so far. %s', waited_s, self._why
      )

  def go_on(self, why: Callable[[], str]) -> None:
    """The same as `say`, but limits the wait.

    Raises:
      NoAnswer: the wait has lasted for `patience_s`.
    """
    waited_s = self._clock() - self._since
    if waited_s >= self._patience_s:
      raise NoAnswer(f'Gave up after {waited_s:.0f} s. {why()}')
    self.say(why)
