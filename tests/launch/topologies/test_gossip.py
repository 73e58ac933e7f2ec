"""Gossip: wiring, refusals, and a real run in which a worker dies."""

import json
import pathlib
import re
import time

import numpy as np
import pytest

from murmuration.agents.exchange import local
from murmuration.launch import cell as cell_lib
from murmuration.launch import graph
from murmuration.launch.engines import restarts
from murmuration.launch.services import gossip as service
from murmuration.launch.topologies import gossip
from murmuration.run_records import run_directory
from tests.launch.services import gossip_workers as played
from tests.launch.topologies import deaf_gossip

MODULES = pathlib.Path(__file__).parents[1]


def _program(agent='gala_a2c', **overrides):
  return cell_lib.resolve(
    agent,
    topology='gossip',
    overrides={name.replace('__', '.'): x for name, x in overrides.items()},
  ).build()


def _between_workers(program):
  return {
    (int(a[-1]), int(b[-1]))
    for a, b in graph.edges(program)
    if a.startswith('worker') and b.startswith('worker')
  }


def test_workers_of_a_ring_know_the_two_beside_them():
  program = _program()
  assert graph.nodes(program) == [
    'counter/0',
    *(f'worker/{i}' for i in range(4)),
    'evaluator/0',
  ]
  ring = {(0, 1), (1, 2), (2, 3), (3, 0)}
  # One sends to the next; one that is started again asks either.
  assert _between_workers(program) == ring | {(b, a) for a, b in ring}
  assert ('evaluator/0', 'worker/0') in graph.edges(program)
  graph.check(program)


@pytest.mark.parametrize(
  'topology, others',
  [('bidirectional_ring', 2), ('exponential', 5), ('full', 7)],
)
def test_workers_know_all_that_they_ever_send_to_or_hear(topology, others):
  program = _program(gossip__num_learners='8', gossip__topology=topology)
  edges = _between_workers(program)
  assert all(len([e for e in edges if e[0] == i]) == others for i in range(8))
  graph.check(program)


def test_means_have_a_node_of_their_own():
  program = _program('pala_a2c')
  assert {e for e in graph.edges(program) if 'averager/0' in e} == {
    (f'worker/{i}', 'averager/0') for i in range(4)
  }
  graph.check(program)


def test_what_may_die_comes_back():
  rules = restarts.of(_program('pala_a2c'))
  assert rules.come_back and rules.ends_run == 'counter'


def test_all_workers_begin_with_the_same_parameters_and_other_seeds():
  program = _program('dqn')
  indices = []
  for node in program.groups['worker']:
    assert node._kwargs['exchange'].func.shared_start
    experiment, _, infos, _ = node._args
    indices += [info.index for info in infos]
    assert experiment.num_agents == 4
  assert indices == [0, 1, 2, 3]


def test_the_budget_is_of_each_worker_and_the_total_of_all():
  cell = cell_lib.resolve('gala_a2c')
  assert cell.experiment.run.steps_per_agent == 50_000
  assert cell.experiment.total_steps == 200_000


@pytest.mark.parametrize(
  'agent, overrides, message',
  [
    ('acme_dqn', {}, 'has a learner of its own'),
    ('dqn', {'run__replay': 'node'}, "run.replay='node': gossip has no"),
    ('dqn', {'run__steps_per_agent': '10'}, 'leaves nothing to learn from'),
  ],
)
def test_what_cannot_be_is_refused(agent, overrides, message):
  with pytest.raises(ValueError, match=message):
    _program(agent, **overrides)


def test_peers_that_a_topology_has_not_are_refused():
  with pytest.raises(ValueError, match='peers_per_iteration=3'):
    gossip.Config(topology='exponential', num_learners=4, peers_per_iteration=3)


class _Alone(local.Local):
  shared_start = True  # as in gossip


@pytest.mark.long
def test_workers_that_get_no_parameters_are_independent_learners(
  run_worker, make_counter
):
  # W is the identity.
  cell = cell_lib.resolve(
    'gala_a2c',
    overrides={
      'run.steps_per_agent': '2000',  # 100 updates
      'agent.hidden_sizes': '(16,)',
    },
  )

  def gossips(neighbours):
    exchange = service.Gossip(service.Graph('ring', 4), 1, neighbours, tau=None)
    exchange.push_message(0, 0)  # all that ever arrives
    return exchange

  found = []
  for options in (
    {
      'exchange': gossips,
      'peers': {'neighbours': {0: played.Client(), 2: played.Client()}},
    },
    {'exchange': _Alone},
  ):
    counter = make_counter(budget={'actor_steps': 10**9})
    worker = run_worker(cell.experiment, counter, [1], **options)
    assert worker.learner.updates == 100
    found.append(worker)
  metrics = found[0]._exchange.metrics()
  assert (metrics['gossip_iteration'], metrics['mixtures']) == (100, 0)
  one, other = (worker.learner.save() for worker in found)
  for name in other:
    np.testing.assert_array_equal(one[name], other[name], err_msg=name)


