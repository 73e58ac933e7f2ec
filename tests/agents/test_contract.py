"""What agents are asked for before a run: complete, and of one mind."""

import dataclasses
import types

import numpy as np
import pytest
import tensorflow as tf

from agents import base
from agents import batched_acting
from agents import contract
from agents import ddpg
from agents import dqn
from agents import dqn_actor
from agents import feeds
from agents import impala
from agents import learner
from agents import members
from agents import optimizers
from agents import parameters
from agents.exchange import local
from environment_loops import environments
from launch import cell
from launch import experiment
from launch import registry
from launch.experience import population
from launch.nodes import worker
from launch.topologies import evolution
from launch.topologies import parameter_server
from replay import packing

SPEC = environments.Spec('Test-v0', observation_shape=(3,), num_actions=2)
P, K, BATCH = 2, 4, 8


def _dqn(kind=dqn.DQN, **changes):
  return kind(dqn.Config(hidden_sizes=(4,), batch_size=BATCH, **changes), SPEC)


class Bare(base.Agent):
  """Only what is asked for, with an `act` of its own."""

  name, spec, gamma, n_step, batch_size = 'bare', SPEC, 0.9, 1, BATCH
  learning_rate, metrics = 0.1, {'loss': 'mean'}
  optimizer, target_update = optimizers.SGD(), base.TargetUpdate(1)
  layout = parameters.Layout([('w', (3,)), ('seen', (2,))])
  statistics = 'seen'

  def initial(self, seed):
    return np.full(5, seed, np.float32)

  def loss(self, variables, target_variables, batch, importance=None):
    loss = tf.reduce_sum(variables[0] ** 2)
    statistics = {self.statistics: variables[1] + 1}
    return base.LossOutput(loss, None, {'loss': loss}, statistics)

  def act(self, theta, observation, actor_steps, rng):
    return np.full(observation.shape[:2], 1)

  def exploration(self, actor_steps):
    return 0.0

  def greedy(self, theta):
    return lambda observation: np.zeros(len(observation))


class ByActor(Bare):
  act = base.Agent.act

  def actor(self, info, num_envs):
    return types.SimpleNamespace(
      act=lambda theta, *unused: np.full(num_envs, theta[0]),
      ended=lambda last: None,
    )


@pytest.mark.parametrize('kind', [Bare, ByActor, dqn.DQN])
def test_a_whole_agent_is_taken(kind):
  contract.check(_dqn() if kind is dqn.DQN else kind())


@pytest.mark.parametrize('name', ['optimizer', 'gamma', 'metrics'])
def test_what_is_missing_is_named(monkeypatch, name):
  monkeypatch.delattr(Bare, name)
  with pytest.raises(ValueError, match=f'Bare has no {name}'):
    contract.check(Bare())


def test_an_agent_that_does_not_say_how_it_acts_is_refused():
  class Silent(Bare):
    act = base.Agent.act

  said = 'Silent does not say how it acts. Give it a method actor or act,'
  with pytest.raises(ValueError, match=said):
    contract.check(Silent())
  agent = Silent()
  agent.act = lambda *unused: None
  contract.check(agent)


def test_words_that_nobody_knows_and_priorities_of_a_queue_are_refused():
  agent = Bare()
  agent.metrics = {'loss': 'median'}
  with pytest.raises(ValueError, match="'loss' by 'median'; there are mean"):
    contract.check(agent)
  config = impala.Config(hidden_sizes=(4,))
  agent = impala.IMPALA(config, SPEC)
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


def test_a_run_of_such_an_agent_is_refused_before_it_starts(monkeypatch):
  kind = type('Mine', (dqn.DQN,), {'act': lambda self, *unused: None})
  entry = dataclasses.replace(registry.agent('dqn'), agent=kind)
  monkeypatch.setattr(registry, 'agent', lambda name: entry)
  with pytest.raises(ValueError, match='actor is that of ValueAgent'):
    cell.resolve('dqn')


def _experience(make_agent):
  return population.Steps(
    experiment.Experiment(make_agent, 'CartPole-v1', P, 100, 50), P
  )


def test_members_act_by_what_the_agent_has():
  infos = [base.ActorInfo(i, P, 0) for i in range(P)]
  theta = np.stack([ByActor().initial(seed) for seed in (3, 5)])
  rng = np.random.default_rng(0)
  observation = np.zeros((P, 3), np.float32)
  for make, kind, actions in (
    (Bare, members.Population, [1, 1]),
    (ByActor, members.Ranked, [3, 5]),
  ):
    behaviour = _experience(make).behaviour(infos)
    assert isinstance(behaviour, kind)
    assert behaviour.act(theta, observation, 0, rng).tolist() == actions


