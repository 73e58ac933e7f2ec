"""The star server: candidates in, theta_star out, supervisors may die.

The rules themselves are tested on vectors with agents/swarm. A supervisor
here is a call to next_episode and one to report_episode.
"""

import math
import threading
import time

import numpy as np
import pytest

from agents import parameters
from agents.swarm import explorers
from launch.services import counter as counter_lib
from launch.services import star
from run_records import checkpoints
from run_records import run_directory

LAYOUT = parameters.Layout([('q/w', (2, 3)), ('q/b', (3,))])
OTHER = parameters.Layout([('q/w', (2, 4)), ('q/b', (4,))])


class _Clock:
  def __init__(self):
    self.now = 100.0

  def __call__(self):
    return self.now


def _config(**changes):
  # b + 1 = 2 episodes in a trial; k = 1 so that the pull reaches its clamp.
  settings = {'b': 1, 'k': 1.0, 'window': 4, 'idle_episodes': 2, **changes}
  return explorers.Config(**settings)


def _server(run_dir=None, clock=None, target_return=None, counter=None, **c):
  return star.StarServer(
    _config(**c), LAYOUT, run_dir, counter, target_return, clock or _Clock()
  )


def _theta(value):
  return np.full(LAYOUT.size, value, np.float32)


def _offer(server, value, claim, explorer=0):
  data = parameters.encode(LAYOUT, 0, _theta(value))
  return server.offer(data, claim, explorer, learner_step=10)


def _play(server, *returns, supervisor=0):
  """Runs one episode for each return; says of which kind they were."""
  kinds = []
  for episode_return in returns:
    job = server.next_episode(supervisor, -1)
    assert server.report_episode(job['ticket'], episode_return)
    kinds.append(job['kind'])
  return kinds


def _value(job):
  """Which parameters an answer holds, or None."""
  if job['theta'] is None:
    return None
  return float(parameters.decode(LAYOUT, job['theta'])[1][0])


# Explorers.


def test_only_a_claim_above_the_waiting_one_is_kept():
  server = _server()
  assert server.get_star(0)['bar'] == -math.inf
  assert _offer(server, 1, claim=5.0)
  assert not _offer(server, 2, claim=5.0)
  assert not _offer(server, 3, claim=4.0)
  assert _offer(server, 4, claim=6.0)
  assert server.get_star(0)['bar'] == 6.0
  assert _value(server.next_episode(0, -1)) == 4.0
  assert server.metrics()['offers'] == 4


@pytest.mark.parametrize('bad', [math.nan, math.inf, -math.inf])
def test_candidates_and_claims_that_are_not_finite_are_refused(bad):
  server = _server()
  theta = _theta(1)
  theta[3] = bad
  with pytest.raises(ValueError, match='Explorer 7 offered non-finite'):
    server.offer(parameters.encode(LAYOUT, 0, theta), 1.0, 7, 0)
  with pytest.raises(ValueError, match='the claim'):
    _offer(server, 1, claim=bad)
  assert server.next_episode(0, -1)['ticket'] == -1


def test_an_explorer_with_another_network_is_told_both_networks():
  server = _server()
  assert server.register('explorer/0', LAYOUT.fingerprint, repr(LAYOUT)) == ''
  refusal = server.register('explorer/1', OTHER.fingerprint, repr(OTHER))
  for part in ('explorer/1', 'q/w[2, 4]', 'q/w[2, 3]', 'same config'):
    assert part in refusal
  data = parameters.encode(OTHER, 0, np.zeros(OTHER.size, np.float32))
  with pytest.raises(parameters.LayoutMismatch):
    server.offer(data, 1.0, 0, 0)


def test_parameters_travel_only_when_the_version_is_newer():
  server = _server()
  star = server.get_star(0)
  assert (star['version'], star['theta'], star['c']) == (0, None, 0.0)
  _offer(server, 1, claim=1.0)
  _play(server, 3.0, 5.0)
  star = server.get_star(0)
  assert (star['version'], _value(star), star['r_star']) == (1, 1.0, 4.0)
  assert server.get_star(1)['theta'] is None
  _offer(server, 2, claim=2.0)
  _play(server, 8.0, 8.0)
  star = server.get_star(1)
  assert (star['version'], _value(star), star['r_star']) == (2, 2.0, 8.0)
  assert star['c'] == _config().c_max


def test_a_rejected_candidate_changes_neither_version_nor_pull():
  server = _server()
  _offer(server, 1, claim=1.0)
  _play(server, 5.0, 5.0)
  before = server.get_star(0)
  _offer(server, 2, claim=2.0)
  _play(server, 9.0, 0.0)
  assert server.get_star(0) == before
  metrics = server.metrics()
  assert (metrics['accepted'], metrics['rejected']) == (1, 1)
  assert metrics['rejected_fraction'] == 0.5


# Supervisors.


