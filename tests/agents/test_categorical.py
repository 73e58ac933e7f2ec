"""The categorical target and its loss, against the vectors and the paper."""

import numpy as np
import pytest
import tensorflow as tf

from murmuration.agents.losses import categorical


def slow_projection(rewards, discounts, probabilities, atoms):
  """Algorithm 1 of Bellemare et al. 2017, one atom of one sample at a time."""
  last = len(atoms) - 1
  v_min, v_max = atoms[0], atoms[-1]
  width = (v_max - v_min) / last
  m = np.zeros((len(rewards), len(atoms)))
  for i, (r, d) in enumerate(zip(rewards, discounts)):
    for j, z in enumerate(atoms):
      b = (min(max(r + d * z, v_min), v_max) - v_min) / width
      lower, upper = int(np.floor(b)), int(np.ceil(b))
      if lower == upper:  # the paper's sums lose this mass
        m[i, lower] += probabilities[i][j]
        continue
      m[i, lower] += probabilities[i][j] * (upper - b)
      m[i, upper] += probabilities[i][j] * (b - lower)
  return m


def _softmax(logits):
  e = np.exp(logits - np.max(logits, axis=-1, keepdims=True))
  return e / e.sum(axis=-1, keepdims=True)


def _case(samples=40, num_atoms=11, dtype=np.float64):
  """Rewards that reach beyond both ends; a third of them terminal."""
  rng = np.random.default_rng(0)
  atoms = np.linspace(-4.0, 6.0, num_atoms).astype(dtype)
  r_t = rng.normal(scale=5.0, size=samples).astype(dtype)
  discount_t = (0.9 * (np.arange(samples) % 3 > 0)).astype(dtype)
  p_t = _softmax(rng.normal(size=(samples, num_atoms))).astype(dtype)
  return r_t, discount_t, p_t, atoms


@pytest.mark.vectors('categorical_projection')
@pytest.mark.parametrize('dtype', ['float64', 'float32'])
def test_the_target_and_its_loss_are_those_of_the_vectors(vector, dtype):
  atoms, target, online, r_t, discount_t = (
    np.array(vector.inputs[name], dtype)
    for name in (
      'atoms',
      'target_logits',
      'online_logits',
      'rewards',
      'discounts',
    )
  )
  p_t = tf.nn.softmax(target)
  got = categorical.bellman_target(r_t, discount_t, p_t, atoms)
  projected = got.probabilities
  crossed = categorical.cross_entropy(projected, tf.constant(online))
  found = {
    'target_probs': p_t,
    'projected': projected,
    'cross_entropy': crossed,
    'target_mean': categorical.mean(projected, atoms),
    'online_mean': categorical.mean(tf.nn.softmax(online), atoms),
    'kl': crossed - categorical.entropy(projected),
  }
  assert set(found) == set(vector.expected)
  for name, value in found.items():
    np.testing.assert_allclose(
      value, vector.expected[name], err_msg=name, **vector.tolerance[dtype]
    )


def test_the_projection_is_algorithm_1():
  r_t, discount_t, p_t, atoms = _case()
  got = categorical.bellman_target(r_t, discount_t, p_t, atoms)
  np.testing.assert_allclose(
    got.probabilities,
    slow_projection(r_t, discount_t, p_t, atoms),
    rtol=1e-9,
    atol=1e-12,
  )
  np.testing.assert_allclose(tf.reduce_sum(got.probabilities, axis=-1), 1.0)


def test_the_share_outside_the_support_is_counted_before_it_is_clipped():
  r_t, discount_t, p_t, atoms = _case()
  got = categorical.bellman_target(r_t, discount_t, p_t, atoms)
  shifted = r_t[:, None] + discount_t[:, None] * atoms
  outside = (shifted < atoms[0]) | (shifted > atoms[-1])
  np.testing.assert_allclose(got.clipped, (p_t * outside).sum(axis=-1))
  np.testing.assert_allclose(
    got.unclipped_mean, (p_t * shifted).sum(axis=-1), rtol=1e-9
  )
  assert 0 < np.mean(got.clipped) < 1


def test_values_at_the_very_end_of_the_support_do_not_count_as_clipped():
  # A reward of 1 for ever is worth 100: every target of it is on the last atom.
  # One of 0 is worth 0, the first.
  atoms = categorical.support(0.0, 100.0, 51)
  p_t = np.eye(51, dtype=np.float32)[[50, 0]]
  got = categorical.bellman_target(
    np.array([1 + 0.99 + 0.99**2, 0.0], np.float32),
    np.array([0.99**3] * 2, np.float32),
    p_t,
    atoms,
  )
  np.testing.assert_array_equal(got.clipped, [0.0, 0.0])


def test_no_gradient_flows_through_the_target():
  r_t, discount_t, p_t, atoms = _case(dtype=np.float32)
  sources = [tf.constant(x) for x in (r_t, discount_t, p_t)]
  with tf.GradientTape() as tape:
    tape.watch(sources)
    got = categorical.bellman_target(*sources, atoms)
    total = tf.add_n([tf.reduce_sum(x) for x in got])
  assert tape.gradient(total, sources) == [None] * 3


def test_the_slope_of_the_loss_is_the_difference_of_the_distributions():
  _, _, target, _ = _case()
  logits = tf.constant(np.random.default_rng(1).normal(size=target.shape))
  with tf.GradientTape() as tape:
    tape.watch(logits)
    loss = categorical.cross_entropy(tf.constant(target), logits)
  np.testing.assert_allclose(
    tape.gradient(loss, logits), _softmax(logits.numpy()) - target, atol=1e-12
  )


def test_an_atom_without_mass_adds_no_entropy():
  p = np.array([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]], np.float32)
  np.testing.assert_allclose(
    categorical.entropy(tf.constant(p)), [np.log(2), 0]
  )


def test_atoms_are_equally_spaced_and_reach_both_ends():
  np.testing.assert_allclose(
    categorical.support(-1.0, 2.0, 4), [-1.0, 0.0, 1.0, 2.0]
  )


def test_shapes_that_do_not_belong_together_are_refused():
  r_t, discount_t, p_t, atoms = _case()
  with pytest.raises(ValueError):
    categorical.bellman_target(r_t[:, None], discount_t, p_t, atoms)
  with pytest.raises(ValueError):
    categorical.bellman_target(r_t, discount_t, p_t, atoms[:-1])
  with pytest.raises(ValueError):
    categorical.cross_entropy(tf.constant(p_t), tf.constant(p_t[:, 1:]))
