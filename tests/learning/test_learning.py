"""Real runs that have to learn: `make test-learning`. Minutes, not seconds.

What is claimed of learning is in docs/results/ (k seeds, `make results`); here
one seed of each shows that nothing has broken it.
"""

import pathlib
import subprocess
import sys

import numpy as np
import pytest

from murmuration.replay import checkpoints
from murmuration.replay import packing
from murmuration.replay import priorities
from murmuration.replay import tables
from murmuration.run_records import run_directory

ROOT = pathlib.Path(__file__).parents[2]
# Agent, what the mean of the last three evaluations has to reach.
RUNS = {
  'Ape-X DQN on CartPole-v1': ('apex_dqn:cartpole', 475),
  'Ape-X DQN on Acrobot-v1': ('apex_dqn:acrobot', -100),
  'IMPALA on CartPole-v1': ('impala:cartpole', 475),
  'D4PG on InvertedPendulum-v5': ('d4pg:inverted_pendulum', 950),
  'Evolution strategies on CartPole-v1': ('es_mlp:cartpole', 475),
  'D4PG on Pendulum-v1': ('d4pg:pendulum', -250),
  'SAC on Pendulum-v1': ('sac:pendulum', -200),
}


def _run(directory, *flags):
  done = subprocess.run(
    [
      sys.executable,
      str(ROOT / 'launch' / 'run.py'),
      f'--run_dir={directory}',
      '--config.run.target_return=None',
      *flags,
    ],
    capture_output=True,
    text=True,
    timeout=1500,
  )
  assert done.returncode == 0, done.stdout + done.stderr
  return run_directory.open(directory)


@pytest.mark.timeout(1600)
@pytest.mark.parametrize('name', RUNS)
def test_it_learns(tmp_path, name):
  agent, wanted = RUNS[name]
  run = _run(tmp_path / 'run', agent)
  means = [row['return_mean'] for row in run.metrics('evaluation')]
  assert np.mean(means[-3:]) >= wanted, means


@pytest.mark.timeout(600)
def test_stored_priorities_follow_the_error(tmp_path):
  """Correlation above 0.3 after 10,000 steps."""
  from murmuration.launch import registry

  run = _run(tmp_path / 'run', 'apex_dqn', '--config.run.steps_per_agent=10000')
  config = run.config()
  agent = registry.make(config)
  size = config['actors']['transitions_per_item']
  layout = packing.TransitionLayout((4,))
  signature = layout.signature(*((size,) if size > 1 else ()))
  opened = checkpoints.open_server(
    [tables.prioritized('replay', 50_000, 1, signature)],
    directory=run.checkpoints / 'replay' / 'shard_0',
  )
  try:
    samples = list(
      opened.server.localhost_client().sample(
        'replay', 1000, emit_timesteps=False
      )
    )
  finally:
    opened.server.stop()
  # The transitions of all items, item after item.
  packed = np.concatenate(
    [np.reshape(sample.data[0], (size, layout.width)) for sample in samples]
  )
  stored = np.array([float(sample.info.priority) for sample in samples])
  with np.load(run.checkpoints / 'learner-0.npz') as saved:
    theta, target = saved['theta'][0], saved['target'][0]
  step = layout.unpack(packed.astype(np.float32))

  def q(parameters, observation):
    variables = agent.layout.unpack(parameters[None])
    return agent._network.forward(variables, observation[None])[0]

  rows = np.arange(len(packed))
  chosen = q(theta, step.o_t).argmax(axis=1)
  scale = config['agent']['reward_scale']
  value = (
    scale * step.r_t
    + agent.gamma * step.d_t * q(target, step.o_t)[rows, chosen]
  )
  error = np.abs(value - q(theta, step.o_tm1)[rows, step.a_tm1])
  fresh = priorities.of_items(error, size, agent.priority_exponent)
  assert stored.shape == fresh.shape == (1000,)
  found = np.corrcoef(stored, fresh)[0, 1]
  print(f'correlation {found:.3f}')
  assert found > 0.3


@pytest.mark.timeout(600)
def test_values_go_on_behind_a_time_limit(tmp_path):
  """Once CartPole-v1 is held, V is near 1 / (1 - gamma), as if without end.

  Values that end at step 500 settle near 80.
  """
  steps = 600_000
  run = _run(
    tmp_path / 'run',
    'impala:cartpole',
    f'--config.run.steps_per_agent={steps}',
    f'--config.agent.anneal_env_steps={steps}',
  )
  acted = run.metrics('node_actor')[-1]['episode_return']
  value = run.metrics('node_learner')[-1]['value_mean']
  print(f'episodes of {acted:.0f} steps, mean V {value:.1f}')
  assert acted >= 490 and 88 <= value <= 110


@pytest.mark.timeout(1200)
def test_the_critic_knows_what_the_policy_gets(tmp_path):
  """D4PG's Q at starts is within 20% of the discounted return from there."""
  import tensorflow as tf

  from murmuration.environment_loops import environments
  from murmuration.launch import registry

  run = _run(tmp_path / 'run', 'd4pg:inverted_pendulum')
  config = run.config()
  agent = registry.make(config)
  with np.load(run.checkpoints / 'learner-0.npz') as saved:
    theta = saved['theta'][0]
  greedy = agent.greedy(theta)
  nets = agent._networks
  parts = nets.split(
    [tf.constant(v[0]) for v in agent.layout.unpack(theta[None])]
  )

  def act(observation):
    return greedy(observation[None])[0]

  def q(observation):
    action = tf.constant(act(observation)[None])
    x = nets.scaled(parts, tf.constant(observation[None]))
    return float(agent._values(nets.critics(parts, x, action)[0])[0])

  expected, found = [], []
  for seed in range(10):
    environment = environments.make(config['environment'], seed=seed)
    step = environment.reset()
    expected.append(q(step.observation))
    value, weight = 0.0, config['agent']['reward_scale']
    while not step.last():
      step = environment.step(act(step.observation))
      value += weight * step.reward
      weight *= agent.gamma * step.discount  # 0 behind a termination only
    found.append(value + weight * q(step.observation))
    environment.close()
  print(f'Q {np.mean(expected):.1f}, discounted returns {np.mean(found):.1f}')
  assert abs(np.mean(expected) - np.mean(found)) <= 0.2 * np.mean(found)
