"""K environments at once against K gymnasium environments one by one."""

import gymnasium
import numpy as np
import pytest

from murmuration.environment_loops import environments
from murmuration.environment_loops import vector

# CartPole-v0 is here for its other time limit.
pytestmark = pytest.mark.filterwarnings('ignore:.*CartPole-v0 is out of date')

NAMES = (
  'CartPole-v1',
  'CartPole-v0',
  'Acrobot-v1',
  'MountainCar-v0',
  'LunarLander-v3',
  'Pendulum-v1',
)


def _actions(environment, random):
  if environment.spec.discrete:
    return random.integers(
      environment.spec.num_actions, size=environment.num, dtype=np.int32
    )
  shape = (environment.num, *environment.spec.action_shape)
  return random.uniform(-1, 1, shape).astype(np.float32)


def _arrays(step):
  assert step.valid is None
  return step[:-1]


def _native(space, action):
  if isinstance(space, gymnasium.spaces.Discrete):
    return int(action) + int(space.start)
  # As float32, NumPy 2 would compute the torque of Pendulum in it.
  return (space.high * action).astype(space.dtype).astype(np.float64)


@pytest.mark.parametrize('name', NAMES)
def test_each_environment_is_a_gymnasium_environment_with_its_seed(name):
  num = 4
  environment = vector.make_vector(name, num, seed=11)
  singles = [gymnasium.make(name) for _ in range(num)]
  seeds = vector.environment_seeds(11, num)
  expected = np.stack(
    [s.reset(seed=k)[0] for s, k in zip(singles, seeds, strict=True)]
  )
  acted_on = environment.reset()
  random = np.random.default_rng(0)
  ends = 0
  for _ in range(520):
    np.testing.assert_allclose(acted_on, expected, rtol=1e-5, atol=1e-6)
    actions = _actions(environment, random)
    step = environment.step(actions)
    for index, single in enumerate(singles):
      observation, reward, terminated, truncated, _ = single.step(
        _native(single.action_space, actions[index])
      )
      np.testing.assert_allclose(
        step.observation[index], observation, rtol=1e-5, atol=1e-6
      )
      np.testing.assert_allclose(
        step.reward[index], reward, rtol=1e-5, atol=1e-6
      )
      assert step.last[index] == (terminated or truncated)
      assert step.discount[index] == (0.0 if terminated else 1.0)
      if step.last[index]:
        ends += 1
        observation, _ = single.reset()
      expected[index] = observation
    acted_on = step.next_observation
  assert ends >= num
  environment.close()
  for single in singles:
    single.close()


@pytest.mark.parametrize('name', NAMES)
def test_shapes_and_types_are_as_said(name):
  environment = vector.make_vector(name, 3, seed=0)
  assert environment.num == 3
  assert environment.spec == environments.spec(name)
  shape = (3, *environment.spec.observation_shape)
  observation = environment.reset()
  assert observation.shape == shape and observation.dtype == np.float32
  step = environment.step(_actions(environment, np.random.default_rng(0)))
  for array in (step.observation, step.next_observation):
    assert array.shape == shape and array.dtype == np.float32
    assert array.flags.c_contiguous
  for array, dtype in (
    (step.reward, np.float32),
    (step.discount, np.float32),
    (step.last, np.bool_),
  ):
    assert array.shape == (3,) and array.dtype == dtype
  environment.close()


def test_only_where_an_episode_ended_is_the_next_observation_another():
  environment = vector.make_vector('CartPole-v1', 8, seed=0)
  environment.reset()
  random = np.random.default_rng(0)
  ended = 0
  for _ in range(300):
    step = environment.step(_actions(environment, random))
    same = (step.observation == step.next_observation).all(axis=1)
    np.testing.assert_array_equal(same, ~step.last)
    assert (np.abs(step.next_observation[step.last]) <= 0.05).all()
    ended += step.last.sum()
  assert ended > 50


def test_cartpole_that_stays_up_is_truncated_at_exactly_500_steps():
  environment = vector.make_vector('CartPole-v1', 2, seed=1)
  observation = environment.reset()
  for t in range(1, 1001):
    # Leaning and turning together is what pushes the pole over: push back.
    lean = observation @ np.array([0.1, 0.3, 1.0, 1.0], np.float32)
    step = environment.step((lean > 0).astype(np.int32))
    np.testing.assert_array_equal(step.last, t % 500 == 0)
    np.testing.assert_array_equal(step.discount, 1.0)
    np.testing.assert_array_equal(step.reward, 1.0)
    observation = step.next_observation


