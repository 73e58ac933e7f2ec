"""The live view shows what is known, and is never in the engine's way."""

import io
import re
import shlex
import subprocess
import sys
import threading
import time

import pytest
from rich import console as rich_console

from murmuration.launch.engines import state as state_lib
from murmuration.run_records import checkpoints
from murmuration.run_records import jsonable
from murmuration.run_records import run_directory
from murmuration.run_records import view
from murmuration.run_records import view_text
from tests.run_records import view_cases as cases


def test_lines_are_written_where_there_is_no_terminal():
  client = cases.Client(cases.snapshot())
  live, stream = cases.plain(client)
  live(cases.state(*cases.NODES))
  deadline = time.monotonic() + 60.0
  while not live._snapshot:
    assert time.monotonic() < deadline
    time.sleep(0.02)
  live.close()
  text = stream.getvalue()
  assert 'running: explorer/0, explorer/1, star/0\n' in text
  assert '\x1b' not in text
  last = text.splitlines()[-1]
  for words in (
    '[1:23] 412,300 of 930,000 env steps',
    'R* 412.5',
    'c 0.0183',
    'star learned for 1,200 learner steps',
    'accepted 7',
    'rejected 13',
    'greedy return 432.1',
  ):
    assert words in last


@pytest.fixture
def at_once(monkeypatch):
  """Lines come where something has changed, and at no other time."""
  monkeypatch.setattr(view, '_LINE_PERIOD_S', 3600.0)


def _wait_for(words, stream):
  deadline = time.monotonic() + 60.0
  while words not in stream.getvalue():
    assert time.monotonic() < deadline, stream.getvalue()
    time.sleep(0.02)


def test_the_clock_of_lines_never_falls():
  live, stream = cases.plain(cases.Client(cases.snapshot()))
  # The counter began three seconds after the engine.
  for elapsed_s, counted in ((4.0, None), (5.0, 2.0), (9.0, 6.0)):
    state = cases.state(cases.node(f'actor/{elapsed_s}'))
    state.elapsed_s = elapsed_s
    live._state = state
    live._snapshot = {'elapsed_s': counted} if counted else {}
    live._print_lines('', due=False)
  clocks = re.findall(r'^\[(.*?)\]', stream.getvalue(), re.M)
  assert clocks == ['0:04', '0:04', '0:06']


def test_a_dead_node_is_said_at_once_and_once(tmp_path, at_once):
  live, stream = cases.plain(cases.Client(cases.snapshot()))
  log = tmp_path / 'explorer-0.log'
  live(cases.state(cases.node('explorer/0')))
  for _ in range(3):
    live(
      cases.state(
        cases.node(
          'explorer/0',
          'restarting',
          restarts=1,
          log_path=log,
          last_error='Traceback\n  x\nValueError: NaN\n',
        )
      )
    )
  _wait_for('NaN', stream)
  live(cases.state(cases.node('explorer/0', restarts=1)))
  live.close()
  text = stream.getvalue()
  assert text.count('explorer/0: ValueError: NaN') == 1
  assert text.count(str(log)) == 1
  assert 'running again (1): explorer/0' in text


def test_a_notice_is_printed_at_once_and_once_and_so_is_its_end(at_once):
  live, stream = cases.plain(cases.Client(cases.snapshot()))
  for notice, words in (
    ('', 'running: learner/0'),
    ('silent for 12 s', 'learner/0 silent for 12 s'),
    ('', 'learner/0 goes on'),
  ):
    for _ in range(3):
      live(cases.state(cases.node('learner/0', notice=notice)))
      _wait_for(words, stream)
      time.sleep(0.05)
  # One that was killed for it does not.
  live(cases.state(cases.node('learner/0', notice='silent for 60 s')))
  _wait_for('silent for 60 s', stream)
  killed = cases.node('learner/0', state='restarting', last_error='silent')
  live(cases.state(killed))
  _wait_for('restarting: learner/0', stream)
  live.close()
  text = stream.getvalue()
  assert text.count('learner/0 silent for 12 s') == 1
  assert text.count('learner/0 goes on') == 1


_OVER = {
  'finished': True,
  'reason': 'the budget of 9 is used',
  'held': {'evaluator/0': 119.6},
}
_WAITED = 'the budget of 9 is used; waiting for evaluator/0'


