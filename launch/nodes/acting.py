"""The environments of a worker that acts itself: P members side by side.

All environments of all members take a vector step; what they did goes to replay
or to a queue of the same process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import dataclasses
from typing import Any

import numpy as np
import reverb

from agents import base
from environment_loops import observers
from environment_loops import vector
from launch import experiment as experiment_lib
from launch import pulse
from launch.experience import kind
from replay import ring
from replay import table_checks
from run_records import reporting

# Episodes that the reported training return averages over, per member.
_RECENT_EPISODES = 10
_LONG_S = 300.0  # its environments may take to reset


class Acting:
  """Acts for the members of a worker, and writes what they did.

  Attributes:
    steps: environment steps of each member.
  """

  def __init__(
    self,
    experiment: experiment_lib.Experiment,
    experience: kind.Local,
    members: Sequence[base.ActorInfo],
    steps: int,
    reporter: reporting.Reporter,
    episode_ended: Callable[[observers.Finished], None],
    actor_steps: Callable[[int], int],
  ):
    """Makes the environments.

    Args:
      experiment: what is run.
      experience: what the members write.
      members: P.
      steps: that each member has taken before.
      reporter: of the worker; steps and episodes are counted there.
      episode_ended: told of each training episode, index is the member.
      actor_steps: steps by which exploration falls, of a member's own.
    """
    self.steps = steps
    self._experience = experience
    self._budget = experiment.run.steps_per_agent
    self._reward_clip = experience.agent.reward_clip
    self._num_members = len(members)
    self._reporter = reporter
    self._episode_ended = episode_ended
    self._actor_steps = actor_steps
    seed = seed_of(members[0], steps)
    self._rng = np.random.default_rng(seed)
    num_envs = len(members) * experience.envs_per_member
    self._environment = vector.make_vector(
      experiment.environment, num_envs, seed, on_fault=experiment.run.on_fault
    )
    self._tracker = observers.EpisodeTracker(
      num_envs, window=_RECENT_EPISODES * len(members)
    )
    self._behaviour = experience.behaviour(members)
    self._observation: np.ndarray | None = None
    self._adder: Any = None
    self._written = 0
    self._names: list[str] = []  # of its tables
    self._owed = 0.0  # environment steps of a member, until the next update

  def open(
    self, client: reverb.Client, table: str, should_stop: kind.ShouldStop
  ) -> None:
    """Begins to write to the tables of this worker.

    Args:
      client: of the server that holds them.
      table: their name, or how their names begin.
      should_stop: ends every wait for that server.

    Raises:
      ConnectionError: it does not answer, or should_stop() is true.
    """
    self._client, self._should_stop = client, should_stop
    rings = self._experience.rings
    if rings:
      self._written = len(rings) * min(map(len, rings))
    elif not self._experience.queue:
      own = self._names = [t.name for t in self._experience.tables(table)]
      # First, as its wait alone can be ended.
      info = table_checks.tables(client, kind.WAIT_S, should_stop, pulse.waits)
      self._written = len(own) * min(info[name].current_size for name in own)
    self._adder, self._record = self._experience.adder(
      client,
      table,
      self._behaviour,
      lambda member, packed: self._behaviour.priorities(member, packed),
      should_stop,
    )

  def in_vain(self) -> bool:
    """Whether to wait for samples no longer: told to stop, or left to act.

    A replay node that dies before its first checkpoint comes back empty, and
    only workers that act fill it. What is in its tables counts from then on.
    """
    if self._should_stop():
      return True
    infos = []
    for name in self._names:
      infos.append(table_checks.now(self._client, name))
      if infos[-1] is None:
        return False  # the server may come back with all that it had
    if all(map(table_checks.lets_through, infos)):
      return False
    self._written = len(infos) * min(info.current_size for info in infos)
    return True

  @property
  def done(self) -> bool:
    """Whether the budget of the members is used."""
    return self.steps >= self._budget

  def act(self, theta: np.ndarray, version: int) -> bool:
    """Acts what one call of the learner is owed.

    Args:
      theta: parameters [P, D] that act.
      version: learner steps that made them.

    Returns:
      Whether the learner may learn: there is enough, and it was not cut short
      by the budget or a stop.
    """
    own = self._experience.envs_per_member
    self._owed += self._experience.steps_per_call
    wanted = int(self._owed // own)
    self._owed -= wanted * own
    count = min(wanted, -(-(self._budget - self.steps) // own))
    self._steps(theta, version, count)
    whole = count == wanted and not self._should_stop()
    return whole and self._written >= self._experience.first_items

  def _steps(self, theta: np.ndarray, version: int, count: int) -> None:
    behaviour, environment = self._behaviour, self._environment
    own = self._experience.envs_per_member
    if self._observation is None:
      with pulse.busy('the first reset of its environments', _LONG_S):
        self._observation = environment.reset()
    observation, start = self._observation, self.steps
    episodes, faults = 0, environment.faults
    for _ in range(count):
      if self._should_stop():  # before each: they may be slow
        break
      steps = self._actor_steps(self.steps)
      action = behaviour.act(theta, observation, steps, self._rng)
      step = environment.step(action)
      pulse.worked(moved=True)  # each: a slow environment reports seldom
      kept = base.clipped(step, self._reward_clip)
      self._written += self._record(observation, action, kept, version)
      if np.count_nonzero(step.last):
        behaviour.ended(step.last)
      for done in self._tracker.observe(step):
        self._episode_ended(dataclasses.replace(done, index=done.index // own))
        episodes += 1
      observation = step.next_observation
      self.steps += own
    self._observation = observation
    # The last step may go over the budget; what is reported does not.
    self.steps = min(self.steps, self._budget)
    done_steps = (self.steps - start) * self._num_members
    self._reporter.count(actor_steps=done_steps, episodes=episodes)
    self._reporter.count_dropped(environment.faults - faults)

  def random(self) -> np.ndarray:
    """The state of the random numbers of acting, to be saved."""
    return ring.pack_random(self._rng)

  def go_on(self, random: np.ndarray) -> None:
    """Draws on from a state that was saved. Environments begin anew."""
    ring.unpack_random(self._rng, random)

  def flush(self) -> None:
    """Waits until replay has what was written."""
    self._adder.flush()

  def numbers(self) -> dict[str, float]:
    """For the log."""
    numbers = {
      'epsilon': self._experience.agent.exploration(
        self._actor_steps(self.steps)
      ),
      'actor_steps_per_member': self.steps,
      'environment_faults': self._environment.faults,
    }
    mean = self._tracker.recent_mean
    if mean is not None:
      numbers['episode_return'] = mean
    return numbers

  def close(self) -> None:
    """Ends environments and writers."""
    self._environment.close()
    if self._adder is not None:
      self._adder.close()


def seed_of(info: base.ActorInfo, steps: int) -> int:
  """Of a node that acts: restarted, it does not replay what it has seen.

  Args:
    info: of the actor.
    steps: that were counted before. Who died with none has its life beside.
  """
  life = pulse.life()[1]
  again = f', life {life}' if life > 1 else ''
  return base.actor_seed(info, f'from step {steps}{again}')
