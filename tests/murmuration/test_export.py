"""Exported policies do what the live ones do."""

import functools
import json
import subprocess
import sys

import gymnasium
from gymnasium.envs.classic_control import cartpole
import numpy as np
import pytest
import tensorflow as tf

from murmuration import export
from murmuration import playing
from murmuration import portable
from murmuration.agents import base
from murmuration.agents import d4pg
from murmuration.agents import ddpg
from murmuration.agents import dqn
from murmuration.agents import impala
from murmuration.agents import ppo
from murmuration.agents import sac
from murmuration.environment_loops import environments
from murmuration.environment_loops import evaluation
from murmuration.run_records import packages
from murmuration.run_records import run_directory


class Parts(gymnasium.Env):
  """Actions of two parts; a Dict as observation."""

  action_space = gymnasium.spaces.MultiDiscrete([2, 3], start=[0, 7])
  observation_space = gymnasium.spaces.Dict(
    {
      'at': gymnasium.spaces.Discrete(3),
      'on': gymnasium.spaces.Box(-1, 1, (2,)),
    }
  )


PENDULUM = 'Pendulum-v1'
CARTPOLE = 'CartPole-v1'
POLICIES = {
  'dqn': (dqn.DQN, dqn.Config(), CARTPOLE),
  'parts': (dqn.DQN, dqn.Config(), f'{__name__}:Parts'),
  'dueling': (dqn.DQN, dqn.Config(dueling=True), CARTPOLE),
  'one layer dueling': (
    dqn.DQN,
    dqn.Config(dueling=True, hidden_sizes=(32,), activation='relu'),
    CARTPOLE,
  ),
  'ppo': (ppo.PPO, ppo.Config(), CARTPOLE),
  'gaussian': (ppo.PPO, ppo.Config(normalize_observations=True), PENDULUM),
  'free sigma': (ppo.PPO, ppo.Config(free_sigma=True), PENDULUM),
  'tanh mean': (ppo.PPO, ppo.Config(tanh_mean=True), PENDULUM),
  'ddpg': (ddpg.DDPG, ddpg.Config(), PENDULUM),
  'd4pg': (d4pg.D4PG, d4pg.Config(normalize_observations=True), PENDULUM),
  'sac': (sac.SAC, sac.Config(normalize_observations=True), PENDULUM),
  'stack': (
    impala.IMPALA,
    impala.Config(stack=4, shared_torso=False, normalize_observations=True),
    PENDULUM,
  ),
  'lstm': (impala.IMPALA, impala.Config(lstm_size=16), CARTPOLE),
  'lstm and stack': (
    impala.IMPALA,
    impala.Config(lstm_size=16, stack=3, activation='relu'),
    PENDULUM,
  ),
}


def _kept(agent):
  """An agent with random parameters, of a trained one's size."""
  rng = np.random.default_rng(0)
  theta = agent.initial(1)
  theta = theta + 0.3 * rng.standard_normal(len(theta)).astype(np.float32)
  for variable in agent.layout.variables:
    if variable.name == 'normalizer/variance':
      theta[variable.slice] = rng.uniform(0.1, 4, variable.size)
  return playing.Kept(agent, theta.astype(np.float32), 'a test')


def _named(name):
  agent, config, environment = POLICIES[name]
  return _kept(agent(config, environments.spec(environment)))


def _observations(kept, steps, rows):
  shape = (steps, rows, *kept.agent.spec.observation_shape)
  return np.random.default_rng(3).normal(0, 2, shape).astype(np.float32)


def test_a_policy_takes_and_gives_what_the_environment_itself_has():
  policy, space = export.policy(_named('parts')), Parts.action_space
  for _ in range(9):
    seen = Parts.observation_space.sample()
    action = policy(seen)
    assert space.contains(action)
    flat = gymnasium.spaces.flatten(Parts.observation_space, seen)
    np.testing.assert_array_equal(policy(flat), action)
    np.testing.assert_array_equal(policy([flat, flat]), [action, action])
  for wrong in ({'at': 1}, {'at': -1, 'on': np.zeros(2)}):
    with pytest.raises(ValueError, match='Parts'):
      policy(wrong)


