"""What a worker keeps of itself: RUN/checkpoints/WORKER.npz, and its replay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import logging
import pathlib
import time
from typing import Any

import numpy as np

from launch.nodes import replay_saves
from run_records import checkpoints
from run_records import run_directory

_logger = logging.getLogger(__name__)
_PERIOD_S = 5.0  # from the end of a checkpoint of the learner to the next


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
    self._replay_saves = replay_saves.ReplaySaves(hosts, replay_period_s)
    self._ended, self._pause_s = time.monotonic(), _PERIOD_S

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

  def due(self) -> bool:
    """Whether it is time for the next."""
    return time.monotonic() - self._ended >= self._pause_s

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
    began = time.monotonic()
    try:
      if self._path is None:
        return True
      arrays: dict[str, Any] = {**learner.save(), **(beside or {})}
      checkpoints.write(self._path, start=self._start, **arrays)
      # Without that of replay, which has a pause of its own.
      took_s = time.monotonic() - began
      self._pause_s = max(_PERIOD_S, replay_saves.SHARE * took_s)
      if last or self._replay_saves.due():
        return self._replay_saves.save(learner.updates, last=last)
      return False
    finally:
      # Also of one that failed: learning goes on before the next.
      self._ended = time.monotonic()


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
