"""The code on docs/adding_an_agent.md works as it stands there."""

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = ROOT / 'docs' / 'adding_an_agent.md'
STEPS = 1500


def _blocks():
  """What the page has as Python: the agent, its test, what a command needs."""
  return re.findall(r'```python\n(.*?)```', PAGE.read_text(), re.DOTALL)


@pytest.fixture(scope='module')
def project(tmp_path_factory):
  """A directory with the files of the page where it wants them."""
  agent, test, entry = _blocks()
  directory = tmp_path_factory.mktemp('project')
  (directory / 'expected_sarsa.py').write_text(agent)
  (directory / 'test_expected_sarsa.py').write_text(test)
  (directory / 'sarsa.py').write_text(entry)
  return directory


def test_the_page_s_test_passes(project):
  done = subprocess.run(
    [sys.executable, '-m', 'pytest', '-q', '-p', 'no:cacheprovider', '.'],
    cwd=project,
    env={**os.environ, 'PYTHONPATH': str(ROOT)},
    capture_output=True,
    text=True,
    timeout=200,
  )
  assert done.returncode == 0, done.stdout + done.stderr
  assert '1 passed' in done.stdout


def test_the_page_s_agent_runs_under_actor_learner(project):
  done = subprocess.run(
    [sys.executable, ROOT / 'launch' / 'run.py', 'sarsa:AGENT']
    + ['--run_dir=runs/try_it', f'--config.run.steps_per_agent={STEPS}'],
    cwd=project,
    capture_output=True,
    text=True,
    timeout=200,
  )
  assert done.returncode == 0, done.stdout + done.stderr
  metrics = project / 'runs' / 'try_it' / 'metrics'
  summary = json.loads((metrics.parent / 'summary.json').read_text())
  assert summary['outcome'] == 'budget'
  assert summary['totals']['actor_steps'] == STEPS
  assert summary['totals']['learner_steps'] > 0
  rows = (metrics / 'evaluation.jsonl').read_text().splitlines()
  assert json.loads(rows[-1])['return_mean'] > 0


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
