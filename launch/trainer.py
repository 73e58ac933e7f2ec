"""The loop that acts and learns: P members, environments, replay, learner.

One process, one thread: K = P environments take a vector step, one item goes to
replay, and every few steps one TensorFlow call makes as many updates. A plain
agent is P = 1; an explorer node of a swarm is the same loop with a `Link` that
says what other nodes contribute.
"""

from __future__ import annotations

from collections.abc import Sequence
import logging
import math
import threading
import time
from typing import Any

import numpy as np
import reverb

from agents import base
from agents import exchange as exchange_lib
from agents import feeds
from agents import learning
from environment_loops import evaluation
from environment_loops import observers
from environment_loops import vector
from launch import checkpoints
from launch import experiment as experiment_lib
from launch import reporting
from replay import adders
from replay import datasets
from replay import limiters
from replay import tables

_logger = logging.getLogger(__name__)
# Episodes that the reported training return averages over, per member.
_RECENT_EPISODES = 10


class Link:
  """What the loop hears from other nodes. This one hears nothing."""

  def __init__(self):
    self.exchange: exchange_lib.Exchange = exchange_lib.Local()

  def begin(self, trainer: Trainer) -> None:
    """Called once, with the learner built and nothing stepped."""

  def initial(self, theta: np.ndarray) -> np.ndarray:
    """First parameters [P, D] of the members, given fresh ones."""
    return theta

  def episode_ended(self, done: observers.Finished) -> None:
    """A member's training episode ended."""

  def updated(self, result: learning.StepResult) -> None:
    """The learner made a call."""

  def sync(self) -> None:
    """Called between the learner's calls."""

  def replacement(self, member: int) -> np.ndarray | None:
    """Parameters [D] for a member whose own are not finite, if there are."""
    return None

  def metrics(self) -> dict[str, float]:
    return {}

  def close(self) -> None:
    """The loop is over."""


def replay_table(
  name: str, experiment: experiment_lib.Experiment, members: int
):
  """The replay of one node: an item is one step of all its members."""
  return tables.uniform(
    name,
    max_size=experiment.max_replay_size,
    min_size=experiment.min_replay_size,
    signature=experiment.transitions().signature(members),
    rate_limiter=limiters.min_size(experiment.min_replay_size),
  )


