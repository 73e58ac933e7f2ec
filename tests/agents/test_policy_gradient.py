"""Actor-critic losses and the two heads, against slow sums and the vectors."""

import numpy as np
import pytest
from scipy import special
from scipy import stats
import tensorflow as tf
import tensorflow_probability as tfp

from murmuration.agents.losses import policy_gradient
from murmuration.agents.networks import policy_heads

T, B, A = 3, 4, 5


def _rng():
  return np.random.default_rng(0)


def _mask():
  mask = np.ones((T, B))
  mask[1, 2] = mask[2, 0] = 0
  return mask


@pytest.mark.parametrize('number', [1, T * B - 2])
def test_losses_are_means_over_valid_steps(number):
  rng, mask = _rng(), _mask()
  if number == 1:
    mask[:, 1:] = mask[1:] = 0
  x, y = rng.normal(size=(2, T, B))
  # What is masked must not be seen, however large.
  x[1, 2] = 1e6
  steps = [(t, b) for t in range(T) for b in range(B) if mask[t, b]]
  assert len(steps) == number
  policy = -np.mean([y[i] * x[i] for i in steps])
  baseline = np.mean([0.5 * (y[i] - x[i]) ** 2 for i in steps])
  arguments = tf.constant(x), tf.constant(y), tf.constant(mask)
  np.testing.assert_allclose(
    policy_gradient.policy_gradient(*arguments), policy
  )
  np.testing.assert_allclose(policy_gradient.baseline(*arguments), baseline)


def test_a_batch_without_a_valid_step_has_no_loss():
  x = tf.ones((T, B))
  assert policy_gradient.policy_gradient(x, x, 0 * x) == 0
  assert policy_gradient.baseline(x, 2 * x, 0 * x) == 0


def test_advantages_and_targets_are_constants():
  x, y = tf.ones((T, B)), 2 * tf.ones((T, B))
  mask = tf.ones((T, B))
  with tf.GradientTape(persistent=True) as tape:
    tape.watch([x, y])
    policy = policy_gradient.policy_gradient(x, y, mask)
    baseline = policy_gradient.baseline(x, y, mask)
  for loss in (policy, baseline):
    assert tape.gradient(loss, y) is None
  np.testing.assert_allclose(tape.gradient(policy, x), -y / (T * B))
  np.testing.assert_allclose(tape.gradient(baseline, x), (x - y) / (T * B))


def test_normalised_advantages_have_mean_0_and_deviation_1():
  x, mask = _rng().normal(3.0, 5.0, (T, B)), _mask()
  x[1, 2] = 1e6
  got = policy_gradient.normalise(tf.constant(x), tf.constant(mask)).numpy()
  valid = got[mask == 1]
  np.testing.assert_allclose([valid.mean(), valid.std()], [0, 1], atol=1e-8)
  alike = policy_gradient.normalise(tf.ones((T, B)), tf.ones((T, B)))
  np.testing.assert_allclose(alike, np.zeros((T, B)), atol=1e-2)


def test_softmax_is_the_categorical_of_its_logits():
  logits = _rng().normal(0, 3, (T, B, A)).astype(np.float32)
  actions = _rng().integers(0, A, (T, B)).astype(np.int32)
  head = policy_heads.Softmax(A)
  log_pi = special.log_softmax(logits, axis=-1)
  expected = np.take_along_axis(log_pi, actions[..., None], -1)[..., 0]
  np.testing.assert_allclose(
    head.log_prob(tf.constant(logits), tf.constant(actions)),
    expected,
    rtol=1e-5,
  )
  entropy = [[stats.entropy(np.exp(row)) for row in rows] for rows in log_pi]
  np.testing.assert_allclose(
    head.entropy(tf.constant(logits)), entropy, rtol=1e-5
  )


def test_softmax_acts_as_often_as_it_says_and_says_it_to_the_learner():
  logits = np.array([[0.0, 1.0, -2.0, 0.5], [80.0, -80.0, 79.0, 0.0]])
  logits = logits.astype(np.float32)
  many = np.repeat(logits, 40_000, axis=0)
  head = policy_heads.Softmax(4)
  actions, log_mu = head.sample(many, _rng())
  assert actions.dtype == np.int32 and log_mu.dtype == np.float32
  for row, own in zip(logits, np.split(actions, 2)):
    share = np.bincount(own, minlength=4) / 40_000
    np.testing.assert_allclose(share, special.softmax(row), atol=0.01)
  learned = head.log_prob(tf.constant(many[None]), tf.constant(actions[None]))
  np.testing.assert_allclose(log_mu, learned[0], rtol=1e-5, atol=1e-6)
  np.testing.assert_array_equal(head.mode(logits), [1, 0])


