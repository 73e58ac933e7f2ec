"""What evaluate.py refuses before it plays, and what make says without RUN."""

import json
import subprocess
import sys
import types

from gymnasium.envs.classic_control import cartpole
import numpy as np
import pytest

from murmuration import episodes
from murmuration import export
from murmuration import playing
from murmuration.launch import evaluate
from murmuration.launch import session
from murmuration.run_records import commands
from murmuration.run_records import run_directory

REFUSED = {
  'no run': ([], 'RUN'),
  'a run that is not there': (['nowhere'], 'nowhere'),
  'no episodes': (['run', '--episodes=0'], '0 is below 1'),
  'a film of another kind': (['run', '--video=film.avi'], '.gif or .mp4'),
  'a film where nothing can be': (
    ['run', '--video=run/config.json/a.gif'],
    'config.json/a.gif cannot be written',
  ),
  'a misspelt flag': (['run', '--episode=3'], 'Did you mean --episodes?'),
  'a config of an agent alone': (['half'], "half: its config.json has no 'ag"),
}


@pytest.fixture(scope='module')
def answers(run_commands, tmp_path_factory):
  directory = tmp_path_factory.mktemp('evaluate')
  (directory / 'run').mkdir()
  # An agent is not even made: it would say that it is not known.
  (directory / 'run' / 'config.json').write_text(json.dumps({}))
  (directory / 'half').mkdir()
  (directory / 'half' / 'config.json').write_text('{"agent_name": "dqn"}')
  cases = {
    'help': ['--help'],
    **{name: argv for name, (argv, _) in REFUSED.items()},
  }
  found = run_commands(
    [{'argv': argv, 'cwd': str(directory)} for argv in cases.values()],
    script='evaluate.py',
  )
  return dict(zip(cases, found, strict=True))


@pytest.mark.parametrize('name', REFUSED)
def test_what_cannot_be_played_or_filmed_is_refused_at_once(answers, name):
  answer = answers[name]
  assert answer['code'] == 2, answer
  assert answer['stdout'] == ''
  (line,) = answer['stderr'].splitlines()
  assert line.startswith('error: ') and REFUSED[name][1] in line


def test_help_shows_an_example_and_all_flags(answers):
  text = answers['help']['stdout']
  assert answers['help']['code'] == 0
  assert 'python launch/evaluate.py runs/NAME' in text
  for flag in ('--episodes', '--seed', '--video', '--film_steps'):
    assert flag in text


@pytest.mark.parametrize(('flags', 'code'), [([], 0), (['--video=a.gif'], 1)])
@pytest.mark.parametrize('fault', ['no room', 'no pictures'])
def test_a_film_that_nobody_asked_for_may_fail(
  tmp_path, monkeypatch, capsys, flags, code, fault
):
  run = run_directory.create(tmp_path / 'run', {'environment': 'A-v0'}, {})

  def refuse(*unused):
    raise OSError(fault)

  spec = types.SimpleNamespace(name='A-v0')
  kept = playing.Kept(types.SimpleNamespace(spec=spec), [], 'a test')
  result = types.SimpleNamespace(returns=np.ones(3), broken=0)
  monkeypatch.setattr(playing, 'load', lambda run: kept)
  monkeypatch.setattr(playing, 'evaluate', lambda *unused, **too: result)
  monkeypatch.setattr(export, 'policy', lambda kept: None)
  monkeypatch.setattr(episodes, 'record', refuse)
  if fault == 'no room':
    monkeypatch.setattr(evaluate.film, 'check', refuse)
    code *= commands.USAGE  # said before anything is played
  monkeypatch.setattr(sys, 'argv', ['evaluate.py', str(run.path), *flags])
  monkeypatch.setattr(sys, 'path', [*sys.path])
  assert evaluate.main() == code
  said = capsys.readouterr()
  assert fault in said.err
  assert ('mean 1.0' in said.out) == (code != commands.USAGE)


class StuckInStep(cartpole.CartPoleEnv):
  max_episode_steps = 9

  def step(self, action):
    raise KeyError('the lift is stuck')


class StuckInReset(cartpole.CartPoleEnv):
  max_episode_steps = 9

  def reset(self, **options):
    raise RuntimeError('the lift is stuck')


@pytest.mark.parametrize('stuck', ['StuckInStep', 'StuckInReset'])
def test_an_environment_that_raises_is_said_in_a_sentence(
  tmp_path, monkeypatch, capsys, stuck
):
  config = {'environment': f'{__name__}:{stuck}'}
  run = run_directory.create(tmp_path / 'run', config, {})

  def zeros(observations):
    return np.zeros(len(observations), int)

  spec = types.SimpleNamespace(name=config['environment'])
  agent = types.SimpleNamespace(greedy=lambda theta: zeros, spec=spec)
  kept = playing.Kept(agent, [], 'a test')
  monkeypatch.setattr(playing, 'load', lambda run: kept)
  monkeypatch.setattr(sys, 'argv', ['evaluate.py', str(run.path)])
  monkeypatch.setattr(sys, 'path', [*sys.path])
  assert evaluate.main() == 1
  (line,) = capsys.readouterr().err.splitlines()
  assert line.startswith('No returns: ') and 'the lift is stuck' in line
  assert 'test_evaluate.py:' in line


def test_make_evaluate_without_a_run_lists_those_that_there_are(tmp_path):
  (tmp_path / 'Makefile').symlink_to(session.root() / 'Makefile')
  (tmp_path / 'runs' / 'ppo-1').mkdir(parents=True)
  done = subprocess.run(
    # A Python that fails: nothing is built for a question.
    ['make', 'evaluate', 'PYTHON=false'],
    cwd=tmp_path,
    capture_output=True,
    text=True,
    timeout=60,
  )
  assert done.returncode == 2
  assert 'Which run?' in done.stderr and 'runs/ppo-1/' in done.stderr
