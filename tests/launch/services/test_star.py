"""The star of a swarm: candidates in, theta_star out."""

import math
import time

import numpy as np
import pytest

from murmuration.agents import parameters
from murmuration.agents.swarm import explorers
from murmuration.environment_loops import faults
from murmuration.run_records import checkpoints
from tests.launch.services import star_cases


def test_only_a_claim_above_the_waiting_one_is_kept(make_swarm):
  swarm = make_swarm()
  swarm.end()  # nobody plays
  assert swarm.star.get_star(0)['bar'] == -math.inf
  assert swarm.offer(1, claim=5.0)
  assert not swarm.offer(2, claim=5.0)
  assert not swarm.offer(3, claim=4.0)
  assert swarm.offer(4, claim=6.0)
  assert swarm.star.get_star(0)['bar'] == 6.0
  assert swarm.star.metrics()['offers'] == 4


@pytest.mark.parametrize('bad', [math.nan, math.inf, -math.inf])
def test_candidates_and_claims_that_are_not_finite_are_refused(bad, make_swarm):
  swarm = make_swarm()
  theta = swarm.theta(1)
  theta[3] = bad
  with pytest.raises(ValueError, match='Explorer 7'):
    swarm.star.offer(parameters.encode(swarm.layout, 0, theta), 1.0, 7, 0)
  assert not swarm.offer(1, claim=bad)


def test_parameters_of_another_network_are_refused(make_swarm):
  other = parameters.Layout([('q/w', (2, 4))], {'q': ['q/w']})
  data = parameters.encode(other, 0, np.zeros(other.size, np.float32))
  with pytest.raises(parameters.LayoutMismatch):
    make_swarm().star.offer(data, 1.0, 0, 0)


def test_parameters_travel_only_when_the_version_is_another(make_swarm):
  swarm = make_swarm()
  assert swarm.get() == (0, None, -math.inf)
  assert swarm.star.get_star(0)['c'] == 0.0
  swarm.offer(1, claim=1.0)
  swarm.play(3.0, 5.0)
  assert swarm.get() == (1, 1.0, 4.0)
  assert swarm.get(1) == (1, None, 4.0)
  # An explorer may know a version that was lost with the star's last life.
  assert swarm.get(2) == (1, 1.0, 4.0)
  swarm.offer(2, claim=2.0)
  swarm.play(4.0, 8.0, 8.0)  # one confirmation, then the trial
  assert swarm.get(1) == (2, 2.0, 8.0)
  assert swarm.star.get_star(2)['c'] == explorers.Config.c_max


def test_the_star_tries_confirms_and_rejects_in_turn(make_swarm):
  swarm = make_swarm()
  swarm.offer(1, claim=1.0, explorer=4)
  swarm.play(4.0, 6.0, 7.0)
  swarm.offer(2, claim=2.0)
  swarm.play(3.0, 9.0, 0.0, 5.0)
  rows = swarm.counter.of(
    'supervisor', 'kind', 'version', 'episode_return', 'R_star'
  )
  assert rows == [
    ('trial', 0, 4.0, -math.inf),
    ('trial', 0, 6.0, 5.0),
    ('confirmation', 1, 7.0, pytest.approx(17 / 3)),
    ('confirmation', 1, 3.0, 5.0),
    ('trial', 1, 9.0, 5.0),
    ('trial', 1, 0.0, 5.0),
    ('confirmation', 1, 5.0, pytest.approx(21 / 4)),
  ]
  star = swarm.counter.of('star', 'version', 'claim', 'R_star', 'explorer')
  assert star == [(1, 1.0, 5.0, 4)]
  decided = swarm.counter.of(
    'candidate', 'accepted', 'trial_mean', 'rejected_fraction'
  )
  assert decided == [(True, 5.0, 0.0), (False, 4.5, 0.5)]
  metrics = swarm.star.metrics()
  assert (metrics['accepted'], metrics['rejected']) == (1, 1)
  assert metrics['episodes_supervised'] == 7
  assert metrics['star_learner_steps'] == 10 and metrics['star_age_s'] >= 0


def test_a_trial_that_takes_too_long_is_dropped(make_swarm):
  swarm = make_swarm(trial_timeout_s=0.2)
  swarm.offer(1, claim=1.0)
  swarm.play(4.0, 6.0)
  swarm.offer(2, claim=2.0)
  swarm.play(5.0)
  swarm.script.entries.put(star_cases.ENDLESS)
  swarm.wait_until(lambda: len(swarm.counter.of('candidate')) == 2)
  swarm.play(5.0)
  assert swarm.counter.of('supervisor', 'kind')[-1] == ('confirmation',)
  metrics = swarm.star.metrics()
  # Its claim is now the bar, as after any failed trial.
  assert (metrics['rejected'], metrics['claim_bar']) == (1, 2.0)
  assert swarm.get()[:2] == (1, 1.0)


def test_a_broken_episode_is_played_again_where_faults_are_dropped(make_swarm):
  swarm = make_swarm(run={'on_fault': 'drop'})
  swarm.offer(1, claim=1.0)
  swarm.script.entries.put(faults.fault('script', 1, 'reward', math.nan))
  swarm.play(4.0, 6.0)
  assert swarm.get() == (1, 1.0, 5.0)


