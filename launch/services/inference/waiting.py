"""A wait that is never silent, and that ends."""

from __future__ import annotations

from collections.abc import Callable
import logging
import time

from launch import pulse

_logger = logging.getLogger(__name__)
# After how long it says what it waits for; the next time after twice as long.
SAY_S = 15.0
_TELL_S = 2.0  # after which the launcher knows


class NoAnswer(TimeoutError):
  """The inference server has left a request without an answer for too long."""


class Wait:
  """One wait, from now on."""

  def __init__(
    self, patience_s: float, clock: Callable[[], float] = time.monotonic
  ):
    """Begins.

    Args:
      patience_s: how long it may last.
      clock: seconds, monotonic.
    """
    self._patience_s = patience_s
    self._clock = clock
    self._since = clock()
    self._say_after_s = SAY_S
    self._why = ''  # as it was when it was last asked for

  def say(self, why: Callable[[], str]) -> None:
    """To be called now and then: says, if that is due, what is waited for."""
    waited_s = self._clock() - self._since
    due = waited_s >= self._say_after_s
    if not due and waited_s < _TELL_S:
      return
    if due or not self._why:
      self._why = why()  # may ask the server, which takes its time
    pulse.waits(self._why)
    if due:
      self._say_after_s *= 2
      _logger.warning(
        'Still waiting, for %.0f s so far. %s', waited_s, self._why
      )

  def go_on(self, why: Callable[[], str]) -> None:
    """As `say`; also ends the wait.

    Raises:
      NoAnswer: it has lasted for `patience_s`.
    """
    waited_s = self._clock() - self._since
    if waited_s >= self._patience_s:
      raise NoAnswer(f'Gave up after {waited_s:.0f} s. {why()}')
    self.say(why)
