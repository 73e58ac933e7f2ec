"""What P members of one process act with, write and learn from.

The kinds of experience are those of launch/experiences; here an item is of
all members, whose environments stand side by side, member after member.

Rollouts go through a queue although the same thread writes and reads them. So
the way from environment to loss is the one of actors and a learner, and
`python -m replay.inspect` can look into it. It costs about 1 ms of a rollout.
"""

from __future__ import annotations

from collections.abc import Sequence
import math
from typing import Any

import numpy as np
import tensorflow as tf

from agents import base
from agents import feeds
from launch import actors
from launch import experiment as experiment_lib
from launch.experience import kind
from launch.experience import unrolls
from replay import adders
from replay import deadlock
from replay import sampler
from replay import tables as tables_lib


def of(experiment: experiment_lib.Experiment, members: int) -> Steps | Unrolls:
  """The kind of experience that the experiment's agent learns from."""
  agent = experiment.make_agent()
  if agent.unroll_length is not None:
    return Unrolls(experiment, members)
  return Steps(experiment, members)


def check(experiment: experiment_lib.Experiment) -> None:
  """Refuses sizes with which the members could never learn.

  Makes no Reverb object: see `experience.check`.

  Raises:
    ValueError: with the arithmetic.
  """
  agent = experiment.make_agent()
  if agent.learner_class is not None:
    raise ValueError(
      f'{agent.name} has a learner of its own, which is of one member and does '
      'not act beside its environments. Use actor_learner.'
    )
  if agent.priority_exponent is not None:
    raise ValueError(
      'agent.prioritized=True needs a priority for each transition; this '
      'topology replays one item for a step of all members, uniformly. Use '
      'actor_learner, as launch/run_ddpg.py, launch/run_d4pg.py and '
      'launch/run_apex_dqn.py do by default, or set agent.prioritized=False.'
    )
  if not math.isfinite(experiment.total_steps):
    raise ValueError('run.steps_per_agent must be finite.')
  found = of(experiment, 1)
  deadlock.check(found.plan)
  needed, budget = found.first_steps, experiment.run.steps_per_agent
  if needed > budget or (needed == budget and isinstance(found, Steps)):
    raise ValueError(
      f'run.steps_per_agent={budget} leaves nothing to learn from: learning '
      f'begins after {needed} steps ({found.why}). Raise run.steps_per_agent '
      f'or lower {found.knob}.'
    )


class Steps(kind.Kind):
  """Transitions in uniform replay: an item is one step of all members.

  A member has one environment.
  """

  knob = 'agent.min_replay_size'
  queue = False
  envs_per_member = 1

  def __init__(self, experiment: experiment_lib.Experiment, members: int):
    config = actors.Config(num_actors=1, envs_per_actor=members)
    super().__init__(experiment, config)
    self._layout = experiment.transitions()

  @property
  def why(self) -> str:
    """What `first_steps` are made of."""
    return (
      f'min_replay_size={self.experiment.min_replay_size} and an n_step of '
      f'{self.agent.n_step}'
    )

  @property
  def first_steps(self):
    steps = self.experiment.min_replay_size + self.agent.n_step
    return steps * self.config.envs_per_actor

  @property
  def first_items(self) -> int:
    """Items before the first update."""
    return self.experiment.min_replay_size + self.agent.n_step

  @property
  def acting_steps(self):
    every = self.experiment.env_steps_per_update
    return self.updates_per_call * every * self.config.envs_per_actor

  @property
  def plan(self):
    return deadlock.Plan(
      min_size=self.experiment.min_replay_size,
      max_size=self.experiment.max_replay_size,
      batch_size=self.updates_per_call * self.agent.batch_size,
      burst=adders.POPULATION_BURST,
      one_thread=True,
    )

  def tables(self, name):
    return [
      tables_lib.uniform(
        name,
        max_size=self.plan.max_size,
        min_size=self.plan.min_size,
        signature=self._layout.signature(self.config.envs_per_actor),
        rate_limiter=deadlock.limiter(self.plan),
      )
    ]

  def behaviour(self, infos: Sequence[base.ActorInfo]) -> _Population:
    """How the members act."""
    del infos  # one call acts for all of them
    return _Population(self.agent)

  def adder(self, client, table, behaviour, priorities, should_stop):
    adder = adders.PopulationAdder(
      client,
      table,
      self._layout,
      self.agent.n_step,
      self.agent.gamma,
      self.config.envs_per_actor,
      options=adders.WriteOptions(should_stop=should_stop),
    )
    return adder, adder.add

  @property
  def feed(self):
    # A transition is packed in one column, so unpacking is all that is left
    # to do between replay and loss.
    return feeds.Transitions(self._layout, self.agent.batch_size)

  def sampler(self, addresses, table, should_stop):
    return sampler.ShardedSampler(
      addresses,
      table,
      self.plan.batch_size,
      should_stop=should_stop,
      signature=self._layout.signature(self.config.envs_per_actor),
    )

  def sample_specs(self):
    item = self._layout.signature(self.config.envs_per_actor)
    return tf.TensorSpec((self.plan.batch_size, *item.shape), item.dtype)

  def numbers(self, sample, updates):
    return {
      'replay_size': float(sample.table_sizes.max()),
      'replay_max_size': self.experiment.max_replay_size,
    }


