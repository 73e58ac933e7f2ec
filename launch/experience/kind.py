"""The interface of a kind of experience, for actors and workers."""

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

from murmuration.agents import base
from murmuration.agents import feeds
from murmuration.launch import actor_settings
from murmuration.launch import experiment as experiment_lib
from murmuration.launch import pulse
from murmuration.replay import deadlock
from murmuration.replay import priorities as priorities_lib
from murmuration.replay import ring as ring_lib
from murmuration.replay import sampler as sampler_lib
from murmuration.replay import tables as tables_lib
from murmuration.replay import writer

_logger = logging.getLogger(__name__)

# Records a vector step: (observation, action, step, version) -> items made.
Record = Callable[[np.ndarray, np.ndarray, Any, int], Any]
# (member, packed transitions [M, W]) -> first priorities [M]; None: all equal.
Priorities = Callable[[int, np.ndarray], np.ndarray | None]
ShouldStop = Callable[[], bool]


def write_options(
  should_stop: ShouldStop,
  options: writer.WriteOptions = writer.DEFAULT_OPTIONS,
) -> writer.WriteOptions:
  """The options of every node that writes: `options` with a longer wait."""
  return dataclasses.replace(
    options,
    timeout_s=pulse.WAIT_S,
    should_stop=should_stop,
    say=pulse.waits,
  )


class Kind(abc.ABC):
  """One kind of experience of one run."""

  prioritized = False  # whether items have priorities, which learners update
  queue = False  # whether each item is sampled once, in order
  steps_per_item = 1  # of an environment, which are written together
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
    # Of one update of one learner, its share of the agent's.
    self.batch_size = actor_settings.share(self.agent, config.num_learners)

  @property
  @abc.abstractmethod
  def first_steps(self) -> int:
    """Environment steps of all actors before the first update."""

  @property
  def acting_steps(self) -> int:
    """Environment steps of an actor between two requests for parameters."""
    return self.config.update_period

  @property
  @abc.abstractmethod
  def plan(self) -> deadlock.Plan:
    """The sizes of actors, tables and learner, for the static check."""

  def tables(self, name: str) -> list[reverb.Table]:
    """The tables of one shard, which holds its part of all experience.

    By default one, prioritized or uniform.
    """
    plan = self.plan
    options = {
      'max_size': plan.shard_max_size,
      'min_size': plan.shard_min_size,
      'signature': self._signature,
      'rate_limiter': deadlock.limiter(plan),
    }
    if not self.prioritized:
      return [tables_lib.uniform(name, **options)]
    exponent = self.agent.priority_exponent
    return [tables_lib.prioritized(name, priority_exponent=exponent, **options)]

  @abc.abstractmethod
  def adder(
    self,
    client: reverb.Client,
    table: str,
    behaviour: Any,
    priorities: Priorities,
    should_stop: ShouldStop,
  ) -> tuple[Any, Record]:
    """An actor's adder, and the function that records a step with it."""

  @property
  @abc.abstractmethod
  def feed(self) -> feeds.Feed:
    """Turns a sample into the batches of the updates."""

  @abc.abstractmethod
  def source(
    self, addresses: Sequence[str], table: str, should_stop: ShouldStop
  ) -> Source:
    """The learner's source of samples, each for one call."""

  def _sampled(
    self,
    addresses: Sequence[str],
    table: str,
    batch_size: int,
    should_stop: ShouldStop,
    **options: Any,
  ) -> Source:
    """A source of samples of `table`, with `options` of the sampler."""
    sampler = sampler_lib.ShardedSampler(
      addresses,
      table,
      batch_size,
      should_stop=should_stop,
      connect_timeout_s=pulse.WAIT_S,
      say=pulse.waits,
      signature=self._signature,
      **options,
    )
    return Source(self, sampler, addresses, table)

  @abc.abstractmethod
  def sample_specs(self) -> Any:
    """Nest of tf.TensorSpec of `Sample.data`."""

  def probability_specs(self) -> tf.TensorSpec | None:
    """Spec of `Sample.probabilities`; None unless `prioritized`."""
    if not self.prioritized:
      return None
    return tf.TensorSpec((self.updates_per_call * self.batch_size,), tf.float32)

  @abc.abstractmethod
  def numbers(
    self, sample: sampler_lib.Sample, updates: int
  ) -> dict[str, float]:
    """Metrics of the last call's sample, such as its age."""

  def prepare(
    self, sample: sampler_lib.Sample, updates: int
  ) -> sampler_lib.Sample:
    """Converts a sample to what the learner takes."""
    del updates
    return sample

  def item_priorities(self, priorities: np.ndarray) -> np.ndarray:
    """Priorities of a sample's items, given those of its transitions."""
    return priorities


