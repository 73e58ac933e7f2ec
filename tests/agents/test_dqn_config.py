"""What DQN refuses, and what its config says to others."""

import pytest
import tensorflow as tf

from murmuration.agents import dqn
from murmuration.environment_loops import environments
from tests.agents import dqn_cases as cases


def test_prioritized_replay_has_the_exponents_of_the_config():
  agent = cases.make_agent(
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


def test_transitions_come_in_no_blocks():
  agent = cases.make_agent()
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
    ({'epsilon_start': 0.01}, 'agent.epsilon_end=0.05 must be at most'),
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
    cases.make_agent(activation='gelu')


def test_the_rate_stays_and_then_falls_to_zero():
  agent = cases.make_agent(anneal_after=4, anneal_updates=8)
  factors = [float(agent.rate_factor(tf.constant(n))) for n in (4, 6, 8)]
  assert factors == [1.0, 0.5, 0.0]
  assert agent.rate_end == (8, 'agent.anneal_updates', 8, 4, None)
