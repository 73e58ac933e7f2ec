"""One actor: K environments, a copy of the parameters and a writer to replay.

An agent that acts in NumPy needs no TensorFlow here. An actor that dies loses
only its unfinished windows. When restarted it keeps its rank, and so its
exploration, and continues counting from the steps that it had reported.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import Any

import numpy as np
import reverb

from murmuration.agents import base
from murmuration.agents.acme import actor as acme_actor
from murmuration.environment_loops import observers
from murmuration.environment_loops import vector
from murmuration.launch import actor_settings
from murmuration.launch import experience
from murmuration.launch import experiment as experiment_lib
from murmuration.launch import pulse
from murmuration.launch import reporting
from murmuration.launch import rpc
from murmuration.launch.nodes import acting
from murmuration.launch.services import inference
from murmuration.launch.services import variables
from murmuration.replay import deadlock

_logger = logging.getLogger(__name__)
_RECENT_EPISODES = 20
# Of an on-policy actor for the learner. Each time that was not enough it waits
# twice as long, as mostly updates are slow and no block was lost; but no longer
# than a run may stand still.
_ON_POLICY_WAIT_S = 30.0
_LOOK_AROUND_S = 0.5  # between two checks for the end during that wait


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
    *,
    share: int,
  ):
    """Stores its arguments; `run` builds everything else.

    `policy` is a client of the learner, or of the central inference server;
    `replay` is 'host:port' of the shard that it writes to. It has done its part
    after `share` environment steps, in all of its lives.
    """
    self._experiment = experiment
    self._config = config
    self._info = base.ActorInfo(index, config.num_actors, experiment.seed)
    self._policy = policy
    self._replay = replay
    self._table = table
    self._experience = experience.of_actors(experiment, config)
    self._agent = self._experience.agent
    self.share = share
    # Others wait for what this actor writes, so it must act until the run ends.
    self._helps = self._agent.on_policy or deadlock.lockstep(
      self._experience.plan
    )
    self._counter = counter
    self._reporter = reporting.Reporter(f'actor/{index}', counter)
    self._acted, self._patience_s = False, _ON_POLICY_WAIT_S
    self._told_share, self._told_evaluation = False, 0

  def run(self, stop: threading.Event | None = None) -> None:
    """Acts until the run is over or `stop` is set."""
    self._stop = stop = pulse.stop_event(stop)
    with contextlib.ExitStack() as opened:
      with pulse.busy('building environments and policy'):
        self._build(opened)
      self._loop()
      self._idle()

  def _build(self, opened: contextlib.ExitStack) -> None:
    experiment, config, agent = self._experiment, self._config, self._agent
    steps = self._reporter.steps_done(self._stop.is_set)
    seed = acting.seed_of(self._info, steps)
    num_envs = config.envs_per_actor
    self._environment = vector.make_vector(
      experiment.environment, num_envs, seed, on_fault=experiment.run.on_fault
    )
    opened.callback(self._environment.close)
    self._tracker = observers.EpisodeTracker(
      num_envs, window=max(_RECENT_EPISODES, num_envs)
    )
    self._behaviour: Any
    self._follower: Any
    if config.inference == 'central':
      self._behaviour = self._follower = inference.RemotePolicy(
        self._policy, self._info.index, seed, self._stop.is_set
      )
      opened.callback(self._behaviour.close)
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
      # The first argument is the member; an actor has only one.
      lambda _, packed: self._behaviour.priorities(
        self._follower.theta, packed
      ),
      self._stop.is_set,
    )
    opened.callback(self._adder.close)
    self._actor = acme_actor.Actor(
      self._behaviour,
      self._follower,
      write,
      np.random.default_rng(seed),
      reward_clip=agent.reward_clip,
      steps=steps,
      count=config.num_actors,
      total=self._steps_of_all(),
    )

  def _steps_of_all(self) -> int:
    try:
      totals = rpc.retry(self._counter.totals, should_stop=self._stop.is_set)
    except (rpc.Unavailable, rpc.RemoteError) as e:
      _logger.warning(
        'Schedules go by the steps of this actor alone: the counter does not '
        'say how many all have made. %s',
        e,
      )
      return 0
    return int(totals.get('actor_steps', 0))

  @property
  def steps(self) -> int:
    """Steps of all its environments, including those before a restart."""
    return self._actor.steps

  def _loop(self) -> None:
    num_envs, share = self._environment.num, self.share
    chunk = max(1, self._experience.acting_steps // num_envs)
    observation = self._reset()
    count = 0  # steps of each environment until parameters are next fetched
    # If the agent is on-policy, or the shards must keep one pace, the other
    # actors cannot go on alone. An actor that has used its share before them
    # (one died, or its shard was unavailable) then acts on without counting.
    while not self._stop.is_set() and (self._helps or self.steps < share):
      if not count:
        self._fetch()
        count = chunk
        # A rollout is never cut short.
        if self.steps < share and not self._agent.on_policy:
          count = min(chunk, -(-(share - self.steps) // num_envs))
      before = self.steps
      try:
        observation = self._act(observation, count)
        count = 0
      except inference.RunLost:
        observation = self._begin_anew()
        # The rollout still lacks the steps that have not been written.
        done = (self.steps - before) // num_envs
        count -= done - done % self._experience.steps_per_item
      if self._over():
        return
    self._adder.flush()

  def _begin_anew(self) -> np.ndarray:
    """Drops unfinished sequences after the policy's state was lost."""
    self._adder.reset()
    self._tracker.restart()
    return self._reset()

  def _reset(self) -> np.ndarray:
    with pulse.busy('the first reset of its environments'):
      return self._environment.reset()

  def _fetch(self) -> None:
    if not (self._agent.on_policy and self._acted):
      self._follower.fetch()
      return
    # The next rollout needs the parameters that this one produces. If a block
    # was lost with its server, they never come: the wait has a limit.
    self._adder.flush()
    until = time.monotonic() + self._patience_s
    while not self._follower.fetch_newer(_LOOK_AROUND_S):
      if self._over():
        return
      if time.monotonic() >= until:
        _logger.warning(
          'No newer parameters in %.0f s: acting on.', self._patience_s
        )
        most = max(self._experiment.run.stall_s / 2, _ON_POLICY_WAIT_S)
        self._patience_s = min(2 * self._patience_s, most)
        return

  def _over(self) -> bool:
    """Whether the run is over. Also sends a report if one is due."""
    # Reports early when the share is used, since the run may be over, and at
    # each evaluation: a fast run can pass several between two reports.
    period = max(1, self._experiment.eval_period // self._config.num_actors)
    evaluation = self.steps // period
    used = self.steps >= self.share
    due = (
      self._reporter.due()
      or used > self._told_share
      or evaluation > self._told_evaluation
    )
    self._told_share = used
    self._told_evaluation = max(evaluation, self._told_evaluation)
    return self._stop.is_set() or (
      due and self._reporter.report(self._numbers())
    )

  def _act(self, observation: np.ndarray, count: int) -> np.ndarray:
    """Takes `count` steps of each environment, or fewer if told to stop."""
    actor, environment = self._actor, self._environment
    self._acted = True
    episodes, start, faults = 0, self.steps, environment.faults
    try:
      for _ in range(count):
        if self._stop.is_set():  # Checked at each step: a step may be slow.
          break
        action = actor.act(observation)
        step = environment.step(action)
        # Steps beyond the share must not make a stalled run look alive.
        pulse.worked(moved=self.steps < self.share)
        actor.record(observation, action, step)
        episodes += len(self._tracker.observe(step))
        observation = step.next_observation
    finally:
      # The last step may exceed the share; the reported count must not.
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
    """Reports until the run is over, once the share is used."""
    while not self._stop.wait(0.1):
      if self._reporter.due() and self._reporter.report(self._numbers()):
        return
