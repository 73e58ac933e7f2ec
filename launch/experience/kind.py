"""What a kind of experience has to say for actors and workers to use it."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
import dataclasses
import logging
import threading
from typing import Any

import numpy as np
import reverb
import tensorflow as tf

from agents import base
from agents import feeds
from launch import actor_settings
from launch import experiment as experiment_lib
from launch import pulse
from replay import deadlock
from replay import priorities as priorities_lib
from replay import ring as ring_lib
from replay import sampler as sampler_lib
from replay import writer

# How long an actor waits for a table that takes nothing, or for its server, and
# who samples for a server that was never there. The learner or the server may
# have died: it is started again with back-off, a learner traces its update
# anew, and a full table may take long to restore. The run says what is waited
# for, and ends before this if nothing moves (watch.py).
WAIT_S = 300.0

_logger = logging.getLogger(__name__)

# (observation, action, step, version) -> items made: one step of environments.
Record = Callable[[np.ndarray, np.ndarray, Any, int], Any]
# Packed transitions [M, W] of a member to their first priorities [M]; None for
# all alike.
Priorities = Callable[[int, np.ndarray], np.ndarray | None]
ShouldStop = Callable[[], bool]


def write_options(
  should_stop: ShouldStop,
  options: writer.WriteOptions = writer.DEFAULT_OPTIONS,
) -> writer.WriteOptions:
  """How all who act write: `options`, and with patience."""
  return dataclasses.replace(
    options,
    timeout_s=WAIT_S,
    should_stop=should_stop,
    say=pulse.waits,
  )


class Kind(abc.ABC):
  """One kind of experience of one run.

  Attributes:
    prioritized: whether samples come with probabilities, and their priorities
      go back.
    queue: whether each item is sampled once, in order.
    updates_per_call: learner steps in one call of a learner.
    batch_size: of one update and learner: its share of the agent's.
  """

  prioritized = False
  queue = False
  _signature: Any  # of an item

  def __init__(
    self, experiment: experiment_lib.Experiment, config: actor_settings.Config
  ):
    self.experiment = experiment
    self.config = config
    self.agent: Any = experiment.make_agent()
    self.updates_per_call = (
      self.agent.updates_per_call or experiment.run.updates_per_call
    )
    self.batch_size = actor_settings.share(self.agent, config.num_learners)

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
  def plan(self) -> deadlock.Plan:
    """What actors, tables and learner intend, for the static check."""

  @abc.abstractmethod
  def tables(self, name: str) -> list[reverb.Table]:
    """The tables of one shard: it holds its part of everything."""

  @abc.abstractmethod
  def adder(
    self,
    client: reverb.Client,
    table: str,
    behaviour: Any,
    priorities: Priorities,
    should_stop: ShouldStop,
  ) -> tuple[Any, Record]:
    """What an actor writes with, and its way to write a step."""

  @property
  @abc.abstractmethod
  def feed(self) -> feeds.Feed:
    """How a sample becomes the batches of the updates."""

  @abc.abstractmethod
  def source(
    self, addresses: Sequence[str], table: str, should_stop: ShouldStop
  ) -> Source:
    """What a learner samples from: one call's updates at a time."""

  def _sampled(
    self,
    addresses: Sequence[str],
    table: str,
    batch_size: int,
    should_stop: ShouldStop,
    **options: Any,
  ) -> Source:
    """A source of samples of a table; options are of the sampler."""
    sampler = sampler_lib.ShardedSampler(
      addresses,
      table,
      batch_size,
      should_stop=should_stop,
      connect_timeout_s=WAIT_S,
      say=pulse.waits,
      signature=self._signature,
      **options,
    )
    return Source(self, sampler, addresses, table)

  @abc.abstractmethod
  def sample_specs(self) -> Any:
    """Nest of tf.TensorSpec of `Sample.data`."""

  def probability_specs(self) -> tf.TensorSpec | None:
    """Of `Sample.probabilities`; None where nothing is prioritized."""
    if not self.prioritized:
      return None
    return tf.TensorSpec((self.updates_per_call * self.batch_size,), tf.float32)

  @abc.abstractmethod
  def numbers(
    self, sample: sampler_lib.Sample, updates: int
  ) -> dict[str, float]:
    """For the log: how old the sample of the last call was."""

  def prepare(
    self, sample: sampler_lib.Sample, updates: int
  ) -> sampler_lib.Sample:
    """What a learner learns from, of what was sampled."""
    del updates
    return sample

  def item_priorities(self, priorities: np.ndarray) -> np.ndarray:
    """Of the items of a sample, from those of what was learned from."""
    return priorities


