"""DDPG, D4PG and SAC on images: an encoder, then the agent on its features."""

import numpy as np
import pytest
import tensorflow as tf

from murmuration import portable
from murmuration.agents import base
from murmuration.agents import d4pg
from murmuration.agents import ddpg
from murmuration.agents import evolution
from murmuration.agents import member_losses
from murmuration.agents import sac
from murmuration.agents.actor_critic import networks
from murmuration.agents.losses import policy as policy_losses
from murmuration.agents.networks import conv
from murmuration.environment_loops import environments
from murmuration.replay import packing

BATCH = 5
SHAPES = [(12, 10, 3), (3, 12, 10), (12, 10), (2, 12, 10, 1), (2, 1, 12, 10)]
TD3 = {'twin_critics': True, 'policy_delay': 2, 'smoothing_sigma': 0.2}
KINDS = {
  'ddpg': (ddpg, ddpg.DDPG, {}),
  'td3': (ddpg, ddpg.DDPG, TD3),
  'd4pg': (d4pg, d4pg.D4PG, {'num_atoms': 11}),
  'sac': (sac, sac.SAC, {}),
}
SMALL = {'policy_sizes': (8,), 'critic_sizes': (8,), 'batch_size': BATCH}


def _spec(shape, dtype='uint8'):
  return environments.Spec(
    'Images-v0',
    shape,
    num_actions=None,
    action_shape=(2,),
    action_minimum=(-1.0, -1.0),
    action_maximum=(1.0, 1.0),
    observation_dtype=dtype,
    observation_maximum=255.0 if dtype == 'uint8' else 1.0,
  )


def _agent(kind='ddpg', shape=SHAPES[0], dtype='uint8', **options):
  module, agent, own = KINDS[kind]
  config = module.Config(**{**SMALL, **own, **options})
  return agent(config, _spec(shape, dtype))


def _images(*leading, shape=SHAPES[0], seed=0):
  rng = np.random.default_rng(seed)
  return rng.integers(0, 256, (*leading, *shape)).astype(np.uint8)


def _theta(agent, seed=0):
  """Parameters whose policy is not yet near zero."""
  theta = agent.initial(seed)
  theta[agent.layout.groups['policy']] *= 2.0
  return theta


def _variables(agent, theta):
  return [tf.constant(v) for v in agent.layout.unpack(theta)]


def _transitions(shape=SHAPES[0], seed=3):
  rng = np.random.default_rng(seed)
  return packing.Transition(
    o_tm1=_images(BATCH, shape=shape, seed=seed),
    a_tm1=rng.uniform(-1, 1, (BATCH, 2)).astype(np.float32),
    r_t=rng.normal(size=BATCH).astype(np.float32),
    d_t=np.array([1, 1, 0, 1, 1], np.float32),
    o_t=_images(BATCH, shape=shape, seed=seed + 1),
    weight=np.array([1, 1, 1, 1, 0], np.float32),
  )


def _place(agent, part):
  """Where the variables of a part are, first to last."""
  own = [v for v in agent.layout.variables if v.name.startswith(f'{part}/')]
  return slice(own[0].offset, own[-1].slice.stop)


def _gradient(agent, theta, target, batch, importance=None, critics=False):
  """Of the loss, or of the critics' alone, [D]."""
  variables = _variables(agent, theta)
  with tf.GradientTape() as tape:
    tape.watch(variables)
    out = agent.loss(variables, _variables(agent, target), batch, importance)
    loss = out.metrics['loss'] if critics else out.loss
  found = tape.gradient(
    loss, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO
  )
  return agent.layout.pack([g.numpy() for g in found])


# What there is.


@pytest.mark.parametrize('shape', SHAPES)
@pytest.mark.parametrize('kind', KINDS)
def test_policy_and_critics_take_what_one_encoder_makes(kind, shape):
  agent = _agent(kind, shape)
  names = [v.name.split('/')[0] for v in agent.layout.variables]
  critics = (
    ['critic_0'] if kind in ('ddpg', 'd4pg') else ['critic_0', 'critic_1']
  )
  rest = ['temperature'] if kind == 'sac' else []
  assert list(dict.fromkeys(names)) == ['encoder', 'policy', *critics, *rest]
  # The torso of the other agents.
  torso = conv.make(
    conv.chosen('auto', agent.spec),
    agent.spec,
    networks.FEATURES,
    name='encoder',
  )
  shapes = {v.name: v.shape for v in agent.layout.variables}
  assert torso.shapes() == list(shapes.items())[: len(torso.shapes())]
  assert shapes['policy/linear_0/w'][0] == networks.FEATURES
  assert shapes['critic_0/linear_0/w'][0] == networks.FEATURES + 2


def test_what_acts_is_the_group_policy_and_what_delays_is_its_head():
  agent = _agent('td3', policy_learning_rate=1e-4, critic_learning_rate=1e-2)
  encoder, head = _place(agent, 'encoder'), _place(agent, 'policy')
  assert evolution.perturbed(agent.layout) == slice(0, head.stop)
  assert encoder == slice(0, head.start)
  # The encoder learns with the critics, as often and as fast.
  assert (
    agent.delayed[head].all() and agent.delayed.sum() == head.stop - head.start
  )
  np.testing.assert_allclose(agent.learning_rate_scale[head], 0.01)
  assert (agent.learning_rate_scale[encoder] == 1).all()


