"""What an agent has to have and may leave out, and may not say in two ways."""

import numpy as np
import pytest
import sonnet as snt
import tensorflow as tf

from murmuration.agents import base
from murmuration.agents import contract
from murmuration.agents import dqn
from murmuration.agents import feeds
from murmuration.agents import impala
from murmuration.agents import learner
from murmuration.agents.exchange import local
from murmuration.replay import packing
from tests.agents import bare

K, BATCH = 4, bare.Bare.batch_size


def _dqn(kind=dqn.DQN, **changes):
  return kind(
    dqn.Config(hidden_sizes=(4,), batch_size=BATCH, **changes), bare.SPEC
  )


@pytest.mark.parametrize('kind', [bare.Bare, bare.ByActor, dqn.DQN])
def test_a_whole_agent_is_taken(kind):
  contract.check(_dqn() if kind is dqn.DQN else kind())


@pytest.mark.parametrize('name', ['optimizer', 'gamma', 'metrics'])
def test_what_is_missing_is_named(monkeypatch, name):
  monkeypatch.delattr(bare.Bare, name)
  with pytest.raises(ValueError, match=f'Bare has no {name}'):
    contract.check(bare.Bare())


def test_an_agent_that_does_not_say_how_it_acts_is_refused():
  class Silent(bare.Bare):
    act = base.Agent.act

  said = 'Silent does not say how it acts. Give it a method actor or act,'
  with pytest.raises(ValueError, match=said):
    contract.check(Silent())
  agent = Silent()
  agent.act = lambda *unused: None
  contract.check(agent)


def test_an_optimizer_of_another_library_is_refused():
  agent = bare.Bare()
  agent.optimizer = snt.optimizers.Adam()
  with pytest.raises(ValueError, match='Adam, has no slots and no direction'):
    contract.check(agent)


def test_words_that_nobody_knows_and_priorities_of_a_queue_are_refused():
  agent = bare.Bare()
  agent.metrics = {'loss': 'median'}
  with pytest.raises(ValueError, match="'loss' by 'median'; there are mean"):
    contract.check(agent)
  config = impala.Config(hidden_sizes=(4,))
  agent = impala.IMPALA(config, bare.SPEC)
  contract.check(agent)
  agent.priority_exponent = 0.6
  with pytest.raises(ValueError, match='without priorities'):
    contract.check(agent)


@pytest.mark.parametrize(
  'one, other',
  [
    ('act', 'actor'),
    ('actor', 'act'),
    ('greedy', 'greedy_each'),
    ('greedy', 'operations'),
  ],
)
def test_one_of_two_methods_that_stand_for_each_other_is_not_enough(one, other):
  mine = {one: lambda self, *unused: None}
  if one == 'greedy':  # Of three, the other two are refused one by one.
    left = {'greedy_each', 'operations'} - {other}
    mine.update({name: getattr(base.Agent, name) for name in left})
  kind = type('Mine', (dqn.DQN,), mine)
  said = f'Mine has a method {one} of its own, but {other} is that of Value'
  with pytest.raises(ValueError, match=said):
    contract.check(_dqn(kind))
  follows = type('Follows', (kind,), {other: getattr(base.Agent, other)})
  contract.check(_dqn(follows))


def test_what_act_keeps_hears_of_ends_from_an_actor_too():
  agent, heard = bare.Bare(), []
  agent.ended = heard.append
  agent.actor(base.ActorInfo(0, 1, 0), K).ended(np.array([True, False]))
  assert [last.tolist() for last in heard] == [[[True, False]]]


def _learner(agent, num_members):
  return learner.TFLearner(
    agent,
    np.stack([agent.initial(1)] * num_members),
    [0.1] * num_members,
    local.Local(),
    feeds.Transitions(packing.TransitionLayout((3,)), BATCH),
  )


@pytest.mark.parametrize('num_members', [1, 2])
def test_an_agent_need_not_give_priorities(num_members):
  made = _learner(bare.Bare(), num_members)
  width = packing.TransitionLayout((3,)).width
  made.step(tf.zeros((BATCH, num_members, width)))
  assert made.parameters()[:, 3:].tolist() == [[2, 2]] * num_members
  assert (made.parameters()[:, :3] < 1).all()


def test_prioritized_replay_needs_priorities():
  agent = bare.Bare()
  agent.priority_exponent = 0.6
  made = _learner(agent, 1)
  width = packing.TransitionLayout((3,)).width
  with pytest.raises(ValueError, match='its loss gives no priorities'):
    made.step(tf.zeros((BATCH, 1, width)), tf.ones((BATCH, 1)))


def test_statistics_of_no_variable_are_refused():
  agent = bare.Bare()
  agent.statistics = 'sene'
  made = _learner(agent, 1)
  width = packing.TransitionLayout((3,)).width
  with pytest.raises(ValueError, match=r"statistics for \['sene'\], but"):
    made.step(tf.zeros((BATCH, 1, width)))
