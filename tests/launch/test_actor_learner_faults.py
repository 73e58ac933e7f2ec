"""actor_learner for real: what dies comes back."""

import json
import pathlib
import re

import numpy as np
import pytest

from murmuration.replay import checkpoints
from murmuration.run_records import run_directory

HERE = pathlib.Path(__file__).parent
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
)
STEPS = 6000


class _Watched:
  """A run, and what it has done so far."""

  def __init__(self, run):
    self.run = run
    self.left = 0  # learner step of the checkpoint that a dead learner left

  def total(self, name):
    state = self.run.directory / 'metrics' / 'counter.json'
    if not state.exists():
      return 0
    return json.loads(state.read_text())['totals'].get(name, 0)

  def go_on(self, name, count, what):
    before = self.total(name)
    self.run.wait_until(lambda: self.total(name) > before + count, what)

  def checkpointed(self):
    path = self.run.directory / 'checkpoints' / 'learner-0.npz'
    if not path.exists():
      return 0
    with np.load(path) as saved:
      return int(saved['updates'])


@pytest.fixture(scope='module')
def killed(start_run, tmp_path_factory):
  release = tmp_path_factory.mktemp('release') / 'released'
  run = start_run(
    *SMALL,
    '--config.environment=faulty_environments:Slow-v0',
    f'--config.run.steps_per_agent={STEPS}',
    '--config.run.replay=node',
    '--config.actors.shards=2',
    modules=HERE,
    # Five deaths have to fit in.
    environment={'FAULTY_RELEASE': str(release), 'FAULTY_SLOW_S': '0.012'},
  )
  seen = _Watched(run)
  seen.go_on('learner_steps', 10, 'learning')
  run.kill('actor/0')
  seen.go_on('actor_steps', 100, 'steps after an actor died')
  run.kill('replay/1')
  seen.go_on('learner_steps', 10, 'learning without a shard')
  seen.go_on('actor_steps', 300, 'steps after a shard died')
  run.wait_until(seen.checkpointed, 'checkpoint of the learner')
  seen.left = run.kill('learner/0', seen.checkpointed)
  seen.go_on('learner_steps', 10, 'learning after the learner died')
  run.kill('counter/0')
  seen.go_on('actor_steps', 100, 'steps after the counter died')
  run.kill('evaluator/0')
  release.touch()
  return seen, run.wait()


def test_the_run_finishes_though_every_kind_of_node_was_killed(killed):
  seen, code = killed
  assert code == 0, seen.run.output
  summary = run_directory.open(seen.run.directory).summary()
  assert summary['outcome'] == 'budget'
  assert summary['totals']['actor_steps'] == STEPS
  seen.run.assert_nothing_is_left()


@pytest.mark.parametrize(
  'node', ['actor/0', 'replay/1', 'learner/0', 'counter/0', 'evaluator/0']
)
def test_a_killed_node_is_started_again_once(killed, node):
  run = killed[0].run
  assert len(set(run.pids(node))) == 2
  assert f'{node}: killed by SIGKILL' in run.output


@pytest.mark.parametrize('node', ['actor/1', 'replay/0'])
def test_nobody_else_is_disturbed(killed, node):
  run = killed[0].run
  assert len(run.pids(node)) == 1
  assert 'Traceback' not in run.log(node), run.log(node)


def test_a_killed_learner_goes_on_from_its_checkpoint(killed):
  seen, _ = killed
  (step,) = re.findall(
    r'Going on from learner step (\d+)', seen.run.log('learner/0')
  )
  assert int(step) == seen.left > 0
  # Its own steps since then are done again, and counted again.
  assert seen.checkpointed() > int(step)


def test_a_lost_shard_says_what_is_gone_and_fills_again(killed):
  run = killed[0].run
  assert 'what it held is lost' in run.log('replay/1')
  assert 'what it held is lost' not in run.log('replay/0')
  assert 'Traceback' not in run.log('learner/0'), run.log('learner/0')
  directory = run.directory / 'checkpoints' / 'replay' / 'shard_1'
  newest = checkpoints.generations(directory)[0]
  assert checkpoints.read(newest).items > 300
