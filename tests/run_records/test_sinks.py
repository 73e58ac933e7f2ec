"""Sinks get every row once, and cannot hurt a run."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from murmuration.run_records import follow
from murmuration.run_records import jsonable
from murmuration.run_records import launcher
from murmuration.run_records import metrics
from murmuration.run_records import packages
from murmuration.run_records import run_directory
from murmuration.run_records import sinks

NULL = (
  'murmuration.run_records.sinks:Sink'  # takes all, and does nothing with it
)


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


class Failing(Fake):
  """Takes so many rows, and fails at the next one."""

  left = 0

  def row(self, kind, row):
    if not Failing.left:
      raise OSError('no network')
    Failing.left -= 1
    super().row(kind, row)


@pytest.fixture
def fakes(monkeypatch):
  monkeypatch.setattr(Fake, 'got', [])
  monkeypatch.setattr(sinks, '_MAKE', {'fake': Fake, 'failing': Failing})


@pytest.fixture(autouse=True)
def patient(monkeypatch):
  monkeypatch.setattr(follow, '_PATIENCE_S', 300.0)  # of a busy machine


@pytest.fixture
def run(tmp_path):
  config = {'agent': {'learning_rate': 1e-3}, 'seed': 1}
  return run_directory.create(tmp_path / 'run', config, {})


def _log(run):
  writer = metrics.MetricsWriter(run.metrics_directory)
  for kind, row in (
    ('evaluation', {'actor_steps': 5, 'return_mean': 2.0, 'returns': [2]}),
    ('node_explorer', {'actor_steps': 7, 'node': 'explorer/0', 'loss': 0.5}),
  ):
    writer.row(kind, row)
    writer.scalars(*metrics.tagged(kind, row))
  writer.close()


def _feed(run, name):
  follow.feed(run, name, lambda seconds: True)


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
  _feed(run, 'fake')
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
  _feed(run, 'fake')
  first = [got for got in Fake.got if got[0] == 'evaluation']
  assert first == [('evaluation', 5)]
  with path.open('a') as file:
    file.write('\n')
  jsonable.write(run.path / 'summary.json', {'finished': True})
  Fake.got.clear()
  _feed(run, 'fake')
  assert Fake.got == [
    ('evaluation', 9),
    ({'evaluation/return_mean': 3.0}, 9),
    ('close', True),
  ]
  # The second is told that it is the first one.
  state = jsonable.read(run.path / 'sinks' / 'fake.json')
  assert state['sink'] == {'number': 0}


@pytest.mark.parametrize('well', range(2))
def test_what_was_taken_before_a_failure_is_not_sent_again(
  run, fakes, monkeypatch, well
):
  for step in (5, 6):
    with (run.metrics_directory / 'evaluation.jsonl').open('a') as file:
      file.write(json.dumps({'actor_steps': step, 'return_mean': 2.0}) + '\n')
  monkeypatch.setattr(Failing, 'left', well)
  with pytest.raises(OSError):
    _feed(run, 'failing')
  monkeypatch.setattr(Failing, 'left', 2)
  _feed(run, 'failing')
  numbers = {'evaluation/return_mean': 2.0}
  assert Fake.got == [
    ('evaluation', 5), (numbers, 5), ('evaluation', 6), (numbers, 6),
    ('close', False),
  ]  # fmt: skip


def test_of_several_sinks_one_that_fails_does_not_stop_the_others(
  run, fakes, command, monkeypatch
):
  _log(run)
  monkeypatch.setattr(sinks, 'parse', lambda text: text.split(','))
  assert command('failing,fake') == 1
  assert Fake.got.count(('evaluation', 5)) == 1
  assert Fake.got[-1] == ('close', False)


def test_a_run_that_is_still_running_is_refused(run, command):
  _log(run)
  with launcher.claim(run.path):
    assert command(NULL) == 2
  assert command(NULL) == 0


def test_a_sink_that_is_not_known_or_not_installed_is_refused(monkeypatch):
  with pytest.raises(ValueError, match='wandb, mlflow'):
    sinks.parse('wandbb')
  assert sinks.parse('') == () and sinks.parse(f'{NULL},{NULL}') == (NULL,)
  found = importlib.util.find_spec
  monkeypatch.setattr(
    packages.importlib.util,
    'find_spec',
    lambda name: None if name == 'mlflow' else found(name),
  )
  with pytest.raises(ValueError, match='pip install mlflow-skinny') as error:
    sinks.parse(f'{NULL},mlflow')
  assert '--sink=mlflow' in str(error.value)


_OWN_SINK = """
import json
from murmuration.run_records import sinks

class MySink(sinks.Sink):
  def __init__(self, run, state):
    self.path, self.times = run.path / 'mine.txt', state.get('times', 0)

  def state(self):
    return {'times': self.times}

  def row(self, kind, row):
    self.times += 1
    with self.path.open('a') as file:
      file.write(f'{self.times} {kind} {row["actor_steps"]}\\n')

