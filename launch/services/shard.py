"""A shard of a parameter server: one slice of theta and its updates.

Learners push gradients of the slice; the reply has the updated slice. Updates
are applied one at a time, in the order in which they arrive. Each shard decides
alone which gradients it accepts (agents/slice_update.py). A learner that has
finished calls `leave`.
"""

from __future__ import annotations

from collections.abc import Sequence
import logging
import math
import pathlib
import threading
import time
from typing import Any, NamedTuple
import uuid

import numpy as np

from murmuration.agents import base
from murmuration.agents import learner as learner_lib
from murmuration.agents import slice_update
from murmuration.launch import experiment as experiment_lib
from murmuration.launch import pulse
from murmuration.launch import reporting
from murmuration.run_records import checkpoints

_logger = logging.getLogger(__name__)
_LOOK_S = 0.1
_RETRY_S = 5.0  # after a checkpoint that could not be written
_REJECTING_S = 60.0  # without an accepted gradient before a warning

# Pairs of a statistic's start in the slice and its values.
Statistics = Sequence[tuple[int, np.ndarray]]


def places(agent: base.Agent, config: Any) -> list[slice]:
  """The slice of theta of each shard; `config` is parameter_server.Config."""
  return slice_update.places(agent.layout.size, config.num_shards)


def _is_new(ticket: str, known: str) -> bool:
  """Whether a learner's call is neither its last one, `known`, nor older."""
  (run, number), (last_run, last) = (
    one.rsplit('-', 1) for one in (ticket, known)
  )
  return run != last_run or int(number) > int(last)


class Reply(NamedTuple):
  """A shard's answer to `pull` and `push`."""

  accepted: bool  # whether the gradient was applied; True if there was none
  version: int  # number of accepted updates of this shard
  theta: np.ndarray  # the present slice, float32
  steps: int  # environment steps of all learners
  scheduled: int  # updates by which rates have fallen
  life: str  # identifies this start of the shard


