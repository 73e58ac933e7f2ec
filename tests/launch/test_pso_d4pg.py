"""A swarm of D4PG for real."""

import numpy as np
import pytest

from agents import d4pg
from launch import playing
from run_records import run_directory

BUDGET = 600


@pytest.fixture(scope='module')
def directory(start_run):
  run = start_run(
    'pso_d4pg:pendulum',
    '--config.agent.policy_sizes=(16,)',
    '--config.agent.critic_sizes=(16,)',
    '--config.agent.min_replay_size=100',
    f'--config.run.steps_per_agent={BUDGET}',
    '--config.run.eval_episodes=2',
    '--config.swarm.num_explorers=2',
    '--config.swarm.claim_episodes=1',
    '--config.swarm.b=1',
  )
  assert run.wait() == 0, run.output
  run.assert_nothing_is_left()
  return run_directory.open(run.directory)


def test_a_swarm_of_d4pg_uses_its_budget_and_its_star_plays(directory):
  summary = directory.summary()
  assert summary['outcome'] == 'budget'
  assert summary['totals']['actor_steps'] == 2 * BUDGET
  assert summary['totals']['learner_steps'] > 0
  for log in directory.logs.glob('*.log'):
    assert 'Traceback' not in log.read_text(), log.read_text()
  assert directory.config()['agent_name'] == 'pso_d4pg'
  # Of the categorical critic, in the explorers.
  rows = [r for r in directory.metrics('node_explorer') if 'loss' in r]
  assert rows and np.isfinite([r['target_clipped'] for r in rows]).all()
  kept = playing.load(directory)
  assert isinstance(kept.agent, d4pg.D4PG)
  assert kept.what.startswith('theta_star version')
  assert kept.policy()(np.ones((5, 3), np.float32)).shape == (5, 1)
