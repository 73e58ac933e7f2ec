"""Small experiments of DQN, for a worker that acts itself."""

import functools

from murmuration.agents import dqn
from murmuration.environment_loops import environments
from murmuration.launch import experiment as experiment_lib

GAMMA = 0.9
N_STEP = 3
COUNTING = environments.Spec('counting', (3,), 2)


def make(spec, num_agents=2, config=None, ratio=None, **changes):
  settings = {
    'hidden_sizes': (8,),
    'gamma': GAMMA,
    'n_step': N_STEP,
    'batch_size': 4,
    'min_replay_size': 20,
    'max_replay_size': 1000,
    **(config or {}),
  }
  agent_config = dqn.Config(**settings)
  run = {'steps_per_agent': 100, 'updates_per_call': 4, 'evaluations': 2}
  run.update(changes.pop('run', {}))
  return experiment_lib.Experiment(
    make_agent=functools.partial(dqn.DQN, agent_config, spec),
    environment=spec.name,
    num_agents=num_agents,
    max_replay_size=agent_config.max_replay_size,
    min_replay_size=agent_config.min_replay_size,
    pace=experiment_lib.Pace(ratio or agent_config.batch_size),
    run=experiment_lib.RunConfig(eval_episodes=2, **run),
    **changes,
  )


def cartpole(**changes):
  return make(environments.spec('CartPole-v1'), **changes)


def budget(experiment):
  return {'actor_steps': experiment.total_steps}
