"""Batched equations against gymnasium, number by number."""

import gymnasium
import numpy as np
import pytest

from murmuration.environment_loops import actions as actions_lib
from murmuration.environment_loops import copies
from murmuration.environment_loops import environments
from murmuration.environment_loops import vector

# Swimmer and HalfCheetah end at step 1,000 and no sooner: what follows a reset
# is compared with the 50 steps after it.
STEPS = 1050
# Name, episodes that 4 x 1,000 random steps end at least.
TASKS = {
  'Acrobot-v1': 8,
  'Pendulum-v1': 20,
  'HalfCheetah-v5': 4,
  'Hopper-v5': 50,
  'InvertedDoublePendulum-v5': 100,
  'InvertedPendulum-v5': 100,
  'Reacher-v5': 80,
  'Swimmer-v5': 4,
  'Walker2d-v5': 50,
}


def _actions(spec, num, random):
  if spec.discrete:
    return random.integers(spec.num_actions, size=num)
  # Beyond the bounds too, where they are clipped.
  return random.uniform(-1.2, 1.2, (num, *spec.action_shape)).astype(np.float32)


@pytest.mark.parametrize('name', TASKS)
def test_random_steps_with_resets_equal_gymnasium_to_1e_6(name):
  num = 4
  batch = vector.make_vector(name, num, seed=11)
  assert not isinstance(batch, copies.Copies)
  singles = [gymnasium.make(name) for _ in range(num)]
  seeds = vector.environment_seeds(11, num)
  firsts = [s.reset(seed=k)[0] for s, k in zip(singles, seeds, strict=True)]
  np.testing.assert_allclose(batch.reset(), firsts, rtol=1e-6, atol=1e-6)
  random = np.random.default_rng(0)
  ends = 0
  for t in range(STEPS):
    actions = _actions(batch.spec, num, random)
    step = batch.step(actions)
    arrivals, following, rewards = [], [], []
    for index, single in enumerate(singles):
      action = actions[index]
      if not batch.spec.discrete:
        action = actions_lib.to_native(name, single.action_space, action)
        # As float32, NumPy 2 would compute Pendulum's torque in it.
        action = np.asarray(action, np.float64)
      observation, reward, terminated, truncated, _ = single.step(action)
      arrivals.append(observation)
      rewards.append(reward)
      assert step.last[index] == (terminated or truncated), t
      assert step.discount[index] == (0.0 if terminated else 1.0), t
      if terminated or truncated:
        ends += 1
        observation, _ = single.reset()
      following.append(observation)
    near = {'rtol': 1e-6, 'atol': 1e-6, 'err_msg': f'step {t}'}
    np.testing.assert_allclose(step.observation, arrivals, **near)
    np.testing.assert_allclose(step.next_observation, following, **near)
    np.testing.assert_allclose(step.reward, rewards, **near)
    assert step.valid is None
  assert ends >= TASKS[name]
  batch.close()
  for single in singles:
    single.close()


@pytest.mark.parametrize('name', ['Acrobot-v1', 'Pendulum-v1', 'Hopper-v5'])
def test_steps_have_the_shapes_and_types_of_all_vector_environments(name):
  batch = vector.make_vector(name, 3, seed=0)
  shape = (3, *batch.spec.observation_shape)
  first = batch.reset()
  step = batch.step(_actions(batch.spec, 3, np.random.default_rng(0)))
  for array in (first, step.observation, step.next_observation):
    assert array.shape == shape and array.dtype == np.float32
    assert array.flags.c_contiguous
  for array, dtype in (
    (step.reward, np.float32),
    (step.discount, np.float32),
    (step.last, np.bool_),
  ):
    assert array.shape == (3,) and array.dtype == dtype


def test_an_acrobot_that_swings_up_terminates_with_reward_zero():
  batch = vector.make_vector('Acrobot-v1', 8, seed=0)
  observation = batch.reset()
  terminated = 0
  for _ in range(400):
    # Push with the motion of the second joint: it swings ever higher.
    push = (observation[:, 5] > 0).astype(np.int64) * 2
    step = batch.step(push)
    height = -step.observation[:, 0] - (
      step.observation[:, 0] * step.observation[:, 2]
      - step.observation[:, 1] * step.observation[:, 3]
    )
    high = height > 1.0
    np.testing.assert_array_equal(step.discount == 0.0, high)
    np.testing.assert_array_equal(step.reward, np.where(high, 0.0, -1.0))
    terminated += int(high.sum())
    observation = step.next_observation
  assert terminated > 0


