"""DQN: its loss by the sums of the paper, how it acts, what it refuses."""

import numpy as np
import pytest
import tensorflow as tf

from agents import base
from agents import dqn
from environment_loops import environments
from replay import packing

SPEC = environments.Spec('Test-v0', observation_shape=(2, 2), num_actions=3)
GAMMA = 0.9


def _agent(**options):
  return dqn.DQN(dqn.Config(**{'hidden_sizes': (5,), **options}), SPEC)


def _transitions():
  """Each way a window ends, and a place without a transition."""
  rng = np.random.default_rng(0)
  d_t = [
    GAMMA**2,  # a full window of three steps
    GAMMA**0,  # cut after one step by a time limit: it bootstraps
    0.0,  # terminated
    GAMMA,  # cut after two steps by a time limit
    GAMMA**2,  # no transition
  ]
  return packing.Transition(
    o_tm1=rng.normal(size=(5, 2, 2)).astype(np.float32),
    a_tm1=np.array([0, 1, 2, 1, 0], np.int32),
    # The first error lies beyond Huber's bend, and the last would win any max.
    r_t=np.array([4.0, -0.5, 0.3, 0.1, 50.0], np.float32),
    d_t=np.array(d_t, np.float32),
    o_t=rng.normal(size=(5, 2, 2)).astype(np.float32),
    weight=np.array([1, 1, 1, 1, 0], np.float32),
  )


def slow_q(agent, theta, observation):
  """Q(s, .) of one observation, layer by layer."""
  b0, w0, b1, w1 = (a.astype(float) for a in agent.layout.unpack(theta))
  return np.tanh(observation.reshape(-1) @ w0 + b0) @ w1 + b1


def slow_loss(agent, theta, theta_hat, transition, importance=(1,) * 5):
  """Equation 5 of docs/agents/pso_dqn.md, one transition at a time."""
  config = agent.config
  losses, errors, targets = [], [], []
  for o_tm1, a_tm1, r_t, d_t, o_t, weight, w in zip(
    *transition[:6], importance
  ):
    if not weight:
      continue
    q_t = slow_q(agent, theta_hat, o_t)
    selector = slow_q(agent, theta, o_t) if config.double else q_t
    bootstrap = q_t[np.argmax(selector)]
    y = config.reward_scale * r_t + config.gamma * d_t * bootstrap
    error = y - slow_q(agent, theta, o_tm1)[a_tm1]
    if config.loss == 'huber' and abs(error) > 1:
      losses.append(w * (abs(error) - 0.5))
    else:
      losses.append(w * error**2 / 2)
    errors.append(abs(error))
    targets.append(y)
  return np.mean(losses), np.mean(errors), max(targets)


def _variables(agent, theta):
  return [tf.constant(v) for v in agent.layout.unpack(theta)]


@pytest.mark.parametrize('reward_scale', [1.0, 0.25])
@pytest.mark.parametrize('loss', ['huber', 'squared'])
@pytest.mark.parametrize('double', [False, True])
def test_the_loss_is_equation_5(double, loss, reward_scale):
  agent = _agent(
    gamma=GAMMA, double=double, loss=loss, reward_scale=reward_scale
  )
  theta, theta_hat = agent.initial(0), agent.initial(1)
  transition = _transitions()
  selected = [
    (slow_q(agent, theta, o).argmax(), slow_q(agent, theta_hat, o).argmax())
    for o in transition.o_t[:2]
  ]
  assert any(a != b for a, b in selected), 'double must make a difference'
  got = agent.loss(
    _variables(agent, theta),
    _variables(agent, theta_hat),
    packing.Transition(*map(tf.constant, transition)),
  )
  mean, error, target = slow_loss(agent, theta, theta_hat, transition)
  np.testing.assert_allclose(got.loss, mean, rtol=1e-5)
  np.testing.assert_allclose(got.metrics['loss'], mean, rtol=1e-5)
  np.testing.assert_allclose(got.metrics['td_error'], error, rtol=1e-5)
  np.testing.assert_allclose(got.metrics['target_max'], target, rtol=1e-5)
  assert set(got.metrics) == set(agent.metrics)