class Unrolls(unrolls.Unrolls):
  """Rollouts of all members in a queue: each is learned from before the next.

  A member has as many environments as a rollout (or, without rollouts, a batch)
  has sequences, so that a block holds it whole.
  """

  knob = 'agent.unroll_length'
  queue = True
  first_items = 0

  def __init__(self, experiment: experiment_lib.Experiment, members: int):
    agent: Any = experiment.make_agent()
    self.envs_per_member: int = agent.feed(1).sequences
    config = actors.Config(
      num_actors=1,
      envs_per_actor=self.envs_per_member * members,
      queue_batches=1,
    )
    super().__init__(experiment, config, members)

  @property
  def why(self) -> str:
    """What `first_steps` are made of."""
    return (
      f'{self._blocks} blocks of {self._layout.unroll_length} steps of '
      f'{self.envs_per_member} environments'
    )

  @property
  def acting_steps(self):
    return self._blocks * self._layout.num_steps

  def behaviour(self, infos: Sequence[base.ActorInfo]) -> _Unrolling:
    """How the members act."""
    return _Unrolling(self.agent, infos, self.envs_per_member)


class _Population:
  """Members with an environment each: one call of the agent for all."""

  def __init__(self, agent: base.Agent):
    self._agent = agent

  def act(self, theta, observation, actor_steps, rng) -> np.ndarray:
    """Actions [P, ...] for `theta [P, D]` and `observation [P, ...]`."""
    return self._agent.act(theta, observation[:, None], actor_steps, rng)[:, 0]

  def ended(self, last: np.ndarray) -> None:
    self._agent.ended(last[:, None])


class _Unrolling:
  """Members with K environments each; an actor, and its memory, for each.

  Attributes:
    behaviour: what the policies said of the last actions, float32 [P * K, A'].
    core: recurrent states with which they were chosen, float32 [P * K, S].
  """

  def __init__(
    self, agent: base.Agent, infos: Sequence[base.ActorInfo], num_envs: int
  ):
    self._actors: list[Any] = [agent.actor(info, num_envs) for info in infos]
    self._num_envs = num_envs
    self._theta: np.ndarray | None = None
    self._rows: list[np.ndarray] = []

  def act(self, theta, observation, actor_steps, rng) -> np.ndarray:
    """Actions [P * K, ...] for `theta [P, D]`, `observation [P * K, ...]`."""
    if theta is not self._theta:
      # Actors prepare a vector once, and know it by its identity.
      self._theta, self._rows = theta, list(theta)
    own = np.split(observation, len(self._actors))
    actions = [
      actor.act(row, seen, actor_steps, rng)
      for actor, row, seen in zip(self._actors, self._rows, own)
    ]
    return np.concatenate(actions)

  @property
  def behaviour(self) -> np.ndarray:
    return np.concatenate([actor.behaviour for actor in self._actors])

  @property
  def core(self) -> np.ndarray:
    return np.concatenate([actor.core for actor in self._actors])

  def ended(self, last: np.ndarray) -> None:
    for actor, own in zip(self._actors, np.split(last, len(self._actors))):
      actor.ended(own)
