"""The wiring of programs that are never started."""

import dataclasses
import functools

import pytest

from murmuration.agents import dqn
from murmuration.agents import ppo
from murmuration.agents.swarm import explorers as swarm_lib
from murmuration.environment_loops import environments
from murmuration.launch import experiment as experiment_lib
from murmuration.launch import graph
from murmuration.launch.engines import restarts
from murmuration.launch.topologies import single_process
from murmuration.launch.topologies import swarm


def _experiment(agent=None, **run):
  config = dqn.Config(hidden_sizes=(8,), min_replay_size=50)
  spec = environments.spec('CartPole-v1')
  return experiment_lib.Experiment(
    make_agent=agent or functools.partial(dqn.DQN, config, spec),
    environment='CartPole-v1',
    num_agents=5,
    max_replay_size=1000,
    min_replay_size=config.min_replay_size,
    pace=experiment_lib.Pace(64.0),
    run=experiment_lib.RunConfig(**{'steps_per_agent': 500, **run}),
  )


def _config(**changes):
  settings = {'num_explorers': 5, 'explorers_per_node': 2, **changes}
  return swarm_lib.Config(**settings)


def test_every_node_of_a_swarm_talks_to_the_server_and_the_counter_only():
  program = swarm.build(_experiment(), _config())
  asking = [*(f'explorer/{i}' for i in range(3)), 'evaluator/0']
  assert graph.edges(program) == {
    ('star/0', 'counter/0'),
    *((node, 'counter/0') for node in asking),
    *((node, 'star/0') for node in asking),
  }
  graph.check(program)


def test_a_swarm_has_as_many_nodes_as_its_config_says():
  program = swarm.build(_experiment(), _config())
  counts = {label: len(nodes) for label, nodes in program.groups.items()}
  assert counts == {
    'counter': 1,
    'star': 1,
    'explorer': 3,
    'evaluator': 1,
  }


def test_the_replay_of_a_swarm_can_be_a_node_of_its_own():
  program = swarm.build(_experiment(replay='node'), _config())
  assert 'replay/0' in graph.nodes(program)
  edges = {edge for edge in graph.edges(program) if 'replay/0' in edge}
  assert edges == {(f'explorer/{i}', 'replay/0') for i in range(3)}
  assert restarts.of(program).come_back
  graph.check(program)


def test_a_replay_node_has_one_table_per_explorer_node():
  experiment = _experiment(replay='node')
  hosted = swarm.hosting(_config())
  tables = swarm.replay_tables(experiment, hosted)
  assert [table.name for table in tables] == [
    'replay_0',
    'replay_1',
    'replay_2',
  ]
  width = experiment.make_agent().transition_layout().width
  shapes = [table.info.signature.shape.as_list() for table in tables]
  assert shapes == [[2, width], [2, width], [1, width]]
  assert {table.info.max_size for table in tables} == {1000}


@pytest.mark.parametrize('size', [2, 5])
def test_a_replay_of_several_nodes_is_saved_after_the_last_of_them(size):
  config = _config(explorers_per_node=size)
  (node,) = swarm.build(_experiment(replay='node'), config).groups['replay']
  assert node._kwargs['shared'] == (size < 5)


def test_what_may_die_comes_back_and_the_counter_ends_the_run():
  rules = restarts.of(swarm.build(_experiment(), _config()))
  assert rules.come_back and rules.ends_run == 'counter'


@pytest.mark.parametrize('size', [1, 3, 8, 16, 40])
@pytest.mark.parametrize('explorers', [1, 4, 31, 33])
def test_explorers_are_hosted_evenly_and_each_exactly_once(explorers, size):
  hosted = swarm.hosting(
    _config(num_explorers=explorers, explorers_per_node=size)
  )
  members = [member for node in hosted for member in node]
  assert sorted(members) == list(range(explorers))
  sizes = [len(node) for node in hosted]
  assert max(sizes) <= size
  assert max(sizes) - min(sizes) <= 1
  assert len(hosted) == -(-explorers // size)


def test_a_budget_that_ends_before_learning_begins_is_refused():
  experiment = _experiment()
  short = dataclasses.replace(
    experiment, run=dataclasses.replace(experiment.run, steps_per_agent=55)
  )
  for build in (
    lambda: swarm.build(short, _config()),
    lambda: single_process.build(short, single_process.Config()),
  ):
    with pytest.raises(ValueError, match='learning begins after 55 steps'):
      build()


def test_a_swarm_whose_explorers_would_count_lives_for_games_is_refused():
  lives = dataclasses.replace(
    _experiment(), environment='ALE/Breakout-v5?noop_max=0&life_loss=1'
  )
  with pytest.raises(ValueError, match='Leave out life_loss'):
    swarm.build(lives, _config())


def test_a_replay_node_that_nothing_would_reach_is_refused():
  spec = environments.spec('CartPole-v1')
  agent = functools.partial(ppo.PPO, ppo.Config(), spec)
  experiment = _experiment(agent=agent, replay='node', steps_per_agent=10_000)
  with pytest.raises(ValueError, match='learns from its own rollouts'):
    swarm.build(experiment, _config())


def test_a_single_process_is_a_worker_and_a_counter():
  program = single_process.build(_experiment(), single_process.Config())
  assert graph.nodes(program) == ['counter/0', 'worker/0']
  assert graph.edges(program) == {('worker/0', 'counter/0')}
  rules = restarts.of(program)
  assert not rules.come_back and rules.ends_run == 'counter'
  graph.check(program)


def test_the_swarm_is_drawn_from_the_program():
  drawing = graph.to_mermaid(swarm.build(_experiment(), _config()))
  assert '  explorer["explorer x 3"]' in drawing.splitlines()
  assert '  explorer --> star' in drawing.splitlines()


CARTPOLE = environments.spec('CartPole-v1')


@pytest.mark.parametrize(
  ('agent', 'pull_every', 'period'),
  [
    (functools.partial(ppo.PPO, ppo.Config(), CARTPOLE), 'rollout', 80),
    (functools.partial(ppo.PPO, ppo.Config(), CARTPOLE), 'minibatch', 1),
    (None, 'rollout', 1),
  ],
)
def test_explorers_with_rollouts_are_pulled_once_for_each(
  agent, pull_every, period
):
  for start in ('own', 'shared'):
    config = _config(pull_every=pull_every, start=start)
    program = swarm.build(
      _experiment(agent=agent, steps_per_agent=5000), config
    )
    for node in program.groups['explorer']:
      exchange = node._kwargs['exchange'](server=None)
      assert exchange.period == period
      assert exchange.shared_start == (start == 'shared')
      assert not exchange.keeps_learner
