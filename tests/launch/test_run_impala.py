"""IMPALA by the command: what is learned from, deaths, refusals."""

import json
import pathlib
import re

import numpy as np
import pytest

from murmuration.launch import cell as cell_lib
from murmuration.launch import registry
from murmuration.run_records import run_directory

HERE = pathlib.Path(__file__).parent
UNROLL, ENVS = 5, 4
BLOCK = UNROLL * ENVS  # environment steps in one item of the queue
UPDATES, QUEUE = 4, 4
# Batches of one block each.
SMALL = (
  '--config.agent.hidden_sizes=(16,)',
  f'--config.agent.unroll_length={UNROLL}',
  f'--config.agent.batch_size={ENVS}',
  f'--config.actors.envs_per_actor={ENVS}',
  f'--config.actors.queue_batches={QUEUE}',
  f'--config.run.updates_per_call={UPDATES}',
  '--config.run.eval_episodes=2',
  '--config.run.evaluations=2',
  '--config.run.target_return=None',
)


def _learner_rows(run):
  rows = run_directory.open(run.directory).metrics('node_learner')
  return [row for row in rows if 'policy_lag' in row]


def _updates(run):
  with np.load(run.directory / 'checkpoints' / 'learner-0.npz') as saved:
    return int(saved['updates'])


@pytest.mark.parametrize('preset', registry.agent('impala').presets)
def test_parameters_are_asked_for_in_each_unroll_or_oftener(preset):
  cell = cell_lib.resolve('impala', preset)
  acting, unroll = cell.sections['actors'], cell.sections['agent'].unroll_length
  assert acting.update_period <= unroll * acting.envs_per_actor


# One actor; parameters that stand still.


@pytest.fixture(scope='module')
def still(start_run):
  """IMPASS with an LSTM besides, at a learning rate that moves nothing."""
  run = start_run(
    'impala:pendulum',
    *SMALL,
    '--config.agent.shared_torso=True',
    '--config.agent.lstm_size=8',
    '--config.agent.learning_rate=1e-12',
    '--config.actors.num_actors=1',
    f'--config.actors.update_period={BLOCK}',
    f'--config.run.steps_per_agent={250 * BLOCK + 2 * ENVS}',
  )
  code = run.wait()
  assert code == 0, run.output
  return run


def test_a_run_finishes_and_leaves_nothing(still):
  still.assert_nothing_is_left()
  directory = run_directory.open(still.directory)
  summary = directory.summary()
  assert summary['outcome'] == 'budget'
  assert summary['totals']['actor_steps'] == 250 * BLOCK + 2 * ENVS
  evaluation = summary['latest']['evaluation']
  assert evaluation['return_mean'] < 0
  assert evaluation['version'] == _updates(still), 'not what it ended with'
  still.assert_no_traceback()
  assert directory.config()['agent_name'] == 'impala'


def test_whole_blocks_are_learned_from_once_each(still):
  totals = run_directory.open(still.directory).summary()['totals']
  assert totals['learner_steps'] == _updates(still)
  assert totals['samples'] == _updates(still) * ENVS
  # The half block at the end is in no item; and at the end some blocks wait,
  # or were read ahead.
  assert 200 < _updates(still) <= 250


def test_actor_and_learner_agree_on_the_policy_to_the_last_digits(still):
  # Where parameters stand still nobody is behind, whatever the lag: pi / mu is
  # 1 if stack, LSTM and Gaussian are the same in NumPy and in TensorFlow.
  deviations = [row['rho_deviation'] for row in _learner_rows(still)]
  assert deviations and max(deviations) < 1e-3


def test_the_queue_bounds_the_lag_of_the_policy(still):
  rows = _learner_rows(still)
  assert max(row['policy_lag_max'] for row in rows) <= (QUEUE + 1) * UPDATES
  assert min(row['policy_lag'] for row in rows) >= 0
  assert {row['stale_blocks'] for row in rows} == {0}


# Deaths in the middle.


STEPS = 3000


