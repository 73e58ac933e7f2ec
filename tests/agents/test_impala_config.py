"""What IMPALA refuses, its falling rate, and its blocks."""

import numpy as np
import pytest
import tensorflow as tf

from murmuration.agents import impala
from murmuration.replay import blocks
from tests.agents import unroll_cases as cases

T, K = cases.T, cases.K


def test_the_learning_rate_falls_in_a_line_to_zero():
  agent = cases.make_impala(anneal_env_steps=10 * T * K)
  got = [
    float(agent.rate_factor(tf.constant(n, tf.int64))) for n in (0, 4, 10, 99)
  ]
  np.testing.assert_allclose(got, [1.0, 0.6, 0.0, 0.0], atol=1e-6)
  assert cases.make_impala().rate_factor(tf.constant(3, tf.int64)) is None
  assert agent.rate_end == (10, 'agent.anneal_env_steps', 10 * T * K, 0, T * K)


def test_blocks_are_those_of_the_environment():
  layout = cases.make_impala(lstm_size=6, stack=3).block_layout(7)
  assert layout == blocks.BlockLayout(
    T, 7, (2,), core_size=2 * 2 + 2 * 6, max_episode_steps=50
  )
  continuous = cases.make_impala(cases.CONTINUOUS).block_layout(7)
  assert continuous.action_shape == (2,) and not continuous.discrete
  longer = cases.make_impala(unroll_length=51).block_layout(7)
  assert longer.max_truncations == 2


@pytest.mark.parametrize(
  ('options', 'message'),
  [
    ({'learning_rate': 0.0}, r'agent.learning_rate=0.0 must be a positive'),
    ({'unroll_length': 0}, '--config.agent.unroll_length'),
    ({'batch_size': 2.5}, '--config.agent.batch_size'),
    ({'stack': 0}, '--config.agent.stack'),
    ({'anneal_env_steps': 0}, '--config.agent.anneal_env_steps'),
    ({'max_gradient_norm': -1.0}, '--config.agent.max_gradient_norm'),
    ({'reward_clip': 0.0}, '--config.agent.reward_clip'),
    ({'gamma': 1.1}, 'agent.gamma=1.1 must be between 0 and 1'),
    ({'trace_lambda': -0.1}, 'agent.trace_lambda=-0.1 must be between'),
    ({'entropy_cost': -1.0}, 'agent.entropy_cost=-1.0 must be a number'),
    ({'baseline_cost': float('nan')}, 'agent.baseline_cost=nan'),
    ({'sigma_min': -1e-3}, 'agent.sigma_min=-0.001'),
    (
      {'sigma_min': 1.0, 'sigma_max': 0.5},
      'sigma_min=1.0 must be below agent.sigma_max',
    ),
    ({'lstm_size': -1}, 'agent.lstm_size=-1'),
    ({'hidden_sizes': ()}, 'agent.hidden_sizes'),
    ({'correction': 'retrace'}, "'retrace' is not known.*'vtrace', 'none'"),
    ({'rho_bar': 1.0, 'c_bar': 2.0}, 'c_bar=2.0 is above rho_bar=1.0'),
    ({'rho_bar': 1.0, 'c_bar': None}, 'c_bar=None is above'),
    ({'optimizer': 'lion'}, "optimizer='lion' is not known"),
    (
      {'normalize_advantages': True, 'unroll_length': 1, 'batch_size': 1},
      'advantage of a single step is always 0',
    ),
  ],
)
def test_a_config_that_cannot_work_is_refused(options, message):
  with pytest.raises(ValueError, match=message):
    impala.Config(**options)


def test_rmsprop_has_the_epsilon_of_the_config():
  agent = cases.make_impala(optimizer='rmsprop', rmsprop_epsilon=1e-3)
  assert agent.optimizer.epsilon == 1e-3


def test_parts_that_do_not_go_together_are_refused():
  with pytest.raises(ValueError, match='lstm_size=4 needs a shared torso'):
    cases.make_impala(lstm_size=4, shared_torso=False)
