"""Memories: the NumPy step, the TensorFlow unroll, and what resets them."""

import numpy as np
import pytest
import sonnet as snt
import tensorflow as tf

from murmuration.agents import parameters
from murmuration.agents.networks import recurrent
from murmuration.agents.unroll import network as unroll_network
from murmuration.environment_loops import environments
from murmuration.replay import blocks

T, K = 6, 3


@pytest.mark.vectors('state_stack')
def test_the_stack_gives_the_numbers_of_the_vectors(vector):
  given = np.asarray(vector.inputs['observations'], np.float32)
  memory = recurrent.StateStack(vector.inputs['depth'], given.shape[1])
  ends = set(vector.inputs['episode_last_indices'])
  state = np.zeros((1, memory.state_size), np.float32)
  fresh, stacks = np.array([True]), []
  for index, observation in enumerate(given):
    if fresh[0]:
      memory.begin(state, observation[None], fresh)
    stack = memory.step(state, observation[None])
    state = stack[:, given.shape[1] :].copy()
    stacks.append(stack[0])
    fresh = np.array([index in ends])
  expected = np.asarray(vector.expected['stacked'])
  np.testing.assert_allclose(stacks, expected, **vector.tolerance['float32'])

  # The same in one unroll; an end's last observation is its final one.
  first_state = expected[:1, : memory.state_size]
  start = np.array([[index in ends] for index in range(len(given) - 1)])
  unrolled, _ = memory.unroll(
    tf.constant(given[:, None]),
    tf.zeros((1, 1, given.shape[1])),
    tf.constant(first_state, tf.float32),
    tf.constant(start),
    tf.zeros((1, *start.shape), tf.bool),
  )
  np.testing.assert_allclose(unrolled[:, 0], expected, rtol=1e-5)


SPEC = environments.Spec('Numbers-v0', (2, 2), 3)
IMAGES = environments.Spec(
  'Images-v0', (64, 64, 3), 3, observation_dtype='uint8'
)


def test_the_lstm_is_sonnets():
  ours = recurrent.LSTM(5, 4)
  theirs = snt.LSTM(4)
  rng = np.random.default_rng(0)
  x = rng.normal(size=(T + 1, K, 5)).astype(np.float32)
  state = rng.normal(size=(K, 8)).astype(np.float32)
  first = snt.LSTMState(*(tf.constant(s) for s in np.split(state, 2, axis=1)))
  theirs(tf.constant(x[0]), first)
  values = [
    rng.normal(0, 0.5, shape).astype(np.float32) for _, shape in ours.shapes()
  ]
  by_name = {v.name.split('/')[-1][:-2]: v for v in theirs.trainable_variables}
  for (name, _), value in zip(ours.shapes(), values):
    by_name[name.split('/')[-1]].assign(value)
  expected, last = snt.static_unroll(theirs, tf.constant(x), first)
  got, _ = ours.unroll(
    [tf.constant(v) for v in values],
    tf.constant(x),
    tf.constant(x[:1]),
    tf.constant(state),
    tf.zeros((T, K), tf.bool),
    tf.zeros((1, T, K), tf.bool),
  )
  np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
  for row in x:
    state = ours.step(values, state, row)
  np.testing.assert_allclose(state, np.concatenate(last, axis=1), rtol=1e-5)


def test_first_weights_of_the_lstm_are_scaled_to_its_units():
  b, w_i, w_h = recurrent.LSTM(50, 64).initial(np.random.default_rng(0))
  np.testing.assert_array_equal(b, np.repeat([0.0, 1.0, 0.0, 0.0], 64))
  assert b.dtype == w_i.dtype == w_h.dtype == np.float32
  for weights in (w_i, w_h):
    assert 0.9 * 2 / 8 < np.abs(weights).max() <= 2 / 8


NETWORKS = [
  {},
  {'shared': False, 'activation': 'relu'},
  {'stack': 4},
  {'stack': 3, 'normalize': True, 'shared': False},
  {'lstm_size': 5},
  {'lstm_size': 5, 'stack': 2, 'normalize': True, 'activation': 'relu'},
]


def _network(**options):
  return unroll_network.UnrollNetwork(
    SPEC, policy_size=3, hidden_sizes=(7, 6), **options
  )


def _theta(network):
  """[D] with every variable away from its first value."""
  layout = parameters.Layout(network.shapes(), network.groups())
  rng = np.random.default_rng(1)
  theta = layout.pack(network.initial(rng))
  theta += rng.uniform(0.0, 0.5, theta.shape).astype(np.float32)
  return layout, theta


def _episodes(rng, number):
  """`number` blocks of K environments, with ends of both kinds."""
  found = []
  observation = rng.normal(size=(K, 2, 2))
  for _ in range(number):
    # A limit of 2 steps: up to three truncations.
    block = blocks.BlockLayout(T, K, (2, 2), max_episode_steps=2).zeros()
    block.discount[...] = 1.0
    # A termination, a time limit in mid-block, and one with the last step.
    block.last[2, 0] = block.last[3, 1] = block.last[T - 1, 2] = True
    block.last[4, 0] = block.last[T - 1, 1] = True
    block.discount[2, 0] = 0.0
    block.final_observation[...] = rng.normal(
      size=block.final_observation.shape
    )
    block.observation[0] = observation
    block.observation[1:] = rng.normal(size=(T, K, 2, 2))
    observation = block.observation[-1]
    found.append(block)
  return found


