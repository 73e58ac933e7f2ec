"""A node's reports: none is lost while the counter is away, nothing waits."""

import time
import types

import pytest

from murmuration.launch import reporting
from murmuration.launch import rpc


class _Clock:
  def __init__(self):
    self.now = 100.0

  def __call__(self):
    return self.now


class _Counter:
  """Keeps what it is sent; `away` has it not answer."""

  def __init__(self):
    self.away = None
    self.finished = False
    self.sent = []
    self.rows = []
    self.times = []
    self.results = []
    self.nodes = {}
    self.deadline_s = None

  def with_deadline(self, timeout_s):
    self.deadline_s = timeout_s
    return self

  def _check(self):
    if self.away is not None:
      raise self.away

  def report(self, node, counts, metrics, life):
    self._check()
    self.sent.append((node, counts, metrics))
    return {'totals': {}, 'finished': self.finished}

  def log(self, node, kind, row):
    row = dict(row)
    self.times.append(row.pop('unix_time_s'))
    self._check()
    self.rows.append((node, kind, row))

  def hold(self, node, seconds):
    self._check()

  def finish(self, reason, result):
    self._check()
    self.results.append((reason, result))

  def begin(self, node, life):
    self._check()
    return self.nodes.get(node, {})


AWAY = rpc.Unavailable('localhost:1', 'report', False, 'nothing listens there')
RAISES = rpc.RemoteError('ValueError', 'no', 'traceback')


@pytest.fixture
def counter():
  return _Counter()


@pytest.fixture
def clock():
  return _Clock()


@pytest.fixture
def reporter(counter, clock):
  return reporting.Reporter('explorer/0', counter, clock)


def test_a_report_waits_no_longer_than_a_second(reporter, counter):
  assert counter.deadline_s <= 1.0


def test_a_report_has_all_that_the_node_has_done(reporter, counter):
  counter.nodes = {'explorer/0': {'actor_steps': 320}}  # in an earlier life
  reporter.report()
  reporter.count(actor_steps=3)
  reporter.count(actor_steps=4, episodes=1)
  assert not reporter.report({'loss': 0.5})
  reporter.count(actor_steps=1)
  reporter.report()
  assert counter.sent == [
    ('explorer/0', {}, {}),
    ('explorer/0', {'actor_steps': 327, 'episodes': 1}, {'loss': 0.5}),
    ('explorer/0', {'actor_steps': 328, 'episodes': 1}, {}),
  ]


@pytest.mark.parametrize('error', [AWAY, RAISES])
def test_what_could_not_be_sent_is_sent_later_with_the_rest(
  reporter, counter, error
):
  counter.away = error
  reporter.count(actor_steps=3)
  assert not reporter.report()
  reporter.count(actor_steps=2, episodes=1)
  assert not reporter.report()
  counter.away = None
  reporter.report()
  assert [counts for _, counts, _ in counter.sent] == [
    {'actor_steps': 5, 'episodes': 1}
  ]


def test_a_report_is_due_once_per_second(reporter, clock):
  assert reporter.due()
  reporter.report()
  clock.now += 0.99
  assert not reporter.due()
  clock.now += 0.02
  assert reporter.due()


def test_pauses_double_up_to_five_seconds_while_the_counter_is_away(
  reporter, counter, clock
):
  counter.away = AWAY
  pauses = []
  for _ in range(9):
    reporter.report()
    begin = clock.now
    while not reporter.due():
      clock.now += 0.05
    pauses.append(clock.now - begin)
  assert pauses == sorted(pauses)
  assert pauses[0] == pytest.approx(0.1, abs=0.06)
  assert pauses[-1] == pytest.approx(5.0, abs=0.06)
  counter.away = None
  reporter.report()
  clock.now += 1.0
  assert reporter.due()


def test_that_the_run_is_over_is_remembered(reporter, counter):
  counter.finished = True
  assert reporter.report()
  counter.away = AWAY
  assert reporter.report() and reporter.finished


def test_rows_wait_for_the_counter(reporter, counter, clock):
  reporter.log('evaluation', {'return_mean': 1.0})
  counter.away = AWAY
  reporter.log('evaluation', {'return_mean': 2.0, 'age_s': 1.0})
  reporter.log('first_update', {})
  clock.now += 7.0
  reporter.report()
  assert len(counter.rows) == 1
  counter.away = None
  reporter.report()
  reporter.report()
  assert counter.rows == [
    ('explorer/0', 'evaluation', {'return_mean': 1.0, 'age_s': 0.0}),
    ('explorer/0', 'evaluation', {'return_mean': 2.0, 'age_s': 8.0}),
    ('explorer/0', 'first_update', {'age_s': 7.0}),
  ]


