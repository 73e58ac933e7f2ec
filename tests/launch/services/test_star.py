"""The star server: candidates in, theta_star out, supervisors may die.

The rules themselves are tested on vectors with agents/swarm. A supervisor
here is a call to next_episode and one to report_episode.
"""

import math

import numpy as np
import pytest

from agents import parameters
from launch import pulse
from launch.services import star
from run_records import checkpoints
from tests.launch.services import star_calls as calls

# Explorers.


def test_only_a_claim_above_the_waiting_one_is_kept():
  server = calls.make_server()
  assert server.get_star(0)['bar'] == -math.inf
  assert calls.offer(server, 1, claim=5.0)
  assert not calls.offer(server, 2, claim=5.0)
  assert not calls.offer(server, 3, claim=4.0)
  assert calls.offer(server, 4, claim=6.0)
  assert server.get_star(0)['bar'] == 6.0
  assert calls.value_of(server.next_episode(0, -1)) == 4.0
  assert server.metrics()['offers'] == 4


@pytest.mark.parametrize('bad', [math.nan, math.inf, -math.inf])
def test_candidates_and_claims_that_are_not_finite_are_refused(bad):
  server = calls.make_server()
  theta = calls.make_theta(1)
  theta[3] = bad
  with pytest.raises(ValueError, match='Explorer 7 offered non-finite'):
    server.offer(parameters.encode(calls.LAYOUT, 0, theta), 1.0, 7, 0)
  with pytest.raises(ValueError, match='the claim'):
    calls.offer(server, 1, claim=bad)
  assert server.next_episode(0, -1)['ticket'] == -1


def test_parameters_of_another_network_are_refused():
  server = calls.make_server()
  data = parameters.encode(
    calls.OTHER, 0, np.zeros(calls.OTHER.size, np.float32)
  )
  with pytest.raises(parameters.LayoutMismatch):
    server.offer(data, 1.0, 0, 0)


def test_parameters_travel_only_when_the_version_is_another():
  server = calls.make_server()
  star = server.get_star(0)
  assert (star['version'], star['theta'], star['c']) == (0, None, 0.0)
  calls.offer(server, 1, claim=1.0)
  calls.play(server, 3.0, 5.0)
  star = server.get_star(0)
  assert (star['version'], calls.value_of(star), star['r_star']) == (
    1,
    1.0,
    4.0,
  )
  assert server.get_star(1)['theta'] is None
  # Of one who knows what a server lost that came back from its checkpoint.
  assert calls.value_of(server.get_star(2)) == 1.0
  calls.offer(server, 2, claim=2.0)
  calls.play(server, 8.0, 8.0)
  star = server.get_star(1)
  assert (star['version'], calls.value_of(star), star['r_star']) == (
    2,
    2.0,
    8.0,
  )
  assert star['c'] == calls.make_config().c_max


def test_a_rejected_candidate_changes_neither_version_nor_pull():
  server = calls.make_server()
  calls.offer(server, 1, claim=1.0)
  calls.play(server, 5.0, 5.0)
  before = server.get_star(0)
  calls.offer(server, 2, claim=2.0)
  calls.play(server, 9.0, 0.0)
  assert server.get_star(0) == before
  metrics = server.metrics()
  assert (metrics['accepted'], metrics['rejected']) == (1, 1)
  assert metrics['rejected_fraction'] == 0.5


# Supervisors.


def test_one_supervisor_waits_tries_and_confirms_in_turn():
  server = calls.make_server()
  job = server.next_episode(0, -1)
  assert (job['ticket'], job['kind'], job['theta']) == (-1, 'wait', None)
  calls.offer(server, 1, claim=1.0)
  assert calls.play(server, 4.0, 6.0) == ['trial', 'trial']
  assert calls.play(server, 7.0, 3.0) == ['confirmation', 'confirmation']
  metrics = server.metrics()
  # Both trial returns beat minus infinity, and 7 beats the mean of 5.
  assert (metrics['R_star'], metrics['x']) == (5.0, 3)
  assert metrics['episodes_supervised'] == 4


def test_parameters_are_not_sent_to_a_supervisor_that_holds_them():
  server = calls.make_server()
  calls.offer(server, 1, claim=1.0)
  job = server.next_episode(0, -1)
  assert calls.value_of(job) == 1.0
  server.report_episode(job['ticket'], 1.0)
  assert server.next_episode(0, job['candidate'])['theta'] is None


def test_three_supervisors_share_a_trial_and_no_episode_is_run_twice():
  server = calls.make_server(num_supervisors=3)
  calls.offer(server, 1, claim=1.0)
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
  calls.offer(server, 2, claim=2.0)
  assert server.next_episode(2, -1)['kind'] == 'trial'
  assert server.report_episode(jobs[0]['ticket'], 5.0)
  assert server.metrics()['x'] == 3


