"""Many actors in one forward pass act as each would alone."""

import types
from typing import Any

import numpy as np
import pytest

from murmuration.agents import base
from murmuration.agents import batched_acting
from murmuration.agents import d4pg
from murmuration.agents import dqn
from murmuration.agents import dqn_actor
from murmuration.agents import impala
from murmuration.environment_loops import environments

COUNT, ENVS, STEPS = 3, 4, 40
_DQN: dict[str, Any] = {'hidden_sizes': (16,), 'prioritized': True}


class _Plain:
  """An agent whose actors have `act`, but not its parts."""

  def __init__(self, agent):
    self._agent = agent
    self.spec, self.initial = agent.spec, agent.initial

  def actor(self, info, num_envs):
    actor = self._agent.actor(info, num_envs)
    return types.SimpleNamespace(act=actor.act, ended=actor.ended)


def _d4pg():
  return d4pg.D4PG(
    d4pg.Config(noise='ornstein_uhlenbeck', random_steps=40),
    environments.spec('Pendulum-v1'),
  )


AGENTS = {
  'impala': lambda: impala.IMPALA(
    impala.Config(hidden_sizes=(16,)), environments.spec('CartPole-v1')
  ),
  'lstm and stack': lambda: impala.IMPALA(
    impala.Config(hidden_sizes=(16,), lstm_size=8, stack=3),
    environments.spec('CartPole-v1'),
  ),
  'gaussian': lambda: impala.IMPALA(
    impala.Config(hidden_sizes=(16,), shared_torso=False, stack=2),
    environments.spec('Pendulum-v1'),
  ),
  'dqn, ladder': lambda: dqn.DQN(
    dqn.Config(exploration='ladder', **_DQN), environments.spec('CartPole-v1')
  ),
  'dqn, falling': lambda: dqn.DQN(
    dqn.Config(epsilon_steps=100, **_DQN), environments.spec('CartPole-v1')
  ),
  'd4pg': _d4pg,
  'without parts': lambda: _Plain(_d4pg()),
}


def _actors(agent):
  return [agent.actor(base.ActorInfo(i, COUNT, 0), ENVS) for i in range(COUNT)]


def _rngs():
  return [np.random.default_rng([5, i]) for i in range(COUNT)]


@pytest.mark.parametrize('name', AGENTS)
def test_in_any_company_an_actor_acts_as_it_does_alone(name):
  agent = AGENTS[name]()
  # Spread out, so that it matters what is observed and remembered.
  theta = 3 * agent.initial(0)
  acting = batched_acting.Acting(agent, ENVS)
  alone, together = _actors(agent), _actors(agent)
  rngs_alone, rngs_together = _rngs(), _rngs()
  world = np.random.default_rng(1)
  done = [0] * COUNT
  for _ in range(STEPS):
    batch = world.permutation(COUNT)[: world.integers(1, COUNT + 1)]
    shape = (ENVS, *agent.spec.observation_shape)
    seen = [world.standard_normal(shape, np.float32) for _ in batch]
    ended = [world.random(ENVS) < 0.1 for _ in batch]
    got = acting.act(
      theta,
      [
        batched_acting.Request(together[i], x, done[i], rngs_together[i])
        for i, x in zip(batch, seen)
      ],
    )
    for i, x, last, actions in zip(batch, seen, ended, got):
      expected = alone[i].act(theta, x, done[i], rngs_alone[i])
      assert actions.dtype == expected.dtype
      assert actions.shape == expected.shape
      np.testing.assert_allclose(actions, expected, rtol=1e-5, atol=1e-5)
      for kept in ('behaviour', 'core'):
        np.testing.assert_allclose(
          getattr(together[i], kept, 0), getattr(alone[i], kept, 0), atol=1e-5
        )
      alone[i].ended(last)
      together[i].ended(last)
      done[i] += ENVS


def test_what_is_tested_depends_on_memory_and_company_would_show():
  agent = AGENTS['lstm and stack']()
  theta = 3 * agent.initial(0)
  first, second = _actors(agent)[:2]
  x = np.ones((ENVS, *agent.spec.observation_shape), np.float32)
  for value in (1.0, -2.0):
    first.act(theta, value * x, 0, _rngs()[0])
  second.act(theta, -2 * x, 0, _rngs()[0])
  assert np.abs(first.core - second.core).max() > 0.1
  assert np.abs(first.behaviour - second.behaviour).max() > 1e-3


def test_only_the_agent_without_parts_takes_a_pass_for_each_actor():
  found = {
    name for name in AGENTS
    if not batched_acting.Acting(AGENTS[name](), ENVS).batchable
  }  # fmt: skip
  assert found == {'without parts'}


@pytest.mark.parametrize('method', ['random', 'standard_normal'])
def test_streams_are_drawn_from_as_one_and_each_gives_what_is_its_own(method):
  rows = [2, 1, 3]
  streams = batched_acting.Streams(_rngs(), rows)
  drawn = getattr(streams, method)((6, 2), np.float32)
  own = [
    getattr(rng, method)((count, 2), np.float32)
    for rng, count in zip(_rngs(), rows)
  ]
  np.testing.assert_array_equal(drawn, np.concatenate(own))


@pytest.mark.parametrize('name', ['lstm and stack', 'dqn, ladder', 'd4pg'])
def test_outputs_that_are_not_finite_are_an_error(name):
  agent = AGENTS[name]()
  theta = agent.initial(0)
  acting = batched_acting.Acting(agent, ENVS)
  shape = (ENVS, *agent.spec.observation_shape)
  seen = [np.ones(shape, np.float32), np.full(shape, np.nan, np.float32)]
  with pytest.raises(ArithmeticError):
    acting.act(
      theta,
      [
        batched_acting.Request(actor, x, 1000, rng)
        for actor, x, rng in zip(_actors(agent), seen, _rngs())
      ],
    )


def test_an_actor_with_an_act_of_its_own_is_not_taken_apart():
  class Mine(dqn_actor.Actor):
    def act(self, theta, observation, actor_steps, rng):
      return np.ones(len(observation))

  agent = AGENTS['dqn, falling']()
  assert batched_acting.Acting(agent, ENVS).batchable
  made = agent.actor
  agent.actor = lambda *rank: setattr(a := made(*rank), '__class__', Mine) or a
  assert not batched_acting.Acting(agent, ENVS).batchable
