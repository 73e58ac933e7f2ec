"""actor_learner for real: what dies comes back, and a run can be resumed."""

import json
import pathlib
import re

import numpy as np
import pytest

from run_records import run_directory

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
    environment={'FAULTY_RELEASE': str(release)},
  )
  seen = _Watched(run)
  seen.go_on('learner_steps', 10, 'learning')
  run.kill('actor/0')
  seen.go_on('actor_steps', 100, 'steps after an actor died')
  run.kill('replay/1')
  run.wait_until(
    lambda: 'replay/1' in run.log('replay/1'), 'replay shard again'
  )
  seen.go_on('learner_steps', 10, 'learning without a shard')
  seen.go_on('actor_steps', 300, 'steps after a shard died')
  run.wait_until(seen.checkpointed, 'checkpoint of the learner')
  run.kill('learner/0')
  # It has just been started: its own first checkpoint comes 5 s later.
  seen.left = seen.checkpointed()
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
  # A report that the dying counter took but did not answer is sent again.
  assert STEPS <= summary['totals']['actor_steps'] < 1.1 * STEPS
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
  manifests = sorted(directory.glob('generation_*/manifest.json'))
  assert json.loads(manifests[-1].read_text())['items']['replay'] > 300


# A run that ended, and goes on.


@pytest.fixture(scope='module')
def resumed(start_run):
  first = start_run(*SMALL, '--config.run.steps_per_agent=1500', '--seed=5')
  code = first.wait()
  assert code == 0, first.output
  before = run_directory.open(first.directory).summary()
  with np.load(first.directory / 'checkpoints' / 'learner-0.npz') as saved:
    kept = dict(saved)
  second = start_run(
    '--config.run.steps_per_agent=3000', resume=first.directory
  )
  code = second.wait()
  assert code == 0, second.output
  return second, before, kept


def test_a_resumed_run_has_the_config_of_the_first(resumed):
  second, _, _ = resumed
  config = run_directory.open(second.directory).config()
  assert config['agent']['hidden_sizes'] == [16]
  assert config['run']['steps_per_agent'] == 3000
  assert config['seed'] == 5
  assert len(run_directory.open(second.directory).commands()) == 2


def test_a_resumed_run_counts_on(resumed):
  second, before, _ = resumed
  totals = run_directory.open(second.directory).summary()['totals']
  assert before['totals']['actor_steps'] == 1500
  assert totals['actor_steps'] == 3000
  assert totals['learner_steps'] > before['totals']['learner_steps']


def test_a_resumed_learner_starts_where_it_was(resumed):
  second, before, kept = resumed
  steps = before['totals']['learner_steps']
  assert int(kept['updates']) == steps
  assert f'Going on from learner step {steps}.' in second.log('learner/0')
  rows = run_directory.open(second.directory).metrics('evaluation')
  versions = [row['version'] for row in rows]
  assert versions == sorted(versions)
  assert versions[-1] > steps >= versions[0]


def test_a_resumed_replay_holds_what_it_held(resumed):
  second, _, _ = resumed
  (kept,) = re.findall(r'with (\d+) items', second.log('learner/0'))
  # Every step is a transition, but for the windows that were still open and
  # what the limiter kept out when the learner had ended: of each of the two
  # actors at most 63 transitions held back and 200 items in flight.
  least = 1500 - 2 * (63 + 200 * ITEM) - 4 * 5
  assert least <= ITEM * int(kept) <= 1500


@pytest.mark.parametrize(
  'flags, message',
  [
    (['--resume=nowhere'], 'nowhere'),
    (['--resume={run}', '--run_dir=other'], 'leave --run_dir out'),
  ],
)
def test_what_cannot_be_resumed_is_refused(
  resumed, run_commands, tmp_path, flags, message
):
  flags = [flag.format(run=resumed[0].directory) for flag in flags]
  (done,) = run_commands([{'argv': flags, 'cwd': str(tmp_path)}])
  assert done['code'] == 2
  assert message in done['stderr']
