"""D4PG: its categorical critic inside the loss, its warnings and refusals.

What it shares with DDPG is in test_ddpg.py and its neighbours, the projection
in test_categorical.py.
"""

import logging

import numpy as np
import pytest
import tensorflow as tf

from murmuration.agents import d4pg
from murmuration.agents import feeds
from murmuration.agents import learner as learner_lib
from murmuration.agents.exchange import local as local_exchange
from murmuration.environment_loops import environments
from murmuration.replay import packing

GAMMA = 0.9
ATOMS = np.linspace(-3.0, 5.0, 9)
SPEC = environments.Spec('Test-v0', (4,), None, (2,), (-1.0,) * 2, (1.0,) * 2)
LAYOUT = packing.TransitionLayout((4,), (2,), discrete=False)


@pytest.fixture(autouse=True)
def _nothing_was_warned_of():
  """A warning is given once in a process, also by what ran here before."""
  d4pg._warn_once.cache_clear()


def _agent(**options):
  config = {
    'policy_sizes': (5,),
    'critic_sizes': (6,),
    'activation': 'tanh',
    'gamma': GAMMA,
    'num_atoms': 9,
    'v_min': -3.0,
    'v_max': 5.0,
    'max_dq_da': None,
  }
  return d4pg.D4PG(d4pg.Config(**{**config, **options}), SPEC)


def _theta(agent, seed):
  """Parameters whose policy is not yet near zero."""
  theta = agent.initial(seed)
  theta[agent.layout.groups['policy']] *= 3.0
  return theta


def _transitions(seed=0):
  """Clipped above, a time limit, a termination, and no transition."""
  rng = np.random.default_rng(seed)
  return packing.Transition(
    o_tm1=rng.normal(size=(5, 4)).astype(np.float32),
    a_tm1=rng.uniform(-1, 1, size=(5, 2)).astype(np.float32),
    r_t=np.array([4.0, -0.5, 0.3, 0.1, 50.0], np.float32),
    d_t=np.array([GAMMA**2, 1.0, 0.0, GAMMA, GAMMA], np.float32),
    o_t=rng.normal(size=(5, 4)).astype(np.float32),
    weight=np.array([1, 1, 1, 1, 0], np.float32),
  )


def _tensors(transition):
  return packing.Transition(*map(tf.constant, transition))


def _variables(agent, theta):
  return [tf.constant(v) for v in agent.layout.unpack(theta)]


def _mlp(agent, theta, name, x):
  named = dict(
    zip([v.name for v in agent.layout.variables], agent.layout.unpack(theta))
  )
  for i in (0, 1):
    x = x @ named[f'{name}/linear_{i}/w'] + named[f'{name}/linear_{i}/b']
    x = np.tanh(x) if i == 0 else x
  return x


def _softmax(x):
  e = np.exp(x - x.max())
  return e / e.sum()


def slow_projection(positions, probabilities):
  """Mass goes to the nearest atoms, one after the other."""
  m = np.zeros(len(ATOMS))
  for g, p in zip(np.clip(positions, ATOMS[0], ATOMS[-1]), probabilities):
    for j, z in enumerate(ATOMS):
      m[j] += p * max(0.0, 1.0 - abs(g - z))  # atoms are 1 apart
  return m


def slow_loss(agent, theta, theta_hat, transition):
  """The loss of docs/agents/d4pg.md, one transition at a time."""
  config = agent.config
  critics = ['critic_0', 'critic_1'][: 2 if config.twin_critics else 1]
  losses, values, taken = [], [], []
  errors, divergences, clipped = [], [], []
  for o_tm1, a_tm1, r_t, d_t, o_t, weight in zip(*transition[:6]):
    if not weight:
      continue
    x = np.concatenate([o_t, np.tanh(_mlp(agent, theta_hat, 'policy', o_t))])
    p_t = min(
      (_softmax(_mlp(agent, theta_hat, name, x)) for name in critics),
      key=lambda p: p @ ATOMS,
    )
    g = config.reward_scale * r_t + config.gamma * d_t * ATOMS
    m = slow_projection(g, p_t)
    x = np.concatenate([o_tm1, a_tm1])
    online = [_softmax(_mlp(agent, theta, name, x)) for name in critics]
    crossed = [-(m @ np.log(p)) for p in online]
    losses.append(sum(crossed))
    taken.append(online[0] @ ATOMS)
    errors.append(np.mean([abs(m @ ATOMS - p @ ATOMS) for p in online]))
    entropy = -sum(p * np.log(p) for p in m if p > 0)
    divergences.append(np.mean(crossed) - entropy)
    clipped.append(p_t @ ((g > ATOMS[-1]) | (g < ATOMS[0])))
    x = np.concatenate([o_tm1, np.tanh(_mlp(agent, theta, 'policy', o_tm1))])
    values.append(_softmax(_mlp(agent, theta, 'critic_0', x)) @ ATOMS)
  return losses, values, taken, errors, divergences, clipped


