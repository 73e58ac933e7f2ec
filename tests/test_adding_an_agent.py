"""The code on docs/adding_an_agent.md works as it stands there."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

from murmuration.run_records import run_directory

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = ROOT / 'docs' / 'adding_an_agent.md'
STEPS = 1500


# The project's packages from here; the current directory is that of a user.
ENVIRONMENT = {**os.environ, 'PYTHONPATH': str(ROOT)}


def _blocks():
  """What the page has as Python: the agent, its test, its name."""
  return re.findall(r'```python\n(.*?)```', PAGE.read_text(), re.DOTALL)


@pytest.fixture(scope='module')
def project(tmp_path_factory):
  """A user's directory with the files of the page."""
  agent, test, named = _blocks()
  directory = tmp_path_factory.mktemp('project')
  (directory / 'expected_sarsa.py').write_text(agent)
  (directory / 'test_expected_sarsa.py').write_text(test)
  (directory / 'my_agents.py').write_text(named)
  (directory / 'own.py').write_text(
    'from murmuration.launch.topologies import single_process as ALONE\n'
  )
  return directory


@pytest.fixture(scope='module')
def command(project, run_commands):
  """command(script, *flags): what it prints.

  The current directory alone has the user's modules.
  """

  def done(script, *flags):
    case = {'argv': flags, 'cwd': str(project), 'mode': 'start'}
    (answer,) = run_commands([case], script)
    assert answer['code'] == 0, answer['stdout'] + answer['stderr']
    return answer['stdout']

  return done


@pytest.fixture(scope='module')
def run(project, command):
  command(
    'run.py',
    'my_agents:SARSA',
    '--run_dir=runs/try_it',
    f'--config.run.steps_per_agent={STEPS}',
  )
  return run_directory.open(project / 'runs' / 'try_it')


def test_the_page_s_test_passes(project):
  done = subprocess.run(
    [sys.executable, '-m', 'pytest', '-q', '-p', 'no:cacheprovider', '.'],
    cwd=project,
    env=ENVIRONMENT,
    capture_output=True,
    text=True,
    timeout=200,
  )
  assert done.returncode == 0, done.stdout + done.stderr
  assert '1 passed' in done.stdout


def test_an_agent_of_a_user_s_own_is_a_run_like_any_other(run):
  config = run.config()
  assert config['agent_name'] == 'my_agents:SARSA'
  assert config['topology'] == 'actor_learner'
  assert config['pace'] == {'samples_per_insert': 16.0}
  summary = run.summary()
  assert summary['outcome'] == 'budget'
  assert summary['totals']['actor_steps'] == STEPS
  assert summary['totals']['learner_steps'] > 0
  # From the page: `tail -1 .../evaluation.jsonl`.
  assert run.metrics('evaluation')[-1]['return_mean'] > 0
  assert (run.path / 'learning_curve.png').exists()


def test_it_is_played_and_goes_on(command, run):
  played = command('evaluate.py', 'runs/try_it', '--episodes=2', '--video=')
  assert 'on CartPole-v1, 2 episodes' in played and 'mean' in played
  more = 2 * STEPS
  command(
    'run.py', '--resume=runs/try_it', f'--config.run.steps_per_agent={more}'
  )
  assert run.summary()['totals']['actor_steps'] == more


def test_a_topology_of_a_user_s_own_is_named_as_an_agent_is(command):
  shown = command(
    'run.py', 'my_agents:SARSA', '--topology=own:ALONE', '--list-settings'
  )
  assert '--config.single.num_agents INT' in shown
  assert 'chance of a random action, here and in the target' in shown


def test_the_files_that_the_page_names_are_there():
  named = re.findall(r'`((?:agents|configs|launch|tests)/\w+\.py)`', _prose())
  new = {'expected_sarsa', 'test_expected_sarsa'}
  missing = [
    name
    for name in named
    if pathlib.Path(name).stem not in new and not (ROOT / name).exists()
  ]
  assert named and missing == []


def _prose():
  return re.sub(r'```python\n.*?```', '', PAGE.read_text(), flags=re.DOTALL)
