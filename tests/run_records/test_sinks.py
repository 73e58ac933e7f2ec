"""Sinks get every row once, and cannot hurt a run."""

import importlib.util
import json
import os
import subprocess
import sys
import time

import pytest

from murmuration.run_records import follow
from murmuration.run_records import jsonable
from murmuration.run_records import launcher
from murmuration.run_records import packages
from murmuration.run_records import run_directory
from murmuration.run_records import run_log
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


class Broken(Fake):
  def row(self, kind, row):
    raise OSError('no network')


@pytest.fixture
def fakes(monkeypatch):
  monkeypatch.setattr(Fake, 'got', [])
  monkeypatch.setattr(sinks, '_MAKE', {'fake': Fake, 'broken': Broken})


@pytest.fixture(autouse=True)
def patient(monkeypatch):
  monkeypatch.setattr(follow, '_PATIENCE_S', 300.0)  # of a busy machine


@pytest.fixture
def run(tmp_path):
  config = {'agent': {'learning_rate': 1e-3}, 'seed': 1}
  return run_directory.create(tmp_path / 'run', config, {})


def _log(run):
  log = run_log.RunLog(run.path)
  row = {'actor_steps': 5, 'return_mean': 2.0, 'returns': [2]}
  log.add('evaluator/0', 'evaluation', row, 5, 1.5)
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
  jsonable.write(run.path / 'summary.json', {'finished': True})
  Fake.got.clear()
  follow.follow(run, ['fake'], lambda seconds: True)
  assert Fake.got == [
    ('evaluation', 9),
    ({'evaluation/return_mean': 3.0}, 9),
    ('close', True),
  ]
  # The second is told that it is the first one.
  state = jsonable.read(run.path / 'sinks' / 'fake.json')
  assert state['sink'] == {'number': 0}


def test_a_sink_that_raises_is_left_out_and_others_get_all(run, fakes, caplog):
  _log(run)
  assert not follow.follow(run, ['broken', 'fake'], lambda seconds: True)
  assert 'no network' in caplog.text and 'broken' in caplog.text
  assert Fake.got.count(('evaluation', 5)) == 1
  assert Fake.got[-1] == ('close', False)


class Failing(Fake):
  """Takes so many calls, and fails at the next one."""

  left = 0

  def row(self, kind, row):
    self._call()
    super().row(kind, row)

  def scalars(self, values, step):
    self._call()
    super().scalars(values, step)

  def _call(self):
    if not Failing.left:
      raise OSError('no network')
    Failing.left -= 1


@pytest.mark.parametrize('well', range(4))
def test_what_was_taken_before_a_failure_is_not_sent_again(
  run, fakes, monkeypatch, well
):
  for step in (5, 6):
    with (run.metrics_directory / 'evaluation.jsonl').open('a') as file:
      file.write(json.dumps({'actor_steps': step, 'return_mean': 2.0}) + '\n')
  sinks._MAKE['failing'] = Failing
  monkeypatch.setattr(Failing, 'left', well)
  assert not follow.follow(run, ['failing'], lambda seconds: True)
  monkeypatch.setattr(Failing, 'left', 4)
  assert follow.follow(run, ['failing'], lambda seconds: True)
  numbers = {'evaluation/return_mean': 2.0}
  assert Fake.got == [
    ('evaluation', 5), (numbers, 5), ('evaluation', 6), (numbers, 6),
    ('close', False),
  ]  # fmt: skip
  assert Failing.left == well  # and nothing twice


def test_a_sink_whose_state_cannot_be_asked_is_not_sent_its_rows_again(
  run, fakes, monkeypatch
):
  _log(run)
  with monkeypatch.context() as patch:
    patch.setattr(Fake, 'state', lambda self: 1 / 0)
    assert not follow.follow(run, ['fake'], lambda seconds: True)
  assert Fake.got.count(('evaluation', 5)) == 1
  assert follow.follow(run, ['fake'], lambda seconds: True)
  assert Fake.got.count(('evaluation', 5)) == 1


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
  assert follow.follow(run, [name], lambda seconds: True)
  with (run.metrics_directory / 'evaluation.jsonl').open('a') as file:
    file.write(json.dumps({'actor_steps': 9}) + '\n')
  assert follow.follow(run, [name], lambda seconds: True)
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
  assert follower._process.returncode == 0
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


def test_a_sink_that_a_run_feeds_is_fed_by_nobody_else(run, command, capsys):
  _log(run)
  follower = follow.Follower(run.path, [NULL])
  try:
    deadline = time.monotonic() + 60
    while not (run.path / 'sinks' / f'{NULL}.json').exists():
      assert time.monotonic() < deadline
      time.sleep(0.01)
    assert command(NULL) == 2
    said = f'{NULL} of {run.path} is being fed by another process'
    assert said in capsys.readouterr().err
  finally:
    follower.close()
  assert command(NULL) == 0


@pytest.mark.parametrize('freed', [True, False])
def test_a_sink_that_another_process_feeds_is_waited_for_and_no_other(
  run, fakes, caplog, freed
):
  _log(run)
  lock = follow._lock(run, 'fake')
  assert follow._lock(run, 'fake') is None
  looks = []

  def ended(seconds):
    looks.append((run.path / 'sinks' / f'{NULL}.json').exists())
    if freed and len(looks) == 2:
      lock.close()
    return len(looks) == 3

  assert follow.follow(run, ['fake', NULL], ended) == freed
  assert looks == [False, True, True], 'it waits for the other'
  assert Fake.got.count(('evaluation', 5)) == freed
  assert ('fake got nothing' in caplog.text) != freed
  lock.close()


def test_a_sink_that_failed_is_free_for_another_process(run, fakes):
  _log(run)
  locks = []

  def ended(seconds):
    locks.append(follow._lock(run, 'broken'))
    locks[-1].close()
    return len(locks) == 2

  assert not follow.follow(run, ['broken'], ended)


def test_a_run_that_goes_on_is_not_said_to_be_over(
  run, fakes, command, monkeypatch
):
  monkeypatch.setattr(sinks, 'parse', lambda text: (text,))
  _log(run)
  with launcher.claim(run.path):
    assert command('fake') == 0
  assert ('evaluation', 5) in Fake.got and Fake.got[-1] == ('close', None)
  assert command('fake') == 0
  assert Fake.got.count(('evaluation', 5)) == 1
  assert Fake.got[-1] == ('close', False)


@pytest.mark.parametrize(
  ('outcome', 'well'), [('budget', True), ('failed', False)]
)
def test_a_run_that_failed_at_its_end_is_not_said_to_have_finished(
  run, fakes, outcome, well
):
  summary = {'finished': True, 'outcome': outcome}
  jsonable.write(run.path / 'summary.json', summary)
  assert follow.follow(run, ['fake'], lambda seconds: True)
  assert Fake.got == [('close', well)]


def test_the_launcher_s_process_ends_with_it(run):
  _log(run)
  follower = follow.Follower(run.path, [NULL])
  follower.close()
  assert follower._process.returncode == 0
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
  held = os.dup(follower._process.stdin.fileno())  # as every fork does
  follower.close()
  os.close(held)
  assert follower._process.returncode == code
  warned = f'not all numbers are in {NULL}' in capsys.readouterr().err
  assert warned == bool(code)


def test_a_run_that_is_refused_leaves_no_process(tmp_path):
  follower = follow.Follower(tmp_path / 'none', [NULL])
  follower.close()
  assert follower._process.returncode == 0
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
