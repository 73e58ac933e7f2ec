"""PPO by the command, with continuous actions: real runs of both kinds."""

import pathlib

import numpy as np
import pytest

from murmuration.environment_loops import environments
from murmuration.launch import registry
from murmuration.run_records import run_directory

HERE = pathlib.Path(__file__).parent

ROLLOUT, UNROLL, BATCH, EPOCHS = 128, 16, 64, 2
ROLLOUTS = 8
BUDGET = ROLLOUTS * ROLLOUT
UPDATES = EPOCHS * ROLLOUT // BATCH  # for each rollout
NODES = {
  'actor_learner': ['actor-0', 'counter-0', 'evaluator-0', 'learner-0'],
  'single_process': ['counter-0', 'worker-0'],
}

ACTING = {
  'actor_learner': (f'--config.actors.envs_per_actor={ROLLOUT // UNROLL}',)
}


@pytest.fixture(scope='module', params=NODES)
def run(request, start_run):
  found = start_run(
    'ppo:pendulum',
    f'--topology={request.param}',
    '--config.agent.hidden_sizes=(16,)',
    f'--config.agent.rollout_steps={ROLLOUT}',
    f'--config.agent.unroll_length={UNROLL}',
    f'--config.agent.batch_size={BATCH}',
    f'--config.agent.epochs={EPOCHS}',
    *ACTING.get(request.param, ()),
    f'--config.run.steps_per_agent={BUDGET}',
    '--config.run.evaluations=2',
    '--config.run.eval_episodes=3',
  )
  found.topology = request.param
  assert found.wait() == 0, found.output
  return found


def test_a_run_ends_at_its_budget_and_leaves_nothing(run):
  run.assert_nothing_is_left()
  directory = run_directory.open(run.directory)
  logs = {path.stem: path.read_text() for path in directory.logs.glob('*.log')}
  assert sorted(logs) == NODES[run.topology]
  assert not [log for log in logs.values() if 'Traceback' in log]
  summary = directory.summary()
  assert summary['outcome'] == 'budget'
  assert summary['totals']['actor_steps'] == BUDGET


def test_each_rollout_is_learned_once(run):
  totals = run_directory.open(run.directory).summary()['totals']
  # With a learner of its own, the run may end before the last is learned.
  rollouts = {ROLLOUTS}
  if run.topology == 'actor_learner':
    rollouts.add(ROLLOUTS - 1)
  assert totals['learner_steps'] in {UPDATES * count for count in rollouts}


def test_what_it_learns_from_is_finite_and_of_its_own_policy(run):
  group = 'learner' if run.topology == 'actor_learner' else 'worker'
  rows = [
    row
    for row in run_directory.open(run.directory).metrics(f'node_{group}')
    if 'loss' in row
  ]
  assert rows
  for row in rows:
    assert np.isfinite([row['loss'], row['lag_deviation']]).all()
    # One policy for a whole rollout: densities agree to the last digits.
    assert row['lag_deviation'] < 1e-3 and row['policy_lag'] == 0
    assert row['dropped_steps'] == 0 and row['skipped_updates'] == 0


def test_it_is_evaluated_in_whole_episodes(run):
  rows = run_directory.open(run.directory).metrics('evaluation')
  assert max(row['actor_steps'] for row in rows) == BUDGET
  for row in rows:
    assert len(row['returns']) == 3 and row['broken_episodes'] == 0
    # 200 steps, each between 0 and -(pi^2 + 0.1 * 8^2 + 0.001 * 2^2).
    assert all(-200 * 16.28 < value < 0 for value in row['returns'])
    assert row['return_mean'] == pytest.approx(np.mean(row['returns']))


def test_it_keeps_a_policy_with_continuous_actions(run):
  directory = run_directory.open(run.directory)
  agent = registry.make(directory.config())
  with np.load(directory.checkpoints / 'agents.npz') as saved:
    (theta,) = saved['theta']
  assert theta.shape == (agent.layout.size,) and np.isfinite(theta).all()
  shape = environments.spec('Pendulum-v1').observation_shape
  actions = agent.greedy(theta)(np.ones((5, *shape), np.float32))
  assert actions.shape == (5, 1) and np.isfinite(actions).all()


def test_episodes_may_be_shorter_than_an_unroll(start_run):
  """Two actors, each with two successive unrolls in a rollout."""
  run = start_run(
    'ppo:pendulum',
    '--config.environment=short_environment:ShortPendulum-v0',
    '--config.agent.hidden_sizes=(16,)',
    f'--config.agent.rollout_steps={ROLLOUT}',
    f'--config.agent.unroll_length={UNROLL}',
    f'--config.agent.batch_size={BATCH}',
    f'--config.agent.epochs={EPOCHS}',
    '--config.actors.num_actors=2',
    f'--config.actors.envs_per_actor={ROLLOUT // UNROLL // 4}',
    f'--config.run.steps_per_agent={BUDGET}',
    '--config.run.evaluations=2',
    '--config.run.eval_episodes=3',
    modules=HERE,
  )
  assert run.wait() == 0, run.output
  directory = run_directory.open(run.directory)
  totals = directory.summary()['totals']
  assert totals['learner_steps'] >= UPDATES * (ROLLOUTS - 1)
  rows = [row for row in directory.metrics('node_learner') if 'loss' in row]
  assert rows
  for row in rows:
    assert row['dropped_steps'] == 0 and row['policy_lag'] == 0
    assert row['lag_deviation'] < 1e-3