def test_an_acrobot_at_full_speed_equals_gymnasium():
  """Angles several turns away, and speeds beyond the bounds, in one step."""
  num = 300
  batch = vector.make_vector('Acrobot-v1', num, seed=0)
  batch.reset()
  random = np.random.default_rng(0)
  fastest = np.array([[np.pi, np.pi, 4 * np.pi, 9 * np.pi]]).T
  state = fastest * random.uniform(-1, 1, (4, num))
  # No random policy gets here: what the bounds are for.
  state[2:, ::2] = fastest[2:] * np.sign(state[2:, ::2])
  batch._state = state.copy()
  actions = random.integers(3, size=num)
  step = batch.step(actions)
  single = gymnasium.make('Acrobot-v1')
  single.reset()
  for index in range(num):
    single.unwrapped.state = state[:, index].copy()
    observation, reward, terminated, _, _ = single.unwrapped.step(
      int(actions[index])
    )
    np.testing.assert_allclose(
      step.observation[index], observation, rtol=1e-6, atol=1e-6
    )
    assert step.reward[index] == reward
    assert step.last[index] == terminated
    if not terminated:
      np.testing.assert_allclose(
        batch._state[:, index], single.unwrapped.state, rtol=0, atol=1e-9
      )


@pytest.mark.parametrize('name', ['Acrobot-v1', 'Pendulum-v1', 'Reacher-v5'])
def test_an_environment_does_not_feel_its_neighbours(name):
  few = vector.make_vector(name, 1, seed=9)
  many = vector.make_vector(name, 5, seed=9)
  np.testing.assert_array_equal(few.reset(), many.reset()[:1])
  random = np.random.default_rng(0)
  for _ in range(60):
    actions = _actions(many.spec, 5, random)
    one, all_five = few.step(actions[:1]), many.step(actions)
    for single, batch in zip(one[:-1], all_five[:-1], strict=True):
      np.testing.assert_array_equal(single, batch[:1])


@pytest.mark.parametrize('name', ['Acrobot-v1', 'Pendulum-v1', 'Hopper-v5'])
def test_earlier_batches_are_not_written_to_later(name):
  batch = vector.make_vector(name, 2, seed=0)
  kept = [batch.reset()]
  random = np.random.default_rng(0)
  for _ in range(3):
    kept.extend(batch.step(_actions(batch.spec, 2, random))[:-1])
  before = [array.copy() for array in kept]
  for _ in range(60):
    batch.step(_actions(batch.spec, 2, random))
  for array, copy in zip(kept, before, strict=True):
    np.testing.assert_array_equal(array, copy)


@pytest.mark.parametrize('name', ['Acrobot-v1', 'Reacher-v5'])
def test_a_second_reset_starts_new_episodes_with_full_length(name):
  batch = vector.make_vector(name, 2, seed=0)
  first = batch.reset()
  random = np.random.default_rng(0)
  for _ in range(5):
    batch.step(_actions(batch.spec, 2, random))
  assert not np.array_equal(batch.reset(), first)
  lasts = [
    batch.step(_actions(batch.spec, 2, random)).last[0] for _ in range(50)
  ]
  assert np.flatnonzero(lasts).tolist() == ([49] if name[0] == 'R' else [])


def test_other_arguments_or_wrappers_fall_back_to_copies(register):
  entry_point = 'gymnasium.envs.mujoco.hopper_v5:HopperEnv'
  changed = register(entry_point, max_episode_steps=7, frame_skip=2)
  batch = vector.make_vector(changed, 2, seed=0)
  assert isinstance(batch, copies.Copies)
  batch.close()
  same = register(entry_point, max_episode_steps=7)
  batch = vector.make_vector(same, 2, seed=0)
  assert not isinstance(batch, copies.Copies)
  assert batch.spec.max_episode_steps == 7


def test_an_id_in_a_module_is_batched_too():
  batch = vector.make_vector('gymnasium.envs:Acrobot-v1', 2, seed=0)
  assert not isinstance(batch, copies.Copies)


def test_images_stay_bytes_and_other_bytes_become_floats(register):
  cases = [((4, 4, 3), np.uint8), ((2,), np.float32)]
  cases.append(((2, 2, 4, 4, 3), np.float32))  # no agent has a network for it
  for shape, dtype in cases:
    box = gymnasium.spaces.Box(0, 255, shape, np.uint8)
    name = register(_Bytes, box=box)
    assert environments.spec(name).observation_dtype == np.dtype(dtype).name
    single = environments.make(name, seed=0)
    batch = vector.make_vector(name, 2, seed=0)
    assert single.observation_spec().dtype == dtype
    assert single.reset().observation.dtype == dtype
    assert single.step(0).observation.dtype == dtype
    assert batch.reset().dtype == dtype
    step = batch.step(np.zeros(2, np.int64))
    assert step.observation.dtype == dtype
    np.testing.assert_array_equal(step.observation, 200)


@pytest.mark.parametrize('high, largest', [(9.0, 9.0), (np.inf, None)])
def test_the_largest_number_of_all_is_known_or_that_there_is_none(
  register, high, largest
):
  bounds = np.array([[0, 0], [1, high]], np.float32)
  box = gymnasium.spaces.Box(*bounds)
  name = register(_Bytes, box=box)
  assert environments.spec(name).observation_maximum == largest


class _Bytes(gymnasium.Env):
  def __init__(self, box):
    self.observation_space = box
    self.action_space = gymnasium.spaces.Discrete(2)

  def reset(self, *, seed=None, options=None):
    super().reset(seed=seed)
    return np.full(self.observation_space.shape, 100, np.uint8), {}

  def step(self, action):
    shape = self.observation_space.shape
    return np.full(shape, 200, np.uint8), 1.0, False, False, {}