class Trainer:
  """Acts and learns until the budget of its members is used."""

  def __init__(
    self,
    experiment: experiment_lib.Experiment,
    node: str,
    members: Sequence[base.ActorInfo],
    lr_spread: str,
    counter: Any,
    link: Link | None = None,
    replay: reverb.Client | None = None,
    table: str = 'replay',
    evaluate: bool = False,
  ):
    """Takes its arguments in; everything is built in `run`.

    Args:
      experiment: what to run.
      node: name of this node.
      members: the members it hosts, P.
      lr_spread: how learning rates spread over members (swarm.py).
      counter: client of the counter.
      link: line to other nodes; None learns alone.
      replay: client of a replay node; None has a server in this process.
      table: name of the replay table.
      evaluate: whether it evaluates its members itself, in the same loop.
    """
    self.experiment = experiment
    self.members = list(members)
    self.reporter = reporting.Reporter(node, counter)
    self.agent = experiment.make_agent()
    self.steps = 0  # of each member
    self._lr_spread = lr_spread
    self._link = link or Link()
    self._replay = replay
    self._table = table
    self._evaluate = evaluate
    self._next_evaluation = 0
    self._evaluated_at = -1  # steps of each member
    self._skipped = 0
    self._metrics: dict[str, float] = {}
    self._server: reverb.Server | None = None
    self._sampler: datasets.Sampler | None = None
    self._started = time.monotonic()

  def run(self, stop: threading.Event | None = None) -> None:
    """Acts and learns; returns when told to stop."""
    if stop is None:
      import launchpad as lp  # pylint: disable=g-import-not-at-top

      stop = lp.stop_event()
    self._stop = stop
    self._build()
    try:
      self._loop()
      self._finish()
    finally:
      self._link.close()
      self._environment.close()
      self._adder.close()
      if self._server is not None:
        # The sampler's threads end with the server; ask for no more batches.
        self._sampler = None
        self._server.stop()
        self._server = None

  @property
  def learner(self) -> learning.TFLearner:
    return self._learner

  @property
  def theta(self) -> np.ndarray:
    """Parameters [P, D] that act now: at most one learner call old."""
    return self._theta

  def _build(self) -> None:
    import tensorflow as tf  # the first TensorFlow work of a forked node

    run = self.experiment.run
    try:
      tf.config.threading.set_intra_op_parallelism_threads(run.tf_threads)
      tf.config.threading.set_inter_op_parallelism_threads(1)
    except RuntimeError:
      pass  # threads share one TensorFlow; the first node has set it
    self.steps = self.reporter.steps_done() // len(self.members)
    # A restarted node must not replay the episodes that it has seen.
    purpose = f'from step {self.steps}'
    seed = base.actor_seed(self.members[0], purpose)
    self._rng = np.random.default_rng(seed)
    self._environment = vector.make_vector(
      self.experiment.environment,
      len(self.members),
      seed,
      on_fault=self.experiment.run.on_fault,
    )
    self._tracker = observers.EpisodeTracker(
      len(self.members), window=_RECENT_EPISODES * len(self.members)
    )
    fresh = np.stack(
      [
        self.agent.initial(base.actor_seed(info, f'initial {purpose}'))
        for info in self.members
      ]
    )
    theta = self._link.initial(fresh)
    # A transition is packed in one column, so unpacking is all that is left
    # to do between replay and loss.
    layout = self.experiment.transitions()
    self._learner = learning.TFLearner(
      self.agent,
      theta,
      [self.agent.learning_rate(i, self._lr_spread) for i in self.members],
      self._link.exchange,
      feeds.Transitions(layout, self.agent.batch_size),
      updates_per_call=run.updates_per_call,
      seed=seed,
    )
    self._theta = self._learner.parameters()
    client = self._replay
    if client is None:
      table = replay_table(self._table, self.experiment, len(self.members))
      server = self._server = reverb.Server([table])
      client = server.localhost_client()
      _logger.info('Replay table %r at %s', self._table, client.server_address)
    self._adder = adders.PopulationAdder(
      client,
      self._table,
      layout,
      self.agent.n_step,
      self.agent.gamma,
      len(self.members),
      options=adders.WriteOptions(should_stop=self._stop.is_set),
    )
    self._sampler = datasets.Sampler(
      client.server_address,
      self._table,
      run.updates_per_call * self.agent.batch_size,
      should_stop=self._stop.is_set,
      signature=layout.signature(len(self.members)),
    )
    self._written = 0
    self._link.begin(self)

  def _loop(self) -> None:
    experiment = self.experiment
    budget = experiment.run.steps_per_agent
    per_call = experiment.run.updates_per_call * experiment.env_steps_per_update
    learning_from = experiment.min_replay_size + self.agent.n_step
    warm = False
    observation = self._environment.reset()
    self._maybe_evaluate()
    while not self._stop.is_set() and self.steps < budget:
      count = min(per_call, budget - self.steps)
      observation = self._act(observation, count)
      if self._written >= learning_from and count == per_call:
        if not warm:
          warm = True
          self._adder.flush()  # so that the first sample never waits
        if not self._learn():
          return
      self._link.sync()
      self._maybe_evaluate()
      if self.reporter.due() and self.reporter.report(self._numbers()):
        return

  def _act(self, observation: np.ndarray, count: int) -> np.ndarray:
    """`count` steps of each member's environment."""
    act, environment = self.agent.act, self._environment
    episodes = 0
    for _ in range(count):
      action = act(self._theta, observation[:, None], self.steps, self._rng)
      action = action[:, 0]
      step = environment.step(action)
      self._written += self._adder.add(
        observation, action, base.clipped(step, self.agent.reward_clip)
      )
      if step.last.any():
        self.agent.ended(step.last[:, None])
      for done in self._tracker.observe(step):
        self._link.episode_ended(done)
        episodes += 1
      observation = step.next_observation
      self.steps += 1
    self.reporter.count(
      actor_steps=count * len(self.members), episodes=episodes
    )
    return observation

  def _learn(self) -> bool:
    """One call of the learner. Returns False if the program is stopping."""
    try:
      assert self._sampler is not None
      sample = next(self._sampler)
    except StopIteration:
      return False
    result = self._learner.step(sample.data)
    if not self._metrics:
      self.reporter.log('first_update', {'unix_time_s': time.time()})
    for member in np.flatnonzero(result.broken):
      self._replace(int(member))
    self._theta = self._learner.parameters()
    self._link.updated(result)
    self._skipped += int(result.skipped.sum())
    self._metrics = {
      name: float(np.mean(values)) for name, values in result.metrics.items()
    }
    self.reporter.remark(self.agent.remarks(self._metrics))
    self.reporter.count(learner_steps=result.updates * len(self.members))
    return True

  def _replace(self, member: int) -> None:
    theta = self._link.replacement(member)
    if theta is None:
      theta = self.agent.initial(
        base.actor_seed(self.members[member], f'after step {self.steps}')
      )
    _logger.warning(
      'The parameters of member %d are not finite: replaced.',
      self.members[member].index,
    )
    self._learner.set_member(member, theta)

  def _numbers(self) -> dict[str, float]:
    numbers = {
      **self._metrics,
      'epsilon': self.agent.exploration(self.steps),
      'replay_size': min(self._written, self.experiment.max_replay_size),
      'replay_max_size': self.experiment.max_replay_size,
      'skipped_updates': self._skipped,
      'actor_steps_per_member': self.steps,
      'environment_faults': self._environment.faults,
      **self._link.metrics(),
    }
    mean = self._tracker.recent_mean
    if mean is not None:
      numbers['episode_return'] = mean
    return numbers

  def _maybe_evaluate(self) -> None:
    if not self._evaluate or self.steps < self._next_evaluation:
      return
    self._next_evaluation += self.experiment.eval_period
    run = self.experiment.run
    # The same environments for each evaluation: fewer seeds to explain, and
    # the training environments' randomness is not touched.
    environment = vector.make_vector(
      self.experiment.environment,
      run.eval_episodes,
      base.actor_seed(self.members[0], f'evaluation at {self.steps}'),
    )
    returns = []
    for theta in self._theta:
      policy = self.agent.greedy(theta)
      result = evaluation.first_episodes(
        policy, environment, should_stop=self._stop.is_set
      )
      if result is None:
        break
      returns.append(result)
    environment.close()
    if len(returns) < len(self.members):
      return
    self._evaluated_at = self.steps
    means = [float(np.mean(row)) for row in returns]
    self.reporter.log(
      'evaluation',
      {
        'actor_steps': self.steps * len(self.members),
        'actor_steps_per_member': self.steps,
        'return_mean': float(np.mean(means)),
        'return_std': float(np.std(means)),
        'returns': [float(r) for row in returns for r in row],
        'member_returns': means,
        'elapsed_s': round(time.monotonic() - self._started, 3),
      },
    )
    self._save()

  def _save(self) -> None:
    if self.experiment.run_dir is None or not self._evaluate:
      return
    directory = checkpoints.directory(self.experiment.run_dir)
    checkpoints.write(
      directory / checkpoints.AGENTS, theta=self._theta, steps=self.steps
    )

  def _finish(self) -> None:
    """The members' budget is used: say so until the run is over."""
    if not self._stop.is_set() and self._evaluated_at < self.steps:
      self._next_evaluation = self.steps
      self._maybe_evaluate()
    while not self._stop.is_set():
      if self.reporter.due() and self.reporter.report(self._numbers()):
        return
      self._link.sync()
      self._stop.wait(0.1)


def check_replay(experiment: experiment_lib.Experiment, agent: base.Agent):
  """Refuses sizes with which the loop could never learn.

  Raises:
    ValueError: with the arithmetic.
  """
  if agent.unroll_length is not None:
    raise ValueError(
      f'{agent.name} learns from unrolls, each once and in order; this '
      'topology replays single transitions. Use actor_learner.'
    )
  if agent.priority_exponent is not None:
    raise ValueError(
      'agent.prioritized=True needs a priority for each transition; this '
      'topology replays one item for a step of all members, uniformly. Use '
      'actor_learner, or set agent.prioritized=False.'
    )
  needed = experiment.min_replay_size + agent.n_step
  if needed >= experiment.run.steps_per_agent:
    raise ValueError(
      f'run.steps_per_agent={experiment.run.steps_per_agent} leaves nothing to '
      f'learn from: learning begins after {needed} steps (min_replay_size='
      f'{experiment.min_replay_size} and an n_step of {agent.n_step}). Raise '
      'run.steps_per_agent or lower agent.min_replay_size.'
    )
  if not math.isfinite(experiment.total_steps):
    raise ValueError('run.steps_per_agent must be finite.')
