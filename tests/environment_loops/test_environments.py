"""One environment at a time: specs, episode ends, actions, faults."""

from absl.testing import absltest
import dm_env
from dm_env import test_utils
import gymnasium
import numpy as np
import pytest

from murmuration.environment_loops import actions as actions_lib
from murmuration.environment_loops import environments
from tests import counting

DISCRETE = ('CartPole-v1', 'Acrobot-v1', 'MountainCar-v0', 'LunarLander-v3')
CONTINUOUS = ('Pendulum-v1', 'Hopper-v5')


def _actions(environment_spec, num, seed=0):
  random = np.random.default_rng(seed)
  if environment_spec.discrete:
    return random.integers(environment_spec.num_actions, size=num)
  return random.uniform(-1, 1, (num, *environment_spec.action_shape))


class _KeepsTheDmEnvContract(test_utils.EnvironmentTestMixin):
  def make_action_sequence(self):
    for _ in range(250):
      yield self.make_action()


class CartPoleKeepsTheDmEnvContractTest(
  _KeepsTheDmEnvContract, absltest.TestCase
):
  def make_object_under_test(self):
    return environments.make('CartPole-v1', seed=0)


class PendulumKeepsTheDmEnvContractTest(
  _KeepsTheDmEnvContract, absltest.TestCase
):
  def make_object_under_test(self):
    return environments.make('Pendulum-v1', seed=0)


class CountingKeepsTheDmEnvContractTest(
  _KeepsTheDmEnvContract, absltest.TestCase
):
  def make_object_under_test(self):
    return counting.make()


@pytest.mark.parametrize('name', DISCRETE + CONTINUOUS)
def test_steps_equal_those_of_gymnasium_with_the_same_seed(name):
  environment = environments.make(name, seed=7)
  reference = gymnasium.make(name)
  low = reference.action_space.low if name in CONTINUOUS else None
  timestep = environment.reset()
  observation, _ = reference.reset(seed=7)
  ends = 0
  for action in _actions(environment.spec, 600):
    assert timestep.observation.dtype == np.float32
    np.testing.assert_array_equal(
      timestep.observation, observation.astype(np.float32)
    )
    native = int(action) if low is None else (-low * action).astype(low.dtype)
    timestep = environment.step(action)
    observation, reward, terminated, truncated, _ = reference.step(native)
    # Scaling [-1, 1] to the bounds may round the action's last bit.
    np.testing.assert_allclose(timestep.reward, reward, rtol=1e-5, atol=1e-6)
    assert timestep.last() == (terminated or truncated)
    if timestep.last():
      ends += 1
      assert timestep.discount == (0.0 if terminated else 1.0)
      np.testing.assert_array_equal(
        timestep.observation, observation.astype(np.float32)
      )
      timestep = environment.step(action)
      assert timestep.first()
      observation, _ = reference.reset()
  assert ends >= 1
  environment.close()
  reference.close()


def test_specs_say_what_the_environments_are():
  cartpole = environments.spec('CartPole-v1')
  assert cartpole.observation_shape == (4,)
  assert cartpole.num_actions == 2
  assert cartpole.action_shape == ()
  assert cartpole.max_episode_steps == 500
  assert environments.spec('LunarLander-v3').num_actions == 4
  pendulum = environments.spec('Pendulum-v1')
  assert pendulum.num_actions is None and not pendulum.discrete
  assert pendulum.action_shape == (1,)
  assert pendulum.action_minimum == (-2.0,)
  assert pendulum.action_maximum == (2.0,)


@pytest.mark.parametrize('name', DISCRETE + CONTINUOUS)
def test_timesteps_conform_to_the_dm_env_specs(name):
  environment = environments.make(name, seed=0)
  first = environment.reset()
  assert first.first() and first.reward is None and first.discount is None
  action = environment.action_spec().generate_value()
  timestep = environment.step(action)
  environment.observation_spec().validate(timestep.observation)
  environment.reward_spec().validate(timestep.reward)
  environment.discount_spec().validate(timestep.discount)
  environment.close()


