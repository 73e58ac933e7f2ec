"""Packing: what goes in comes out, in NumPy and in TensorFlow."""

import time

import numpy as np
import pytest
import tensorflow as tf

from murmuration.replay import packing
from murmuration.replay import tables


def _fields(layout, *leading):
  rng = np.random.default_rng(0)

  def observation():
    shape = (*leading, *layout.observation_shape)
    if layout.observation_dtype == 'uint8':
      return rng.integers(0, 256, size=shape, dtype=np.uint8)
    return rng.normal(size=shape)

  action = rng.normal(size=(*leading, *layout.action_shape))
  if layout.discrete:
    action = rng.integers(0, 18, size=(*leading, *layout.action_shape))
  return packing.Transition(
    o_tm1=observation(),
    a_tm1=action,
    r_t=rng.normal(size=leading),
    d_t=rng.uniform(size=leading),
    o_t=observation(),
    weight=rng.integers(0, 2, size=leading),
    version=rng.integers(0, 2**24, size=leading),
    written_at=rng.uniform(0, packing.TIME_WRAP_S, size=leading),
  )


LAYOUTS = {
  'vector observation, discrete action': packing.TransitionLayout((4,)),
  'image observation': packing.TransitionLayout((3, 5, 2)),
  'scalar observation': packing.TransitionLayout(()),
  'continuous action': packing.TransitionLayout((4,), (3,), discrete=False),
  'several discrete actions': packing.TransitionLayout((4,), (2,)),
  'bytes': packing.TransitionLayout((3, 5, 2), observation_dtype='uint8'),
  'bytes, continuous action': packing.TransitionLayout(
    (7,), (3,), discrete=False, observation_dtype='uint8'
  ),
}


@pytest.fixture(params=list(LAYOUTS.values()), ids=list(LAYOUTS))
def layout(request):
  return request.param


@pytest.mark.parametrize('leading', [(), (7,), (2, 7), (0, 3)], ids=str)
def test_numpy_fields_come_out_as_they_went_in(layout, leading):
  fields = _fields(layout, *leading)
  packed = layout.pack(*fields)
  assert packed.shape == (*leading, layout.width)
  assert packed.dtype == layout.dtype == layout.observation_dtype
  for name, sent, got in zip(
    fields._fields, fields, layout.unpack(packed), strict=True
  ):
    np.testing.assert_allclose(got, sent, rtol=1e-6, err_msg=name)
    assert got.shape == sent.shape, name
    if name in ('o_tm1', 'o_t'):
      assert got.dtype == layout.observation_dtype


@pytest.mark.parametrize('leading', [(), (7,), (2, 7)], ids=str)
def test_tensors_unpack_to_what_arrays_unpack_to(layout, leading):
  packed = layout.pack(*_fields(layout, *leading))
  static = []

  @tf.function(
    input_signature=[layout.signature(*([None] * len(leading)))],
    autograph=False,
  )
  def unpack(tensor):
    found = layout.unpack(tensor)
    static[:] = [field.shape.as_list() for field in found]
    return found

  for wanted, eager, traced in zip(
    layout.unpack(packed),
    layout.unpack(tf.constant(packed)),
    unpack(packed),
    strict=True,
  ):
    np.testing.assert_array_equal(eager, wanted)
    np.testing.assert_array_equal(traced, wanted)
    assert eager.dtype == traced.dtype == wanted.dtype
  # A network that is built in a traced function needs the sizes of its inputs.
  for shape, wanted in zip(static, layout.unpack(packed), strict=True):
    assert shape == [None] * len(leading) + [*wanted.shape[len(leading) :]]


def test_unpack_works_under_vectorized_map(layout):
  packed = layout.pack(*_fields(layout, 5, 7))
  mapped = tf.vectorized_map(layout.unpack, tf.constant(packed))
  for wanted, got in zip(layout.unpack(packed), mapped, strict=True):
    np.testing.assert_array_equal(got, wanted)


def test_discrete_actions_are_int32_and_exact_up_to_the_bound():
  layout = packing.TransitionLayout((1,))
  actions = np.array([0, 1, 2**24 - 1])
  packed = layout.pack(np.zeros((3, 1)), actions, 0.0, 1.0, np.zeros((3, 1)))
  unpacked = layout.unpack(packed)
  assert unpacked.a_tm1.dtype == np.int32
  np.testing.assert_array_equal(unpacked.a_tm1, actions)


