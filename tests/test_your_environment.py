"""The code on docs/your_environment.md works as it stands there."""

import os
import pathlib
import re
import shlex
import subprocess
import sys

import numpy as np
import pytest

from murmuration import choices
from murmuration.environment_loops import environments
from murmuration.environment_loops import own_vector
from murmuration.environment_loops import vector
from murmuration.launch import cell
from murmuration.launch import command_line
from murmuration.launch import registry
from murmuration.studies import render_docs

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = ROOT / 'docs' / 'your_environment.md'
# What the page wraps: an environment of each kind.
RAW = """
import gymnasium
from gymnasium import spaces
import numpy as np


class Raw(gymnasium.Env):
  observation_space = spaces.Box(0, 1, (2,), np.float32)
  action_space = spaces.Discrete(2)

  def reset(self, *, seed=None, options=None):
    super().reset(seed=seed)
    self.observation_space.seed(seed)
    return self.observation_space.sample(), {}

  def step(self, action):
    assert self.action_space.contains(action), action
    return self.observation_space.sample(), 0.0, False, False, {}


class WithManyButtons(Raw):
  action_space = spaces.MultiDiscrete([1000] * 30)


class Unbounded(Raw):
  action_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)


class Endless(Raw):
  pass
"""
# What commands of the docs name besides.
MORE = """

class Remote(Corridor):
  max_episode_steps = 100


class Reach(Corridor):
  action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
"""
# Function of the page to: the class that it wraps, whether that is refused, and
# shape of actions, None where they are numbers, and limit of what it makes.
WRAPPED = {
  'bounded': ('Unbounded', True, (2,), None),
  'many': ('WithManyButtons', True, (30,), None),
  'limited': ('Endless', False, None, 100),
}


@pytest.fixture(scope='module')
def directory(tmp_path_factory):
  """A user's directory with the files of the page."""
  # That of dm_control is for tests/extras; the last one is a line of a script.
  corridor, script, wrapped, _, corridors, _ = re.findall(
    r'```python\n(.*?)```', PAGE.read_text(), re.DOTALL
  )
  made = tmp_path_factory.mktemp('user')
  (made / 'my_env.py').write_text(corridor + MORE)
  (made / 'script.py').write_text(script)
  (made / 'wrapped.py').write_text(wrapped)
  (made / 'corridors.py').write_text(corridors)
  (made / 'raw.py').write_text(RAW)
  return made


@pytest.fixture
def modules(directory, monkeypatch):
  monkeypatch.syspath_prepend(directory)


@pytest.mark.parametrize('name', WRAPPED)
def test_what_is_refused_is_mended_by_the_page_s_wrapper(modules, name):
  raw, refused, shape, limit = WRAPPED[name]
  if refused:
    with pytest.raises(environments.EnvironmentRefused, match='action_space'):
      environments.spec(f'raw:{raw}')
  spec = environments.spec(f'wrapped:{name}')
  assert spec.max_episode_steps == limit
  copies = vector.make_vector(f'wrapped:{name}', 3, seed=1)
  assert copies.reset().shape == (3, 2)
  for action in (-1.0, 0.0, 1.0):
    actions = np.zeros(3, int)
    if shape is not None:
      assert spec.action_shape == shape
      actions = np.full((3, *shape), action)
    assert copies.step(actions).observation.shape == (3, 2)


def test_a_class_is_an_environment_by_its_module_and_name(modules):
  spec = environments.spec('my_env:Corridor')
  assert spec.max_episode_steps == 50 and spec.num_actions == 2
  with pytest.raises(environments.EnvironmentRefused, match='Corridr'):
    environments.spec('my_env:Corridr')


def test_the_page_s_environment_can_be_filmed(modules, recwarn):
  environment = environments.make('my_env:Corridor', 0, 'rgb_array')
  environment.reset()
  left = environment.render()
  environment.step(1)
  assert left.shape == (20, 140, 3) and left.dtype == np.uint8
  assert (left != environment.render()).any() and not recwarn.list
  environment.close()


@pytest.mark.parametrize('name', ['Fast', 'Several'])
def test_the_page_s_vector_environments_are_stepped_and_equal_copies(
  modules, name
):
  fast = vector.make_vector(f'corridors:{name}', 4, seed=1)
  assert isinstance(fast, own_vector.Vectors)
  copies = vector.make_vector('my_env:Corridor', 4, seed=1)
  np.testing.assert_array_equal(fast.reset(), copies.reset())
  random, ends = np.random.default_rng(0), 0
  for _ in range(200):
    actions = random.integers(2, size=4)
    one, other = fast.step(actions), copies.step(actions)
    for got, want in zip(one[:-1], other[:-1], strict=True):
      np.testing.assert_array_equal(got, want)
    ends += int(one.last.sum())
  assert ends > 8


@pytest.mark.parametrize(
  'agent, flag, value',
  [
    ('d4pg', 'agent.v_min', -33.0),
    ('d4pg', 'agent.v_max', 0.0),
    ('apex_dqn', 'agent.anneal_updates', 50_000),
    ('a2c', 'agent.anneal_env_steps', 200_000),
    ('impala', 'agent.anneal_env_steps', 200_000),
    ('a3c', 'agent.anneal_env_steps', 300_000),
    ('dqn', 'agent.max_replay_size', 20_000),
    ('dqn', 'agent.epsilon_steps', 5_000),
    ('dqn', 'run.steps_per_agent', 30_000),
  ],
)
def test_the_numbers_that_the_page_warns_of_are_the_first_preset_s(
  agent, flag, value
):
  section, _, name = flag.partition('.')
  assert cell.resolve(agent).config[section][name] == value
  said = {abs(number) for number in (value, value / 1000)}
  page = PAGE.read_text().partition('\n## 2.')[2].partition('\n## 3.')[0]
  assert f'{name}`' in page
  assert any(f'{number:,.0f}' in page for number in said)


def test_only_the_library_s_steps_stretch_the_fall_of_a_rate():
  words = 'a2c', 'MountainCar-v0', None, {}, 70_000, 0
  made = choices.cell(*words).config
  assert made['agent']['anneal_env_steps'] == 70_000
  flags = {'environment': 'MountainCar-v0', 'run.steps_per_agent': '70000'}
  made = cell.resolve('a2c', overrides=flags).config
  assert made['agent']['anneal_env_steps'] == 200_000


def test_every_command_of_the_docs_with_this_environment_can_be_run(modules):
  found = 0
  for page in render_docs.pages():
    text = page.read_text().replace('\\\n', '')
    for line in re.findall(r'^ {4}murmuration run (.*my_env:.*)$', text, re.M):
      (agent, *_), overrides = command_line.overrides(
        shlex.split(line, comments=True)
      )
      name, preset = registry.split(agent)
      cell.resolve(name, preset, overrides=overrides).build()
      found += 1
  assert found > 4


def test_an_unroll_may_be_longer_than_an_episode(modules):
  found = cell.resolve('ppo', overrides={'environment': 'my_env:Corridor'})
  assert found.build().groups


@pytest.mark.long
def test_the_page_s_script_learns_the_corridor(directory):
  done = subprocess.run(
    [sys.executable, 'script.py'],
    cwd=directory,
    env={**os.environ, 'PYTHONPATH': str(ROOT)},
    capture_output=True,
    text=True,
    timeout=200,
  )
  assert done.returncode == 0, done.stderr
  assert float(done.stdout.splitlines()[-1]) > 0.5  # 0.8 is the best