def test_a_fallen_pole_terminates_with_discount_zero():
  environment = environments.make('CartPole-v1', seed=0)
  timestep = environment.reset()
  while not timestep.last():
    timestep = environment.step(1)
  assert timestep.discount == 0.0
  assert abs(timestep.observation[2]) > 0.2095 or (
    abs(timestep.observation[0]) > 2.4
  )


def test_a_time_limit_truncates_with_discount_one():
  environment = environments.make('MountainCar-v0', seed=0)
  timestep = environment.reset()
  for t in range(200):
    assert not timestep.last(), t
    timestep = environment.step(1)
  assert timestep.last()
  assert timestep.discount == 1.0


def test_termination_wins_over_truncation_in_the_same_step(register):
  name = register(max_episode_steps=3, terminate_at=3)
  environment = environments.make(name, seed=0)
  environment.reset()
  environment.step(0)
  environment.step(0)
  timestep = environment.step(0)
  assert timestep.step_type == dm_env.StepType.LAST
  assert timestep.discount == 0.0


def test_observations_are_copies_not_the_environments_buffer(register):
  box = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
  environment = environments.make(register(observations=box), seed=0)
  first = environment.reset().observation
  environment.step(1)
  np.testing.assert_array_equal(first, [0, 0])


def test_the_seed_fixes_all_episodes_and_they_differ():
  def first_observations(seed):
    environment = environments.make('CartPole-v1', seed)
    return np.stack([environment.reset().observation for _ in range(3)])

  np.testing.assert_array_equal(first_observations(3), first_observations(3))
  assert len(np.unique(first_observations(3), axis=0)) == 3
  assert not np.array_equal(first_observations(3), first_observations(4))


def test_discrete_actions_count_from_zero_whatever_the_start(register):
  name = register(actions=gymnasium.spaces.Discrete(3, start=-1))
  environment = environments.make(name, seed=0)
  environment.reset()
  assert environment.spec.num_actions == 3
  assert [environment.step(a).reward for a in range(3)] == [-1, 0, 1]


@pytest.mark.parametrize('action', [-1, 2, 0.0, np.array([1])])
def test_an_action_that_does_not_exist_is_refused(action):
  environment = environments.make('CartPole-v1', seed=0)
  environment.reset()
  with pytest.raises(ValueError, match=r'CartPole-v1 got action.*0 \.\. 1'):
    environment.step(action)


def test_canonical_actions_reach_the_bounds_and_are_clipped(register):
  low, high = np.array([-3.0], np.float32), np.array([0.5], np.float32)
  name = register(actions=gymnasium.spaces.Box(low, high))
  environment = environments.make(name, seed=0)
  environment.reset()
  rewards = [
    environment.step(np.array([a], np.float32)).reward
    for a in (-1, 0, 1, -50, np.inf)
  ]
  np.testing.assert_allclose(rewards, [-3, -1.25, 0.5, -3, 0.5])


def test_bounds_whose_difference_overflows_are_reached():
  box = gymnasium.spaces.Box(-1e308, 1e308, (3,), np.float64)
  got = actions_lib.to_native('Wide-v0', box, np.array([-1.0, 0.0, 1.0]))
  np.testing.assert_array_equal(got, [-1e308, 0.0, 1e308])


def test_a_nan_action_is_refused_before_it_reaches_the_environment():
  environment = environments.make('Pendulum-v1', seed=0)
  environment.reset()
  with pytest.raises(ValueError, match='NaN action'):
    environment.step(np.array([np.nan], np.float32))
  with pytest.raises(ValueError, match=r'needs floats of shape \(1,\)'):
    environment.step(np.float32(0))


