"""What becomes of environments that break, and of their neighbours."""

import functools
import itertools
import logging
import os

import gymnasium
import numpy as np
import pytest

from murmuration.environment_loops import building
from murmuration.environment_loops import environments
from murmuration.environment_loops import faults
from murmuration.environment_loops import observers
from murmuration.environment_loops import vector


def _unstable(batch, index):
  """A velocity that MuJoCo does not go on from."""
  batch._data[index].qvel[0] = 1e12


def _zeros(batch):
  return np.zeros((batch.num, *batch.spec.action_shape), np.float32)


@pytest.mark.parametrize('steps_before', [0, 3])
def test_an_unstable_simulation_is_a_fault_that_says_where(
  tmp_path, monkeypatch, steps_before
):
  # MuJoCo would leave its log where the program runs.
  monkeypatch.chdir(tmp_path)
  batch = vector.make_vector('Swimmer-v5', 3, seed=0)
  batch.reset()
  for _ in range(steps_before):
    batch.step(_zeros(batch))
  _unstable(batch, 1)
  match = (
    rf'Swimmer-v5 became unstable at step {steps_before + 1} .* environment 1'
  )
  with pytest.raises(environments.EnvironmentFault, match=match):
    batch.step(_zeros(batch))
  assert os.listdir(tmp_path) == []


def test_a_dropped_episode_is_marked_counted_logged_and_begun_anew(caplog):
  batch = vector.make_vector('Swimmer-v5', 3, seed=0, on_fault=vector.DROP)
  plain = vector.make_vector('Swimmer-v5', 3, seed=0)
  batch.reset(), plain.reset()
  acted_on = batch.step(_zeros(batch)).next_observation
  plain.step(_zeros(plain))
  _unstable(batch, 1)
  with caplog.at_level(logging.WARNING):
    step = batch.step(_zeros(batch))
  undisturbed = plain.step(_zeros(plain))
  np.testing.assert_array_equal(step.valid, [True, False, True])
  np.testing.assert_array_equal(step.last, [False, True, False])
  np.testing.assert_array_equal(step.discount, 1.0)
  assert step.reward[1] == 0.0
  np.testing.assert_array_equal(step.observation[1], acted_on[1])
  assert not np.array_equal(step.next_observation[1], acted_on[1])
  assert np.abs(step.next_observation[1]).max() <= 0.1
  for field in ('observation', 'reward', 'next_observation'):
    np.testing.assert_array_equal(
      getattr(step, field)[[0, 2]], getattr(undisturbed, field)[[0, 2]]
    )
  assert batch.faults == 1 and plain.faults == 0
  assert 'Episode dropped, number 1: Swimmer-v5 became unst' in caplog.text
  after = batch.step(_zeros(batch))
  assert after.valid is None
  assert batch.faults == 1


def test_an_environment_once_dropped_runs_its_next_episode_in_full():
  batch = vector.make_vector('Reacher-v5', 2, seed=0, on_fault=vector.DROP)
  batch.reset()
  for _ in range(20):
    batch.step(_zeros(batch))
  _unstable(batch, 0)
  assert batch.step(_zeros(batch)).last.tolist() == [True, False]
  lasts = np.stack([batch.step(_zeros(batch)).last for _ in range(50)])
  assert np.flatnonzero(lasts[:, 0]).tolist() == [49]
  assert np.flatnonzero(lasts[:, 1]).tolist() == [28]


@pytest.mark.parametrize('bad', ['observation', 'reward'])
def test_copies_drop_episodes_too(register, bad):
  name = register(max_episode_steps=9, **{f'bad_{bad}_at': 3})
  batch = vector.make_vector(name, 2, seed=0, on_fault=vector.DROP)
  batch.reset()
  steps = [batch.step(np.ones(2, np.int64)) for _ in range(6)]
  for t, step in enumerate(steps):
    if t in (2, 5):
      np.testing.assert_array_equal(step.valid, False)
      np.testing.assert_array_equal(step.observation, [[2, 1], [2, 1]])
      np.testing.assert_array_equal(step.reward, 0.0)
      np.testing.assert_array_equal(step.next_observation, 0.0)
    else:
      assert step.valid is None
    assert np.isfinite(step.observation).all()
  assert batch.faults == 4