def test_an_episode_without_a_limit_is_truncated_where_it_is_told_to(register):
  environment = vector.make_vector(register(), 2, seed=0, max_steps=3)
  environment.reset()
  steps = [environment.step(np.zeros(2, np.int64)) for _ in range(7)]
  ends = [step.last.tolist() for step in steps]
  assert ends == [[t in (2, 5)] * 2 for t in range(7)]
  assert steps[2].observation[:, 0].tolist() == [3.0, 3.0]
  assert all(step.discount.tolist() == [1.0, 1.0] for step in steps)


def test_a_limit_of_the_environment_s_own_stands():
  environment = vector.make_vector('CartPole-v1', 1, seed=0, max_steps=2)
  environment.reset()
  steps = [environment.step(np.zeros(1, np.int32)) for _ in range(3)]
  assert not any(step.last[0] for step in steps)


def test_no_step_is_spent_on_a_reset():
  """Each reward of CartPole is 1, and each action moves the cart."""
  environment = vector.make_vector('CartPole-v1', 4, seed=2)
  observation = environment.reset()
  random = np.random.default_rng(2)
  for _ in range(200):
    actions = _actions(environment, random)
    step = environment.step(actions)
    np.testing.assert_array_equal(step.reward, 1.0)
    faster = step.observation[:, 1] > observation[:, 1]
    np.testing.assert_array_equal(faster, actions == 1)
    observation = step.next_observation


def test_earlier_batches_are_not_written_to_later():
  for name in ('CartPole-v1', 'Acrobot-v1'):
    environment = vector.make_vector(name, 2, seed=0)
    kept = [environment.reset()]
    for _ in range(3):
      kept.extend(_arrays(environment.step(np.zeros(2, np.int32))))
    copies = [array.copy() for array in kept]
    for _ in range(30):
      environment.step(np.ones(2, np.int32))
    for array, copy in zip(kept, copies, strict=True):
      np.testing.assert_array_equal(array, copy)
    environment.close()


@pytest.mark.parametrize('name', ['CartPole-v1', 'MountainCar-v0'])
def test_a_second_reset_starts_new_episodes_with_full_length(name):
  environment = vector.make_vector(name, 2, seed=0)
  first = environment.reset()
  for _ in range(5):
    environment.step(np.zeros(2, np.int64))
  second = environment.reset()
  assert not np.array_equal(first, second)
  if name == 'MountainCar-v0':
    for t in range(1, 201):
      last = environment.step(np.ones(2, np.int64)).last
      np.testing.assert_array_equal(last, t == 200)


def test_the_same_seed_gives_the_same_steps_and_another_other_ones():
  def rollout(seed):
    environment = vector.make_vector('CartPole-v1', 3, seed)
    random = np.random.default_rng(0)
    seen = [environment.reset()]
    for _ in range(100):
      step = environment.step(_actions(environment, random))
      seen.extend([step.observation, step.next_observation])
    return np.stack(seen)

  np.testing.assert_array_equal(rollout(5), rollout(5))
  assert not np.array_equal(rollout(5), rollout(6))


def test_seeds_of_neighbouring_bases_share_nothing():
  seeds = [s for base in range(50) for s in vector.environment_seeds(base, 31)]
  assert len(set(seeds)) == len(seeds)
  assert max(seeds) < 2**31
  assert vector.environment_seeds(3, 31)[:4] == vector.environment_seeds(3, 4)


def test_an_environment_does_not_feel_its_neighbours():
  few = vector.make_vector('CartPole-v1', 1, seed=9)
  many = vector.make_vector('CartPole-v1', 5, seed=9)
  np.testing.assert_array_equal(few.reset(), many.reset()[:1])
  random = np.random.default_rng(0)
  for _ in range(200):
    actions = _actions(many, random)
    one = few.step(actions[:1])
    all_five = many.step(actions)
    for single, batch in zip(_arrays(one), _arrays(all_five), strict=True):
      np.testing.assert_array_equal(single, batch[:1])


def test_termination_wins_over_truncation_in_the_same_step(register):
  name = register(max_episode_steps=3, terminate_at=3)
  environment = vector.make_vector(name, 2, seed=0)
  environment.reset()
  for t in (1, 2, 3):
    step = environment.step(np.zeros(2, np.int64))
    np.testing.assert_array_equal(step.last, t == 3)
  np.testing.assert_array_equal(step.discount, 0.0)
  np.testing.assert_array_equal(step.observation, [[3, 0], [3, 0]])
  np.testing.assert_array_equal(step.next_observation, [[0, 0], [0, 0]])


def test_discrete_actions_count_from_zero_whatever_the_start(register):
  name = register(actions=gymnasium.spaces.Discrete(3, start=5))
  environment = vector.make_vector(name, 3, seed=0)
  environment.reset()
  step = environment.step(np.arange(3, dtype=np.int32))
  np.testing.assert_array_equal(step.reward, [5, 6, 7])