def test_what_act_keeps_hears_of_ends_from_an_actor_too():
  agent, heard = Bare(), []
  agent.ended = heard.append
  agent.actor(base.ActorInfo(0, 1, 0), K).ended(np.array([True, False]))
  assert [last.tolist() for last in heard] == [[[True, False]]]


def test_an_actor_with_an_act_of_its_own_is_not_taken_apart():
  class Mine(dqn_actor.Actor):
    def act(self, theta, observation, actor_steps, rng):
      return np.ones(len(observation))

  agent = _dqn()
  assert batched_acting.Acting(agent, K).batchable
  made = agent.actor
  agent.actor = lambda *rank: setattr(a := made(*rank), '__class__', Mine) or a
  assert not batched_acting.Acting(agent, K).batchable


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
  made = _learner(Bare(), num_members)
  width = packing.TransitionLayout((3,)).width
  made.step(tf.zeros((BATCH, num_members, width)))
  assert made.parameters()[:, 3:].tolist() == [[2, 2]] * num_members
  assert (made.parameters()[:, :3] < 1).all()


def test_prioritized_replay_needs_priorities():
  agent = Bare()
  agent.priority_exponent = 0.6
  made = _learner(agent, 1)
  width = packing.TransitionLayout((3,)).width
  with pytest.raises(ValueError, match='its loss gives no priorities'):
    made.step(tf.zeros((BATCH, 1, width)), tf.ones((BATCH, 1)))


def test_statistics_of_no_variable_are_refused():
  agent = Bare()
  agent.statistics = 'sene'
  made = _learner(agent, 1)
  width = packing.TransitionLayout((3,)).width
  with pytest.raises(ValueError, match=r"statistics for \['sene'\], but"):
    made.step(tf.zeros((BATCH, 1, width)))


def test_metrics_of_ones_own_need_not_have_a_word_for_saturation():
  config = ddpg.Config(policy_sizes=(4,), critic_sizes=(4,))
  agent = ddpg.DDPG(config, environments.spec('Pendulum-v1'))
  assert agent.remarks({'mine': 1.0}) == []
  assert agent.remarks({'policy_saturation': 1.0})


def test_settings_of_ones_own_count_in_evolution_and_the_project_s_do_not():
  @dataclasses.dataclass(frozen=True)
  class Config(dqn.Config):
    my_width: int = 4

  agent = dqn.DQN(Config(hidden_sizes=(4,)), SPEC)
  found = evolution.ignored(agent, evolution.Config())
  assert 'agent.gamma' in found
  assert not {'agent.my_width', 'agent.hidden_sizes'} & set(found)


def test_a_preset_may_have_numbers_of_the_agent_s_own_topology(monkeypatch):
  topology = types.SimpleNamespace(
    SECTION='mine', Config=evolution.Config, members=len, build=len
  )
  found = registry.topology
  monkeypatch.setattr(
    registry,
    'topology',
    lambda name: topology if name == 'own:Mine' else found(name),
  )
  entry = dataclasses.replace(
    registry.agent('dqn'),
    topology='own:Mine',
    presets={'one': {'environment': 'CartPole-v1', 'mine': {}}},
  )
  monkeypatch.setattr(registry, 'agent', lambda name: entry)
  assert cell.resolve('dqn', topology='single_process').topology
  wrong = {'environment': 'CartPole-v1', 'thine': {}}
  entry = dataclasses.replace(entry, presets={'one': wrong})
  with pytest.raises(ValueError, match="section of a preset 'thine'"):
    cell.resolve('dqn', topology='single_process')


class Topology:
  SECTION, Config = 'mine', evolution.Config

  def members(self, config):
    return 1

  def build(self, experiment, config):
    raise NotImplementedError


def test_a_topology_may_be_a_class():
  found = registry.topology(f'{__name__}:Topology')
  assert found.members(None) == 1
  with pytest.raises(ValueError, match='Bare is .* without SECTION'):
    registry.topology(f'{__name__}:Bare')


def test_an_exchange_may_not_serve_what_its_worker_serves():
  class Mine(local.Local):
    serves = ('get_parameters', 'mine')

  run = experiment.Experiment(_dqn, 'CartPole-v1', 1, 100, 50)
  info = [base.ActorInfo(0, 1, 0)]
  said = r"Mine serves \['get_parameters'\], which the worker has"
  counter = types.SimpleNamespace(with_deadline=lambda timeout_s: None)
  with pytest.raises(ValueError, match=said):
    worker.Worker(run, 'a/0', info, counter, [], exchange=Mine)


def test_a_filter_by_the_loss_needs_an_agent_that_says_it():
  agent = _dqn()
  agent.metrics = {'mine': 'mean'}
  run = experiment.Experiment(lambda: agent, 'CartPole-v1', 1, 1000, 100)
  config = parameter_server.Config(num_learners=1, outlier_sigmas=3.0)
  with pytest.raises(ValueError, match="metric 'loss', and dqn has none"):
    parameter_server.build(run, config)
