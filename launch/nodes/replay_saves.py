"""When the replay beside a learner is saved, and what is said of it.

The learner waits meanwhile. So a save that takes long is made seldom, and one
that fails is a sentence in the log: what was saved before is still there.
"""

from __future__ import annotations

from collections.abc import Sequence
import logging
import time
from typing import Any

from launch import pulse
from replay.checkpoints import files as checkpoint_files

_logger = logging.getLogger(__name__)
# A learner waits for saves, of itself or of replay, at most one part in so many
# of its time.
SHARE = 20
# Saves that take longer are spoken of, in seconds.
_LONG_S = 3.0
# What a save can fail with, also on another node: rpc's errors are among these.
FAILURES = (OSError, RuntimeError, checkpoint_files.Broken)


class ReplaySaves:
  """Saves the shards of all hosts, now and then."""

  def __init__(self, hosts: Sequence[Any], period_s: float):
    """Saves nothing yet; the first period begins.

    Args:
      hosts: `replay_host.ReplayHost`s, or clients of them.
      period_s: from the end of a save to the next, at least.
    """
    self._hosts = list(hosts)
    self._period_s = self._pause_s = period_s
    self._ended = time.monotonic()

  def due(self) -> bool:
    """Whether it is time for the next."""
    return time.monotonic() - self._ended >= self._pause_s

  def save(self, learner_steps: int, last: bool = False) -> bool:
    """Saves the shards of each host. Returns whether all of them were saved.

    Args:
      learner_steps: of the learner, for who reads the checkpoint.
      last: the learner has ended; nothing that matters comes after it.
    """
    began, whole = time.monotonic(), True
    for host in self._hosts:
      pulse.beat()  # the limit is that of each
      try:
        host.save({'learner_steps': learner_steps}, last)
      except FAILURES as e:
        whole = False
        _logger.warning('Replay was not checkpointed: %s', e)
    self._ended = time.monotonic()
    took_s = self._ended - began
    self._pause_s = max(self._period_s, SHARE * took_s)
    if took_s >= _LONG_S:
      _logger.info(
        'A checkpoint of replay took %.0f s; the next is due in %.0f s.',
        took_s,
        self._pause_s,
      )
    return whole
