"""A run directory appears whole or not at all, and never covers another."""

import collections
import dataclasses
import datetime
import os
import pathlib
import shutil
import sys

import numpy as np
import pytest

from murmuration.run_records import jsonable
from murmuration.run_records import run_directory


@dataclasses.dataclass(frozen=True)
class _Config:
  environment: str = 'CartPole-v1'
  sizes: tuple[int, ...] = (64, 64)
  rate: np.float32 = np.float32(0.5)
  limit: float = float('inf')


def _everything_in(path):
  return sorted(str(p.relative_to(path)) for p in path.rglob('*'))


def test_what_is_written_is_read_back(tmp_path):
  path = tmp_path / 'runs' / 'a'
  made = run_directory.create(
    path, _Config(), {'python': '3.10'}, command="run.py '--name=a b'"
  )
  run = run_directory.open(path)
  assert made.path == run.path == path
  assert run.config() == {
    'environment': 'CartPole-v1',
    'sizes': [64, 64],
    'rate': 0.5,
    'limit': float('inf'),
  }
  assert jsonable.read(path / 'versions.json') == {'python': '3.10'}
  assert run.commands() == ["run.py '--name=a b'"]
  assert run.kinds() == [] and run.metrics('evaluation') == []
  assert run.summary() is None
  assert run.logs.is_dir() and run.checkpoints.is_dir()


def test_a_directory_that_holds_a_run_is_refused_and_left_alone(tmp_path):
  path = tmp_path / 'a'
  run_directory.create(path, {'seed': 1}, {})
  with pytest.raises(run_directory.RunDirectoryRefused, match='--run_dir'):
    run_directory.create(path, {'seed': 2}, {})
  assert run_directory.open(path).config() == {'seed': 1}


def test_a_directory_with_other_things_is_refused(tmp_path):
  (tmp_path / 'thesis.tex').touch()
  with pytest.raises(run_directory.RunDirectoryRefused, match=r'thesis\.tex'):
    run_directory.create(tmp_path, {}, {})
  assert _everything_in(tmp_path) == ['thesis.tex']


def test_an_empty_directory_is_taken(tmp_path):
  assert run_directory.create(tmp_path, {}, {}).config() == {}


def test_a_run_that_was_refused_after_all_can_be_started_again(tmp_path):
  (tmp_path / 'empty').mkdir()
  path = tmp_path / 'run'
  path.symlink_to(tmp_path / 'empty')
  for seed in (1, 2):
    run = run_directory.create(path, {'seed': seed}, {}, command='a')
    assert run.config() == {'seed': seed} and run.commands() == ['a']
    assert path.is_symlink()
    run_directory.discard(path)


def test_it_is_a_run_when_all_of_it_is_there(tmp_path, monkeypatch):
  seen = []
  (tmp_path / 'there').mkdir()
  (tmp_path / 'link').symlink_to(tmp_path / 'there')
  write = run_directory.jsonable.write

  def watched(path, value):
    seen.append((path.name, _everything_in(tmp_path / 'there')))
    write(path, value)

  monkeypatch.setattr(run_directory.jsonable, 'write', watched)
  run_directory.create(tmp_path / 'link', {}, {})
  name, there = seen[-1]
  assert name == 'config.json'
  assert there == sorted(
    ['checkpoints', 'command.txt', 'logs', 'metrics', 'versions.json']
  )


def test_of_two_that_fill_one_directory_the_second_leaves_the_first_s_run(
  tmp_path, monkeypatch
):
  mkdir = pathlib.Path.mkdir

  def raced(path, *args, **options):
    monkeypatch.setattr(pathlib.Path, 'mkdir', mkdir)
    run_directory.create(tmp_path, {'seed': 1}, {})
    mkdir(path, *args, **options)

  monkeypatch.setattr(pathlib.Path, 'mkdir', raced)
  with pytest.raises(run_directory.RunDirectoryRefused, match='File exists'):
    run_directory.create(tmp_path, {'seed': 2}, {})
  assert run_directory.open(tmp_path).config() == {'seed': 1}


def test_a_directory_of_runs_is_said_to_be_none_itself(tmp_path):
  run_directory.create(tmp_path / 'a', {}, {})
  with pytest.raises(run_directory.RunDirectoryRefused, match='holds a[.]'):
    run_directory.create(tmp_path, {}, {})


