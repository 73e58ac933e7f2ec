"""Evolution strategies by the command: real runs, and what may die."""

import pathlib
import re

import numpy as np
import pytest

from murmuration.launch import cell as cell_lib
from murmuration.launch import registry
from murmuration.run_records import metrics
from murmuration.run_records import run_directory

HERE = pathlib.Path(__file__).parent


@pytest.mark.parametrize('preset', registry.agent('es_mlp').presets)
def test_a_preset_s_policy_is_deterministic_and_bounded(preset):
  cell = cell_lib.resolve('es_mlp', preset)
  agent = cell.experiment.make_agent()
  theta = agent.initial(0)
  theta[agent.layout.groups['policy']] *= 100
  shape = (5, *agent.spec.observation_shape)
  observation = np.random.default_rng(0).standard_normal(shape)
  policy = agent.greedy(theta)
  actions = policy(observation.astype(np.float32))
  if not agent.spec.discrete:
    assert np.abs(actions).max() <= 1
  np.testing.assert_array_equal(actions, policy(observation.astype(np.float32)))


@pytest.fixture(scope='module')
def learned(start_run):
  run = start_run(
    'es_mlp:cartpole',
    '--config.run.steps_per_agent=100_000',
    '--config.run.evaluations=5',
    '--config.run.target_return=None',
  )
  assert run.wait() == 0, run.output
  run.assert_nothing_is_left()
  return run_directory.open(run.directory)


def test_the_return_rises(learned):
  rows = learned.metrics('generation')
  means = [row['return_mean'] for row in rows]
  assert np.mean(means[-3:]) > 3 * np.mean(means[:3]), means
  evaluations = [row['return_mean'] for row in learned.metrics('evaluation')]
  assert max(evaluations) > 150, evaluations


def test_what_was_done_is_counted_and_kept(learned):
  rows = learned.metrics('generation')
  totals = learned.summary()['totals']
  assert learned.summary()['outcome'] == 'budget'
  assert [row['generation'] for row in rows] == list(range(1, len(rows) + 1))
  assert totals['learner_steps'] == len(rows)
  assert learned.summary()['latest']['evaluation']['version'] == len(rows)
  assert totals['actor_steps'] == sum(row['steps'] for row in rows)
  assert (
    totals['actor_steps'] >= 100_000 > totals['actor_steps'] - rows[-1]['steps']
  )
  with np.load(learned.path / 'checkpoints' / 'agents.npz') as saved:
    assert saved['steps'] == len(rows)


SLOW = (
  'es_mlp',
  '--config.environment=faulty_environments:Slow-v0',
  '--config.run.target_return=None',
  '--config.run.eval_episodes=1',
  '--config.run.evaluations=2',
  '--config.agent.hidden_sizes=(8,)',
  '--config.evolution.population=4',
  '--config.evolution.pairs_per_task=1',
)


def _rows(run):
  return metrics.read_jsonl(run.directory / 'metrics' / 'generation.jsonl')


def _checkpointed(run):
  path = run.directory / 'checkpoints' / 'evolution.npz'
  if not path.exists():
    return 0
  with np.load(path) as saved:
    return int(saved['numbers'][0])


@pytest.fixture(scope='module')
def killed(start_run, tmp_path_factory):
  release = tmp_path_factory.mktemp('release') / 'released'
  run = start_run(
    *SLOW,
    '--config.run.steps_per_agent=20_000',
    modules=HERE,
    # Three deaths have to fit in.
    environment={'FAULTY_RELEASE': str(release), 'FAULTY_SLOW_S': '0.012'},
  )

  def go_on(what):
    before = len(_rows(run))
    run.wait_until(lambda: len(_rows(run)) > before + 2, what)

  go_on('generations')
  run.kill('worker/0')
  go_on('generations after a worker died')
  run.wait_until(lambda: _checkpointed(run), 'checkpoint of the master')
  kept = run.kill('master/0', lambda: _checkpointed(run))
  go_on('generations after the master died')
  run.kill('counter/0')
  go_on('generations after the counter died')
  release.touch()
  return run, kept, run.wait()


def test_the_run_finishes_though_worker_master_and_counter_were_killed(killed):
  run, _, code = killed
  assert code == 0, run.output
  summary = run_directory.open(run.directory).summary()
  assert summary['outcome'] == 'budget'
  assert summary['totals']['actor_steps'] >= 20_000
  run.assert_nothing_is_left()


@pytest.mark.parametrize('node', ['worker/0', 'master/0', 'counter/0'])
def test_a_killed_node_is_started_again_once(killed, node):
  run = killed[0]
  assert len(set(run.pids(node))) == 2
  assert f'{node}: killed by SIGKILL' in run.output


def test_nobody_else_is_disturbed(killed):
  run = killed[0]
  assert len(run.pids('worker/1')) == 1
  assert 'Traceback' not in run.log('worker/1'), run.log('worker/1')


def test_a_killed_master_makes_the_same_generations_again(killed):
  run, kept, _ = killed
  (generation,) = re.findall(
    r'Going on from generation (\d+)', run.log('master/0')
  )
  assert int(generation) == kept > 0
  by_number = {}
  for row in _rows(run):
    by_number.setdefault(row['generation'], set()).add(row['parameters'])
  # Rows may be lost with the counter, but there is only one history.
  assert all(len(keys) == 1 for keys in by_number.values())


def test_a_resumed_run_goes_on_from_its_last_generation(start_run):
  flags = ('--config.run.steps_per_agent=3000',)
  first = start_run('es_mlp', '--config.run.target_return=None', *flags)
  assert first.wait() == 0, first.output
  made = len(_rows(first))
  second = start_run(
    '--config.run.steps_per_agent=6000', resume=first.directory
  )
  assert second.wait() == 0, second.output
  numbers = [row['generation'] for row in _rows(second)]
  assert numbers == list(range(1, len(numbers) + 1))
  assert len(numbers) > made > 0
