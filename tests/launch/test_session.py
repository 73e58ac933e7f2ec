"""How a run of the terminal begins: whose directory it is, what is refused."""

import dataclasses
import json
import os
import pathlib
import shutil
import signal
import types

import launchpad as lp
import numpy as np
import pytest

from murmuration.launch import cell as cell_lib
from murmuration.launch import engines
from murmuration.launch import rpc
from murmuration.launch import session
from murmuration.launch.engines import state
from murmuration.launch.services import counter as counter_lib
from murmuration.replay import tensors
from murmuration.run_records import checkpoints
from murmuration.run_records import commands
from murmuration.run_records import durable
from murmuration.run_records import follow
from murmuration.run_records import jsonable
from murmuration.run_records import plots
from murmuration.run_records import run_directory
from murmuration.run_records import view


def test_a_second_resume_is_refused_while_the_first_looks_at_its_checkpoints(
  tmp_path, monkeypatch, capsys
):
  cell = cell_lib.resolve('dqn')
  path = tmp_path / 'run'
  run_directory.create(path, cell.config, {})

  def resume():
    return session.run(cell, 'local_mt', path, resume=True, isolate='off')

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


@dataclasses.dataclass(frozen=True)
class _Wrapped:
  handle: object


def _nothing(experiment, config):
  return lp.Program('mine')


def _uncounted(experiment, config):
  program = lp.Program('mine')
  with program.group('worker'):
    program.add_node(lp.PyNode(print))
  return program


def _hidden(experiment, config):
  program = lp.Program('mine')
  with program.group('counter'):
    server = program.add_node(rpc.Node(object))
  with program.group('client'):
    program.add_node(lp.PyNode(print, _Wrapped(server)))
  return program


@pytest.mark.parametrize(
  'build, said',
  [
    (_nothing, "'mine' has no nodes"),
    (_uncounted, "'counter' of the program 'mine' has 0 nodes"),
    (_hidden, 'A handle is inside a _Wrap'),
  ],
)
def test_a_program_that_cannot_run_is_refused_in_a_sentence(
  tmp_path, capsys, build, said
):
  cell, path = cell_lib.resolve('dqn'), tmp_path / 'run'
  topology = types.SimpleNamespace(SECTION=cell.topology.SECTION, build=build)
  cell = dataclasses.replace(cell, topology=topology)
  assert session.run(cell, 'local_mt', path, isolate='off') == commands.USAGE
  assert said in capsys.readouterr().err
  assert not path.exists()


@pytest.mark.parametrize('broken', ['live view', 'on_tick callback'])
def test_what_watches_and_fails_takes_nothing_else_along(
  tmp_path, monkeypatch, capsys, broken
):
  seen = {'live view': 0, 'on_tick callback': 0}

  def watch(what):
    seen[what] += 1
    if what == broken:
      raise KeyError('not there')

  def run(program, how, run_dir, on_tick, ray):
    for _ in range(3):
      on_tick(None)
    return state.Outcome(state.INTERRUPTED, 'over', [])

  cell = cell_lib.resolve('dqn')
  monkeypatch.setattr(engines, 'run', run)
  monkeypatch.setattr(
    view.LiveView, '__call__', lambda self, state: watch('live view')
  )
  code = session.run(
    cell,
    'local_mt',
    tmp_path / 'run',
    isolate='off',
    on_tick=lambda path: watch('on_tick callback'),
  )
  assert code == state.INTERRUPTED
  assert seen == {'live view': 3, 'on_tick callback': 3}
  (said,) = [
    line for line in capsys.readouterr().err.splitlines() if broken in line
  ]
  assert said.startswith('warning: ') and 'not there' in said
  assert said.partition(' ')[2] in (
    (tmp_path / 'run' / 'logs' / 'launcher.log').read_text()
  )


def test_where_nodes_would_hang_nothing_is_written(tmp_path, capsys):
  import tensorflow as tf

  tf.zeros(3)  # as an environment that uses it where it is made
  cell, path = cell_lib.resolve('dqn'), tmp_path / 'run'
  assert session.run(cell, 'local_mp', path, isolate='off') == commands.USAGE
  said = capsys.readouterr().err
  assert '--lp_launch_type=local_mt' in said and not path.exists()