@pytest.mark.parametrize('name', POLICIES)
def test_the_exported_policy_equals_the_live_one(name):
  kept = _named(name)
  live, ours = playing.Live(kept), portable.Policy(export.packed(kept))
  last = np.random.default_rng(4)
  for observation in _observations(kept, 20, 50):  # 1,000 of them
    want, got = live(observation), ours(observation)
    assert got.shape == want.shape and got.dtype.kind == want.dtype.kind
    np.testing.assert_allclose(got, want, atol=1e-5, rtol=1e-5)
    ends = last.random(50) < 0.1
    live.ended(ends)
    ours.ended(ends)


@pytest.mark.parametrize(
  ('shape', 'dtype', 'network'),
  [
    ((84, 84, 4), 'uint8', 'nature'),
    ((3, 40, 42), 'uint8', 'auto'),
    ((21, 17), 'uint8', 'strided'),
    ((4, 3, 33, 33), 'float32', 'strided'),
  ],
)
def test_convolutions_in_numpy_equal_those_of_tensorflow(shape, dtype, network):
  spec = environments.Spec('Images-v0', shape, 5, observation_dtype=dtype)
  config = dqn.Config(network=network, dueling=True)
  agent = dqn.DQN(config, spec)
  theta = agent.initial(0)
  images = np.random.default_rng(1).integers(0, 256, (6, *shape)).astype(dtype)
  if dtype == 'float32':
    images /= 255
  want = agent.values()(theta[None], images[None])[0]
  *values, _ = agent.operations(theta)
  got, _ = portable.apply(np, values, images, None, None)
  np.testing.assert_allclose(got, want, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
  'name', ['dueling', 'parts', 'gaussian', 'lstm and stack']
)
def test_a_saved_model_equals_the_live_policy(name, tmp_path):
  kept = _named(name)
  policy = portable.Policy(export.packed(kept))
  export._save_model(policy, tmp_path / 'model')
  act = tf.saved_model.load(str(tmp_path / 'model')).signatures[
    'serving_default'
  ]
  live = playing.Live(kept)
  state, fresh = np.zeros((250, policy.size), np.float32), np.ones(250, bool)
  for observation in _observations(kept, 4, 250):
    memory = {'state': tf.constant(state), 'fresh': tf.constant(fresh)}
    found = act(
      observation=tf.constant(observation), **(memory if policy.size else {})
    )
    np.testing.assert_allclose(
      found['action'], live(observation), atol=1e-5, rtol=1e-5
    )
    fresh = np.zeros(250, bool)
    state = found.get('state', state)


def test_a_saved_model_says_of_itself_what_the_file_says(tmp_path, monkeypatch):
  kept = _named('ppo')
  about = {'score': 1.5, 'interval': [1.0, 2.0], 'episodes': 9}
  monkeypatch.setattr(export, 'scored', lambda *unused: about)
  monkeypatch.setattr(export.playing, 'load', lambda run: kept)
  monkeypatch.setattr(export.run_directory, 'open', lambda path: path)
  more = {'score': 9, 'code': 'abc'}
  file = export.export(tmp_path, to=tmp_path / 'a.npz', **more)
  model = export.export(tmp_path, 'savedmodel', tmp_path / 'model', **more)
  found = json.loads((model / 'assets.extra' / 'about.json').read_text())
  assert found == portable.Policy(file.read_bytes()).about
  assert found['score'] == 1.5 and found['code'] == 'abc'
  # It is looked for before episodes are played.
  monkeypatch.setattr(export.playing, 'evaluate', None)
  with pytest.raises(FileExistsError, match='model is there already'):
    export.export(tmp_path, 'savedmodel', tmp_path / 'model', score=9)


