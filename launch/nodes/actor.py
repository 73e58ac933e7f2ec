"""One actor: K environments, a copy of the parameters, a line to replay.

It never starts TensorFlow for agents that act in NumPy. What it may lose when
it dies is its unfinished windows; a restarted actor takes the same rank (and so
the same exploration) and counts on from the steps that it reported.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import numpy as np
import reverb

from agents import base
from agents.acme import actor as acme_actor
from environment_loops import observers
from environment_loops import vector
from launch import actor_settings
from launch import experience
from launch import experiment as experiment_lib
from launch import pulse
from launch.nodes import acting
from launch.services import variables
from launch.services.inference import frames
from launch.services.inference import remote
from replay import deadlock
from run_records import reporting

_logger = logging.getLogger(__name__)
_RECENT_EPISODES = 20
# How long an actor on policy waits for the learner.
_ON_POLICY_WAIT_S = 30.0
_LOOK_AROUND_S = 0.5
_LONG_S = 300.0  # its environments and policy may take to build, or to reset


class Actor:
  """A node that acts until its share of the budget is used."""

  def __init__(
    self,
    experiment: experiment_lib.Experiment,
    config: actor_settings.Config,
    index: int,
    counter: Any,
    policy: Any,
    replay: str,
    table: str = 'replay',
  ):
    """Takes its arguments in; everything is built in `run`.

    Args:
      experiment: what to run.
      config: how many actors there are, and what each has.
      index: rank of this one.
      counter: client of the counter.
      policy: client of the learner: parameters; with central inference, of
        the server that acts.
      replay: 'host:port' of the shard that it writes to.
      table: name of the table there.
    """
    self._experiment = experiment
    self._config = config
    self._info = base.ActorInfo(index, config.num_actors, experiment.seed)
    self._policy = policy
    self._replay = replay
    self._table = table
    self._experience = experience.of_actors(experiment, config)
    self._agent = self._experience.agent
    plan = self._experience.plan
    # Environment steps of the run that fall to this actor.
    self.share = deadlock.parts(plan, experiment.total_steps)[index]
    # What this one writes, others wait for: it has to act until the run ends.
    self._helps = self._agent.on_policy or deadlock.lockstep(plan)
    self._reporter = reporting.Reporter(f'actor/{index}', counter)
    self._acted = False
    self._told_evaluation = 0

  def run(self, stop: threading.Event | None = None) -> None:
    """Acts; returns when told to stop."""
    self._stop = stop = pulse.stop_event(stop)
    with pulse.busy('building environments and policy', _LONG_S):
      self._build()
    try:
      self._loop()
      self._idle()
    finally:
      self._environment.close()
      self._adder.close()
      if self._behaviour is self._follower:
        self._behaviour.close()

  def _build(self) -> None:
    experiment, config, agent = self._experiment, self._config, self._agent
    steps = self._reporter.steps_done(self._stop.is_set)
    seed = acting.seed_of(self._info, steps)
    num_envs = config.envs_per_actor
    self._environment = vector.make_vector(
      experiment.environment, num_envs, seed, on_fault=experiment.run.on_fault
    )
    self._tracker = observers.EpisodeTracker(
      num_envs, window=max(_RECENT_EPISODES, num_envs)
    )
    self._behaviour: Any
    self._follower: Any
    if config.inference == 'central':
      self._behaviour = self._follower = remote.RemotePolicy(
        self._policy,
        frames.layout(experiment, config),
        self._info.index,
        seed,
        config.inference_transport,
        self._stop.is_set,
      )
    else:
      self._behaviour = agent.actor(self._info, num_envs)
      self._follower = variables.Follower(
        self._policy,
        agent.layout,
        config.max_param_age_s,
        should_stop=self._stop.is_set,
      )
    self._follower.start()
    self._adder, write = self._experience.adder(
      reverb.Client(self._replay),
      self._table,
      self._behaviour,
      # An actor acts for one member.
      lambda _, packed: self._behaviour.priorities(
        self._follower.theta, packed
      ),
      self._stop.is_set,
    )
    self._actor = acme_actor.Actor(
      self._behaviour,
      self._follower,
      write,
      np.random.default_rng(seed),
      reward_clip=agent.reward_clip,
      steps=steps,
      count=config.num_actors,
    )

  @property
  def steps(self) -> int:
    """Of all its environments, also before it was started again."""
    return self._actor.steps

  def _loop(self) -> None:
    num_envs, share = self._environment.num, self.share
    chunk = max(1, self._experience.acting_steps // num_envs)
    observation = self._reset()
    count = 0  # steps of each environment until the next look for parameters
    # On policy, or where shards are held to one pace, the others cannot go on
    # alone: an actor that has used its share before them (one of them died, or
    # its shard was away) acts on, and counts no more.
    while not self._stop.is_set() and (self._helps or self.steps < share):
      if not count:
        self._fetch()
        count = chunk
        # A rollout is acted whole.
        if self.steps < share and not self._agent.on_policy:
          count = min(chunk, -(-(share - self.steps) // num_envs))
      before = self.steps
      try:
        observation = self._act(observation, count)
        count = 0
      except remote.RunLost:
        observation = self._begin_anew()
        # Of a rollout, others wait for just what was not written.
        done = (self.steps - before) // num_envs
        count -= done - done % (self._agent.unroll_length or 1)
      if self._over():
        return
    self._adder.flush()

  def _begin_anew(self) -> np.ndarray:
    """After what the policy remembers was lost: no half sequence is kept."""
    self._adder.reset()
    self._tracker.restart()
    return self._reset()

  def _reset(self) -> np.ndarray:
    with pulse.busy('the first reset of its environments', _LONG_S):
      return self._environment.reset()

  def _fetch(self) -> None:
    if not (self._agent.on_policy and self._acted):
      self._follower.fetch()
      return
    # The next rollout is acted with what this one has taught. Where a block
    # was lost with its server, nobody would ever learn it: then go on.
    self._adder.flush()
    until = time.monotonic() + _ON_POLICY_WAIT_S
    while not self._follower.fetch_newer(_LOOK_AROUND_S):
      if self._over():
        return
      if time.monotonic() >= until:
        _logger.warning(
          'No newer parameters in %.0f s: acting on.', _ON_POLICY_WAIT_S
        )
        return

  def _over(self) -> bool:
    """Whether the run is over; also reports, when that is due."""
    # Whose share is used may hear of the end at once. In a quick run many
    # evaluations fall due between two reports: each is told of in time.
    period = max(1, self._experiment.eval_period // self._config.num_actors)
    evaluation = self.steps // period
    due = (
      self._reporter.due()
      or self.steps >= self.share
      or evaluation > self._told_evaluation
    )
    self._told_evaluation = max(evaluation, self._told_evaluation)
    return self._stop.is_set() or (
      due and self._reporter.report(self._numbers())
    )

  def _act(self, observation: np.ndarray, count: int) -> np.ndarray:
    """`count` steps of each environment; fewer where it is told to stop."""
    actor, environment = self._actor, self._environment
    self._acted = True
    episodes, start, faults = 0, self.steps, environment.faults
    try:
      for _ in range(count):
        if self._stop.is_set():  # before each: they may be slow
          break
        action = actor.act(observation)
        step = environment.step(action)
        # Each: a slow environment reports seldom. Those that count no more
        # keep no run alive.
        pulse.worked(moved=self.steps < self.share)
        actor.record(observation, action, step)
        episodes += len(self._tracker.observe(step))
        observation = step.next_observation
    finally:
      # The last step may go over the share; what is reported does not.
      done = min(self.steps, self.share) - min(start, self.share)
      self._reporter.count(actor_steps=done, episodes=episodes)
      self._reporter.count_dropped(environment.faults - faults)
    return observation

  def _numbers(self) -> dict[str, float]:
    numbers = {
      'epsilon': self._agent.exploration(self._actor.steps_of_all),
      'parameters_version': self._follower.version,
      'parameters_age_s': self._follower.age_s,
      'lost_items': self._adder.lost,
      'environment_faults': self._environment.faults,
    }
    mean = self._tracker.recent_mean
    if mean is not None:
      numbers['episode_return'] = mean
    return numbers

  def _idle(self) -> None:
    """Its share is used: says so until the run is over."""
    while not self._stop.wait(0.1):
      if self._reporter.due() and self._reporter.report(self._numbers()):
        return
