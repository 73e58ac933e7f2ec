"""V-trace against the vectors, against the sum in the paper, and trfl."""

import numpy as np
import pytest
import tensorflow as tf
import trfl

from murmuration.agents.losses import vtrace

T, B = 7, 64


def _bar(value):
  return np.inf if value is None else value


@pytest.mark.vectors('vtrace')
@pytest.mark.parametrize('dtype', ['float32', 'float64'])
def test_vtrace_gives_the_numbers_of_the_vectors(vector, dtype):
  given = vector.inputs

  def column(name, dtype=dtype):
    array = np.asarray(given[name])
    return tf.constant(array.reshape(len(array), -1), dtype)

  discounts = given['gamma'] * (1 - column('terminated').numpy())
  last = column('terminated', bool) | column('truncated', bool)
  got = vtrace.vtrace(
    column('log_rhos'),
    column('rewards'),
    tf.constant(discounts, dtype),
    last,
    column('values'),
    column('next_values'),
    given['lambda_'],
    given['rho_bar'],
    given['c_bar'],
    given['pg_rho_bar'],
  )
  for name in ('vs', 'pg_advantages'):
    expected, array = np.asarray(vector.expected[name]), getattr(got, name)
    np.testing.assert_allclose(
      array.numpy().reshape(expected.shape),
      expected,
      **vector.tolerance[dtype],
    )


def _inputs(seed=0):
  """Ratios on both sides of every bound, ends of both kinds, one at once."""
  rng = np.random.default_rng(seed)
  values = rng.normal(size=(T + 1, B))
  terminated = rng.random((T, B)) < 0.15
  truncated = (rng.random((T, B)) < 0.15) & ~terminated
  truncated &= truncated.cumsum(axis=0) <= 1
  final = rng.normal(size=B)
  next_values = np.where(truncated, final, values[1:])
  assert terminated[-1].any() and truncated[-1].any()
  assert (terminated | truncated).all(axis=1).sum() == 0
  return {
    'log_rhos': rng.normal(0, 1, (T, B)),
    'r_t': rng.normal(size=(T, B)),
    'discount_t': np.where(terminated, 0.0, 0.9),
    'last_t': terminated | truncated,
    'values': values[:-1],
    'next_values': next_values,
  }


def slow_targets(inputs, lambda_, rho_bar, c_bar):
  """v_s of equation 1: a sum of products, one s and one sequence at a time."""
  rho = np.exp(inputs['log_rhos'])
  result = np.zeros((T, B))
  for b in range(B):
    for s in range(T):
      total, product = 0.0, 1.0
      for t in range(s, T):
        delta = min(rho_bar, rho[t, b]) * (
          inputs['r_t'][t, b]
          + inputs['discount_t'][t, b] * inputs['next_values'][t, b]
          - inputs['values'][t, b]
        )
        total += product * delta
        if inputs['last_t'][t, b]:
          break
        c = lambda_ * min(c_bar, rho[t, b])
        product *= inputs['discount_t'][t, b] * c
      result[s, b] = inputs['values'][s, b] + total
  return result


def slow_advantages(inputs, targets, pg_rho_bar):
  rho = np.exp(inputs['log_rhos'])
  result = np.zeros((T, B))
  for b in range(B):
    for s in range(T):
      # What follows: the target of the next step, if it is the same episode's.
      after = inputs['next_values'][s, b]
      if s + 1 < T and not inputs['last_t'][s, b]:
        after = targets[s + 1, b]
      q = inputs['r_t'][s, b] + inputs['discount_t'][s, b] * after
      result[s, b] = min(pg_rho_bar, rho[s, b]) * (q - inputs['values'][s, b])
  return result


@pytest.mark.parametrize('pg_rho_bar', [0.8, None])
@pytest.mark.parametrize('bars', [(1.0, 1.0), (1.5, 0.7), (None, None)])
@pytest.mark.parametrize('lambda_', [1.0, 0.6])
def test_vtrace_is_the_sum_in_equation_1(lambda_, bars, pg_rho_bar):
  inputs = _inputs()
  got = vtrace.vtrace(
    *map(tf.constant, inputs.values()), lambda_, *bars, pg_rho_bar
  )
  targets = slow_targets(inputs, lambda_, *map(_bar, bars))
  advantages = slow_advantages(inputs, targets, _bar(pg_rho_bar))
  np.testing.assert_allclose(got.vs, targets, rtol=1e-10, atol=1e-12)
  np.testing.assert_allclose(
    got.pg_advantages, advantages, rtol=1e-10, atol=1e-12
  )