@pytest.mark.parametrize('options', NETWORKS)
def test_an_unroll_is_the_steps_of_its_actor(options):
  """Two blocks in a row: the second begins in the middle of episodes."""
  network = _network(**options)
  layout, theta = _theta(network)
  parts = network.prepare(layout.unpack(theta[None]))
  apply = network.make_unroll()
  variables = [tf.constant(v) for v in layout.unpack(theta)]
  core = np.zeros((K, network.core_size), np.float32)
  fresh = np.ones(K, bool)
  for block in _episodes(np.random.default_rng(2), 2):
    policies, cores = [], []
    for t in range(T):
      outputs, following = network.step(
        parts, block.observation[t], core, fresh
      )
      policies.append(outputs)
      cores.append(core.copy())
      core, fresh = following, block.last[t]
    truncated = block.last & (block.discount > 0)
    number = np.cumsum(truncated, axis=0) - 1
    block = block._replace(core=cores[0])
    got = apply(
      variables,
      blocks.Block(*(tf.constant(column[None]) for column in block)),
      tf.constant(truncated),
    )
    np.testing.assert_allclose(got.policy, policies, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(
      got.observations, block.observation[:-1].reshape(T, K, 4)
    )
    # A value is a function of what the policy sees: a block that begins at
    # step t has the same.
    later = blocks.BlockLayout(1, K, (2, 2)).zeros()
    for t in range(T):
      # It goes on from step t with the true end where a time limit was.
      arrival = np.where(
        truncated[t][:, None, None],
        block.final_observation[number[t], range(K)],
        block.observation[t + 1],
      )
      later = later._replace(
        observation=np.stack([block.observation[t], arrival]), core=cores[t]
      )
      alone = apply(
        variables,
        blocks.Block(*(tf.constant(column[None]) for column in later)),
        tf.zeros((1, K), tf.bool),
      )
      np.testing.assert_allclose(
        got.values[t], alone.values[0], rtol=1e-4, atol=1e-5
      )
      np.testing.assert_allclose(
        got.final_values.numpy()[number[t], range(K)][truncated[t]],
        alone.values[1].numpy()[truncated[t]],
        rtol=1e-4,
        atol=1e-5,
      )


def test_time_is_major_and_the_environments_of_all_blocks_are_one_batch():
  x = tf.reshape(tf.range(2 * 4 * 3 * 5), (2, 4, 3, 5))
  got = unroll_network.time_major(x)
  assert got.shape == (4, 6, 5)
  for block in range(2):
    for env in range(3):
      np.testing.assert_array_equal(got[:, 3 * block + env], x[block, :, env])
  np.testing.assert_array_equal(
    unroll_network.merge(x[:, 0]), got[0], 'both put sequences in one order'
  )


def test_the_first_policy_hardly_depends_on_what_is_seen():
  network = _network(shared=False)
  layout = parameters.Layout(network.shapes(), network.groups())
  theta = layout.pack(network.initial(np.random.default_rng(0)))
  rng = np.random.default_rng(1)
  x = 3 * rng.normal(size=(50, 2, 2)).astype(np.float32)
  outputs, _ = network.step(
    network.prepare(layout.unpack(theta[None])),
    x,
    np.zeros((50, 0), np.float32),
    np.ones(50, bool),
  )
  assert 0 < np.abs(outputs).max() < 0.05


@pytest.mark.parametrize(
  ('shape', 'dtype', 'options'),
  [
    ((36, 36, 2), 'uint8', {'network': 'nature'}),
    ((36, 36, 2), 'uint8', {'lstm_size': 5}),
    ((3, 17, 17), 'float32', {'shared': False}),
  ],
)
def test_convolutions_take_images_in_both_forms(shape, dtype, options):
  spec = environments.Spec('Images-v0', shape, 3, observation_dtype=dtype)
  rng = np.random.default_rng(0)
  network = unroll_network.UnrollNetwork(spec, 3, (16,), **options)
  assert network.images
  layout, theta = _theta(network)
  block_layout = blocks.BlockLayout(
    2, K, shape, observation_dtype=dtype, core_size=network.core_size
  )
  block = block_layout.zeros()
  block.observation[...] = rng.integers(0, 255, block.observation.shape)
  got = network.make_unroll()(
    [tf.constant(v) for v in layout.unpack(theta)],
    blocks.Block(*(tf.constant(column[None]) for column in block)),
    tf.zeros((2, K), tf.bool),
  )
  outputs, _ = network.step(
    network.prepare(layout.unpack(theta[None])),
    block.observation[0],
    block.core,
    np.ones(K, bool),
  )
  np.testing.assert_allclose(got.policy[0], outputs, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
  ('options', 'message'),
  [
    ({'lstm_size': 4, 'shared': False}, 'lstm_size=4 needs a shared torso'),
    ({'network': 'nature'}, "network='nature' takes images, but Numbers-v0"),
    ({'spec': IMAGES, 'stack': 4}, 'take images one by one.*stack=4'),
  ],
)
def test_networks_that_cannot_be_are_refused(options, message):
  with pytest.raises(ValueError, match=message):
    unroll_network.UnrollNetwork(
      **{'spec': SPEC, 'policy_size': 3, 'hidden_sizes': (7, 6), **options}
    )
