"""Acting in a worker: the environments of its P members, side by side.

Each vector step is one step of every environment of every member. The
experience goes to the worker's own replay or, for unrolls, straight to its
learner.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import dataclasses
from typing import Any

import numpy as np
import reverb

from murmuration.agents import base
from murmuration.environment_loops import observers
from murmuration.environment_loops import vector
from murmuration.launch import experiment as experiment_lib
from murmuration.launch import pulse
from murmuration.launch import reporting
from murmuration.launch.experience import kind
from murmuration.replay import ring
from murmuration.replay import table_checks

_RECENT_EPISODES = 10  # per member, in the mean of the reported return


class Acting:
  """Acts for the members of a worker and records their experience."""

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
    """Builds the environments.

    `steps` is how many each member has already taken. `episode_ended` gets each
    training episode, with the member as its index. `actor_steps` maps a
    member's own steps to those that exploration follows.
    """
    self.steps = steps  # environment steps of each member
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
    self._names: list[str] = []  # of the worker's tables
    self._owed = 0.0  # steps of a member before the next call of the learner

  def open(
    self, client: reverb.Client, table: str, should_stop: kind.ShouldStop
  ) -> None:
    """Opens the writer to the tables named `table`, or beginning with it."""
    self._client, self._should_stop = client, should_stop
    rings = self._experience.rings
    if rings:
      self._written = len(rings) * min(map(len, rings))
    elif not self._experience.queue:
      own = self._names = [t.name for t in self._experience.tables(table)]
      # Before the adder connects: only this wait can be interrupted.
      info = table_checks.tables(client, pulse.WAIT_S, should_stop, pulse.waits)
      self._written = len(own) * min(info[name].current_size for name in own)
    self._adder, self._record = self._experience.adder(
      client,
      table,
      self._behaviour,
      lambda member, packed: self._behaviour.priorities(member, packed),
      should_stop,
    )

  def in_vain(self) -> bool:
    """Whether waiting for a sample is futile: the worker must stop or act.

    A replay node that dies before its first checkpoint restarts empty, and only
    acting fills it again. Items are then counted anew from its tables.
    """
    if self._should_stop():
      return True
    infos = []
    for name in self._names:
      infos.append(table_checks.now(self._client, name))
      if infos[-1] is None:
        return False  # The server may come back with its data.
    if all(map(table_checks.lets_through, infos)):
      return False
    self._written = len(infos) * min(info.current_size for info in infos)
    return True

  @property
  def done(self) -> bool:
    """Whether the members have used their budget."""
    return self.steps >= self._budget

  def act(self, theta: np.ndarray, version: int) -> bool:
    """Takes the steps that are due before the next call of the learner.

    `theta [P, D]` has had `version` learner steps. Returns whether the learner
    may go on: replay has enough items, and neither the budget nor a stop has
    cut acting short.
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
      with pulse.busy('the first reset of its environments'):
        self._observation = environment.reset()
    observation, start = self._observation, self.steps
    episodes, faults = 0, environment.faults
    for _ in range(count):
      if self._should_stop():  # Checked at each step: a step may be slow.
        break
      steps = self._actor_steps(self.steps)
      action = behaviour.act(theta, observation, steps, self._rng)
      step = environment.step(action)
      pulse.worked(moved=True)
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
    # The last vector step may exceed the budget; the reported count must not.
    self.steps = min(self.steps, self._budget)
    done_steps = (self.steps - start) * self._num_members
    self._reporter.count(actor_steps=done_steps, episodes=episodes)
    self._reporter.count_dropped(environment.faults - faults)

  def random(self) -> np.ndarray:
    """The random generator's state, for a checkpoint."""
    return ring.pack_random(self._rng)

  def go_on(self, random: np.ndarray) -> None:
    """Restores a saved random state. Environments still start new episodes."""
    ring.unpack_random(self._rng, random)

  def flush(self) -> None:
    """Waits until replay holds everything written so far."""
    self._adder.flush()

  def numbers(self) -> dict[str, float]:
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
    self._environment.close()
    if self._adder is not None:
      self._adder.close()


def seed_of(info: base.ActorInfo, steps: int) -> int:
  """Seed of a node that acts; a restarted node gets a new one.

  The counted `steps` tell restarts apart. The node's life does so too, because
  it may have died before any step was counted.
  """
  life = pulse.life()[1]
  again = f', life {life}' if life > 1 else ''
  return base.actor_seed(info, f'from step {steps}{again}')