def test_a_broken_episode_ends_the_node_by_default(make_swarm):
  swarm = make_swarm()
  swarm.offer(1, claim=1.0)
  swarm.script.entries.put(faults.fault('script', 1, 'reward', math.nan))
  deadline = time.monotonic() + star_cases.PATIENCE_S
  while swarm.error is None and time.monotonic() < deadline:
    time.sleep(0.01)
  assert isinstance(swarm.error, faults.EnvironmentFault)


def test_the_star_draws_as_many_actions_as_evaluations_do(make_swarm):
  drawn = make_swarm(run={'eval_epsilon': 1.0})
  drawn.offer(1, claim=1.0)
  drawn.play(*range(30))
  assert drawn.script.actions == {0, 1}


def test_a_whole_window_of_confirmations_is_the_goal(make_swarm):
  swarm = make_swarm(run={'target_return': 10.0})
  swarm.offer(1, claim=1.0, explorer=3)
  swarm.play(30.0, 30.0)  # accepted, and far above the target
  swarm.play(5.0, 5.0, 20.0, 9.0)  # a mean of 9.75
  # A mean of 11.5, of which three were looked at already.
  swarm.play(12.0)
  assert swarm.star.metrics()['R_star'] == 11.5
  assert swarm.counter.goal is None
  swarm.play(12.0, 12.0, 12.0)
  assert swarm.counter.goal == {
    'R_star': 12.0,
    'episodes': 4,
    'version': 1,
    'explorer': 3,
    'star_learner_steps': 10,
    'accepted': 1,
    'rejected': 0,
  }


def test_confirmations_of_an_earlier_star_do_not_fill_the_window(make_swarm):
  swarm = make_swarm(run={'target_return': 10.0})
  swarm.offer(1, claim=1.0)
  swarm.play(5.0, 5.0, 5.0)  # a trial and a confirmation
  swarm.offer(2, claim=2.0)
  swarm.play(5.0, 30.0, 30.0, 0.0, 0.0)  # another one, and the same again
  assert swarm.star.metrics()['R_star'] == 15.0
  assert swarm.counter.goal is None
  swarm.play(20.0, 20.0)
  assert swarm.counter.goal['R_star'] == 10.0


def test_a_star_that_dies_during_a_trial_goes_on_with_the_trial(
  make_swarm, tmp_path
):
  swarm = make_swarm(tmp_path)
  swarm.offer(1, claim=1.0, explorer=4)
  swarm.play(4.0, 6.0)
  swarm.offer(2, claim=2.0)
  swarm.play(5.0, 9.0)  # half of the trial
  swarm.offer(3, claim=3.0)
  swarm.end()

  again = make_swarm(tmp_path)
  assert again.get() == (1, 1.0, 5.0)
  assert again.star.get_star(0)['bar'] == 3.0
  again.play(5.0)
  assert again.get(1) == (2, 2.0, 7.0)
  metrics = again.star.metrics()
  assert (metrics['offers'], metrics['episodes_supervised']) == (3, 5)


def test_theta_star_is_saved_before_it_is_on_record(make_swarm, tmp_path):
  """Else a start after a kill could give its number to another theta_star."""
  saved = []

  class Counter(star_cases.Counter):
    def log(self, node, kind, row):
      if kind == 'star':
        path = checkpoints.directory(tmp_path) / checkpoints.STAR_SERVER
        kept = checkpoints.read(path)
        saved.append((row['version'], int(kept['version'])))
      super().log(node, kind, row)

  swarm = make_swarm(tmp_path, Counter())
  swarm.offer(1, claim=1.0)
  swarm.play(10.0, 10.0)
  swarm.offer(2, claim=2.0)
  swarm.play(10.0, 20.0, 20.0)
  assert saved == [(1, 1), (2, 2)]


def test_theta_star_is_kept_as_plain_arrays(make_swarm, tmp_path):
  swarm = make_swarm(tmp_path)
  swarm.offer(1, claim=1.0, explorer=4)
  swarm.play(4.0, 6.0)
  swarm.end()
  with np.load(tmp_path / 'checkpoints' / checkpoints.STAR) as star:
    np.testing.assert_array_equal(star['theta'], swarm.theta(1))
    assert (star['version'], star['explorer']) == (1, 4)
    assert star['r_star'] == 5.0


def test_a_full_disk_delays_the_checkpoint(make_swarm, tmp_path, monkeypatch):
  swarm = make_swarm(tmp_path)

  def full(*unused, **unused_too):
    raise OSError(28, 'No space left on device')

  with monkeypatch.context() as patched:
    patched.setattr(checkpoints, 'write', full)
    swarm.offer(1, claim=1.0)
    swarm.play(4.0, 6.0)
    assert swarm.get() == (1, 1.0, 5.0)  # explorers get it all the same
  swarm.end()
  assert make_swarm(tmp_path).get() == (1, 1.0, 5.0)


@pytest.mark.parametrize('name', ['state', 'star_theta'])
def test_a_checkpoint_that_does_not_fit_is_refused(make_swarm, tmp_path, name):
  path = checkpoints.directory(tmp_path) / checkpoints.STAR_SERVER
  checkpoints.write(path, **{name: np.zeros(3)})
  with pytest.raises(ValueError, match='start a new run'):
    make_swarm(tmp_path)
