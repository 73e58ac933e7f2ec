"""Transitions of P members that act and learn in one thread.

In uniform replay an item is one step of all members. Prioritized replay has a
table for each member, since an item has only one priority.
"""

from __future__ import annotations

from collections.abc import Sequence
import time
from typing import Any

import numpy as np
import tensorflow as tf

from murmuration.agents import base
from murmuration.agents import members as members_lib
from murmuration.launch import actor_settings
from murmuration.launch.experience import kind
from murmuration.launch.experience import transitions
from murmuration.replay import adders
from murmuration.replay import deadlock
from murmuration.replay import ring
from murmuration.replay import sampler as sampler_lib

# Environments of a prioritized member, each with its own epsilon.
_LADDER = 8


class _Own(kind.Local):
  """Base of both kinds, where each call of the learner comes with acting."""

  def __init__(self, experiment, members: int):
    config = actor_settings.Config(
      num_actors=1, envs_per_actor=members * self.envs_per_member
    )
    super().__init__(experiment, config)
    self._members = members
    least, steps = experiment.min_replay_size, self.agent.n_step
    longer = steps * self.envs_per_member > least
    self.knob = 'agent.n_step' if longer else 'agent.min_replay_size'
    self._layout = self.agent.transition_layout()
    own = () if self.prioritized else (members,)
    self._signature = self._layout.signature(*own)

  @property
  def why(self):
    return (
      f'min_replay_size={self.experiment.min_replay_size} and an n_step of '
      f'{self.agent.n_step}'
    )

  @property
  def first_steps(self):
    own = self.experiment.min_replay_size
    return self._members * (own + self.agent.n_step * self.envs_per_member)

  @property
  def steps_per_call(self):
    return self.updates_per_call * self.experiment.pace.steps_per_update(
      self.agent.batch_size
    )

  @property
  def feed(self):
    return self.agent.feed(self.envs_per_member)

  def use_rings(self, seed):
    plan, item = self.plan, self._signature
    self.rings = [
      ring.Ring(
        plan.max_size,
        plan.batch_size,
        item.shape,
        item.dtype.as_numpy_dtype,
        seed + table,
        self.agent.priority_exponent,
        item.name,
      )
      for table in range(self._members if self.prioritized else 1)
    ]

  def numbers(self, sample, updates):
    return {
      'replay_size': float(sample.table_sizes.max()),
      'replay_max_size': self.experiment.max_replay_size,
    }


class Steps(_Own):
  """Uniform replay: an item is one step of all members."""

  envs_per_member = 1

  @property
  def first_items(self):
    return self.experiment.min_replay_size + self.agent.n_step

  @property
  def plan(self):
    return deadlock.Plan(
      min_size=self.experiment.min_replay_size,
      max_size=self.experiment.max_replay_size,
      batch_size=self.updates_per_call * self.agent.batch_size,
      burst=adders.POPULATION_BURST,
    )

  def behaviour(self, infos):
    if type(self.agent).act is base.Agent.act:
      return members_lib.Ranked(self.agent, infos, self.envs_per_member)
    return members_lib.Population(self.agent)  # One call acts for all of them.

  def adder(self, client, table, behaviour, priorities, should_stop):
    del behaviour, priorities
    adder = adders.PopulationAdder(
      client,
      table,
      self._layout,
      self.agent.n_step,
      self.agent.gamma,
      self._members,
      options=kind.write_options(should_stop),
      ring=self.rings[0] if self.rings else None,
    )
    return adder, adder.add

  def source(self, addresses, table, should_stop):
    if self.rings:
      return self.rings[0]
    return self._sampled(addresses, table, self.plan.batch_size, should_stop)

  def sample_specs(self):
    item = self._signature
    return tf.TensorSpec((self.plan.batch_size, *item.shape), item.dtype)


class PrioritizedSteps(_Own):
  """Prioritized replay: a table for each member; an item is one transition."""

  prioritized = True
  envs_per_member = _LADDER

  def __init__(self, experiment, members):
    super().__init__(experiment, members)
    one = actor_settings.Config(
      num_actors=1, envs_per_actor=self.envs_per_member
    )
    self._one = transitions.Transitions(experiment, one, free=True)

  @property
  def first_items(self):
    return self.first_steps

  @property
  def plan(self):
    return self._one.plan

  def _names(self, table: str) -> list[str]:
    return [f'{table}_of_{member}' for member in range(self._members)]

  def tables(self, name):
    return [
      table for own in self._names(name) for table in self._one.tables(own)
    ]

  def behaviour(self, infos):
    return members_lib.Ranked(self.agent, infos, self.envs_per_member)

  def adder(self, client, table, behaviour, priorities, should_stop):
    found = [
      self._one.adder(
        client,
        own,
        behaviour,
        lambda _, packed, member=member: priorities(member, packed),
        should_stop,
        self.rings[member] if self.rings else None,
      )[0]
      for member, own in enumerate(self._names(table))
    ]
    adder = _Adders(found, self.envs_per_member)
    return adder, adder.add

  def source(self, addresses, table, should_stop):
    if self.rings:
      return _Sources(self.rings)
    return _Sources(
      [
        self._one.source(addresses, own, should_stop)
        for own in self._names(table)
      ]
    )

  def sample_specs(self):
    items = self.updates_per_call * self.agent.batch_size
    return tf.TensorSpec(
      (items, self._members, self._layout.width), self._layout.dtype
    )

  def probability_specs(self):
    items = self.updates_per_call * self.agent.batch_size
    return tf.TensorSpec((items, self._members), tf.float32)


class _Adders:
  """An adder for each member, behind the interface of one."""

  def __init__(self, adders_of_members, num_envs: int):
    self._adders = adders_of_members
    self._num_envs = num_envs
    self._made = [0] * len(adders_of_members)
    self._told = 0

  def add(self, observation, action, step, version=0) -> int:
    for member, adder in enumerate(self._adders):
      own = slice(member * self._num_envs, (member + 1) * self._num_envs)
      # `valid` is nearly always None.
      part = type(step)(*(x if x is None else x[own] for x in step))
      self._made[member] += adder.add(
        observation[own], action[own], part, version
      )
    # Every table has to fill, so the member with the fewest items counts.
    told, self._told = self._told, len(self._made) * min(self._made)
    return self._told - told

  def flush(self) -> None:
    for adder in self._adders:
      adder.flush()

  def close(self) -> None:
    for adder in self._adders:
      adder.close()


class _Sources:
  """Joins the samples of all members' tables along axis 1."""

  def __init__(self, sources: Sequence[Any]):
    self._sources = sources
    self._parts: list[sampler_lib.Sample] = []

  @property
  def dropped(self) -> int:
    return sum(source.dropped for source in self._sources)

  @property
  def not_finite(self) -> int:
    return sum(source.not_finite for source in self._sources)

  def __next__(self) -> sampler_lib.Sample:
    self._parts = parts = [next(source) for source in self._sources]
    return parts[0]._replace(
      data=tf.stack([part.data for part in parts], axis=1),
      probabilities=np.stack([part.probabilities for part in parts], axis=1),
      table_sizes=np.concatenate([part.table_sizes for part in parts]),
    )

  def give_back(self, sample, priorities) -> None:
    del sample  # Its parts have the keys.
    for source, part, new in zip(self._sources, self._parts, priorities.T):
      source.give_back(part, new)

  def flush(self, timeout_s: float) -> None:
    until = time.monotonic() + timeout_s
    for source in self._sources:
      source.flush(max(0.0, until - time.monotonic()))

  def close(self) -> None:
    for source in self._sources:
      source.close()
