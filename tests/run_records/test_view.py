"""The live view shows what is known, and is never in the engine's way."""

import io
import re
import subprocess
import sys
import threading
import time

import pytest
from rich import console as rich_console

from launch.engines import state as state_lib
from run_records import run_directory
from run_records import view
from run_records import view_panels
from run_records import view_text


def _node(name, state='running', **kwargs):
  return state_lib.NodeState(name, state=state, **kwargs)


def _state(*nodes, **kwargs):
  return state_lib.RunState(list(nodes), **kwargs)


def _snapshot(**kwargs):
  explorers = {
    f'explorer/{i}': {
      'metrics': {
        'episode_return': 100.0 + 100 * i,
        'replay_size': 5000,
        'replay_max_size': 20_000,
      },
      'rates': {'actor_steps': 1500.0, 'learner_steps': 700.0},
      'totals': {},
      'age_s': 0.5,
    }
    for i in range(2)
  }
  server = {
    'metrics': {
      'R_star': 412.5,
      'c': 0.0183,
      'x': 11,
      'accepted': 7,
      'rejected': 13,
      'waiting_claim': float('-inf'),
      'star_version': 6,
      'star_learner_steps': 1200,
    },
    'rates': {},
    'totals': {},
    'age_s': 0.5,
  }
  return {
    'totals': {'actor_steps': 412_300, 'episodes': 3142},
    'rates': {'actor_steps': 3000.0, 'learner_steps': 1400.0},
    'nodes': {**explorers, 'star/0': server},
    'latest': {'evaluation': {'return_mean': 432.1, 'return_std': 33.0}},
    'budget': {'actor_steps': 930_000},
    'wall_clock_s': None,
    'elapsed_s': 83.0,
    'left_s': 48.0,
    'finished': False,
    'reason': '',
    'result': {},
    **kwargs,
  }


_NODES = [
  _node('explorer/0', pid=7),
  _node('explorer/1', pid=8),
  _node('star/0', pid=9),
]


def _drawn(state, snapshot, width=100, **kwargs):
  console = rich_console.Console(width=width, file=io.StringIO(), record=True)
  console.print(
    view_panels.render('PSO-DQN', state, snapshot, width=width, **kwargs)
  )
  return console.export_text()


class _Client:
  """A counter's client that answers with the same snapshot."""

  def __init__(self, snapshot):
    self._snapshot = snapshot
    self.asked = threading.Event()

  def snapshot(self):
    self.asked.set()
    return self._snapshot


def _plain(client, run_dir=None):
  stream = io.StringIO()
  return view.LiveView(run_dir, lambda: client, 'PSO', stream=stream), stream


def test_the_picture_shows_what_the_issue_asks_for():
  shown = _drawn(_state(*_NODES), _snapshot(), footer='runs/a')
  for words in (
    '412,300 of 930,000 env steps',
    '0:48 left',
    '1:23',
    'runs/a',
    'env steps/s      3k',
    'updates/s        1.4k',
    '432.1 ± 33.0',
    '44%',
    'R* 412.5',
    'c 0.0183',
    'x 11',
    'version 6',
    'star learned for 1,200 learner steps',
    'accepted 7',
    'rejected 13',
    'explorer/0 running 7 1.5k 700 100.0 5k/20k',
  ):
    # However wide the columns are.
    found = ' '.join(shown.split()), ' '.join(words.split())
    assert found[1] in found[0], (words, shown)


@pytest.mark.parametrize('width', [60, 80, 96, 200])
def test_the_picture_fits_the_terminal(width):
  shown = _drawn(_state(*_NODES), _snapshot(), width)
  assert max(len(line) for line in shown.splitlines()) <= width


def test_a_narrow_picture_still_names_every_column_of_numbers():
  shown = _drawn(_state(*_NODES), _snapshot(), 80)
  assert 'updates/s' in shown and '100.0' in shown and '5k/20k' in shown


