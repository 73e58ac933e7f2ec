"""How a run of the terminal begins: whose directory it is, what is refused."""

import pytest

from launch import cell as cell_lib
from launch import session
from run_records import checkpoints
from run_records import commands
from run_records import run_directory


def test_a_second_resume_is_refused_while_the_first_looks_at_its_checkpoints(
  tmp_path, monkeypatch, capsys
):
  cell = cell_lib.resolve('dqn')
  path = tmp_path / 'run'
  run_directory.create(path, cell.config, {})

  def resume():
    return session.run(cell, 'local_mp', path, resume=True, isolate='off')

  codes = []

  def check(*unused):
    if codes:
      pytest.fail('two of them have the run')
    codes.append(None)
    codes.append(resume())
    raise ValueError('a checkpoint is broken')

  monkeypatch.setattr(checkpoints, 'check', check)
  assert resume() == commands.USAGE
  assert codes[1] == commands.USAGE
  said = capsys.readouterr().err
  assert 'still running, as process' in said and 'is broken' in said
  # Who was refused leaves the run to the next.
  assert not (path / 'launcher.json').exists()


def test_a_refused_run_leaves_no_directory(tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  cell = cell_lib.resolve('dqn', topology='offline')  # of which data?
  assert session.run(cell, 'local_mp', isolate='off') == commands.USAGE
  assert 'names no data set' in capsys.readouterr().err
  assert list(tmp_path.iterdir()) == []