def test_the_file_needs_numpy_alone(tmp_path):
  kept = _named('gaussian')
  (tmp_path / 'policy.py').write_text(export._source(export.packed(kept)))
  observation = _observations(kept, 1, 3)[0]
  np.save(tmp_path / 'observation.npy', observation)
  code = (
    'import sys, numpy as np\n'
    'before = set(sys.modules)\n'
    'sys.path.insert(0, ".")\n'
    'from policy import policy\n'
    'np.save("action.npy", policy(np.load("observation.npy")))\n'
    'new = {name.partition(".")[0] for name in set(sys.modules) - before}\n'
    'assert new - set(sys.stdlib_module_names) <= {"policy", "numpy"}, new\n'
  )
  subprocess.run(
    [sys.executable, '-I', '-c', code], cwd=tmp_path, check=True, timeout=60
  )
  np.testing.assert_allclose(
    np.load(tmp_path / 'action.npy'),
    playing.Live(kept)(observation),
    atol=1e-5,
  )


def test_one_observation_gives_one_action_and_a_wrong_one_is_refused():
  kept = _named('ddpg')
  for policy in (playing.Live(kept), portable.Policy(export.packed(kept))):
    assert policy(np.zeros(3)).shape == (1,)
    assert policy(np.zeros((2, 3))).shape == (2, 1)
    for wrong, said in (
      (np.zeros(4), r'\(4,\)'),
      (np.zeros((0, 3)), r'\(0, 3\)'),
    ):
      with pytest.raises(ValueError, match=rf'shape {said}.*\(3,\).*1 up'):
        policy(wrong)


def test_what_is_no_observation_is_refused():
  policy = playing.Live(_named('ddpg'))
  for wrong, said in (
    ({'position': [0, 0]}, r'shape \(\).*\(3,\)'),
    ('abc', r'shape \(\).*\(3,\)'),
    ([0.0, np.nan, 0.0], 'not finite'),
  ):
    with pytest.raises(ValueError, match=said):
      policy(wrong)


@pytest.mark.parametrize('name', ['ddpg', 'lstm and stack'])
def test_numbers_that_are_not_finite_are_refused_by_both(name):
  kept = _named(name)
  for policy in (playing.Live(kept), portable.Policy(export.packed(kept))):
    for wrong in (np.nan, np.inf, 1e300):  # float32 has no 1e300
      with pytest.raises(ValueError, match='the observation is not finite'):
        policy([0.0, wrong, 0.0])
    policy([0.0, 1e30, 0.0])


class Unclosed(cartpole.CartPoleEnv):
  """Ends the process where it is closed, as some simulators do."""

  max_episode_steps = 9

  def close(self):
    sys.exit(3)


def test_an_environment_that_cannot_be_closed_costs_no_policy():
  spec = environments.spec(f'{__name__}:Unclosed')
  policy = playing.Live(_kept(dqn.DQN(dqn.Config(), spec)))
  assert policy(np.zeros(4)) in (0, 1)


def test_images_of_bytes_are_taken_as_bytes_alone():
  spec = environments.Spec(CARTPOLE, (12, 12), 2, observation_dtype='uint8')
  config = dqn.Config(network='strided', dueling=True)
  kept = _kept(dqn.DQN(config, spec))
  image = np.random.default_rng(3).integers(0, 256, (12, 12), np.uint8)
  for policy in (playing.Live(kept), portable.Policy(export.packed(kept))):
    action = policy(image)
    for same in (image.astype(int), image.tolist(), image.astype('>u2')):
      assert policy(same) == action
    wide = image.astype(int)
    for other in (image / 255, image.astype(np.float32), wide + 9, wide - 9):
      with pytest.raises(ValueError, match=r'images of bytes, 0 to 255'):
        policy(other)


def test_another_number_of_episodes_than_it_remembers_is_refused():
  kept = _named('stack')
  for policy in (playing.Live(kept), portable.Policy(export.packed(kept))):
    policy(np.zeros((2, 3)))
    with pytest.raises(ValueError, match='remembers 2 episodes'):
      policy(np.zeros((3, 3)))
    policy.reset()
    policy(np.zeros((3, 3)))