class Local(Kind):
  """Experience of the members of a worker that acts itself."""

  envs_per_member: int
  knob: str  # the setting to lower if the budget is too small
  rings: Sequence[ring_lib.Ring] = ()  # replace tables, after `use_rings`

  def use_rings(self, seed: int) -> None:
    """Keeps replay in this process, drawn by `seed`; a queue has none."""

  @property
  @abc.abstractmethod
  def first_items(self) -> int:
    """Items that the adder must have made before the first update."""

  @property
  @abc.abstractmethod
  def why(self) -> str:
    """Explains `first_steps`, for an error message."""

  @property
  @abc.abstractmethod
  def steps_per_call(self) -> float:
    """Environment steps of a member per call of the learner."""

  @abc.abstractmethod
  def behaviour(self, infos: Sequence[base.ActorInfo]) -> Any:
    """The policy of all members, with `act`, `ended` and `priorities`."""


class Source:
  """Samples items for a learner, and writes their new priorities."""

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
    self.not_finite = 0  # items with NaN or infinity that were removed

  @property
  def dropped(self) -> int:
    """The number of priorities that were not written."""
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
        # Repeats finite items of the sample to keep its size.
        order = np.arange(len(bad))
        order[bad] = good[np.arange(bad.sum()) % good.size]
        return sampler_lib.Sample(
          _take(sample.data, order),
          *(part[order] for part in sample[1:]),
        )

  def _remove(self, sample: sampler_lib.Sample, bad: np.ndarray) -> None:
    """Deletes items: a single NaN would spread to every parameter."""
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
      return  # Sampling has removed them.
    for shard in np.unique(sample.shards[bad]):
      keys = sample.keys[bad & (sample.shards == shard)].tolist()
      # In a thread, since the call waits for an unavailable server.
      threading.Thread(
        target=_delete,
        args=(self._clients[shard], self._table, keys),
        daemon=True,
      ).start()

  def give_back(
    self, sample: sampler_lib.Sample, priorities: np.ndarray
  ) -> None:
    """Writes the new priorities of a sample's transitions, in its order."""
    assert self._writer is not None
    new = self._kind.item_priorities(priorities)
    # Batches whose gradient was not finite keep their old priorities.
    known = np.isfinite(new) if np.isnan(priorities).any() else slice(None)
    self._writer.update(
      sample._replace(keys=sample.keys[known], shards=sample.shards[known]),
      new[known],
    )

  def flush(self, timeout_s: float) -> None:
    """Waits until all priorities are written, or for `timeout_s`."""
    if self._writer is not None:
      self._writer.flush(timeout_s)

  def close(self) -> None:
    """Ends the threads of the sampler and the writer."""
    if self._writer is not None:
      self._writer.close()
    self._sampler.close()


def _not_finite(data: Any) -> np.ndarray | None:
  """Which of the N items have NaN or infinity, bool [N]; None if none has."""
  found: np.ndarray | None = None
  for leaf in tf.nest.flatten(data):
    if not leaf.dtype.is_floating:
      continue
    values = np.asarray(leaf)
    # Fast check. A sum of finite numbers may also overflow: then test each.
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
  except Exception as e:  # They are removed when they are sampled again.
    _logger.info('Items were not removed: %s', e)