@pytest.mark.parametrize(
  'options', [{}, {'twin_critics': True}, {'reward_scale': 0.5}], ids=str
)
def test_the_loss_is_section_2_of_the_spec(options):
  agent, by_kl = _agent(**options), _agent(**options, priority='kl')
  theta, theta_hat = _theta(agent, 0), _theta(agent, 1)
  transition = _transitions()
  got, kl = (
    a.loss(_variables(a, theta), _variables(a, theta_hat), _tensors(transition))
    for a in (agent, by_kl)
  )
  losses, values, taken, errors, divergences, clipped = slow_loss(
    agent, theta, theta_hat, transition
  )
  assert 0 < np.mean(clipped) < 1
  expected = {
    'loss': np.mean(losses),
    'policy_loss': -np.mean(values),
    'q_mean': np.mean(taken),
    'td_error': np.mean(errors),
    'target_clipped': np.mean(clipped),
  }
  for name, value in expected.items():
    np.testing.assert_allclose(got.metrics[name], value, rtol=1e-4)
  np.testing.assert_allclose(got.priorities[:4], errors, rtol=1e-4, atol=2e-6)
  np.testing.assert_allclose(
    kl.priorities[:4], divergences, rtol=1e-3, atol=1e-5
  )
  assert set(got.metrics) == set(agent.metrics)


def test_the_policy_climbs_the_mean_of_the_distribution():
  agent = _agent()
  theta, theta_hat = _theta(agent, 0), _theta(agent, 1)
  transition = _transitions()
  variables = _variables(agent, theta)
  with tf.GradientTape() as tape:
    tape.watch(variables)
    loss = agent.loss(
      variables, _variables(agent, theta_hat), _tensors(transition)
    ).loss
  got = agent.layout.pack(tape.gradient(loss, variables))
  place = agent.layout.groups['policy']
  expected = []
  for i in range(place.start, place.stop):
    ends = []
    for sign in (1, -1):
      moved = theta.astype(float)
      moved[i] += sign * 1e-5
      ends.append(np.mean(slow_loss(agent, moved, theta_hat, transition)[1]))
    expected.append(-(ends[0] - ends[1]) / 2e-5)
  assert np.abs(expected).max() > 1e-3
  np.testing.assert_allclose(got[place], expected, rtol=1e-3, atol=1e-4)


def test_the_critics_distribution_comes_to_that_of_the_rewards():
  # Every transition terminates, and pays -2 or 4: half of the mass on each.
  agent = _agent(batch_size=8, critic_learning_rate=0.05)
  learner = learner_lib.TFLearner(
    agent,
    agent.initial(0)[None],
    [0.05],
    local_exchange.Local(),
    feeds.Transitions(LAYOUT, 8),
    updates_per_call=200,
  )
  zeros = np.zeros((8, 4), np.float32)
  batch = LAYOUT.pack(
    zeros, np.zeros((8, 2)), np.resize([-2.0, 4.0], 8), 0.0, zeros
  )
  result = learner.step(tf.constant(np.tile(batch, (200, 1))))
  p = _softmax(_mlp(agent, learner.parameters()[0], 'critic_0', np.zeros(6)))
  expected = np.zeros(9)
  expected[[1, 7]] = 0.5
  np.testing.assert_allclose(p, expected, atol=0.02)
  np.testing.assert_allclose(result.metrics['target_max'], [4.0], rtol=1e-5)
  np.testing.assert_allclose(result.metrics['target_min'], [-2.0], rtol=1e-5)