@pytest.fixture(scope='module')
def killed(start_run, tmp_path_factory):
  release = tmp_path_factory.mktemp('release') / 'released'
  run = start_run(
    'impala',
    *SMALL,
    '--config.environment=faulty_environments:Slow-v0',
    '--config.agent.learning_rate=0.01',
    '--config.actors.num_actors=2',
    # Two steps: most steps that are counted end in the middle of a block.
    f'--config.actors.update_period={2 * ENVS}',
    f'--config.run.steps_per_agent={STEPS}',
    modules=HERE,
    # Two deaths have to fit in.
    environment={'FAULTY_RELEASE': str(release), 'FAULTY_SLOW_S': '0.012'},
  )

  def total(name):
    path = run.directory / 'metrics' / 'counter.json'
    return json.loads(path.read_text())['totals'].get(name, 0)

  def go_on(name, count, what):
    before = total(name)
    run.wait_until(lambda: total(name) >= before + count, what)

  run.wait_until((run.directory / 'metrics' / 'counter.json').exists, 'counter')
  go_on('learner_steps', UPDATES, 'learning')
  run.kill('actor/0')
  go_on('actor_steps', 5 * BLOCK, 'steps after an actor died')
  path = run.directory / 'checkpoints' / 'learner-0.npz'
  run.wait_until(path.exists, 'checkpoint of the learner')
  run.kill('learner/0')
  go_on('learner_steps', UPDATES, 'learning after the learner died')
  release.touch()
  return run, run.wait()


def test_a_run_finishes_though_actor_and_learner_were_killed(killed):
  run, code = killed
  assert code == 0, run.output
  summary = run_directory.open(run.directory).summary()
  assert summary['outcome'] == 'budget'
  assert summary['totals']['actor_steps'] >= STEPS
  for node in ('actor/0', 'learner/0'):
    assert len(set(run.pids(node))) == 2
    assert f'{node}: killed by SIGKILL' in run.output
  for node in ('actor/1', 'counter/0'):
    assert len(run.pids(node)) == 1
    assert 'Traceback' not in run.log(node), run.log(node)
  run.assert_nothing_is_left()


def test_a_killed_learner_goes_on_from_its_checkpoint(killed):
  run, _ = killed
  log = run.log('learner/0')
  (step,) = re.findall(r'Going on from learner step (\d+)', log)
  assert 0 < int(step) < _updates(run)
  # Its queue died with it, and is filled again.
  assert 'left no checkpoint: what it held is lost' in log


def test_after_deaths_too_each_block_is_learned_from_at_most_once(killed):
  run, _ = killed
  # Steps of blocks that were open at a death, or lost with the queue, are
  # counted but never learned from. What the actor had written and not yet
  # reported when it died is learned from but never counted: some 5 blocks in
  # each second since its last report, which a busy machine delays.
  totals = run_directory.open(run.directory).summary()['totals']
  learned = totals['learner_steps'] * BLOCK
  assert 0 < learned < totals['actor_steps'] + 20 * BLOCK


def test_where_parameters_move_a_lag_shows_in_rho(killed):
  run, _ = killed
  rows = _learner_rows(run)
  # Else the test of policies that agree could not fail.
  assert max(row['rho_deviation'] for row in rows) > 1e-3
  assert {row['skipped_updates'] for row in rows} == {0}


def test_of_a_queue_nothing_is_kept(killed):
  run, _ = killed
  assert not (run.directory / 'checkpoints' / 'replay').exists()


# What cannot begin.

REFUSED = {
  '--config.agent.batch_size=12': (
    "12 sequences (agent.batch_size, or a learner's share of it) for each of 1 "
    'members cannot be made of blocks of 32 environments'
  ),
  '--config.run.updates_per_call=3': (
    'set run.updates_per_call to a multiple of 4'
  ),
  '--config.run.steps_per_agent=1000': 'leaves nothing to learn from',
  '--config.actors.queue_batches=0': 'queue_batches',
  '--config.agent.c_bar=2.0': 'Lower c_bar.',
}


@pytest.fixture(scope='module')
def refusals(tmp_path_factory, run_commands):
  directory = tmp_path_factory.mktemp('refusals')
  results = run_commands(
    [
      {'argv': ['impala', flag], 'cwd': str(directory), 'mode': 'no_start'}
      for flag in REFUSED
    ]
  )
  return dict(zip(REFUSED, results)), list(directory.iterdir())


@pytest.mark.parametrize('flag', REFUSED)
def test_what_cannot_work_is_refused_before_anything_is_written(refusals, flag):
  results, written = refusals
  assert results[flag]['code'] == 2, results[flag]
  assert REFUSED[flag] in results[flag]['stderr']
  assert written == []