def test_a_score_has_the_interval_of_its_mean(tmp_path, monkeypatch):
  run = run_directory.create(tmp_path / 'run', {'seed': 3}, {}, command='it')
  returns = np.array([1.0, 2.0, 3.0, 6.0])
  result = evaluation.VectorResult(returns, 0)
  monkeypatch.setattr(playing, 'evaluate', lambda *unused: result)
  found = export.scored(run, _named('dqn'), 4)
  # Of the sample; the deviation of the whole has one more in its denominator.
  half = 1.96 * np.std(returns, ddof=1) / np.sqrt(4)
  assert found['interval'] == [round(3 - half, 2), round(3 + half, 2)]
  assert (found['score'], found['episodes']) == (3.0, 4)
  assert (found['seed'], found['command']) == (3, 'it')


def test_a_score_is_told(tmp_path, monkeypatch, capsys):
  run = run_directory.create(tmp_path / 'run', {'seed': 3}, {}, command='it')
  result = evaluation.VectorResult(np.array([1.0, 2.0, 3.0, 6.0]), 0)
  monkeypatch.setattr(playing, 'load', lambda run: _named('dqn'))
  monkeypatch.setattr(playing, 'evaluate', lambda *unused: result)
  monkeypatch.setattr(sys, 'path', [*sys.path])
  monkeypatch.setattr(sys, 'argv', ['export', str(run.path), '--score=4'])
  assert export.main() == 0
  assert capsys.readouterr().out.splitlines() == [
    'mean return 3.0 [0.9, 5.1] over 4 episodes',
    str(run.path / 'policy.py'),
  ]


def test_a_score_that_cannot_be_is_a_sentence(tmp_path, monkeypatch, capsys):
  def broken(*unused):
    raise environments.EnvironmentFault('step 3 returned NaN')

  run = run_directory.create(tmp_path / 'run', {}, {})
  monkeypatch.setattr(playing, 'load', lambda run: _named('dqn'))
  monkeypatch.setattr(playing, 'evaluate', broken)
  monkeypatch.setattr(sys, 'path', [*sys.path])
  monkeypatch.setattr(sys, 'argv', ['export', str(run.path), '--score=2'])
  assert export.main() == 1
  assert 'No score: step 3 returned NaN' in capsys.readouterr().err


def test_an_agent_without_operations_and_other_formats_are_refused(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(packages, '_installed', lambda module: False)
  formats = (('onnx', 'pip install onnx'), ('torch', 'numpy, savedmodel'))
  for format, said in formats:
    with pytest.raises(ValueError, match=said):
      export.export(tmp_path, format)
  spec = environments.spec(CARTPOLE)
  own = ppo.PPO(ppo.Config(), spec)
  own.operations = functools.partial(base.Agent.operations, own)
  with pytest.raises(ValueError, match='cannot be exported'):
    export.packed(_kept(own))


@pytest.mark.parametrize(
  'format, name, said',
  [
    ('numpy', 'p.onnx', 'numpy ends in .py or .npz. Give .* the format onnx'),
    ('numpy', 'p', "ends in ''; the format numpy ends in .py or .npz"),
    ('savedmodel', 'p.py', 'savedmodel is a directory. .* the format numpy'),
  ],
)
def test_a_file_that_would_be_taken_for_another_is_refused(
  tmp_path, format, name, said
):
  run = run_directory.create(tmp_path / 'run', {}, {})
  with pytest.raises(ValueError, match=said):
    export.export(run.path, format, tmp_path / name)
  assert not (tmp_path / name).exists()


def test_bounds_whose_difference_overflows_are_reached():
  bounds = (np.full(1, -1e308), np.full(1, 1e308), '<f8')
  got, _ = portable.apply(
    np, [['bound', *bounds]], np.array([[-1.0], [0.0], [1.0]]), None, None
  )
  np.testing.assert_array_equal(got[:, 0], [-1e308, 0.0, 1e308])
