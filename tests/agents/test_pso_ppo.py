"""PPO in a population: members learn as if alone, and are pulled."""

import numpy as np
import pytest
import tensorflow as tf

from murmuration.agents import learner
from murmuration.agents import ppo
from murmuration.agents.exchange import local as local_exchange
from murmuration.agents.exchange import pull as pull_exchange
from murmuration.environment_loops import environments
from murmuration.replay import blocks

DISCRETE = environments.Spec('Test-v0', (3,), 2)
CONTINUOUS = environments.Spec(
  'Torque-v0', (3,), None, (2,), (-1.0,) * 2, (1.0,) * 2
)
T, K, ROLLOUT, UPDATES = 4, 6, 24, 6
RATES = (1e-3, 3e-2)
MEMBERS = len(RATES)


def _agent(spec=DISCRETE, **options):
  agent = ppo.PPO(
    ppo.Config(
      hidden_sizes=(8,),
      unroll_length=T,
      rollout_steps=ROLLOUT,
      batch_size=8,
      epochs=2,
      **options,
    ),
    spec,
  )
  return agent


def _block(agent, seed):
  """A rollout of all members; behaviour is near the policies'."""
  rng = np.random.default_rng(seed)
  block = agent.block_layout(MEMBERS * K).zeros()
  for column in (block.observation, block.final_observation, block.reward):
    column[...] = rng.normal(size=column.shape)
  if agent.spec.discrete:
    block.action[...] = rng.integers(0, 2, block.action.shape)
    block.behaviour[...] = np.log(rng.uniform(0.3, 0.7, block.behaviour.shape))
  else:
    block.action[...] = rng.normal(size=block.action.shape)
    block.behaviour[...] = rng.normal(-2.5, 0.5, block.behaviour.shape)
  block.last[...] = rng.random(block.last.shape) < 0.2
  block.discount[...] = ~block.last | (rng.random(block.last.shape) < 0.5)
  return block


def _of_member(block, member):
  columns = block._asdict()
  for name, axis in blocks.ENVIRONMENT_AXIS.items():
    columns[name] = np.split(columns[name], MEMBERS, axis)[member]
  return blocks.Block(**columns)


def _tensors(block):
  return blocks.Block(*(tf.constant(column[None]) for column in block))


def _learner(agent, theta, rates, exchange=None, seed=0):
  return learner.TFLearner(
    agent,
    theta,
    rates,
    exchange or local_exchange.Local(),
    agent.feed(K * len(theta)),
    updates_per_call=agent.updates_per_call,
    seed=seed,
  )


@pytest.mark.long
@pytest.mark.parametrize(
  ('spec', 'options'),
  [
    (DISCRETE, {}),
    (
      CONTINUOUS,
      {'normalize_observations': True, 'target_kl': 0.02, 'free_sigma': True},
    ),
  ],
  ids=lambda x: getattr(x, 'name', ''),
)
def test_members_learn_what_each_would_learn_alone(spec, options):
  agent = _agent(spec, **options)
  theta = np.stack([agent.initial(seed) for seed in range(MEMBERS)])
  together = _learner(agent, theta, RATES)
  rollouts = [_block(agent, seed) for seed in range(2)]
  results = [together.step(_tensors(block)) for block in rollouts]
  assert not np.allclose(together.parameters(), theta, atol=1e-3)
  for member, rate in enumerate(RATES):
    alone = _learner(agent, theta[member : member + 1], [rate])
    for block, result in zip(rollouts, results, strict=True):
      own = alone.step(_tensors(_of_member(block, member)))
      for name, value in own.metrics.items():
        np.testing.assert_allclose(
          result.metrics[name][member], value[0], rtol=1e-3, atol=1e-5
        )
    np.testing.assert_allclose(
      together.parameters()[member], alone.parameters()[0], atol=1e-5
    )


@pytest.mark.long
def test_a_pull_follows_the_epochs_with_a_draw_for_each_network():
  agent, seed, c = _agent(), 5, 0.8
  theta = np.stack([agent.initial(seed) for seed in range(MEMBERS)])
  star = np.random.default_rng(0).normal(size=agent.layout.size)
  sample = _tensors(_block(agent, 0))
  free = _learner(agent, theta, RATES)
  free.step(sample)
  learned = free.parameters()
  pull = pull_exchange.Pull(c_max=0.5, period=UPDATES)
  pulled = _learner(agent, theta, RATES, pull, seed)
  pull.set_star(star, [c, 0.0])
  pulled.step(sample)
  generator = tf.random.Generator.from_seed(seed, alg='philox')
  groups = agent.layout.groups
  assert list(groups) == ['policy', 'value']
  for _ in range(UPDATES):
    r = generator.uniform((MEMBERS, len(groups))).numpy()
  expected = learned.copy()
  for index, place in enumerate(groups.values()):
    step = star[place] - learned[0, place]
    expected[0, place] += 0.5 * r[0, index] * step
  np.testing.assert_allclose(pulled.parameters(), expected, atol=1e-5)
