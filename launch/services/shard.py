"""A shard of a parameter server: one slice of theta, and who changed it.

Learners push gradients of the slice and get it back as it then is, in the same
reply. Updates are made one at a time, in the order in which they come. Each
shard decides alone what it accepts (agents/slice_update.py).

With `synchronous` a shard waits for the gradients of all learners and applies
their mean: A2C. A learner that has not come after `sync_timeout_s` is left out,
and not waited for until it comes again; one that learns no more says so.
"""

from __future__ import annotations

from collections.abc import Sequence
import logging
import pathlib
import threading
import time
from typing import Any, NamedTuple

import numpy as np

from agents import base
from agents import learner as learner_lib
from agents import slice_update
from launch import experiment as experiment_lib
from launch import pulse
from launch.services import averaging
from run_records import checkpoints
from run_records import reporting

_logger = logging.getLogger(__name__)
_LOOK_S = 0.1
_LONG_S = 300.0  # a checkpoint may take
_REJECTING_S = 60.0  # without an accepted gradient, after which it is said

# What a statistic is and where it begins in the slice.
Statistics = Sequence[tuple[int, np.ndarray]]


def places(agent: base.Agent, config: Any) -> list[slice]:
  """The slice of each shard, by `Config` of topologies/parameter_server.py.

  Raises:
    ValueError: there are more shards than parameters, or variables.
  """
  sizes = agent.layout.sizes if config.slices == 'variables' else None
  return slice_update.places(agent.layout.size, config.num_shards, sizes)


class Reply(NamedTuple):
  """What a shard says.

  Attributes:
    accepted: whether the gradient moved the slice; True where there was none.
    version: accepted updates of this shard.
    theta: the slice as it is now.
    steps: environment steps of all learners.
  """

  accepted: bool
  version: int
  theta: np.ndarray
  steps: int


class Round:
  """A synchronous update: what all learners sent, until it is closed."""

  def __init__(self):
    self.gradients: dict[int, np.ndarray | None] = {}
    self.statistics: dict[int, Statistics] = {}
    self.tickets: dict[int, str] = {}
    self.accepted = False
    self.closed = False


