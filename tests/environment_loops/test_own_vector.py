"""A user's own vector environment is stepped like copies of the single one."""

import contextlib
import importlib

import gymnasium
import numpy as np
import pytest

from murmuration.environment_loops import environments
from murmuration.environment_loops import own_vector
from murmuration.environment_loops import vector

NUM = 3
OWN = """
import gymnasium
import numpy as np

MODE = gymnasium.vector.AutoresetMode
MADE = []


def _vector(name, mode, num_envs):
  def make():
    return gymnasium.make(name, disable_env_checker=True)

  made = gymnasium.vector.SyncVectorEnv([make] * num_envs, autoreset_mode=mode)
  MADE.append(made)
  return made


def cars():
  return gymnasium.make('MountainCar-v0')


cars.vector_entry_point = lambda num_envs: _vector(
  'MountainCar-v0', MODE.DISABLED, num_envs
)


def pendulums():
  return gymnasium.make('Pendulum-v1')


pendulums.vector_entry_point = lambda num_envs: _vector(
  'Pendulum-v1', MODE.DISABLED, num_envs
)


def by_itself():
  return gymnasium.make('MountainCar-v0')


by_itself.vector_entry_point = lambda num_envs: _vector(
  'MountainCar-v0', MODE.NEXT_STEP, num_envs
)


def other():
  return gymnasium.make('CartPole-v1')


other.vector_entry_point = cars.vector_entry_point


class Broken(gymnasium.vector.VectorEnv):
  '''NaN in the second step of the first environment.'''

  metadata = {'autoreset_mode': MODE.DISABLED}

  def __init__(self, num_envs):
    self.num_envs, self.t = num_envs, np.zeros(num_envs)
    self.single_observation_space = gymnasium.spaces.Box(-1e4, 1e4, (1,))
    self.single_action_space = gymnasium.spaces.Discrete(2)

  def reset(self, *, seed=None, options=None):
    self.t[options['reset_mask']] = 0
    return self.t[:, None].astype(np.float32), {}

  def step(self, actions):
    self.t += 1
    seen = self.t[:, None].astype(np.float32)
    if self.t[0] == 2:
      seen[0] = np.nan
    no = np.zeros(self.num_envs, bool)
    return seen, np.ones(self.num_envs), no, no, {}


class One(gymnasium.Env):
  observation_space = gymnasium.spaces.Box(-1e4, 1e4, (1,))
  action_space = gymnasium.spaces.Discrete(2)
  vector_entry_point = 'own_vectors:Broken'
  max_episode_steps = 5

  def reset(self, *, seed=None, options=None):
    return np.zeros(1, np.float32), {}

  def step(self, action):
    return np.zeros(1, np.float32), 1.0, False, False, {}


class Wide(Broken):
  '''float64, which beyond float32 in the same step is no NaN yet.'''

  def step(self, actions):
    seen, *rest = super().step(actions)
    return np.where(np.isnan(seen), 1e39, seen.astype(np.float64)), *rest


class OneWide(One):
  vector_entry_point = 'own_vectors:Wide'


def misshapen(place):
  '''One of what a step returns, with an axis too many.'''

  class Misshapen(Broken):
    def step(self, actions):
      found = list(super().step(actions))
      found[place] = found[place][:, None]
      return tuple(found)

  def one():
    return One()

  one.vector_entry_point = Misshapen
  return one


rewards, terminations, truncations = misshapen(1), misshapen(2), misshapen(3)


def older(method, taken):
  '''What `taken` leaves of what a method returns.'''

  class Older(Broken):
    pass

  def returns(self, *arguments, **options):
    return taken(getattr(Broken, method)(self, *arguments, **options))

  setattr(Older, method, returns)

  def one():
    return One()

  one.vector_entry_point = Older
  return one


no_info = older('reset', lambda found: found[0])
one_end = older('step', lambda found: found[:2] + found[3:])
no_number = older('step', lambda found: (found[0], ['a'] * 3, *found[2:]))


def no_simulator():
  return gymnasium.make('CartPole-v1')


def _fails(num_envs):
  raise RuntimeError('no simulator')


no_simulator.vector_entry_point = _fails


def three():
  return gymnasium.make('MountainCar-v0')


def two_of_three(num_envs):
  made = cars.vector_entry_point(num_envs)
  made.single_action_space = gymnasium.spaces.Discrete(2)
  return made


three.vector_entry_point = two_of_three


def bounded(low, high):
  def one():
    return gymnasium.make('Pendulum-v1')

  def other(num_envs):
    made = pendulums.vector_entry_point(num_envs)
    made.single_action_space = gymnasium.spaces.Box(low, high, (1,))
    return made

  one.vector_entry_point = other
  return one


low, high = bounded(-1.0, 2.0), bounded(-2.0, 1.0)


class Pays(Broken):
  '''The action itself, from 5 on.'''

  def __init__(self, num_envs):
    super().__init__(num_envs)
    self.single_action_space = gymnasium.spaces.Discrete(2, start=5)

  def step(self, actions):
    seen, _, *rest = super().step(actions)
    return seen, actions, *rest


class FromFive(One):
  action_space = gymnasium.spaces.Discrete(2, start=5)
  vector_entry_point = Pays


class FromZero(One):
  vector_entry_point = Pays


class Restarts(Broken):
  '''A reset begins all episodes, whatever the mask.'''

  def reset(self, *, seed=None, options=None):
    self.t[:] = 0
    return self.t[:, None].astype(np.float32), {}

  def step(self, actions):
    self.t += 1
    no = np.zeros(self.num_envs, bool)
    ends = self.t >= 3 + np.arange(self.num_envs)  # of different lengths
    return self.t[:, None].astype(np.float32), self.t, ends, no, {}


class OneRestarts(One):
  vector_entry_point = Restarts


class RestsAndRestarts(Restarts):
  '''It stands still unless it is told to move.'''

  def step(self, actions):
    self.t += actions - 1
    return super().step(actions)


class OneRests(One):
  vector_entry_point = RestsAndRestarts


class Buffers(Broken):
  '''Returns the same arrays each time, and writes to them later.'''

  seen, paid = np.zeros((3, 1), np.float32), np.zeros(3, np.float32)

  def reset(self, *, seed=None, options=None):
    self.seen[options['reset_mask']] = 0
    return self.seen, {}

  def step(self, actions):
    self.seen += 1
    self.paid += 1
    no = np.zeros(self.num_envs, bool)
    return self.seen, self.paid, no, no, {}


def buffers():
  return One()


buffers.vector_entry_point = Buffers


class Parts(gymnasium.Env):
  '''What its action was, in two parts, as a Discrete observation.'''

  observation_space = gymnasium.spaces.Discrete(8, start=-1)
  action_space = gymnasium.spaces.MultiDiscrete([2, 3], start=[0, 1])
  max_episode_steps = 5

  def reset(self, *, seed=None, options=None):
    self.seen = -1
    return self._what(), {}

  def step(self, action):
    assert self.action_space.contains(action), action
    self.seen = int(action[0] * 3 + action[1] - 1)
    return self._what(), float(self.seen), False, False, {}

  def _what(self):
    return self.seen


class Nested(Parts):
  observation_space = gymnasium.spaces.Dict(
    {
      'it': Parts.observation_space,
      'more': gymnasium.spaces.Tuple(
        [gymnasium.spaces.Box(-9, 9, ()), gymnasium.spaces.MultiBinary(2)]
      ),
    }
  )

  def _what(self):
    more = np.array(self.seen / 2, np.float32), np.ones(2, np.int8)
    return {'it': self.seen, 'more': more}


def vectors_of(kind):
  def one():
    return kind()

  one.vector_entry_point = lambda num_envs: gymnasium.vector.SyncVectorEnv(
    [kind] * num_envs, autoreset_mode=MODE.DISABLED
  )
  return one


parts, nested = vectors_of(Parts), vectors_of(Nested)
begins_broken = older('reset', lambda found: (np.nan * found[0], {}))
"""


