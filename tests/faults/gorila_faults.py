"""Gorila with a fault in one learner of several: late gradients, or wrong ones.

Topologies for a command line or a study, with the settings of parameter_server:

  python launch/run.py gorila_dqn \\
    --topology=tests.faults.gorila_faults:DelayedLearner
  python launch/run.py gorila_dqn \\
    --topology=tests.faults.gorila_faults:FaultyLearner

The fault is in `learner/1`; all other nodes are those of parameter_server. Its
rows of metrics/node_learner.jsonl count what became of its gradients.
"""

import collections
import functools

import numpy as np

from murmuration.launch.services import shard_exchange
from murmuration.launch.topologies import parameter_server

LEARNER = 1  # not 0, whose checkpoint and log stand for all
DELAY = 50  # updates of a shard before it gets a gradient
FACTOR = 1000.0  # on rewards
BATCHES = 100  # with these rewards
# Of them, those counted as the onset. The filter adds what it discards to its
# statistics. After n losses at a new, far higher level c the mean is about a c
# with a = 1 - decay^n, and the deviation c sqrt(a (1 - a)). So a loss of c
# passes once a >= 1 / (1 + sigmas^2): after seven with a decay of 0.99 and 4
# deviations. One that is a little below c passes earlier.
ONSET = 5


class _DelayedShards(shard_exchange.Shards):
  """A gradient waits until all shards have moved on; the learner does not.

  It gets the present parameters for each gradient, and goes on. What is held
  when it ends is never sent.
  """

  def __init__(self, *args):
    super().__init__(*args)
    self.held = collections.deque()  # messages, and the replies before them
    self.late = 0  # gradients sent

  def push(self, message):
    """Accepted is the largest share of a gradient that was taken meanwhile."""
    if message.vector is None:
      return super().push(message)
    self.held.append((message, list(self._known)))
    answer, accepted = None, 0.0
    while self.held and self._have_moved_on():
      late, known = self.held.popleft()
      # Shards compare with the versions that the gradient was computed from.
      self._known = known
      answer = super().push(late._replace(steps=message.steps))
      accepted = max(accepted, answer.accepted)
      self.late += 1
    return (answer or self.pull())._replace(accepted=accepted)

  def _have_moved_on(self):
    _, known = self.held[0]
    return all(
      now.version >= then.version + DELAY
      for now, then in zip(self._known, known)
    )


class DelayedExchange(shard_exchange.ServerExchange):
  """Each gradient reaches the shards `DELAY` of their updates late.

  `gradients_sent` counts all gradients, and `gradients_rejected` those of them
  that no shard has applied, whether sent late or still held.
  """

  def __init__(self, config, places, learner, shards, budget=None):
    super().__init__(config, places, learner, shards)
    self._shards = self._server = _DelayedShards(shards, places, learner)

  def metrics(self):
    return {
      **super().metrics(),
      'gradients_late': self._shards.late,
      'gradients_held': len(self._shards.held),
    }


class FaultyExchange(shard_exchange.ServerExchange):
  """Multiplies the rewards of `BATCHES` batches, from half of the budget on.

  Replay stays as it is: the learner reads it wrongly for a while.
  """

  def __init__(self, config, places, learner, shards, budget):
    super().__init__(config, places, learner, shards)
    self._begin_at = budget // (2 * config.num_learners)  # of its own steps
    self._coming = collections.deque()  # of this call: whether a batch is wrong
    self._wrong = self._wrong_discarded = self._onset_discarded = 0

  def begin(self, worker):
    super().begin(worker)
    learner = worker.learner
    self._reward = learner.agent.transition_layout().slices.r_t
    # Where a sample reaches the learner; replay and sampler are not touched.
    self._right_step, learner.step = learner.step, self._step

  def _step(self, sample, probabilities=None):
    updates = self._worker.learner.updates_per_call
    wrong = 0
    if self._worker.steps >= self._begin_at:
      wrong = min(updates, BATCHES - self._wrong)
    if wrong:
      # Batch after batch: the first rows are of the first updates.
      sample = np.array(sample)
      assert sample.dtype == np.float32, sample.dtype  # numbers, not bytes
      rows = len(sample) // updates * wrong
      sample[:rows, ..., self._reward] *= FACTOR
    self._coming.clear()
    self._coming.extend(update < wrong for update in range(updates))
    return self._right_step(sample, probabilities)

  def meet(self, learner, gradient):
    before = self._discarded
    met = super().meet(learner, gradient)
    if self._coming.popleft():
      discarded = self._discarded - before
      if self._wrong < ONSET:
        self._onset_discarded += discarded
      self._wrong += 1
      self._wrong_discarded += discarded
    return met

  def metrics(self):
    return {
      **super().metrics(),
      'wrong_batches': self._wrong,
      'wrong_batches_discarded': self._wrong_discarded,
      'wrong_batches_discarded_at_onset': self._onset_discarded,
    }


class _OneFault:
  """parameter_server, with another exchange in one learner."""

  SECTION = parameter_server.SECTION
  Config = parameter_server.Config
  REPLAY = parameter_server.REPLAY
  members = staticmethod(parameter_server.members)
  exchange: type

  @classmethod
  def build(cls, experiment, config):
    if config.num_learners <= LEARNER:
      raise ValueError(
        f'server.num_learners={config.num_learners}: the fault is in learner '
        f'{LEARNER}, beside others without one. Use at least {LEARNER + 1}.'
      )
    program = parameter_server.build(experiment, config)
    options = program.groups['learner'][LEARNER]._kwargs
    options['exchange'] = functools.partial(
      cls.exchange, *options['exchange'].args, budget=experiment.total_steps
    )
    return program


class DelayedLearner(_OneFault):
  """The gradients of one learner are late by 50 updates."""

  exchange = DelayedExchange


class FaultyLearner(_OneFault):
  """One learner multiplies rewards by 1000 for 100 batches, half way."""

  exchange = FaultyExchange