def test_a_fault_in_a_terminal_step_does_not_count_as_a_termination(register):
  name = register(terminate_at=2, bad_reward_at=2)
  batch = vector.make_vector(name, 1, seed=0, on_fault=vector.DROP)
  batch.reset()
  batch.step(np.zeros(1, np.int64))
  step = batch.step(np.zeros(1, np.int64))
  assert step.last[0] and step.discount[0] == 1.0 and not step.valid[0]


def test_what_begins_broken_is_not_dropped_for_ever(register):
  name = register(bad_observation_at=0)
  batch = vector.make_vector(name, 2, seed=0, on_fault=vector.DROP)
  with pytest.raises(environments.EnvironmentFault, match='step 0') as error:
    batch.reset()
  assert 'on_fault' not in str(error.value)  # which would change nothing


@pytest.mark.parametrize('vectorized', [False, True])
@pytest.mark.parametrize('steps_before', [0, 1])
def test_gymnasiums_own_mujoco_environments_are_watched_as_well(
  vectorized, steps_before
):
  name = 'Ant-v5'
  environment = (
    vector.make_vector(name, 2, seed=0)
    if vectorized
    else environments.make(name, seed=0)
  )
  environment.reset()
  action = np.zeros((2, 8) if vectorized else 8, np.float32)
  for _ in range(steps_before):
    environment.step(action)
  single = environment._environments[0] if vectorized else environment
  if not vectorized:
    single = environment._environment
  single.unwrapped.data.qvel[0] = 1e12
  match = f'Ant-v5 became unstable at step {steps_before + 1} '
  with pytest.raises(environments.EnvironmentFault, match=match):
    environment.step(action)
  # The next episode is sound.
  environment.reset()
  environment.step(action)
  environment.close()


@pytest.mark.parametrize('vectorized', [False, True])
@pytest.mark.parametrize('late', [False, True])
def test_new_mujoco_data_in_a_reset_are_watched_and_no_fault(
  register, vectorized, late
):
  name = register(lambda: _NewData(late))
  environment = (
    vector.make_vector(name, 1, seed=0)
    if vectorized
    else environments.make(name, seed=0)
  )
  action = np.zeros((1, 2) if vectorized else 2, np.float32)
  for _ in range(2):
    environment.reset()
    for _ in range(3):
      environment.step(action)
  single = environment._environments[0] if vectorized else environment
  if not vectorized:
    single = environment._environment
  single.unwrapped.data.qvel[0] = 1e12
  match = 'became unstable at step'
  with pytest.raises(environments.EnvironmentFault, match=match):
    environment.step(action)
  environment.close()


def test_what_the_simulation_counted_before_a_reset_is_no_fault():
  import mujoco

  environment = building.build('Swimmer-v5')
  clock = building.SimulationClock(environment)
  data = environment.unwrapped.data
  environment.reset(seed=0)
  for _ in range(2):  # as of a task whose reset leaves MuJoCo's counters alone
    data.warning.number[mujoco.mjtWarning.mjWARN_BADQACC] += 1
    clock.restart()
    environment.step(np.zeros(2))
    assert not clock.went_back()
  environment.close()


def test_a_way_to_treat_faults_that_does_not_exist_is_refused():
  with pytest.raises(ValueError, match="on_fault='ignore'"):
    vector.make_vector('CartPole-v1', 2, seed=0, on_fault='ignore')


def test_dropped_episodes_are_no_finished_ones(register):
  name = register(max_episode_steps=3, bad_reward_at=2, bad_from_episode=1)
  batch = vector.make_vector(name, 2, seed=0, on_fault=vector.DROP)
  batch.reset()
  tracker = observers.EpisodeTracker(2)
  finished = []
  for _ in range(5):
    finished.extend(tracker.observe(batch.step(np.ones(2, np.int64))))
  assert [done.episode_return for done in finished] == [3.0, 3.0]