@pytest.mark.parametrize('value', [np.nan, np.inf, 1e300])
def test_a_non_finite_observation_is_a_fault_that_says_where(register, value):
  name = register(bad_observation_at=2, bad_value=value)
  environment = environments.make(name, seed=0)
  environment.reset()
  environment.step(0)
  with (
    np.errstate(over='ignore'),
    pytest.raises(environments.EnvironmentFault) as error,
  ):
    environment.step(0)
  for part in (name, 'observation', 'step 2', 'component (1,)'):
    assert part in str(error.value)


def test_a_non_finite_first_observation_is_a_fault_at_step_0(register):
  environment = environments.make(register(bad_observation_at=0), seed=0)
  with pytest.raises(
    environments.EnvironmentFault, match=r'observation nan .*step 0'
  ):
    environment.reset()


@pytest.mark.parametrize('value', [np.nan, -np.inf])
def test_a_non_finite_reward_is_a_fault_that_says_where(register, value):
  name = register(bad_reward_at=1, bad_value=value)
  environment = environments.make(name, seed=0)
  environment.reset()
  match = rf'{name} returned reward {value} at step 1'
  with pytest.raises(environments.EnvironmentFault, match=match):
    environment.step(0)


def test_a_fault_counts_steps_from_the_start_of_its_episode(register):
  name = register(truncate_at=3, bad_reward_at=2, bad_from_episode=1)
  environment = environments.make(name, seed=0)
  environment.reset()
  with pytest.raises(environments.EnvironmentFault, match='at step 2 of an'):
    for _ in range(9):
      environment.step(0)


def test_an_observation_outside_the_declared_shape_is_a_fault(register):
  environment = environments.make(register(bad_shape=True), seed=0)
  with pytest.raises(environments.EnvironmentFault, match=r'shape \(3,\)'):
    environment.reset()


@pytest.mark.parametrize('seed', [-1, 1.5, True, None])
def test_a_seed_that_is_no_seed_is_refused(seed):
  with pytest.raises(ValueError, match='seed='):
    environments.make('CartPole-v1', seed)


def test_rendering_gives_frames():
  environment = environments.make('CartPole-v1', 0, render_mode='rgb_array')
  environment.reset()
  frame = environment.render()
  assert frame.ndim == 3 and frame.dtype == np.uint8
  environment.close()


@pytest.mark.parametrize(
  'made, limit', [('Endless()', 7), ('wrappers.TimeLimit(Endless(), 3)', 3)]
)
def test_what_a_function_makes_has_the_limit_that_its_class_says(
  tmp_path, monkeypatch, made, limit
):
  monkeypatch.syspath_prepend(tmp_path)
  name = f'limited_by_{limit}'
  (tmp_path / f'{name}.py').write_text(f"""
import gymnasium
from gymnasium import spaces, wrappers

class Endless(gymnasium.Env):
  max_episode_steps = 7
  observation_space = spaces.Box(-1, 1, (2,))
  action_space = spaces.Discrete(2)

  def reset(self, *, seed=None, options=None):
    super().reset(seed=seed)
    return self.observation_space.sample(), {{}}

  def step(self, action):
    return self.observation_space.sample(), 1.0, False, False, {{}}

def make():
  return {made}
""")
  assert environments.spec(f'{name}:make').max_episode_steps == limit
  environment = environments.make(f'{name}:make', seed=0)
  environment.reset()
  steps = 1
  while not environment.step(0).last():
    steps += 1
  assert steps == limit


@pytest.mark.parametrize('high, noted', [(2**24, False), (2**40, True)])
def test_whole_numbers_that_float32_rounds_are_noted(high, noted, capfd):
  class Counts(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, high, (1,), np.int64)
    action_space = gymnasium.spaces.Discrete(2)

  name = f'Counts{high}-v0'
  gymnasium.register(name, entry_point=Counts)
  try:
    environments.spec(name)
  finally:
    del gymnasium.registry[name]
  assert (name in capfd.readouterr().err) == noted
