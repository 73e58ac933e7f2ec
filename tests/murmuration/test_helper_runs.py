"""What a helper process says of its run, who ends it, and the line it keeps."""

import importlib
import os
import signal
import sys
import threading
import time

import pytest

import murmuration
from murmuration import arguments
from murmuration import helper as helper_lib
from murmuration import objects
from murmuration import process
from murmuration import runs
from murmuration.launch import cell as cell_lib
from murmuration.launch import session
from murmuration.launch.engines import linux
from murmuration.launch.services import counter as counter_lib
from murmuration.run_records import commands
from murmuration.run_records import counter_file
from murmuration.run_records import metrics
from murmuration.run_records import run_directory


class Connection:
  """Of a caller that is gone, where `error` says so."""

  def __init__(self, error=None):
    self.error, self.sent = error, []
    self._ends = os.pipe()

  def fileno(self):
    return self._ends[1]

  def send(self, message):
    if self.error:
      raise self.error
    self.sent.append(message)


@pytest.fixture
def asked(monkeypatch):
  asked = []
  monkeypatch.setattr(helper_lib, '_asked', asked)
  previous = signal.signal(
    signal.SIGTERM, lambda number, _: asked.append(number)
  )
  yield asked
  signal.signal(signal.SIGTERM, previous)


CELL = cell_lib.resolve('dqn', overrides={'run.steps_per_agent': '1000'})


def test_only_who_cannot_be_told_is_gone(asked, tmp_path, monkeypatch):
  def counted(directory):
    raise OSError('cannot be read now')

  connection = Connection()
  with monkeypatch.context() as patch:
    patch.setattr(counter_file, 'counted', counted)
    helper_lib.Ticks(connection, tmp_path, CELL)()
  assert not asked and not connection.sent
  found = {'totals': {'actor_steps': 3}, 'elapsed_s': 1.0}
  monkeypatch.setattr(counter_file, 'counted', lambda directory: found)
  helper_lib.Ticks(connection, tmp_path, CELL)()
  assert not asked
  ((_, told),) = connection.sent
  assert (told['steps'], told['budget']) == (3, 1000)
  helper_lib.Ticks(Connection(BrokenPipeError()), tmp_path, CELL)()
  assert asked


def test_a_file_that_is_broken_costs_its_own_callbacks_alone_and_is_said_once(
  asked, tmp_path, monkeypatch, capsys
):
  directory = tmp_path / 'metrics'
  directory.mkdir()
  connection = Connection()
  ticks = helper_lib.Ticks(connection, tmp_path, CELL)
  (directory / 'counter.json').write_text('{')
  (directory / 'evaluation.jsonl').write_text('{"return_mean": 1.0}\n')
  for _ in range(3):
    ticks._next = 0.0
    ticks()
  assert connection.sent == [('evaluation', {'return_mean': 1.0})]
  (line,) = capsys.readouterr().err.splitlines()
  assert line.startswith('warning: ') and 'counter.json' in line
  # And the other way round.
  with (directory / 'evaluation.jsonl').open('a') as file:
    file.write('{\n')
  found = {'totals': {'actor_steps': 3}, 'elapsed_s': 1.0}
  monkeypatch.setattr(counter_file, 'counted', lambda directory: found)
  for _ in range(3):
    ticks._next = 0.0
    ticks()
  assert [kind for kind, _ in connection.sent[1:]] == 3 * ['tick']
  (line,) = capsys.readouterr().err.splitlines()
  assert line.startswith('warning: ') and 'evaluation' in line


def test_evaluations_are_told_once_and_whole_and_those_of_before_are_not(
  asked, tmp_path, monkeypatch
):
  directory = tmp_path / 'metrics'
  directory.mkdir()
  path = directory / 'evaluation.jsonl'
  path.write_text('{"return_mean": 1}\n{"return_')  # killed, and resumed
  read = []
  rows = metrics.rows
  monkeypatch.setattr(
    metrics, 'rows', lambda path, start: read.append(start) or rows(path, start)
  )
  connection = Connection()
  ticks = helper_lib.Ticks(connection, tmp_path, CELL)
  writer = metrics.MetricsWriter(directory)
  for number in (2, 3, 4):
    writer.row('evaluation', {'return_mean': number})
    with path.open('a') as file:
      file.write('{"return_')  # still being written
    ticks._next = 0.0
    ticks()
    writer.close()
    writer = metrics.MetricsWriter(directory)
  assert [row['return_mean'] for _, row in connection.sent] == [2, 3, 4]
  assert read == [19, 38, 57]  # nothing of before is read again


def test_steps_never_fall_while_the_counter_saves(tmp_path):
  """on_tick of the library, against a counter that counts and saves."""

  def quick():
    return 100 * time.monotonic()  # it saves every 5 ms

  counter = counter_lib.Counter(tmp_path, clock=quick)
  connection, stop = Connection(), threading.Event()
  ticks = helper_lib.Ticks(connection, tmp_path, CELL)

  def work():
    steps = 0
    while not stop.is_set():
      steps += 1
      counter.report('worker/0', {'actor_steps': steps})
      counter.hold('worker/0', 0.0)

  thread = threading.Thread(target=work)
  thread.start()
  try:
    for _ in range(1000):
      ticks._next = 0.0
      ticks()
  finally:
    stop.set()
    thread.join()
  told = [tick['steps'] for _, tick in connection.sent]
  assert len(set(told)) > 10
  assert told == sorted(told)