@pytest.mark.vectors('gaussian_policy')
@pytest.mark.parametrize('dtype', ['float32', 'float64'])
def test_the_gaussian_gives_the_numbers_of_the_vectors(vector, dtype):
  given = {k: np.asarray(v) for k, v in vector.inputs.items()}
  size = given['actions'].shape[-1]
  head = policy_heads.Gaussian(size, sigma_min=0.0, sigma_max=None)

  def outputs(policy):
    both = given[f'{policy}_mean'], given[f'{policy}_raw_scale']
    return tf.constant(np.concatenate(both, axis=-1)[None], dtype)

  actions = tf.constant(given['actions'][None], dtype)
  behaviour, target = (
    head.log_prob(outputs(policy), actions)[0]
    for policy in ('behaviour', 'target')
  )
  got = {
    'behaviour_scale': head.scale(outputs('behaviour'))[1][0],
    'behaviour_log_prob': behaviour,
    'target_log_prob': target,
    'log_rho': target - behaviour,
    'target_entropy': head.entropy(outputs('target'))[0],
  }
  assert set(got) == set(vector.expected)
  tolerance = dict(vector.tolerance[dtype])
  if dtype == 'float32':
    # A difference of two large sums keeps their absolute error.
    tolerance['atol'] = 1e-5 * np.abs(behaviour).max()
  for name, expected in vector.expected.items():
    np.testing.assert_allclose(got[name], expected, **tolerance, err_msg=name)


@pytest.mark.parametrize('tanh_mean', [False, True])
def test_the_gaussian_acts_as_it_is_learned(tanh_mean):
  # Raw scales beyond both ends: floor, ceiling, and a softplus of much.
  head = policy_heads.Gaussian(4, 0.01, 1.5, tanh_mean)
  row = np.array([0.3, -1.0, 0.0, 2.0, 0.0, -20.0, 60.0, 0.5], np.float32)
  many = np.repeat(row[None], 50_000, axis=0)
  actions, log_mu = head.sample(many, _rng())
  assert actions.dtype == np.float32 and log_mu.dtype == np.float32
  mean, sigma = (x.numpy() for x in head.scale(tf.constant(row)))
  np.testing.assert_allclose(sigma[1:3], [0.01, 1.5], rtol=1e-6)
  means = np.tanh(row[:4]) if tanh_mean else row[:4]
  np.testing.assert_allclose(mean, means, rtol=1e-6)
  for j in range(4):
    test = stats.kstest(actions[:, j], stats.norm(mean[j], sigma[j]).cdf)
    assert test.pvalue > 1e-3
  # Actions beyond [-1, 1] are stored as drawn.
  assert np.abs(actions).max() > 1
  normal = tfp.distributions.MultivariateNormalDiag(mean, sigma)
  np.testing.assert_allclose(
    log_mu, normal.log_prob(actions), rtol=1e-3, atol=1e-3
  )
  np.testing.assert_allclose(
    head.log_prob(tf.constant(many[None]), tf.constant(actions[None]))[0],
    log_mu,
    rtol=1e-3,
    atol=1e-3,
  )
  np.testing.assert_allclose(
    head.entropy(tf.constant(row[None, None])), [[normal.entropy()]], rtol=1e-5
  )
  np.testing.assert_allclose(head.mode(row[None])[0], mean, rtol=1e-6)


def test_a_scale_above_the_ceiling_comes_back_and_rises_no_further():
  # Raw scales: below the ceiling, at it, far above it.
  head = policy_heads.Gaussian(3, sigma_min=0.0, sigma_max=2.0)
  raw = np.log(np.expm1([1.0, 2.0, 10.0]))
  outputs = tf.constant(np.concatenate([np.zeros(3), raw]), tf.float32)
  near, far = tf.zeros(3), tf.fill([3], 30.0)

  def gradient(loss):
    with tf.GradientTape() as tape:
      tape.watch(outputs)
      value = tf.reduce_sum(loss())
    return tape.gradient(value, outputs).numpy()[3:]

  np.testing.assert_allclose(head.scale(outputs)[1], [1.0, 2.0, 2.0], rtol=1e-5)
  # An action at the mean is likelier with a smaller sigma: descent lowers raw.
  assert (gradient(lambda: -head.log_prob(outputs, near)) > 0).all()
  # A far one with a larger sigma, and so is entropy: only below the ceiling.
  for loss in (
    lambda: -head.log_prob(outputs, far),
    lambda: -head.entropy(outputs),
  ):
    first, *others = gradient(loss)
    assert first < 0 and others == [0.0, 0.0]
