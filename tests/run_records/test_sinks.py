"""Sinks get every row once, and cannot hurt a run."""

import csv
import importlib.util
import io
import json
import os
import subprocess
import sys

import pytest

from run_records import follow
from run_records import metrics
from run_records import packages
from run_records import run_directory
from run_records import run_log
from run_records import sinks


class Fake:
  """Remembers what it gets; made again, it goes on with the same list."""

  got: list = []

  def __init__(self, run, state):
    self.number = state.get('number', len(Fake.got))

  def state(self):
    return {'number': self.number}

  def row(self, kind, row):
    Fake.got.append((kind, row['actor_steps']))

  def scalars(self, values, step):
    Fake.got.append((values, step))

  def close(self, finished):
    Fake.got.append(('close', finished))


class Broken(Fake):
  def row(self, kind, row):
    raise OSError('no network')


@pytest.fixture
def fakes(monkeypatch):
  monkeypatch.setattr(Fake, 'got', [])
  monkeypatch.setattr(sinks, '_MAKE', {'fake': Fake, 'broken': Broken})


@pytest.fixture
def run(tmp_path):
  config = {'agent': {'learning_rate': 1e-3}, 'seed': 1}
  return run_directory.create(tmp_path / 'run', config, {})


def _log(run):
  log = run_log.RunLog(run.path)
  log.add('evaluation', {'actor_steps': 5, 'return_mean': 2.0, 'returns': [2]})
  log.node('explorer/0', {'loss': 0.5}, {'actor_steps': 3.0}, {}, 7, 1.5)
  log.close()


def _tags(run):
  """What TensorBoard's file has."""
  from tensorboard.backend.event_processing import event_accumulator

  found = event_accumulator.EventAccumulator(str(run.metrics_directory))
  found.Reload()
  return {
    (tag, event.value, event.step)
    for tag in found.Tags()['scalars']
    for event in found.Scalars(tag)
  }


def test_a_sink_gets_the_rows_and_what_tensorboard_gets(run, fakes):
  _log(run)
  assert follow.follow(run, ['fake'], lambda seconds: True)
  *rows, end = Fake.got
  assert [r for r in rows if isinstance(r[0], str)] == [
    ('evaluation', 5),
    ('node_explorer', 7),
  ]
  numbers = {
    (tag, value, step)
    for values, step in rows
    if isinstance(values, dict)
    for tag, value in values.items()
  }
  assert numbers == _tags(run)
  assert ('explorer_0/loss', 0.5, 7) in numbers
  assert end == ('close', False)  # no summary: broken off


def test_rows_come_once_also_where_a_run_goes_on(run, fakes):
  _log(run)
  path = run.metrics_directory / 'evaluation.jsonl'
  whole = json.dumps({'actor_steps': 9, 'return_mean': 3.0})
  with path.open('a') as file:
    file.write(whole)  # without its end: still being written
  follow.follow(run, ['fake'], lambda seconds: True)
  first = [got for got in Fake.got if got[0] == 'evaluation']
  assert first == [('evaluation', 5)]
  with path.open('a') as file:
    file.write('\n')
  metrics.write_json(run.path / 'summary.json', {'finished': True})
  Fake.got.clear()
  follow.follow(run, ['fake'], lambda seconds: True)
  assert Fake.got == [
    ('evaluation', 9),
    ({'evaluation/return_mean': 3.0}, 9),
    ('close', True),
  ]
  # The second is told that it is the first one.
  state = metrics.read_json(run.path / 'sinks' / 'fake.json')
  assert state['sink'] == {'number': 0}


def test_a_sink_that_raises_is_left_out_and_others_get_all(run, fakes, caplog):
  _log(run)
  assert not follow.follow(run, ['broken', 'fake'], lambda seconds: True)
  assert 'no network' in caplog.text and 'broken' in caplog.text
  assert Fake.got.count(('evaluation', 5)) == 1
  assert Fake.got[-1] == ('close', False)


def test_tables_have_every_row_and_every_column(run):
  _log(run)
  assert follow.follow(run, ['csv'], lambda seconds: True)
  text = (run.path / 'sinks' / 'csv' / 'evaluation.csv').read_text()
  (row,) = csv.DictReader(io.StringIO(text))
  assert row == {'actor_steps': '5', 'return_mean': '2.0', 'returns': '[2]'}
  assert (run.path / 'sinks' / 'csv' / 'node_explorer.csv').exists()


def test_a_sink_that_is_not_known_or_not_installed_is_refused(monkeypatch):
  with pytest.raises(ValueError, match='wandb, mlflow, csv, parquet'):
    sinks.parse('wandbb')
  assert sinks.parse('') == () and sinks.parse('csv,csv') == ('csv',)
  found = importlib.util.find_spec
  monkeypatch.setattr(
    packages.importlib.util,
    'find_spec',
    lambda name: None if name == 'mlflow' else found(name),
  )
  with pytest.raises(ValueError, match='pip install mlflow-skinny') as error:
    sinks.parse('csv,mlflow')
  assert '--sink=mlflow' in str(error.value)


def test_the_launcher_s_process_ends_with_it(run):
  _log(run)
  follower = follow.Follower(run.path, ['csv'])
  follower.close()
  assert follower._process.returncode == 0
  assert (run.path / 'sinks' / 'csv' / 'evaluation.csv').exists()


@pytest.mark.parametrize(('state', 'code'), [('{}', 0), ('', 1)])
def test_a_process_forked_meanwhile_does_not_hold_up_the_end(
  run, capsys, state, code
):
  _log(run)
  (run.path / 'sinks').mkdir()
  (run.path / 'sinks' / 'csv.json').write_text(state)
  follower = follow.Follower(run.path, ['csv'])
  held = os.dup(follower._process.stdin.fileno())  # as every fork does
  follower.close()
  os.close(held)
  assert follower._process.returncode == code
  warned = 'not all numbers are in csv' in capsys.readouterr().err
  assert warned == bool(code)


def test_a_run_that_is_refused_leaves_no_process(tmp_path):
  follower = follow.Follower(tmp_path / 'none', ['csv'])
  follower.close()
  assert follower._process.returncode == 0
  assert list(tmp_path.iterdir()) == []


def test_the_command_reads_a_run_that_is_over(run):
  _log(run)
  done = subprocess.run(
    [sys.executable, '-m', 'murmuration', 'sink', run.path, '--to=csv'],
    capture_output=True,
    text=True,
    timeout=100,
  )
  assert done.returncode == 0, done.stderr
  assert (run.path / 'sinks' / 'csv' / 'node_explorer.csv').exists()
