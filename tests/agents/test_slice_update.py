"""Updates of slices against their vectors, and against those of learners."""

import numpy as np
import pytest
import tensorflow as tf

from murmuration.agents import base
from murmuration.agents import ddpg
from murmuration.agents import dqn
from murmuration.agents import gradient_step
from murmuration.agents import optimizers
from murmuration.agents import slice_update
from murmuration.environment_loops import environments

OPTIMIZERS = [
  optimizers.SGD(),
  optimizers.Adam(beta1=0.8, epsilon=0.01),
  optimizers.RMSProp(),
  optimizers.Adagrad(),
]
CARTPOLE = environments.spec('CartPole-v1')
PENDULUM = environments.spec('Pendulum-v1')


def _assert_steps(own, grads, expected, tolerance):
  for i, (g, theta) in enumerate(zip(grads, expected)):
    assert own.apply(np.array(g), i).accepted
    np.testing.assert_allclose(own.theta, theta, **tolerance)


@pytest.mark.vectors('gorila', kind='adagrad')
def test_adagrad_is_that_of_the_vectors(vector):
  inputs, tolerance = vector.inputs, vector.tolerance['float64']
  initial = inputs['initial_accumulator']
  own = slice_update.Slice(
    inputs['theta'],
    optimizers.Adagrad(initial, inputs['epsilon']),
    inputs['lr'],
  )
  expected = vector.expected['theta_after_each']
  _assert_steps(own, inputs['grads'], expected, tolerance)
  np.testing.assert_allclose(
    own.save()['slot_0'] + initial, vector.expected['accumulator'], **tolerance
  )


@pytest.mark.vectors('shared_rmsprop')
def test_shared_rmsprop_is_that_of_the_vectors(vector):
  inputs, tolerance = vector.inputs, vector.tolerance['float64']
  own = slice_update.Slice(
    inputs['theta'],
    optimizers.RMSProp(inputs['decay'], inputs['epsilon']),
    inputs['lr'],
  )
  expected = vector.expected['theta_after_each']
  _assert_steps(own, inputs['grads'], expected, tolerance)
  np.testing.assert_allclose(
    own.save()['slot_0'], vector.expected['mean_square'], **tolerance
  )


@pytest.mark.vectors('gorila', kind='server')
def test_shards_accept_and_reject_as_in_the_vectors(vector):
  inputs, tolerance = vector.inputs, vector.tolerance['float64']
  theta = np.array(inputs['theta'])
  optimizer = optimizers.Adagrad(
    inputs['initial_accumulator'], inputs['epsilon']
  )
  places = slice_update.places(len(theta), len(inputs['shards']))
  assert [[place.start, place.stop] for place in places] == inputs['shards']
  shards = [
    slice_update.Slice(
      theta[place], optimizer, inputs['lr'], inputs['max_staleness']
    )
    for place in places
  ]
  for message, said in zip(inputs['messages'], vector.expected['log']):
    gradient = np.array(message['grad'], float)
    own = shards[message['shard']]
    found = own.apply(gradient, message['pulled_version'])
    assert found.accepted == said['accepted']
    assert found.staleness == said['staleness']
    assert [shard.version for shard in shards] == said['versions']
  np.testing.assert_allclose(
    np.concatenate([shard.theta for shard in shards]),
    vector.expected['theta'],
    **tolerance,
  )


@pytest.mark.parametrize('size, count', [(7, 3), (10, 10), (4610, 4), (5, 1)])
def test_slices_are_contiguous_and_differ_by_one_at_most(size, count):
  places = slice_update.places(size, count)
  joined = np.concatenate([np.arange(size)[place] for place in places])
  np.testing.assert_array_equal(joined, np.arange(size))
  sizes = [place.stop - place.start for place in places]
  assert len(sizes) == count and max(sizes) - min(sizes) <= 1


def test_more_shards_than_parameters_are_refused():
  with pytest.raises(ValueError, match='Use fewer shards'):
    slice_update.places(3, 4)


@pytest.mark.parametrize('optimizer', OPTIMIZERS, ids=repr)
def test_an_optimizer_does_the_same_with_arrays_as_with_tensors(optimizer):
  rng = np.random.default_rng(0)
  state = tuple(tf.zeros((1, 9)) for _ in range(optimizer.slots))
  slots = tuple(np.zeros(9, np.float32) for _ in state)
  for count in range(1, 20):
    g = rng.normal(size=9).astype(np.float32)
    state, wanted = optimizer.direction(
      state, tf.constant(g[None]), tf.constant([[count]])
    )
    before = g.copy()
    slots, found = optimizer.direction(slots, g, count)
    np.testing.assert_array_equal(g, before)
    assert all(type(own) is np.ndarray for own in (*slots, found))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, wanted[0], rtol=2e-5, atol=1e-6)
    for own, other in zip(slots, state):
      np.testing.assert_allclose(own, other[0], rtol=2e-5, atol=1e-6)


