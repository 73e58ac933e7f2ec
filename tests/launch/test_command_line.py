"""What a resumed run takes over from the command that it was started by."""

import pytest

from launch import cell as cell_lib
from launch import command_line
from launch import engines
from launch import session
from run_records import run_directory

START = ['launch/run.py', 'dqn', '--lp_launch_type=local_mt', '--sink=csv']


@pytest.fixture
def resumed(tmp_path, monkeypatch):
  """resumed(*flags) starts a run by START again: what its session is told."""
  path = tmp_path / 'run'
  config = cell_lib.resolve('dqn').config
  run_directory.create(path, config, {}, command=START)
  told = {}

  def run(cell, engine, run_dir, resume, **more):
    assert resume and run_dir == path
    told.update(more, engine=engine)
    return 0

  def resume(*flags):
    assert command_line.main([f'--resume={path}', *flags]) == 0
    return told

  monkeypatch.setattr(session, 'run', run)
  resume.path, resume.config = path, config
  return resume


def test_a_run_goes_on_on_its_engine(resumed):
  told = resumed()
  assert told['engine'] == 'local_mt' and len(told['sinks']) == 1


def test_what_is_said_now_stands(resumed):
  told = resumed('--lp_launch_type', 'local_mp', '--sink=')
  assert told['engine'] == 'local_mp' and not told['sinks']


def test_the_newest_start_is_what_counts(resumed):
  words = [*START[:1], f'--resume={resumed.path}', '--lp_launch_type=local_mp']
  run_directory.create(
    resumed.path, resumed.config, {}, command=words, resume=True
  )
  told = resumed()
  # It was not said then that numbers go elsewhere.
  assert told['engine'] == 'local_mp' and not told['sinks']


def test_a_run_of_python_goes_on_in_processes(resumed):
  run_directory.create(
    resumed.path, resumed.config, {}, command="mm.train('dqn')", resume=True
  )
  assert resumed()['engine'] == 'local_mp'


def test_flags_of_ray_go_with_their_engine(resumed, monkeypatch):
  monkeypatch.setattr(engines, 'check_ray', lambda address: None)
  words = [START[0], 'dqn', '--lp_launch_type', 'ray', '--cluster', 'a:cpus=2']
  run_directory.create(
    resumed.path, resumed.config, {}, command=[*words, '--ray_plain_replay'],
    resume=True,
  )  # fmt: skip
  told = resumed()
  assert told['engine'] == 'ray'
  assert told['ray'] == engines.Options('', ['a:cpus=2'], True)
  told = resumed('--lp_launch_type=local_mt')
  assert told['engine'] == 'local_mt' and told['ray'] is None