def test_an_end_that_waits_says_for_whom_and_blames_nobody():
  waits = cases.node(
    'actor/0', notice="for 10 s now: Table 'replay' took no item"
  )
  silent = cases.node('actor/1', notice='silent for 12 s')
  snapshot = cases.snapshot(**_OVER)
  picture = cases.drawn(cases.state(waits, silent), snapshot)
  assert _WAITED in picture and 'took no item' not in picture
  assert 'actor/1 silent for 12 s' in picture
  assert 'took no item' in cases.drawn(cases.state(waits), cases.snapshot())
  assert view_text.line(snapshot, []).endswith(_WAITED)
  two = {**snapshot, 'held': {'evaluator/0': 40.0, 'evaluator/1': 7.0}}
  assert view_text.line(two, []).endswith('evaluator/0, evaluator/1')
  for change in ({'finished': False}, {'held': {}}):
    assert 'waiting for' not in view_text.line({**snapshot, **change}, [])


@pytest.mark.parametrize('over', ['finished', 'stopped', 'failed'])
def test_the_last_line_waits_for_no_node_that_has_ended(over):
  snapshot = cases.snapshot(**_OVER)  # of before that
  live, stream = cases.plain(cases.Client(snapshot))
  live._snapshot = snapshot
  live(cases.state(cases.node('evaluator/0', over)))
  live.close()
  text = stream.getvalue()
  assert '412,300 of 930,000 env steps' in text and 'waiting for' not in text
  state = cases.state(cases.node('evaluator/0', 'restarting'))
  assert _WAITED in cases.drawn(state, snapshot)


def test_a_wait_from_before_the_end_is_not_said_to_go_on(at_once):
  client = cases.Client(cases.snapshot(**_OVER))
  live, stream = cases.plain(client)
  waits = cases.node('actor/0', notice='for 10 s now: its limiter')
  live._noticed['actor/0'] = waits.notice
  live._snapshot = client._snapshot
  live(cases.state(waits))
  _wait_for('running: actor/0', stream)
  live.close()
  text = stream.getvalue()
  assert 'goes on' not in text and 'limiter' not in text


def test_a_terminal_that_is_held_holds_up_nothing():
  writing, release = threading.Event(), threading.Event()

  class Held(io.StringIO):
    def write(self, text):
      writing.set()
      release.wait(100)
      return super().write(text)

  console = rich_console.Console(file=Held())
  client = cases.Client(cases.snapshot())
  live = view.LiveView('runs/a', lambda: client, 'x', console=console)
  live(cases.state(cases.node('explorer/0')))
  assert writing.wait(60)  # Now the drawing thread is stuck in write.
  begin = time.monotonic()
  live(cases.state(cases.node('explorer/0', 'failed')))
  assert time.monotonic() - begin < 50.0
  live.close()
  assert time.monotonic() - begin < 50.0
  release.set()


@pytest.mark.parametrize('terminal', [True, False])
@pytest.mark.parametrize('error', [OSError(28, 'full'), BrokenPipeError()])
def test_an_output_that_takes_nothing_is_no_matter_of_the_run(
  tmp_path, monkeypatch, terminal, error
):
  class Gone(io.StringIO):
    def write(self, text):
      raise error

  console = rich_console.Console(
    file=Gone(), force_terminal=terminal, _environ={'TERM': 'xterm-256color'}
  )
  # At a broken pipe rich closes this process's standard output.
  with open(tmp_path / 'out', 'w') as out:
    monkeypatch.setattr('sys.stdout', out)
    live = view.LiveView(
      'runs/a', lambda: cases.Client(None), 'x', console=console
    )
    live(cases.state(cases.node('explorer/0')))
    live.close()
    live.final(state_lib.Outcome(0, 'done', cases.NODES))


def test_an_output_that_is_full_makes_no_exit_code():
  code = (
    'from murmuration.launch.engines import state\n'
    'from murmuration.run_records import view\n'
    "live = view.LiveView('runs/a', lambda: None, 'x')\n"
    "live(state.RunState([state.NodeState('a/0', state='running')]))\n"
    "live.final(state.Outcome(0, 'done', []))\n"
  )
  with open('/dev/full', 'w') as full:
    done = subprocess.run(
      [sys.executable, '-c', code], stdout=full, stderr=subprocess.PIPE
    )
  assert (done.returncode, done.stderr) == (0, b'')


