"""What PPO refuses, its falling rate, and the rollouts of its presets."""

import numpy as np
import pytest
import tensorflow as tf

from murmuration.agents import ppo
from murmuration.configs import ppo as presets
from murmuration.environment_loops import environments
from tests.agents import ppo_cases

STEPS, UPDATES = ppo_cases.STEPS, ppo_cases.UPDATES


def test_the_learning_rate_falls_from_rollout_to_rollout():
  agent = ppo_cases.make_agent(anneal_env_steps=4 * STEPS)
  updates = tf.range(UPDATES * 6, dtype=tf.int64)
  got = [float(agent.rate_factor(update)) for update in updates]
  expected = np.repeat([1.0, 0.75, 0.5, 0.25, 0.0, 0.0], UPDATES)
  np.testing.assert_allclose(got, expected)
  assert (
    ppo_cases.make_agent().rate_factor(updates[0])
    is ppo_cases.make_agent().rate_end
    is None
  )
  assert agent.rate_end.update == got.index(0.0)
  # A rollout that begins within the budget still has a rate.
  longer = ppo_cases.make_agent(anneal_env_steps=4 * STEPS + 1).rate_end
  assert longer == (
    (5 * UPDATES, 'agent.anneal_env_steps', 4 * STEPS + 1)
    + (0, STEPS / UPDATES)
  )


@pytest.mark.parametrize(
  ('options', 'message'),
  [
    ({'batch_size': 7}, 'agent.rollout_steps=24 is no whole number of'),
    ({'unroll_length': 5}, 'no whole number of unrolls of 5 steps'),
    ({'stack': 2, 'batch_size': 6}, 'agent.batch_size=6 is no whole number'),
    ({'clip': 1.5}, 'agent.clip=1.5 must be above 0 and below 1'),
    ({'gae_lambda': 1.1}, 'agent.gae_lambda=1.1 must be between 0 and 1'),
    ({'value_clip': 0.0}, 'agent.value_clip=0.0 must be a positive number'),
    ({'entropy_cost': -1.0}, 'agent.entropy_cost=-1.0'),
    ({'sigma_max': 1e-4}, 'must be below agent.sigma_max=0.0001'),
    ({'hidden_sizes': ()}, 'agent.hidden_sizes'),
    ({'batch_size': 1, 'unroll_length': 1}, 'batch_size=1: normalized'),
    ({'epochs': 0}, 'agent.epochs=0 must be a whole number'),
  ],
)
def test_a_config_that_cannot_be_is_refused(options, message):
  with pytest.raises(ValueError, match=message):
    ppo.Config(**{**ppo_cases.OPTIONS, **options})


@pytest.mark.parametrize('preset', presets.AGENT.presets)
def test_the_actor_of_a_preset_makes_whole_rollouts(preset):
  chosen = presets.AGENT.presets[preset]
  spec = environments.spec(chosen['environment'])
  agent = ppo.PPO(ppo.Config(**chosen['agent']), spec)
  num_envs = chosen['actors']['envs_per_actor']
  assert agent.feed(num_envs).num_blocks(agent.updates_per_call) == 1
  assert agent.block_layout(num_envs).num_steps == agent.config.rollout_steps
  assert (agent.config.entropy_cost > 0) == spec.discrete