def test_what_does_not_fit_into_memory_is_a_sentence(
  tmp_path, monkeypatch, capsys
):
  cell, path = cell_lib.resolve('dqn'), tmp_path / 'run'

  def build(*unused):
    raise MemoryError('no room for 313 GiB')

  monkeypatch.setattr(cell_lib.Cell, 'build', build)
  assert session.run(cell, 'local_mt', path, isolate='off') == commands.USAGE
  assert 'no room for 313 GiB' in capsys.readouterr().err
  assert not path.exists()


def _ended(monkeypatch, during, outcome=state.FINISHED):
  """Has engines end at once with an outcome, after `during(run_dir, tick)`."""

  def run(program, how, run_dir, on_tick, ray):
    during(run_dir, on_tick)
    return state.Outcome(outcome, 'all nodes finished', [])

  monkeypatch.setattr(engines, 'run', run)


@pytest.fixture
def interrupt():
  """interrupt(): Ctrl-C, as a command gets it that does not ignore it."""
  before = signal.signal(signal.SIGINT, signal.default_int_handler)
  yield lambda: signal.raise_signal(signal.SIGINT)
  signal.signal(signal.SIGINT, before)


def test_nodes_inherit_tensors_that_leave_nothing_behind(tmp_path, monkeypatch):
  order = []
  monkeypatch.setattr(tensors, 'stop_leak', lambda: order.append('tensors'))
  _ended(monkeypatch, lambda path, tick: order.append('nodes'))
  cell = cell_lib.resolve('dqn')
  session.run(cell, 'local_mt', tmp_path / 'run', isolate='off')
  assert order == ['tensors', 'nodes']


@pytest.mark.parametrize(
  'harm, said',
  [
    (lambda path: path.rename(path.with_name('elsewhere')), 'moved or removed'),
    (lambda path: (path / 'config.json').unlink(), 'moved or removed'),
    (lambda path: None, 'took no summary.json'),
  ],
)
def test_a_run_that_is_not_kept_has_not_succeeded(
  tmp_path, monkeypatch, capsys, harm, said
):
  _ended(monkeypatch, lambda path, tick: harm(path))
  cell, path = cell_lib.resolve('dqn'), tmp_path / 'run'
  assert session.run(cell, 'local_mt', path, isolate='off') == state.FAILED
  shown = capsys.readouterr().out
  assert 'Failed: ' in shown
  assert said in shown and str(path) in shown


def _last_save_fails(path, *unused):
  """A run that ends well, but for a disk that has no room for its learner."""
  learner = checkpoints.directory(path) / 'worker-0.npz'
  checkpoints.write(learner, theta=np.ones(2), updates=10_776)
  durable.unsaved(learner).touch()  # by the save of update 39,128
  _counted(path)


def _counted(path):
  totals = {'actor_steps': 30_000, 'learner_steps': 39_128}
  ended = {'outcome': 'budget', 'reason': 'used', 'finished': True}
  jsonable.write(path / 'summary.json', {**ended, 'totals': totals})


@pytest.mark.parametrize(
  'outcome, code',
  [(state.FINISHED, state.FAILED), (state.INTERRUPTED, state.INTERRUPTED)],
)
def test_a_run_whose_last_save_failed_says_what_there_is(
  tmp_path, monkeypatch, capsys, outcome, code
):
  _ended(monkeypatch, _last_save_fails, outcome)
  cell, path = cell_lib.resolve('dqn'), tmp_path / 'run'
  assert session.run(cell, 'local_mt', path, isolate='off') == code
  shown = capsys.readouterr()
  failed = code == state.FAILED
  said = 'the last save failed: worker-0.npz'
  assert said in (shown.out if failed else shown.err)
  assert ('Failed: the last save failed' in shown.out) == failed
  found = json.loads((path / 'summary.json').read_text())
  assert (found['outcome'] == 'failed' and said in found['reason']) == failed
  # One that goes on is told, and judged by its own saves alone.
  _ended(monkeypatch, lambda path, tick: _counted(path))
  more = session.run(cell, 'local_mt', path, resume=True, isolate='off')
  shown = capsys.readouterr()
  assert said in shown.err
  assert more == state.FINISHED and said not in shown.out


def test_a_copy_of_a_run_without_its_logs_goes_on_with_a_warning(
  tmp_path, monkeypatch, capsys
):
  _ended(monkeypatch, _last_save_fails)
  cell, path = cell_lib.resolve('dqn'), tmp_path / 'run'
  session.run(cell, 'local_mt', path, isolate='off')
  shutil.rmtree(path / 'logs')
  _ended(monkeypatch, lambda path, tick: _counted(path))
  more = session.run(cell, 'local_mt', path, resume=True, isolate='off')
  said = 'the last save failed: worker-0.npz'
  assert more == state.FINISHED, capsys.readouterr().err
  assert said in capsys.readouterr().err
  assert said in (path / 'logs' / 'launcher.log').read_text()