@pytest.fixture(autouse=True)
def own(tmp_path, monkeypatch):
  (tmp_path / 'own_vectors.py').write_text(OWN)
  monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.parametrize(
  'name, single',
  [('cars', 'MountainCar-v0'), ('pendulums', 'Pendulum-v1')],
)
def test_its_steps_are_those_of_single_environments(name, single):
  environment = vector.make_vector(f'own_vectors:{name}', NUM, seed=11)
  assert isinstance(environment, own_vector.Vectors)
  expected = vector.make_vector(single, NUM, seed=11)
  np.testing.assert_allclose(
    environment.reset(), expected.reset(), rtol=1e-5, atol=1e-6
  )
  random, ends = np.random.default_rng(0), 0
  for _ in range(410):
    if environment.spec.discrete:
      actions = random.integers(3, size=NUM)
    else:
      actions = random.uniform(-1, 1, (NUM, 1)).astype(np.float32)
    step, other = environment.step(actions), expected.step(actions)
    for got, want in zip(step[:-1], other[:-1], strict=True):
      np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    ends += int(step.last.sum())
  assert ends >= 2 * NUM  # of 200 steps each
  environment.close()


def test_an_episode_can_be_given_a_seed():
  environment = vector.make_vector('own_vectors:cars', NUM, seed=0)
  environment.reseed(1, 77)
  first = environment.reset()[1]
  wanted, _ = gymnasium.make('MountainCar-v0').reset(seed=77)
  np.testing.assert_allclose(first, wanted, rtol=1e-6)


