"""Replay in real runs that are broken off or lose the node that holds it."""

import json
import re

import numpy as np
import pytest

from murmuration.replay import checkpoints
from murmuration.run_records import run_directory

ITEM = 2  # transitions in an item of replay
SMALL = (
  'apex_dqn',
  '--config.agent.hidden_sizes=(16,)',
  '--config.agent.batch_size=16',
  '--config.agent.min_replay_size=100',
  '--config.run.eval_episodes=2',
  '--config.run.updates_per_call=2',
  '--config.actors.num_actors=2',
  '--config.actors.envs_per_actor=2',
  f'--config.actors.transitions_per_item={ITEM}',
  '--config.run.steps_per_agent=1000000',  # who starts it ends it
)
SIGTERM = 143  # exit code
LEARNED = 'learner_steps'


def _total(run, name):
  path = run.directory / 'metrics' / 'counter.json'
  if not path.exists():
    return 0
  return json.loads(path.read_text())['totals'].get(name, 0)


def _go_on(run, name, count):
  before = _total(run, name)
  run.wait_until(lambda: _total(run, name) >= before + count, name)


def _generations(run, shard=0):
  path = run.directory / 'checkpoints' / 'replay' / f'shard_{shard}'
  return checkpoints.generations(path)


def _terminate(run):
  run.process.terminate()
  assert run.wait() == SIGTERM, run.output
  run.assert_nothing_is_left()


def _restored(run, node):
  """(generation, items) of each restore in a node's log."""
  found = re.findall(
    r'goes on from generation_0*(\d+) with (\d+) items', run.log(node)
  )
  return [(int(generation), int(items)) for generation, items in found]


# Broken off, with replay on nodes of its own, before a checkpoint is due.


@pytest.fixture(scope='module')
def broken_off(start_run):
  first = start_run(
    *SMALL,
    '--config.run.replay=node',
    '--config.run.replay_checkpoint_s=1200',
    '--config.actors.shards=2',
  )
  _go_on(first, 'actor_steps', 2500)
  _terminate(first)
  totals = run_directory.open(first.directory).summary()['totals']
  with np.load(first.directory / 'checkpoints' / 'learner-0.npz') as saved:
    updates = int(saved['updates'])
  # Saved once: by the learner, at the step where it ended.
  saved = [
    [checkpoints.read(path) for path in _generations(first, shard)]
    for shard in range(2)
  ]
  assert [len(generations) for generations in saved] == [1, 1]
  second = start_run(resume=first.directory)
  _go_on(second, LEARNED, 10)
  _terminate(second)
  return second, totals, updates, [newest for (newest,) in saved]


def test_a_run_that_is_broken_off_saves_its_replay_with_its_learner(broken_off):
  _, totals, updates, saved = broken_off
  assert totals['learner_steps'] == updates
  assert [shard.meta for shard in saved] == [{'learner_steps': updates}] * 2
  items = sum(shard.items for shard in saved)
  # But for open windows, and what each of two actors holds back or has in
  # flight (63 transitions, 200 items).
  least = totals['actor_steps'] - 2 * (63 + 200 * ITEM) - 4 * 5
  assert least <= ITEM * items <= totals['actor_steps']


@pytest.mark.parametrize('shard', [0, 1])
def test_a_resumed_run_has_its_replay_nodes_as_they_were(broken_off, shard):
  run, _, _, saved = broken_off
  node = f'replay/{shard}'
  assert _restored(run, node) == [(1, saved[shard].items)]
  assert 'lost' not in run.log(node)
  assert 'Replay was not checkpointed' not in run.log('learner/0')


# Killed while it runs, after a checkpoint.


def _kill_after_a_checkpoint(start_run, node, *flags):
  run = start_run(*SMALL, *flags, '--config.run.replay_checkpoint_s=1')
  counted = ('actor_steps', LEARNED)
  run.wait_until(lambda: _generations(run), 'checkpoint of replay')
  for name in counted:
    run.wait_until(lambda name=name: _total(run, name), name)
  # What was counted stays: it goes on from there.
  before = {name: _total(run, name) for name in counted}
  run.kill(node)
  run.wait_until(lambda: _restored(run, node), 'replay restored')
  for name, count in before.items():
    assert _total(run, name) >= count
    _go_on(run, name, 100)
  _terminate(run)
  return run


@pytest.fixture(scope='module')
def killed_shard(start_run):
  flag = '--config.run.replay=node'
  return _kill_after_a_checkpoint(start_run, 'replay/0', flag)


@pytest.fixture(scope='module')
def killed_learner(start_run):
  return _kill_after_a_checkpoint(start_run, 'learner/0')


def test_a_killed_shard_comes_back_from_its_own_checkpoint(killed_shard):
  run = killed_shard
  ((_, items),) = _restored(run, 'replay/0')
  assert ITEM * items >= 100
  assert 'what came after its checkpoint is lost' in run.log('replay/0')
  # And nobody else had to.
  assert len(run.pids('learner/0')) == 1
  assert 'Traceback' not in run.log('learner/0')


def test_a_killed_learner_comes_back_with_the_replay_that_it_hosts(
  killed_learner,
):
  run = killed_learner
  assert len(run.pids('learner/0')) == 2
  log = run.log('learner/0')
  ((_, items),) = _restored(run, 'learner/0')
  assert ITEM * items >= 100
  assert 'what came after its checkpoint is lost' in log
  (step,) = map(int, re.findall(r'Going on from learner step (\d+)', log))
  assert step > 0
  with np.load(run.directory / 'checkpoints' / 'learner-0.npz') as saved:
    assert int(saved['updates']) > step