# Without arguments both have the bounds of the paper.
@pytest.mark.parametrize('bounds', [{}, {'rho': 1.2, 'pg_rho': 0.9}])
def test_trfl_agrees_where_no_time_limit_ends_an_episode(bounds):
  inputs = _inputs()
  # trfl has one discount, which both cuts the trace and ends the bootstrap.
  inputs['last_t'] = inputs['discount_t'] == 0
  values, bootstrap = inputs['values'], np.full(B, 0.3)
  inputs['next_values'] = np.concatenate([values[1:], bootstrap[None]])
  inputs = {
    name: tf.constant(array, None if array.dtype == bool else tf.float32)
    for name, array in inputs.items()
  }
  got = vtrace.vtrace(
    *inputs.values(), **{f'{name}_bar': bar for name, bar in bounds.items()}
  )
  theirs = trfl.vtrace_from_importance_weights(
    inputs['log_rhos'],
    inputs['discount_t'],
    inputs['r_t'],
    inputs['values'],
    tf.constant(bootstrap, tf.float32),
    **{f'clip_{name}_threshold': bar for name, bar in bounds.items()},
  )
  np.testing.assert_allclose(got.vs, theirs.vs, rtol=1e-5, atol=1e-5)
  np.testing.assert_allclose(
    got.pg_advantages, theirs.pg_advantages, rtol=1e-5, atol=1e-5
  )


def test_two_episodes_in_one_trace_equal_two_traces():
  inputs = _inputs()
  for flag in (0.0, 0.9):  # terminated, or truncated
    inputs['discount_t'][:] = 0.9
    inputs['last_t'][:] = False
    inputs['discount_t'][3] = flag
    inputs['last_t'][3] = True
    whole = vtrace.vtrace(*map(tf.constant, inputs.values()))
    for part in (slice(0, 4), slice(4, T)):
      alone = vtrace.vtrace(*(tf.constant(x[part]) for x in inputs.values()))
      np.testing.assert_allclose(whole.vs[part], alone.vs)
      np.testing.assert_allclose(whole.pg_advantages[part], alone.pg_advantages)


def test_a_step_that_is_no_experience_leaves_its_value_as_it_is():
  inputs = _inputs()
  inputs['last_t'][3, :5] = True
  inputs['log_rhos'][3, :5] = -np.inf
  got = vtrace.vtrace(*map(tf.constant, inputs.values()))
  np.testing.assert_array_equal(got.vs[3, :5], inputs['values'][3, :5])
  np.testing.assert_array_equal(got.pg_advantages[3, :5], np.zeros(5))
  # Nor does it say anything of the steps before it.
  inputs['r_t'][3, :5] += 100.0
  again = vtrace.vtrace(*map(tf.constant, inputs.values()))
  np.testing.assert_array_equal(got.vs, again.vs)


def test_targets_and_advantages_carry_no_gradient():
  inputs = {k: tf.constant(v) for k, v in _inputs().items()}
  watched = [inputs[k] for k in ('log_rhos', 'values', 'next_values')]
  with tf.GradientTape() as tape:
    tape.watch(watched)
    got = vtrace.vtrace(*inputs.values())
    total = tf.reduce_sum(got.vs) + tf.reduce_sum(got.pg_advantages)
  assert tape.gradient(total, watched) == [None] * 3


def test_a_time_limit_is_followed_by_its_true_end():
  values = tf.constant([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
  got = vtrace.successor_values(
    values, tf.constant([[7.0, 8.0]]), tf.constant([[False, True], [False] * 2])
  )
  np.testing.assert_array_equal(got, [[3.0, 8.0], [5.0, 6.0]])
  # Each of two by its own, what is not used may be anything.
  got = vtrace.successor_values(
    values,
    tf.constant([[7.0, 8.0], [9.0, np.nan]]),
    tf.constant([[True, False], [True, True]]),
  )
  np.testing.assert_array_equal(got, [[7.0, 4.0], [9.0, 8.0]])


def test_wrong_shapes_are_refused():
  inputs = _inputs()
  inputs['last_t'] = inputs['last_t'][:-1]
  with pytest.raises(ValueError, match=f'dimension 0 must have size {T}'):
    vtrace.vtrace(*map(tf.constant, inputs.values()))


@pytest.mark.parametrize('flag', [0.0, 0.9])
def test_a_trace_that_overflows_ends_with_its_episode(flag):
  inputs = _inputs()
  inputs['discount_t'][:] = 0.9
  inputs['last_t'][:] = False
  inputs['discount_t'][3], inputs['last_t'][3] = flag, True
  inputs['log_rhos'][4:] = 400.0  # squared, beyond float64

  def of(part):
    each = (tf.constant(x[part]) for x in inputs.values())
    return vtrace.vtrace(*each, rho_bar=None, c_bar=None, pg_rho_bar=None)

  whole, first = of(slice(0, T)), of(slice(0, 4))
  assert not np.isfinite(whole.vs[4]).all()
  np.testing.assert_allclose(whole.vs[:4], first.vs)
  np.testing.assert_allclose(whole.pg_advantages[:4], first.pg_advantages)
