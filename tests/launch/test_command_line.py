"""Where a resumed run goes on: on the engine that it was on."""

import types

import pytest

import murmuration
from murmuration import helper
from murmuration import process
from murmuration.launch import cell as cell_lib
from murmuration.launch import command_line
from murmuration.launch import engines
from murmuration.replay import isolation
from murmuration.run_records import commands
from murmuration.run_records import run_directory

RAY = ('--lp_launch_type', 'ray', '--cluster', 'worker:cpus=2')


@pytest.fixture
def places(tmp_path, monkeypatch):
  """The engines that sessions asked for, with what they asked of Ray."""
  found = []

  def run(program, how, ray=None, **more):
    asked = ray and (ray.address, [*ray.resources], ray.plain_replay)
    found.append((how, asked))
    return engines.Outcome(commands.INTERRUPTED, 'interrupted', ())

  monkeypatch.chdir(tmp_path)
  monkeypatch.delenv('RAY_ADDRESS', raising=False)
  monkeypatch.setattr(engines, 'run', run)
  monkeypatch.setattr(engines, 'check_ray', lambda: None)
  monkeypatch.setattr(engines, 'check', lambda *unused: None)
  return found


def _command(*words):
  return command_line.main([*words, '--isolate=off'])


@pytest.fixture
def started(places):
  """started(*flags) starts a run; goes_on(*flags) says where it goes on."""

  def start(*flags):
    assert _command('dqn', '--run_dir=run', *flags) == commands.INTERRUPTED
    return places.pop()

  def goes_on(*flags):
    assert _command('--resume=run', *flags) == commands.INTERRUPTED
    return places.pop()

  start.goes_on = goes_on
  return start


def test_a_run_goes_on_on_its_engine_each_time(started):
  started('--lp_launch_type=local_mt')
  for _ in range(2):
    assert started.goes_on()[0] == 'local_mt'
  # What is said stands from then on.
  for flags in (['--lp_launch_type', 'local_mp'], []):
    assert started.goes_on(*flags)[0] == 'local_mp'


def test_what_was_asked_of_ray_goes_with_it(started):
  started(*RAY, '--ray_plain_replay', '--ray_address=10.0.0.6:6379')
  for again in ([], ['--lp_launch_type=ray']):
    asked = '10.0.0.6:6379', ['worker:cpus=2'], True
    assert started.goes_on(*again) == ('ray', asked)
  flags = '--cluster=worker:cpus=1', '--ray_address=auto'
  asked = 'auto', ['worker:cpus=1'], True
  assert started.goes_on(*flags) == started.goes_on() == ('ray', asked)
  assert started.goes_on('--lp_launch_type=local_mt') == ('local_mt', None)


def test_a_job_goes_on_on_the_cluster_that_it_was_submitted_to(
  started, monkeypatch
):
  monkeypatch.setenv('RAY_ADDRESS', '10.0.0.6:6379')
  started(*RAY)
  monkeypatch.setenv('RAY_ADDRESS', '10.0.0.7:6379')
  assert started.goes_on()[1][0] == '10.0.0.7:6379'
  monkeypatch.delenv('RAY_ADDRESS')
  assert started.goes_on()[1][0] == '10.0.0.7:6379'
  started.goes_on('--ray_address=local')
  monkeypatch.setenv('RAY_ADDRESS', '10.0.0.7:6379')
  assert started.goes_on()[1][0] == ''


@pytest.mark.parametrize(
  'asked, more, last',
  [
    ({'engine': 'local_mt'}, {}, ('local_mt', None)),
    (
      {'engine': 'ray', 'ray_address': '10.0.0.6'},
      {},
      ('ray', ('10.0.0.6:6379', [], False)),
    ),
    (
      {'engine': 'ray', 'cluster': 'worker:cpus=2'},
      {'ray_address': 'auto'},
      ('ray', ('auto', ['worker:cpus=2'], False)),
    ),
  ],
)
def test_a_run_of_the_library_goes_on_on_its_engine(
  places, started, tmp_path, monkeypatch, asked, more, last
):
  class Process:
    """Does in this process what that of a run does."""

    def __init__(self, **words):
      words |= {'caller': 0, 'search_path': []}
      self._code = helper.main(types.SimpleNamespace(recv=lambda: words))

    def ended(self, timeout_s):
      return True

    def close(self):
      return self._code, ''

    def begun(self):
      return None

    def said(self):
      return []

    end = begun

  monkeypatch.setattr(isolation, 'enter', lambda mode: None)
  monkeypatch.setattr(process, 'Process', Process)
  run = murmuration.train('dqn', run_dir=tmp_path / 'run', **asked)
  assert run.stopped and run.resume(**more).stopped
  assert [how for how, _ in places] == [asked['engine']] * 2
  assert places[-1] == started.goes_on() == last


def test_a_run_that_does_not_say_its_engine_asks_for_it(started, capsys):
  config = cell_lib.resolve('dqn').config
  run_directory.create('run', config, {}, command="murmuration.train('dqn')")
  assert _command('--resume=run') == commands.USAGE
  (said,) = capsys.readouterr().err.splitlines()
  assert '--lp_launch_type' in said
  assert _command('--resume=run', '--print-config') == 0
  assert started.goes_on('--lp_launch_type=local_mt')[0] == 'local_mt'
  assert started.goes_on()[0] == 'local_mt'


@pytest.mark.parametrize('flags', [[], ['--list-settings']])
def test_a_run_of_objects_is_refused_with_what_goes_on_with_it(
  tmp_path, capsys, flags
):
  config = cell_lib.resolve('dqn').config
  for key in ('agent_name', 'environment'):
    config[key] = f'murmuration.given:{key.title()}'
  path = tmp_path / 'run'
  run_directory.create(path, config, {})
  assert command_line.main([f'--resume={path}', *flags]) == 2
  assert capsys.readouterr().err == (
    f'error: {path} was trained with Agent_Name and Environment, which '
    'only the script that defines it has. Go on there, in Python: murmuration.'
    f'load({str(path)!r}, agent=Agent_Name, environment=Environment)'
    '.resume().\n'
  )
