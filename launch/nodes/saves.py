"""What a worker keeps of itself: RUN/checkpoints/WORKER.npz, and its replay.

The worker waits meanwhile. So a save that takes long is made seldom, and one of
replay that fails is a sentence in the log: what was saved before is still
there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import logging
import pathlib
import time
from typing import Any

import numpy as np

from launch import pulse
from replay.checkpoints import files as checkpoint_files
from run_records import checkpoints
from run_records import run_directory

_logger = logging.getLogger(__name__)
_PERIOD_S = 5.0  # from the end of a checkpoint of the learner to the next
# A learner waits for saves, of itself or of replay, at most one part in so many
# of its time.
_SHARE = 20
_LONG_S = 3.0  # saves of replay that take longer are spoken of
# What one can fail with, also on another node: rpc's errors are among these.
FAILURES = (OSError, RuntimeError, checkpoint_files.Broken)


class _Pause:
  """From the end of a save to the next; the first begins at once."""

  def __init__(self, period_s: float):
    self._period_s = self.pause_s = period_s
    self._ended = time.monotonic()

  def due(self) -> bool:
    return time.monotonic() - self._ended >= self.pause_s

  def ended(self, took_s: float | None) -> None:
    """A save has ended; None: it failed, and the pause stays what it was."""
    self._ended = time.monotonic()
    if took_s is not None:
      self.pause_s = max(self._period_s, _SHARE * took_s)


class Saves:
  """Saves a learner and the replay beside it, and gives the learner back."""

  def __init__(
    self,
    run_dir: str | None,
    node: str,
    hosts: Sequence[Any],
    replay_period_s: float,
  ):
    """Looks up what is there.

    Args:
      run_dir: of the run; None keeps nothing.
      node: name of the worker.
      hosts: `replay_host.ReplayHost`s, or clients of them, that it saves.
      replay_period_s: between two saves of those, at least.
    """
    self._path: pathlib.Path | None = None
    self._start = 0
    if run_dir is not None:
      name = f'{node.replace("/", "-")}.npz'
      self._path = checkpoints.directory(run_dir) / name
      self._start = _starts(run_dir)
    self._replay = ReplaySaves(hosts, replay_period_s)
    self._pause = _Pause(_PERIOD_S)
    self.due = self._pause.due  # whether it is time for the next

  def restore(
    self, learner: Any, again: bool
  ) -> Mapping[str, np.ndarray] | None:
    """Gives a learner what was saved, if there is something for it.

    Args:
      learner: takes it.
      again: whether what this start of the run has saved is taken too; if not,
        only what an earlier one has, which is resumed, and of this start the
        updates made, by which learning rates fall. What else a node had that
        died may be what killed it.

    Returns:
      All that was saved, also what `save` got beside the learner; None where
      the learner is new.

    Raises:
      ValueError: it was another learner, with other members or networks.
      durable.Broken: it was saved, and can be read no more.
    """
    if self._path is None:
      return None
    arrays = checkpoints.read(self._path, repair=True)
    if arrays is None:
      return None
    start = int(arrays.pop('start'))
    if start >= self._start and not again:
      learner.restore({**learner.save(), 'updates': arrays['updates']})
      return None
    learner.restore(arrays)
    _logger.info('Going on from learner step %d.', learner.updates)
    return arrays

  def save(
    self,
    learner: Any,
    last: bool = False,
    beside: Mapping[str, np.ndarray] | None = None,
  ) -> bool:
    """Saves the learner, and replay where that is due or this is the last.

    Args:
      learner: whose arrays are saved.
      last: whether nothing comes after it.
      beside: more arrays, of names that no learner has.

    Returns:
      Whether replay is kept as it is now.
    """
    began, took_s = time.monotonic(), None
    try:
      if self._path is None:
        return True
      arrays: dict[str, Any] = {**learner.save(), **(beside or {})}
      checkpoints.write(self._path, start=self._start, **arrays)
      # Without that of replay, which has a pause of its own.
      took_s = time.monotonic() - began
      if last or self._replay.due():
        return self._replay.save(learner.updates, last=last)
      return False
    finally:
      # Also of one that failed: learning goes on before the next.
      self._pause.ended(took_s)


class ReplaySaves:
  """Saves the shards of all hosts, now and then."""

  def __init__(self, hosts: Sequence[Any], period_s: float):
    """Saves nothing yet; the first period begins.

    Args:
      hosts: `replay_host.ReplayHost`s, or clients of them.
      period_s: from the end of a save to the next, at least.
    """
    self._hosts = list(hosts)
    self._pause = _Pause(period_s)
    self.due = self._pause.due  # whether it is time for the next

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
    took_s = time.monotonic() - began
    self._pause.ended(took_s)
    if took_s >= _LONG_S:
      _logger.info(
        'A checkpoint of replay took %.0f s; the next is due in %.0f s.',
        took_s,
        self._pause.pause_s,
      )
    return whole


class Rings:
  """Saves replay that is in a worker's own process, as a host of it would."""

  def __init__(self, run_dir: str | None, rings: Sequence[Any]):
    """Takes rings in: `ring.Ring`s of the worker, in their order."""
    self._paths = []
    if run_dir is not None:
      directory = checkpoints.directory(run_dir)
      self._paths = [directory / f'ring-{i}.npz' for i in range(len(rings))]
    self._rings = list(rings)

  def restore(self) -> None:
    """Gives the rings what was saved of them.

    Raises:
      ValueError: they were of other items.
      durable.Broken: they were saved, and can be read no more.
    """
    for path, ring in zip(self._paths, self._rings):
      arrays = checkpoints.read(path, repair=True)
      if arrays is not None:
        ring.restore(arrays)
        _logger.info('Replay goes on with %d items.', len(ring))

  def save(self, meta: Mapping[str, Any], last: bool = False) -> None:
    """As `replay_host.ReplayHost.save`."""
    del meta, last
    for path, ring in zip(self._paths, self._rings):
      checkpoints.write(path, **ring.save())


def write_acting(run_dir: str | None, theta: np.ndarray, steps: int) -> None:
  """Writes what acts, `theta [P, D]`, for whoever wants to play it."""
  if run_dir is not None:
    path = checkpoints.directory(run_dir) / checkpoints.AGENTS
    # A run goes on without it, so it need not outlive a power cut.
    checkpoints.write(path, sync=False, theta=theta, steps=steps)


def _starts(run_dir: Any) -> int:
  """How often the run has been started or resumed."""
  try:
    return len(run_directory.RunDirectory(run_dir).commands())
  except FileNotFoundError:
    return 0