def _only_best_fails(path, *unused):
  """A run that ends well, but for what is only played, and its replay."""
  directory = checkpoints.directory(path)
  checkpoints.write(directory / 'worker-0.npz', updates=39_128)
  for name in (checkpoints.BEST, 'ring-0.npz'):
    durable.unsaved(directory / name).touch()
  _counted(path)


def test_a_run_that_lacks_only_what_none_goes_on_from_has_succeeded(
  tmp_path, monkeypatch, capsys
):
  _ended(monkeypatch, _only_best_fails)
  cell, path = cell_lib.resolve('dqn'), tmp_path / 'run'
  assert session.run(cell, 'local_mt', path, isolate='off') == state.FINISHED
  shown = capsys.readouterr()
  log = (path / 'logs' / 'launcher.log').read_text()
  said = 'the last save failed: best.npz, ring-0.npz'
  assert said in shown.err and said in log


@pytest.mark.parametrize(
  'outcome, counted, kept',
  [
    # The counter was asked to stop, or was the one that failed.
    (state.FAILED, {'finished': False, 'outcome': 'stopped'}, 'failed'),
    (state.FAILED, None, 'failed'),
    (state.FAILED, {'finished': True, 'outcome': 'goal'}, 'goal'),
    # Nothing was learned in all that was asked for, or a node failed then.
    (state.FINISHED, {'finished': True, 'outcome': 'budget'}, 'failed'),
    (state.FAILED, {'finished': True, 'outcome': 'budget'}, 'failed'),
    (state.INTERRUPTED, {'finished': False, 'outcome': 'stopped'}, 'stopped'),
  ],
)
def test_the_summary_of_a_failed_run_says_why(
  tmp_path, monkeypatch, outcome, counted, kept
):
  path = tmp_path / 'run' / 'summary.json'

  def during(*unused):
    if counted is not None:
      totals = {'totals': {'actor_steps': 3}, 'reason': 'its own'}
      path.write_text(json.dumps({**counted, **totals}))

  _ended(monkeypatch, during, outcome)
  cell, failed = cell_lib.resolve('dqn'), kept == 'failed'
  code = session.run(cell, 'local_mt', path.parent, isolate='off')
  assert code == (state.FAILED if failed else outcome)
  found = json.loads(path.read_text())
  assert found['outcome'] == kept
  assert found['finished'] == bool(counted and counted['finished'])
  said = 'its own'
  if failed:
    said = 'no update' if outcome == state.FINISHED else 'all nodes finished'
  assert found['reason'].startswith(said)
  assert found['totals'] == ({} if counted is None else {'actor_steps': 3})


def test_the_summary_of_a_run_whose_counter_was_killed_has_what_it_counted(
  tmp_path, monkeypatch
):
  path = tmp_path / 'run'

  def during(*unused):
    counter = counter_lib.Counter(path)
    counter.report('actor/0', {'actor_steps': 7})
    counter.snapshot()  # of the live view: it is saved

  _ended(monkeypatch, during, state.FAILED)
  cell = cell_lib.resolve('dqn')
  assert session.run(cell, 'local_mt', path, isolate='off') == state.FAILED
  found = json.loads((path / 'summary.json').read_text())
  assert found['outcome'] == 'failed' and not found['finished']
  assert found['totals'] == {'actor_steps': 7}


def test_no_room_for_what_an_engine_needs_is_a_sentence(
  tmp_path, monkeypatch, capsys
):
  def run(*unused, **unused_too):
    raise OSError(28, 'No space left on device')

  monkeypatch.setattr(engines, 'run', run)
  cell, path = cell_lib.resolve('dqn'), tmp_path / 'run'
  assert session.run(cell, 'local_mt', path, isolate='off') == commands.USAGE
  assert 'No space left on device' in capsys.readouterr().err
  assert not path.exists()