def test_importance_weighs_errors_but_neither_priorities_nor_their_number():
  # docs/agents/apex_dqn.md: (1/B) sum_i w_i h(delta_i).
  agent = _agent(gamma=GAMMA)
  theta, theta_hat = agent.initial(0), agent.initial(1)
  transition = _transitions()
  importance = np.array([0.2, 1.0, 0.5, 0.7, 0.9], np.float32)
  arguments = (
    _variables(agent, theta),
    _variables(agent, theta_hat),
    packing.Transition(*map(tf.constant, transition)),
  )
  got = agent.loss(*arguments, tf.constant(importance))
  mean, error, _ = slow_loss(agent, theta, theta_hat, transition, importance)
  np.testing.assert_allclose(got.loss, mean, rtol=1e-5)
  np.testing.assert_allclose(got.metrics['td_error'], error, rtol=1e-5)
  plain = agent.loss(*arguments)
  assert not np.isclose(plain.loss, got.loss)
  np.testing.assert_array_equal(plain.priorities, got.priorities)
  np.testing.assert_allclose(
    tf.reduce_mean(got.priorities[:4]), error + 1e-6, rtol=1e-5
  )
  np.testing.assert_array_equal(
    agent.loss(*arguments, tf.ones(5)).loss, plain.loss
  )


def test_a_termination_hides_what_comes_after_and_a_time_limit_does_not():
  agent = _agent(gamma=GAMMA)
  theta = agent.initial(0)
  transition = _transitions()
  elsewhere = transition._replace(o_t=transition.o_t + 1)
  variables = _variables(agent, theta)
  one, two = (
    agent.loss(variables, variables, packing.Transition(*map(tf.constant, t)))
    for t in (transition, elsewhere)
  )
  same = np.isclose(one.priorities, two.priorities)
  np.testing.assert_array_equal(same[:4], [False, False, True, False])


def test_nothing_is_learned_through_the_target_network():
  agent = _agent()
  theta = _variables(agent, agent.initial(0))
  theta_hat = _variables(agent, agent.initial(1))
  transition = packing.Transition(*map(tf.constant, _transitions()))
  with tf.GradientTape() as tape:
    tape.watch([theta, theta_hat])
    loss = agent.loss(theta, theta_hat, transition).loss
  own, target = tape.gradient(loss, [theta, theta_hat])
  assert all(g is not None for g in own)
  assert target == [None] * 4


def test_epsilon_falls_in_a_line_and_stays():
  agent = _agent(epsilon_start=0.8, epsilon_end=0.2, epsilon_steps=300)
  got = [agent.exploration(n) for n in (0, 100, 150, 300, 10_000)]
  np.testing.assert_allclose(got, [0.8, 0.6, 0.5, 0.2, 0.2])


def _observations(members, number):
  rng = np.random.default_rng(5)
  return rng.normal(size=(members, number, 2, 2)).astype(np.float32)


def _best(agent, theta, observation):
  return np.array([
    [slow_q(agent, theta[p], o).argmax() for o in observation[p]]
    for p in range(len(theta))
  ])  # fmt: skip


@pytest.mark.parametrize('steps', [0, 50, 100])
def test_actions_are_random_as_often_as_epsilon_says(steps):
  agent = _agent(epsilon_start=0.9, epsilon_end=0.1, epsilon_steps=100)
  theta = np.stack([agent.initial(0), agent.initial(1)])
  observation = _observations(2, 3000)
  actions = agent.act(theta, observation, steps, np.random.default_rng(0))
  assert actions.shape == (2, 3000)
  assert actions.dtype == np.int32
  other = actions != _best(agent, theta, observation)
  # A random action is the best one in one of three cases.
  share = agent.exploration(steps) * 2 / 3
  deviation = np.sqrt(share * (1 - share) / 3000)
  np.testing.assert_allclose(other.mean(axis=1), share, atol=4 * deviation)
  if steps == 0:
    assert set(np.unique(actions)) == {0, 1, 2}


def test_without_epsilon_each_member_takes_its_best_action():
  agent = _agent(epsilon_start=0.0, epsilon_end=0.0)
  theta = np.stack([agent.initial(0), agent.initial(1)])
  observation = _observations(2, 40)
  best = _best(agent, theta, observation)
  actions = agent.act(theta, observation, 0, np.random.default_rng(0))
  np.testing.assert_array_equal(actions, best)
  for member in range(2):
    policy = agent.greedy(theta[member])
    np.testing.assert_array_equal(policy(observation[member]), best[member])