def test_what_the_library_s_command_started_can_be_pasted(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(sys, 'argv', ['murmuration run', 'ppo', '--run_dir=a b'])
  run = run_directory.create(tmp_path / 'a', {}, {})
  assert run.commands() == ["murmuration run ppo '--run_dir=a b'"]


@pytest.mark.parametrize('below', ['', 'deeper/run'])
def test_a_file_in_the_way_is_named(tmp_path, below):
  (tmp_path / 'file').touch()
  with pytest.raises(run_directory.RunDirectoryRefused, match='--run_dir'):
    run_directory.create(tmp_path / 'file' / below, {}, {})


def test_a_full_disk_is_refused_before_anything_is_written(
  tmp_path, monkeypatch
):
  usage = collections.namedtuple('usage', 'total used free')
  monkeypatch.setattr(
    shutil, 'disk_usage', lambda _: usage(10**9, 10**9 - 5_000_000, 5_000_000)
  )
  with pytest.raises(
    run_directory.RunDirectoryRefused, match='5 MB free; a run needs 200 MB'
  ):
    run_directory.create(tmp_path / 'runs' / 'a', {}, {})
  assert _everything_in(tmp_path) == []


def test_a_place_without_the_right_to_write_is_refused(tmp_path, monkeypatch):
  monkeypatch.setattr(os, 'access', lambda *unused: False)
  with pytest.raises(run_directory.RunDirectoryRefused, match='--run_dir'):
    run_directory.create(tmp_path / 'a', {}, {})
  assert _everything_in(tmp_path) == []


def test_a_disk_that_fills_up_in_between_leaves_nothing_half_written(
  tmp_path, monkeypatch
):
  def full(*_):
    raise OSError(28, 'No space left on device')

  monkeypatch.setattr(run_directory.jsonable, 'write', full)
  with pytest.raises(run_directory.RunDirectoryRefused, match='No space left'):
    run_directory.create(tmp_path / 'a', {}, {})
  assert _everything_in(tmp_path) == []


def test_a_config_that_json_cannot_hold_is_refused_before_writing(tmp_path):
  with pytest.raises(TypeError, match='function'):
    run_directory.create(tmp_path / 'a', {'f': lambda: 0}, {})
  assert _everything_in(tmp_path) == []


def test_resume_keeps_what_is_there_and_the_old_config(tmp_path):
  path = tmp_path / 'a'
  run_directory.create(path, {'budget': 1}, {'x': '1'}, command='first')
  (path / 'logs' / 'explorer-0.log').write_text('before')
  run = run_directory.create(
    path, {'budget': 2}, {'x': '2'}, command='second', resume=True
  )
  assert run.config() == {'budget': 2}
  assert jsonable.read(path / 'versions.json') == {'x': '2'}
  assert (path / 'config.1.json').read_text() == '{\n  "budget": 1\n}\n'
  assert run.commands() == ['first', 'second']
  assert (path / 'logs' / 'explorer-0.log').read_text() == 'before'
  run_directory.create(path, {'budget': 2}, {}, resume=True)
  assert not (path / 'config.2.json').exists()


def test_resume_of_nothing_names_the_runs_that_are_there(tmp_path):
  run_directory.create(tmp_path / 'good', {}, {})
  with pytest.raises(run_directory.RunDirectoryRefused, match='good'):
    run_directory.create(tmp_path / 'godo', {}, {}, resume=True)
  with pytest.raises(run_directory.RunDirectoryRefused, match='not there'):
    run_directory.open(tmp_path / 'godo')
  assert not (tmp_path / 'godo').exists()


def test_default_paths_are_flat_and_no_two_are_the_same(tmp_path):
  now = datetime.datetime(2026, 1, 2, 3, 4, 5)
  runs = tmp_path / 'runs'
  path, again, third = (
    run_directory.default_path('pso_dqn', 'ALE/Pong-v5', runs, now)
    for _ in range(3)
  )
  assert path == runs / 'pso_dqn-ALE-Pong-v5-20260102-030405'
  assert (again.name, third.name) == (f'{path.name}-2', f'{path.name}-3')
  # A run takes the place that was made for it; a refused one leaves nothing.
  assert run_directory.create(again, {}, {}).config() == {}
  for one in (path, again, third):
    run_directory.give_back(one)
  assert list(runs.iterdir()) == [again]
  shutil.rmtree(again)
  run_directory.give_back(
    run_directory.default_path('pso_dqn', 'ALE/Pong-v5', runs, now)
  )
  assert list(tmp_path.iterdir()) == []


def test_a_place_for_runs_that_cannot_be_is_a_sentence(tmp_path):
  (tmp_path / 'file').touch()
  (tmp_path / 'link').symlink_to(tmp_path / 'nowhere')
  for name in ('file', 'link'):
    with pytest.raises(run_directory.RunDirectoryRefused, match='--run_dir'):
      run_directory.default_path('ppo', 'CartPole-v1', tmp_path / name)


def test_a_neighbour_that_may_not_be_looked_into_is_left_out(
  tmp_path, monkeypatch
):
  run_directory.create(tmp_path / 'a', {}, {})
  (tmp_path / 'closed').mkdir()
  stat = os.stat

  def closed(path, **options):
    if 'closed' in os.fspath(path):
      raise PermissionError(13, 'Permission denied')
    return stat(path, **options)

  monkeypatch.setattr(os, 'stat', closed)
  with pytest.raises(run_directory.RunDirectoryRefused, match='there.*/a[.]'):
    run_directory.open(tmp_path / 'gone')
