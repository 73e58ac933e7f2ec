"""Environments that are refused, and what is said of them."""

import os

import gymnasium
from gymnasium import spaces
import numpy as np
import pytest

from murmuration.environment_loops import building
from murmuration.environment_loops import environments
from murmuration.environment_loops import vector


@pytest.mark.parametrize(
  'name, nearest',
  [
    ('CartPole-v9', 'CartPole-v1'),
    ('Cartpole-v1', 'CartPole-v1'),
    ('LunarLander-v2', 'LunarLander-v3'),
    ('acrobot', 'Acrobot-v1'),
  ],
)
def test_an_unknown_id_is_refused_with_the_nearest_ones(name, nearest):
  with pytest.raises(environments.EnvironmentRefused) as error:
    environments.spec(name)
  assert name in str(error.value) and nearest in str(error.value)


@pytest.mark.parametrize('name', ['zzzzzz', '', None, 'no_such_module:Env-v0'])
def test_a_name_that_is_nothing_is_refused(name):
  with pytest.raises(environments.EnvironmentRefused):
    environments.spec(name)


class Seen:
  """What a module of a user's may have beside environments."""


NOT_A_CLASS = 7


@pytest.mark.parametrize(
  'name, said',
  [
    ('Sen', 'Seen'),
    ('CartPole-v9', 'CartPole-v1'),
    ('Nowhere', 'module:Name'),
    ('NOT_A_CLASS', 'the class, the function'),
  ],
)
def test_a_name_that_a_module_has_not_is_refused_with_the_nearest(name, said):
  with pytest.raises(environments.EnvironmentRefused) as error:
    environments.spec(f'{__name__}:{name}')
  assert said in str(error.value)


class Blind(gymnasium.Env):
  """An environment as many are: it takes no render_mode."""

  observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)
  action_space = gymnasium.spaces.Discrete(2)

  def __init__(self):
    pass


class Bare(gymnasium.Env):
  """Nothing is said of it."""


def broken():
  raise RuntimeError('no licence.')


@pytest.mark.parametrize(
  'name, said',
  [
    ('Bare', 'observation_space'),
    ('broken', 'no licence'),
  ],
)
def test_what_a_module_makes_and_cannot_be_used_says_why(name, said):
  with pytest.raises(environments.EnvironmentRefused) as error:
    environments.spec(f'{__name__}:{name}')
  assert said in str(error.value)


class Undrawn(Blind):
  """It takes the word, and draws nothing."""

  def __init__(self, render_mode=None):
    self.render_mode = render_mode


class Drawn(Undrawn):
  """It draws, and has left `metadata` as they were."""

  def reset(self, *, seed=None, options=None):
    return np.zeros(1, np.float32), {}

  def render(self):
    return 'a picture'


def undrawn():
  return Blind()


@pytest.mark.parametrize('name', ['Blind', 'Undrawn', 'undrawn'])
def test_what_cannot_be_drawn_says_what_it_needs(name):
  name = f'{__name__}:{name}'
  assert environments.spec(name).num_actions == 2
  with pytest.raises(environments.EnvironmentRefused, match='render_mode'):
    environments.make(name, seed=0, render_mode='rgb_array').render()


def test_what_draws_need_not_name_its_modes(recwarn):
  environment = environments.make(f'{__name__}:Drawn', 0, 'rgb_array')
  environment.reset()
  assert environment.render() == 'a picture'
  environment.close()
  assert not recwarn.list


class Casts(Undrawn):
  """What gymnasium's checker casts: no array of NumPy's."""

  def reset(self, *, seed=None, options=None):
    self.observation_space.contains([0.5])
    return [0.5], {}


def test_observations_that_are_cast_here_are_not_warned_of(recwarn):
  environment = environments.make(f'{__name__}:Casts', 0)
  assert environment.reset().observation.tolist() == [0.5]
  environment.close()
  assert not recwarn.list


@pytest.mark.parametrize(
  ('mode', 'display', 'video'),
  [
    ('rgb_array', ':0', 'dummy'),
    (None, '', 'dummy'),
    (None, ':0', None),
    ('human', ':0', None),
  ],
)
def test_no_sound_is_made_and_no_screen_is_looked_for_where_there_is_none(
  monkeypatch, mode, display, video
):
  for name in ('SDL_AUDIODRIVER', 'SDL_VIDEODRIVER'):
    # Set first, so that what the call sets goes with the test.
    monkeypatch.setenv(name, '')
    monkeypatch.delenv(name)
  monkeypatch.setenv('DISPLAY', display)
  building._keep_quiet(mode)
  assert os.environ['SDL_AUDIODRIVER'] == 'dummy'
  assert os.environ.get('SDL_VIDEODRIVER') == video


def test_a_path_is_no_module_s_name():
  with pytest.raises(environments.EnvironmentRefused, match='package.module'):
    environments.spec('./my_env.py:Corridor')


class Limited(gymnasium.Wrapper):
  max_episode_steps = 7

  def __init__(self):
    super().__init__(gymnasium.make('CartPole-v1').unwrapped)


def test_a_class_of_a_wrapper_is_an_environment():
  found = environments.spec('examples.position_cartpole:PositionCartPole')
  assert found.observation_shape == (2,) and found.num_actions == 2
  assert found.max_episode_steps == 500
  assert environments.spec(f'{__name__}:Limited').max_episode_steps == 7


