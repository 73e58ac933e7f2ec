"""parameter_server before it starts: its wiring, its shares, its refusals."""

import dataclasses

import pytest
import reverb

from murmuration.launch import cell as cell_lib
from murmuration.launch import graph
from murmuration.launch.engines import restarts
from murmuration.launch.topologies import parameter_server


def _build(agent='gorila_dqn', **overrides):
  said = {name.replace('__', '.'): value for name, value in overrides.items()}
  cell = cell_lib.resolve(agent, topology='parameter_server', overrides=said)
  return cell.build()


def test_learners_talk_to_all_shards_and_to_no_learner():
  program = _build(server__num_learners='3', server__num_shards='2')
  shards = ['shard/0', 'shard/1']
  asking = [*(f'learner/{i}' for i in range(3)), 'evaluator/0']
  assert graph.edges(program) == {
    *((node, 'counter/0') for node in (*shards, *asking)),
    *((f'learner/{i}', shard) for i in range(3) for shard in shards),
    ('evaluator/0', 'learner/0'),
  }
  graph.check(program)


def test_one_replay_may_be_that_of_all_learners():
  program = _build(server__num_learners='3', run__replay='node')
  edges = graph.edges(program)
  assert {a for a, b in edges if b == 'replay/0'} == {
    f'learner/{i}' for i in range(3)
  }
  saved_by = [node._kwargs['hosts'] for node in program.groups['learner']]
  assert [len(hosts) for hosts in saved_by] == [1, 0, 0]
  graph.check(program)


@pytest.mark.parametrize('num_learners', [1, 2])
def test_a_replay_of_several_is_saved_after_the_last_of_them(num_learners):
  program = _build(server__num_learners=str(num_learners), run__replay='node')
  (node,) = program.groups['replay']
  assert node._kwargs['shared'] == (num_learners > 1)


def test_a3c_has_one_shard_and_four_learners():
  program = _build('a3c')
  counts = {label: len(nodes) for label, nodes in program.groups.items()}
  assert counts == {'counter': 1, 'shard': 1, 'learner': 4, 'evaluator': 1}


def test_all_but_the_counter_come_back():
  rules = restarts.of(_build())
  assert rules.come_back and rules.ends_run == 'counter'


@pytest.mark.parametrize(
  'agent, overrides, message',
  [
    ('a3c', {'run.replay': 'node'}, 'learns from its own rollouts'),
    ('dqn', {'run.steps_per_agent': '2000'}, 'leaves nothing to learn from'),
    ('dqn', {'run.steps_per_agent': '3'}, 'num_learners=4'),
    (
      'dqn',
      {'server.num_shards': '100000'},
      'server.num_shards=100000 must be',
    ),
    ('dqn', {'server.num_learners': '0'}, 'server.num_learners=0 must be'),
    ('acme_dqn', {}, 'has a learner of its own.*Use actor_learner'),
  ],
)
def test_what_cannot_work_is_refused(agent, overrides, message):
  with pytest.raises(ValueError, match=message):
    cell_lib.resolve(
      agent, topology='parameter_server', overrides=overrides
    ).build()


def test_building_makes_no_reverb_object(monkeypatch):
  for name in ('Table', 'Server', 'Client'):
    monkeypatch.setattr(reverb, name, None)
  _build()


def test_a_filter_by_the_loss_needs_an_agent_that_says_it():
  found = cell_lib.resolve('gorila_dqn').experiment
  agent = found.make_agent()
  agent.metrics = {'mine': 'mean'}
  found = dataclasses.replace(found, make_agent=lambda: agent)
  config = parameter_server.Config(outlier_sigmas=3.0)
  with pytest.raises(ValueError, match="metric 'loss', and dqn has none"):
    parameter_server.build(found, config)