def test_a_counter_that_comes_back_is_found_by_a_new_client():
  made = []

  class Dead:
    def snapshot(self):
      raise ConnectionError('gone')

  good = cases.Client(cases.snapshot())

  def factory():
    made.append(1)
    if len(made) == 1:
      raise ConnectionError('not there yet')
    return Dead() if len(made) == 2 else good

  console = rich_console.Console(file=io.StringIO())
  live = view.LiveView('runs/a', factory, 'x', console=console)
  live(cases.state(cases.node('explorer/0')))
  assert good.asked.wait(60)
  live.close()


def test_a_terminal_gets_the_picture_and_is_given_back():
  stream = io.StringIO()
  console = rich_console.Console(
    file=stream,
    force_terminal=True,
    width=90,
    height=40,
    _environ={'TERM': 'xterm-256color'},
  )
  client = cases.Client(cases.snapshot())
  live = view.LiveView('runs/a', lambda: client, 'PSO-DQN', console=console)
  if not live._picture:
    pytest.fail(f'encoding {console.encoding!r} is no UTF-8')
  live(cases.state(*cases.NODES))
  assert client.asked.wait(60)
  live.close()
  text = stream.getvalue()
  assert 'PSO-DQN' in text and 'explorer/0' in text
  # The cursor is hidden while the picture is drawn, and shown again.
  assert text.rindex('\x1b[?25h') > text.rindex('\x1b[?25l')


def _end(exit_code, reason, nodes, run_dir, snapshot=None):
  live, stream = cases.plain(
    cases.Client(snapshot or cases.snapshot()), run_dir
  )
  live._snapshot = snapshot or cases.snapshot()
  live.final(state_lib.Outcome(exit_code, reason, nodes))
  return stream.getvalue()


def test_the_end_says_the_result_the_places_and_what_comes_next(tmp_path):
  run = run_directory.create(tmp_path / 'a', {'seed': 0}, {})
  (run.checkpoints / 'star.npz').touch()
  snapshot = cases.snapshot(
    finished=True, reason='confirmed mean return of 480'
  )
  text = _end(0, 'counter/0 has returned', cases.NODES, run.path, snapshot)
  assert 'Finished: confirmed mean return of 480' in text
  for words in ('R* 412.5', 'version 6', 'star learned for 1,200 learner'):
    assert words in ' '.join(text.split())
  assert '412,300' in text and 'checkpoints' in text
  # By the command, where the environment has it.
  assert 'watch the policy' in text
  assert re.search(f'(murmuration |/)evaluate(.py)? {run.path}\n', text)
  assert f' -W ignore -m tensorboard.main --logdir {tmp_path}' in text
  assert f'--resume={run.path}' not in text  # It is finished.


def test_the_end_says_what_the_counter_wrote_where_it_never_answered(tmp_path):
  run = run_directory.create(tmp_path / 'a', {'seed': 0}, {})
  summary = {
    'totals': {'actor_steps': 7_500},
    'latest': {'evaluation': {'return_mean': 21.5, 'return_std': 2.0}},
    'elapsed_s': 61.0,
  }
  jsonable.write(run.path / 'summary.json', summary)
  live, stream = cases.plain(cases.Client({}), run.path)
  live.final(state_lib.Outcome(0, 'done', cases.NODES))
  text = stream.getvalue()
  assert '7,500' in text and '21.5 ± 2.0' in text and '1:01' in text


def test_an_interrupted_run_says_what_was_kept(tmp_path):
  run = run_directory.create(tmp_path / 'a', {'seed': 0}, {})
  text = _end(130, 'interrupted by Ctrl-C', cases.NODES, run.path)
  assert 'Interrupted by Ctrl-C' in text and f'In {run.path}' in text
  assert 'watch the policy' not in text  # There is none.
  (run.checkpoints / 'learner-0.npz').touch()
  text = _end(130, 'interrupted by Ctrl-C', cases.NODES, run.path)
  assert 'watch the policy' not in text  # That goes on, and is not played.
  assert re.search(f'(murmuration |/)run(.py)? --resume={run.path}\n', text)
  (run.path / 'summary.json').write_text('{"finished": true}')
  text = _end(1, 'no update was made', cases.NODES, run.path)
  assert '--resume' not in text.partition('Next')[2]  # It would end at once.
  text = _end(143, 'terminated (SIGTERM)', cases.NODES, run.path)
  assert 'Interrupted: terminated (SIGTERM)' in text