class Shard:
  """Serves one slice of theta; `push`, `pull` and `leave` are thread-safe."""

  serves = ('pull', 'push', 'leave')

  def __init__(
    self,
    experiment: experiment_lib.Experiment,
    config: Any,
    index: int,
    counter: Any = None,
  ):
    """Makes or restores the slice; `config` is parameter_server.Config."""
    agent = experiment.make_agent()
    self._config = config
    seed = base.actor_seed(experiment.actor_info(0), 'initial from step 0')
    place = places(agent, config)[index]
    self._slice = slice_update.of(
      agent, agent.initial(seed), place, config.max_staleness
    )
    end = agent.rate_end
    self._env_steps = None if end is None else end.env_steps
    # Start in the slice -> learner -> its last values, for their mean. Not
    # saved: after a restart theta has the mean, and learners send theirs again.
    self._statistics: dict[int, dict[int, np.ndarray]] = {}
    self._maxima = {  # of a variable, the part that is here
      max(variable.offset - place.start, 0)
      for variable in agent.layout.variables
      if variable.name in agent.maxima and variable.slice.stop > place.start
    }
    self._rate_settings = agent.rate_settings
    # After a restart, versions of lost updates are reached again by others.
    self._life = uuid.uuid4().hex
    self._lock = threading.RLock()
    self._tickets: dict[int, tuple[str, bool]] = {}
    self._steps: dict[int, int] = {}
    self._rejected: dict[int, int] = {}
    self._staleness: dict[int, int] = {}  # of each learner's last gradient
    self._oldest = 0  # largest staleness so far
    self._accepted_at = time.monotonic()
    self._rejected_since = 0
    self._present = set(range(config.num_learners))
    self._path: pathlib.Path | None = None
    self._saved, self._next_try = -1, -math.inf  # a version, and a time
    if experiment.run_dir is not None:
      directory = checkpoints.directory(experiment.run_dir)
      self._path = directory / f'shard-{index}.npz'
      self._restore()
    self._reporter = None
    if counter is not None:
      self._reporter = reporting.Reporter(f'shard/{index}', counter)

  # Served over RPC.

  def pull(self) -> Reply:
    """The present slice."""
    with self._lock:
      return self._reply(True)

  def push(
    self,
    learner: int,
    ticket: str,
    pulled: int,
    gradient: np.ndarray | None,
    statistics: Statistics,
    steps: int,
    life: str | None = None,
  ) -> Reply:
    """Applies a gradient; a repeated call, or an overtaken one, has no effect.

    Args:
      learner: number of the caller.
      ticket: 'RUN-NUMBER': a life of the caller, and which of its calls this
        is; a repeated call has the same one.
      pulled: version of the slice that the gradient was computed from.
      gradient: of the slice, float32; None if there is none.
      statistics: the values that this learner alone would put into the slice.
      steps: environment steps of this learner.
      life: of the shard that `pulled` is a version of; None: of this one.
    """
    with self._lock:
      known, accepted = self._tickets.get(learner, ('-', True))
      # An older one was given up or answered when it came again; the first
      # may have waited in a connection of a process that was stopped.
      if not _is_new(ticket, known):
        return self._reply(accepted)
      self._steps[learner] = max(steps, self._steps.get(learner, 0))
      if life not in (None, self._life):
        pulled = self._slice.version + 1  # One that was not reached.
      accepted = gradient is None or self._apply(gradient, pulled, learner)
      if accepted:
        self._take(learner, statistics)
      self._tickets[learner] = (ticket, accepted)
      return self._reply(accepted)

  def leave(self, learner: int) -> None:
    """Removes a learner that has finished.

    Its old statistics would distort the mean.
    """
    with self._lock:
      self._present.discard(learner)
      for known in self._statistics.values():
        known.pop(learner, None)

  # With the lock held.

  def _reply(self, accepted: bool) -> Reply:
    own = self._slice
    return Reply(
      accepted,
      own.version,
      own.theta.copy(),
      sum(self._steps.values()),
      self._scheduled(),
      self._life,
    )

  def _scheduled(self, due: int = 0) -> int:
    """Updates made before `due` ones, by which rates have fallen.

    Rates that fall over environment steps do so too where a gradient is stopped
    or rejected. PPO's learners say the steps of a rollout with its first
    update: those of others count at once.
    """
    if self._env_steps is None:
      return self._slice.version
    # The steps that a gradient is of come with it.
    return max(int(sum(self._steps.values()) / self._env_steps) - due, 0)

  def _apply(self, gradient: np.ndarray, pulled: int, learner: int) -> bool:
    accepted, staleness = self._slice.apply(
      gradient, pulled, self._scheduled(1)
    )
    self._staleness[learner] = staleness
    self._oldest = max(self._oldest, staleness)
    if accepted:
      self._accepted_at, self._rejected_since = time.monotonic(), 0
    else:
      self._rejected_since += 1
      self._rejected[learner] = self._rejected.get(learner, 0) + 1
    return accepted

  def _take(self, learner: int, statistics: Statistics) -> None:
    """Puts the mean or maximum of the learners' statistics into theta."""
    for start, values in statistics:
      if not np.isfinite(values).all():
        continue
      common = self._slice.theta[start : start + len(values)]
      if start in self._maxima:
        np.maximum(common, values, out=common)
        continue
      known = self._statistics.setdefault(start, {})
      known[learner] = np.array(values)  # not the message's memory
      common[:] = np.mean(list(known.values()), axis=0)

  # The node.

  def run(self, stop: threading.Event | None = None) -> None:
    """Saves and reports until the program stops; LearnerFault if not finite."""
    stop = pulse.stop_event(stop)
    while not stop.wait(_LOOK_S):
      # Without learners no update may follow: a next life has the last one.
      period = self._config.checkpoint_period if self._present else 1
      due = self._slice.version >= self._saved + period
      if due and time.monotonic() >= self._next_try:
        self._save()
      if self._reporter is not None and self._reporter.due():
        self._slice_if_finite()
        self._reporter.report(self.numbers())
        self._say_if_rejecting()
    self._save()

  def numbers(self) -> dict[str, float]:
    """Metrics for the log."""
    with self._lock:
      return {
        'version': self._slice.version,
        'staleness_max': self._oldest,
        **{
          f'staleness_of_{learner}': updates
          for learner, updates in sorted(self._staleness.items())
        },
        'gradients_rejected': sum(self._rejected.values()),
        **{
          f'gradients_rejected_of_{learner}': count
          for learner, count in sorted(self._rejected.items())
        },
      }

  def _say_if_rejecting(self) -> None:
    with self._lock:
      long = time.monotonic() - self._accepted_at > _REJECTING_S
      if not (long and self._rejected_since):
        return
      self._accepted_at = time.monotonic()
      counts = dict(sorted(self._rejected.items()))
    _logger.warning(
      'No gradient was accepted for %.0f s. Rejected so far, by learner: %s. '
      'Raise server.max_staleness (%s), or use fewer learners.',
      _REJECTING_S,
      counts,
      self._config.max_staleness,
    )

  def _slice_if_finite(self) -> dict[str, Any]:
    """The slice's arrays for a checkpoint; raises if they are not finite."""
    with self._lock:
      arrays = self._slice.save()
    # Even a finite gradient can cause this: its square may overflow.
    if not all(np.isfinite(array).all() for array in arrays.values()):
      raise learner_lib.LearnerFault(
        'The parameters, or what the optimizer keeps of them, are not finite. '
        'The last checkpoint is taken up again; if that repeats, lower '
        f'{" and ".join(self._rate_settings)}.'
      )
    return arrays

  def _save(self) -> None:
    if self._path is None:
      return
    with self._lock:
      arrays = self._slice_if_finite()
      counts = [
        (learner, steps, self._rejected.get(learner, 0))
        for learner, steps in sorted(self._steps.items())
      ]
      # Saved so that a push whose answer was lost is not applied again.
      tickets = np.array(
        [
          (str(learner), ticket, str(int(accepted)))
          for learner, (ticket, accepted) in sorted(self._tickets.items())
        ],
        str,
      ).reshape(-1, 3)
      version = self._slice.version
    learners = np.array(counts, np.int64).reshape(-1, 3)
    self._next_try = time.monotonic() + _RETRY_S  # if this one fails
    what = 'the checkpoint of a shard'
    with pulse.survives(what), pulse.busy(what):
      checkpoints.write(
        self._path, learners=learners, tickets=tickets, **arrays
      )
      self._saved, self._next_try = version, -math.inf

  def _restore(self) -> None:
    assert self._path is not None
    arrays = checkpoints.read(self._path, repair=True)
    if arrays is None:
      return
    for learner, steps, rejected in arrays.pop('learners').tolist():
      self._steps[learner] = steps
      self._rejected[learner] = rejected
    for learner, ticket, accepted in arrays.pop('tickets'):
      self._tickets[int(learner)] = str(ticket), accepted == '1'
    self._slice.restore(arrays)
    self._saved = self._slice.version
    _logger.info('Going on from update %d.', self._saved)