def test_the_episode_of_a_restarted_supervisor_is_asked_for_again():
  server = calls.make_server()
  calls.offer(server, 1, claim=1.0)
  calls.play(server, 4.0)
  lost = server.next_episode(0, -1)
  # It was killed; what comes next is its successor.
  again = server.next_episode(0, -1)
  assert again['kind'] == 'trial' and calls.value_of(again) == 1.0
  assert not server.report_episode(lost['ticket'], 100.0)
  assert server.report_episode(again['ticket'], 6.0)
  assert server.metrics()['R_star'] == 5.0


def test_the_episode_of_a_silent_supervisor_goes_to_another():
  clock = calls.Clock()
  server = calls.make_server(clock=clock, trial_timeout_s=1e6)
  calls.offer(server, 1, claim=1.0)
  silent = server.next_episode(0, -1)
  calls.play(server, 4.0, supervisor=1)
  assert server.next_episode(1, -1)['kind'] == 'wait'
  clock.now += 61.0
  assert calls.play(server, 6.0, supervisor=1) == ['trial']
  assert server.metrics()['R_star'] == 5.0
  assert not server.report_episode(silent['ticket'], 100.0)


def test_an_episode_may_take_long_if_its_supervisor_is_not_silent():
  clock = calls.Clock()
  server = calls.make_server(clock=clock, trial_timeout_s=1e6)
  calls.offer(server, 1, claim=1.0)
  long = server.next_episode(0, -1)
  calls.play(server, 4.0, supervisor=1)
  for _ in range(3):
    clock.now += 50.0
    assert server.playing(long['ticket'])
    # Nor does the pull fade: a supervisor was heard of just now.
    assert server.get_star(0)['supervisor_age_s'] == 0
    assert server.next_episode(1, -1)['kind'] == 'wait'
  clock.now += 50.0
  assert server.report_episode(long['ticket'], 6.0)
  assert server.metrics()['supervisor_age_s'] == 0
  assert server.metrics()['R_star'] == 5.0
  assert not server.playing(long['ticket'])