def test_commands_of_a_run_whose_path_has_a_space_can_be_copied(
  tmp_path, monkeypatch
):
  (tmp_path / 'an env' / 'bin').mkdir(parents=True)
  python = tmp_path / 'an env' / 'bin' / 'python'
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(sys, 'executable', str(python))
  run = run_directory.create(tmp_path / 'my runs' / 'a', {'seed': 0}, {})
  (run.checkpoints / 'best.npz').touch()
  (run.logs / 'explorer-0.log').touch()
  text = _end(1, 'explorer/0 failed for good', [], run.path)
  lines = text.partition('Next\n')[2].splitlines()[1::2]
  go_on, watch, curves, tail = map(shlex.split, lines)
  assert go_on[0] == watch[0] == curves[1] == 'an env/bin/python'
  assert go_on[-1] == f'--resume={run.path}' and watch[-1] == str(run.path)
  assert curves[-1] == str(run.path.parent)
  assert tail == ['tail', '-n', '20', f'{run.path}/logs/*.log']
  assert lines[-1].endswith('/*.log')  # which the shell is to see


def test_of_a_run_that_was_removed_no_command_is_offered_that_needs_it(
  tmp_path,
):
  path = tmp_path / 'a'
  (checkpoints.directory(path) / 'best.npz').touch()  # by a node, since
  text = _end(1, 'what was learned is not kept', [], path)
  (line,) = text.partition('Next\n')[2].splitlines()[1::2]
  assert line.endswith(f'--logdir {tmp_path}')
  assert 'Next' not in _end(1, 'not kept', [], tmp_path / 'gone' / 'a')


def test_no_command_is_offered_for_a_run_of_a_scripts_own_objects(tmp_path):
  config = {'agent_name': 'dqn', 'environment': 'murmuration.given:Mine'}
  run = run_directory.create(tmp_path / 'a', config, {})
  (run.checkpoints / 'best.npz').touch()
  text = _end(1, 'learner/0 failed for good', [], run.path)
  (line,) = text.partition('Next\n')[2].splitlines()[1::2]
  assert line.endswith(f'--logdir {tmp_path}')


def test_the_end_says_which_nodes_had_died(tmp_path):
  nodes = [
    cases.node('learner/0', state='finished', restarts=2, died_of='b: c'),
    cases.node('actor/0', state='stopped', restarts=1),
    cases.node('actor/1', state='stopped'),
  ]
  text = _end(0, 'the budget is used', nodes, tmp_path)
  said = 'learner/0 was started again 2 times; it had died last of: b: c\n'
  assert said in text
  assert 'actor/0 was started again once\n' in text and 'actor/1' not in text


def test_a_failed_run_ends_with_the_traceback_and_the_log(tmp_path):
  log = tmp_path / 'explorer-0.log'
  error = '\n'.join([f'  line {i}' for i in range(30)] + ['ValueError: NaN'])
  node = cases.node('explorer/0', 'failed', last_error=error, log_path=log)
  text = _end(1, 'explorer/0 failed for good', [node], 'runs/a')
  assert 'Failed: explorer/0 failed for good' in text
  assert 'ValueError: NaN' in text and 'line 29' in text
  assert 'line 3\n' not in text and str(log) in text


def test_a_counter_that_hangs_does_not_hold_up_the_engine():
  release = threading.Event()

  class Hanging:
    def snapshot(self):
      release.wait(100)
      return cases.snapshot()

  live, _ = cases.plain(Hanging())
  begin = time.monotonic()
  for _ in range(5):
    live(cases.state(cases.node('explorer/0')))
  live.close()
  release.set()
  assert time.monotonic() - begin < 50.0


def test_checkpoints_that_fail_are_said_as_long_as_they_do(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(view, '_LINE_PERIOD_S', 0.0)
  live, stream = cases.plain(cases.Client(cases.snapshot()), tmp_path)
  mark = tmp_path / 'checkpoints' / 'learner-0.npz.unsaved'
  mark.parent.mkdir()
  mark.touch()
  live(cases.state(*cases.NODES))
  _wait_for('learner-0.npz', stream)
  mark.unlink()
  live.close()
  assert 'learner-0.npz' not in stream.getvalue().splitlines()[-1]