def test_offline_steps_are_those_in_which_a_run_makes_the_updates(
  tmp_path, monkeypatch
):
  found = {'totals': {'learner_steps': 100}, 'elapsed_s': 1.0}
  monkeypatch.setattr(counter_file, 'counted', lambda directory: found)
  cell = cell_lib.resolve('d4pg', topology='offline')
  connection = Connection()
  helper_lib.Ticks(connection, tmp_path, cell)()
  ((_, told),) = connection.sent
  assert told['steps'] == 400  # d4pg's pace


def test_an_interrupt_ends_what_is_under_way_and_no_process_but_in_an_import(
  tmp_path, monkeypatch
):
  def leave(code):
    raise SystemExit(code)

  monkeypatch.setattr(helper_lib.os, '_exit', leave)
  monkeypatch.setattr(commands, 'INTERRUPTED', 131)  # it has none of its own
  interrupt = helper_lib._Interrupt()
  interrupt(signal.SIGINT, sys._getframe())  # nothing is under way
  interrupt.busy = True
  with pytest.raises(KeyboardInterrupt):
    interrupt(signal.SIGINT, sys._getframe())
  (tmp_path / 'half_a_module.py').write_text(
    'import sys, signal\nsys.interrupt(signal.SIGINT, sys._getframe())\n'
  )
  monkeypatch.setattr(sys, 'interrupt', interrupt, raising=False)
  monkeypatch.syspath_prepend(tmp_path)
  with pytest.raises(SystemExit, match='131'):
    importlib.import_module('half_a_module')


@pytest.fixture
def kept_lines(tmp_path, monkeypatch):
  """What runs keep of how they were started, which end with that."""

  class Helper:
    """Does in this process what a helper process does."""

    def __init__(self, given, trains):
      pass

    def begin(self, operation, **words):
      connection = Connection()
      done = helper_lib.train(connection, **words)
      self._messages = [*connection.sent, ('done', done, 1)]

    def receive(self, timeout_s):
      return self._messages.pop(0)

    def result(self, message):
      return message[1]

    def said(self):
      return []

    def close(self):
      return ''

  made = []

  def run(cell, engine, path, resume, command=None, **options):
    kept = run_directory.create(
      path, cell.config, {}, command=command, resume=resume
    )
    made.append(kept.commands()[-1])
    return 0

  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(linux, 'die_with_parent', lambda *args: None)
  monkeypatch.setattr(process, 'Helper', Helper)
  monkeypatch.setattr(session, 'run', run)
  monkeypatch.setattr(runs.Run, '_called', lambda *args: None)
  return made


def test_a_run_keeps_the_line_of_python_that_made_it(
  kept_lines, asked, tmp_path, monkeypatch
):
  run = murmuration.train('dqn', steps=3_000)
  assert kept_lines.pop() == "murmuration.train('dqn', steps=3000)"
  run.resume(500, engine='local_mt', learning_rate=1e-4)
  assert kept_lines.pop() == (
    f"murmuration.load('{run.path.absolute()}').resume(steps=500, "
    "engine='local_mt', learning_rate=0.0001)"
  )
  murmuration.train(
    'dqn:cartpole',
    'Acrobot-v1',
    topology='gossip',
    engine='local_mt',
    seed=3,
    run_dir='here',
    sinks='murmuration.run_records.sinks:Sink',
    learning_rate='1e-3',
    run={'eval_episodes': 5, 'silent_s': 70.0},
    **{'gossip.num_learners': 2},
  )
  line = kept_lines.pop()
  assert line == (
    "murmuration.train('dqn:cartpole', 'Acrobot-v1', engine='local_mt', "
    "sinks='murmuration.run_records.sinks:Sink', topology='gossip', seed=3, "
    "run_dir='here', learning_rate='1e-3', "
    "run={'eval_episodes': 5, 'silent_s': 70.0}, "
    "**{'gossip.num_learners': 2})"
  )
  # It does the same again.
  config = run_directory.open('here').config()
  os.rename('here', 'before')
  eval(line)
  assert kept_lines.pop() == line
  assert run_directory.open('here').config() == config


def test_objects_of_a_caller_have_their_names_in_that_line():
  line = arguments.written(
    'train', (f'{objects.GIVEN}:Mine', f'{objects.GIVEN}:Poles'), {}, seed=1
  )
  assert line == 'murmuration.train(Mine, Poles, seed=1)'


def test_a_stop_before_the_run_is_one_of_the_run(asked, tmp_path, monkeypatch):
  monkeypatch.setattr(linux, 'die_with_parent', lambda *args: None)
  os.kill(os.getpid(), signal.SIGTERM)
  assert asked
  found = helper_lib.train(
    Connection(), tmp_path / 'run', {}, 'local_mp', 1000, agent='dqn'
  )
  assert found == (143, None)
  assert not (tmp_path / 'run').exists()
  # What comes a little later, the engine has with the first tick.
  engines = []
  signal.signal(signal.SIGTERM, lambda *args: engines.append(args))
  helper_lib.Ticks(Connection(), tmp_path, CELL)()
  assert len(engines) == 1 and not asked
