"""Scripts of a user's, outside the project, in processes of their own.

In the directory stand files that are called as the project's packages are.
"""

import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]

# The user's own; the project has packages of both names.
AGENTS = """
import gymnasium
import numpy as np

WHO = 'the user'


class Corridor(gymnasium.Env):
  observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)
  action_space = gymnasium.spaces.Discrete(2, start=5)
  max_episode_steps = 20

  def reset(self, *, seed=None, options=None):
    super().reset(seed=seed)
    self.place = 2
    return np.array([0.5], np.float32), {}

  def step(self, action):
    assert action in (5, 6), action
    self.place += 1 if action == 6 else -1
    end = self.place in (0, 4)
    seen = np.array([self.place / 4], np.float32)
    return seen, float(self.place == 4), end, False, {}
"""

SINK = """
from murmuration.run_records import sinks

class MySink(sinks.Sink):
  def __init__(self, run, state):
    self.path = run.path / 'mine.txt'

  def row(self, kind, row):
    if kind == 'evaluation':
      with self.path.open('a') as file:
        file.write(f'{row["actor_steps"]}\\n')
"""

WHOLE = """
import json
import sys

import numpy as np
import psutil

import agents
import murmuration as mm

assert agents.WHO == 'the user'
assert not {'tensorflow', 'launchpad'} & set(sys.modules)
told = {'tick': [], 'evaluation': [], 'end': []}
callbacks = {
  f'on_{kind}': lambda run, content, kind=kind: told[kind].append(content)
  for kind in told
}
small = {'batch_size': 32, 'hidden_sizes': (16,), 'eval_episodes': 2}
run = mm.train(
  'dqn', 'CartPole-v1', steps=800, seed=3, target_return=None,
  evaluations=4, sinks='my_sink:MySink', **small, **callbacks,
)
found = {
  'sink': len(open(run.path / 'mine.txt').readlines()),
  'path': str(run.path),
  'stopped': run.stopped,
  'ticks': [tick['budget'] for tick in told['tick']],
  'rows': told['evaluation'] == run.metrics(),
  'ends': [end['outcome'] for end in told['end']],
  'config': run.config(),
  'action': run.policy(np.zeros(4)).tolist(),
  'actions': run.policy(np.zeros((3, 4))).tolist(),
  'episodes': len(run.evaluate(3).returns),
}
run.save('saved')
saved = mm.load('saved')
found['same'] = (saved.evaluate(3).returns == run.evaluate(3).returns).all()
saved.resume(steps=400)
found['steps'] = [
  r.summary()['totals']['actor_steps'] for r in (run, saved)
]
run.export('policy.py')
from policy import policy
x = np.random.default_rng(0).normal(size=(100, 4))
found['exported'] = (policy(x) == run.policy(x)).all()
run.plot('curve.png'), run.film('film.gif', steps=20)
found['agents'] = agents.WHO
assert not {'tensorflow', 'launch'} & set(sys.modules)
assert not psutil.Process().children()
print(json.dumps(found, default=bool))
"""

OBJECTS = '''
import json

import gymnasium
import numpy as np

import agents
import murmuration as mm


class Own(agents.Corridor):
  """Of __main__; its base is of a file that hides one of the project's."""

  def __init__(self, far=1.0):
    self.far = far


small = {
  'batch_size': 32, 'hidden_sizes': (16,), 'min_replay_size': 64,
  'eval_episodes': 2, 'evaluations': 4,
}
far = lambda: Own(2.0)
runs = [
  mm.train('dqn', environment, steps=600, topology=topology, **small)
  for environment, topology in ((Own, None), (far, 'single_process'))
]
found = {'environments': [run.config()['environment'] for run in runs]}
found['action'] = int(runs[0].policy(np.array([0.5])))
try:
  mm.load(runs[0].path).evaluate(2)
except ValueError as e:
  found['without'] = str(e)
found['with'] = len(mm.load(runs[0].path, environment=Own).evaluate(2).returns)

gymnasium.register('Mine-v0', agents.Corridor, max_episode_steps=20)
stopped = mm.train(
  'dqn', 'Mine-v0', steps=100_000_000, on_tick=lambda run, tick: mm.STOP,
  **small
)
found['stopped'] = [stopped.stopped, stopped.config()['environment']]
for agent, environment in (
  ('dqn', Own()), ('dqm', 'CartPole-v1'), ('dqn', 'CartPole-v1'),
):
  try:
    mm.train(agent, environment, learning_rat=1)
  except ValueError as e:
    found.setdefault('refused', []).append(str(e))
print(json.dumps(found))
'''

