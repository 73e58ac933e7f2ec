"""The networks of Mnih et al. 2013, 2015: sums one by one, and both forms."""

import numpy as np
import pytest
from scipy import stats
import tensorflow as tf

from murmuration.agents import parameters
from murmuration.agents.networks import conv
from murmuration.environment_loops import environments

SMALL = (36, 44, 2)  # the convolutions leave 1 x 2


def _theta(network, members, seed=0):
  """[P, D] of initial weights, with biases that are not zero."""
  layout = parameters.Layout(network.shapes())
  rng = np.random.default_rng(seed)
  theta = np.stack([layout.pack(network.initial(rng)) for _ in range(members)])
  theta += rng.normal(0, 0.05, theta.shape)
  return layout, theta.astype(np.float32)


def _images(*leading, shape=SMALL):
  rng = np.random.default_rng(1)
  return rng.integers(0, 256, (*leading, *shape), dtype=np.uint8)


def _slow_convolution(x, b, w, stride):
  """VALID, one output place at a time; x [h, w, c]."""
  kernel = w.shape[0]
  rows, columns = ((side - kernel) // stride + 1 for side in x.shape[:2])
  y = np.empty((rows, columns, w.shape[-1]))
  for i in range(rows):
    for j in range(columns):
      top, left = i * stride, j * stride
      patch = x[top : top + kernel, left : left + kernel]
      y[i, j] = np.einsum('ijc,ijco->o', patch, w) + b
  return y


def slow_q(network, variables, image):
  """Q of one image, as the paper's methods section tells it."""
  variables = [np.asarray(v, float) for v in variables]
  x = image / 255
  for stride in {'nature': (4, 2, 1), 'shallow': (4, 2)}[network.kind]:
    b, w = variables[:2]
    variables = variables[2:]
    x = np.maximum(_slow_convolution(x, b, w, stride), 0)
  x = x.reshape(-1)

  def stream(b0, w0, b1, w1):
    return np.maximum(x @ w0 + b0, 0) @ w1 + b1

  if not network.dueling:
    return stream(*variables)
  advantage = stream(*variables[4:])
  return stream(*variables[:4]) + advantage - advantage.mean()


@pytest.mark.parametrize(
  'dueling, kind', [(False, 'nature'), (True, 'nature'), (False, 'shallow')]
)
def test_both_forms_are_the_sums_of_the_paper(dueling, kind):
  network = conv.ConvNet(SMALL, 3, dueling, kind)
  layout, theta = _theta(network, members=2)
  images = _images(2, 3)
  acting = network.forward(network.prepare(layout.unpack(theta)), images)
  assert acting.shape == (2, 3, 3)
  assert acting.dtype == np.float32
  apply = network.make_sonnet()
  for member in range(2):
    variables = layout.unpack(theta[member])
    learned = apply([tf.constant(v) for v in variables], images[member])
    slow = [slow_q(network, variables, image) for image in images[member]]
    np.testing.assert_allclose(acting[member], slow, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(learned, slow, rtol=1e-4, atol=1e-5)


def test_it_has_the_variables_of_the_paper():
  network = conv.ConvNet((84, 84, 4), 4)
  layers = [tuple(shape) for _, shape in network.shapes()[1::2]]
  assert layers == [
    (8, 8, 4, 32),
    (4, 4, 32, 64),
    (3, 3, 64, 64),
    (7 * 7 * 64, 512),
    (512, 4),
  ]
  assert [shape for _, shape in network.shapes()[::2]] == [
    (shape[-1],) for shape in layers
  ]
  # The number that is known of it for four actions.
  assert parameters.Layout(network.shapes()).size == 1_686_180


def test_the_shallow_one_has_those_of_the_first_paper():
  network = conv.ConvNet((84, 84, 4), 4, kind='shallow')
  layers = [tuple(shape) for _, shape in network.shapes()[1::2]]
  assert layers == [
    (8, 8, 4, 16),
    (4, 4, 16, 32),
    (9 * 9 * 32, 256),
    (256, 4),
  ]


def test_a_dueling_head_has_two_streams_of_512_units():
  network = conv.ConvNet((84, 84, 4), 6, dueling=True)
  heads = dict(network.shapes()[6:])
  weights = [shape for name, shape in heads.items() if name.endswith('/w')]
  assert weights == [(3136, 512), (512, 1), (3136, 512), (512, 6)]


def test_first_weights_have_the_scale_of_their_inputs():
  arrays = conv.ConvNet((84, 84, 4), 4).initial(np.random.default_rng(0))
  for bias, weights in zip(arrays[::2], arrays[1::2]):
    assert weights.dtype == bias.dtype == np.float32
    assert not bias.any()
    scale = 1 / np.sqrt(np.prod(weights.shape[:-1]))
    some = weights.ravel()[:20_000]
    fit = stats.kstest(some, stats.truncnorm(-2, 2, 0, scale).cdf)
    assert fit.pvalue > 0.01


def test_what_is_prepared_does_not_follow_a_theta_that_goes_on():
  network = conv.ConvNet(SMALL, 3)
  layout, values = _theta(network, members=1)
  # TensorFlow shares memory with an array that begins at a multiple of 64.
  memory = np.empty(layout.size + 16, np.float32)
  start = -memory.ctypes.data % 64 // memory.itemsize
  theta = memory[start : start + layout.size][None]
  theta[...] = values
  images = _images(1, 2)
  prepared = network.prepare(layout.unpack(theta))
  before = network.forward(prepared, images)
  theta += 1.0
  np.testing.assert_array_equal(network.forward(prepared, images), before)
  other = network.forward(network.prepare(layout.unpack(theta)), images)
  assert not np.allclose(other, before)


def test_the_form_that_acts_is_traced_once_for_any_number_of_images():
  network = conv.ConvNet(SMALL, 3)
  layout, theta = _theta(network, members=1)
  prepared = network.prepare(layout.unpack(theta))
  for number in (1, 2, 5):
    network.forward(prepared, _images(1, number))
  assert network._call.experimental_get_tracing_count() == 1


@pytest.mark.parametrize('shape', [(35, 84, 4), (84,), (2, 84, 84, 4, 1)])
def test_what_are_no_such_images_is_refused(shape):
  with pytest.raises(ValueError, match='at least 36 x 36 .*, got observations'):
    conv.ConvNet(shape, 3)


def test_the_shallow_one_takes_smaller_images():
  assert conv.ConvNet((20, 20, 4), 3, kind='shallow').shapes()
  with pytest.raises(ValueError, match='at least 20 x 20 pixels'):
    conv.ConvNet((19, 20, 4), 3, kind='shallow')


def _spec(shape, dtype='uint8', maximum=None):
  return environments.Spec(
    'Images-v0',
    shape,
    3,
    observation_dtype=dtype,
    observation_maximum=maximum,
  )


@pytest.mark.parametrize(
  ('shape', 'dtype', 'expected'),
  [
    ((84, 84, 4), 'uint8', 'nature'),
    ((3, 64, 64), 'uint8', 'nature'),
    ((64, 64, 3), 'float32', 'nature'),
    ((96, 96, 3), 'uint8', 'nature'),
    ((84, 84), 'uint8', 'nature'),
    ((4, 64, 64, 3), 'uint8', 'nature'),
    ((210, 160, 3), 'uint8', 'strided'),
    ((10, 10, 4), 'float32', 'strided'),
    ((1, 1, 1), 'float32', 'strided'),
    ((84, 84), 'float32', 'mlp'),
    ((4,), 'float32', 'mlp'),
    ((), 'float32', 'mlp'),
  ],
)
def test_the_shape_of_the_observations_chooses_the_network(
  shape, dtype, expected
):
  spec = _spec(shape, dtype)
  assert conv.chosen('auto', spec) == expected
  if expected != 'mlp':
    network = conv.make(expected, spec, 3)
    # A flat layer of 512 on 64 x 64 x 3 alone would have 6 million.
    assert parameters.Layout(network.shapes()).size < 5_000_000


@pytest.mark.parametrize(
  ('network', 'shape', 'dtype', 'message'),
  [
    ('mlp', (64, 64, 3), 'uint8', 'as 12288 numbers.*network=auto, or use'),
    ('nature', (20, 20, 3), 'uint8', 'at least 36 x 36.*network=auto'),
    ('nature', (4,), 'float32', r'but Images-v0 has .*\(4,\).*network=auto'),
  ],
)
def test_a_network_that_does_not_fit_is_refused_and_auto_always_does(
  network, shape, dtype, message
):
  spec = _spec(shape, dtype)
  with pytest.raises(environments.EnvironmentRefused, match=message):
    conv.chosen(network, spec)
  assert conv.chosen('auto', spec)


@pytest.mark.parametrize('maximum', [1.0, 3.4e38, None])
def test_images_reach_the_convolutions_alike_in_every_form(maximum):
  layout, theta = _theta(conv.make('strided', _spec((20, 14, 3)), 3), 1)
  images = _images(1, 2, shape=(20, 14, 3))

  def q(images, dtype, maximum):
    shape = images.shape[2:]
    network = conv.make('strided', _spec(shape, dtype, maximum), 3)
    acting = network.forward(network.prepare(layout.unpack(theta)), images)
    variables = [tf.constant(v) for v in layout.unpack(theta[0])]
    learned = network.make_sonnet()(variables, images[0])
    np.testing.assert_allclose(acting[0], learned, rtol=1e-4, atol=1e-5)
    return learned

  expected = q(images, 'uint8', 255.0)
  channels_first = images.transpose(0, 1, 4, 2, 3)
  np.testing.assert_allclose(q(channels_first, 'uint8', None), expected)
  scaled = (images / 255).astype(np.float32)
  np.testing.assert_allclose(
    q(scaled, 'float32', maximum), expected, rtol=1e-4, atol=1e-5
  )
  # A stack of one-channel images is their channels, in order.
  stacked = np.moveaxis(images, -1, 2)[..., None]
  np.testing.assert_allclose(q(stacked, 'uint8', None), expected)
