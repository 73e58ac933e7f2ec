"""parameter_server for real: it learns, ends, and what dies comes back."""

import functools
import json
import re

import numpy as np
import pytest

from murmuration.agents import base
from murmuration.launch import cell as cell_lib
from murmuration.launch.services import shard as shard_lib
from murmuration.launch.services import shard_exchange
from murmuration.launch.topologies import parameter_server
from murmuration.replay import blocks
from murmuration.run_records import run_directory
from tests.launch import conftest


class Direct:
  """Stands for the client of a shard."""

  def __init__(self, shard):
    self.pull, self.push, self.leave = shard.pull, shard.push, shard.leave

  def with_deadline(self, timeout_s):
    del timeout_s
    return self


UPDATES = 500


def _mnih_et_al(theta, rollouts, config):
  """Algorithm S3 of one thread, in float64: theta after all rollouts.

  Args:
    theta: before the first, [D]: a layer of 16, then two logits and a value.
    rollouts: a `Block` for each update.
    config: of the agent.
  """
  shapes = [(16,), (4, 16), (3,), (16, 3)]
  cuts = np.cumsum([np.prod(shape) for shape in shapes])[:-1]
  theta, g2 = theta.astype(np.float64), np.zeros(len(theta))
  total = config.anneal_env_steps / (config.unroll_length * config.batch_size)
  for update, rollout in enumerate(rollouts):
    b0, w0, b1, w1 = (
      part.reshape(shape) for part, shape in zip(np.split(theta, cuts), shapes)
    )
    d_theta = [np.zeros(shape) for shape in shapes]
    num_steps, num_envs = rollout.reward.shape
    for k in range(num_envs):
      seen = rollout.observation[-1, k], rollout.final_observation[0, k]
      ret, final = (np.tanh(seen @ w0 + b0) @ w1 + b1)[:, 2]
      for t in reversed(range(num_steps)):
        if rollout.last[t, k]:
          ret = final if rollout.discount[t, k] else 0.0
        ret = config.reward_scale * rollout.reward[t, k] + config.gamma * ret
        x = rollout.observation[t, k]
        h = np.tanh(x @ w0 + b0)
        *logits, v = h @ w1 + b1
        log_pi = logits - np.log(np.sum(np.exp(logits)))
        pi = np.exp(log_pi)
        entropy = -np.sum(pi * log_pi)
        d_logits = (ret - v) * (pi - np.eye(2)[rollout.action[t, k]])
        d_logits += config.entropy_cost * pi * (log_pi + entropy)
        d_out = np.append(d_logits, config.baseline_cost * (v - ret))
        d_h = (w1 @ d_out) * (1 - h**2)
        parts = d_h, np.outer(x, d_h), d_out, np.outer(h, d_out)
        for added, part in zip(d_theta, parts):
          added += part / (num_steps * num_envs)
    gradient = np.concatenate([part.ravel() for part in d_theta])
    norm = np.linalg.norm(gradient)
    gradient *= min(1.0, config.max_gradient_norm / norm)
    g2 = 0.99 * g2 + 0.01 * gradient**2
    rate = config.learning_rate * (1 - update / total)
    theta = theta - rate * gradient / np.sqrt(g2 + config.rmsprop_epsilon)
  return theta


@pytest.mark.long
def test_one_worker_of_a3c_is_the_sequential_loop(make_worker, make_counter):
  overrides = {
    'run.steps_per_agent': str(UPDATES * 5 * 4),
    'agent.hidden_sizes': '(16,)',
    'agent.unroll_length': '5',
  }
  cell = cell_lib.resolve('a3c', overrides=overrides)
  config = parameter_server.Config(num_learners=1)
  agent = cell.experiment.make_agent()
  exchange = functools.partial(
    shard_exchange.ServerExchange, config, shard_lib.places(agent, config), 0
  )
  shard = Direct(shard_lib.Shard(cell.experiment, config, 0))
  counter = make_counter(budget={'actor_steps': 10**9})
  worker = make_worker(
    cell.experiment, counter, exchange=exchange, peers={'shards': [shard]}
  )
  rollouts, prepare = [], worker._experience.prepare

  def kept(sample, updates):
    # One block, of four environments; copied, as its memory is used again.
    rollouts.append(blocks.Block(*(np.array(x[0]) for x in sample.data)))
    return prepare(sample, updates)

  worker._experience.prepare = kept
  worker.run(conftest.Ends())
  assert worker.learner.updates == len(rollouts) == UPDATES
  assert sum((x.last & (x.discount == 0)).sum() for x in rollouts) > 50
  seed = base.actor_seed(worker.members[0], 'initial from step 0')
  first, last = agent.initial(seed), worker.learner.parameters()[0]
  np.testing.assert_allclose(
    last, _mnih_et_al(first, rollouts, agent.config), atol=1e-4
  )
  assert np.abs(last - first).max() > 0.1


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

  def steps(self, node):
    """What a learner has reported of its own."""
    state = self.run.directory / 'metrics' / 'counter.json'
    if not state.exists():
      return 0
    totals = json.loads(state.read_text())['node_totals']
    return totals.get(node, {}).get('learner_steps', 0)

  def go_on(self, what):
    """Waits until both learners have done more."""
    before = {node: self.steps(node) for node in ('learner/0', 'learner/1')}
    self.run.wait_until(
      lambda: all(self.steps(node) > before[node] + 100 for node in before),
      what,
    )


@pytest.fixture(scope='module', params=list(SMALL))
def killed(request, start_run):
  run = start_run(
    request.param,
    *SMALL[request.param],
    '--config.run.steps_per_agent=400000',
    # Ends a run that nobody interrupts.
    '--config.run.wall_clock_s=200',
    '--config.server.checkpoint_period=10',
  )
  seen = _Watched(run)
  seen.go_on('learning')
  run.kill('shard/0')
  run.wait_until(
    lambda: 'Going on from update' in run.log('shard/0'), 'shard again'
  )
  seen.go_on('learning after a shard died')
  run.kill('learner/1')
  seen.go_on('learning after a learner died')
  run.kill('evaluator/0')
  run.interrupt()
  run.wait()
  return run


def test_a_killed_shard_comes_back_from_its_checkpoint(killed):
  assert len(set(killed.pids('shard/0'))) == 2
  assert 'shard/0: killed by SIGKILL' in killed.output
  (version,) = re.findall(r'Going on from update (\d+)', killed.log('shard/0'))
  assert int(version) > 0


def test_learners_wait_for_it_and_go_on(killed):
  # That it learned on is waited for. What it says of the shard depends on when
  # the shard died: in a call or between two; the tests of the exchange see it.
  log = killed.log('learner/0')
  assert len(killed.pids('learner/0')) == 1
  assert 'Traceback' not in log, log


def test_a_killed_learner_comes_back_and_disturbs_nobody(killed):
  assert len(set(killed.pids('learner/1'))) == 2
  assert 'Traceback' not in killed.log('shard/0'), killed.log('shard/0')


@pytest.mark.parametrize(
  'agent, replay',
  [
    ('gorila_dqn', 'ring'),
    pytest.param('gorila_dqn', 'colocated', marks=pytest.mark.long),
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
  rings = [*checkpoints.glob('ring-learner-*-0.npz')]
  assert len(rings) == (2 if replay == 'ring' else 0)
  for path in rings:
    with np.load(path) as saved:
      assert saved['count'] > 2000 < len(saved['rows'])
  with np.load(checkpoints / 'agents.npz') as saved:
    assert saved['theta'].shape == (1, sum(len(part) for part in parts))
  run.assert_nothing_is_left()
