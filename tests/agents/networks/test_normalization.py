"""Running mean and variance of observations, as statistics in theta."""

import numpy as np
import tensorflow as tf

from murmuration.agents.networks import normalization

SIZE = 3


def _batches(count, size, seed=0):
  """Batches of a distribution that is not at the origin."""
  rng = np.random.default_rng(seed)
  scale = np.array([0.1, 1.0, 30.0])
  offset = np.array([5.0, -1.0, 100.0])
  draws = rng.normal(size=(count, size, SIZE)) * scale + offset
  return draws.astype(np.float32)


def _updated(normalizer, variables, batch, weight=None):
  weight = np.ones(len(batch), np.float32) if weight is None else weight
  found = normalizer.updated(
    [tf.constant(v) for v in variables],
    tf.constant(batch),
    tf.constant(weight, tf.float32),
  )
  assert list(found) == [name for name, _ in normalizer.shapes()]
  return [found[name].numpy() for name, _ in normalizer.shapes()]


def test_batch_by_batch_gives_the_mean_and_variance_of_all():
  normalizer = normalization.Normalizer(SIZE)
  batches = _batches(20, 50)
  variables = normalizer.initial()
  for batch in batches:
    variables = _updated(normalizer, variables, batch)
  seen = batches.reshape(-1, SIZE).astype(float)
  memory, mean, variance = variables
  np.testing.assert_allclose(
    memory, len(seen) / normalization.CAPACITY, rtol=1e-5
  )
  np.testing.assert_allclose(mean, seen.mean(axis=0), rtol=1e-4)
  np.testing.assert_allclose(variance, seen.var(axis=0), rtol=1e-3)


def test_places_without_a_transition_are_not_seen():
  normalizer = normalization.Normalizer(SIZE)
  batch = _batches(1, 10)[0]
  weight = np.array([1, 0] * 5, np.float32)
  with_gaps = _updated(normalizer, normalizer.initial(), batch, weight)
  without = _updated(normalizer, normalizer.initial(), batch[::2])
  for a, b in zip(with_gaps, without):
    np.testing.assert_allclose(a, b, rtol=1e-5)


def test_an_empty_batch_changes_nothing():
  normalizer = normalization.Normalizer(SIZE)
  batch = _batches(1, 10)[0]
  for variables in (
    normalizer.initial(),
    _updated(normalizer, normalizer.initial(), batch),
  ):
    after = _updated(normalizer, variables, batch, np.zeros(10))
    for a, b in zip(after, variables):
      np.testing.assert_array_equal(a, b)


def test_a_full_memory_follows_a_distribution_that_moves():
  normalizer = normalization.Normalizer(SIZE)
  batch = _batches(1, 1000)[0]
  variables = _updated(normalizer, normalizer.initial(), batch)
  variables[0][:] = 1.0
  moved = batch + 7.0
  after = _updated(normalizer, variables, moved)
  rate = 1000 / (normalization.CAPACITY + 1000)
  np.testing.assert_array_equal(after[0], [1.0])
  np.testing.assert_allclose(after[1] - variables[1], 7.0 * rate, rtol=0.01)


def test_both_forms_scale_and_clip_alike():
  normalizer = normalization.Normalizer(SIZE)
  variables = _updated(normalizer, normalizer.initial(), _batches(1, 500)[0])
  observation = _batches(1, 40, seed=1)[0]
  observation[0] += 1e4
  observation[1] -= 1e4
  slow = np.clip((observation - variables[1]) / np.sqrt(variables[2]), -10, 10)
  in_graph = normalizer.normalize(
    [tf.constant(v) for v in variables], tf.constant(observation)
  )
  acting = normalizer.normalize([v[None] for v in variables], observation[None])
  np.testing.assert_allclose(in_graph, slow, rtol=1e-3, atol=1e-3)
  np.testing.assert_allclose(acting[0], in_graph, rtol=1e-4, atol=1e-5)
  assert slow.min() == -10 and slow.max() == 10


def test_before_anything_is_seen_observations_pass_as_they_are():
  normalizer = normalization.Normalizer(SIZE)
  observation = np.array([[[0.5, -2.0, 9.0]]], np.float32)
  got = normalizer.normalize(
    [v[None] for v in normalizer.initial()], observation
  )
  np.testing.assert_allclose(got, observation, rtol=1e-5)


def test_acting_does_not_change_what_it_is_given():
  normalizer = normalization.Normalizer(SIZE)
  observation = _batches(1, 4)
  kept = observation.copy()
  normalizer.normalize([v[None] for v in normalizer.initial()], observation)
  np.testing.assert_array_equal(observation, kept)


def test_what_never_changed_does_not_explode_when_it_does():
  normalizer = normalization.Normalizer(1)
  constant = np.full((100, 1), 3.0, np.float32)
  variables = _updated(normalizer, normalizer.initial(), constant)
  got = normalizer.normalize(
    [v[None] for v in variables],
    np.array([[[3.0], [3.0001], [4.0]]], np.float32),
  )
  np.testing.assert_allclose(got[0, :, 0], [0.0, 0.1, 10.0], atol=0.02)