def test_before_the_first_report_the_nodes_are_shown():
  shown = _drawn(_state(_node('counter/0', 'starting')), None)
  assert 'waiting for the first report' in shown and 'starting' in shown


def test_a_plain_agent_has_no_swarm_in_its_picture():
  snapshot = _snapshot()
  del snapshot['nodes']['star/0']
  shown = _drawn(_state(_node('explorer/0')), snapshot)
  assert 'R*' not in shown


def test_many_nodes_become_one_line_per_group_with_the_worst_state():
  nodes = [_node(f'explorer/{i}') for i in range(31)]
  nodes[4] = _node('explorer/4', 'restarting', restarts=2, last_error='SIGKILL')
  shown = _drawn(_state(*nodes), _snapshot())
  (row,) = [line for line in shown.splitlines() if 'explorer x 31' in line]
  assert '1 restarting, 2 restarts' in row
  assert 'explorer/4: SIGKILL' in shown


@pytest.mark.parametrize(
  ('notice', 'word'),
  [('silent for 12 s', 'silent'), ('for 20 s now: no table', 'waiting')],
)
def test_what_is_odd_about_a_node_stands_beside_it_and_below(notice, word):
  shown = _drawn(_state(_node('explorer/1', notice=notice)), _snapshot())
  (row,) = [
    x for x in shown.splitlines() if f' {word} ' in x and notice not in x
  ]
  assert 'explorer/1' in row
  assert f'explorer/1 {notice}' in shown


def test_brackets_in_names_and_errors_are_not_taken_for_styles():
  error = 'ValueError: [bold] is no [/index]'
  shown = _drawn(_state(_node('a[b]/0', 'failed', last_error=error)), None)
  assert error in shown and 'a[b]/0' in shown


@pytest.mark.parametrize(
  'seconds, shown',
  [(0, '0:00'), (75.9, '1:15'), (3675, '1:01:15'), (-3, '0:00')],
)
def test_clock(seconds, shown):
  assert view_text.clock(seconds) == shown


@pytest.mark.parametrize(
  'value, shown',
  [
    (0, '0'),
    (999, '999'),
    (1000, '1k'),
    (12_345, '12.3k'),
    (99_960, '100k'),
    (3.4e6, '3.4M'),
    (float('nan'), '-'),
    (None, '-'),
  ],
)
def test_short(value, shown):
  assert view_text.short(value) == shown


def test_lines_are_written_where_there_is_no_terminal():
  client = _Client(_snapshot())
  live, stream = _plain(client)
  live(_state(*_NODES))
  deadline = time.monotonic() + 20.0
  while live._snapshot is None:
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
  deadline = time.monotonic() + 20.0
  while words not in stream.getvalue():
    assert time.monotonic() < deadline, stream.getvalue()
    time.sleep(0.02)


def test_a_dead_node_is_said_at_once_and_once(tmp_path, at_once):
  live, stream = _plain(_Client(_snapshot()))
  log = tmp_path / 'explorer-0.log'
  live(_state(_node('explorer/0')))
  for _ in range(3):
    live(
      _state(
        _node(
          'explorer/0',
          'restarting',
          restarts=1,
          log_path=log,
          last_error='Traceback\n  x\nValueError: NaN\n',
        )
      )
    )
  _wait_for('NaN', stream)
  live(_state(_node('explorer/0', restarts=1)))
  live.close()
  text = stream.getvalue()
  assert text.count('explorer/0: ValueError: NaN') == 1
  assert text.count(str(log)) == 1
  assert 'running again (1): explorer/0' in text


def test_a_notice_is_printed_at_once_and_once_and_so_is_its_end(at_once):
  live, stream = _plain(_Client(_snapshot()))
  for notice, words in (
    ('', 'running: learner/0'),
    ('silent for 12 s', 'learner/0 silent for 12 s'),
    ('', 'learner/0 goes on'),
  ):
    for _ in range(3):
      live(_state(_node('learner/0', notice=notice)))
      _wait_for(words, stream)
      time.sleep(0.05)
  live.close()
  text = stream.getvalue()
  assert text.count('learner/0 silent for 12 s') == 1
  assert text.count('learner/0 goes on') == 1