@pytest.mark.parametrize('error', [KeyError('row'), KeyboardInterrupt()])
@pytest.mark.parametrize('outcome', [state.FINISHED, state.FAILED])
def test_a_plot_that_fails_leaves_the_outcome_as_it_was(
  tmp_path, monkeypatch, capsys, error, outcome
):
  def during(path, tick):
    ended = {'outcome': 'goal', 'totals': {}, 'finished': True, 'reason': 'y'}
    (path / 'summary.json').write_text(json.dumps(ended))

  def draw(path):
    raise error

  _ended(monkeypatch, during, outcome)
  monkeypatch.setattr(plots, 'learning_curve', draw)
  cell, path = cell_lib.resolve('dqn'), tmp_path / 'run'
  assert session.run(cell, 'local_mt', path, isolate='off') == outcome
  shown = capsys.readouterr()
  assert 'warning: no learning curve: ' in shown.err
  assert ('Failed' if outcome else 'Finished') in shown.out


@pytest.mark.parametrize('outcome', [state.FINISHED, state.FAILED])
def test_an_interrupt_just_after_the_end_leaves_result_and_exit_code(
  tmp_path, monkeypatch, capsys, interrupt, outcome
):
  def during(path, tick):
    tick(state.RunState([]))
    _counted(path)
    interrupt()

  def checked(outcome, directory, warn):
    interrupt()
    return outcome

  _ended(monkeypatch, during, outcome)
  monkeypatch.setattr(session.outcome_lib, 'checked', checked)
  cell, path = cell_lib.resolve('dqn'), tmp_path / 'run'
  assert session.run(cell, 'local_mt', path, isolate='off') == outcome
  shown = capsys.readouterr().out
  assert ('Failed' if outcome else 'Finished') in shown and '39,128' in shown
  with pytest.raises(KeyboardInterrupt):  # as before the run
    interrupt()


@pytest.mark.parametrize('outcome', [state.FINISHED, state.FAILED])
def test_an_interrupt_while_sinks_end_leaves_the_outcome_as_it_was(
  tmp_path, monkeypatch, capsys, interrupt, outcome
):
  class Follower:
    def __init__(self, *unused):
      pass

    def close(self):
      interrupt()

  def during(path, tick):
    tick(state.RunState([]))
    ended = {'outcome': 'goal', 'totals': {}, 'finished': True, 'reason': 'y'}
    (path / 'summary.json').write_text(json.dumps(ended))

  _ended(monkeypatch, during, outcome)
  monkeypatch.setattr(follow, 'Follower', Follower)
  cell, path, sinks = cell_lib.resolve('dqn'), tmp_path / 'run', ['mine']
  code = session.run(cell, 'local_mt', path, isolate='off', sinks=sinks)
  assert code == outcome
  shown = capsys.readouterr()
  assert 'mine not waited for: interrupted' in shown.err
  assert ('Failed' if outcome else 'Finished') in shown.out


def test_what_started_a_run_is_kept_as_its_caller_says_it(
  tmp_path, monkeypatch
):
  _ended(monkeypatch, lambda path, tick: tick(state.RunState([])))
  cell, path, line = cell_lib.resolve('dqn'), tmp_path / 'run', "train('dqn')"
  session.run(cell, 'local_mt', path, isolate='off', command=line)
  assert run_directory.open(path).commands() == [line]


@pytest.mark.parametrize('begun', [False, True])
def test_an_interrupt_that_no_engine_took_leaves_what_has_run(
  tmp_path, monkeypatch, capsys, begun
):
  def during(path, tick):
    if begun:
      tick(state.RunState([]))
    raise KeyboardInterrupt

  _ended(monkeypatch, during)
  cell, path = cell_lib.resolve('dqn'), tmp_path / 'run'
  assert session.run(cell, 'local_mt', path, isolate='off') == 130
  assert capsys.readouterr().err.endswith('interrupted\n')
  # One of which nothing ran is no obstacle to the same command.
  assert path.exists() == begun
  assert not (path / 'launcher.json').exists()


def test_a_run_is_where_the_command_was_given(tmp_path, monkeypatch, capsys):
  built = []
  build = cell_lib.Cell.build

  def remember(cell, run_dir):
    built.append(run_dir)
    return build(cell, run_dir)

  monkeypatch.setattr(cell_lib.Cell, 'build', remember)
  monkeypatch.chdir(tmp_path)

  def leave(path, tick):
    built.append(str(path))
    os.chdir('/')  # as an environment in a thread may do

  _ended(monkeypatch, leave, state.INTERRUPTED)
  cell, path = cell_lib.resolve('dqn'), pathlib.Path('runs', 'mine')
  assert session.run(cell, 'local_mt', path, isolate='off') == 130
  assert built == [str(tmp_path / path)] * 2
  assert pathlib.Path.cwd() == tmp_path
  assert f'In {path}' in capsys.readouterr().out
