"""The counter adds up, ends the run once, and survives its own death."""

import errno
import functools
import io
import json
import shutil
import threading
import time
import types

import pytest

from murmuration.launch import pulse
from murmuration.launch.services import counter as counter_lib
from murmuration.run_records import checkpoints
from murmuration.run_records import counter_file
from murmuration.run_records import durable
from murmuration.run_records import jsonable
from murmuration.run_records import metrics
from murmuration.run_records import run_directory


class _Clock:
  def __init__(self):
    self.now = 100.0

  def __call__(self):
    return self.now


def _counter(run_dir=None, clock=None, **kwargs):
  return counter_lib.Counter(run_dir, clock=clock or _Clock(), **kwargs)


def test_totals_are_the_sum_over_nodes_of_the_most_that_each_has_said():
  counter = _counter()
  counter.report('explorer/0', {'actor_steps': 5, 'episodes': 1})
  counter.report('explorer/1', {'actor_steps': 7})
  assert counter.report('explorer/0', {'actor_steps': 6}) == {'finished': False}
  # Repeated, late or overtaken: nothing is counted twice.
  for _ in range(2):
    counter.report('explorer/0', {'actor_steps': 5, 'episodes': 1})
  assert counter.totals() == {'actor_steps': 13, 'episodes': 1}
  nodes = counter.snapshot()['nodes']
  assert nodes['explorer/0']['totals'] == {'actor_steps': 6, 'episodes': 1}