def test_the_first_actions_are_near_the_middle():
  agent = _agent('sac')
  assert np.abs(agent.greedy(agent.initial(1))(_images(20))).max() < 0.1


def test_images_are_not_scaled_twice():
  with pytest.raises(
    environments.EnvironmentRefused, match='normalize_observations=False'
  ):
    _agent(normalize_observations=True)
  with pytest.raises(environments.EnvironmentRefused, match='network=auto'):
    _agent(network='mlp')


# Acting.


@pytest.mark.parametrize('dtype', ['uint8', 'float32'])
@pytest.mark.parametrize('shape', SHAPES)
def test_what_acts_is_what_learns(shape, dtype):
  agent = _agent('sac', shape, dtype, random_steps=0)
  images = _images(2, 4, shape=shape)
  images = images if dtype == 'uint8' else (images / 255).astype(np.float32)
  theta = np.stack([_theta(agent, seed) for seed in range(2)])
  acting = agent.acting(theta, images)
  assert acting.shape == (2, 4, 4) and acting.dtype == np.float32
  for member in range(2):
    nets = agent._networks
    parts = nets.split(_variables(agent, theta[member]))
    learned = nets.policy(parts, tf.constant(images[member]))
    np.testing.assert_allclose(acting[member], learned, rtol=1e-4, atol=1e-5)
    greedy = agent.greedy(theta[member])(images[member])
    np.testing.assert_allclose(greedy, np.tanh(learned[:, :2]), atol=1e-5)
    # And is what export.py writes.
    exported, _ = portable.apply(
      np, agent.operations(theta[member]), images[member], None, None
    )
    np.testing.assert_allclose(exported, greedy, atol=1e-5)
  assert np.abs(acting[0] - acting[1]).max() > 1e-3


@pytest.mark.parametrize('kind', ['d4pg', 'sac'])
def test_an_actor_acts_as_its_agent_does_and_notices_new_parameters(kind):
  agent, images = _agent(kind, random_steps=0), _images(1, 3)
  actor = agent.actor(base.ActorInfo(0, 1, 0), 3)
  for theta in (_theta(agent, 0), _theta(agent, 1)):
    np.testing.assert_array_equal(
      actor.act(theta, images[0], 0, np.random.default_rng(1)),
      agent.act(theta[None], images, 0, np.random.default_rng(1))[0],
    )
    (outputs, _) = actor.forward(theta, *actor.inputs(images[0], 0))
    np.testing.assert_array_equal(outputs, agent.acting(theta, images)[0])


def test_policies_that_are_evaluated_side_by_side_take_each_its_own_images():
  agent, images = _agent(), _images(3)
  theta = np.stack([_theta(agent, seed) for seed in range(3)])
  members = agent.greedy_each(theta)
  wanted = [agent.greedy(theta[i])(images[i : i + 1])[0] for i in range(3)]
  np.testing.assert_allclose(members(images), wanted, atol=1e-6)
  members.begin(0, theta[2])
  members.keep(np.array([0, 1]))
  wanted[0] = agent.greedy(theta[2])(images[:1])[0]
  np.testing.assert_allclose(members(images[:2]), wanted[:2], atol=1e-6)


def test_images_are_scaled_to_one_and_channels_may_stand_first():
  theta, images = _theta(_agent()), _images(4)
  wanted = _agent().greedy(theta)(images)
  scaled = (images / 255).astype(np.float32)
  np.testing.assert_allclose(
    _agent(dtype='float32').greedy(theta)(scaled), wanted, atol=1e-5
  )
  first = _agent(shape=(3, 12, 10)).greedy(theta)(images.transpose(0, 3, 1, 2))
  np.testing.assert_allclose(first, wanted, atol=1e-5)


# Learning.


def _features(agent, theta, images):
  """What the encoder makes of images, in NumPy."""
  encoder = agent._networks._encoder
  count = len(encoder.shapes())
  variables = [v[None] for v in agent.layout.unpack(theta)[:count]]
  return np.tanh(encoder.forward(encoder.prepare(variables), images[None])[0])


@pytest.mark.parametrize('kind', KINDS)
def test_the_loss_is_that_of_an_agent_which_sees_the_features(
  kind, monkeypatch
):
  # The noise is a function of what is stored, which differs.
  monkeypatch.setattr(
    policy_losses, 'noise_like', lambda a, *seeds: 0.7 * tf.ones_like(a)
  )
  agent, batch = _agent(kind), _transitions()
  module, plain, own = KINDS[kind]
  blind = plain(
    module.Config(**{**SMALL, **own}), _spec((networks.FEATURES,), 'float32')
  )
  start = _place(agent, 'policy').start
  theta, target = _theta(agent, 0), _theta(agent, 1)
  # The policy that SAC's target asks for is the online one, with its own eyes.
  if kind == 'sac':
    target[:start] = theta[:start]
  seen = batch._replace(
    o_tm1=_features(agent, theta, batch.o_tm1),
    o_t=_features(agent, target, batch.o_t),
  )
  found = agent.loss(_variables(agent, theta), _variables(agent, target), batch)
  wanted = blind.loss(
    _variables(blind, theta[start:]), _variables(blind, target[start:]), seen
  )
  tf.nest.map_structure(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4),
    (found.loss, found.priorities, found.metrics),
    (wanted.loss, wanted.priorities, wanted.metrics),
  )
  np.testing.assert_allclose(
    _gradient(agent, theta, target, batch)[start:],
    _gradient(blind, theta[start:], target[start:], seen),
    rtol=1e-3,
    atol=1e-4,
  )