def test_a_greedy_policy_keeps_the_parameters_it_was_made_with():
  agent = _agent()
  theta = agent.initial(0)
  observation = _observations(1, 40)[0]
  policy = agent.greedy(theta)
  before = policy(observation)
  theta *= -1.0  # the learner goes on
  np.testing.assert_array_equal(policy(observation), before)


@pytest.mark.parametrize('dueling', [False, True])
def test_an_actors_priorities_are_those_of_the_learner(dueling):
  # With one network for both roles double Q-learning is the maximum, so the
  # learner computes the same as the actor.
  agent = _agent(
    gamma=GAMMA, prioritized=True, reward_scale=0.25, dueling=dueling
  )
  theta = agent.initial(0)
  transition = _transitions()
  layout = packing.TransitionLayout(SPEC.observation_shape)
  packed = layout.pack(*transition[:6])
  actor = agent.actor(base.ActorInfo(1, 2, 0), 3)
  got = actor.priorities(theta, packed)
  assert got.shape == (5,)
  assert got.dtype == np.float32
  variables = _variables(agent, theta)
  learned = agent.loss(
    variables, variables, packing.Transition(*map(tf.constant, transition))
  ).priorities
  np.testing.assert_allclose(got, learned, rtol=1e-5)


def test_an_actors_priorities_are_the_formula_of_ape_x():
  agent = _agent(gamma=GAMMA, prioritized=True, reward_scale=0.25)
  theta, transition = agent.initial(3), _transitions()
  packed = packing.TransitionLayout((2, 2)).pack(*transition[:6])
  slow = []
  for o_tm1, a_tm1, r_t, d_t, o_t, _ in zip(*transition[:6]):
    y = 0.25 * r_t + GAMMA * d_t * max(slow_q(agent, theta, o_t))
    slow.append(abs(y - slow_q(agent, theta, o_tm1)[a_tm1]) + 1e-6)
  actor = agent.actor(base.ActorInfo(0, 1, 0), 1)
  np.testing.assert_allclose(
    actor.priorities(theta, packed), slow, rtol=1e-4, atol=1e-6
  )


def test_an_actor_goes_on_with_new_parameters():
  agent = _agent(prioritized=True, exploration='ladder', epsilon=0.0)
  actor = agent.actor(base.ActorInfo(0, 1, 0), 200)
  observation, rng = _observations(1, 200), np.random.default_rng(0)
  packed = packing.TransitionLayout((2, 2)).pack(*_transitions()[:6])
  first = None
  for seed in range(3):
    theta = agent.initial(seed)
    best = _best(agent, theta[None], observation)[0]
    for _ in range(2):
      actions = actor.act(theta, observation[0], 0, rng)
      np.testing.assert_array_equal(actions, best)
    found = actor.priorities(theta, packed)
    assert first is None or not np.allclose(found, first)
    first = found


def test_uniform_replay_needs_no_priorities():
  agent = _agent()
  packed = packing.TransitionLayout((2, 2)).pack(*_transitions()[:6])
  actor = agent.actor(base.ActorInfo(0, 1, 0), 1)
  assert actor.priorities(agent.initial(0), packed) is None
  assert agent.priority_exponent is None
  assert agent.importance_exponent == 0.0


def test_prioritized_replay_has_the_exponents_of_the_config():
  agent = _agent(
    prioritized=True,
    priority_exponent=0.7,
    importance_exponent=0.3,
    max_gradient_norm=40.0,
    reward_clip=1.0,
  )
  assert agent.priority_exponent == 0.7
  assert agent.importance_exponent == 0.3
  assert agent.max_gradient_norm == 40.0
  assert agent.reward_clip == 1.0


def test_each_environment_of_an_actor_has_its_rung_of_the_ladder():
  agent = _agent(exploration='ladder', epsilon=0.8, epsilon_alpha=3.0)
  theta, rng = agent.initial(0), np.random.default_rng(0)
  observation, steps = _observations(1, 4)[0], 3000
  best = _best(agent, theta[None], observation[None])[0]
  for index in range(2):
    actor = agent.actor(base.ActorInfo(index, 2, 0), 4)
    # Constant in time: whatever the number of steps.
    actions = np.stack(
      [actor.act(theta, observation, 10**t % 10**7, rng) for t in range(steps)]
    )
    assert actions.shape == (steps, 4)
    epsilon = np.array([0.8 ** (1 + 3 * (2 * k + index) / 7) for k in range(4)])
    share = epsilon * 2 / 3
    error = np.sqrt(share * (1 - share) / steps)
    other = (actions != best).mean(axis=0)
    assert (np.abs(other - share) < 3.5 * error).all(), (other, share)


