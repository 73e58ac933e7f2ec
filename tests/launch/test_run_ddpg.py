"""DDPG and TD3 by the command: presets, and a real run of TD3 alone."""

import numpy as np
import pytest

from murmuration import playing
from murmuration.agents import ddpg
from murmuration.environment_loops import environments
from murmuration.launch import cell as cell_lib
from murmuration.launch import registry
from murmuration.run_records import run_directory

SMALL = (
  '--config.agent.policy_sizes=(16,)',
  '--config.agent.critic_sizes=(16,)',
  '--config.agent.batch_size=16',
  '--config.agent.min_replay_size=100',
  '--config.run.eval_episodes=2',
  '--config.run.evaluations=2',
  '--config.pace.samples_per_insert=8',
)
TD3 = ('twin_critics', 'policy_delay', 'smoothing_sigma')


# Presets.


@pytest.mark.parametrize('task', registry.agent('pso_ddpg').presets)
def test_td3_is_the_task_of_ddpg_with_the_options_of_its_paper(task):
  task = task.removeprefix('td3_')
  plain, td3 = (
    cell_lib.resolve('ddpg', name).config for name in (task, f'td3_{task}')
  )
  swarm = cell_lib.resolve('pso_ddpg', task).config
  assert swarm['agent'] == plain['agent'] and swarm['pace'] == plain['pace']
  for section in ('environment', 'run', 'actors', 'pace'):
    assert td3[section] == plain[section]
  assert [plain['agent'][name] for name in TD3] == [False, 1, 0.0]
  assert [td3['agent'][name] for name in TD3] == [True, 2, 0.2]
  # Fujimoto et al., Algorithm 1: targets move when the policy does.
  assert td3['agent']['target_update_period'] == td3['agent']['policy_delay']


# A real run.


def _finished(run, budget):
  assert run.wait() == 0, run.output
  run.assert_nothing_is_left()
  directory = run_directory.open(run.directory)
  summary = directory.summary()
  assert summary['outcome'] == 'budget'
  assert summary['totals']['actor_steps'] == budget
  assert summary['totals']['learner_steps'] > 0
  run.assert_no_traceback()
  assert directory.config()['agent_name'] == 'ddpg'
  return directory


def _played(directory):
  """What `make evaluate` would play."""
  kept = playing.load(directory)
  assert isinstance(kept.agent, ddpg.DDPG) and np.isfinite(kept.theta).all()
  actions = kept.policy()(np.ones((5, 3), np.float32))
  assert actions.shape == (5, 1) and (np.abs(actions) <= 1).all()
  return kept


def test_td3_in_one_process(start_run):
  run = start_run(
    'ddpg:td3_pendulum',
    *SMALL,
    '--topology=single_process',
    '--config.agent.random_steps=50',
    '--config.run.steps_per_agent=600',
  )
  directory = _finished(run, 600)
  assert {path.stem for path in directory.logs.glob('*.log')} == {
    'counter-0',
    'worker-0',
  }
  # Two critics in what it came to.
  one = ddpg.DDPG(
    ddpg.Config(policy_sizes=(16,), critic_sizes=(16,)),
    environments.spec('Pendulum-v1'),
  )
  assert _played(directory).agent.layout.size > one.layout.size
