"""ONNX Runtime does what the live policy does."""

import pathlib

import numpy as np
import onnxruntime
import pytest

from murmuration import export
from murmuration import playing
from murmuration import portable
from murmuration.agents import dqn
from murmuration.environment_loops import environments
from tests.murmuration import test_export as kept_policies

ZOO = sorted(pathlib.Path(export.__file__).with_name('zoo').glob('*.npz'))


def _session(data):
  model = export._onnx(portable.Policy(data))
  options = onnxruntime.SessionOptions()
  options.intra_op_num_threads = 1
  return onnxruntime.InferenceSession(
    model, options, providers=['CPUExecutionProvider']
  )


@pytest.mark.parametrize('name', kept_policies.POLICIES)
def test_the_model_equals_the_live_policy_on_1000_observations(name):
  kept = kept_policies._named(name)
  data = export.packed(kept)
  live, session = playing.Live(kept), _session(data)
  size = portable.Policy(data).size
  state, fresh = np.zeros((50, size), np.float32), np.ones(50, bool)
  last = np.random.default_rng(4)
  for observation in kept_policies._observations(kept, 20, 50):
    memory = {'state': state, 'fresh': fresh} if size else {}
    got, *rest = session.run(None, {'observation': observation, **memory})
    want = live(observation)
    assert got.shape == want.shape and got.dtype.kind == want.dtype.kind
    np.testing.assert_allclose(got, want, atol=1e-5, rtol=1e-5)
    fresh = last.random(50) < 0.1
    live.ended(fresh)
    if size:
      (state,) = rest


@pytest.mark.parametrize('path', ZOO, ids=lambda path: path.stem)
def test_every_policy_of_the_zoo_is_the_same_in_both(path):
  data = path.read_bytes()
  ours, session = portable.Policy(data), _session(data)
  assert not ours.size  # none remembers
  shape = (200, *ours.about['observation_shape'])
  observations = np.random.default_rng(1).normal(0, 2, shape)
  observations = observations.astype(ours.about['observation_dtype'])
  (got,) = session.run(None, {'observation': observations})
  want = ours(observations)
  assert got.shape == want.shape and got.dtype.kind == want.dtype.kind
  np.testing.assert_allclose(got, want, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
  ('shape', 'dtype', 'network'),
  [((84, 84, 4), 'uint8', 'nature'), ((4, 3, 33, 33), 'float32', 'strided')],
)
def test_convolutions_equal_those_of_numpy(shape, dtype, network):
  spec = environments.Spec('Images-v0', shape, 5, observation_dtype=dtype)
  agent = dqn.DQN(dqn.Config(network=network, dueling=True), spec)
  operations = agent.operations(agent.initial(0))[:-1]  # the values
  images = np.random.default_rng(1).integers(0, 256, (6, *shape)).astype(dtype)

  class Values:
    about = {
      'agent': 'dqn',
      'observation_shape': shape,
      'observation_dtype': dtype,
    }
    size = 0

  Values.operations = operations
  model = export._onnx(Values)
  session = onnxruntime.InferenceSession(
    model, providers=['CPUExecutionProvider']
  )
  (got,) = session.run(None, {'observation': images})
  want, _ = portable.apply(np, operations, images, None, None)
  np.testing.assert_allclose(got, want, atol=1e-5 * np.abs(want).max())


def test_the_model_says_what_it_is():
  kept = kept_policies._named('lstm')
  session = _session(export.packed(kept))
  assert [i.name for i in session.get_inputs()] == [
    'observation', 'state', 'fresh',
  ]  # fmt: skip
  assert [o.name for o in session.get_outputs()] == ['action', 'next_state']
  assert session.get_inputs()[0].shape == ['N', 4]
  about = session.get_modelmeta().custom_metadata_map
  assert about['agent'] == 'impala' and about['environment'] == 'CartPole-v1'
