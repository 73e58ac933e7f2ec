"""parameter_server for real: it learns, ends, and what dies comes back."""

import functools
import json

import numpy as np
import pytest

from launch import cell as cell_lib
from launch.services import shard as shard_lib
from launch.services import shard_exchange
from launch.topologies import parameter_server
from run_records import run_directory


class Direct:
  """Stands for the client of a shard."""

  def __init__(self, shard):
    self.pull, self.push = shard.pull, shard.push

  def with_deadline(self, timeout_s):
    del timeout_s
    return self


def test_one_worker_of_a3c_is_the_sequential_loop(run_worker, make_counter):
  overrides = {
    'run.steps_per_agent': '4000',  # 200 updates
    'agent.hidden_sizes': '(16,)',
    'agent.unroll_length': '5',
  }
  cell = cell_lib.resolve('a3c', overrides=overrides)
  config = parameter_server.Config(num_learners=1)
  found = []
  for apart in (True, False):
    options = {}
    if apart:
      shard = shard_lib.Shard(cell.experiment, config, 0)
      places = shard_lib.places(cell.experiment.make_agent(), config)
      options = {
        'exchange': functools.partial(
          shard_exchange.ServerExchange, config, places, 0
        ),
        'peers': {'shards': [Direct(shard)]},
      }
    counter = make_counter(budget={'actor_steps': 10**9})
    worker = run_worker(cell.experiment, counter, **options)
    found.append(worker)
    assert worker.steps == 4000
  one, other = (worker.learner.save() for worker in found)
  assert one['updates'] == other['updates'] == 200
  np.testing.assert_allclose(one['theta'], other['theta'], atol=1e-4)
  assert np.abs(other['theta'] - other['target']).max() > 0.01


SMALL = {
  'gorila_dqn': (
    '--config.agent.hidden_sizes=(16,)',
    '--config.agent.min_replay_size=50',
    '--config.run.eval_episodes=2',
    '--config.server.num_learners=2',
    '--config.server.num_shards=2',
    '--config.run.target_return=None',
  ),
  'a3c': (
    '--config.agent.hidden_sizes=(16,)',
    '--config.run.eval_episodes=2',
    '--config.server.num_learners=2',
    '--config.run.target_return=None',
  ),
}


class _Watched:
  """A run, and what it has done so far."""

  def __init__(self, run):
    self.run = run

  def total(self, name):
    state = self.run.directory / 'metrics' / 'counter.json'
    if not state.exists():
      return 0
    return json.loads(state.read_text())['totals'].get(name, 0)

  def go_on(self, name, count, what):
    before = self.total(name)
    self.run.wait_until(lambda: self.total(name) > before + count, what)


@pytest.fixture(scope='module', params=list(SMALL))
def killed(request, start_run):
  run = start_run(
    request.param,
    *SMALL[request.param],
    '--config.run.steps_per_agent=400000',
    '--config.run.wall_clock_s=60',
    '--config.server.checkpoint_period=10',
  )
  seen = _Watched(run)
  seen.go_on('learner_steps', 200, 'learning')
  run.kill('shard/0')
  seen.go_on('learner_steps', 200, 'learning after a shard died')
  run.kill('learner/1')
  seen.go_on('learner_steps', 200, 'learning after a learner died')
  run.wait_until(
    lambda: (
      'Going on from' in run.log('learner/1') or len(run.pids('learner/1')) == 2
    ),
    'learner again',
  )
  run.kill('evaluator/0')
  run.interrupt()
  run.wait()
  return run


def test_a_killed_shard_comes_back_from_its_checkpoint(killed):
  assert len(set(killed.pids('shard/0'))) == 2
  assert 'Going on from update' in killed.log('shard/0')
  assert 'shard/0: killed by SIGKILL' in killed.output


def test_learners_wait_for_it_and_go_on(killed):
  log = killed.log('learner/0')
  assert len(killed.pids('learner/0')) == 1
  assert 'Traceback' not in log, log
  assert 'Shard 0 is back at update' in log


def test_a_killed_learner_comes_back_and_disturbs_nobody(killed):
  assert len(set(killed.pids('learner/1'))) == 2
  assert 'Traceback' not in killed.log('shard/0'), killed.log('shard/0')


@pytest.mark.parametrize(
  'agent, replay',
  [
    ('gorila_dqn', 'colocated'),
    pytest.param('gorila_dqn', 'node', marks=pytest.mark.long),
    ('a3c', 'colocated'),
  ],
)
def test_a_run_uses_its_budget_and_is_kept(agent, replay, start_run):
  run = start_run(
    agent,
    *SMALL[agent],
    '--config.run.steps_per_agent=6000',
    f'--config.run.replay={replay}',
    '--seed=3',
  )
  assert run.wait() == 0, run.output
  summary = run_directory.open(run.directory).summary()
  assert summary['outcome'] == 'budget'
  assert summary['totals']['actor_steps'] == 6000
  checkpoints = run.directory / 'checkpoints'
  shards = sorted(checkpoints.glob('shard-*.npz'))
  parts = []
  for path in shards:
    with np.load(path) as saved:
      parts.append(saved['theta'])
      assert saved['learners'][:, 1].sum() > 5000
  with np.load(checkpoints / 'agents.npz') as saved:
    assert saved['theta'].shape == (1, sum(len(part) for part in parts))
  run.assert_nothing_is_left()