class Shard:
  """Serves one slice. `push` and `pull` are called by any number of threads."""

  serves = ('pull', 'push', 'leave')

  def __init__(
    self,
    experiment: experiment_lib.Experiment,
    config: Any,
    index: int,
    counter: Any = None,
  ):
    """Makes the slice, or takes it from its checkpoint.

    Args:
      experiment: what is run.
      config: `Config` of topologies/parameter_server.py.
      index: of this shard, below config.num_shards.
      counter: client of the counter; None reports nothing.

    Raises:
      ValueError: the checkpoint is of another slice.
    """
    agent = experiment.make_agent()
    self._config = config
    self._index = index
    seed = base.actor_seed(experiment.actor_info(0), 'initial from step 0')
    place = places(agent, config)[index]
    self._slice = slice_update.of(
      agent,
      agent.initial(seed),
      place,
      config.max_staleness,
      config.num_learners if config.synchronous else 1,
    )
    # Of each place in the slice, what the learners sent last, for their mean. A
    # shard that was started again hears of each anew; theta has what was common
    # to them.
    self._statistics: dict[int, dict[int, np.ndarray]] = {}
    self._maxima = {
      variable.offset - place.start
      for variable in agent.layout.variables
      if variable.name in agent.maxima
    }
    self._rate_settings = agent.rate_settings
    self._changed = threading.Condition()
    self._tickets: dict[int, tuple[str, bool]] = {}
    self._steps: dict[int, int] = {}
    self._rejected: dict[int, int] = {}
    self._staleness: dict[int, int] = {}  # of each learner's last gradient
    self._oldest = 0  # largest staleness so far
    self._last = time.monotonic()  # when one was accepted
    self._since = 0  # rejected since then
    self._round = Round()
    self._present = set(range(config.num_learners))
    self._path: pathlib.Path | None = None
    self._saved = -1  # version
    if experiment.run_dir is not None:
      directory = checkpoints.directory(experiment.run_dir)
      self._path = directory / f'shard-{index}.npz'
      self._restore()
    self._reporter = None
    if counter is not None:
      self._reporter = reporting.Reporter(f'shard/{index}', counter)

  # Served.

  def pull(self) -> Reply:
    """The slice as it is."""
    with self._changed:
      return self._reply(True)

  def push(
    self,
    learner: int,
    ticket: str,
    pulled: int,
    gradient: np.ndarray | None,
    statistics: Statistics,
    steps: int,
  ) -> Reply:
    """Takes a gradient in; one that comes twice counts once.

    Args:
      learner: who sends it.
      ticket: the same where the call is made again.
      pulled: version of the slice that it is of.
      gradient: of the slice; None where there is none.
      statistics: what would stand in the slice if this learner were alone.
      steps: environment steps of this learner.
    """
    with self._changed:
      known, accepted = self._tickets.get(learner, ('', True))
      if known == ticket:
        return self._reply(accepted)
      self._steps[learner] = max(steps, self._steps.get(learner, 0))
      if self._config.synchronous:
        accepted = self._meet(learner, ticket, gradient, statistics, pulled)
      else:
        accepted = gradient is None or self._apply(gradient, pulled, [learner])
        if accepted:
          self._take(learner, statistics)
        self._tickets[learner] = (ticket, accepted)
      return self._reply(accepted)

  def leave(self, learner: int) -> None:
    """A learner learns no more: no round waits for it."""
    with self._changed:
      self._forget(learner)
      self._changed.notify_all()

  # With the lock held.

  def _reply(self, accepted: bool) -> Reply:
    own = self._slice
    return Reply(
      accepted, own.version, own.theta.copy(), sum(self._steps.values())
    )

  def _apply(
    self, gradient: np.ndarray, pulled: int, learners: Sequence[int]
  ) -> bool:
    accepted, staleness = self._slice.apply(gradient, pulled)
    self._staleness.update(dict.fromkeys(learners, staleness))
    self._oldest = max(self._oldest, staleness)
    if accepted:
      self._last, self._since = time.monotonic(), 0
    else:
      self._since += 1
      for learner in learners:
        self._rejected[learner] = self._rejected.get(learner, 0) + 1
    return accepted

  def _take(self, learner: int, statistics: Statistics) -> None:
    """Puts what is common to the learners into theta: their mean, or maximum.

    Each goes on from there, so that what one has seen reaches all.
    """
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

  def _forget(self, learner: int) -> None:
    """Takes out a learner that is gone.

    What it sent last would hold the mean of the others near where it was.
    """
    self._present.discard(learner)
    for known in self._statistics.values():
      known.pop(learner, None)

  def _meet(
    self,
    learner: int,
    ticket: str,
    gradient: np.ndarray | None,
    statistics: Statistics,
    pulled: int,
  ) -> bool:
    """Waits for the others; whether the common update was made."""
    self._present.add(learner)
    if pulled != self._slice.version:
      # Of a round that was closed without it.
      self._rejected[learner] = self._rejected.get(learner, 0) + 1
      self._tickets[learner] = (ticket, False)
      return False
    own = self._round
    own.tickets[learner] = ticket
    own.gradients[learner] = gradient
    own.statistics[learner] = statistics
    deadline = time.monotonic() + self._config.sync_timeout_s
    while not own.closed:
      late = time.monotonic() >= deadline
      if late or self._present <= set(own.gradients):
        self._close(own, pulled)
      else:
        self._changed.wait(deadline - time.monotonic())
    return own.accepted

  def _close(self, own: Round, pulled: int) -> None:
    missing = self._present - set(own.gradients)
    if missing:
      _logger.warning(
        'Update %d goes on without learner %s.',
        pulled,
        ', '.join(map(str, sorted(missing))),
      )
      for learner in missing:
        self._forget(learner)
    found = [own.gradients[learner] for learner in sorted(own.gradients)]
    vectors = [vector for vector in found if vector is not None]
    if vectors:
      mean = averaging.mean(vectors)
      own.accepted = self._apply(mean, pulled, sorted(own.gradients))
    else:
      own.accepted = True
    if own.accepted:
      # Before any learner is answered: all get the same.
      for learner in sorted(own.statistics):
        self._take(learner, own.statistics[learner])
    for learner, ticket in own.tickets.items():
      # Now: a call may come again before the first one has woken.
      self._tickets[learner] = (ticket, own.accepted)
    own.closed, self._round = True, Round()
    self._changed.notify_all()

  # What survives.

  def run(self, stop: threading.Event | None = None) -> None:
    """Saves and reports until the program stops.

    Raises:
      learner.LearnerFault: the slice is not finite, and is not saved.
    """
    stop = pulse.stop_event(stop)
    while not stop.wait(_LOOK_S):
      if self._slice.version >= self._saved + self._config.checkpoint_period:
        self._save()
      if self._reporter is not None and self._reporter.due():
        self._slice_if_finite()
        self._reporter.report(self.numbers())
        self._say_if_rejecting()
    self._save()

  def numbers(self) -> dict[str, float]:
    """For the log."""
    with self._changed:
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
    with self._changed:
      long = time.monotonic() - self._last > _REJECTING_S
      if not (long and self._since):
        return
      self._last = time.monotonic()
      counts = dict(sorted(self._rejected.items()))
    _logger.warning(
      'No gradient was accepted for %.0f s. Rejected so far, by learner: %s. '
      'Raise server.max_staleness (%s), or use fewer learners.',
      _REJECTING_S,
      counts,
      self._config.max_staleness,
    )

  def _slice_if_finite(self) -> dict[str, Any]:
    """The slice, to be saved."""
    with self._changed:
      arrays = self._slice.save()
    # A finite gradient may do it: its square need not be finite.
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
    with self._changed:
      arrays = self._slice_if_finite()
      counts = [
        (learner, steps, self._rejected.get(learner, 0))
        for learner, steps in sorted(self._steps.items())
      ]
      # What was taken before is not taken again, if its answer was lost.
      tickets = np.array(
        [
          (str(learner), ticket, str(int(accepted)))
          for learner, (ticket, accepted) in sorted(self._tickets.items())
        ],
        str,
      ).reshape(-1, 3)
      self._saved = self._slice.version
    learners = np.array(counts, np.int64).reshape(-1, 3)
    what = 'the checkpoint of a shard'
    with pulse.survives(what), pulse.busy(what, _LONG_S):
      checkpoints.write(
        self._path, learners=learners, tickets=tickets, **arrays
      )

  def _restore(self) -> None:
    assert self._path is not None
    arrays = checkpoints.read(self._path, repair=True)
    if arrays is None:
      return
    for learner, steps, rejected in arrays.pop('learners').tolist():
      self._steps[learner] = steps
      self._rejected[learner] = rejected
    # Files of earlier versions have none.
    for learner, ticket, accepted in arrays.pop('tickets', np.empty((0, 3))):
      self._tickets[int(learner)] = str(ticket), accepted == '1'
    self._slice.restore(arrays)
    self._saved = self._slice.version
    _logger.info('Going on from update %d.', self._saved)
