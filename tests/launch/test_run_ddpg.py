"""python launch/run_ddpg.py: DDPG and TD3, real runs of both topologies."""

import dataclasses

import numpy as np
import pytest

from agents import ddpg
from configs import ddpg as ddpg_configs
from configs import pso_ddpg
from launch import actors
from launch import command_line
from launch import evaluate
from launch import experiment
from launch.topologies import actor_learner
from launch.topologies import single_process
from run_records import run_directory

SCRIPT = 'run_ddpg.py'
SMALL = (
  '--config.agent.policy_sizes=(16,)',
  '--config.agent.critic_sizes=(16,)',
  '--config.agent.batch_size=16',
  '--config.agent.min_replay_size=100',
  '--config.run.eval_episodes=2',
  '--config.run.evaluations=2',
  '--config.actors.samples_per_insert=8',
  '--config.actors.envs_per_actor=2',
)
TD3 = ('twin_critics', 'policy_delay', 'smoothing_sigma')


# Presets.


@pytest.mark.parametrize('preset', sorted(ddpg_configs.PRESETS))
def test_a_preset_can_be_run_and_learns_as_often_either_way(preset):
  config = ddpg_configs.get_config(preset)
  agent_config = command_line.make(ddpg.Config, config.agent)
  acting = command_line.make(actors.Config, config.actors)
  spec = command_line.environment_spec(config.environment)
  made = experiment.Experiment(
    make_agent=lambda: ddpg.DDPG(agent_config, spec),
    environment=config.environment,
    num_agents=1,
    max_replay_size=agent_config.max_replay_size,
    min_replay_size=agent_config.min_replay_size,
    env_steps_per_update=agent_config.env_steps_per_update,
    run=command_line.make(experiment.RunConfig, config.run),
  )
  assert actor_learner.build(made, acting).groups
  assert single_process.build(made).groups
  updates = acting.samples_per_insert / agent_config.batch_size
  assert updates == 1 / agent_config.env_steps_per_update


@pytest.mark.parametrize('task', sorted(pso_ddpg.PRESETS))
def test_td3_is_the_task_of_ddpg_with_the_options_of_its_paper(task):
  plain, td3 = (ddpg_configs.get_config(name) for name in (task, f'td3_{task}'))
  assert plain.agent == pso_ddpg.get_config(task).agent
  for section in ('environment', 'run', 'actors'):
    assert td3[section] == plain[section]
  assert [plain.agent[name] for name in TD3] == [False, 1, 0.0]
  assert [td3.agent[name] for name in TD3] == [True, 2, 0.2]
  # Fujimoto et al., Algorithm 1: targets move when the policy does.
  assert td3.agent.target_update_period == td3.agent.policy_delay
  fields = {field.name for field in dataclasses.fields(ddpg.Config)}
  assert set(td3.agent) == fields


# Real runs.


def _finished(run, budget):
  assert run.wait() == 0, run.output
  run.assert_nothing_is_left()
  directory = run_directory.open(run.directory)
  summary = directory.summary()
  assert summary['outcome'] == 'budget'
  assert summary['totals']['actor_steps'] == budget
  assert summary['totals']['learner_steps'] > 0
  for log in directory.logs.glob('*.log'):
    assert 'Traceback' not in log.read_text(), log.read_text()
  assert directory.config()['agent_name'] == 'ddpg'
  return directory


def _played(directory):
  """What `make evaluate` would play."""
  kept = evaluate.load(directory)
  assert isinstance(kept.agent, ddpg.DDPG) and np.isfinite(kept.theta).all()
  actions = kept.policy()(np.ones((5, 3), np.float32))
  assert actions.shape == (5, 1) and (np.abs(actions) <= 1).all()
  return kept


def test_actors_and_a_learner_with_prioritized_replay(start_run):
  run = start_run(
    '--config=pendulum',
    *SMALL,
    '--config.agent.prioritized=True',
    '--config.run.steps_per_agent=1500',
    script=SCRIPT,
  )
  directory = _finished(run, 1500)
  assert {path.stem for path in directory.logs.glob('*.log')} == {
    'counter-0',
    'learner-0',
    'actor-0',
    'actor-1',
    'evaluator-0',
  }
  assert directory.metrics('node_learner')[-1]['skipped_updates'] == 0
  # Priorities come from the learner: the largest has left its first value 1.
  kept = _played(directory)
  (largest,) = kept.theta[kept.agent.layout.groups['priority']]
  assert largest > 1.0


def test_td3_in_one_process(start_run):
  run = start_run(
    '--config=td3_pendulum',
    *SMALL,
    '--topology=single_process',
    '--config.agent.random_steps=50',
    '--config.run.steps_per_agent=600',
    script=SCRIPT,
  )
  directory = _finished(run, 600)
  assert {path.stem for path in directory.logs.glob('*.log')} == {
    'counter-0',
    'trainer-0',
  }
  # Two critics in what it came to.
  one = ddpg.DDPG(
    ddpg.Config(policy_sizes=(16,), critic_sizes=(16,)),
    command_line.environment_spec('Pendulum-v1'),
  )
  assert _played(directory).agent.layout.size > one.layout.size
