"""The command that makes the runs of studies: interrupted, refused, alone."""

import os
import signal
import subprocess
import sys
import time

import pytest

from murmuration import jobs
from murmuration.launch import session
from murmuration.studies import results
from tests import commands
from tests.studies import stand_in


def _studies_file(tmp_path, mode=''):
  script = tmp_path / 'script.py'
  script.write_text(stand_in.SCRIPT)
  path = tmp_path / 'studies.py'
  path.write_text(f"""
from murmuration.studies import plan as study_plan
_FAKE = study_plan.Study(
  'fake', 'CartPole-v1', 1000, 10.0, 2,
  {{'DQN': study_plan.Variant((), script={str(script)!r}),
   'New': study_plan.Variant(('--mode={mode}',), script={str(script)!r})}},
  'DQN')
STUDIES = {{'fake': _FAKE}}
""")
  return path


def _command(tmp_path, *flags):
  return [
    sys.executable,
    str(session.root() / 'studies' / 'results.py'),
    f'--studies={tmp_path / "studies.py"}',
    f'--out={tmp_path / "out"}',
    *flags,
  ]


@pytest.mark.long
@pytest.mark.parametrize(
  'number, of_a_terminal', [(signal.SIGINT, True), (signal.SIGTERM, False)]
)
def test_an_interrupted_study_leaves_nothing_running_and_goes_on(
  tmp_path, processes_of, forker, number, of_a_terminal
):
  _studies_file(tmp_path, mode='wait')
  temporary = tmp_path / 'tmp'
  temporary.mkdir()
  variables = {**os.environ, 'TMPDIR': str(temporary)}
  with open(tmp_path / 'output.txt', 'w') as file:
    process = subprocess.Popen(
      _command(tmp_path),
      env=variables,
      stdout=file,
      stderr=file,
      # In the background a shell has everything it starts ignore Ctrl-C, these
      # tests among them.
      preexec_fn=lambda: signal.signal(
        signal.SIGINT, signal.SIG_DFL if of_a_terminal else signal.SIG_IGN
      ),
    )
  waiting = tmp_path / 'out' / 'fake' / 'runs' / 'new-0' / 'metrics'
  deadline = time.monotonic() + 100
  try:
    while not (waiting / 'waiting').exists():
      assert time.monotonic() < deadline and process.poll() is None
      time.sleep(0.05)
    process.send_signal(number)
    assert process.wait(timeout=60) == 130
    assert processes_of(temporary) == []
  finally:
    for left in [process, *processes_of(temporary)]:
      left.kill()
    process.wait()
  runs = tmp_path / 'out' / 'fake' / 'runs'
  assert (runs / 'asked_to_stop.txt').exists()
  assert {path.name for path in runs.glob('*.json')} == {'dqn-0.json'}
  assert 'The same command goes on' in (tmp_path / 'output.txt').read_text()
  output = tmp_path / 'again.txt'
  output.touch()
  _, script, *argv = _command(tmp_path)
  again = commands.Forked(
    forker,
    script=script,
    argv=argv,
    cwd=str(tmp_path),
    env={**variables, 'REPAIRED': '1'},
    output=str(output),
  )
  assert again.wait(200) == 0, output.read_text()
  # What had been made was not made again; what was interrupted was.
  assert stand_in.started(tmp_path / 'out') == [
    'dqn-0', 'new-0', 'new-0', 'dqn-1', 'new-1'
  ]  # fmt: skip


REFUSED = {
  'no such study': (['--study=apex'], "no study 'apex'; there are ['fake']"),
  'fewer seeds': (['--seeds=1', '--publish'], 'published with 2 seeds'),
  'no such variant': (['--variant=Old'], "no variant 'Old'"),
  'fewer variants': (['--variant=New', '--publish'], 'all variants'),
  'no seeds': (['--seeds=0'], 'seeds'),
  'a stray word': (['fake'], "'fake' is one word too many"),
  'no file': (['--studies=none.py'], 'none.py is no Python file'),
}


@pytest.fixture(scope='module')
def refusals(tmp_path_factory, run_commands):
  """Answers to all wrong commands, from forks of one process."""
  directory = tmp_path_factory.mktemp('commands')
  _studies_file(directory)
  cases = [
    {'argv': [*_command(directory)[2:], *argv], 'cwd': str(directory)}
    for argv, _ in REFUSED.values()
  ]
  answers = run_commands(cases, _command(directory)[1])
  assert not (directory / 'out').exists()
  return dict(zip(REFUSED, answers, strict=True))


@pytest.mark.parametrize('name', REFUSED)
def test_a_command_that_cannot_work_says_why_in_one_line(refusals, name):
  answer = refusals[name]
  assert (answer['code'], answer['stdout']) == (2, '')
  (line,) = answer['stderr'].splitlines()
  assert line.startswith('error: ') and REFUSED[name][1] in line


def test_the_command_below_a_table_names_the_file_of_its_study(
  tmp_path, monkeypatch
):
  path = _studies_file(tmp_path)
  told = []

  def run(*unused, arguments, **more):
    told.append(arguments)

  monkeypatch.setattr(signal, 'signal', lambda *unused: None)
  monkeypatch.setattr(results, 'run', run)
  monkeypatch.setattr(sys, 'argv', _command(tmp_path, '--variant=New')[1:])
  results.main()
  monkeypatch.setattr(sys, 'argv', ['results', f'--out={tmp_path / "out"}'])
  results.main()
  assert told == [
    ['--variant=New', f'--studies={path}'],
    [],
  ]


def test_two_commands_do_not_make_the_runs_of_one_study(
  tmp_path, monkeypatch, capsys
):
  _studies_file(tmp_path)
  monkeypatch.setattr(sys, 'argv', _command(tmp_path)[1:])
  monkeypatch.setattr(signal, 'signal', lambda *unused: None)
  monkeypatch.setattr(results, 'run', lambda *unused, **unused_too: 0)
  with jobs.alone([tmp_path / 'out' / 'other']):
    assert results.main() == 0
  with jobs.alone([tmp_path / 'out' / 'fake']):
    assert results.main() == 2
  said = capsys.readouterr().err
  assert f'another process is making runs in {tmp_path}/out/fake' in said
  assert results.main() == 0