class NoSink: pass
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
  """A directory with a sink of a user's own, and where the user is."""
  where = tmp_path / 'own'
  where.mkdir()
  (where / 'my_own_sink.py').write_text(_OWN_SINK)
  monkeypatch.chdir(where)
  return where


def test_a_sink_of_one_s_own_is_named_and_gets_what_is_new(
  run, own, monkeypatch
):
  monkeypatch.syspath_prepend(own)
  name = 'my_own_sink:MySink'
  assert sinks.parse(f'{NULL},{name}') == (NULL, name)
  _log(run)
  _feed(run, name)
  with (run.metrics_directory / 'evaluation.jsonl').open('a') as file:
    file.write(json.dumps({'actor_steps': 9}) + '\n')
  _feed(run, name)
  assert sorted((run.path / 'mine.txt').read_text().splitlines()) == [
    '1 evaluation 5',
    '2 node_explorer 7',
    '3 evaluation 9',
  ]


def test_a_sink_that_needs_no_setup_is_made_as_it_is(run):
  assert isinstance(sinks.Sink(run, {}), sinks.Sink)


@pytest.mark.parametrize(
  ('name', 'said'),
  [
    (
      'my_own_sink:NoSink',
      'a type, not a sink: .* murmuration.run_records.sinks.Sink',
    ),
    ('my_own_sink:MySin', "Did you mean 'my_own_sink:MySink'"),
    ('my_other_sink:MySink', "the module 'my_other_sink', which does not"),
    ('my_own_sink', 'One of your own is named module:Name'),
  ],
)
def test_what_is_no_sink_of_one_s_own_is_refused(own, monkeypatch, name, said):
  monkeypatch.syspath_prepend(own)
  with pytest.raises(ValueError, match=said):
    sinks.parse(name)


def test_the_launcher_s_process_finds_what_the_launcher_found(
  run, own, monkeypatch
):
  monkeypatch.syspath_prepend(own)
  monkeypatch.chdir(run.path)
  _log(run)
  follower = follow.Follower(run.path, ['my_own_sink:MySink'])
  follower.close()
  assert len((run.path / 'mine.txt').read_text().splitlines()) == 2


def test_the_command_finds_a_sink_where_the_user_is(run, own):
  _log(run)
  done = subprocess.run(
    [sys.executable, str(follow.__file__), run.path, '--to=my_own_sink:MySink'],
    capture_output=True,
    text=True,
    timeout=100,
  )
  assert done.returncode == 0, done.stderr
  assert len((run.path / 'mine.txt').read_text().splitlines()) == 2


@pytest.fixture
def command(run, monkeypatch):
  """command(sink): the exit code of `murmuration sink` of the run."""

  def feed(sink):
    monkeypatch.setattr(sys, 'argv', ['sink', str(run.path), f'--to={sink}'])
    monkeypatch.setattr(sys, 'path', [*sys.path])
    return follow.main()

  return feed


def test_a_command_that_names_no_sink_is_refused(command, capsys):
  assert command('') == 2
  assert '--to= names no sink' in capsys.readouterr().err


@pytest.mark.parametrize(
  ('outcome', 'well'), [('budget', True), ('failed', False)]
)
def test_a_run_that_failed_at_its_end_is_not_said_to_have_finished(
  run, fakes, outcome, well
):
  summary = {'finished': True, 'outcome': outcome}
  jsonable.write(run.path / 'summary.json', summary)
  _feed(run, 'fake')
  assert Fake.got == [('close', well)]


def test_the_launcher_s_process_ends_with_it(run, capsys):
  _log(run)
  follow.Follower(run.path, [NULL]).close()
  assert capsys.readouterr().err == ''
  read = jsonable.read(run.path / 'sinks' / f'{NULL}.json')['read']
  assert set(read) == {'evaluation', 'node_explorer'}


@pytest.mark.parametrize(('state', 'code'), [('{}', 0), ('', 1)])
def test_a_process_forked_meanwhile_does_not_hold_up_the_end(
  run, capsys, state, code
):
  _log(run)
  (run.path / 'sinks').mkdir()
  (run.path / 'sinks' / f'{NULL}.json').write_text(state)
  follower = follow.Follower(run.path, [NULL])
  held = os.dup(follower._processes[NULL].stdin.fileno())  # as every fork does
  follower.close()
  os.close(held)
  warned = f'not all numbers are in {NULL}' in capsys.readouterr().err
  assert warned == bool(code)


def test_a_run_that_is_refused_leaves_no_process(tmp_path, capsys):
  follow.Follower(tmp_path / 'none', [NULL]).close()
  assert capsys.readouterr().err == ''
  assert list(tmp_path.iterdir()) == []


def test_the_command_reads_a_run_that_is_over(run):
  _log(run)
  done = subprocess.run(
    [sys.executable, '-m', 'murmuration', 'sink', run.path, f'--to={NULL}'],
    capture_output=True,
    text=True,
    timeout=100,
  )
  assert done.returncode == 0, done.stderr
  assert jsonable.read(run.path / 'sinks' / f'{NULL}.json')['read']