def test_one_supervisor_waits_tries_and_confirms_in_turn():
  server = _server()
  job = server.next_episode(0, -1)
  assert (job['ticket'], job['kind'], job['theta']) == (-1, 'wait', None)
  _offer(server, 1, claim=1.0)
  assert _play(server, 4.0, 6.0) == ['trial', 'trial']
  assert _play(server, 7.0, 3.0) == ['confirmation', 'confirmation']
  metrics = server.metrics()
  # Both trial returns beat minus infinity, and 7 beats the mean of 5.
  assert (metrics['R_star'], metrics['x']) == (5.0, 3)
  assert metrics['episodes_supervised'] == 4


def test_parameters_are_not_sent_to_a_supervisor_that_holds_them():
  server = _server()
  _offer(server, 1, claim=1.0)
  job = server.next_episode(0, -1)
  assert _value(job) == 1.0
  server.report_episode(job['ticket'], 1.0)
  assert server.next_episode(0, job['candidate'])['theta'] is None


def test_three_supervisors_share_a_trial_and_no_episode_is_run_twice():
  server = _server(num_supervisors=3)
  _offer(server, 1, claim=1.0)
  jobs = [server.next_episode(i, -1) for i in range(3)]
  # A trial has two episodes, and before the first star there is nothing else.
  assert [job['kind'] for job in jobs] == ['trial', 'trial', 'wait']
  assert jobs[0]['ticket'] != jobs[1]['ticket']
  assert server.report_episode(jobs[1]['ticket'], 6.0)
  assert server.get_star(0)['version'] == 0
  assert server.report_episode(jobs[0]['ticket'], 4.0)
  assert server.get_star(0)['version'] == 1
  assert server.metrics()['R_star'] == 5.0
  jobs = [server.next_episode(i, -1) for i in range(3)]
  assert [job['kind'] for job in jobs] == ['confirmation'] * 3
  # A trial that begins among them: the late confirmation still counts.
  _offer(server, 2, claim=2.0)
  assert server.next_episode(2, -1)['kind'] == 'trial'
  assert server.report_episode(jobs[0]['ticket'], 5.0)
  assert server.metrics()['x'] == 3


def test_the_episode_of_a_restarted_supervisor_is_asked_for_again():
  server = _server()
  _offer(server, 1, claim=1.0)
  _play(server, 4.0)
  lost = server.next_episode(0, -1)
  # It was killed; what comes next is its successor.
  again = server.next_episode(0, -1)
  assert again['kind'] == 'trial' and _value(again) == 1.0
  assert not server.report_episode(lost['ticket'], 100.0)
  assert server.report_episode(again['ticket'], 6.0)
  assert server.metrics()['R_star'] == 5.0


def test_the_episode_of_a_silent_supervisor_goes_to_another():
  clock = _Clock()
  server = _server(clock=clock, trial_timeout_s=1e6)
  _offer(server, 1, claim=1.0)
  silent = server.next_episode(0, -1)
  _play(server, 4.0, supervisor=1)
  assert server.next_episode(1, -1)['kind'] == 'wait'
  clock.now += 61.0
  assert _play(server, 6.0, supervisor=1) == ['trial']
  assert server.metrics()['R_star'] == 5.0
  assert not server.report_episode(silent['ticket'], 100.0)


def test_a_trial_that_takes_too_long_is_dropped():
  clock = _Clock()
  server = _server(clock=clock, trial_timeout_s=10.0)
  _offer(server, 1, claim=1.0)
  _play(server, 4.0, 6.0)
  _offer(server, 2, claim=2.0)
  _play(server, 50.0)
  late = server.next_episode(0, -1)
  clock.now += 10.5
  assert server.next_episode(1, -1)['kind'] == 'confirmation'
  server.report_episode(late['ticket'], 50.0)
  metrics = server.metrics()
  assert (metrics['rejected'], metrics['R_star']) == (1, 5.0)
  # Its claim is now the bar, as after any failed trial.
  assert metrics['claim_bar'] == 2.0
  # The clock of the next trial starts with that trial.
  _offer(server, 3, claim=3.0)
  assert _play(server, 7.0) == ['trial']
  clock.now += 9.0
  assert _play(server, 7.0) == ['trial']
  assert server.get_star(0)['version'] == 2


@pytest.mark.parametrize('bad', [math.nan, math.inf])
def test_a_return_that_is_not_finite_is_refused(bad):
  server = _server()
  _offer(server, 1, claim=1.0)
  job = server.next_episode(0, -1)
  with pytest.raises(ValueError, match='not finite'):
    server.report_episode(job['ticket'], bad)
  assert server.report_episode(job['ticket'], 1.0)


def test_the_literal_rules_publish_after_more_than_b_wins():
  server = _server(supervisor='literal', k=200.0, b=2)
  _offer(server, 1, claim=1.0)
  _play(server, 5.0, 5.0)
  assert server.get_star(0)['version'] == 0
  _play(server, 5.0)
  star = server.get_star(0)
  assert (star['version'], _value(star)) == (1, 1.0)
  assert star['c'] == pytest.approx(math.atan(3 / 400))
  # The newest candidate is loaded whatever it claims.
  _offer(server, 2, claim=0.0)
  assert _value(server.next_episode(0, -1)) == 2.0


# Checkpoints.