def test_a_row_that_is_sent_again_has_its_time_alone(
  reporter, counter, clock, monkeypatch
):
  # Also where the clock of the machine stands still, or is set back.
  now = iter([1e9, 1e9 - 1])
  stood = types.SimpleNamespace(time=lambda: next(now))
  monkeypatch.setattr(reporting, 'time', stood)
  counter.away = AWAY
  reporter.log('evaluation', {'return_mean': 1.0})
  counter.away = None
  clock.now += 1.0
  reporter.log('evaluation', {'return_mean': 2.0})
  first, again, second = counter.times
  assert first == again < second


def test_a_row_that_the_counter_refuses_keeps_no_other_back(
  reporter, counter, monkeypatch
):
  kept = counter.log

  def refuse(node, kind, row):
    if kind == 'broken':
      raise rpc.RemoteError('KeyError', 'no such table', '')
    kept(node, kind, row)

  monkeypatch.setattr(counter, 'log', refuse)
  reporter.log('broken', {})
  reporter.log('evaluation', {'return_mean': 1.0})
  assert [kind for _, kind, _ in counter.rows] == ['evaluation']


def test_rows_of_a_node_that_reports_no_more(reporter, counter, clock, caplog):
  counter.away = AWAY
  reporter.log('evaluation', {'number': 1})
  counter.away = None
  reporter.log('evaluation', {'number': 2})  # soon after: it waits, too
  assert not counter.rows
  clock.now += 5.0
  reporter.log('evaluation', {'number': 3})
  assert [row['number'] for _, _, row in counter.rows] == [1, 2, 3]
  counter.away = AWAY
  reporter.log('evaluation', {'number': 4})
  reporter.hold(0)
  assert '1 rows may be lost' in caplog.text
  counter.away = None
  reporter.hold(0)
  assert len(counter.rows) == 4


def test_of_too_many_rows_the_newest_are_kept(reporter, counter):
  counter.away = AWAY
  for number in range(1003):
    reporter.log('evaluation', {'number': number})
  counter.away = None
  reporter.report()
  assert [row['number'] for _, _, row in counter.rows] == list(range(3, 1003))


def test_a_goal_is_said_again_until_it_is_heard(reporter, counter):
  counter.away = AWAY
  reporter.finish('goal reached', {'R_star': 480.0})
  assert not reporter.finished
  reporter.report()
  assert not reporter.finished
  counter.away = None
  reporter.report()
  assert reporter.finished
  reporter.report()
  assert counter.results == [('goal reached', {'R_star': 480.0})]


def test_a_restarted_node_hears_how_far_it_was(reporter, counter):
  assert reporter.steps_done() == 0
  counter.nodes = {
    'explorer/0': {'actor_steps': 320},
    'explorer/1': {'actor_steps': 999},
  }
  assert reporter.steps_done() == 320


def test_a_restarted_node_waits_for_a_counter_that_is_away(
  reporter, counter, monkeypatch
):
  counter.nodes = {'explorer/0': {'actor_steps': 320}}
  errors = iter([AWAY, AWAY])

  def check():
    if error := next(errors, None):
      raise error

  monkeypatch.setattr(counter, '_check', check)
  assert reporter.steps_done() == 320
  # A busy counter gets longer than a report would wait.
  assert counter.deadline_s > 1.0


@pytest.mark.parametrize('error', [AWAY, RAISES])
def test_a_node_that_has_to_begin_at_0_says_so(
  reporter, counter, monkeypatch, caplog, error
):
  monkeypatch.setattr(reporting, '_START_PATIENCE_S', 0.05)
  counter.nodes = {'explorer/0': {'actor_steps': 320}}
  counter.away = error
  assert reporter.steps_done() == 0
  assert 'explorer/0 begins at step 0' in caplog.text
  assert str(error) in caplog.text


def test_a_node_that_is_stopped_waits_for_no_counter(reporter, counter):
  counter.away = AWAY
  begin = time.monotonic()
  assert reporter.steps_done(lambda: True) == 0
  assert time.monotonic() - begin < 20  # not as long as for a start
