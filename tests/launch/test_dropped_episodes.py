"""run.on_fault='drop': what a broken environment leaves of its episodes.

Rewards of the environments here are NaN from the fifth step of an episode on,
so that each episode has four steps that are experience, and one that is not.
"""

import pathlib

import numpy as np
import pytest

from murmuration.replay import adders
from murmuration.replay import writer
from murmuration.replay.inspect import read as inspect_read
from murmuration.replay.inspect import target as inspect_target
from murmuration.run_records import run_directory

HERE = pathlib.Path(__file__).parent
ENVS, ACTORS = 4, 2
EPISODE = 5  # steps, the broken one included
ITEM = 2  # transitions in an item of Ape-X DQN's replay
STEPS = ACTORS * ENVS * EPISODE * 80
EVALUATED = 2  # episodes
OF_ACTORS = (
  f'--config.actors.num_actors={ACTORS}',
  f'--config.actors.envs_per_actor={ENVS}',
)
COMMON = (
  f'--config.run.steps_per_agent={STEPS}',
  '--config.run.target_return=None',
  '--config.run.updates_per_call=4',
  '--config.run.evaluations=1',
  f'--config.run.eval_episodes={EVALUATED}',
)
DISCRETE = (
  '--config.environment=faulty_environments:TurnsNaN-v0',
  '--config.agent.hidden_sizes=(16,)',
  '--config.run.on_fault=drop',
)
CONTINUOUS = (
  '--config.environment=faulty_environments:SwingsToNaN-v0',
  '--config.agent.policy_sizes=(16,)',
  '--config.agent.critic_sizes=(16,)',
  '--config.agent.batch_size=16',
  '--config.agent.min_replay_size=100',
  '--config.agent.n_step=2',
  '--config.pace.samples_per_insert=4',
)
# Agent (inverted_pendulum drops by itself), flags, transitions in an item of
# replay. None where the broken step is in it too, marked: in blocks, and in
# steps of all members of a process.
CASES = {
  'Ape-X DQN': (
    'apex_dqn',
    (
      *DISCRETE,
      '--config.agent.batch_size=16',
      '--config.agent.min_replay_size=100',
      '--config.agent.n_step=2',
      f'--config.actors.transitions_per_item={ITEM}',
      # Actors wait for the learner, however slow it is.
      '--config.pace.samples_per_insert=8.0',
      '--config.actors.error_buffer=800.0',
    ),
    ITEM,
  ),
  'IMPALA': (
    'impala',
    (
      *DISCRETE,
      '--config.agent.batch_size=4',
      f'--config.agent.unroll_length={2 * EPISODE}',
    ),
    None,
  ),
  'D4PG': ('d4pg:inverted_pendulum', CONTINUOUS, 1),
  'D4PG alone': (
    'd4pg:inverted_pendulum',
    (*CONTINUOUS, '--topology=single_process'),
    None,
  ),
}


@pytest.fixture(scope='module', params=CASES)
def run(request, start_run):
  agent, flags, item = CASES[request.param]
  alone = request.param.endswith('alone')
  if not alone:
    flags = (*flags, *OF_ACTORS)
  found = start_run(agent, *flags, *COMMON, modules=HERE)
  found.item = item
  found.acts = ['worker/0'] if alone else [f'actor/{i}' for i in range(ACTORS)]
  found.learns = 'worker' if alone else 'learner'
  found.code = found.wait()
  return found


def _latest(run, group):
  """The last row of each node of a group."""
  rows = run_directory.open(run.directory).metrics(f'node_{group}')
  return {row['node']: row for row in rows}


def test_the_run_goes_on_to_its_budget_and_has_failed(run):
  # All of its episodes broke: nobody knows what it learned.
  assert run.code == 1, run.output
  run.assert_nothing_is_left()
  summary = run_directory.open(run.directory).summary()
  assert summary['outcome'] == 'failed' and summary['finished']
  assert summary['reason'].startswith('no episode ended whole')
  assert summary['totals']['actor_steps'] == STEPS
  assert summary['totals']['learner_steps'] > 0
  dropped = summary['totals']['dropped_episodes']
  assert dropped == STEPS / EPISODE
  shown = [x for x in run.output.splitlines() if 'episodes, dropped' in x]
  assert any(f'{dropped:,}' in line for line in shown), run.output


def test_what_was_dropped_is_counted_and_said(run):
  actors = _latest(run, run.acts[0].partition('/')[0])
  assert sorted(actors) == run.acts
  for name, row in actors.items():
    assert row['environment_faults'] == STEPS / len(run.acts) / EPISODE
    log = run.log(name)
    assert 'Episode dropped, number 1: faulty_environments:' in log
    assert 'returned reward nan at step 5 of an episode' in log
  # None of them is an episode that anybody has finished.
  totals = run_directory.open(run.directory).summary()['totals']
  assert totals.get('episodes', 0) == 0


def test_four_steps_of_an_episode_are_never_a_return(run):
  rows = run_directory.open(run.directory).metrics('evaluation')
  assert rows
  for row in rows:
    assert np.isnan(row['return_mean']) and row['returns'] == []
    assert row['broken_episodes'] == 10 * EVALUATED
  latest = run_directory.open(run.directory).summary()['latest']
  assert latest['evaluation']['broken_episodes'] == 10 * EVALUATED


def test_nothing_of_the_fault_is_learned(run):
  learners = _latest(run, run.learns).values()
  assert learners
  for row in learners:
    assert row['skipped_updates'] == 0
    assert row.get('dropped_sequences', 0) == 0
    assert np.isfinite(row['loss'])
  with np.load(run.directory / 'checkpoints' / 'agents.npz') as saved:
    assert np.isfinite(saved['theta']).all()
  if run.item is None:
    return  # the broken step is there, marked: see tests of the loss
  (shard,) = inspect_read.read(inspect_target.find(str(run.directory)), 5.0)
  (table,) = shard.tables
  # Two steps each: from steps 1, 2 and 3. The one from step 4 on would need
  # what came of step 5. At the end an actor may hold back a burst, and what the
  # table does not take while the learner is behind.
  most = STEPS / EPISODE * 3
  held = ACTORS * (adders.TRANSITION_BURST + run.item * writer.MAX_IN_FLIGHT)
  assert most - held < run.item * table.limiter.inserts <= most