def test_numbers_of_a_life_that_were_not_saved_are_not_given_again(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(pulse, 'life', lambda: ('run', 1))
  server = calls.make_server(tmp_path)
  calls.offer(server, 1, claim=1.0)
  calls.play(server, 4.0, 6.0)
  server.save()
  calls.offer(server, 2, claim=2.0)
  held = server.next_episode(0, -1)
  assert held['kind'] == 'trial'
  # Killed before it saved. Another candidate comes first after that.
  monkeypatch.setattr(pulse, 'life', lambda: ('run', 2))
  again = calls.make_server(tmp_path)
  calls.offer(again, 3, claim=3.0)
  assert not again.report_episode(held['ticket'], 100.0)
  job = again.next_episode(0, held['candidate'])
  assert job['kind'] == 'trial' and calls.value_of(job) == 3.0
  assert not again.report_episode(held['ticket'], 100.0)
  assert again.report_episode(job['ticket'], 1.0)


def test_no_number_is_given_twice_however_often_a_run_was_resumed(
  tmp_path, monkeypatch
):
  given = set()

  def live(run, life, saves):
    monkeypatch.setattr(pulse, 'life', lambda: (run, life))
    server = calls.make_server(tmp_path)
    calls.offer(server, 1, claim=1.0 + len(given))
    job = server.next_episode(0, -1)
    assert job['kind'] == 'trial' and job['candidate'] not in given
    given.add(job['candidate'])
    server.report_episode(job['ticket'], 1.0)
    calls.play(server, 1.0)
    if saves:
      server.save()

  for life in (1, 2, 3):
    live('first', life, True)
  live('resumed', 1, False)
  live('resumed', 2, False)
  live('resumed', 3, True)
  live('again', 1, False)
  live('again', 2, True)
  assert len(given) == 8


def test_a_trial_that_takes_too_long_is_dropped():
  clock = calls.Clock()
  server = calls.make_server(clock=clock, trial_timeout_s=10.0)
  calls.offer(server, 1, claim=1.0)
  calls.play(server, 4.0, 6.0)
  calls.offer(server, 2, claim=2.0)
  calls.play(server, 50.0)
  late = server.next_episode(0, -1)
  clock.now += 10.5
  assert server.next_episode(1, -1)['kind'] == 'confirmation'
  server.report_episode(late['ticket'], 50.0)
  metrics = server.metrics()
  assert (metrics['rejected'], metrics['R_star']) == (1, 5.0)
  # Its claim is now the bar, as after any failed trial.
  assert metrics['claim_bar'] == 2.0
  # The clock of the next trial starts with that trial.
  calls.offer(server, 3, claim=3.0)
  assert calls.play(server, 7.0) == ['trial']
  clock.now += 9.0
  assert calls.play(server, 7.0) == ['trial']
  assert server.get_star(0)['version'] == 2


def test_the_only_supervisor_leaves_a_trial_that_takes_too_long():
  clock = calls.Clock()
  server = calls.make_server(clock=clock, trial_timeout_s=10.0)
  calls.offer(server, 1, claim=1.0)
  calls.play(server, 4.0, 6.0)
  calls.offer(server, 2, claim=2.0)
  calls.play(server, 50.0)
  late = server.next_episode(0, -1)['ticket']
  clock.now += 9.0
  assert server.playing(late)
  clock.now += 1.5
  assert not server.playing(late)
  assert server.metrics()['rejected'] == 1
  # Of an episode that ends in one piece nothing is heard before.
  calls.offer(server, 3, claim=3.0)
  calls.play(server, 50.0)
  late = server.next_episode(0, -1)['ticket']
  clock.now += 10.5
  assert not server.report_episode(late, 50.0)
  metrics = server.metrics()
  assert (metrics['rejected'], metrics['R_star']) == (2, 5.0)


def test_the_time_of_a_trial_is_of_all_its_episodes():
  clock = calls.Clock()
  server = calls.make_server(clock=clock, trial_timeout_s=10.0)
  calls.offer(server, 1, claim=1.0)
  calls.play(server, 4.0, 6.0)
  calls.offer(server, 2, claim=2.0)
  late = server.next_episode(0, -1)['ticket']
  clock.now += 9.0
  assert server.report_episode(late, 50.0)
  late = server.next_episode(0, -1)['ticket']
  clock.now += 1.5
  assert not server.report_episode(late, 50.0)
  assert server.metrics()['rejected'] == 1


def test_an_episode_whose_last_step_is_slow_counts_all_the_same():
  clock = calls.Clock()
  server = calls.make_server(clock=clock, trial_timeout_s=1000.0)
  calls.offer(server, 1, claim=1.0)
  ticket = server.next_episode(0, -1)['ticket']
  clock.now += 61.0
  assert server.report_episode(ticket, 5.0)


@pytest.mark.parametrize('bad', [math.nan, math.inf])
def test_a_return_that_is_not_finite_is_refused(bad):
  server = calls.make_server()
  calls.offer(server, 1, claim=1.0)
  job = server.next_episode(0, -1)
  with pytest.raises(ValueError, match='not finite'):
    server.report_episode(job['ticket'], bad)
  assert server.report_episode(job['ticket'], 1.0)


def test_the_literal_rules_publish_after_more_than_b_wins():
  server = calls.make_server(supervisor='literal', k=200.0, b=2)
  calls.offer(server, 1, claim=1.0)
  calls.play(server, 5.0, 5.0)
  assert server.get_star(0)['version'] == 0
  calls.play(server, 5.0)
  star = server.get_star(0)
  assert (star['version'], calls.value_of(star)) == (1, 1.0)
  assert star['c'] == pytest.approx(math.atan(3 / 400))
  # The newest candidate is loaded whatever it claims.
  calls.offer(server, 2, claim=0.0)
  assert calls.value_of(server.next_episode(0, -1)) == 2.0


def test_what_the_literal_rules_confirm_is_no_new_theta_star(tmp_path):
  server = calls.make_server(tmp_path, supervisor='literal', k=200.0, b=1)
  calls.offer(server, 1, claim=1.0)
  calls.play(server, 5.0, 5.0)
  server.save()
  rows = len(server._rows)
  assert calls.play(server, 6.0, 7.0) == ['confirmation', 'confirmation']
  star = server.get_star(1)
  # Nobody fetches it again, but its numbers are the newest, also once saved.
  assert (star['version'], star['theta'], star['r_star']) == (1, None, 7.0)
  assert star['c'] == pytest.approx(math.atan(4 / 200))
  assert [kind for kind, _ in list(server._rows)[rows:]] == ['supervisor'] * 2
  server.save()
  again = calls.make_server(tmp_path, supervisor='literal', k=200.0, b=1)
  assert again.get_star(1) == star
  calls.play(again, 8.0)
  assert again.get_star(1)['version'] == 1
  calls.offer(server, 2, claim=0.0)
  calls.play(server, 9.0, 9.0)
  assert server.get_star(1)['version'] == 2


# Checkpoints.


def test_a_server_that_dies_in_mid_trial_goes_on_with_the_trial(tmp_path):
  server = calls.make_server(tmp_path)
  calls.offer(server, 1, claim=1.0, explorer=4)
  calls.play(server, 4.0, 6.0)
  calls.offer(server, 2, claim=2.0)
  calls.play(server, 9.0)
  calls.offer(server, 3, claim=3.0)
  server.save()
  server.next_episode(0, -1)  # In flight when it dies.

  again = calls.make_server(tmp_path)
  star = again.get_star(0)
  assert (star['version'], calls.value_of(star), star['r_star']) == (
    1,
    1.0,
    5.0,
  )
  assert star['bar'] == 3.0
  job = again.next_episode(0, -1)
  assert job['kind'] == 'trial' and calls.value_of(job) == 2.0
  again.report_episode(job['ticket'], 5.0)
  metrics = again.metrics()
  assert (metrics['offers'], metrics['episodes_supervised']) == (3, 4)
  star = again.get_star(1)
  assert (star['version'], calls.value_of(star), star['r_star']) == (
    2,
    2.0,
    7.0,
  )
  assert calls.value_of(again.next_episode(0, -1)) == 3.0


def test_what_a_full_disk_left_out_is_saved_when_there_is_room(
  tmp_path, monkeypatch
):
  server = calls.make_server(tmp_path)
  calls.offer(server, 1, claim=1.0)
  calls.play(server, 4.0, 6.0)

  def full(*unused, **unused_too):
    raise OSError(28, 'No space left on device')

  with monkeypatch.context() as patched:
    patched.setattr(checkpoints, 'write', full)
    server.save()
  server.save()
  assert calls.make_server(tmp_path).get_star(0)['r_star'] == 5.0
  # A candidate that waits, before any supervisor has looked at it.
  calls.offer(server, 2, claim=2.0)
  server.save()
  assert calls.make_server(tmp_path).get_star(0)['bar'] == 2.0


def test_a_dropped_trial_stays_dropped(tmp_path):
  clock = calls.Clock()
  server = calls.make_server(tmp_path, clock, trial_timeout_s=10.0)
  calls.offer(server, 1, claim=1.0)
  calls.play(server, 4.0, 6.0)
  calls.offer(server, 2, claim=2.0)
  server.next_episode(0, -1)
  server.save()
  clock.now += 10.5
  server.next_episode(0, -1)
  server.save()
  assert calls.make_server(tmp_path).metrics()['claim_bar'] == 2.0


def test_the_star_is_kept_as_plain_arrays(tmp_path):
  server = calls.make_server(tmp_path)
  calls.offer(server, 1, claim=1.0, explorer=4)
  calls.play(server, 4.0, 6.0)
  server.save()
  with np.load(tmp_path / 'checkpoints' / checkpoints.STAR) as star:
    np.testing.assert_array_equal(star['theta'], calls.make_theta(1))
    assert (star['version'], star['explorer']) == (1, 4)
    assert star['r_star'] == 5.0


def test_a_checkpoint_of_another_network_is_refused(tmp_path):
  server = calls.make_server(tmp_path)
  calls.offer(server, 1, claim=1.0)
  calls.play(server, 4.0, 6.0)
  server.save()
  with pytest.raises(parameters.LayoutMismatch):
    star.StarServer(calls.make_config(), calls.OTHER, tmp_path, None)


def test_parameters_that_no_rule_can_ask_for_are_forgotten(tmp_path):
  server = calls.make_server(tmp_path)
  for i in range(30):
    calls.offer(server, i, claim=float(i))
    calls.play(server, float(i), float(i))
  for i in range(30, 40):  # No supervisor asks meanwhile.
    calls.offer(server, i, claim=float(i))
  server.save()
  path = tmp_path / 'checkpoints' / checkpoints.STAR_SERVER
  with np.load(path) as saved:
    thetas = [name for name in saved.files if name.startswith('theta_')]
  assert len(thetas) <= 3  # theta_star, the trial, the waiting one


def test_a_disk_without_room_for_theta_star_takes_the_state(
  tmp_path, monkeypatch
):
  server = calls.make_server(tmp_path)
  calls.offer(server, 1, claim=1.0)
  calls.play(server, 4.0, 6.0)
  write = checkpoints.write

  def full(path, **arrays):
    if path.name == checkpoints.STAR:
      raise OSError('No space left on device')
    write(path, **arrays)

  monkeypatch.setattr(checkpoints, 'write', full)
  server.save()  # it is logged
  assert (tmp_path / 'checkpoints' / checkpoints.STAR_SERVER).exists()