def test_a_server_that_dies_in_mid_trial_goes_on_with_the_trial(tmp_path):
  server = _server(tmp_path)
  _offer(server, 1, claim=1.0, explorer=4)
  _play(server, 4.0, 6.0)
  _offer(server, 2, claim=2.0)
  _play(server, 9.0)
  _offer(server, 3, claim=3.0)
  server.save()
  server.next_episode(0, -1)  # In flight when it dies.

  again = _server(tmp_path)
  star = again.get_star(0)
  assert (star['version'], _value(star), star['r_star']) == (1, 1.0, 5.0)
  assert star['bar'] == 3.0
  job = again.next_episode(0, -1)
  assert job['kind'] == 'trial' and _value(job) == 2.0
  again.report_episode(job['ticket'], 5.0)
  star = again.get_star(1)
  assert (star['version'], _value(star), star['r_star']) == (2, 2.0, 7.0)
  assert _value(again.next_episode(0, -1)) == 3.0


def test_the_star_is_kept_as_plain_arrays(tmp_path):
  server = _server(tmp_path)
  _offer(server, 1, claim=1.0, explorer=4)
  _play(server, 4.0, 6.0)
  server.save()
  with np.load(tmp_path / 'checkpoints' / checkpoints.STAR) as star:
    np.testing.assert_array_equal(star['theta'], _theta(1))
    assert (star['version'], star['explorer']) == (1, 4)
    assert star['r_star'] == 5.0


def test_a_checkpoint_of_another_network_is_refused(tmp_path):
  server = _server(tmp_path)
  _offer(server, 1, claim=1.0)
  _play(server, 4.0, 6.0)
  server.save()
  with pytest.raises(parameters.LayoutMismatch):
    star.StarServer(_config(), OTHER, tmp_path, None)


def test_parameters_that_no_rule_can_ask_for_are_forgotten(tmp_path):
  server = _server(tmp_path)
  for i in range(30):
    _offer(server, i, claim=float(i))
    _play(server, float(i), float(i))
  server.save()
  path = tmp_path / 'checkpoints' / checkpoints.STAR_SERVER
  with np.load(path) as saved:
    thetas = [name for name in saved.files if name.startswith('theta_')]
  assert len(thetas) <= 3  # theta_star, the trial, the waiting one


# The goal, and the node.


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
    thread.join(timeout=5)
    assert not thread.is_alive()


def _wait_until(condition):
  deadline = time.monotonic() + 10
  while not condition():
    assert time.monotonic() < deadline, 'waited in vain'
    time.sleep(0.02)


def test_the_goal_needs_a_whole_window_of_episodes(tmp_path, running):
  counter = _InProcess(tmp_path)
  server = _server(
    tmp_path, time.monotonic, target_return=10.0, counter=counter
  )
  running(server)
  _offer(server, 1, claim=1.0, explorer=3)
  _play(server, 30.0, 30.0)  # accepted, and far above the target
  _play(server, 5.0)
  _wait_until(lambda: 'candidate' in counter.snapshot()['latest'])
  assert not counter.finished()
  _play(server, 5.0)  # the fourth: a whole window, with a mean of 17.5
  _wait_until(counter.finished)
  snapshot = counter.snapshot()
  assert 'confirmed mean return of 17.5 over 4 episodes' in snapshot['reason']
  assert snapshot['result'] == {
    'R_star': 17.5,
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


def test_the_swarm_says_how_much_its_star_has_learned():
  server = _server()
  assert 'star_learner_steps' not in server.metrics()  # there is no star yet
  _offer(server, 1, claim=1.0)
  _play(server, 30.0, 30.0)
  assert server.metrics()['star_learner_steps'] == 10


def test_a_window_below_the_target_is_no_goal(tmp_path, running):
  counter = _InProcess(tmp_path)
  server = _server(
    tmp_path, time.monotonic, target_return=10.0, counter=counter
  )
  running(server)
  _offer(server, 1, claim=1.0)
  _play(server, 30.0, 0.0, 0.0, 0.0, 0.0)
  _offer(server, 2, claim=2.0)
  _play(server, 0.0, 0.0)
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
  clock = _Clock()
  counter = _InProcess(tmp_path)
  server = _server(clock=clock, counter=counter, trial_timeout_s=10.0)
  counter.report('explorer/0', {'actor_steps': 70})
  _offer(server, 1, claim=1.0)
  _play(server, 4.0, 6.0)
  asked_early = server.next_episode(1, -1)  # of version 1
  _offer(server, 2, claim=2.0)
  _play(server, 9.0, 8.0)
  assert server.report_episode(asked_early['ticket'], 3.0)
  _play(server, 7.0)
  _offer(server, 3, claim=3.0)
  _play(server, 5.0, 1.0)
  _offer(server, 4, claim=4.0)
  _play(server, 2.0)
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
  server = _server(counter=counter, supervisor='literal', k=200.0, b=1)
  _offer(server, 1, claim=1.0)
  _play(server, 5.0, 5.0)
  running(server)
  run = run_directory.RunDirectory(tmp_path)
  _wait_until(lambda: run.metrics('supervisor')[1:])
  (row,) = run.metrics('candidate')
  assert row['accepted'] and 'trial_mean' not in row
  counter.close()
