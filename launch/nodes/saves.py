"""A worker's checkpoints: RUN/checkpoints/WORKER.npz, and its replay.

The worker waits during a save, so slow saves are made less often. A failed save
of replay is no failure of the run: the previous checkpoint is still there. It
is logged, and of a ring (`Rings`) also said when the run ends or is resumed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import contextlib
import logging
import pathlib
import time
from typing import Any

import numpy as np

from murmuration.launch import pulse
from murmuration.run_records import checkpoints
from murmuration.run_records import run_directory

_logger = logging.getLogger(__name__)
_PERIOD_S = 5.0  # from the end of a learner's checkpoint to the next
_SHARE = 20  # saves take at most 1 / _SHARE of a learner's time
_BYTES_PER_S = 1e6  # of a learner's checkpoints: disks wear out
_LONG_S = 3.0  # a save of replay that takes longer is logged
# Errors of a save of replay. Those of rpc and `checkpoints.Broken` are
# subclasses of these.
FAILURES = (OSError, RuntimeError)


class _Pause:
  """The pause between two saves. The first one starts with the object."""

  def __init__(self, period_s: float):
    self._period_s = self.pause_s = period_s
    self._ended = time.monotonic()

  def due(self) -> bool:
    return time.monotonic() - self._ended >= self.pause_s

  def ended(self, took_s: float | None, least_s: float = 0.0) -> None:
    """Notes the end of a save. After a failure (None) the pause stays."""
    self._ended = time.monotonic()
    if took_s is not None:
      self.pause_s = max(self._period_s, _SHARE * took_s, least_s)


class Saves:
  """Saves a learner and its replay, and restores the learner."""

  def __init__(
    self,
    run_dir: str | None,
    node: str,
    hosts: Sequence[Any],
    replay_period_s: float,
  ):
    """Saves nothing if `run_dir` is None.

    `hosts` are `replay_host.ReplayHost`s or clients of them.
    """
    self._path: pathlib.Path | None = None
    self._start = 0  # how often the run had been started or resumed
    if run_dir is not None:
      name = f'{node.replace("/", "-")}.npz'
      self._path = checkpoints.directory(run_dir) / name
      with contextlib.suppress(FileNotFoundError):
        self._start = len(run_directory.RunDirectory(run_dir).commands())
    self._replay = ReplaySaves(hosts, replay_period_s)
    self._pause = _Pause(_PERIOD_S)
    self.due = self._pause.due

  def restore(
    self, learner: Any, again: bool
  ) -> Mapping[str, np.ndarray] | None:
    """Restores a learner from its checkpoint, if there is one for it.

    `again` says whether to use one that the present start of the run wrote. If
    not, only the number of updates is taken from it, which learning rates
    follow: the node died, and the rest of its state may be the cause.
    Checkpoints of earlier starts are always used.

    Returns all saved arrays, including `beside` of `save`; None if the learner
    keeps its new parameters.

    Raises:
      ValueError: the checkpoint has other members or networks.
      durable.Broken: the checkpoint cannot be read.
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
    """Saves the learner, and replay if that is due or this is the last save.

    `beside` has more arrays, under names that no learner uses. Returns whether
    the checkpoint holds the present content of replay.
    """
    began, took_s, least_s = time.monotonic(), None, 0.0
    try:
      if self._path is None:
        return True
      arrays: dict[str, Any] = {**learner.save(), **(beside or {})}
      checkpoints.write(self._path, start=self._start, **arrays)
      # Does not include saving replay, which has its own pause.
      took_s = time.monotonic() - began
      size = sum(np.asarray(array).nbytes for array in arrays.values())
      least_s = size / _BYTES_PER_S
      if last or self._replay.due():
        return self._replay.save(learner.updates, last=last)
      return False
    finally:
      # Also after a failure, so that learning goes on before the next attempt.
      self._pause.ended(took_s, least_s)


class ReplaySaves:
  """Saves the shards of all hosts, at least `period_s` apart."""

  def __init__(self, hosts: Sequence[Any], period_s: float):
    self._hosts = list(hosts)
    self._pause = _Pause(period_s)
    self.due = self._pause.due

  def save(self, learner_steps: int, last: bool = False) -> bool:
    """Saves the shards of each host. Returns whether all of them were saved."""
    began, whole = time.monotonic(), True
    for host in self._hosts:
      pulse.beat()  # The time limit applies to each host.
      try:
        host.save({'learner_steps': learner_steps}, last)
      except FAILURES as e:
        whole = False
        # A save that outlasts the call goes on, and may still be whole.
        _logger.warning('Replay was not checkpointed, or not in time: %s', e)
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
  """Saves `ring.Ring`s, the replay in a worker's own process.

  Has the same `save` as a `replay_host.ReplayHost`.
  """

  def __init__(self, run_dir: str | None, node: str, rings: Sequence[Any]):
    self._paths = []
    if run_dir is not None:
      directory = checkpoints.directory(run_dir)
      name = node.replace('/', '-')
      for i in range(len(rings)):
        self._paths.append(directory / checkpoints.RING.format(f'{name}-{i}'))
    self._rings = list(rings)

  def restore(self) -> None:
    """Restores the rings from their checkpoints, if there are any."""
    for i, (path, ring) in enumerate(zip(self._paths, self._rings)):
      arrays = checkpoints.read(path, repair=True)
      if arrays is None:  # Runs of one worker have been saved without its name.
        old = path.with_name(checkpoints.RING.format(i))
        arrays = checkpoints.read(old, repair=True)
      if arrays is not None:
        ring.restore(arrays)
        _logger.info('Replay goes on with %d items.', len(ring))

  def save(self, meta: Mapping[str, Any], last: bool = False) -> None:
    """See `replay_host.ReplayHost.save`."""
    del meta, last
    for path, ring in zip(self._paths, self._rings):
      pulse.progress()  # The time limit applies to each ring.
      checkpoints.write(path, **ring.save())


def write_acting(run_dir: str | None, theta: np.ndarray, steps: int) -> None:
  """Writes the acting parameters `theta [P, D]`, for playing them later."""
  if run_dir is not None:
    path = checkpoints.directory(run_dir) / checkpoints.AGENTS
    # No run needs it to resume, so it need not survive a power failure.
    checkpoints.write(path, sync=False, theta=theta, steps=steps)