def test_an_actor_on_a_schedule_acts_as_the_agent_does():
  agent = _agent(epsilon_start=0.9, epsilon_end=0.1, epsilon_steps=100)
  theta, observation = agent.initial(0), _observations(1, 50)
  actor = agent.actor(base.ActorInfo(1, 3, 0), 50)
  for steps in (0, 60, 1000):
    np.testing.assert_array_equal(
      actor.act(theta, observation[0], steps, np.random.default_rng(steps)),
      agent.act(theta[None], observation, steps, np.random.default_rng(steps))[
        0
      ],
    )


def test_a_ladder_of_one_process_spans_its_environments():
  agent = _agent(exploration='ladder', epsilon=0.5, epsilon_alpha=2.0)
  alone = base.ActorInfo(0, 1, 0)
  np.testing.assert_allclose(agent.epsilons(alone, 3, 0), [0.5, 0.5**2, 0.5**3])
  np.testing.assert_allclose(agent.epsilons(alone, 1, 0), [0.5])
  assert agent.exploration(10**6) == 0.5
  # Two members with three environments each.
  theta = np.stack([agent.initial(0), agent.initial(1)])
  observation = _observations(2, 3)
  best = _best(agent, theta, observation)
  rng = np.random.default_rng(0)
  other = np.mean(
    [agent.act(theta, observation, 0, rng) != best for _ in range(3000)], axis=0
  )
  share = np.array([0.5, 0.5**2, 0.5**3]) * 2 / 3
  error = np.sqrt(share * (1 - share) / 3000)
  assert (np.abs(other - share) < 4 * error).all(), (other, share)


def _image_agent(**options):
  images = environments.Spec(
    'Images-v0', (36, 36, 1), num_actions=3, observation_dtype='uint8'
  )
  return dqn.DQN(dqn.Config(**options), images)


@pytest.mark.parametrize('dueling', [False, True])
def test_images_are_learned_from_and_acted_on_by_convolutions(dueling):
  agent = _image_agent(
    prioritized=True, exploration='ladder', epsilon=0.0, dueling=dueling
  )
  rng = np.random.default_rng(0)
  images = rng.integers(0, 256, (2, 4, 36, 36, 1), dtype=np.uint8)
  layout = packing.TransitionLayout((36, 36, 1), observation_dtype='uint8')
  packed = layout.pack(
    images[0], [0, 1, 2, 0], [1.0, -1.0, 0.5, 0.0], [1, 1, 0, 1], images[1]
  )
  theta = agent.initial(0)
  variables = _variables(agent, theta)
  with tf.GradientTape() as tape:
    tape.watch(variables)
    out = agent.loss(variables, variables, layout.unpack(tf.constant(packed)))
  assert all(
    np.any(gradient.numpy()) for gradient in tape.gradient(out.loss, variables)
  )
  actor = agent.actor(base.ActorInfo(0, 1, 0), 4)
  np.testing.assert_allclose(
    actor.priorities(theta, packed), out.priorities, rtol=1e-4
  )
  actions = actor.act(theta, images[0], 0, rng)
  assert actions.dtype == np.int32
  np.testing.assert_array_equal(actions, agent.greedy(theta)(images[0]))
  np.testing.assert_array_equal(
    actions, agent.act(theta[None], images[:1], 0, rng)[0]
  )


def test_a_network_that_does_not_take_the_observations_is_refused():
  with pytest.raises(
    environments.EnvironmentRefused, match="'mlp' would take the images"
  ):
    _image_agent(network='mlp')
  with pytest.raises(
    environments.EnvironmentRefused, match="'nature' takes images, but"
  ):
    _agent(network='nature')
  assert _agent(network='mlp').layout == _agent().layout


def test_the_same_seed_gives_the_same_parameters():
  theta = _agent().initial(7)
  assert theta.dtype == np.float32
  np.testing.assert_array_equal(theta, _agent().initial(7))
  assert not np.array_equal(theta, _agent().initial(8))


def test_every_actor_and_purpose_has_a_seed_of_its_own():
  seeds = {
    base.actor_seed(base.ActorInfo(index, 16, run), purpose)
    for index in range(16)
    for run in range(4)
    for purpose in ('weights', 'environment', 'exploration')
  }
  assert len(seeds) == 16 * 4 * 3
  assert all(0 <= seed < 2**31 for seed in seeds)
  info = base.ActorInfo(3, 16, 1)
  assert base.actor_seed(info, 'weights') == base.actor_seed(info, 'weights')