def test_sac_sees_the_next_state_with_both_encoders(monkeypatch):
  monkeypatch.setattr(
    policy_losses, 'noise_like', lambda a, *seeds: 0.7 * tf.ones_like(a)
  )
  agent, batch = _agent('sac'), _transitions()
  theta, target = _theta(agent, 0), _theta(agent, 1)
  nets = agent._networks
  online, lagging = (
    nets.split(_variables(agent, each)) for each in (theta, target)
  )
  mean, log_sigma = np.split(nets.policy(online, batch.o_t).numpy(), 2, -1)
  u = mean + 0.7 * np.exp(log_sigma)
  log_pi = -0.5 * 0.7**2 - log_sigma - 0.5 * np.log(2 * np.pi)
  log_pi = (log_pi - np.log(1 - np.tanh(u) ** 2)).sum(-1)
  q_t = np.min(nets.critics(lagging, batch.o_t, np.tanh(u)), 0)[:, 0]
  discount = agent.gamma * batch.d_t
  wanted = batch.r_t + discount * (q_t - log_pi)  # alpha is 1
  found = agent.loss(_variables(agent, theta), _variables(agent, target), batch)
  valid = batch.weight > 0
  np.testing.assert_allclose(
    found.metrics['target_max'], wanted[valid].max(), rtol=1e-3
  )


@pytest.mark.parametrize('kind', KINDS)
def test_the_critics_loss_alone_moves_the_encoder(kind):
  agent, batch = _agent(kind), _transitions()
  theta, target = _theta(agent, 0), _theta(agent, 1)
  found = _gradient(agent, theta, target, batch)
  encoder = _place(agent, 'encoder')
  for variable in agent.layout.variables:
    if variable.name.startswith('encoder'):
      assert found[variable.slice].any(), variable.name
  of_critics = _gradient(agent, theta, target, batch, critics=True)
  np.testing.assert_allclose(
    found[encoder], of_critics[encoder], rtol=1e-4, atol=1e-6
  )


# Not SAC: its target depends on the online encoder, where no gradient flows.
@pytest.mark.parametrize('kind', ['td3', 'd4pg'])
def test_the_gradient_of_the_encoder_is_that_of_central_differences(kind):
  agent, batch = _agent(kind), _transitions()
  theta, target = _theta(agent, 0), _theta(agent, 1)
  place = _place(agent, 'encoder')
  found = _gradient(agent, theta, target, batch)[place]
  direction = np.zeros_like(theta)
  direction[place] = found / np.linalg.norm(found)

  def critic_loss(step):
    moved = _variables(agent, theta + step * direction)
    out = agent.loss(moved, _variables(agent, target), batch)
    return float(out.metrics['loss'])

  slope = (critic_loss(1e-3) - critic_loss(-1e-3)) / 2e-3
  np.testing.assert_allclose(slope, np.linalg.norm(found), rtol=0.02)


@pytest.mark.parametrize('kind', ['td3', 'd4pg', 'sac'])
def test_members_side_by_side_learn_as_each_alone(kind):
  agent = _agent(kind, prioritized=True)
  theta = np.stack([_theta(agent, seed) for seed in range(2)])
  target = theta[::-1].copy()
  batches = [_transitions(seed=seed) for seed in (3, 5)]
  columns = zip(*(batch[:6] for batch in batches))
  packed = agent.transition_layout().pack(*map(np.stack, columns))
  importance = tf.constant([[1.0, 0.5, 1.0, 0.2, 1.0]] * 2)
  _, together = member_losses.of_all(
    agent,
    tf.constant(theta),
    tf.constant(target),
    agent.feed(1).unpack(tf.constant(packed)),
    importance,
  )
  for member in range(2):
    alone = _gradient(
      agent, theta[member], target[member], batches[member], importance[member]
    )
    np.testing.assert_allclose(together[member], alone, rtol=1e-4, atol=1e-6)


def test_replay_keeps_images_as_bytes():
  agent, batch = _agent(), _transitions()
  layout = agent.transition_layout()
  packed = layout.pack(*batch)
  # Two images, and the bytes of an action of two numbers and of five more.
  assert packed.dtype == np.uint8 and packed.shape == (BATCH, 2 * 360 + 4 * 7)
  back = layout.unpack(packed)
  for name in ('o_tm1', 'o_t', 'a_tm1', 'r_t'):
    np.testing.assert_array_equal(getattr(back, name), getattr(batch, name))
