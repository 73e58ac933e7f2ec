"""What travels from actors to the learner of `actor_learner`, and at what pace.

Agents that learn off-policy send transitions through replay, uniform or
prioritized; agents that learn from unrolls send blocks through a queue. Tables,
adders, feeds and samplers of one kind stand side by side here, so that the
static check, the limiter and what really runs are made of the same numbers.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
import dataclasses
from typing import Any

import numpy as np
import reverb
import tensorflow as tf

from agents import base
from agents import feeds
from agents import unrolls
from launch import actors
from launch import experiment as experiment_lib
from replay import adders
from replay import admission
from replay import blocks
from replay import datasets
from replay import packing
from replay import priorities as priorities_lib
from replay import tables as tables_lib
from replay import writer

# Transitions written in one go: priorities are computed for all at once.
_BURST = 64
# Blocks that a sampler asks ahead. Each adds to the lag of the policy.
_BLOCKS_IN_FLIGHT = 2
# How long an actor waits for a table that takes nothing. Its learner may have
# died: it is started again with back-off, and traces its update anew.
_WRITE_TIMEOUT_S = 600.0

# (observation, action, step, version): one step of an actor's environments.
Record = Callable[[np.ndarray, np.ndarray, Any, int], Any]


class Experience(abc.ABC):
  """One kind of experience of one run."""

  prioritized = False

  def __init__(
    self, experiment: experiment_lib.Experiment, config: actors.Config
  ):
    self.experiment = experiment
    self.config = config
    self.agent: Any = experiment.make_agent()
    # Learner steps in one call of the learner.
    self.updates_per_call = (
      self.agent.updates_per_call or experiment.run.updates_per_call
    )
    # Of one update and learner: its share of the agent's.
    self.batch_size = actors.share(self.agent, config.num_learners)

  @property
  @abc.abstractmethod
  def first_steps(self) -> int:
    """Environment steps before the first update, of all actors."""

  @property
  def acting_steps(self) -> int:
    """Environment steps of an actor between two looks for parameters."""
    return self.config.update_period

  @property
  @abc.abstractmethod
  def plan(self) -> admission.Plan:
    """What actors, tables and learner intend, for the static check."""

  @abc.abstractmethod
  def tables(self, name: str) -> list[reverb.Table]:
    """The tables of one shard: it holds its part of everything."""

  @abc.abstractmethod
  def adder(
    self,
    client: reverb.Client,
    table: str,
    behaviour: base.Actor,
    priorities: Callable[[np.ndarray], np.ndarray],
    should_stop: Callable[[], bool],
  ) -> tuple[Any, Record]:
    """What an actor writes with, and its way to write a step."""

  @property
  @abc.abstractmethod
  def feed(self) -> feeds.Feed:
    """How a sample becomes the batches of the updates."""

  @abc.abstractmethod
  def sampler(
    self, addresses: list[str], table: str, should_stop: Callable[[], bool]
  ) -> datasets.ShardedSampler:
    """What the learner samples with: one call's updates at a time."""

  @abc.abstractmethod
  def sample_specs(self) -> Any:
    """Nest of tf.TensorSpec of `Sample.data`."""

  @abc.abstractmethod
  def numbers(self, sample: datasets.Sample, updates: int) -> dict[str, float]:
    """For the log: how old the sample of the last call was."""

  def prepare(self, sample: datasets.Sample, updates: int) -> datasets.Sample:
    """What the learner learns from, of what was sampled."""
    del updates
    return sample

  def item_priorities(self, priorities: np.ndarray) -> np.ndarray:
    """Of the items of a sample, from those of what was learned from."""
    return priorities


def of(
  experiment: experiment_lib.Experiment, config: actors.Config
) -> Experience:
  """The kind of experience that the experiment's agent learns from."""
  if experiment.make_agent().unroll_length is not None:
    return Unrolls(experiment, config)
  return Transitions(experiment, config)