def test_a_support_as_wide_as_it_says_it_needs_clips_nothing():
  transition = _tensors(
    _transitions()._replace(r_t=np.float32([4, -3, 0.3, 0.1, 50]))
  )
  agent = _agent()
  variables = _variables(agent, _theta(agent, 0))
  found = agent.loss(variables, variables, transition).metrics
  assert found['target_clipped'] > 0
  # R / (1 - D), of a window and of a step; a termination pays once; no blank.
  low, high = float(found['needed_v_min']), float(found['needed_v_max'])
  np.testing.assert_allclose(low, -3 / (1 - GAMMA), rtol=1e-4)
  np.testing.assert_allclose(high, 4 / (1 - GAMMA**3), rtol=1e-4)
  for v_min, v_max, enough in (
    (low, high, True),
    (0.9 * low, high, False),
    (low, 0.9 * high, False),
  ):
    wide = _agent(v_min=v_min, v_max=v_max)
    clipped = wide.loss(variables, variables, transition).metrics[
      'target_clipped'
    ]
    assert (clipped == 0) == enough


def test_a_support_that_clips_is_remarked_upon_with_what_would_hold():
  agent = _agent()
  fine = dict.fromkeys(agent.metrics, 0.0)
  assert agent.remarks({**fine, 'target_clipped': 0.04}) == []
  assert agent.remarks({**fine, 'needed_v_min': -7.25}) == []
  (remark,) = agent.remarks(
    {**fine, 'target_clipped': 0.12, 'needed_v_min': -2, 'needed_v_max': 31.5}
  )
  # The range of all that was seen, not of the last call only.
  for part in ('12%', '[-3, 5]', '-7.25 to 31.5', 'agent.v_min'):
    assert part in remark


@pytest.mark.parametrize(
  ('options', 'arithmetic'),
  [
    ({'reward_max': 1.0}, r'1 * 1 / (1 - 0.9) = 10'),
    ({'reward_min': -2.0, 'reward_scale': 0.5}, r'0.5 * -2 / (1 - 0.9) = -10'),
    ({'gamma': 1.0}, 'agent.gamma=1 makes values sums without end'),
  ],
)
def test_rewards_that_outgrow_the_support_are_warned_of_at_the_start(
  caplog, options, arithmetic
):
  with caplog.at_level(logging.WARNING):
    _agent(**options)
  (record,) = caplog.records
  assert arithmetic in record.getMessage()


def test_a_support_is_warned_of_once_however_many_agents_are_made(caplog):
  config = d4pg.Config(v_max=7.0, v_min=-1.0, reward_max=1.0)
  with caplog.at_level(logging.WARNING):
    for _ in range(3):
      d4pg.D4PG(config, SPEC)
  assert caplog.text.count('too narrow') == 1


@pytest.mark.parametrize(
  'options',
  [
    {},
    {'reward_max': 0.5, 'reward_min': -0.3},  # exactly fits
    {'reward_max': -0.1, 'v_max': 0.0},  # a cost need not be paid for ever
  ],
)
def test_rewards_that_fit_are_not(caplog, options):
  with caplog.at_level(logging.WARNING):
    _agent(**options)
  assert caplog.records == []


def test_discrete_actions_are_refused():
  spec = environments.Spec('Buttons-v0', (4,), num_actions=3)
  with pytest.raises(environments.EnvironmentRefused, match='but D4PG needs'):
    d4pg.D4PG(d4pg.Config(), spec)


@pytest.mark.parametrize(
  ('options', 'message'),
  [
    ({'v_min': 1.0, 'v_max': 1.0}, 'agent.v_min=1.0 must be below'),
    ({'v_min': 2.0, 'v_max': 1.0}, 'agent.v_min=2.0 must be below'),
    ({'v_max': float('nan')}, 'agent.v_max=nan'),
    ({'v_min': -float('inf')}, 'agent.v_min=-inf'),
    ({'v_min': 1e6, 'v_max': 1e6 + 2}, '51 atoms between them are 0.04 apart'),
    ({'reward_min': 1.0, 'reward_max': 0.0}, 'agent.reward_min=1.0 must be'),
    ({'num_atoms': 1}, 'agent.num_atoms=1 must be'),
    ({'priority': 'rank'}, "agent.priority='rank' is not known.*'mean', 'kl'"),
    ({'reward_scale': -1.0}, '--config.agent.reward_scale'),
  ],
)
def test_a_config_that_cannot_work_is_refused(options, message):
  with pytest.raises(ValueError, match=message):
    d4pg.Config(**options)
