"""The star server in a run: its goal, and the rows that it logs."""

import collections
import json
import math
import threading
import time

import pytest

from launch import rpc
from launch.services import counter as counter_lib
from run_records import checkpoints
from run_records import run_directory
from tests.launch.services import star_calls as calls


class _InProcess(counter_lib.Counter):
  """A counter as a client sees it."""

  def with_deadline(self, timeout_s):
    return self


@pytest.fixture
def running(tmp_path):
  """running(server) runs its node; all are stopped after the test."""
  stop = threading.Event()
  threads = []

  def start(server):
    threads.append(threading.Thread(target=server.run, args=(stop,)))
    threads[-1].start()

  yield start
  stop.set()
  for thread in threads:
    thread.join(timeout=60)
    assert not thread.is_alive()


def _wait_until(condition):
  deadline = time.monotonic() + 60
  while not condition():
    assert time.monotonic() < deadline, 'waited in vain'
    time.sleep(0.02)


def test_the_goal_needs_a_whole_window_of_confirmations(tmp_path, running):
  counter = _InProcess(tmp_path)
  server = calls.make_server(
    tmp_path, time.monotonic, target_return=10.0, counter=counter
  )
  running(server)
  calls.offer(server, 1, claim=1.0, explorer=3)
  calls.play(server, 30.0, 30.0)  # accepted, and far above the target
  calls.play(server, 5.0, 5.0)  # R_star is 17.5, half of it of the trial
  _wait_until(lambda: 'candidate' in counter.snapshot()['latest'])
  calls.play(server, 12.0)
  assert server._goal is None
  calls.play(server, 18.0)  # the fourth confirmation: a mean of 10
  _wait_until(counter.finished)
  snapshot = counter.snapshot()
  assert 'confirmed mean return of 10.0 over 4 episodes' in snapshot['reason']
  assert snapshot['result'] == {
    'R_star': 10.0,
    'episodes': 4,
    'version': 1,
    'explorer': 3,
    'star_learner_steps': 10,
    'accepted': 1,
    'rejected': 0,
  }
  # What the run found is on disk before the run ends.
  assert (tmp_path / 'checkpoints' / checkpoints.STAR).exists()
  counter.close()


def test_a_counter_that_is_away_holds_up_neither_signs_nor_checkpoints(
  tmp_path, running
):
  class Away:
    asked = 0

    def with_deadline(self, timeout_s):
      return self

    def log(self, *unused):
      raise rpc.Unavailable('nowhere', 'log', True, 'no answer')

    def report(self, *unused):
      self.asked += 1
      # As fast as rows are taken, there are new ones.
      server._log('supervisor', episode_return=0.0)
      raise rpc.Unavailable('nowhere', 'report', True, 'no answer')

  counter = Away()
  server = calls.make_server(tmp_path, time.monotonic, counter=counter)
  calls.offer(server, 1, claim=1.0)
  calls.play(server, 30.0, 30.0)
  running(server)
  path = tmp_path / 'checkpoints' / checkpoints.STAR
  _wait_until(lambda: counter.asked > 2 and path.exists())


def test_a_publication_is_saved_before_it_is_on_record(tmp_path, running):
  """Else a start after a kill could give its number to another theta_star."""
  saved = []

  class Counter(_InProcess):
    def log(self, node, kind, row):
      if kind == 'star':
        file = checkpoints.directory(tmp_path) / checkpoints.STAR_SERVER
        kept = json.loads(str(checkpoints.read(file)['state']))
        saved.append((row['version'], kept['version']))
      super().log(node, kind, row)

  server = calls.make_server(
    tmp_path, time.monotonic, counter=Counter(tmp_path)
  )
  running(server)
  for number in (1, 2, 3):
    calls.offer(server, number, claim=float(number))
    calls.play(server, 10.0 * number, 10.0 * number)
    _wait_until(lambda n=number: len(saved) == n)
  assert saved == [(1, 1), (2, 2), (3, 3)]


def test_who_sees_a_publication_sees_that_it_is_not_saved(tmp_path):
  seen = []

  class Rows(collections.deque):
    def append(self, row):
      seen.append((row[0], server._saved))
      super().append(row)

  server = calls.make_server(tmp_path, time.monotonic)
  server._rows = Rows()
  server._saved = time.monotonic()
  calls.offer(server, 1, claim=1.0)
  calls.play(server, 30.0, 30.0)
  assert ('star', -math.inf) in seen


def test_the_swarm_says_how_much_its_star_has_learned_and_how_old_it_is():
  clock = calls.Clock()
  server = calls.make_server(clock=clock)
  # There is no star yet.
  assert not {'star_learner_steps', 'star_age_s'} & set(server.metrics())
  calls.offer(server, 1, claim=1.0)
  clock.now += 7.0
  calls.play(server, 30.0, 30.0)
  clock.now += 5.0
  numbers = server.metrics()
  assert numbers['star_learner_steps'] == 10 and numbers['star_age_s'] == 5.0