class _NewData(gymnasium.Wrapper):
  """A swimmer with data of its own for each episode, also the first."""

  def __init__(self, late):
    super().__init__(gymnasium.make('Swimmer-v5').unwrapped)
    if late:
      self.unwrapped.data = None

  def reset(self, **more):
    import mujoco

    self.unwrapped.data = mujoco.MjData(self.unwrapped.model)
    return self.env.reset(**more)


class _Changes(gymnasium.Env):
  """From its third step on it returns what an argument says."""

  action_space = gymnasium.spaces.Discrete(2)
  observation_space = gymnasium.spaces.Box(-9.0, 9.0, (2,), np.float32)

  def __init__(self, later):
    self._later = later
    self._t = 0

  def reset(self, *, seed=None, options=None):
    super().reset(seed=seed)
    return np.zeros(2, np.float32), {}

  def step(self, action):
    self._t += 1
    observation = self._later if self._t > 2 else np.zeros(2)
    return observation, 0.0, False, False, {}


@pytest.mark.parametrize(
  'later, said',
  [
    (np.zeros(3), r'shape \(3,\), but its observation space has shape \(2,\)'),
    (np.zeros(1), r'shape \(1,\)'),  # NumPy would spread it
    (0.5, r'shape \(\)'),
    (np.zeros(2, complex), 'dtype complex128, but observations .* float32'),
    (np.array(['a', 'b']), 'dtype <U1'),
    (None, r'shape \(\)'),
    ([[1.0], [1.0, 2.0]], 'that is no array'),
  ],
)
@pytest.mark.parametrize('batched', [True, False])
def test_observations_that_change_are_a_fault(register, later, said, batched):
  name = register(_Changes, max_episode_steps=9, later=later)
  if batched:
    environment = vector.make_vector(name, 2, seed=0)
    action = np.zeros(2, np.int32)
  else:
    environment, action = environments.make(name, seed=0), 0
  environment.reset()
  for _ in range(2):
    environment.step(action)
  with pytest.raises(environments.EnvironmentFault, match=said):
    environment.step(action)
  environment.close()


def test_an_observation_that_does_not_fit_drops_its_own_episode_alone(register):
  made = itertools.count()
  # The first is only looked at; of the two copies the second changes.
  name = register(
    lambda: _Changes(np.zeros(3 if next(made) == 2 else 2)), max_episode_steps=9
  )
  batch = vector.make_vector(name, 2, seed=0, on_fault=vector.DROP)
  batch.reset()
  steps = [batch.step(np.zeros(2, np.int32)) for _ in range(4)]
  assert [step.valid is None for step in steps] == [True, True, False, False]
  for step in steps[2:]:
    assert step.valid.tolist() == [True, False]
    assert step.last.tolist() == [False, True]
    assert step.discount.tolist() == [1.0, 1.0]
  assert batch.faults == 2 and 'shape (3,)' in batch.last_fault


def test_what_did_not_fit_once_is_not_said_of_a_later_fault(register):
  seen = iter([np.zeros(3), np.full(2, np.nan)])

  class Changes(_Changes):
    def step(self, action):
      return next(seen), 0.0, False, False, {}

  name = register(lambda: Changes(None))
  batch = vector.make_vector(name, 1, seed=0, on_fault=vector.DROP)
  batch.reset()
  for said in ('shape (3,)', 'returned observation nan'):
    batch.step(np.zeros(1, np.int32))
    assert said in batch.last_fault


class _Old(_Changes):
  """Returns what gymnasium took before 0.26, or no number for a reward."""

  def __init__(self, reset, step):
    super().__init__(None)
    self._reset, self._step = reset, step

  def reset(self, **options):
    return self._reset

  def step(self, action):
    return self._step


_FIRST = np.zeros(2, np.float32)


