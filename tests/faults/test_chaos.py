"""The monkey of `make chaos`, for a moment."""

import dataclasses

import pytest

from murmuration.run_records import run_directory
from tests.faults import chaos
from tests.faults import launched


@pytest.mark.long
def test_a_run_survives_a_few_kills_and_stops(tmp_path, monkeypatch, capsys):
  # Its bar is of a whole run, which `make chaos` makes.
  apex = dataclasses.replace(chaos.SYSTEMS['apex'], bar=9.0)
  monkeypatch.setitem(chaos.SYSTEMS, 'apex', apex)
  small = (
    '--config.agent.hidden_sizes=(16,)',
    '--config.agent.batch_size=32',
    '--config.run.evaluations=2',
    '--config.run.eval_episodes=2',
    '--config.pace.samples_per_insert=16.0',
    '--config.run.steps_per_agent=20000',
  )
  code = chaos.main(
    ['--systems=apex', '--events=3', f'--out={tmp_path}', *small]
  )
  said = capsys.readouterr().out
  assert code == 0, said
  assert 'BROKEN' not in said
  assert '20,000 of 20,000' in said


def test_a_launcher_that_hangs_after_its_nodes_is_not_waited_for(
  tmp_path, monkeypatch
):
  hangs = tmp_path / 'hangs.py'
  hangs.write_text('import time; time.sleep(1000)')
  config = {'run': {'steps_per_agent': 8}}
  run_directory.create(tmp_path / 'impala-0', config, {})
  monkeypatch.setattr(launched, 'COMMAND', hangs)
  monkeypatch.setattr(chaos, '_END_S', 1.0)
  # A monkey with events left sees no node to meet.
  found = chaos.run('impala', 0, chaos.Monkey(0, 3), tmp_path, ())
  assert 'exit code None' in found.faults


def test_an_interrupt_leaves_no_launcher(tmp_path, monkeypatch):
  sleeps = tmp_path / 'sleeps.py'
  sleeps.write_text('import time; time.sleep(1000)')
  monkeypatch.setattr(launched, 'COMMAND', sleeps)
  launchers = []

  def visit(monkey, launcher):
    launchers.append(launcher)
    raise KeyboardInterrupt

  monkeypatch.setattr(chaos.Monkey, 'visit', visit)
  with pytest.raises(KeyboardInterrupt):
    chaos.run('impala', 0, chaos.Monkey(0, 3), tmp_path, ())
  (launcher,) = launchers
  assert not launcher.is_running()


@pytest.mark.parametrize('events', [-1, 0])
def test_events_are_at_least_one(tmp_path, capsys, events):
  with pytest.raises(SystemExit) as ended:
    chaos.main([f'--events={events}', f'--out={tmp_path}'])
  assert ended.value.code == 2
  assert f'--events={events}: give at least 1' in capsys.readouterr().err


def test_flags_that_are_refused_are_exit_code_2(tmp_path, monkeypatch, capsys):
  refuses = tmp_path / 'refuses.py'
  refuses.write_text('print("error: there is no setting agent.x")\nexit(2)\n')
  monkeypatch.setattr(launched, 'COMMAND', refuses)
  flags = ['--systems=impala', '--config.agent.x=1', f'--out={tmp_path}']
  assert chaos.main(flags) == 2
  assert (
    'impala ended with exit code 2: error: there is no setting agent.x'
    in capsys.readouterr().err
  )