def test_of_windows_that_overlap_one_counts():
  server = calls.make_server(target_return=10.0)
  calls.offer(server, 1, claim=1.0)
  calls.play(server, 30.0, 30.0)
  calls.play(server, 5.0, 5.0, 20.0, 9.0)
  calls.play(server, 12.0)  # a mean of 11.5, of which three were looked at
  assert server.metrics()['R_star'] == 11.5 and server._goal is None
  calls.play(server, 12.0, 12.0, 3.0)
  assert server._goal is None  # a mean of 9.75
  calls.play(server, 12.0, 12.0, 12.0, 12.0)
  assert server._goal['R_star'] == 12.0


def test_confirmations_of_an_earlier_star_do_not_fill_the_window():
  server = calls.make_server(target_return=10.0)
  calls.offer(server, 1, claim=1.0)
  calls.play(server, 5.0, 5.0, 5.0, 5.0)  # a trial, and two confirmations
  calls.offer(server, 2, claim=2.0)
  calls.play(server, 30.0, 30.0, 0.0, 0.0)  # the same
  assert server.metrics()['R_star'] == 15.0 and server._goal is None
  calls.play(server, 20.0, 20.0)
  assert server._goal['R_star'] == 10.0


def test_a_window_below_the_target_is_no_goal(tmp_path, running):
  counter = _InProcess(tmp_path)
  server = calls.make_server(
    tmp_path, time.monotonic, target_return=10.0, counter=counter
  )
  running(server)
  calls.offer(server, 1, claim=1.0)
  calls.play(server, 30.0, 0.0, 0.0, 0.0, 0.0)
  calls.offer(server, 2, claim=2.0)
  calls.play(server, 0.0, 0.0)
  _wait_until(lambda: 'candidate' in counter.snapshot()['latest'])
  _wait_until(lambda: not counter.snapshot()['latest']['candidate']['accepted'])
  assert not counter.finished()
  run = run_directory.RunDirectory(tmp_path)
  (star,) = run.metrics('star')
  assert (star['version'], star['claim'], star['R_star']) == (1, 1.0, 15.0)
  assert [row['accepted'] for row in run.metrics('candidate')] == [True, False]
  counter.close()


def test_every_episode_of_a_supervisor_and_every_trials_mean_is_kept(
  tmp_path, running
):
  clock = calls.Clock()
  counter = _InProcess(tmp_path)
  server = calls.make_server(clock=clock, counter=counter, trial_timeout_s=10.0)
  counter.report('explorer/0', {'actor_steps': 70})
  calls.offer(server, 1, claim=1.0)
  calls.play(server, 4.0, 6.0)
  asked_early = server.next_episode(1, -1)  # of version 1
  calls.offer(server, 2, claim=2.0)
  calls.play(server, 9.0, 8.0)
  assert server.report_episode(asked_early['ticket'], 3.0)
  calls.play(server, 7.0)
  calls.offer(server, 3, claim=3.0)
  calls.play(server, 5.0, 1.0)
  calls.offer(server, 4, claim=4.0)
  calls.play(server, 2.0)
  clock.now += 11.0
  server.next_episode(0, -1)  # drops the trial of the last candidate
  running(server)
  run = run_directory.RunDirectory(tmp_path)
  _wait_until(lambda: len(run.metrics('candidate')) == 4)
  rows = [
    (row['kind'], row['version'], row['episode_return'], row['R_star'])
    for row in run.metrics('supervisor')
  ]
  assert rows == [
    ('trial', 0, 4.0, -math.inf),
    ('trial', 0, 6.0, 5.0),
    ('trial', 1, 9.0, 5.0),
    ('trial', 1, 8.0, 8.5),
    ('confirmation', 1, 3.0, 8.5),  # late: counts for nobody
    ('confirmation', 2, 7.0, 8.0),
    ('trial', 2, 5.0, 8.0),
    ('trial', 2, 1.0, 8.0),
    ('trial', 2, 2.0, 8.0),
  ]
  assert {row['actor_steps'] for row in run.metrics('supervisor')} == {70}
  decided = [
    (row['accepted'], row['trial_mean'], row['rejected_fraction'])
    for row in run.metrics('candidate')
  ]
  assert decided == [
    (True, 5.0, 0.0),
    (True, 8.5, 0.0),
    (False, 3.0, pytest.approx(1 / 3)),
    (False, 2.0, 0.5),
  ]
  counter.close()
  # What a run's summary ends with.
  latest = run.summary()['latest']['candidate']
  assert latest['rejected_fraction'] == 0.5


def test_the_literal_rules_have_no_mean_of_a_trial(tmp_path, running):
  counter = _InProcess(tmp_path)
  server = calls.make_server(
    counter=counter, supervisor='literal', k=200.0, b=1
  )
  calls.offer(server, 1, claim=1.0)
  calls.play(server, 5.0, 5.0)
  running(server)
  run = run_directory.RunDirectory(tmp_path)
  _wait_until(lambda: run.metrics('supervisor')[1:])
  (row,) = run.metrics('candidate')
  assert row['accepted'] and 'trial_mean' not in row
  counter.close()