BROKEN = """
import json

import agents
import murmuration as mm

found = {}


class Broken(agents.Corridor):
  def step(self, action):
    raise RuntimeError('the lift is stuck')


try:
  mm.train('dqn', Broken, steps=600)
except RuntimeError as e:
  found['failed'] = str(e)
print(json.dumps(found))
"""


@pytest.fixture(scope='module')
def directory(tmp_path_factory):
  made = tmp_path_factory.mktemp('user')
  (made / 'agents.py').write_text(AGENTS)
  (made / 'my_sink.py').write_text(SINK)
  (made / 'replay.py').write_text('raise RuntimeError("not that one")')
  return made


def _found(directory, script, **variables):
  """What a script of the user's prints at last."""
  (directory / 'script.py').write_text(script)
  done = subprocess.run(
    [sys.executable, 'script.py'],
    cwd=directory,
    env={**os.environ, 'PYTHONPATH': str(ROOT), **variables},
    capture_output=True,
    text=True,
    timeout=230,
  )
  assert done.returncode == 0, done.stdout + done.stderr
  return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.long
def test_train_evaluate_act_save_load_resume_export(directory):
  # In a locale that has no letters but ASCII.
  strict = {'LC_ALL': 'C', 'PYTHONUTF8': '0', 'PYTHONCOERCECLOCALE': '0'}
  found = _found(directory, WHOLE, **strict)
  path = pathlib.Path(found['path'])
  assert path.parent == directory / 'runs'
  assert not found['stopped'] and found['ends'] == ['budget']
  assert set(found['ticks']) == {800} and found['rows']
  assert found['sink'] > 3  # four evaluations
  config = found['config']
  assert (config['seed'], config['environment']) == (3, 'CartPole-v1')
  assert config['agent']['hidden_sizes'] == [16]
  assert config['agent']['batch_size'] == 32
  assert found['action'] in (0, 1) and len(found['actions']) == 3
  assert found['episodes'] == 3 and found['same'] and found['exported']
  first, second = found['steps']
  assert first >= 800 and second >= first + 400
  assert found['agents'] == 'the user'
  assert (directory / 'curve.png').exists()
  assert (directory / 'film.gif').exists()


@pytest.mark.long
def test_objects_stop_and_refusals(directory):
  found = _found(directory, OBJECTS)
  assert found['environments'] == [
    'murmuration.given:Own',
    'murmuration.given:environment',
  ]
  assert found['action'] in (5, 6)
  assert 'given to murmuration.train' in found['without']
  assert found['with'] == 2
  assert found['stopped'] == [True, 'Mine-v0']
  one, agent, setting = found['refused']
  assert 'a function' in one
  assert 'Did you mean' in agent
  assert 'agent.learning_rate' in setting


@pytest.mark.long
def test_a_run_whose_environment_breaks_says_what_the_node_said(directory):
  assert 'the lift is stuck' in _found(directory, BROKEN)['failed']


ON_RAY = """
import json

import murmuration as mm

small = {'batch_size': 32, 'hidden_sizes': (16,), 'min_replay_size': 64}
run = mm.train(
  'dqn', 'CartPole-v1', steps=300, engine='ray', eval_episodes=1, **small
)
found = {'ended': run.summary()['outcome']}
try:
  run.resume(steps=1, engine='local_mp', ray_address='auto')
except ValueError as e:
  found['refused'] = str(e)
try:
  run.resume(steps=1, cluster=['learner:cpus=4'])
except ValueError as e:
  found['group'] = str(e)
print(json.dumps(found))
"""


@pytest.mark.long
def test_the_engine_may_be_ray(directory):
  found = _found(directory, ON_RAY)
  assert found['ended'] == 'budget'
  assert '--ray_address' in found['refused']
  assert "no group 'learner'; it has counter, worker" in found['group']
