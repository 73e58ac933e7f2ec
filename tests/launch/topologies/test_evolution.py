"""The program of evolution strategies, not started."""

import dataclasses

import pytest

from murmuration.agents import dqn
from murmuration.environment_loops import environments
from murmuration.launch import cell as cell_lib
from murmuration.launch import graph
from murmuration.launch.engines import restarts
from murmuration.launch.topologies import evolution as topology


def _build(agent='es_mlp', **overrides):
  named = {name.replace('__', '.'): v for name, v in overrides.items()}
  return cell_lib.resolve(agent, topology='evolution', overrides=named).build()


def test_workers_and_evaluator_talk_to_the_master():
  program = _build(evolution__num_workers='3')
  graph.check(program)
  workers = [f'worker/{i}' for i in range(3)]
  assert graph.nodes(program) == [
    'counter/0',
    'master/0',
    *workers,
    'evaluator/0',
  ]
  assert graph.edges(program) == {
    ('master/0', 'counter/0'),
    ('evaluator/0', 'counter/0'),
    ('evaluator/0', 'master/0'),
    *((worker, 'counter/0') for worker in workers),
    *((worker, 'master/0') for worker in workers),
  }


def test_all_may_die_and_come_back():
  rules = restarts.of(_build())
  assert rules.come_back and rules.ends_run == 'counter'


REFUSED = {
  'a small table': ('es_mlp', {'evolution__table_size': '1000'}, '100 times'),
  'a learner of its own': ('acme_dqn', {}, 'networks of its own'),
  'noise on discrete actions': (
    'es_mlp',
    {'evolution__action_noise': '0.1'},
    'are discrete',
  ),
  'a rate that nobody reads': (
    'dqn',
    {'agent__learning_rate': '0.1'},
    'numbers of learning are those of the section evolution',
  ),
  'a batch that nobody draws': (
    'ppo',
    {'agent__batch_size': '8'},
    'agent.batch_size would change nothing here',
  ),
  'threads of a learner': (
    'dqn',
    {'run__tf_threads': '2'},
    'run.tf_threads would change nothing here',
  ),
  'a pace without replay': (
    'dqn',
    {'pace__samples_per_insert': '4'},
    'pace.samples_per_insert would change nothing here: there is no replay',
  ),
  'statistics that nobody reads': (
    'es_mlp',
    {'evolution__obs_stat_prob': '0.1'},
    'does not normalize observations',
  ),
  'a generation beyond the budget': (
    'es_mlp',
    {'evolution__population': '200000'},
    'leaves no update: a generation has at least 400,000',
  ),
}


@pytest.mark.parametrize('what', REFUSED)
def test_what_cannot_be_is_refused_with_the_reason(what):
  agent, overrides, reason = REFUSED[what]
  with pytest.raises(ValueError, match=reason):
    _build(agent, **overrides)


def test_what_the_policy_depends_on_is_accepted():
  _build('es_mlp', environment='Pendulum-v1', agent__free_sigma='True')


def test_settings_of_ones_own_count_in_evolution_and_the_project_s_do_not():
  @dataclasses.dataclass(frozen=True)
  class Config(dqn.Config):
    my_width: int = 4

  agent = dqn.DQN(Config(hidden_sizes=(4,)), environments.spec('CartPole-v1'))
  found = topology.ignored(agent, topology.Config())
  assert 'agent.gamma' in found
  assert not {'agent.my_width', 'agent.hidden_sizes'} & set(found)