_OVER = {
  'finished': True,
  'reason': 'the budget of 9 is used',
  'held': {'evaluator/0': 119.6},
}
_WAITED = 'the budget of 9 is used; waiting for evaluator/0, 120 s at most'


def test_an_end_that_waits_says_for_whom_and_blames_nobody():
  waits = _node('actor/0', notice="for 10 s now: Table 'replay' took no item")
  silent = _node('actor/1', notice='silent for 12 s')
  snapshot = _snapshot(**_OVER)
  picture = _drawn(_state(waits, silent), snapshot)
  assert _WAITED in picture and 'took no item' not in picture
  assert 'actor/1 silent for 12 s' in picture
  assert 'took no item' in _drawn(_state(waits), _snapshot())
  assert view_text.line(snapshot).endswith(_WAITED)
  for change in ({'finished': False}, {'held': {}}):
    assert 'waiting for' not in view_text.line({**snapshot, **change})


def test_a_wait_from_before_the_end_is_not_said_to_go_on(at_once):
  client = _Client(_snapshot(**_OVER))
  live, stream = _plain(client)
  waits = _node('actor/0', notice='for 10 s now: its limiter')
  live._noticed['actor/0'] = waits.notice
  live._snapshot = client._snapshot
  live(_state(waits))
  _wait_for('running: actor/0', stream)
  live.close()
  text = stream.getvalue()
  assert 'goes on' not in text and 'limiter' not in text


def test_a_counter_that_hangs_holds_up_nothing():
  release = threading.Event()

  class Hanging:
    def snapshot(self):
      release.wait(20)
      return _snapshot()

  live, stream = _plain(Hanging())
  begin = time.monotonic()
  for _ in range(5):
    live(_state(_node('explorer/0')))
  assert time.monotonic() - begin < 5.0
  live.close()
  release.set()
  assert time.monotonic() - begin < 10.0
  assert 'running: explorer/0' in stream.getvalue()


def test_a_terminal_that_is_held_holds_up_nothing():
  writing, release = threading.Event(), threading.Event()

  class Held(io.StringIO):
    def write(self, text):
      writing.set()
      release.wait(20)
      return super().write(text)

  live = view.LiveView(None, lambda: _Client(_snapshot()), 'x', stream=Held())
  live(_state(_node('explorer/0')))
  assert writing.wait(20)  # Now the drawing thread is stuck in write.
  begin = time.monotonic()
  live(_state(_node('explorer/0', 'failed')))
  assert time.monotonic() - begin < 5.0
  live.close()
  assert time.monotonic() - begin < 10.0
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
    live = view.LiveView(None, lambda: _Client(None), 'x', console=console)
    live(_state(_node('explorer/0')))
    live.close()
    live.final(state_lib.Outcome(0, 'done', _NODES))


