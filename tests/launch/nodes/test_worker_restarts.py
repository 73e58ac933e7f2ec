"""A worker that died is started again: where it goes on, and how."""

import numpy as np
import pytest

from murmuration.agents.exchange import local
from murmuration.launch import pulse
from murmuration.launch import reporting
from tests.launch.nodes import experiments


@pytest.fixture
def live(tmp_path):
  """live(): a life of the node begins, as the launcher begins it."""
  (slot,) = pulse.Board(tmp_path, 1).slots
  pulse.use(slot)
  yield slot.clear
  pulse.use(None)


@pytest.mark.parametrize('lives', [1, 2])
def test_who_died_before_its_first_report_is_started_again_all_the_same(
  lives, live, recorder, run_worker, make_counter
):
  told = []

  class Told(local.Local):
    def initial(self, theta, again):
      told.append(again)
      return theta

  for _ in range(lives):
    live()
  experiment = experiments.make(
    experiments.COUNTING, 1, run={'steps_per_agent': 20}
  )
  counter = make_counter(None, {'actor_steps': 20})  # has heard of nobody
  run_worker(experiment, counter, exchange=Told)
  assert told == [lives > 1]


@pytest.mark.parametrize('shared', [True, False])
def test_who_is_started_again_begins_as_all_did_where_they_start_alike(
  shared, recorder, run_worker, make_counter
):
  first = []

  class Starts(local.Local):
    shared_start = shared

    def initial(self, theta, again):
      first.append(theta)
      return theta

  experiment = experiments.make(
    experiments.COUNTING, 2, run={'steps_per_agent': 20}
  )
  for member, steps in ((0, 0), (1, 0), (1, 10)):
    counter = make_counter(None, {'actor_steps': 20})
    counter.report('worker/0', {'actor_steps': steps})  # before it died
    run_worker(experiment, counter, [member], exchange=Starts)
  alike = 1 if shared else 3
  assert len(np.unique(np.concatenate(first), axis=0)) == alike


def test_a_restarted_node_goes_on_where_its_reports_ended(
  recorder, run_worker, make_counter, tmp_path, monkeypatch
):
  experiment = experiments.make(
    experiments.COUNTING, 2, run={'steps_per_agent': 120}
  )

  monkeypatch.setattr(reporting, '_PERIOD_S', 0.0)

  class StopsMidway(local.Local):
    def sync(self):
      assert not self.worker.over()  # which also reports
      if self.worker.steps >= 60:
        raise KeyboardInterrupt('killed')

    def begin(self, worker):
      self.worker = worker

  counter = make_counter(tmp_path, experiments.budget(experiment))
  with pytest.raises(KeyboardInterrupt):
    run_worker(experiment, counter, exchange=StopsMidway)
  assert counter.totals()['actor_steps'] == 120
  again = run_worker(experiment, counter)
  assert again.steps == 120
  assert counter.totals()['actor_steps'] == 240
  assert counter.snapshot()['outcome'] == 'budget'
  first, second = recorder
  assert [len(first.steps[0]), len(second.steps[0])] == [60, 60]
  counter.close()


@pytest.mark.long
def test_a_restarted_node_draws_other_random_numbers(
  live, recorder, run_worker, make_counter
):
  def actions(steps_before):
    experiment = experiments.make(
      experiments.COUNTING, 2, {'min_replay_size': 500}
    )
    counter = make_counter(None, experiments.budget(experiment))
    if steps_before:
      counter.report('worker/0', {'actor_steps': steps_before})
    run_worker(experiment, counter)
    return [row[1] for row in recorder[-1].steps[0]][:40]

  assert actions(0) == actions(0)
  assert actions(0) != actions(100)
  # Who died before its first report has no steps.
  live()
  first = actions(0)
  live()
  assert first != actions(0)