# A run in which a worker dies.

STEPS = 6000
SMALL = (
  '--config.agent.hidden_sizes=(16,)',
  '--config.gossip.num_learners=3',
  '--config.gossip.avg_period=10',
  f'--config.run.steps_per_agent={STEPS}',
  '--config.run.eval_episodes=2',
  '--config.run.evaluations=2',
  '--config.run.target_return=None',
)


def test_a_run_in_which_no_message_arrives_ends_with_an_error(start_run):
  run = start_run(
    'gala_a2c',
    *SMALL,
    f'--topology={deaf_gossip.__name__}:DeafGossip',
    '--config.run.max_restarts=1',
  )
  assert run.wait() == 1, run.output
  reason = run_directory.open(run.directory).summary()['reason']
  assert reason.startswith('worker/') and 'No message of worker/' in reason


def _steps(run, node, count='actor_steps'):
  path = run.directory / 'metrics' / 'counter.json'
  if not path.exists():
    return 0
  found = json.loads(path.read_text())['node_totals']
  return found.get(node, {}).get(count, 0)


def _is_past_its_checkpoint(run, node):
  """By more than gossip.tau allows, and not about to write the next one."""
  path = run.directory / 'checkpoints' / f'{node.replace("/", "-")}.npz'
  if not path.exists() or time.time() - path.stat().st_mtime > 3.0:
    return False
  with np.load(path) as saved:
    return _steps(run, node, 'learner_steps') >= int(saved['updates']) + 8


def _go_on(run, nodes, what):
  before = {node: _steps(run, node) for node in nodes}
  run.wait_until(
    lambda: all(_steps(run, n) >= before[n] + 100 for n in nodes), what
  )


@pytest.fixture(scope='module')
def killed(start_run, tmp_path_factory):
  release = tmp_path_factory.mktemp('release') / 'released'
  run = start_run(
    'pala_a2c',
    *SMALL,
    '--config.environment=faulty_environments:Slow-v0',
    modules=MODULES,
    # Three deaths have to fit in.
    environment={'FAULTY_RELEASE': str(release), 'FAULTY_SLOW_S': '0.012'},
  )
  nodes = [f'worker/{i}' for i in range(3)]
  _go_on(run, nodes, 'learning')
  run.wait_until(
    lambda: _is_past_its_checkpoint(run, 'worker/1'),
    'steps beyond a checkpoint',
  )
  run.kill('worker/1')
  _go_on(run, nodes, 'learning after a worker died')
  run.kill('averager/0')
  _go_on(run, nodes, 'learning after the averager died')
  release.touch()
  return run, run.wait()


def test_a_run_finishes_though_a_worker_and_the_averager_died(killed):
  run, code = killed
  assert code == 0, run.output
  summary = run_directory.open(run.directory).summary()
  assert summary['outcome'] == 'budget'
  assert summary['totals']['actor_steps'] == 3 * STEPS
  for node, starts in (('worker/1', 2), ('averager/0', 2), ('worker/0', 1)):
    assert len(set(run.pids(node))) == starts, node
    assert 'Traceback' not in run.log(node), run.log(node)
  # What `make evaluate` plays.
  with np.load(run.directory / 'checkpoints' / 'agents.npz') as saved:
    assert saved['theta'].shape[0] == 1
  run.assert_nothing_is_left()


def test_who_died_goes_on_where_its_neighbours_are(killed):
  run, _ = killed
  ((found, own),) = re.findall(
    r'Going on from iteration (\d+) of a neighbour, not from (\d+)',
    run.log('worker/1'),
  )
  assert int(found) > int(own)


def test_distance_staleness_and_waits_are_logged(killed):
  run, _ = killed
  rows = run_directory.open(run.directory).metrics('node_worker')
  last = {row['node']: row for row in rows if 'mixtures' in row}
  assert set(last) == {f'worker/{i}' for i in range(3)}
  for i in range(3):
    row = last[f'worker/{i}']
    assert row['mixtures'] > 0 and row['averages'] > 0
    assert f'staleness_from_{(i - 1) % 3}' in row
    assert row['gossip_waited_s'] >= 0
    assert row['messages_refused'] == 0
    assert 0 <= row['distance_to_mean'] < row['mean_norm']
  # All the time, also where one came back: the ball that GALA's abstract has.
  for row in rows:
    if 'distance_to_mean' in row:
      assert row['distance_to_mean'] < 0.1 * row['mean_norm'], row