@pytest.mark.parametrize('batched', [True, False])
@pytest.mark.parametrize('limit', [None, 9])
@pytest.mark.parametrize(
  'reset, step, said',
  [
    (_FIRST, None, r'reset\(\) .* \(observation, info\); it returned ndarray'),
    ((_FIRST, {}, 0), None, r'it returned \(ndarray, dict, int\)'),
    ((_FIRST, {}), (_FIRST, 1.0, False, {}), r'step\(\) .* terminated, trunc'),
    (
      (_FIRST, {}),
      (_FIRST, 'one', False, False, {}),
      r'number for the reward.*\(ndarray, str, bool, bool, dict\)',
    ),
    (
      (_FIRST, {}),
      (_FIRST, None, False, False, {}),
      r'number for the reward.*\(ndarray, NoneType, bool, bool, dict\)',
    ),
    (
      (_FIRST, {}),
      (_FIRST, np.ones(2), False, False, {}),
      r'number for the reward.*\(ndarray, ndarray, bool, bool, dict\)',
    ),
    ((_FIRST, {}), None, r'step\(\) has to return'),
  ],
)
def test_what_older_environments_return_is_said(
  register, reset, step, said, limit, batched
):
  # With a time limit it is a wrapper of gymnasium that meets it first.
  name = register(lambda **options: _Old(reset, step), max_episode_steps=limit)
  if batched:
    environment = vector.make_vector(name, 2, seed=0)
    action = np.zeros(2, np.int32)
  else:
    environment, action = environments.make(name, seed=0), 0
  with pytest.raises(environments.EnvironmentFault, match=said):
    environment.reset()
    environment.step(action)


@pytest.mark.filterwarnings('error')  # of NumPy: it will be no number there
@pytest.mark.parametrize('reward', [2.0, 2, np.float32(2), np.array([2.0])])
def test_a_reward_is_one_number_also_in_an_array_of_one(register, reward):
  step = (_FIRST, reward, False, False, {})
  name = register(lambda **options: _Old((_FIRST, {}), step))
  single, several = environments.make(name, 0), vector.make_vector(name, 2, 0)
  single.reset()
  several.reset()
  paid = single.step(0).reward
  assert isinstance(paid, np.float32) and paid == 2
  assert several.step(np.zeros(2, np.int32)).reward.tolist() == [2, 2]


@pytest.mark.parametrize('batched', [True, False])
@pytest.mark.parametrize('limit', [None, 9])
def test_a_reset_without_a_seed_is_told_what_it_has_to_take(
  register, limit, batched
):
  class Seedless(_Changes):
    def reset(self):
      return _FIRST, {}

  name = register(lambda **options: Seedless(None), max_episode_steps=limit)
  make = functools.partial(vector.make_vector, num=2)
  environment = (make if batched else environments.make)(name, seed=0)
  said = r"reset\(\) has to take \(\*, seed=None, options=None\): .*'seed'"
  with pytest.raises(environments.EnvironmentFault, match=said):
    environment.reset()


@pytest.mark.parametrize('batched', [True, False])
def test_an_error_of_an_environment_s_own_stays_what_it_is(register, batched):
  def breaks(action):
    _, _ = list(range(1))

  environment = _Old((_FIRST, {}), None)
  environment.step = breaks
  name = register(lambda **options: environment, max_episode_steps=9)
  if batched:
    environment = vector.make_vector(name, 1, seed=0)
    action = np.zeros(1, np.int32)
  else:
    environment, action = environments.make(name, seed=0), 0
  environment.reset()
  with pytest.raises(ValueError, match='not enough values to unpack'):
    environment.step(action)


def test_wider_numbers_do_not_wrap_into_bytes():
  take = functools.partial(faults.observation, 'Wide', shape=(2,))
  byte = np.dtype(np.uint8)
  assert take(np.full(2, 255, np.uint8), dtype=byte).max() == 255
  with pytest.raises(environments.EnvironmentFault, match='dtype uint16'):
    take(np.full(2, 256, np.uint16), dtype=byte)
  assert take(np.full(2, 256, np.int64), dtype=np.dtype(np.float32)).any()