def test_an_output_that_is_full_makes_no_exit_code():
  code = (
    'from launch.engines import state\n'
    'from run_records import view\n'
    "live = view.LiveView(None, lambda: None, 'x')\n"
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

  good = _Client(_snapshot())

  def factory():
    made.append(1)
    if len(made) == 1:
      raise ConnectionError('not there yet')
    return Dead() if len(made) == 2 else good

  live = view.LiveView(None, factory, 'x', stream=io.StringIO())
  live(_state(_node('explorer/0')))
  assert good.asked.wait(10)
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
  client = _Client(_snapshot())
  live = view.LiveView('runs/a', lambda: client, 'PSO-DQN', console=console)
  if not live._picture:
    pytest.fail(f'encoding {console.encoding!r} is no UTF-8')
  live(_state(*_NODES))
  assert client.asked.wait(10)
  live.close()
  text = stream.getvalue()
  assert 'PSO-DQN' in text and 'explorer/0' in text
  # The cursor is hidden while the picture is drawn, and shown again.
  assert text.rindex('\x1b[?25h') > text.rindex('\x1b[?25l')


def _end(exit_code, reason, nodes, run_dir, snapshot=None):
  live, stream = _plain(_Client(snapshot or _snapshot()), run_dir)
  live._snapshot = snapshot or _snapshot()
  live.final(state_lib.Outcome(exit_code, reason, nodes))
  return stream.getvalue()


def test_the_end_says_the_result_the_places_and_what_comes_next(tmp_path):
  run = run_directory.create(tmp_path / 'a', {}, {})
  (run.checkpoints / 'star.npz').touch()
  snapshot = _snapshot(finished=True, reason='confirmed mean return of 480')
  text = _end(0, 'counter/0 has returned', _NODES, run.path, snapshot)
  assert 'Finished: confirmed mean return of 480' in text
  assert '412.5   version 6, 7 candidates accepted, 13 rejected' in text
  assert '412,300' in text and 'checkpoints/' in text
  # By the command, where the environment has it.
  assert 'watch the best policy' in text
  assert re.search(f'(murmuration |/)evaluate(.py)? {run.path}\n', text)
  assert f' -m tensorboard.main --logdir {tmp_path}' in text
  assert 'the best parameters, and what' in text
  assert f'--resume={run.path}' not in text  # It is finished.


@pytest.mark.parametrize(
  'steps, said',
  [
    (1200, 'theta_star after   1,200 learner steps\n'),
    (0, '0 learner steps: a random network, nothing was learned\n'),
  ],
)
def test_the_end_says_how_much_the_star_has_learned(tmp_path, steps, said):
  run = run_directory.create(tmp_path / 'a', {}, {})
  snapshot = _snapshot(finished=True, reason='confirmed')
  server = snapshot['nodes']['star/0']['metrics']
  server['star_learner_steps'] = steps
  text = _end(0, 'done', _NODES, run.path, snapshot)
  # Lines are padded to the width of the widest.
  assert said in '\n'.join(line.rstrip() for line in text.splitlines())


def test_an_interrupted_run_says_what_was_kept(tmp_path):
  run = run_directory.create(tmp_path / 'a', {}, {})
  text = _end(130, 'interrupted by Ctrl-C', _NODES, run.path)
  assert 'Interrupted by Ctrl-C' in text and 'Kept in' in text
  assert 'watch the best policy' not in text  # There is none.
  (run.checkpoints / 'learner-0.npz').touch()
  text = _end(130, 'interrupted by Ctrl-C', _NODES, run.path)
  assert 'watch the best policy' not in text  # That goes on, and is not played.
  assert 'checkpoints/  ' in text and 'best parameters' not in text
  assert re.search(f'(murmuration |/)run(.py)? --resume={run.path}\n', text)
  (run.path / 'summary.json').write_text('{"finished": true}')
  text = _end(1, 'no update was made', _NODES, run.path)
  assert '--resume' not in text.partition('Next')[2]  # It would end at once.
  text = _end(143, 'terminated (SIGTERM)', _NODES, run.path)
  assert 'Interrupted: terminated (SIGTERM)' in text and 'Kept in' in text


def test_a_failed_run_ends_with_the_traceback_and_the_log(tmp_path):
  log = tmp_path / 'explorer-0.log'
  error = '\n'.join([f'  line {i}' for i in range(30)] + ['ValueError: NaN'])
  node = _node('explorer/0', 'failed', last_error=error, log_path=log)
  text = _end(1, 'explorer/0 failed for good', [node], None)
  assert 'Failed: explorer/0 failed for good' in text
  assert 'ValueError: NaN' in text and 'line 29' in text
  assert 'line 3\n' not in text and str(log) in text