def test_transitions_come_in_no_blocks():
  agent = _agent()
  assert agent.experience == 'transitions'
  assert agent.feed(num_envs=3).batch_size == agent.batch_size
  assert agent.feed(num_envs=3, batch_size=7).batch_size == 7
  with pytest.raises(TypeError, match='dqn learns from transitions'):
    agent.block_layout(3)


def test_continuous_actions_are_refused():
  continuous = environments.Spec(
    'Torque-v0', observation_shape=(3,), num_actions=None, action_shape=(1,)
  )
  with pytest.raises(
    environments.EnvironmentRefused, match='Torque-v0 takes continuous actions'
  ):
    dqn.DQN(dqn.Config(), continuous)


@pytest.mark.parametrize(
  ('options', 'message'),
  [
    ({'learning_rate': 0.0}, r'agent.learning_rate=0.0 must be a positive'),
    ({'learning_rate': float('nan')}, 'agent.learning_rate=nan'),
    ({'learning_rate': float('inf')}, 'agent.learning_rate=inf'),
    ({'n_step': 0}, '--config.agent.n_step'),
    ({'batch_size': 0}, '--config.agent.batch_size'),
    ({'target_update_period': 0}, '--config.agent.target_update_period'),
    ({'max_replay_size': 0}, '--config.agent.max_replay_size'),
    ({'min_replay_size': 0}, '--config.agent.min_replay_size'),
    ({'reward_scale': 0.0}, '--config.agent.reward_scale'),
    ({'gamma': 1.1}, 'agent.gamma=1.1 must be between 0 and 1'),
    ({'epsilon_start': -0.1}, 'agent.epsilon_start=-0.1 must be between'),
    ({'epsilon_end': 1.5}, 'agent.epsilon_end=1.5 must be between'),
    ({'target_update_tau': 2.0}, 'agent.target_update_tau=2.0 must be above 0'),
    ({'target_update_tau': 0.0}, 'target_update_tau=0.0 must be above 0 and'),
    ({'epsilon_steps': -1}, 'agent.epsilon_steps=-1 must be a whole'),
    ({'epsilon_alpha': -1.0}, 'agent.epsilon_alpha=-1.0 must be a number'),
    (
      {'epsilon_alpha': float('inf')},
      'agent.epsilon_alpha=inf must be a number',
    ),
    ({'epsilon': 1.1}, 'agent.epsilon=1.1 must be between'),
    ({'priority_exponent': -0.1}, 'agent.priority_exponent=-0.1 must be'),
    ({'importance_exponent': 1.1}, 'agent.importance_exponent=1.1 must be'),
    ({'max_gradient_norm': 0.0}, '--config.agent.max_gradient_norm'),
    ({'reward_clip': -1.0}, '--config.agent.reward_clip'),
    ({'anneal_updates': 5, 'anneal_after': 5}, 'below.*anneal_updates=5'),
    ({'network': 'resnet'}, "agent.network='resnet' is not known.*'nature'"),
    ({'exploration': 'boltzmann'}, "'boltzmann' is not known.*'ladder'"),
    ({'hidden_sizes': ()}, 'agent.hidden_sizes'),
    ({'hidden_sizes': (64, 0)}, r'agent.hidden_sizes=\(64, 0\)'),
    ({'loss': 'l1'}, "agent.loss='l1' is not known.*'huber', 'squared'"),
    ({'min_replay_size': 9, 'max_replay_size': 8}, 'could never start'),
    ({'optimizer': 'lion'}, "optimizer='lion' is not known"),
  ],
)
def test_a_config_that_cannot_work_is_refused(options, message):
  with pytest.raises(ValueError, match=message):
    dqn.Config(**options)


def test_an_unknown_activation_is_refused():
  with pytest.raises(ValueError, match="activation='gelu' is not known"):
    _agent(activation='gelu')


def test_the_rate_stays_and_then_falls_to_zero():
  agent = _agent(anneal_after=4, anneal_updates=8)
  factors = [float(agent.rate_factor(tf.constant(n))) for n in (4, 6, 8)]
  assert factors == [1.0, 0.5, 0.0]
  assert agent.rate_end == (8, 'agent.anneal_updates', 8)