def test_no_count_is_lost_between_threads():
  counter = _counter()

  def work(name):
    for done in range(300):
      counter.report(name, {'actor_steps': done + 1}, {'loss': 0.0})

  threads = [threading.Thread(target=work, args=(f'e/{i}',)) for i in range(4)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert counter.totals() == {'actor_steps': 1200}


@pytest.mark.parametrize(
  'limits', [{'budget': {'actor_steps': 0}}, {'wall_clock_s': -1.0}]
)
def test_a_budget_that_is_used_up_before_the_start_is_refused(limits):
  with pytest.raises(ValueError, match=r'actor_steps=0|wall_clock_s=-1'):
    _counter(**limits)


def test_the_report_that_reaches_the_budget_hears_of_it():
  counter = _counter(budget={'actor_steps': 10})
  assert not counter.report('e/0', {'actor_steps': 9})['finished']
  assert counter.report('e/0', {'actor_steps': 10})['finished']
  snapshot = counter.snapshot()
  assert snapshot['outcome'] == 'budget' and snapshot['left_s'] == 0.0


def test_the_wall_clock_ends_a_run_in_which_nothing_happens():
  clock = _Clock()
  counter = _counter(clock=clock, wall_clock_s=60.0)
  clock.now += 59
  assert counter.snapshot()['left_s'] == pytest.approx(1.0)
  clock.now += 1
  assert counter.snapshot()['outcome'] == 'wall_clock'


def test_the_first_end_is_the_one_that_counts():
  counter = _counter(budget={'actor_steps': 10})
  assert counter.finish('goal reached', {'R_star': 480.0})
  assert not counter.finish('another', {})
  assert counter.report('e/0', {'actor_steps': 100})['finished']
  assert counter.snapshot()['reason'] == 'goal reached'
  assert counter.snapshot()['result'] == {'R_star': 480.0}


def test_rates_are_of_the_last_seconds_and_fall_when_reports_stop():
  clock = _Clock()
  counter = _counter(clock=clock, budget={'actor_steps': 10_000})
  clock.now += 60  # A slow start is not a low rate.
  for done in range(11):
    counter.report('e/0', {'actor_steps': 100 * (done + 1)})
    clock.now += 1.0
  clock.now -= 1.0
  snapshot = counter.snapshot()
  assert snapshot['rates']['actor_steps'] == pytest.approx(100.0)
  assert snapshot['nodes']['e/0']['rates']['actor_steps'] == pytest.approx(100)
  assert snapshot['left_s'] == pytest.approx((10_000 - 1_100) / 100)
  clock.now += 6.0
  snapshot = counter.snapshot()
  assert snapshot['rates']['actor_steps'] == 0.0
  assert snapshot['left_s'] is None
  assert snapshot['nodes']['e/0']['age_s'] == pytest.approx(6.0)


@pytest.mark.parametrize(('wall_clock_s', 'left_s'), [(25.0, 15.0), (600, 90)])
def test_the_time_left_is_that_to_the_nearest_limit(wall_clock_s, left_s):
  clock = _Clock()
  counter = _counter(
    clock=clock, budget={'actor_steps': 10_000}, wall_clock_s=wall_clock_s
  )
  for done in range(10):
    clock.now += 1.0
    counter.report('e/0', {'actor_steps': 100 * (done + 1)})
  assert counter.snapshot()['left_s'] == pytest.approx(left_s)


def test_a_rate_does_not_flicker_where_a_count_grows_seldom():
  clock = _Clock()
  counter = _counter(clock=clock, budget={'actor_steps': 10_000})
  rates, left, done = [], [], 0
  # Generations of 20 and 24 s, by a node that reports every second.
  for second in range(110):
    done += 100 if second % 44 in (0, 20) else 0
    counter.report('master/0', {'actor_steps': done})
    snapshot = counter.snapshot()
    if second >= 20:
      rates.append(snapshot['rates']['actor_steps'])
      left.append(snapshot['left_s'])
    clock.now += 1.0
  assert 100 / 24 <= min(rates) and max(rates) <= 100 / 20
  assert None not in left
  clock.now += 60.0
  assert counter.snapshot()['rates']['actor_steps'] == 0.0


def test_rows_are_logged_with_who_when_and_after_how_many_steps(tmp_path):
  clock = _Clock()
  counter = _counter(tmp_path, clock)
  clock.now += 2
  counter.report('e/0', {'actor_steps': 30})
  counter.log('evaluator/0', 'evaluation', {'return_mean': 21.5})
  counter.log('server/0', 'star', {'version': 1, 'actor_steps': 20})
  run = run_directory.RunDirectory(tmp_path)
  assert run.metrics('evaluation') == [
    {
      'return_mean': 21.5,
      'node': 'evaluator/0',
      'actor_steps': 30,
      'elapsed_s': 2.0,
    }
  ]
  assert run.metrics('star')[0]['actor_steps'] == 20
  assert counter.snapshot()['latest']['star']['version'] == 1
  counter.close()


def test_metrics_of_a_node_are_logged_at_most_once_per_period(tmp_path):
  clock = _Clock()
  counter = _counter(tmp_path, clock)
  for number in range(5):
    done = {'actor_steps': number + 1}
    counter.report('explorer/3', done, {'loss': float(number)})
    clock.now += 0.5
  rows = run_directory.RunDirectory(tmp_path).metrics('node_explorer')
  assert [row['loss'] for row in rows] == [0.0, 2.0, 4.0]
  assert {row['node'] for row in rows} == {'explorer/3'}
  assert counter.snapshot()['nodes']['explorer/3']['metrics'] == {'loss': 4.0}
  counter.report('explorer/3', {'actor_steps': 6}, {'loss': 5.0})
  counter.report('explorer/3', {'actor_steps': 7}, {'loss': 6.0})
  counter.close()
  rows = run_directory.RunDirectory(tmp_path).metrics('node_explorer')
  # What it said last is never lost.
  assert [row['loss'] for row in rows] == [0.0, 2.0, 4.0, 6.0]
  assert rows[-1]['actor_steps'] == 7


def test_a_node_that_was_started_again_has_its_own_metrics(tmp_path):
  clock = _Clock()
  counter = _counter(tmp_path, clock)
  counter.report('learner/0', {}, {'loss': 3.0}, ('run', 1))
  counter.begin('learner/0', ('run', 2))
  clock.now += 2.0
  counter.report('learner/0', {}, {'skipped_updates': 0}, ('run', 2))
  counter.close()
  first, second = run_directory.RunDirectory(tmp_path).metrics('node_learner')
  assert first['loss'] == 3.0 and second['skipped_updates'] == 0
  assert 'loss' not in second


def test_metrics_of_a_long_run_are_logged_less_often(tmp_path):
  clock = _Clock()
  counter = _counter(tmp_path, clock)
  clock.now += 50_000  # 5 s are a ten-thousandth of it
  for number in range(12):
    counter.report('explorer/3', {'actor_steps': 1}, {'loss': float(number)})
    clock.now += 1.0
  rows = run_directory.RunDirectory(tmp_path).metrics('node_explorer')
  assert [row['loss'] for row in rows] == [0.0, 6.0]


def test_rows_that_never_stop_are_logged_less_often_in_a_long_run(tmp_path):
  clock = _Clock()
  counter = _counter(tmp_path, clock)
  clock.now += 5_000

  def logged(kind, rows):
    for number in range(rows):
      counter.log('star/0', kind, {'number': number})
      clock.now += 0.25
    rows = run_directory.RunDirectory(tmp_path).metrics(kind)
    return [row['number'] for row in rows]

  # Runs of less than three hours keep each row, and long ones what is rare.
  assert logged('supervisor', 4) == [0, 1, 2, 3]
  clock.now += 45_000  # 5 s are a ten-thousandth of it
  assert logged('supervisor', 24)[4:] == [0, 21]
  assert logged('generation', 24) == [0, 21]
  assert logged('evaluation', 3) == [0, 1, 2]
  clock.now += 10.0
  counter.log('star/0', 'generation', {'number': 24})
  counter.close()
  # What came last is never lost, and what came before it does not follow it.
  for kind, last in (('supervisor', 23), ('generation', 24)):
    rows = run_directory.RunDirectory(tmp_path).metrics(kind)
    assert rows[-1]['number'] == last
    assert len({row['elapsed_s'] for row in rows}) == len(rows)


def test_run_returns_after_the_goal_and_leaves_a_summary(tmp_path):
  counter = counter_lib.Counter(tmp_path, {'actor_steps': 10})
  thread = threading.Thread(target=counter.run, args=(threading.Event(),))
  thread.start()
  counter.report('e/0', {'actor_steps': 4})
  counter.finish('goal reached', {'R_star': 480.0})
  # In the grace period nodes still hear that it is over.
  assert counter.report('e/0', {'actor_steps': 5})['finished']
  thread.join(timeout=60)
  assert not thread.is_alive()
  summary = run_directory.RunDirectory(tmp_path).summary()
  assert summary['outcome'] == 'goal' and summary['reason'] == 'goal reached'
  totals = {'actor_steps': 5, 'episodes': 0, 'learner_steps': 0}
  assert summary['totals'] == totals
  assert summary['result'] == {'R_star': 480.0}


def test_a_stopped_run_says_so_in_its_summary(tmp_path):
  counter = _counter(tmp_path)
  stop = threading.Event()
  stop.set()
  counter.run(stop)
  summary = run_directory.RunDirectory(tmp_path).summary()
  assert summary['outcome'] == 'stopped' and not summary['finished']
  assert summary['totals']['actor_steps'] == 0  # the caller may look
  counter.log('e/0', 'late', {})  # Is dropped, and raises nothing.


class _Killed:
  """A counter in its loop, which saves; `kill` leaves what is on disk."""

  def __init__(self, directory, **kwargs):
    self.directory = directory
    self.counter = counter_lib.Counter(directory / 'run', **kwargs)
    self._stop = threading.Event()
    self._thread = threading.Thread(target=self.counter.run, args=(self._stop,))
    self._thread.start()

  def counted(self, name='actor_steps'):
    found = counter_file.counted(self.directory / 'run' / 'metrics')
    return found.get('totals', {}).get(name, 0)

  def kill(self):
    """The counter that comes next; what the old one writes now is lost."""
    kept = self.directory / 'run'
    half = shutil.ignore_patterns('.counter.json.*')  # which come and go
    shutil.copytree(kept, self.directory / 'copy', ignore=half)
    self._stop.set()
    self._thread.join()
    shutil.rmtree(kept)
    (self.directory / 'copy').rename(kept)
    return counter_lib.Counter(kept)


@pytest.fixture
def killed(tmp_path):
  return functools.partial(_Killed, tmp_path)


def test_a_counter_that_is_killed_hears_of_what_it_had_not_saved(killed):
  run = killed()
  run.counter.report('e/0', {'actor_steps': 30}, life=('run', 1))
  run.counter.report('e/1', {'actor_steps': 3}, life=('run', 1))
  _wait_until(lambda: run.counted() == 33)
  run.counter.report('e/0', {'actor_steps': 50}, life=('run', 1))
  # The next life of that node goes on from there, in the same instant.
  told = run.counter.begin('e/0', ('run', 2))
  assert told == {'actor_steps': 50}
  again = run.kill()
  assert again.totals()['actor_steps'] in (33, 53)
  again.report('e/0', {'actor_steps': 51}, life=('run', 2))
  assert again.totals() == {'actor_steps': 54}
  again.close()


def test_what_both_lose_is_made_again_and_the_budget_is_met(killed):
  budget = {'actor_steps': 40}
  run = killed(budget=budget)
  run.counter.report('e/0', {'actor_steps': 30}, life=('run', 1))
  _wait_until(lambda: run.counted() == 30)
  run.counter.report('e/0', {'actor_steps': 39}, life=('run', 1))
  again = run.kill()
  (done,) = again.begin('e/0', ('run', 2)).values()
  assert done in (30, 39)
  assert again.totals() == {'actor_steps': done}
  again.close()


def test_nothing_that_is_shown_falls_while_counters_are_killed(killed):
  run, shown = killed(), []
  for steps in range(1, 400):
    run.counter.report('e/0', {'actor_steps': steps}, {'x': 1}, ('run', 1))
    shown.append(run.counter.snapshot()['totals']['actor_steps'])
    shown.append(run.counted())
  again = run.kill()
  shown.append(again.totals()['actor_steps'])
  again.report('e/1', {'episodes': 1}, {'x': 1}, ('run', 1))
  again.log('e/1', 'evaluation', {})
  again.close()
  assert shown == sorted(shown)
  directory = run_directory.RunDirectory(run.directory / 'run')
  for kind in directory.kinds():
    steps = [row['actor_steps'] for row in directory.metrics(kind)]
    assert steps == sorted(steps) and steps[-1] >= 399


def test_the_end_is_kept_before_a_node_hears_of_it(tmp_path):
  """Who has heard of it leaves, and does not tell the next counter."""
  budget = {'actor_steps': 10}
  first = counter_lib.Counter(tmp_path, budget)
  assert first.report('e/0', {'actor_steps': 10}, life=('run', 1))['finished']
  again = counter_lib.Counter(tmp_path, budget)  # the first was killed
  assert again.report('e/1', {}, life=('run', 1))['finished']
  again.close()


def test_a_run_of_before_goes_on(tmp_path):
  """Its counter.json, and the journal of the last half second, which goes."""
  (tmp_path / 'metrics').mkdir()
  checkpoints.write_state(
    tmp_path / 'metrics' / 'counter.json',
    {
      'totals': {'actor_steps': 9}, 'node_totals': {'e/0': {'actor_steps': 9}},
      'lives': {'e/0': [['run', 3], {'actor_steps': 4}]}, 'numbers': {},
      'elapsed_s': 3.0, 'start': 'run', 'holds': {}, 'unix_time_s': 1e9,
      'outcome': None, 'reason': '', 'result': {}, 'latest': {}, 'changes': 7,
    },
  )  # fmt: skip
  counter = counter_lib.Counter(tmp_path)
  assert counter.begin('e/0', ('next', 1)) == {'actor_steps': 9}
  counter.report('e/0', {'actor_steps': 12}, life=('next', 1))
  assert counter.totals() == {'actor_steps': 12}
  assert counter.snapshot()['elapsed_s'] >= 3.0
  counter.close()


def test_the_time_that_a_counter_was_dead_counts_within_one_start_only(
  tmp_path, monkeypatch
):
  clock, now = _Clock(), [1e9]
  wall_clock = types.SimpleNamespace(time=lambda: now[0])
  monkeypatch.setattr(counter_lib, 'time', wall_clock)

  def elapsed(run, dead_s):
    now[0] += dead_s
    clock.now += 1e6  # of another boot: says nothing
    monkeypatch.setattr(pulse, 'life', lambda: (run, 2))
    counter = _counter(tmp_path, clock)
    now[0] += 10
    clock.now += 10
    return counter.snapshot()['elapsed_s']  # saved; then it is killed

  assert elapsed('run', 0) == pytest.approx(10)
  assert elapsed('run', 7) == pytest.approx(27)
  assert elapsed('run', -100) == pytest.approx(37)  # The clock was set back.
  assert elapsed('resumed', 7) == pytest.approx(47)
  assert elapsed('resumed', 1e6) == pytest.approx(117)  # or forward


def test_a_goal_that_was_reached_survives_the_counters_death(tmp_path):
  _counter(tmp_path).finish('goal reached', {'R_star': 480.0})
  again = _counter(tmp_path)
  assert again.report('e/0', {'actor_steps': 1})['finished']
  again.close()
  # The run had ended, so this is a resume: with a new goal, or more budget.
  resumed = _counter(tmp_path)
  assert not resumed.finished()
  assert not (tmp_path / 'summary.json').exists()
  resumed.close()


def test_a_counter_killed_as_a_run_is_resumed_does_not_keep_the_goal(
  tmp_path, monkeypatch
):
  first = _counter(tmp_path)
  first.finish('goal reached', {'R_star': 480.0})
  first.close()
  _counter(tmp_path)  # Killed before anything was reported.
  monkeypatch.setattr(pulse, 'life', lambda: ('run', 2))
  again = _counter(tmp_path)
  assert not again.finished()
  again.close()


def test_a_counter_killed_after_its_summary_keeps_the_goal(
  tmp_path, monkeypatch
):
  first = _counter(tmp_path)
  first.finish('goal reached', {'R_star': 480.0})
  first.close()
  assert (tmp_path / 'summary.json').exists()
  # Of the same start, so nobody will tell it the goal again.
  monkeypatch.setattr(pulse, 'life', lambda: ('run', 2))
  again = _counter(tmp_path)
  assert again.finished()
  again.close()
  assert jsonable.read(tmp_path / 'summary.json')['outcome'] == 'goal'


def test_a_larger_budget_continues_a_run_that_had_used_the_old_one(tmp_path):
  first = _counter(tmp_path, budget={'actor_steps': 10})
  first.report('e/0', {'actor_steps': 10})
  first.close()
  second = _counter(tmp_path, budget={'actor_steps': 20})
  assert not second.report('e/0', {'actor_steps': 15})['finished']
  assert second.report('e/0', {'actor_steps': 20})['finished']
  second.close()
  state = jsonable.read(tmp_path / 'metrics' / 'counter.json')
  assert state['totals'] == {'actor_steps': 20}


def _ended_after(thread, clock, seconds, patience_s=0.0):
  """Whether the thread ends while so many seconds pass, in steps.

  Args:
    thread: of a counter.
    clock: of that counter.
    seconds: by the clock.
    patience_s: for more such steps: a busy machine may be late to look.
  """
  deadline, steps = time.monotonic() + patience_s, 0
  while thread.is_alive() and (steps < 10 or time.monotonic() < deadline):
    steps += 1
    clock.now += seconds / 10
    thread.join(timeout=0.2)
  return not thread.is_alive()


def _held(tmp_path, clock):
  """A counter whose goal is reached, and that a node holds for 30 s."""
  counter = _counter(tmp_path, clock)
  counter.hold('evaluator/0', 30.0)
  counter.finish('goal reached')
  thread = threading.Thread(
    target=counter.run, args=(threading.Event(),), daemon=True
  )
  thread.start()
  return counter, thread


def test_a_node_that_holds_the_end_is_waited_for(tmp_path):
  clock = _Clock()
  counter, thread = _held(tmp_path, clock)
  assert not _ended_after(thread, clock, 15.0)
  (left_s,) = counter.snapshot()['held'].values()
  assert 0 < left_s <= 15.0
  counter.hold('evaluator/0', 0.0)
  assert counter.snapshot()['held'] == {}
  assert _ended_after(thread, clock, 10.0, patience_s=30.0)
  summary = json.loads((tmp_path / 'summary.json').read_text())
  assert summary['unfinished'] == []


def test_a_hold_that_is_never_let_go_runs_out(tmp_path):
  clock = _Clock()
  _, thread = _held(tmp_path, clock)
  assert _ended_after(thread, clock, 45.0, patience_s=30.0)
  summary = json.loads((tmp_path / 'summary.json').read_text())
  assert summary['unfinished'] == ['evaluator/0']


def test_the_next_counter_waits_for_the_same_nodes(tmp_path, monkeypatch):
  monkeypatch.setattr(counter_lib.pulse, 'life', lambda: ('run', 2))
  clock = _Clock()
  counter, thread = _held(tmp_path, clock)

  def held():
    # As the clock stands still, nothing was saved because it was due.
    return set(_counter(tmp_path, clock).snapshot()['held'])

  counter.hold('worker/0', 2000.0)
  assert held() == {'evaluator/0', 'worker/0'}
  counter.hold('worker/0', 0.0)
  assert held() == {'evaluator/0'}
  assert _ended_after(thread, clock, 45.0, patience_s=30.0)


def test_a_row_is_of_its_own_time_and_goes_back_in_no_file(tmp_path):
  clock = _Clock()
  counter = _counter(tmp_path, clock)
  clock.now += 10
  for steps in (50, 20, 50, 60):
    row = {'actor_steps': steps, 'age_s': 7.0}
    counter.log('e/0', 'evaluation', row)
  counter.log('e/0', 'star', {'actor_steps': 20})
  counter.close()
  run = run_directory.RunDirectory(tmp_path)
  rows = run.metrics('evaluation')
  assert [row['actor_steps'] for row in rows] == [50, 50, 60]
  assert rows[0]['elapsed_s'] == 3.0
  assert run.summary()['rows_left_out'] == {'evaluation': 1}
  # Nor does what a next start writes.
  again = _counter(tmp_path, clock)
  again.log('e/0', 'evaluation', {'actor_steps': 55})
  again.log('e/0', 'star', {})
  assert again.snapshot()['latest']['evaluation']['actor_steps'] == 60
  assert [row['actor_steps'] for row in run.metrics('star')] == [20, 20]
  again.close()


def test_a_row_whose_answer_was_lost_is_there_once(tmp_path):
  counter = counter_lib.Counter(tmp_path)
  # The second came again before the answer, and once more after the third.
  for made in (1.0, 2.0, 2.0, 3.0, 2.0):
    counter.log('e/0', 'evaluation', {'unix_time_s': made})
  counter.log('e/1', 'evaluation', {'unix_time_s': 2.0})
  rows = run_directory.RunDirectory(tmp_path).metrics('evaluation')
  found = [(row['node'], row['unix_time_s']) for row in rows]
  assert found == [('e/0', 1.0), ('e/0', 2.0), ('e/0', 3.0), ('e/1', 2.0)]
  counter.close()


def test_a_row_that_a_killed_counter_did_not_answer_is_there_once(tmp_path):
  def log(counter, *times):
    for made in times:
      counter.log('e/0', 'evaluation', {'unix_time_s': made})

  log(counter_lib.Counter(tmp_path), 1.0, 2.0)
  # It was killed with the second row written, and so was the next counter.
  log(counter_lib.Counter(tmp_path), 2.0, 3.0)
  last = counter_lib.Counter(tmp_path)
  log(last, 3.0, 4.0)
  last.close()
  log(counter_lib.Counter(tmp_path), 4.0, 5.0)
  rows = run_directory.RunDirectory(tmp_path).metrics('evaluation')
  assert [row['unix_time_s'] for row in rows] == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_a_report_of_a_life_that_is_over_counts_no_more():
  counter = _counter()
  counter.begin('e/0', ('run', 1))
  counter.report('e/0', {'actor_steps': 5}, life=('run', 1))
  assert counter.begin('e/0', ('run', 2)) == {'actor_steps': 5}
  # On its way since before the first life's end: the second does it again.
  late = counter.report('e/0', {'actor_steps': 8}, {'loss': 9.0}, ('run', 1))
  assert late == {'finished': False}
  assert counter.totals() == {'actor_steps': 5}
  assert counter.snapshot()['nodes']['e/0']['metrics'] == {}
  counter.report('e/0', {'actor_steps': 7}, life=('run', 2))
  # Lives of the next start of the run begin at 1 again.
  assert counter.begin('e/0', ('next', 1)) == {'actor_steps': 7}
  counter.report('e/0', {'actor_steps': 9}, life=('next', 1))
  assert counter.totals() == {'actor_steps': 9}


@pytest.fixture
def full_disk(monkeypatch):
  """full_disk(True): nothing can be written; full_disk(False): again."""
  disk = {'full': False}
  error = OSError(errno.ENOSPC, 'No space left on device')
  write_durably = durable.write

  class Full(io.FileIO):
    def write(self, data):
      if not disk['full']:
        return super().write(data)
      # What fits, as a real one.
      return super().write(data[:3])

  def write(*args, **options):
    if disk['full']:
      raise error
    return write_durably(*args, **options)

  monkeypatch.setattr(io, 'FileIO', Full)
  monkeypatch.setattr(durable, 'write', write)
  return lambda full: disk.update(full=full)


def test_a_full_disk_costs_neither_counts_nor_rows(tmp_path, full_disk):
  slot = pulse.Slot(memoryview(bytearray(pulse._BYTES)))
  counter = counter_lib.Counter(tmp_path, {'actor_steps': 100})
  counter.report('e/0', {'actor_steps': 1})
  counter.log('e/0', 'episode', {'length': 0})
  stop = threading.Event()

  def run():
    pulse.use(slot)
    counter.run(stop)

  thread = threading.Thread(target=run)
  thread.start()
  try:
    full_disk(True)
    for number in range(1, 5):
      counter.report('e/0', {'actor_steps': number + 1})
      counter.log('e/0', 'episode', {'length': number})
    assert counter.totals() == {'actor_steps': 5}
    _wait_until(lambda: 'No space left' in slot.text)
    full_disk(False)
    counter.report('e/0', {'actor_steps': 6})
    counter.log('e/0', 'episode', {'length': 5})
    rows = tmp_path / 'metrics' / 'episode.jsonl'
    _wait_until(lambda: len(metrics.read_jsonl(rows)) == 6)
  finally:
    stop.set()
    thread.join()
  assert [row['length'] for row in metrics.read_jsonl(rows)] == [*range(6)]
  assert counter_lib.Counter(tmp_path).totals() == {'actor_steps': 6}


def _wait_until(condition, timeout_s=60.0):
  deadline = time.monotonic() + timeout_s
  while not condition():
    assert time.monotonic() < deadline, 'waited in vain'
    time.sleep(0.02)


def test_no_report_waits_for_a_disk(killed, monkeypatch):
  write_state = checkpoints.write_state
  writing, goes_on = threading.Event(), threading.Event()

  def slow(*args):
    writing.set()
    assert goes_on.wait(60)
    write_state(*args)

  monkeypatch.setattr(checkpoints, 'write_state', slow)
  run = killed()
  assert writing.wait(60)
  for i in range(4):
    run.counter.report(f'e/{i}', {'actor_steps': 1})
    run.counter.log(f'e/{i}', 'evaluation', {})
  assert run.counter.totals() == {'actor_steps': 4}
  goes_on.set()
  run.kill().close()


def test_the_end_is_put_on_disk(tmp_path, monkeypatch):
  counter = counter_lib.Counter(tmp_path, {'actor_steps': 9})
  syncs, write_state = [], checkpoints.write_state

  def write(path, state, sync):
    syncs.append(sync)
    write_state(path, state, sync)

  monkeypatch.setattr(checkpoints, 'write_state', write)
  counter.report('e/0', {'actor_steps': 1})
  counter.finish('goal reached')
  assert syncs == [True]
  counter.close()
  assert syncs == [True] * 2