class _Signs:
  """A user's own optimizer, for tensors."""

  slots = 1

  def direction(self, state, gradient, step):
    total = tf.add(state[0], gradient)
    return (total,), tf.sign(total) / tf.cast(step, tf.float32)


def test_an_optimizer_of_a_user_s_own_makes_the_same_step():
  delayed = np.array([False, False, True])
  own = slice_update.Slice(
    np.zeros(3, np.float32), _Signs(), 0.5, delayed=delayed, due=lambda i: i
  )
  for version, g in enumerate(([2, -3, 5], [-1, 1, -7])):
    assert own.apply(np.array(g, np.float32), version).accepted
  np.testing.assert_allclose(own.theta, [-0.75, 0.75, 0.5])
  np.testing.assert_allclose(own.save()['slot_0'], [1, -2, -7])


AGENTS = {
  # Rates that fall to 0 after 20 updates.
  'annealed': dqn.DQN(
    dqn.Config(hidden_sizes=(5,), anneal_updates=20, anneal_after=5), CARTPOLE
  ),
  # A rate of its own for the policy, which moves in every third update.
  'delayed': ddpg.DDPG(
    ddpg.Config(policy_sizes=(4,), critic_sizes=(4,), policy_delay=3), PENDULUM
  ),
}


@pytest.mark.parametrize('name', AGENTS)
@pytest.mark.parametrize('shards', [1, 3])
def test_shards_together_make_the_step_of_a_learner(name, shards):
  agent = AGENTS[name]
  rng = np.random.default_rng(0)
  theta = agent.initial(0)
  places = slice_update.places(theta.size, shards)
  own = [slice_update.of(agent, theta, place) for place in places]
  step = gradient_step.make(agent, None)
  count = 1 if agent.delayed is None else 2
  made = gradient_step.Step(
    tf.constant(theta[None]),
    tuple(tf.zeros((1, theta.size)) for _ in range(agent.optimizer.slots)),
    tf.zeros((1, count), tf.int64),
    None,
  )
  for update in range(30):
    g = rng.normal(size=theta.size).astype(np.float32)
    made = step(
      tf.constant(g[None]),
      tf.constant([False]),
      made.theta,
      made.slots,
      made.counts,
      tf.constant([[agent.learning_rate]]),
      tf.constant(update, tf.int64),
      (),
    )
    for shard, place in zip(own, places):
      assert shard.apply(g[place], update).accepted
  found = np.concatenate([shard.theta for shard in own])
  np.testing.assert_allclose(found, made.theta[0], rtol=1e-5, atol=1e-6)
  assert np.abs(found - theta).max() > 1e-4


def test_a_gradient_that_is_not_finite_or_of_the_future_is_rejected():
  own = slice_update.Slice(np.ones(3), optimizers.SGD(), 0.1)
  assert not own.apply(np.array([1.0, np.nan, 1.0]), 0).accepted
  assert not own.apply(np.ones(3), 1).accepted
  assert own.version == 0
  np.testing.assert_array_equal(own.theta, np.ones(3))


@pytest.mark.parametrize('optimizer', OPTIMIZERS, ids=repr)
def test_a_slice_that_was_saved_goes_on_as_if_nothing_had_been(optimizer):
  rng = np.random.default_rng(0)
  one, two = (
    slice_update.Slice(np.ones(4, np.float32), optimizer, 0.1) for _ in 'ab'
  )
  for i in range(5):
    one.apply(rng.normal(size=4).astype(np.float32), i)
  two.restore(one.save())
  for i in range(5, 8):
    g = rng.normal(size=4).astype(np.float32)
    assert one.apply(g, i) == two.apply(g, i)
  np.testing.assert_array_equal(one.theta, two.theta)
  other = slice_update.Slice(np.ones(5, np.float32), optimizer, 0.1)
  with pytest.raises(ValueError, match='as many shards'):
    other.restore(one.save())


def test_schedules_are_known_beyond_what_is_computed_at_once():
  agent = dqn.DQN(dqn.Config(hidden_sizes=(5,), anneal_updates=3000), CARTPOLE)
  schedule = slice_update._Schedule(agent.rate_factor)
  for update in (0, 1, 1023, 1024, 2500, 7):
    wanted = float(agent.rate_factor(tf.constant(update, tf.int64)))
    assert schedule(update) == pytest.approx(wanted)
  assert slice_update._Schedule(base.Agent.due.__get__(agent))(5) is True