def test_who_plays_on_gets_no_seed_yet():
  environment = vector.make_vector('own_vectors:One', NUM, 0, vector.DROP)
  reset, asked = environment._vector.reset, []
  environment._vector.reset = lambda seed, options: (
    asked.append(seed) or reset(seed=seed, options=options)
  )
  environment.reset()
  environment.reseed(0, 5)
  environment.reseed(1, 7)
  for _ in range(5):  # the first begins anew after each two
    environment.step(np.zeros(NUM, np.int32))
  assert asked[1:] == [[5, None, None], None, [None, 7, None]]


def test_discrete_actions_count_from_zero_whatever_the_start():
  environment = vector.make_vector('own_vectors:FromFive', NUM, seed=0)
  environment.reset()
  reward = environment.step(np.array([0, 1, 0])).reward
  assert reward.tolist() == [5.0, 6.0, 5.0]


def test_earlier_batches_are_not_written_to_later():
  environment = vector.make_vector('own_vectors:buffers', NUM, seed=0)
  first = environment.reset()
  steps = [environment.step(np.zeros(NUM, np.int32)) for _ in range(2)]
  seen = [first, *(step.observation for step in steps)]
  assert [array[0, 0] for array in seen] == [0.0, 1.0, 2.0]
  assert [step.reward[0] for step in steps] == [1.0, 2.0]


def test_a_nan_first_observation_is_a_fault():
  environment = vector.make_vector('own_vectors:begins_broken', NUM, seed=0)
  with pytest.raises(environments.EnvironmentFault, match='nan .* at step 0'):
    environment.reset()


@pytest.mark.parametrize('name', ['own_vectors:One', 'own_vectors:OneWide'])
def test_a_broken_episode_is_dropped_and_the_others_go_on(name):
  environment = vector.make_vector(name, NUM, seed=0, on_fault=vector.DROP)
  first = environment.reset()
  steps = [environment.step(np.zeros(NUM, np.int32)) for _ in range(5)]
  seen = [first, *(step.observation for step in steps)]
  assert {array.dtype for array in seen} == {np.dtype(np.float32)}
  assert steps[0].valid is None
  assert steps[1].valid.tolist() == [False, True, True]
  # The first begins anew; the others are cut by the limit of five steps.
  assert steps[1].next_observation[:, 0].tolist() == [0.0, 2.0, 2.0]
  assert steps[4].last.tolist() == [False, True, True]
  assert steps[4].discount.tolist() == [1.0] * NUM
  assert environment.faults == 2
  with pytest.raises(environments.EnvironmentFault):
    loud = vector.make_vector(name, NUM, seed=0)
    loud.reset()
    for _ in range(2):
      loud.step(np.zeros(NUM, np.int32))


@pytest.mark.parametrize(
  ('name', 'said'),
  [
    ('by_itself', 'AutoresetMode.DISABLED'),
    ('other', 'single_observation_space'),
    ('three', 'single_action_space'),
    ('FromZero', 'single_action_space'),
    ('low', 'single_action_space'),
    ('high', 'single_action_space'),
  ],
)
def test_what_cannot_be_stepped_is_refused(name, said):
  with pytest.raises(environments.EnvironmentRefused, match=said):
    vector.make_vector(f'own_vectors:{name}', NUM, seed=0)