def test_an_id_in_a_module_is_found():
  name = 'gymnasium.envs:CartPole-v1'
  assert environments.spec(name).num_actions == 2


_REAL = spaces.Box(0, 1, (2,))
_IMAGE = spaces.Box(0, 255, (8, 8, 3), np.uint8)


class OwnSpace(gymnasium.Space):
  """One of a user's class, of which gymnasium knows nothing."""


@pytest.mark.parametrize(
  'space',
  [
    OwnSpace(),
    spaces.Sequence(_REAL),
    spaces.Dict({'some': spaces.Sequence(_REAL)}),
    spaces.Dict({'seen': _IMAGE, 'speed': _REAL}),
    spaces.Tuple([spaces.Tuple([_IMAGE]), _REAL]),
    spaces.Discrete(2_000_000),
    spaces.Tuple([]),
    spaces.Box(0, 1, (0,)),
  ],
)
def test_observations_that_no_agent_takes_are_refused(register, space):
  class Seen(Blind):
    observation_space = space

  with pytest.raises(environments.EnvironmentRefused, match='observation_spac'):
    environments.spec(register(Seen))


@pytest.mark.parametrize(
  'space',
  [
    spaces.MultiDiscrete([1000] * 30),
    spaces.MultiBinary(20_000),
    spaces.MultiBinary(11),
    spaces.Box(-np.inf, np.inf, (1,)),
    spaces.Box(-1, np.inf, (1,)),
    spaces.Box(-(2**63), 2**63 - 1, (1,), np.int64),
    spaces.Box(-1, 1, (0,)),
    spaces.Box(-1, 1, (2, 0)),
    spaces.Box(0, 1, (0,), np.int64),
    spaces.MultiDiscrete([1, 1]),
    spaces.Discrete(1, start=3),
    spaces.Tuple([spaces.Discrete(2)]),
  ],
)
def test_actions_that_no_agent_has_are_refused(register, space):
  with pytest.raises(environments.EnvironmentRefused, match='action_space'):
    environments.make(register(actions=space), seed=0)


def _several():
  return gymnasium.make_vec('CartPole-v1', num_envs=2)


def _nothing():
  pass


@pytest.mark.parametrize('name', ['_several', '_nothing'])
def test_what_is_no_environment_is_refused(name):
  with pytest.raises(environments.EnvironmentRefused, match=name):
    environments.spec(f'{__name__}:{name}')


def test_a_missing_package_is_named(register):
  def without_box2d(**_):
    raise gymnasium.error.DependencyNotInstalled('Box2D is not installed')

  with pytest.raises(environments.EnvironmentRefused, match='Box2D'):
    environments.spec(register(without_box2d))


def test_an_environment_that_cannot_be_built_is_refused(register):
  def broken(**_):
    raise OSError('no such level')

  with pytest.raises(environments.EnvironmentRefused, match='no such level'):
    environments.spec(register(broken))


@pytest.mark.parametrize(
  'wrap', [lambda one: one, lambda one: gymnasium.wrappers.TimeLimit(one, 9)]
)
def test_one_environment_is_no_several_copies(register, wrap):
  one = gymnasium.make('CartPole-v1').unwrapped
  name = register(lambda: wrap(one))
  said = f'{name} returned an environment that .* in use: .* lambda: env'
  with pytest.raises(environments.EnvironmentRefused, match=said):
    vector.make_vector(name, 3, seed=0)


def test_one_environment_is_used_in_one_place_at_a_time(register):
  one = gymnasium.make('CartPole-v1').unwrapped
  name = register(lambda: one)
  acting = vector.make_vector(name, 1, seed=0)
  for make in (vector.make_vector, environments.make):
    more = (1, 0) if make is vector.make_vector else (0,)
    with pytest.raises(environments.EnvironmentRefused, match='in use'):
      make(name, *more)
  acting.close()
  evaluating = vector.make_vector(name, 1, seed=0)
  del evaluating  # not closed, but nobody has it
  vector.make_vector(name, 1, seed=0)


class Exchanging(gymnasium.Wrapper):
  """Plays another environment from the second reset on, and none at last."""

  def reset(self, **options):
    self.env = gymnasium.make('CartPole-v1').unwrapped
    return self.env.reset(**options)

  def close(self):
    self.env = None


@pytest.mark.parametrize('let_go', ['reset', 'close'])
def test_what_a_wrapper_has_let_go_of_is_in_use_no_more(register, let_go):
  one = gymnasium.make('CartPole-v1').unwrapped
  name = register(lambda: Exchanging(one))
  held = environments.build(name)
  getattr(held, let_go)()
  again = environments.build(name)
  with pytest.raises(environments.EnvironmentRefused, match='in use'):
    environments.build(name)
  building.close(name, again)
  environments.build(name)


def test_an_agent_for_discrete_actions_can_refuse_continuous_ones():
  assert environments.require_discrete(environments.spec('Acrobot-v1')) == 3
  with pytest.raises(environments.EnvironmentRefused, match='DQN needs discr'):
    environments.require_discrete(environments.spec('Pendulum-v1'), 'DQN')