def test_canonical_actions_are_clipped_and_scaled():
  environment = vector.make_vector('Pendulum-v1', 3, seed=0)
  single = gymnasium.make('Pendulum-v1')
  seeds = vector.environment_seeds(0, 3)
  environment.reset()
  step = environment.step(np.array([[-1.0], [0.5], [9.0]], np.float32))
  for index, torque in enumerate((-2.0, 1.0, 2.0)):
    single.reset(seed=seeds[index])
    observation, reward, *_ = single.step(np.array([torque], np.float32))
    np.testing.assert_allclose(step.observation[index], observation, rtol=1e-6)
    np.testing.assert_allclose(step.reward[index], reward, rtol=1e-6)


@pytest.mark.parametrize('name', ['CartPole-v1', 'MountainCar-v0'])
@pytest.mark.parametrize(
  'actions',
  [
    np.array([0, -1]),
    np.array([0, 3]),
    np.array([0.0, 1.0]),
    np.array([0]),
    np.array([[0, 0]]),
  ],
)
def test_actions_that_do_not_exist_are_refused(name, actions):
  environment = vector.make_vector(name, 2, seed=0)
  environment.reset()
  with pytest.raises(ValueError, match=f'{name} got actions'):
    environment.step(actions)


@pytest.mark.parametrize('name', ['CartPole-v1', 'MountainCar-v0'])
def test_a_step_before_the_first_reset_is_an_error(name):
  environment = vector.make_vector(name, 2, seed=0)
  with pytest.raises(RuntimeError, match='reset'):
    environment.step(np.zeros(2, np.int64))


def test_nan_rewards_are_a_fault_that_says_where(register):
  name = register(bad_reward_at=2)
  environment = vector.make_vector(name, 3, seed=0)
  environment.reset()
  environment.step(np.zeros(3, np.int64))
  match = f'{name} returned reward nan at step 2 .* in environment 0'
  with pytest.raises(environments.EnvironmentFault, match=match):
    environment.step(np.zeros(3, np.int64))


def test_a_fault_counts_steps_from_the_start_of_its_episode(register):
  name = register(max_episode_steps=5, bad_reward_at=2, bad_from_episode=1)
  environment = vector.make_vector(name, 2, seed=0)
  environment.reset()
  for _ in range(6):
    environment.step(np.zeros(2, np.int64))
  with pytest.raises(environments.EnvironmentFault, match='at step 2 of'):
    environment.step(np.zeros(2, np.int64))


def test_nan_observations_are_a_fault_that_says_where(register):
  name = register(bad_observation_at=3, bad_value=np.inf)
  environment = vector.make_vector(name, 2, seed=0)
  environment.reset()
  environment.step(np.zeros(2, np.int64))
  environment.step(np.zeros(2, np.int64))
  match = r'observation inf \(component \(1,\)\) at step 3'
  with pytest.raises(environments.EnvironmentFault, match=match):
    environment.step(np.zeros(2, np.int64))


def test_a_nan_first_observation_is_a_fault(register):
  environment = vector.make_vector(register(bad_observation_at=0), 2, seed=0)
  with pytest.raises(environments.EnvironmentFault, match='step 0'):
    environment.reset()


def test_an_observation_outside_the_declared_shape_is_a_fault(register):
  environment = vector.make_vector(register(bad_shape=True), 2, seed=0)
  with pytest.raises(environments.EnvironmentFault, match=r'shape \(3,\)'):
    environment.reset()


def test_a_fault_names_the_one_environment_that_is_not_finite():
  environment = vector.make_vector('CartPole-v1', 4, seed=0)
  environment.reset()
  # CartPole itself never fails: break the state of its third copy.
  environment._state[1, 2] = np.nan
  match = 'CartPole-v1 returned observation nan .* step 1 .* environment 2'
  with pytest.raises(environments.EnvironmentFault, match=match):
    environment.step(np.zeros(4, np.int64))


@pytest.mark.parametrize('num', [0, -3, 1.5, True])
def test_a_number_of_environments_below_one_is_refused(num):
  with pytest.raises(ValueError, match='num='):
    vector.make_vector('CartPole-v1', num, seed=0)


def test_unknown_environments_are_refused():
  with pytest.raises(environments.EnvironmentRefused, match='CartPole-v1'):
    vector.make_vector('CartPole-v7', 2, seed=0)


def test_a_negative_seed_is_refused():
  with pytest.raises(ValueError, match='seed=-1'):
    vector.make_vector('CartPole-v1', 2, seed=-1)