def check(experiment: experiment_lib.Experiment, config: actors.Config) -> None:
  """Refuses numbers with which the run could never learn or would lock.

  Makes no Reverb object: nodes are forked from the process that builds the
  program, and the first such object seeds Reverb's random numbers. Writers of
  different actors would then draw the same item keys, and a table takes a
  second item of a key for a change of the first: half of the experience of two
  actors was lost in this way.

  Raises:
    ValueError: with the arithmetic.
  """
  if experiment.num_agents != 1:
    raise ValueError(
      f'num_agents={experiment.num_agents}: actor_learner trains one agent, '
      'whatever the number of its actors. Set actors.num_actors.'
    )
  found = of(experiment, config)
  plan = found.plan
  admission.check(plan)
  if plan.batch_size < config.num_learners * plan.shards:
    raise ValueError(
      f'Each of actors.num_learners={config.num_learners} samples '
      f'{plan.batch_size // config.num_learners} items at once, which cannot '
      f'be spread over actors.shards={plan.shards}. Use fewer shards.'
    )
  total, needed = experiment.total_steps, found.first_steps
  if needed >= total:
    raise ValueError(
      f'run.steps_per_agent={total} leaves nothing to learn from: learning '
      f'begins after about {needed} steps of the '
      f'{config.num_actors * config.envs_per_actor} environments. Raise '
      'run.steps_per_agent, or lower the sizes that come before the first '
      'update (min_replay_size, n_step, unroll_length, envs_per_actor).'
    )


