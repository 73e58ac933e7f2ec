"""A worker that evaluates its own members: rows, targets, what it keeps."""

import json

import numpy as np
import pytest

from murmuration.environment_loops import vector
from murmuration.launch import pulse
from murmuration.launch import reporting
from murmuration.launch.nodes import best
from murmuration.run_records import checkpoints
from murmuration.run_records import run_directory
from tests.launch.nodes import experiments


def test_a_lone_agent_evaluates_itself_and_keeps_its_parameters(
  run_worker, make_counter, tmp_path
):
  directory = run_directory.create(tmp_path / 'run', {}, {}).path
  experiment = experiments.cartpole(run_dir=str(directory))
  counter = make_counter(directory, experiments.budget(experiment))
  worker = run_worker(experiment, counter, evaluates=True)
  counter.close()
  rows = run_directory.open(directory).metrics('evaluation')
  assert [row['actor_steps_per_member'] for row in rows] == [0, 52, 100]
  for row in rows:
    assert len(row['returns']) == 4 and len(row['member_returns']) == 2
    assert row['return_mean'] == pytest.approx(np.mean(row['returns']))
    assert row['broken_episodes'] == 0
  path = directory / 'checkpoints' / checkpoints.AGENTS
  with np.load(path) as saved:
    np.testing.assert_array_equal(saved['theta'], worker.theta)
    assert saved['steps'] == 100


@pytest.mark.parametrize('members', [1, 2])
def test_the_spread_of_returns_is_over_episodes_or_else_over_members(
  run_worker, make_counter, tmp_path, members
):
  directory = run_directory.create(tmp_path / 'run', {}, {}).path
  experiment = experiments.cartpole(
    num_agents=members, run_dir=str(directory), run={'steps_per_agent': 40}
  )
  counter = make_counter(directory, experiments.budget(experiment))
  run_worker(experiment, counter, evaluates=True)
  counter.close()
  rows = run_directory.open(directory).metrics('evaluation')
  spreads = [
    np.std(row['returns' if members == 1 else 'member_returns']) for row in rows
  ]
  assert max(spreads) > 0
  assert [row['return_std'] for row in rows] == pytest.approx(spreads)


@pytest.mark.parametrize('target, ends', [(5.0, True), (500.0, False)])
def test_a_lone_agent_that_holds_its_target_ends_the_run(
  run_worker, make_counter, target, ends
):
  experiment = experiments.cartpole(run={'target_return': target})
  counter = make_counter(None, experiments.budget(experiment))
  run_worker(experiment, counter, evaluates=True)
  found = counter.snapshot()
  # Two members that learn nothing make about 9 steps an episode.
  assert (found['totals'].get('actor_steps', 0) < 200) == ends
  assert ('of an agent, 5 was asked for' in found['reason']) == ends


def test_an_evaluation_is_dated_by_the_clock_of_the_run(
  run_worker, make_counter, tmp_path
):
  directory = run_directory.create(tmp_path / 'run', {}, {}).path
  experiment = experiments.cartpole(run_dir=str(directory))
  counter = make_counter(directory, experiments.budget(experiment))
  counter._started -= 1000.0  # when this node was not there yet
  run_worker(experiment, counter, evaluates=True)
  counter.close()
  rows = run_directory.open(directory).metrics('evaluation')
  seconds = [row['elapsed_s'] for row in rows]
  assert seconds == sorted(seconds) and seconds[0] >= 1000.0


@pytest.mark.parametrize(
  'rows, resumed, more, played',
  [
    ([], 0, [20, 60], [0, 60]),
    ([0], 40, [60, 80], [60]),
    ([0], 60, [80, 100], [60, 100]),  # The one at 50 was cut.
    ([], 10, [40], [10]),  # and here the first of all
    ([0, 50], 60, [80, 100], [100]),
    ([0, 50, 80], 80, [90, 100], [100]),  # what an earlier start ended with
    ([0, 50, 100], 80, [90, 100], [100]),  # offline, from a checkpoint
  ],
)
def test_an_evaluation_that_was_cut_is_made_up_for_and_no_other_is_repeated(
  make_counter, monkeypatch, tmp_path, rows, resumed, more, played
):
  directory = run_directory.create(tmp_path / 'run', {}, {}).path
  path = directory / 'metrics' / 'evaluation.jsonl'
  found = [{'actor_steps_per_member': steps} for steps in rows]
  path.write_text(''.join(json.dumps(row) + '\n' for row in found))
  experiment = experiments.cartpole(num_agents=1, run_dir=str(directory))
  assert experiment.eval_period == 50
  evaluation = best.SelfEvaluation(
    experiment,
    experiment.make_agent(),
    [experiment.actor_info(0)],
    reporting.Reporter('worker/0', make_counter()),
    should_stop=lambda: False,
  )
  again = []
  monkeypatch.setattr(
    evaluation, '_play', lambda theta, steps: again.append(steps)
  )
  for steps in (resumed, *more):
    evaluation.now_and_then(np.zeros((1, 1)), steps)
  assert again == played


def test_its_environments_may_take_long_to_make_and_to_reset(
  make_counter, monkeypatch, tmp_path
):
  limits = []
  make = vector.make_vector

  def make_noted(*args, **options):
    limits.append(slot.limit_s)
    environment = make(*args, **options)
    reset = environment.reset

    def reset_noted():
      limits.append(slot.limit_s)
      return reset()

    environment.reset = reset_noted
    return environment

  monkeypatch.setattr(vector, 'make_vector', make_noted)
  experiment = experiments.cartpole(num_agents=1)
  agent = experiment.make_agent()
  found = best.SelfEvaluation(
    experiment,
    agent,
    [experiment.actor_info(0)],
    reporting.Reporter('worker/0', make_counter()),
    should_stop=lambda: False,
  )
  (slot,) = pulse.Board(tmp_path, 1).slots
  pulse.use(slot)
  try:
    found.last(np.zeros((1, agent.layout.size), np.float32), 0)
  finally:
    pulse.use(None)
  assert len(limits) == 2 and min(limits) > experiment.run.silent_s
