"""What is broken is named in a few lines, with exit code 2, not in a trace."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from murmuration.launch import command_line
from murmuration.launch import session
from murmuration.run_records import checkpoints
from murmuration.run_records import commands
from murmuration.run_records import run_directory


def refused(capsys, *argv):
  """What a command says that cannot work."""
  assert command_line.main(list(argv)) == commands.USAGE
  said = capsys.readouterr().err
  assert said.count('\n') <= 10 and 'Traceback' not in said
  return said


@pytest.mark.parametrize(
  'source, said',
  [
    ('AGENT = (', 'SyntaxError'),
    ('1 / 0', 'ZeroDivisionError: division by zero'),
    ('raise RuntimeError("no licence")', 'no licence'),
  ],
)
def test_a_module_of_the_users_that_cannot_be_imported(
  capsys, tmp_path, monkeypatch, source, said
):
  (tmp_path / 'my_broken_module.py').write_text(source)
  monkeypatch.syspath_prepend(tmp_path)
  for flags in (
    ['my_broken_module:AGENT'],
    ['dqn', '--topology=my_broken_module:Topology'],
  ):
    sentence = refused(capsys, *flags)
    assert 'my_broken_module' in sentence and said in sentence


def test_a_value_that_is_no_python(capsys):
  for text in ('(2,', '(' * 250, 'x\0y'):
    sentence = refused(capsys, 'dqn', f'--config.agent.hidden_sizes={text}')
    assert 'agent.hidden_sizes' in sentence


@pytest.fixture
def run(tmp_path):
  """The directory of a run of dqn that has saved something."""
  from murmuration.launch import cell  # pylint: disable=g-import-not-at-top

  config = cell.resolve('dqn').config
  place = {'name': 'local_mp'}
  made = run_directory.create(tmp_path / 'run', config, {}, engine=place)
  path = made.path
  for steps in (1, 2):
    checkpoints.write_state(
      path / 'metrics' / checkpoints.COUNTER, {'steps': steps}
    )
  return path


@pytest.mark.parametrize(
  'content',
  [
    '[1]',
    'null',
    '',
    '{"agent": ',
    '3',
    '"dqn"',
    b'\xff\xfe',
    '{}',
    '[' * 100_000,
  ],
)
def test_a_config_that_is_none_is_named(capsys, run, content):
  path = run / 'config.json'
  path.write_bytes(content if isinstance(content, bytes) else content.encode())
  sentence = refused(capsys, f'--resume={run}')
  assert 'config.json' in sentence and str(run) in sentence


@pytest.mark.parametrize(
  'change',
  [
    {'agent': 3},
    {'agent': {'hidden_sizes': 'wide'}},
    {'environment': None},
    {'seed': 'x'},
    {'topology': 7},
    {'agent_name': []},
  ],
)
def test_a_config_with_something_else_in_it_is_named(capsys, run, change):
  path = run / 'config.json'
  path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
  assert str(run) in refused(capsys, f'--resume={run}')


def test_a_run_is_not_resumed_as_another(capsys, run):
  for words, said in (
    (['dqn'], 'leave dqn out'),
    (['--topology=swarm'], 'leave --topology out'),
    (['--seed=0'], 'leave --seed out'),
    (['--run_dir=other'], 'leave --run_dir out'),
    (['--config.swarm.b=3'], 'swarm'),
    (['--config.agent.gamma=0.5'], 'agent.gamma'),
  ):
    assert said in refused(capsys, *words, f'--resume={run}')


def test_a_counter_that_lost_its_content_is_not_gone_on_from(run):
  path = run / 'metrics' / checkpoints.COUNTER
  path.write_text('{}')
  said = []
  checkpoints.check(run, said.append)
  assert len(said) == 1 and 'Going on from counter.json.older' in said[0]
  assert checkpoints.read_state(path) == {'steps': 1}


def test_a_run_whose_counts_cannot_be_read_is_refused(capsys, run):
  path = run / 'metrics' / checkpoints.COUNTER
  for name in (path.name, f'{path.name}.older'):
    path.with_name(name).write_text('{"ste')
  sentence = refused(capsys, f'--resume={run}')
  assert 'counter.json is broken' in sentence and str(run) in sentence


def test_a_directory_that_cannot_be_one_is_named(capsys):
  assert 'names no directory' in refused(capsys, 'dqn', '--run_dir=')
  assert 'is not UTF-8' in refused(capsys, 'dqn', '--run_dir=a\udcff')


@pytest.mark.parametrize('name', ['größe', os.fsdecode(b'a\xff')])
def test_a_name_that_the_locale_cannot_read_is_refused(tmp_path, name):
  strict = {'LC_ALL': 'C', 'PYTHONUTF8': '0', 'PYTHONCOERCECLOCALE': '0'}
  script = pathlib.Path(session.__file__).with_name('run.py')
  done = subprocess.run(
    [sys.executable, str(script), 'dqn', f'--run_dir={name}'],
    cwd=tmp_path,
    env={**os.environ, **strict},
    capture_output=True,
    text=True,
    timeout=100,
  )
  assert done.returncode == commands.USAGE, done
  (line,) = done.stderr.splitlines()
  assert 'LC_ALL' in line and '--run_dir' in line
  assert list(tmp_path.iterdir()) == []


def test_a_working_directory_that_is_gone_is_said(
  capsys, tmp_path, monkeypatch
):
  gone = tmp_path / 'gone'
  gone.mkdir()
  monkeypatch.chdir(gone)
  gone.rmdir()
  assert 'working directory is not there' in refused(capsys, 'dqn')
