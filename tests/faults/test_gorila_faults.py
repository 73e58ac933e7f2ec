"""Real runs of Gorila in which one learner of four is late, or learns wrongly.

What the faults do to learning is the study `gorila_faults`.
"""

import numpy as np
import pytest

from murmuration.launch import cell as cell_lib
from murmuration.launch import graph
from murmuration.launch.topologies import parameter_server
from murmuration.run_records import checkpoints
from murmuration.run_records import run_directory
from tests.faults import gorila_faults as faults

LEARNERS, SHARDS = 4, 2
OTHERS = [i for i in range(LEARNERS) if i != faults.LEARNER]
SMALL = (
  '--config.agent.hidden_sizes=(16,)',
  '--config.agent.min_replay_size=50',
  '--config.run.steps_per_agent=4000',
  '--config.run.eval_episodes=2',
  '--config.run.evaluations=2',
  '--config.run.target_return=None',
  f'--config.server.num_learners={LEARNERS}',
  f'--config.server.num_shards={SHARDS}',
)


def _ended(start_run, name):
  run = start_run(
    'gorila_dqn:cartpole',
    f'--topology={faults.__name__}:{name}',
    *SMALL,
  )
  assert run.wait() == 0, run.output
  run.assert_no_traceback()
  return run_directory.open(run.directory)


def _last(run, group):
  """The last row of each node of a group, by its number."""
  rows = run.metrics(f'node_{group}')
  return {int(row['node'].partition('/')[2]): row for row in rows}


def _saved(run):
  """Of each shard: its version, and how many it rejected of each learner."""
  directory = checkpoints.directory(run.path)
  for shard in range(SHARDS):
    with np.load(directory / f'shard-{shard}.npz') as saved:
      learners = saved['learners'].tolist()
      yield saved['counts'][0], {i: rejected for i, _, rejected in learners}


@pytest.fixture(scope='module')
def delayed(start_run):
  return _ended(start_run, 'DelayedLearner')


@pytest.fixture(scope='module')
def faulty(start_run):
  return _ended(start_run, 'FaultyLearner')


@pytest.mark.parametrize('name', ['DelayedLearner', 'FaultyLearner'])
def test_only_one_learner_has_the_fault(name):
  topology = f'{faults.__name__}:{name}'
  cell = cell_lib.resolve('gorila_dqn', topology=topology)
  plain = cell_lib.resolve('gorila_dqn')
  program = cell.build()
  graph.check(program)
  assert graph.edges(program) == graph.edges(plain.build())
  exchanges = [
    node._kwargs['exchange'].func for node in program.groups['learner']
  ]
  usual = parameter_server.shard_exchange.ServerExchange
  assert [i for i in range(4) if exchanges[i] is not usual] == [faults.LEARNER]
  assert {**cell.config, 'topology': ''} == {**plain.config, 'topology': ''}


def test_a_fault_needs_a_learner_without_it():
  with pytest.raises(ValueError, match='Use at least 2'):
    cell_lib.resolve(
      'gorila_dqn',
      topology=f'{faults.__name__}:FaultyLearner',
      overrides={'server.num_learners': '1'},
    ).build()


def test_all_gradients_that_are_50_updates_late_are_rejected(delayed):
  row = _last(delayed, 'learner')[faults.LEARNER]
  late = row['gradients_late']
  assert late > 100
  assert row['gradients_rejected'] == row['gradients_sent']
  # Each was sent late or is still held. One may have been cut off by the end.
  assert 0 <= late + row['gradients_held'] - row['gradients_sent'] <= 1
  for _, rejected in _saved(delayed):
    assert rejected[faults.LEARNER] >= late
  for shard in _last(delayed, 'shard').values():
    assert shard[f'staleness_of_{faults.LEARNER}'] >= faults.DELAY


def test_those_of_the_other_learners_are_applied_and_no_more(delayed):
  learners = _last(delayed, 'learner')
  sent = {i: learners[i]['gradients_sent'] for i in OTHERS}
  assert min(sent.values()) > 100
  for version, rejected in _saved(delayed):
    # Few come too late; more where the machine is busy.
    applied = {i: sent[i] - rejected.get(i, 0) for i in OTHERS}
    assert all(applied[i] > 0.5 * sent[i] for i in OTHERS), applied
    # Each learner may have been stopped while it waited for a reply.
    assert abs(version - sum(applied.values())) <= LEARNERS


def test_rewards_times_1000_are_discarded_at_onset(faulty):
  row = _last(faulty, 'learner')[faults.LEARNER]
  assert row['wrong_batches'] == faults.BATCHES
  # Of all hundred the filter discards about seven: it takes a level that lasts
  # for true (docs/topologies/parameter_server.md, departure 4).
  assert row['wrong_batches_discarded_at_onset'] >= 0.9 * faults.ONSET


def test_a_learner_that_has_recovered_takes_part_again(faulty):
  row = _last(faulty, 'learner')[faults.LEARNER]
  assert row['own_learner_steps'] > faults.BATCHES + 300
  # Its losses of before and after the fault are not taken for outliers.
  others = row['losses_discarded'] - row['wrong_batches_discarded']
  assert others < 0.1 * row['own_learner_steps']
  assert row['gradients_rejected'] < 0.5 * row['gradients_sent']
