"""What a resumed run takes over from the command that it was started by."""

import shlex

import pytest

from launch import cell as cell_lib
from launch import command_line
from launch import engines
from launch import session
from run_records import commands
from run_records import run_directory

START = ['launch/run.py', 'dqn', '--lp_launch_type=local_mt']
RAY = ['run', 'dqn', '--lp_launch_type', 'ray', '--cluster', 'a:cpus=2']


@pytest.fixture
def resumed(tmp_path, monkeypatch):
  """resumed(*flags) starts a run by START again: what its session is told."""
  path = tmp_path / 'run'
  config = cell_lib.resolve('dqn').config
  run_directory.create(path, config, {}, command=shlex.join(START))
  told = {}

  def run(cell, engine, run_dir, resume, **more):
    assert resume and run_dir == path
    told.update(more, engine=engine)
    return 0

  def start(words):
    line = words if isinstance(words, str) else shlex.join(words)
    run_directory.create(path, config, {}, command=line, resume=True)

  def resume(*flags):
    words = [f'--resume={path}', *flags]
    assert command_line.main(words) == 0
    start(['launch/run.py', *words])  # as a session would
    return told

  monkeypatch.setattr(session, 'run', run)
  monkeypatch.setattr(engines, 'check_ray', lambda: None)
  resume.path, resume.start = path, start
  return resume


def test_a_run_goes_on_on_its_engine_each_time(resumed):
  for _ in range(2):
    assert resumed()['engine'] == 'local_mt'


def test_what_is_said_stands_from_then_on(resumed):
  for flags in (['--lp_launch_type', 'local_mp'], []):
    assert resumed(*flags)['engine'] == 'local_mp'


@pytest.mark.parametrize('words', ["mm.train('dqn')", '', "it's"])
def test_a_line_that_is_no_command_says_nothing(resumed, words):
  resumed.start(words)
  assert resumed()['engine'] == 'local_mt'
  (resumed.path / 'command.txt').write_text('')
  assert resumed()['engine'] == 'local_mp'


def test_what_was_asked_of_ray_goes_with_it(resumed):
  resumed.start([*RAY, '--ray_plain_replay', '--ray_address=local'])
  for again in ([], ['--lp_launch_type=ray']):
    told = resumed(*again)
    assert told['engine'] == 'ray'
    assert told['ray'] == engines.Options('local', ['a:cpus=2'], True)
  told = resumed('--cluster=a:cpus=1')
  assert told['ray'].resources == ['a:cpus=1']
  told = resumed('--lp_launch_type=local_mt')
  assert told['engine'] == 'local_mt' and told['ray'] is None


def test_a_cluster_is_asked_for_and_not_guessed(resumed, capsys):
  resumed.start([*RAY, '--ray_address', '10.0.0.6:6379'])
  flag = f'--resume={resumed.path}'
  assert command_line.main([flag]) == commands.USAGE
  assert 'Say where it goes on: --ray_address=10.0' in capsys.readouterr().err
  assert command_line.main([flag, '--print-config']) == 0
  told = resumed('--ray_address=auto')
  assert told['engine'] == 'ray' and told['ray'].address == 'auto'


@pytest.mark.parametrize('flags', [[], ['--list-settings']])
def test_a_run_of_objects_is_refused_with_what_goes_on_with_it(
  resumed, capsys, flags
):
  config = cell_lib.resolve('dqn').config
  for key in ('agent_name', 'environment'):
    config[key] = f'murmuration.given:{key.title()}'
  run_directory.create(resumed.path, config, {}, resume=True)
  assert command_line.main([f'--resume={resumed.path}', *flags]) == 2
  assert capsys.readouterr().err == (
    f'error: {resumed.path} was trained with Agent_Name and Environment, which '
    'only the script that defines it has. Go on there, in Python: murmuration.'
    f'load({str(resumed.path)!r}, agent=Agent_Name, environment=Environment)'
    '.resume().\n'
  )
