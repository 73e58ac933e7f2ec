"""The loop that acts and learns: P members, environments, replay, learner.

One process, one thread: all environments of all members take a vector step,
what they did goes to replay or to a queue, and every few steps one TensorFlow
call makes as many updates (members.py says what, and how often). A plain agent
is P = 1; an explorer node of a swarm is the same loop with a `Link` that says
what other nodes contribute.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import logging
import threading
import time
from typing import Any

import numpy as np
import reverb

from agents import base
from agents import learner
from environment_loops import evaluation
from environment_loops import observers
from environment_loops import vector
from launch import experiment as experiment_lib
from launch import link as link_lib
from launch.experience import members as members_lib
from launch.nodes import replay_host
from launch.nodes import trainer_state
from launch.rpc import directory
from replay import sampler
from run_records import checkpoints
from run_records import reporting

_logger = logging.getLogger(__name__)
# Episodes that the reported training return averages over, per member.
_RECENT_EPISODES = 10
_LAST_SAVE_S = 120.0  # after the end, at most


class Trainer:
  """Acts and learns until the budget of its members is used."""

  def __init__(
    self,
    experiment: experiment_lib.Experiment,
    node: str,
    members: Sequence[base.ActorInfo],
    lr_spread: str,
    counter: Any,
    link: link_lib.Link | None = None,
    replay: reverb.Client | None = None,
    table: str = 'replay',
    shard: int = 0,
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
      shard: number of the replay server of this process, in the whole run.
      evaluate: whether it evaluates its members itself, in the same loop.
    """
    self.experiment = experiment
    self.members = list(members)
    self.reporter = reporting.Reporter(node, counter)
    self._experience = members_lib.of(experiment, len(self.members))
    self.agent: base.Agent = self._experience.agent
    self.steps = 0  # of each member
    self._lr_spread = lr_spread
    self._link = link or link_lib.Link()
    self._replay = replay
    self._table = table
    self._shard = shard
    self._evaluate = evaluate
    self._next_evaluation = 0
    self._evaluated_at = -1  # steps of each member
    self._skipped = 0
    self._metrics: dict[str, float] = {}
    self._host: replay_host.ReplayHost | None = None
    self._sampler: sampler.ShardedSampler | None = None
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
      if self._host is not None:
        # First: the sampler's threads end with the server.
        self._host.stop()
      if self._sampler is not None:
        self._sampler.close()

  @property
  def learner(self) -> learner.TFLearner:
    return self._learner

  @property
  def theta(self) -> np.ndarray:
    """Parameters [P, D] that act now: at most one learner call old."""
    return self._theta

  def _fresh(self, info: base.ActorInfo, purpose: str) -> np.ndarray:
    """New parameters [D] of a member; explorer 0's where all start alike."""
    if self._link.shared_start:
      info = dataclasses.replace(info, index=0)
    return self.agent.initial(base.actor_seed(info, f'initial {purpose}'))

  def _build(self) -> None:
    import tensorflow as tf  # the first TensorFlow work of a forked node

    run = self.experiment.run
    try:
      tf.config.threading.set_intra_op_parallelism_threads(run.tf_threads)
      tf.config.threading.set_inter_op_parallelism_threads(1)
    except RuntimeError:
      pass  # threads share one TensorFlow; the first node has set it
    done = self.reporter.steps_done(self._stop.is_set)
    self.steps = done // len(self.members)
    self._next_evaluation = self._evaluation_after(self.steps - 1)
    # A restarted node must not replay the episodes that it has seen.
    purpose = f'from step {self.steps}'
    seed = base.actor_seed(self.members[0], purpose)
    self._rng = np.random.default_rng(seed)
    experience = self._experience
    num_envs = len(self.members) * experience.envs_per_member
    self._environment = vector.make_vector(
      self.experiment.environment, num_envs, seed, on_fault=run.on_fault
    )
    self._tracker = observers.EpisodeTracker(
      num_envs, window=_RECENT_EPISODES * len(self.members)
    )
    self._behaviour = experience.behaviour(self.members)
    theta = self._link.initial(
      np.stack([self._fresh(info, purpose) for info in self.members])
    )
    self._learner = learner.TFLearner(
      self.agent,
      theta,
      [self.agent.learning_rate(i, self._lr_spread) for i in self.members],
      self._link.exchange,
      experience.feed,
      updates_per_call=experience.updates_per_call,
      seed=seed,
    )
    client = self._open_replay()
    self._adder, self._record = experience.adder(
      client,
      self._table,
      self._behaviour,
      lambda packed: np.ones(len(packed)),
      self._stop.is_set,
    )
    self._address = client.server_address
    host = None if experience.queue else self._host
    self._state = trainer_state.State(
      self.experiment.run_dir,
      self.reporter.node,
      host,
      run.replay_checkpoint_s,
    )
    self._state.restore(self._learner)
    self._updates = self._learner.updates
    self._theta = self._learner.acting()
    self._link.begin(self)

  def _open_replay(self) -> reverb.Client:
    """The table that is written to: with what an earlier start has saved."""
    client = self._replay
    if client is None:
      address = directory.of_this_node().claim(f'{self.reporter.node}/replay')
      self._host = replay_host.ReplayHost(
        lambda: self._experience.tables(self._table),
        self.experiment.run_dir,
        [address],
        first_shard=self._shard,
      )
      self._host.start()
      client = reverb.Client(address)
      _logger.info('Replay table %r at %s', self._table, address)
    if self._experience.queue:
      # Blocks of a predecessor would shift the bounds of all rollouts to come.
      client.reset(self._table)
    self._written = client.server_info()[self._table].current_size
    return client

  def _loop(self) -> None:
    experience, budget = self._experience, self.experiment.run.steps_per_agent
    own = experience.envs_per_member
    chunk = experience.acting_steps // self._environment.num
    observation = self._environment.reset()
    self._maybe_evaluate()
    while not self._stop.is_set() and self.steps < budget:
      count = min(chunk, -(-(budget - self.steps) // own))
      observation = self._act(observation, count)
      if self._written >= experience.first_items and count == chunk:
        if self._sampler is None or experience.queue:
          self._adder.flush()  # so that a sample that must be there is
        if not self._learn():
          return
        self._state.save_now_and_then(self._learner)
      self._link.sync()
      self._maybe_evaluate()
      if self.reporter.due() and self.reporter.report(self._numbers()):
        return

  def _act(self, observation: np.ndarray, count: int) -> np.ndarray:
    """`count` steps of each environment."""
    behaviour, environment = self._behaviour, self._environment
    own, clip = self._experience.envs_per_member, self.agent.reward_clip
    episodes, start, faults = 0, self.steps, environment.faults
    for _ in range(count):
      action = behaviour.act(self._theta, observation, self.steps, self._rng)
      step = environment.step(action)
      self._written += self._record(
        observation, action, base.clipped(step, clip), self._updates
      )
      if step.last.any():
        behaviour.ended(step.last)
      for done in self._tracker.observe(step):
        self._link.episode_ended(
          dataclasses.replace(done, index=done.index // own)
        )
        episodes += 1
      observation = step.next_observation
      self.steps += own
    # The last step may go over the budget; what is reported does not.
    self.steps = min(self.steps, self.experiment.run.steps_per_agent)
    done_steps = (self.steps - start) * len(self.members)
    self.reporter.count(actor_steps=done_steps, episodes=episodes)
    self.reporter.count_dropped(environment.faults - faults)
    return observation

  def _learn(self) -> bool:
    """One call of the learner. Returns False if the program is stopping."""
    if self._sampler is None:
      self._sampler = self._experience.sampler(
        [self._address], self._table, self._stop.is_set
      )
    try:
      sample = next(self._sampler)
    except StopIteration:
      return False
    sample = self._experience.prepare(sample, self._updates)
    result = self._learner.step(sample.data)
    self._updates += result.updates
    if not self._metrics:
      self.reporter.log('first_update', {'unix_time_s': time.time()})
    for member in np.flatnonzero(result.broken):
      self._replace(int(member))
    self._theta = self._learner.acting()
    self._link.updated(result)
    self._skipped += int(result.skipped.sum())
    self._metrics = {
      name: float(np.mean(values)) for name, values in result.metrics.items()
    }
    self._metrics.update(self._experience.numbers(sample, self._updates))
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
      'skipped_updates': self._skipped,
      'actor_steps_per_member': self.steps,
      'environment_faults': self._environment.faults,
      **self._link.metrics(),
    }
    mean = self._tracker.recent_mean
    if mean is not None:
      numbers['episode_return'] = mean
    return numbers

  def _evaluation_after(self, steps: int) -> int:
    period = self.experiment.eval_period
    return (steps // period + 1) * period

  def _maybe_evaluate(self) -> None:
    if not self._evaluate or self.steps < self._next_evaluation:
      return
    self._next_evaluation = self._evaluation_after(self.steps)
    run = self.experiment.run
    # The same environments for each member: fewer seeds to explain, and the
    # training environments' randomness is not touched.
    seed = base.actor_seed(self.members[0], f'evaluation at {self.steps}')
    results = []
    for theta in self._theta:
      found = evaluation.evaluate_vector(
        self.agent.greedy(theta),
        self.experiment.environment,
        run.eval_episodes,
        seed,
        should_stop=self._stop.is_set,
        on_fault=run.on_fault,
        epsilon=run.eval_epsilon,
      )
      if found is None:
        return
      results.append(found)
    self._evaluated_at = self.steps
    means = [result.mean for result in results]
    self.reporter.log(
      'evaluation',
      {
        'actor_steps': self.steps * len(self.members),
        'actor_steps_per_member': self.steps,
        'return_mean': float(np.mean(means)),
        'return_std': float(np.std(means)),
        'returns': [float(r) for result in results for r in result.returns],
        'member_returns': means,
        'broken_episodes': sum(result.broken for result in results),
        'elapsed_s': round(time.monotonic() - self._started, 3),
      },
    )
    if self.experiment.run_dir is None:
      return
    directory = checkpoints.directory(self.experiment.run_dir)
    checkpoints.write(
      directory / checkpoints.AGENTS, theta=self._theta, steps=self.steps
    )

  def _finish(self) -> None:
    """The budget is used, or the run over: saves, and says so until the end."""
    asked = not self._stop.is_set()
    if asked:
      self.reporter.hold(_LAST_SAVE_S)
    if asked and self._evaluated_at < self.steps:
      self._next_evaluation = self.steps
      self._maybe_evaluate()
    if not self._experience.queue:
      self._adder.flush()  # what is held back is to be kept too
    self._state.save(self._learner, replay=True)
    if asked:
      self.reporter.hold(0)
    while not self._stop.is_set():
      if self.reporter.due() and self.reporter.report(self._numbers()):
        return
      self._link.sync()
      self._stop.wait(0.1)
