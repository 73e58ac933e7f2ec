"""Acme's own agents in real runs: killed, resumed and looked into."""

import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

from murmuration.agents.acme import d4pg as acme_d4pg
from murmuration.environment_loops import environments
from murmuration.launch import cell as cell_lib
from murmuration.replay.inspect import command as inspect_command
from murmuration.run_records import run_directory

HERE = pathlib.Path(__file__).parent
ITEM = 2  # transitions in an item of replay
SMALL = (
  '--config.agent.batch_size=16',
  '--config.agent.min_replay_size=100',
  '--config.run.eval_episodes=2',
  '--config.run.updates_per_call=2',
  '--config.actors.num_actors=2',
  '--config.actors.envs_per_actor=2',
  '--config.pace.samples_per_insert=4',
  f'--config.actors.transitions_per_item={ITEM}',
)
NETWORK = {'policy_sizes': (16,), 'critic_sizes': (16,)}


def checkpoint(run):
  path = run.directory / 'checkpoints' / 'learner-0.npz'
  if not path.exists():
    return {'updates': 0}
  with np.load(path) as saved:
    return dict(saved)


def counted(saved):
  """What the optimizers themselves say of their number of updates."""
  return [
    int(value)
    for name, value in saved.items()
    if 'optimizer' in name and value.dtype.kind == 'i'
  ]


def finished(run):
  assert run.wait() == 0, run.output
  run.assert_nothing_is_left()
  directory = run_directory.open(run.directory)
  assert directory.summary()['outcome'] == 'budget'
  return directory


@pytest.mark.parametrize(
  'topology, overrides, message',
  [
    ('actor_learner', {'actors.num_learners': '2'}, 'num_learners to 1'),
    ('single_process', {}, 'topology=actor_learner'),
    ('swarm', {}, 'topology=actor_learner'),
  ],
)
def test_what_a_stock_learner_cannot_do_is_refused(
  topology, overrides, message
):
  cell = cell_lib.resolve('acme_d4pg', '', topology, overrides)
  with pytest.raises(ValueError, match=message):
    cell.build()


@pytest.mark.long
def test_building_a_program_starts_no_tensorflow():
  code = """
from tensorflow.python.eager import context
from murmuration.launch import cell, needs, registry
for agent in ('acme_dqn', 'acme_d4pg'):
  for preset in registry.agent(agent).presets:
    made = cell.resolve(agent, preset)
    needs.check(made.experiment, made.build())
assert not context.context()._initialized, 'forked nodes would hang'
"""
  done = subprocess.run(
    [sys.executable, '-c', code],
    cwd=HERE.parents[1],
    capture_output=True,
    text=True,
    timeout=200,
  )
  assert done.returncode == 0, done.stderr


def test_a_killed_learner_of_acme_comes_back_with_its_optimizer(
  start_run, tmp_path
):
  release = tmp_path / 'released'
  run = start_run(
    'acme_dqn',
    *SMALL,
    '--config.agent.hidden_sizes=(16,)',
    '--config.environment=faulty_environments:Slow-v0',
    '--config.run.steps_per_agent=4000',
    modules=HERE,
    # Its death has to fit in.
    environment={'FAULTY_RELEASE': str(release), 'FAULTY_SLOW_S': '0.012'},
  )
  run.wait_until(lambda: checkpoint(run)['updates'] > 20, 'a checkpoint')
  left = run.kill('learner/0', lambda: checkpoint(run))
  run.wait_until(
    lambda: 'Going on from learner step' in run.log('learner/0'), 'the learner'
  )
  release.touch()
  finished(run)
  (step,) = re.findall(r'from learner step (\d+)', run.log('learner/0'))
  assert int(step) == left['updates']
  kept = checkpoint(run)
  assert kept['updates'] > left['updates']
  assert counted(left) == [left['updates']]
  assert counted(kept) == [kept['updates']]


@pytest.fixture(scope='module')
def resumed(start_run):
  first = start_run(
    'acme_d4pg:inverted_pendulum',
    *SMALL,
    *(f'--config.agent.{name}={sizes}' for name, sizes in NETWORK.items()),
    '--config.run.steps_per_agent=1500',
  )
  finished(first)
  before = checkpoint(first)
  second = start_run(
    '--config.run.steps_per_agent=3000',
    resume=first.directory,
  )
  return before, finished(second), second


def test_a_resumed_run_counts_on_from_what_the_first_left(resumed):
  before, directory, second = resumed
  assert len(directory.commands()) == 2
  assert directory.summary()['totals']['actor_steps'] == 3000
  # Not in their order: the newest is played before those that wait.
  versions = [row['version'] for row in directory.metrics('evaluation')]
  assert max(versions) > before['updates'] >= min(versions)
  # A learner's own replay comes back, too. Every step is a transition, but for
  # the windows that were still open and what the limiter kept out when the
  # learner had ended: of each actor at most 63 transitions held back and 200
  # items in flight.
  (kept,) = re.findall(r'with (\d+) items', second.log('learner/0'))
  assert 1500 - 2 * (63 + 200 * ITEM) - 4 * 5 <= ITEM * int(kept) <= 1500


def test_a_run_of_acme_s_d4pg_is_resumed_with_both_optimizers(resumed):
  before, directory, second = resumed
  assert f'from learner step {before["updates"]}' in second.log('learner/0')
  after = checkpoint(second)
  assert after['updates'] > before['updates'] > 0
  assert counted(before) == [before['updates']] * 2
  assert counted(after) == [after['updates']] * 2
  assert set(after) == set(before)
  row = directory.metrics('node_learner')[-1]
  assert np.isfinite([row['critic_loss'], row['policy_loss']]).all()
  assert row['policy_lag'] >= 0


def test_what_is_kept_of_it_plays(resumed):
  _, directory, _ = resumed
  agent = acme_d4pg.AcmeD4PG(
    acme_d4pg.Config(**NETWORK), environments.spec('InvertedPendulum-v5')
  )
  with np.load(directory.checkpoints / 'agents.npz') as saved:
    (theta,) = saved['theta']
  actions = agent.greedy(theta)(np.ones((5, 4), np.float32))
  assert actions.shape == (5, 1) and np.isfinite(actions).all()


def test_the_inspector_reads_its_replay(resumed, capsys):
  _, directory, _ = resumed
  code = inspect_command.main([str(directory.path)])
  said = capsys.readouterr()
  assert code == 0, said.err
  words = ' '.join(said.out.split())
  assert 'transition.float32_4.float32_1' in words, said.out
