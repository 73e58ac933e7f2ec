"""Every agent on images: convolutions by themselves."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from murmuration.agents import a2c
from murmuration.agents import base
from murmuration.agents import d4pg
from murmuration.agents import ddpg
from murmuration.agents import dqn
from murmuration.agents import impala
from murmuration.agents import learner as learner_lib
from murmuration.agents import ppo
from murmuration.agents import sac
from murmuration.agents.acme import dqn as acme_dqn
from murmuration.agents.exchange import local
from murmuration.environment_loops import environments
from murmuration.replay import blocks

K, T = 2, 3
UNROLLED: dict[str, Any] = {
  'unroll_length': T,
  'batch_size': K,
  'hidden_sizes': (8,),
}
ROLLOUT: dict[str, Any] = {
  **UNROLLED,
  'rollout_steps': K * T,
  'batch_size': K * T,
  'epochs': 1,
}


def _spec(shape, continuous=False, dtype='uint8'):
  return environments.Spec(
    'Images-v0',
    shape,
    num_actions=None if continuous else 3,
    action_shape=(2,) if continuous else (),
    action_minimum=(-1.0, -1.0) if continuous else None,
    action_maximum=(1.0, 1.0) if continuous else None,
    observation_dtype=dtype,
  )


@pytest.mark.parametrize('continuous', [False, True])
@pytest.mark.parametrize(
  ('agent', 'options'),
  [
    (impala.IMPALA, UNROLLED),
    (impala.IMPALA, {**UNROLLED, 'shared_torso': False}),
    (a2c.A2C, UNROLLED),
    (ppo.PPO, ROLLOUT),
    (ppo.PPO, {**ROLLOUT, 'shared_torso': True, 'lstm_size': 4}),
  ],
)
def test_unroll_agents_act_and_learn_on_images(agent, options, continuous):
  config = {impala.IMPALA: impala, a2c.A2C: a2c, ppo.PPO: ppo}[agent].Config
  spec = _spec((3, 12, 10), continuous)
  made = agent(config(**options), spec)
  assert made.network.images and not made.compiled
  theta = made.initial(0)
  rng = np.random.default_rng(0)
  block = made.block_layout(K).zeros()
  block.observation[...] = rng.integers(0, 256, block.observation.shape)
  block.discount[...] = 1.0
  block.reward[...] = rng.normal(size=block.reward.shape)
  actor = made.actor(base.ActorInfo(0, 1, 0), K)
  for t in range(T):
    block.action[t] = actor.act(theta, block.observation[t], 0, rng)
    block.behaviour[t] = actor.behaviour
  updates = made.updates_per_call or 1
  arranged = made.feed(K).arrange(
    type(block)(*(tf.constant(column[None]) for column in block)),
    updates,
    1,
    tf.constant(theta[None]),
  )
  batch = tf.nest.map_structure(lambda x: x[0, 0], arranged)
  variables = [tf.constant(v) for v in made.layout.unpack(theta)]
  with tf.GradientTape() as tape:
    tape.watch(variables)
    out = made.loss(variables, variables, batch)
  assert all(np.any(g) for g in tape.gradient(out.loss, variables))
  np.testing.assert_allclose(
    out.metrics['rho_mean' if 'rho_mean' in out.metrics else 'kl'],
    1.0 if 'rho_mean' in out.metrics else 0.0,
    atol=1e-5,
  )  # the network that acts is the one that learns


@pytest.mark.parametrize('dtype', ['uint8', 'float32'])
@pytest.mark.parametrize('shape', [(64, 64, 3), (3, 64, 64), (96, 96, 3)])
def test_no_agent_takes_images_as_one_long_vector(shape, dtype):
  discrete = _spec(shape, dtype=dtype)
  continuous = _spec(shape, continuous=True, dtype=dtype)
  for made in (
    dqn.DQN(dqn.Config(), discrete),
    impala.IMPALA(impala.Config(), discrete),
    ppo.PPO(ppo.Config(), discrete),
    ddpg.DDPG(ddpg.Config(), continuous),
    d4pg.D4PG(d4pg.Config(), continuous),
    sac.SAC(sac.Config(), continuous),
  ):
    widest = max(v.shape[0] for v in made.layout.variables if v.name[-1] == 'w')
    assert widest < np.prod(shape)


def _assert_as_each_alone(learned, theta, atol):
  """`learned(first, last)` are parameters of these members, side by side."""
  together = learned(0, len(theta))
  for member, before in enumerate(theta):
    alone = learned(member, member + 1)[0]
    np.testing.assert_allclose(together[member], alone, atol=atol)
    assert np.any(together[member] != before)


@pytest.mark.parametrize(
  'shape',
  [
    (12, 10, 1),
    pytest.param((2, 12, 10, 1), marks=pytest.mark.long),
    pytest.param((12, 10), marks=pytest.mark.long),
  ],
)
def test_members_side_by_side_on_images_are_single_learners(shape):
  spec, members = _spec(shape), 2
  made = dqn.DQN(dqn.Config(batch_size=3, hidden_sizes=(8,)), spec)
  layout = made.transition_layout()
  rng = np.random.default_rng(0)
  theta = np.stack([made.initial(seed) for seed in range(members)])
  images = rng.integers(0, 256, (2, 3, members, *spec.observation_shape))
  images = images.astype(np.uint8)
  actions = rng.integers(0, 3, (3, members)).astype(np.int32)
  sample = layout.pack(images[0], actions, 1.0, 1.0, images[1])

  def learned(first, last):
    learner = learner_lib.TFLearner(
      made,
      theta[first:last],
      [1e-3] * (last - first),
      local.Local(),
      made.feed(1),
    )
    learner.step(tf.constant(sample[:, first:last]))
    return learner.parameters()

  _assert_as_each_alone(learned, theta, 1e-6)


@pytest.mark.long
@pytest.mark.parametrize(
  ('agent', 'config', 'shape'),
  [
    (ppo.PPO, ppo.Config(**ROLLOUT), (12, 10, 1)),
    (ppo.PPO, ppo.Config(**ROLLOUT), (2, 12, 10, 1)),
    (impala.IMPALA, impala.Config(**UNROLLED), (12, 10)),
  ],
)
def test_members_learn_from_unrolls_of_images_as_each_alone(
  agent, config, shape
):
  made, members = agent(config, _spec(shape)), 2
  theta = np.stack([made.initial(seed) for seed in range(members)])
  rng = np.random.default_rng(0)
  block = made.block_layout(members * K).zeros()
  for column in (block.observation, block.final_observation):
    column[...] = rng.integers(0, 256, column.shape)
  block.action[...] = rng.integers(0, 3, block.action.shape)
  block.behaviour[...] = np.log(1 / 3)
  block.reward[...] = rng.normal(size=block.reward.shape)
  block.discount[...] = 1.0

  def learned(first, last):
    columns = block._asdict()
    for name, axis in blocks.ENVIRONMENT_AXIS.items():
      own = np.split(columns[name], members, axis)[first:last]
      columns[name] = np.concatenate(own, axis)
    learner = learner_lib.TFLearner(
      made,
      theta[first:last],
      [1e-2] * (last - first),
      local.Local(),
      made.feed((last - first) * K),
      updates_per_call=made.updates_per_call or 1,
    )
    learner.step(
      blocks.Block(*(tf.constant(x[None]) for x in columns.values()))
    )
    return learner.parameters()

  _assert_as_each_alone(learned, theta, 1e-5)


@pytest.mark.parametrize('dtype', ['uint8', 'float32'])
def test_acme_s_dqn_refuses_images_before_any_node_meets_them(dtype):
  with pytest.raises(environments.EnvironmentRefused, match='Take dqn'):
    acme_dqn.AcmeDQN(acme_dqn.Config(), _spec((8, 8, 3), dtype=dtype))
