"""Off-policy experience: transitions in replay, uniform or prioritized."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from murmuration.launch.experience import kind
from murmuration.replay import adders
from murmuration.replay import deadlock
from murmuration.replay import packing
from murmuration.replay import priorities as priorities_lib
from murmuration.replay import sampler

_BURST = adders.TRANSITION_BURST  # transitions that an actor writes at once


class Transitions(kind.Kind):
  """Transitions in replay, G to an item."""

  def __init__(self, experiment, config, free: bool = False):
    """As `kind.Kind`; `free` tables do not limit the samples per insert."""
    super().__init__(experiment, config)
    self._free = free
    self.prioritized = self.agent.priority_exponent is not None
    self._not_finite = 0  # priorities of items, from the learner
    self._layout = self.agent.transition_layout()
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
    # An n-step window needs n - 1 more steps before it becomes an item, and
    # each actor holds back up to a burst.
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
    ratio = None if self._free else experiment.pace.samples_per_insert
    if buffer is not None and ratio is not None:
      # As deadlock.check, which counts items and knows nothing of transitions.
      least = size * deadlock.least_error_buffer(ratio)
      if buffer < least:
        raise ValueError(
          f'actors.error_buffer={buffer:g} is too small: transitions_per_item='
          f'{size} times max(1, samples_per_insert={ratio:g}) are needed, or '
          'inserts and samples block each other. Raise it to at least '
          f'{least:g}, or leave it None.'
        )
    # Counts items of G transitions. The samples per insert are the same.
    return deadlock.Plan(
      min_size=-(-experiment.min_replay_size // size),
      max_size=-(-experiment.max_replay_size // size),
      batch_size=self.updates_per_call * self.agent.batch_size // size,
      samples_per_insert=ratio,
      error_buffer=None if buffer is None else buffer / size,
      max_in_flight=sampler.MAX_IN_FLIGHT // size,
      writers=config.num_actors,
      burst=_BURST // size,
      shards=config.shards,
      updates=self.updates_per_call,
    )

  def adder(self, client, table, behaviour, priorities, should_stop, ring=None):
    def first(packed):
      found = priorities(0, packed)
      return np.ones(len(packed)) if found is None else found

    adder = adders.TransitionAdder(
      client,
      table,
      self._layout,
      self.agent.n_step,
      self.agent.gamma,
      self.config.envs_per_actor,
      priority=first,
      item_size=self._size,
      priority_exponent=self.agent.priority_exponent or 0.0,
      burst=_BURST,
      options=kind.write_options(should_stop),
      ring=ring,
    )
    return adder, adder.add

  @property
  def feed(self):
    return self.agent.feed(self.config.envs_per_actor, self.batch_size)

  def source(self, addresses, table, should_stop):
    return self._sampled(
      addresses,
      table,
      self.batch_size // self._size,
      should_stop,
      updates=self.updates_per_call,
      # A Reverb worker delivers about 100,000 samples/s beside the learner.
      num_workers=2,
      max_in_flight=self.plan.max_in_flight,
    )

  def sample_specs(self):
    items = self.updates_per_call * self.batch_size
    return tf.TensorSpec((items, self._layout.width), self._layout.dtype)

  def prepare(self, sample, updates):
    del updates
    if self._size == 1:
      return sample
    # A transition is drawn as often as its item. Importance weights are
    # normalized, so the factor G does not matter.
    return sample._replace(
      data=tf.reshape(sample.data, (-1, self._layout.width)),
      probabilities=np.repeat(sample.probabilities, self._size),
    )

  def item_priorities(self, priorities):
    found = priorities_lib.of_items(
      priorities, self._size, self.agent.priority_exponent or 0.0
    )
    self._not_finite += int(np.sum(~np.isfinite(found)))
    return found

  def numbers(self, sample, updates):
    # All rows, since each shard has its own part of a sample. As an array, so
    # that unpacking makes views.
    rows = self._layout.unpack(np.asarray(sample.data))
    # A restored learner may be behind the version that its actors have.
    lag = np.maximum(updates - rows.version, 0.0)
    age = packing.age_s(rows.written_at)
    numbers = {
      'policy_lag': float(lag.mean()),
      'policy_lag_max': float(lag.max()),
      'sample_age_s': float(age.mean()),
      'sample_age_max_s': float(age.max()),
      'times_sampled': float(np.mean(sample.times_sampled)),
      'replay_size': float(sampler.table_size(sample) * self._size),
      'replay_max_size': self.experiment.max_replay_size,
    }
    if self.prioritized:
      # Those of items: replaced, or the old one kept after a skipped update.
      numbers['priorities_not_finite'] = self._not_finite
    return numbers
