"""The two forms of a network agree with each other and with Sonnet's own."""

import numpy as np
import pytest
from scipy import stats
import sonnet as snt
import tensorflow as tf

from murmuration.agents import parameters
from murmuration.agents.networks import mlp as mlp_lib

SIZES = [
  pytest.param((4, (8, 6), 3), id='two hidden layers'),
  pytest.param((5, (7,), 2), id='one hidden layer'),
  pytest.param((3, (), 2), id='linear'),
  pytest.param((4, (64, 64), 2), id='wide'),
]


def _theta(mlp, members, seed=0):
  """[P, D] of initial weights, with biases that are not zero."""
  layout = parameters.Layout(mlp.shapes())
  rng = np.random.default_rng(seed)
  theta = np.stack([layout.pack(mlp.initial(rng)) for _ in range(members)])
  theta += rng.normal(0, 0.3, theta.shape)
  return layout, theta.astype(np.float32)


def _tensor(array):
  return tf.constant(array, tf.float32)


def _tensors(layout, theta):
  return [_tensor(array) for array in layout.unpack(theta)]


@pytest.mark.parametrize('each', [1, 5])
@pytest.mark.parametrize('activation', ['relu', 'tanh'])
@pytest.mark.parametrize('sizes', SIZES)
def test_the_numpy_form_is_the_sonnet_form(sizes, activation, each):
  mlp = mlp_lib.MLP(*sizes, activation=activation)
  layout, theta = _theta(mlp, members=3)
  inputs = np.random.default_rng(1).normal(size=(3, each, sizes[0]))
  inputs = inputs.astype(np.float32)
  numpy_form = mlp.forward(layout.unpack(theta), inputs)
  assert numpy_form.shape == (3, each, sizes[-1])
  assert numpy_form.dtype == np.float32
  apply = mlp.make_sonnet()
  for member in range(3):
    sonnet_form = apply(
      _tensors(layout, theta[member]), _tensor(inputs[member])
    )
    np.testing.assert_allclose(
      numpy_form[member], sonnet_form, rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize('each', [1, 3])
def test_a_members_outputs_do_not_depend_on_who_is_beside_it(each):
  # To the last bit: generations of evolution strategies are the same whoever
  # plays them.
  mlp = mlp_lib.MLP(6, (64, 64, 16), 2)
  layout, theta = _theta(mlp, members=5)
  inputs = np.random.default_rng(1).normal(size=(5, each, 6))
  inputs = inputs.astype(np.float32)
  together = mlp.forward(layout.unpack(theta), inputs)
  for members in (slice(1, 2), slice(1, 4)):
    np.testing.assert_array_equal(
      mlp.forward(layout.unpack(theta[members]), inputs[members]),
      together[members],
    )


def test_acting_leaves_observations_and_parameters_as_they_were():
  # The NumPy form works in place; with no hidden layer nothing is in between.
  for sizes in ((4, (8,), 3), (4, (), 3)):
    mlp = mlp_lib.MLP(*sizes)
    layout, theta = _theta(mlp, members=2)
    inputs = np.random.default_rng(1).normal(size=(2, 5, 4)).astype(np.float32)
    before = theta.copy(), inputs.copy()
    mlp.forward(layout.unpack(theta), inputs)
    np.testing.assert_array_equal(theta, before[0])
    np.testing.assert_array_equal(inputs, before[1])


def test_both_forms_flatten_observations_in_the_same_order():
  mlp = mlp_lib.MLP(6, (5,), 2)
  layout, theta = _theta(mlp, members=1)
  inputs = np.random.default_rng(1).normal(size=(1, 4, 2, 3))
  inputs = inputs.astype(np.float32)
  np.testing.assert_allclose(
    mlp.forward(layout.unpack(theta), inputs)[0],
    mlp.make_sonnet()(_tensors(layout, theta[0]), _tensor(inputs[0])),
    rtol=1e-5,
    atol=1e-6,
  )


def test_the_layout_is_the_order_of_sonnets_own_variables():
  mlp = mlp_lib.MLP(4, (8, 6), 3, activation='tanh')
  module = snt.nets.MLP((8, 6, 3), activation=tf.nn.tanh)
  inputs = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
  module(inputs)
  variables = module.trainable_variables
  got = [(v.name.removesuffix(':0'), tuple(v.shape)) for v in variables]
  assert got == mlp.shapes()
  for bias in variables[::2]:
    bias.assign(tf.random.stateless_normal(bias.shape, (1, 2)))
  layout = parameters.Layout(mlp.shapes())
  theta = layout.pack([v.numpy() for v in variables])
  np.testing.assert_allclose(
    mlp.forward(layout.unpack(theta[None]), inputs[None])[0],
    module(inputs),
    rtol=1e-5,
    atol=1e-6,
  )


def test_a_module_with_other_variables_than_said_is_refused():
  said = r"creates \[\('linear/b:0', \(2,\)\).* Say them in its order"
  with pytest.raises(ValueError, match=said):
    mlp_lib.functional(
      lambda: snt.Linear(2),
      np.zeros((1, 3), np.float32),
      [('w', (3, 2)), ('b', (2,))],
    )


@pytest.mark.long
def test_a_network_is_built_inside_a_trace_once_for_all():
  # The first loss asks for it while the learner's update is traced.
  mlp = mlp_lib.MLP(4, (8,), 2)
  layout, theta = _theta(mlp, members=1)
  inputs = np.ones((1, 3, 4), np.float32)
  made = []

  @tf.function(autograph=False)
  def traced(variables, inputs):
    if not made:
      made.append(mlp.make_sonnet())
    return made[0](variables, inputs)

  expected = mlp.forward(layout.unpack(theta), inputs)[0]
  arguments = _tensors(layout, theta[0]), _tensor(inputs[0])
  np.testing.assert_allclose(traced(*arguments), expected, rtol=1e-5)
  np.testing.assert_allclose(made[0](*arguments), expected, rtol=1e-5)


def test_first_weights_are_truncated_normals_and_biases_zero():
  mlp = mlp_lib.MLP(100, (200,), 50)
  arrays = mlp.initial(np.random.default_rng(0))
  for bias, weights in zip(arrays[::2], arrays[1::2]):
    assert weights.dtype == bias.dtype == np.float32
    assert not bias.any()
    scale = 1 / np.sqrt(len(weights))
    assert np.abs(weights).max() <= 2 * scale
    fit = stats.kstest(weights.ravel(), stats.truncnorm(-2, 2, 0, scale).cdf)
    assert fit.pvalue > 0.01


def test_first_weights_are_distributed_as_sonnets():
  tf.random.set_seed(0)
  module = snt.Linear(200)
  module(tf.zeros((1, 100)))
  ours = mlp_lib.MLP(100, (), 200).initial(np.random.default_rng(1))[1]
  fit = stats.ks_2samp(ours.ravel(), module.w.numpy().ravel())
  assert fit.pvalue > 0.01


def test_the_same_stream_gives_the_same_weights():
  mlp = mlp_lib.MLP(4, (8,), 2)
  first, again, other = (
    np.concatenate([a.ravel() for a in mlp.initial(np.random.default_rng(s))])
    for s in (1, 1, 2)
  )
  np.testing.assert_array_equal(first, again)
  assert not np.array_equal(first, other)


def test_networks_that_cannot_be_are_refused():
  with pytest.raises(ValueError, match=r'positive, got \(4, 0, 2\)'):
    mlp_lib.MLP(4, (0,), 2)
  with pytest.raises(ValueError, match="'gelu' is not known.*'relu', 'tanh'"):
    mlp_lib.MLP(4, (8,), 2, activation='gelu')


DUELING = [
  pytest.param((4, (8, 7, 6), 3), id='two shared layers'),
  pytest.param((4, (8, 6), 3), id='one shared layer'),
  pytest.param((4, (8,), 3), id='nothing shared'),
]


def _slow_dueling(variables, x):
  """Equation 9 of Wang et al. 2016, one input at a time, with tanh."""
  variables = [np.asarray(v, float) for v in variables]
  *shared, bv0, wv0, bv1, wv1, ba0, wa0, ba1, wa1 = variables
  for b, w in zip(shared[::2], shared[1::2]):
    x = np.tanh(x @ w + b)
  (v,) = np.tanh(x @ wv0 + bv0) @ wv1 + bv1
  a = np.tanh(x @ wa0 + ba0) @ wa1 + ba1
  return [v + a[i] - sum(a) / len(a) for i in range(len(a))]


@pytest.mark.parametrize('sizes', DUELING)
def test_both_forms_of_a_dueling_network_are_equation_9(sizes):
  network = mlp_lib.DuelingMLP(*sizes, activation='tanh')
  layout, theta = _theta(network, members=2)
  inputs = np.random.default_rng(1).normal(size=(2, 5, 2, 2))
  inputs = inputs.astype(np.float32)
  before = theta.copy(), inputs.copy()
  numpy_form = network.forward(network.prepare(layout.unpack(theta)), inputs)
  assert numpy_form.shape == (2, 5, 3)
  assert numpy_form.dtype == np.float32
  apply = network.make_sonnet()
  for member in range(2):
    variables = layout.unpack(theta[member])
    slow = [_slow_dueling(variables, x.reshape(-1)) for x in inputs[member]]
    np.testing.assert_allclose(numpy_form[member], slow, rtol=1e-4, atol=1e-5)
    sonnet_form = apply(
      _tensors(layout, theta[member]), _tensor(inputs[member])
    )
    np.testing.assert_allclose(sonnet_form, slow, rtol=1e-4, atol=1e-5)
  np.testing.assert_array_equal(theta, before[0])
  np.testing.assert_array_equal(inputs, before[1])


def test_the_streams_of_a_dueling_network_have_their_last_layers_alone():
  network = mlp_lib.DuelingMLP(4, (8, 6), 3, name='q')
  assert network.shapes() == [
    ('q/linear_0/b', (8,)),
    ('q/linear_0/w', (4, 8)),
    ('q/value/linear_0/b', (6,)),
    ('q/value/linear_0/w', (8, 6)),
    ('q/value/linear_1/b', (1,)),
    ('q/value/linear_1/w', (6, 1)),
    ('q/advantage/linear_0/b', (6,)),
    ('q/advantage/linear_0/w', (8, 6)),
    ('q/advantage/linear_1/b', (3,)),
    ('q/advantage/linear_1/w', (6, 3)),
  ]


def test_dueling_networks_that_cannot_be_are_refused():
  with pytest.raises(ValueError, match='at least one hidden layer'):
    mlp_lib.DuelingMLP(4, (), 2)
  with pytest.raises(ValueError, match=r'positive, got \(4, 0, 2\)'):
    mlp_lib.DuelingMLP(4, (0,), 2)