def test_scalars_broadcast():
  layout = packing.TransitionLayout((2,))
  out = layout.pack(np.ones((3, 2)), 1, 2.0, 0.5, np.zeros(2))
  np.testing.assert_array_equal(
    out, np.tile([1, 1, 1, 2, 0.5, 0, 0, 1, 0, 0], (3, 1))
  )


def test_width_and_signature_follow_the_shapes():
  layout = packing.TransitionLayout((4,))
  assert layout.width == 4 + 1 + 1 + 1 + 4 + 1 + 1 + 1
  assert layout.signature().shape == (14,)
  assert layout.signature(16).shape == (16, 14)
  pixels = packing.TransitionLayout((84, 84, 4), observation_dtype='uint8')
  assert pixels.width == 2 * 84 * 84 * 4 + 6 * 4
  assert pixels.signature().dtype == tf.uint8


def test_wrong_shapes_are_refused_with_both_shapes():
  layout = packing.TransitionLayout((4,))
  good = np.zeros((2, 4))
  with pytest.raises(ValueError, match=r'o_tm1 has shape \(2, 3\).*\(4,\)'):
    layout.pack(np.zeros((2, 3)), 0, 0.0, 0.0, good)
  with pytest.raises(ValueError, match=r'\(3,\)'):
    layout.pack(good, 0, np.zeros(3), 0.0, good)
  with pytest.raises(ValueError, match=r'\(2, 11\).*last axis of 14'):
    layout.unpack(np.zeros((2, 11), np.float32))
  for wrong in (np.zeros((2, 14)), tf.zeros((2, 14), tf.float64)):
    with pytest.raises(ValueError, match='are float64.*needs float32'):
      layout.unpack(wrong)
  with pytest.raises(ValueError, match='empty axis'):
    packing.TransitionLayout((4, 0))
  with pytest.raises(ValueError, match='must be float32 or uint8'):
    packing.TransitionLayout((4,), observation_dtype='float64')


def test_pixels_that_are_not_bytes_are_refused():
  layout = packing.TransitionLayout((4,), observation_dtype='uint8')
  pixels = np.zeros((2, 4), np.uint8)
  with pytest.raises(ValueError, match='o_t is float64.*uint8'):
    layout.pack(pixels, 0, 0.0, 0.0, pixels / 255)


@pytest.mark.parametrize('leading', [(), (16,)], ids=str)
def test_a_layout_is_read_back_from_the_signature_of_a_server(
  serve, layout, leading
):
  server = serve(tables.queue('queue', 5, layout.signature(*leading)))
  info = server.localhost_client().server_info()['queue']
  assert packing.from_signature(info.signature) == layout


def test_signatures_of_other_items_have_no_layout():
  for spec in (
    None,
    {'a': tf.TensorSpec((3,), tf.float32)},
    tf.TensorSpec((14,), tf.float32),
    tf.TensorSpec((14,), tf.float32, name='transition'),
    tf.TensorSpec((14,), tf.float32, name='transition.of.other.kinds'),
    *(
      tf.TensorSpec(shape, dtype, name=packing.TransitionLayout((4,)).name)
      for shape, dtype in (
        (None, tf.float32),
        ((8, 15), tf.float32),
        ((14,), tf.float16),
      )
    ),
  ):
    assert packing.from_signature(spec) is None


def test_the_name_of_a_layout_stays():
  # The checkpoints of earlier runs have it.
  name = packing.TransitionLayout((4,)).name
  assert name == 'transition.float32_4.int32_scalar'


def test_ages_survive_the_wrap_and_clocks_that_differ():
  now = 7 * packing.TIME_WRAP_S + 100.0
  written = np.array([90.0, packing.TIME_WRAP_S - 20.0, 100.0, 103.0])
  np.testing.assert_allclose(
    packing.age_s(written, now), [10.0, 120.0, 0.0, 0.0]
  )


@pytest.mark.parametrize('jump_s', [14_000.0, -14_000.0])
def test_a_clock_that_is_set_changes_no_age(monkeypatch, jump_s):
  written, clock = packing.written_now(), time.time
  monkeypatch.setattr(time, 'time', lambda: clock() + jump_s)
  assert packing.age_s(written) < 30
  assert packing.age_s(packing.written_now()) < 30


def test_a_transition_written_now_has_no_age():
  written = np.float32(packing.written_now())
  assert 0 <= packing.age_s(written) < 30
  np.testing.assert_allclose(
    packing.age_s(written, time.time() + 60), 60 + packing.age_s(written), 0.1
  )