class Transitions(Experience):
  """Transitions in replay, G to an item."""

  def __init__(self, experiment, config):
    super().__init__(experiment, config)
    self.prioritized = self.agent.priority_exponent is not None
    self._layout = experiment.transitions()
    self._size = size = config.transitions_per_item
    if self.batch_size % size or _BURST % size:
      raise ValueError(
        f'actors.transitions_per_item={size} must divide the {self.batch_size} '
        f'transitions that a learner takes for an update, and {_BURST}, which '
        'an actor writes at once. Take 1, 2, 4, 8, ... and a multiple of it '
        'for agent.batch_size.'
      )
    self._signature = self._layout.signature(*((size,) if size > 1 else ()))

  @property
  def first_steps(self):
    # Each environment's window is open for n - 1 steps before it is an item,
    # and each actor holds a burst back.
    config = self.config
    return (
      self.experiment.min_replay_size
      + config.num_actors * (_BURST - 1)
      + config.num_actors * config.envs_per_actor * self.agent.n_step
    )

  @property
  def plan(self):
    experiment, config, size = self.experiment, self.config, self._size
    buffer = config.error_buffer
    # In items: a sample is one of G transitions. The ratio stays what it is.
    return admission.Plan(
      min_size=-(-experiment.min_replay_size // size),
      max_size=-(-experiment.max_replay_size // size),
      batch_size=self.updates_per_call * self.agent.batch_size // size,
      samples_per_insert=config.samples_per_insert,
      error_buffer=None if buffer is None else buffer / size,
      max_in_flight=datasets.MAX_IN_FLIGHT // size,
      writers=config.num_actors,
      in_flight_per_writer=writer.MAX_IN_FLIGHT,
      burst=_BURST // size,
      shards=config.shards,
    )

  def tables(self, name):
    plan = self.plan
    options = {
      'max_size': plan.shard_max_size,
      'min_size': plan.shard_min_size,
      'signature': self._signature,
      'rate_limiter': admission.limiter(plan),
    }
    if not self.prioritized:
      return [tables_lib.uniform(name, **options)]
    exponent = self.agent.priority_exponent
    return [tables_lib.prioritized(name, priority_exponent=exponent, **options)]

  def adder(self, client, table, behaviour, priorities, should_stop):
    adder = adders.TransitionAdder(
      client,
      table,
      self._layout,
      self.agent.n_step,
      self.agent.gamma,
      self.config.envs_per_actor,
      priority=priorities,
      item_size=self._size,
      priority_exponent=self.agent.priority_exponent or 0.0,
      burst=_BURST,
      options=writer.WriteOptions(
        timeout_s=_WRITE_TIMEOUT_S, should_stop=should_stop
      ),
    )
    return adder, adder.add

  @property
  def feed(self):
    return feeds.Transitions(self._layout, self.batch_size)

  def sampler(self, addresses, table, should_stop):
    return datasets.ShardedSampler(
      addresses,
      table,
      self.batch_size // self._size,
      updates=self.updates_per_call,
      # A worker of Reverb's makes about 100,000 samples/s beside the learner.
      num_workers=2,
      max_in_flight=self.plan.max_in_flight,
      should_stop=should_stop,
      signature=self._signature,
    )

  def sample_specs(self):
    items = self.updates_per_call * self.batch_size
    return tf.TensorSpec((items, self._layout.width), self._layout.dtype)

  def prepare(self, sample, updates):
    del updates
    if self._size == 1:
      return sample
    # A transition is drawn as often as its item; the weights know no scale.
    return sample._replace(
      data=tf.reshape(sample.data, (-1, self._layout.width)),
      probabilities=np.repeat(sample.probabilities, self._size),
    )

  def item_priorities(self, priorities):
    return priorities_lib.of_items(
      priorities, self._size, self.agent.priority_exponent or 0.0
    )

  def numbers(self, sample, updates):
    some = self._layout.unpack(sample.data[:: self.batch_size])
    lag = updates - some.version.numpy()
    age = packing.age_s(some.written_at.numpy())
    return {
      'policy_lag': float(lag.mean()),
      'policy_lag_max': float(lag.max()),
      'sample_age_s': float(age.mean()),
      'sample_age_max_s': float(age.max()),
      'times_sampled': float(np.mean(sample.times_sampled)),
      'replay_size': float(sample.table_sizes.max())
      * self.config.shards
      * self._size,
      'replay_max_size': self.experiment.max_replay_size,
    }


class Unrolls(Experience):
  """Blocks of T steps of K environments in a queue, each learned from once."""

  def __init__(self, experiment, config, members=1):
    super().__init__(experiment, config)
    self._layout = self.agent.block_layout(config.envs_per_actor)
    feed = self.agent.feed(config.envs_per_actor)
    if config.num_learners > 1:
      feed = dataclasses.replace(feed, batch_size=self.batch_size)
    self._feed = feed
    # In a sample of one learner.
    self._blocks = self._feed.num_blocks(self.updates_per_call, members)
    if self.agent.on_policy and self._blocks % config.num_actors:
      raise ValueError(
        f'The {self._blocks} blocks of a rollout cannot be shared out over '
        f'actors.num_actors={config.num_actors}, and each waits for the '
        'others. Let rollout_steps be a multiple of num_actors * '
        'envs_per_actor * unroll_length.'
      )
    self._dropped = 0

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
    # Blocks that wait: what bounds the lag of the policy.
    learners = self.config.num_learners
    waiting = learners * max(
      self._blocks, self._feed.queue_size(self.config.queue_batches)
    )
    return admission.Plan(
      min_size=1,
      max_size=max(waiting, self.config.shards),
      batch_size=learners * self._blocks,
      max_in_flight=_BLOCKS_IN_FLIGHT,
      writers=self.config.num_actors,
      in_flight_per_writer=blocks.OPTIONS.max_in_flight,
      shards=self.config.shards,
      queue=True,
    )

  def tables(self, name):
    size = self.plan.shard_max_size
    return [tables_lib.queue(name, size, self._layout.signature())]

  def adder(self, client, table, behaviour, priorities, should_stop):
    del priorities
    adder = blocks.BlockAdder(
      client,
      table,
      self._layout,
      options=writer.WriteOptions(
        max_in_flight=blocks.OPTIONS.max_in_flight,
        timeout_s=_WRITE_TIMEOUT_S,
        should_stop=should_stop,
      ),
    )
    acting: Any = behaviour

    def record(observation, action, step, version):
      return adder.add(
        observation, action, step, acting.behaviour, acting.core, version
      )

    return adder, record

  @property
  def feed(self):
    return self._feed

  def sampler(self, addresses, table, should_stop):
    return datasets.ShardedSampler(
      addresses,
      table,
      self._blocks,
      should_stop=should_stop,
      max_in_flight=_BLOCKS_IN_FLIGHT,
      signature=self._layout.signature(),
    )

  def sample_specs(self):
    return blocks.Block(
      *(
        tf.TensorSpec((self._blocks, *spec.shape), spec.dtype)
        for spec in self._layout.signature()
      )
    )

  def prepare(self, sample, updates):
    sample = sample._replace(data=blocks.Block(*sample.data))
    if self.config.max_lag is None:
      return sample
    data, dropped = unrolls.without_stale(
      sample.data, updates, self.config.max_lag
    )
    self._dropped += dropped
    return sample._replace(data=data)

  def numbers(self, sample, updates):
    made = self.updates_per_call
    # Blocks are used in turn, or all of them from a rollout's first update.
    spread = made if self.agent.updates_per_call is None else 0
    mean, largest = unrolls.policy_lag(sample.data, updates - made, spread)
    age = packing.age_s(np.asarray(sample.data.written_at))
    return {
      'policy_lag': mean,
      'policy_lag_max': float(largest),
      'sample_age_s': float(age.mean()),
      'stale_blocks': self._dropped,
      'queue_size': float(sample.table_sizes.max()),
    }
