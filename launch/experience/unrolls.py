"""On-policy or nearly on-policy experience: blocks of steps in a queue."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from murmuration.agents import base
from murmuration.agents import members as members_lib
from murmuration.agents.unroll import unrolls
from murmuration.launch import actor_settings
from murmuration.launch.experience import kind
from murmuration.replay import adders
from murmuration.replay import blocks
from murmuration.replay import deadlock
from murmuration.replay import packing
from murmuration.replay import sampler
from murmuration.replay import tables as tables_lib

_BLOCKS_IN_FLIGHT = 2  # prefetched by a sampler; each adds to the policy lag


class Unrolls(kind.Kind):
  """Blocks of T steps of K environments in a queue, each sampled once.

  All blocks of an actor in a rollout are one item, so that they stay together
  and in order: advantages are estimated over all of them.
  """

  queue = True

  def __init__(self, experiment, config, members=1):
    super().__init__(experiment, config)
    self._layout = self.agent.block_layout(config.envs_per_actor)
    self.shuffle_as(experiment.actor_info(0))
    # Blocks in a sample of one learner.
    self._blocks = self._feed.num_blocks(self.updates_per_call, members)
    rollout = hasattr(self._feed, 'rollout_steps')
    if self.agent.on_policy and self._blocks % config.num_actors:
      what, knob, more = 'batch', 'batch_size', ''
      if rollout:
        what, knob, more = 'rollout', 'rollout_steps', ' * unroll_length'
      raise ValueError(
        f'The {self._blocks} blocks of a {what} cannot be shared out over '
        f'actors.num_actors={config.num_actors}, and each waits for the '
        f'others. Let agent.{knob} be a multiple of num_actors * '
        f'envs_per_actor{more}.'
      )
    self._joined = self._blocks // config.num_actors if rollout else 1
    self.steps_per_item = self._joined * self._layout.unroll_length
    self._signature = self._layout.signature(self._joined)
    self._dropped = 0

  def shuffle_as(self, info: base.ActorInfo) -> None:
    """Shuffles as the worker of `info`; each has minibatches of its own."""
    self._feed = self.agent.feed(
      self.config.envs_per_actor,
      self.batch_size,
      base.actor_seed(info, 'feed'),
    )

  @property
  def first_steps(self):
    blocks_needed = self.config.num_learners * self._blocks
    return max(self.config.num_actors, blocks_needed) * self._layout.num_steps

  @property
  def acting_steps(self):
    if not self.agent.on_policy:
      return self.config.update_period
    share = self._blocks // self.config.num_actors
    return share * self._layout.num_steps

  @property
  def plan(self):
    # The number of waiting blocks bounds the policy lag. On policy there is
    # room for a rollout, also for actors that waited too long for the learner.
    learners = self.config.num_learners
    batches = 1 if self.agent.on_policy else self.config.queue_batches
    waiting = learners * max(self._blocks, self._feed.queue_size(batches))
    waiting //= self._joined
    return deadlock.Plan(
      min_size=1,
      max_size=max(waiting, self.config.shards),
      batch_size=learners * self._blocks // self._joined,
      max_in_flight=_BLOCKS_IN_FLIGHT,
      writers=self.config.num_actors,
      shards=self.config.shards,
      queue=True,
    )

  def tables(self, name):
    size = self.plan.shard_max_size
    return [tables_lib.queue(name, size, self._signature)]

  def adder(self, client, table, behaviour, priorities, should_stop):
    del priorities
    adder = adders.BlockAdder(
      client,
      table,
      self._layout,
      joined=self._joined,
      options=kind.write_options(should_stop, adders.BLOCK_OPTIONS),
    )
    return self._recorded(adder, behaviour)

  def _recorded(self, adder, behaviour):
    def record(observation, action, step, version):
      return adder.add(
        observation, action, step, behaviour.behaviour, behaviour.core, version
      )

    return adder, record

  @property
  def feed(self):
    if self._joined == 1:
      return self._feed
    return dataclasses.replace(self._feed, joined=self._joined)

  def source(self, addresses, table, should_stop):
    return self._sampled(
      addresses,
      table,
      self._blocks // self._joined,
      should_stop,
      max_in_flight=_BLOCKS_IN_FLIGHT,
    )

  def sample_specs(self):
    return blocks.Block(
      *(
        tf.TensorSpec((self._blocks, *spec.shape), spec.dtype)
        for spec in self._layout.signature()
      )
    )

  def prepare(self, sample, updates):
    data = blocks.Block(*sample.data)
    if self._joined > 1:
      data = blocks.Block(
        *(tf.reshape(x, (self._blocks, *x.shape[2:])) for x in data)
      )
    sample = sample._replace(data=data)
    if self.config.max_lag is None:
      return sample
    data, dropped = unrolls.without_stale(
      sample.data, updates, self._spread, self.config.max_lag
    )
    self._dropped += dropped
    return sample._replace(data=data)

  @property
  def _spread(self) -> int:
    """Updates of a call that use its blocks in turn.

    0 if all of them are used from the first update of a rollout on.
    """
    return self.updates_per_call if self.agent.updates_per_call is None else 0

  def numbers(self, sample, updates):
    before = updates - self.updates_per_call
    lags = unrolls.lags(sample.data, before, self._spread)
    age = packing.age_s(np.asarray(sample.data.written_at))
    return {
      'policy_lag': float(lags.mean()),
      'policy_lag_max': float(lags.max()),
      'sample_age_s': float(age.mean()),
      'stale_blocks': self._dropped,
      'queue_size': float(sampler.table_size(sample)),
    }


class OwnUnrolls(Unrolls, kind.Local):
  """Rollouts of a worker's members; each is learned from before the next.

  A member has as many environments as a rollout (or, without rollouts, a batch)
  has sequences, so that one block holds them all. One thread writes and reads
  the blocks, without a table.
  """

  knob = 'agent.unroll_length'

  def __init__(self, experiment, members: int):
    agent: Any = experiment.make_agent()
    self.envs_per_member: int = agent.feed(1).sequences
    config = actor_settings.Config(
      num_actors=1,
      envs_per_actor=self.envs_per_member * members,
      queue_batches=1,
    )
    super().__init__(experiment, config, members)
    self._hand = _Hand(self._blocks)

  def adder(self, client, table, behaviour, priorities, should_stop):
    del client, priorities, should_stop
    return self._recorded(
      adders.BlockAdder(None, table, self._layout, writer=self._hand),
      behaviour,
    )

  def source(self, addresses, table, should_stop):
    del addresses, table, should_stop
    return self._hand

  @property
  def why(self):
    return (
      f'{self._blocks} blocks of {self._layout.unroll_length} steps of '
      f'{self.envs_per_member} environments'
    )

  @property
  def first_items(self):
    return 0

  @property
  def steps_per_call(self):
    return self._blocks * self._layout.unroll_length * self.envs_per_member

  def behaviour(self, infos):
    return members_lib.Unrolling(self.agent, infos, self.envs_per_member)


class _Hand:
  """Hands blocks from acting to learning; `count` blocks are one sample.

  Both a writer of `adders.BlockAdder` and a `kind.Source`.
  """

  dropped = lost = not_finite = 0

  def __init__(self, count: int):
    self._count = count
    self._blocks: list[blocks.Block] = []

  def append(self, block: blocks.Block, priority: float) -> None:
    del priority
    self._blocks.append(blocks.Block(*(column.copy() for column in block)))

  def __next__(self) -> sampler.Sample:
    count = self._count
    # The same thread writes, so waiting for missing blocks would never end.
    assert len(self._blocks) >= count, (len(self._blocks), count)
    taken, self._blocks = self._blocks[:count], self._blocks[count:]
    data = blocks.Block(
      *(
        columns[0][None] if count == 1 else np.stack(columns)
        for columns in zip(*taken)
      )
    )
    none = np.zeros(count, np.int64)
    return sampler.Sample(
      data=data,
      keys=none.astype(np.uint64),
      probabilities=np.ones(count, np.float32),
      table_sizes=none + len(self._blocks),
      shards=none.astype(np.int32),
      times_sampled=np.ones(count, np.int32),
    )

  def flush(self, timeout_s: float = 0.0) -> None:
    """Does nothing."""

  def close(self) -> None:
    """Does nothing."""