class Local(Kind):
  """Experience of the members of a worker that acts itself.

  Attributes:
    envs_per_member: environments of one member.
    knob: the setting to lower where the budget is too small.
    rings: in place of the tables of a server, where the run is repeatable.
  """

  envs_per_member: int
  knob: str
  rings: Sequence[ring_lib.Ring] = ()

  def keep_order(self, seed: int) -> None:
    """Has each draw follow from `seed`; a queue has an order anyway."""

  @property
  @abc.abstractmethod
  def first_items(self) -> int:
    """Items that `adder` must have made before the first update."""

  @property
  @abc.abstractmethod
  def why(self) -> str:
    """What `first_steps` are made of."""

  @property
  @abc.abstractmethod
  def steps_per_call(self) -> float:
    """Environment steps of a member for one call of the learner."""

  @abc.abstractmethod
  def behaviour(self, infos: Sequence[base.ActorInfo]) -> Any:
    """How the members act: `act`, `ended` and `priorities`, for all of them."""


class Source:
  """Samples for a learner's calls, and the way back for their priorities.

  Attributes:
    not_finite: items with NaN or infinity that were sampled, and removed.
  """

  def __init__(
    self,
    kind: Kind,
    sampler: sampler_lib.ShardedSampler,
    addresses: Sequence[str],
    table: str,
  ):
    self._kind = kind
    self._sampler = sampler
    self._table = table
    self._clients = [reverb.Client(address) for address in addresses]
    self._writer: priorities_lib.PriorityWriter | None = None
    if kind.prioritized:
      self._writer = priorities_lib.PriorityWriter(self._clients, table)
    self.not_finite = 0

  @property
  def dropped(self) -> int:
    """Priorities given up."""
    return 0 if self._writer is None else self._writer.dropped

  def __next__(self) -> sampler_lib.Sample:
    while True:
      sample = next(self._sampler)
      bad = _not_finite(sample.data)
      if bad is None:
        return sample
      self._remove(sample, bad)
      good = np.flatnonzero(~bad)
      if good.size:
        # Others of the sample stand in, so that its size is what it was.
        order = np.arange(len(bad))
        order[bad] = good[np.arange(bad.sum()) % good.size]
        return sampler_lib.Sample(
          _take(sample.data, order),
          *(part[order] for part in sample[1:]),
        )

  def _remove(self, sample: sampler_lib.Sample, bad: np.ndarray) -> None:
    """Takes items out of their tables: one NaN would reach every parameter."""
    if not self.not_finite:
      _logger.warning(
        '%d of %d items sampled from table %r hold NaN or infinity: they are '
        'removed, and others learned from. Look at who writes them: an '
        'environment without checks, or another program. Said once; '
        'items_not_finite in the metrics counts them.',
        bad.sum(),
        len(bad),
        self._table,
      )
    self.not_finite += int(bad.sum())
    if self._kind.queue:
      return  # sampling took them out
    for shard in np.unique(sample.shards[bad]):
      keys = sample.keys[bad & (sample.shards == shard)].tolist()
      # In a thread, as a server that is away is waited for.
      threading.Thread(
        target=_delete,
        args=(self._clients[shard], self._table, keys),
        daemon=True,
      ).start()

  def give_back(
    self, sample: sampler_lib.Sample, priorities: np.ndarray
  ) -> None:
    """Writes new priorities of what was learned from, in its order."""
    assert self._writer is not None
    new = self._kind.item_priorities(priorities)
    # Batches without a finite gradient keep their priorities.
    known = np.isfinite(new) if np.isnan(priorities).any() else slice(None)
    self._writer.update(
      sample._replace(keys=sample.keys[known], shards=sample.shards[known]),
      new[known],
    )

  def flush(self, timeout_s: float) -> None:
    """Waits until all priorities are written, at most so long."""
    if self._writer is not None:
      self._writer.flush(timeout_s)

  def close(self) -> None:
    """Ends the threads of both ways."""
    if self._writer is not None:
      self._writer.close()
    self._sampler.close()


def _not_finite(data: Any) -> np.ndarray | None:
  """Which of the items have NaN or infinity, bool [N]; None if none."""
  found: np.ndarray | None = None
  for leaf in tf.nest.flatten(data):
    if not leaf.dtype.is_floating:
      continue
    values = np.asarray(leaf)
    # The sum of finite numbers that overflows is looked at more closely.
    if np.isfinite(np.sum(values)):
      continue
    finite = np.isfinite(values).reshape(len(values), -1).all(axis=1)
    found = ~finite if found is None else found | ~finite
  return found if found is not None and found.any() else None


def _take(data: Any, order: np.ndarray) -> Any:
  return tf.nest.map_structure(lambda x: tf.gather(x, order), data)


def _delete(client: reverb.Client, table: str, keys: list[int]) -> None:
  try:
    client.mutate_priorities(table, deletes=keys)
  except Exception as e:  # they are drawn, and removed, again
    _logger.info('Items were not removed: %s', e)
