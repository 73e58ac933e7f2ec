"""What an agent's own equations return is one number for each transition.

Another shape would broadcast: [B] times [B, 1] is [B, B], and a loss of its
mean has a gradient, of another equation.
"""

import re

import numpy as np
import pytest
import tensorflow as tf

from murmuration.agents import a2c
from murmuration.agents import ddpg
from murmuration.agents import dqn
from murmuration.agents import sac
from murmuration.agents.losses import policy_gradient
from tests.agents import ddpg_cases
from tests.agents import dqn_cases
from tests.agents import unroll_cases

WRONG = {
  'a column': lambda x: x[:, None],
  'a mean': tf.reduce_mean,
  'a table': lambda x: tf.stack([x, x, x], axis=1),
}


def _loss(agent, batch):
  """The loss as a learner traces it: in a graph, of static shapes."""
  theta = dqn_cases.variables_of(agent, agent.initial(0))
  traced = tf.function(
    lambda: agent.loss(theta, theta, batch).loss, autograph=False
  )
  return traced()


@pytest.mark.parametrize('how', WRONG)
def test_a_td_error_of_another_shape_is_refused_without_priorities_too(how):
  class Mine(dqn.DQN):
    def td_error(self, *given):
      return WRONG[how](super().td_error(*given))

  agent = Mine(dqn.Config(hidden_sizes=(5,)), dqn_cases.SPEC)
  batch = ddpg_cases.tensors(dqn_cases.make_transitions())
  shape = WRONG[how](tf.zeros(5)).shape
  said = re.escape(
    f'What Mine.td_error returns, [B], has shape {tuple(shape)}, but (5,) is '
    'needed.'
  )
  with pytest.raises(ValueError, match=said):
    _loss(agent, batch)


def test_a_td_error_that_is_forgotten_is_none():
  class Mine(dqn.DQN):
    def td_error(self, *given):
      pass

  agent = Mine(dqn.Config(hidden_sizes=(5,)), dqn_cases.SPEC)
  with pytest.raises(ValueError, match=r'Mine\.td_error returns, .* is None'):
    _loss(agent, ddpg_cases.tensors(dqn_cases.make_transitions()))


def _column_of(method, place):
  """What turns a part of what `method` returns into a column."""

  def changed(self, *given):
    found = getattr(super(type(self), self), method)(*given)
    if place == 'q_mean':
      metrics = {**found.metrics, place: found.metrics[place][:, None]}
      return found._replace(metrics=metrics)
    if isinstance(place, str):
      return found._replace(**{place: getattr(found, place)[:, None]})
    one, other = found
    return (one, other[:, None]) if place else (one[:, None], other)

  return changed


@pytest.mark.parametrize(
  'kind, method, place, named',
  [
    (sac.SAC, '_target_action', 1, 'more'),
    (ddpg.DDPG, '_critic_loss', 'losses', 'losses'),
    (ddpg.DDPG, '_critic_loss', 'priorities', 'priorities'),
    (ddpg.DDPG, '_critic_loss', 'q_mean', 'q_mean'),
    (ddpg.DDPG, '_policy_loss', 0, 'losses'),
  ],
)
def test_so_are_the_parts_of_an_actor_critic(kind, method, place, named):
  mine = type('Mine', (kind,), {method: _column_of(method, place)})
  config = {sac.SAC: sac.Config, ddpg.DDPG: ddpg.Config}[kind]
  sizes = {'policy_sizes': (5,), 'critic_sizes': (6,)}
  agent = mine(config(**sizes), ddpg_cases.SPEC)
  batch = ddpg_cases.tensors(ddpg_cases.make_transitions())
  said = f'`{named}` of what Mine.{method} returns, [B], has shape '
  with pytest.raises(ValueError, match=re.escape(said)):
    _loss(agent, batch)


def test_so_are_the_advantages_of_an_agent_on_unrolls():
  class Mine(a2c.A2C):
    def credited(self, traced, values):
      return traced._replace(advantages=traced.advantages[..., None])

  whole = unroll_cases.make_impala(unroll_cases.CONTINUOUS)
  agent = Mine(a2c.Config(hidden_sizes=(4,)), whole.spec)
  batch = unroll_cases.batch_of(unroll_cases.make_block(agent, 0))
  with pytest.raises(ValueError, match=r'`advantages` of what Mine\.credited'):
    _loss(agent, batch)


def test_a_mean_over_steps_is_of_what_has_the_shape_of_its_mask():
  with pytest.raises(ValueError, match=r'Shapes \(2, 3, 1\) and \(2, 3\)'):
    policy_gradient.masked_mean(np.zeros((2, 3, 1)), np.ones((2, 3)))
