"""What DDPG refuses and remarks upon, and its falling rates."""

import pytest
import tensorflow as tf

from murmuration.agents import ddpg
from murmuration.environment_loops import environments
from tests.agents import ddpg_cases as cases


def test_a_saturated_policy_is_remarked_upon():
  agent = cases.make_agent()
  fine = dict.fromkeys(agent.metrics, 0.0)
  assert agent.remarks(fine) == []
  (remark,) = agent.remarks({**fine, 'policy_saturation': 0.95})
  assert '95%' in remark and 'agent.max_dq_da' in remark


def test_discrete_actions_are_refused():
  spec = environments.Spec('Buttons-v0', (3,), num_actions=4)
  message = 'Buttons-v0 takes 4 discrete actions, but DDPG needs continuous'
  with pytest.raises(environments.EnvironmentRefused, match=message):
    ddpg.DDPG(ddpg.Config(), spec)


@pytest.mark.parametrize(
  ('options', 'message'),
  [
    ({'policy_learning_rate': 0.0}, '--config.agent.policy_learning_rate'),
    ({'critic_learning_rate': -1.0}, '--config.agent.critic_learning_rate'),
    ({'n_step': 0}, '--config.agent.n_step'),
    ({'policy_delay': 0}, '--config.agent.policy_delay'),
    ({'reward_scale': 0.0}, '--config.agent.reward_scale'),
    ({'reward_scale': float('inf')}, '--config.agent.reward_scale'),
    ({'max_dq_da': 0.0}, '--config.agent.max_dq_da'),
    ({'max_gradient_norm': -1.0}, '--config.agent.max_gradient_norm'),
    ({'gamma': 1.1}, 'agent.gamma=1.1 must be between 0 and 1'),
    ({'priority_exponent': 2.0}, 'agent.priority_exponent=2.0 must be between'),
    ({'target_update_tau': 0.0}, 'target_update_tau=0.0 must be above 0 and'),
    ({'noise_theta': 0.0}, 'noise_theta=0.0 must be above 0 and'),
    ({'sigma': -0.1}, 'agent.sigma=-0.1 must be'),
    ({'sigma': float('nan')}, 'agent.sigma=nan must be'),
    ({'random_steps': -1}, 'agent.random_steps=-1 must be'),
    ({'policy_sizes': ()}, r'agent.policy_sizes=\(\) must be'),
    ({'critic_sizes': (64, 0)}, r'agent.critic_sizes=\(64, 0\) must be'),
    ({'noise': 'pink'}, "agent.noise='pink' is not known"),
    ({'optimizer': 'lion'}, "optimizer='lion' is not known"),
    ({'activation': 'gelu'}, "activation='gelu' is not known"),
    ({'min_replay_size': 9, 'max_replay_size': 8}, 'could never start'),
    ({'anneal_updates': 5, 'anneal_after': 5}, 'below agent.anneal_updates=5'),
    ({'anneal_updates': 0}, '--config.agent.anneal_updates'),
  ],
)
def test_a_config_that_cannot_work_is_refused(options, message):
  with pytest.raises(ValueError, match=message):
    ddpg.DDPG(ddpg.Config(**options), cases.SPEC)


def test_the_rates_stay_and_then_fall_to_zero():
  agent = ddpg.DDPG(ddpg.Config(anneal_after=4, anneal_updates=8), cases.SPEC)
  factors = [float(agent.rate_factor(tf.constant(n))) for n in (0, 4, 6, 9)]
  assert factors == [1.0, 1.0, 0.5, 0.0]
  assert agent.rate_end == (8, 'agent.anneal_updates', 8, 4, None)
  plain = ddpg.DDPG(ddpg.Config(), cases.SPEC)
  assert plain.rate_factor(tf.constant(9)) is plain.rate_end is None


def test_metrics_of_ones_own_need_not_have_a_word_for_saturation():
  assert cases.make_agent().remarks({'mine': 1.0}) == []
