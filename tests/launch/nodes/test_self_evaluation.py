"""A worker that evaluates its own members: rows, targets, what it keeps."""

import numpy as np
import pytest

from run_records import checkpoints
from run_records import run_directory
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
  assert ('episodes, 5 was asked for' in found['reason']) == ends


@pytest.mark.parametrize('serve', [False, True])
def test_the_target_network_acts_where_it_is_to(
  run_worker, make_counter, tmp_path, serve
):
  directory = run_directory.create(tmp_path / 'run', {}, {}).path
  config = {'serve_target': serve, 'target_update_tau': 0.01}
  experiment = experiments.cartpole(
    num_agents=1, config=config, run_dir=str(directory)
  )
  counter = make_counter(directory, experiments.budget(experiment))
  worker = run_worker(experiment, counter, evaluates=True)
  counter.close()
  with np.load(directory / 'checkpoints' / checkpoints.AGENTS) as saved:
    kept = saved['theta']
  for served in (kept, worker.theta):
    online, target = worker.learner.theta, worker.learner.target
    chosen, other = (target, online) if serve else (online, target)
    np.testing.assert_array_equal(served, chosen.numpy())
    assert not np.array_equal(served, other.numpy())