def test_one_that_cannot_be_built_is_refused():
  said = r'with num_envs=3: RuntimeError: no simulator \(.*own_vectors.py:\d+\)'
  with pytest.raises(environments.EnvironmentRefused, match=said):
    vector.make_vector('own_vectors:no_simulator', NUM, seed=0)


@pytest.mark.parametrize('name', ['cars', 'by_itself'])
def test_before_a_run_one_is_made_and_closed(name):
  made = importlib.import_module('own_vectors').MADE
  del made[:]
  refused = contextlib.nullcontext()
  if name == 'by_itself':
    refused = pytest.raises(ValueError, match='AutoresetMode.DISABLED')
  with refused:
    vector.check(f'own_vectors:{name}')
  assert [(one.num_envs, one.closed) for one in made] == [(2, True)]


@pytest.mark.parametrize('name', ['OneRestarts', 'OneRests'])
def test_one_whose_reset_begins_all_episodes_is_refused_before_a_run(name):
  with pytest.raises(environments.EnvironmentRefused, match='reset_mask'):
    vector.check(f'own_vectors:{name}')


def test_one_whose_reset_begins_all_episodes_gives_no_wrong_transition():
  environment = vector.make_vector('own_vectors:OneRestarts', NUM, seed=0)
  observation, seen = environment.reset(), 0
  with pytest.raises(environments.EnvironmentRefused, match='reset_mask'):
    for _ in range(20):
      step = environment.step(np.zeros(NUM, np.int32))
      np.testing.assert_array_equal(step.observation, observation + 1)
      observation, seen = step.next_observation, seen + 1
  assert seen == 2  # the first one ends at the third step


@pytest.mark.parametrize(
  'name, single, size', [('parts', 'Parts', 8), ('nested', 'Nested', 11)]
)
def test_spaces_in_parts_are_those_of_copies(name, single, size):
  vector.check(f'own_vectors:{name}')
  fast = vector.make_vector(f'own_vectors:{name}', NUM, 0)
  assert isinstance(fast, own_vector.Vectors)
  copies = vector.make_vector(f'own_vectors:{single}', NUM, 0)
  assert not isinstance(copies, own_vector.Vectors)
  assert fast.reset().shape == (NUM, size)
  np.testing.assert_array_equal(fast.reset(), copies.reset())
  random = np.random.default_rng(0)
  for _ in range(30):
    actions = random.integers(6, size=NUM)
    one, other = fast.step(actions), copies.step(actions)
    for got, want in zip(one[:-1], other[:-1], strict=True):
      np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(one.reward, actions)


@pytest.mark.parametrize('what', ['rewards', 'terminations', 'truncations'])
def test_what_is_no_number_for_each_environment_is_a_fault(what):
  name = f'own_vectors:{what}'
  environment = vector.make_vector(name, NUM, seed=0)
  environment.reset()
  said = rf'{name} returned {what} of shape \(3, 1\)'
  with pytest.raises(environments.EnvironmentFault, match=said):
    environment.step(np.zeros(NUM, np.int32))


@pytest.mark.parametrize(
  ('name', 'said'),
  [
    ('no_info', r'reset\(\) .* \(observation, info\); it returned ndarray'),
    ('one_end', r'step\(\) .* terminated, truncated.*\(ndarray, ndarray, nd'),
    ('no_number', r'step\(\) .* number for the reward.*\(ndarray, list, nd'),
  ],
)
def test_what_older_ones_return_is_said(name, said):
  environment = vector.make_vector(f'own_vectors:{name}', NUM, seed=0)
  said = rf'own_vectors:{name}: Older\.{said}'
  with pytest.raises(environments.EnvironmentFault, match=said):
    environment.reset()
    environment.step(np.zeros(NUM, np.int32))


def test_gymnasium_s_own_are_left_alone():
  assert gymnasium.registry['CartPole-v1'].vector_entry_point is not None
  environment = vector.make_vector('CartPole-v1', NUM, seed=0)
  assert not isinstance(environment, own_vector.Vectors)
