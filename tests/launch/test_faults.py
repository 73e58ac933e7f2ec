"""Real runs in which something dies, or goes bad, in the middle."""

import json
import pathlib
import re

import numpy as np
import pytest

from murmuration.run_records import run_directory

HERE = pathlib.Path(__file__).parent
SMALL = (
  '--config.agent.hidden_sizes=(16,)',
  '--config.agent.min_replay_size=50',
  '--config.run.eval_episodes=2',
  '--config.run.target_return=None',
  '--config.swarm.num_explorers=4',
  '--config.swarm.explorers_per_node=2',
  '--config.swarm.b=1',
  '--config.swarm.star_poll_steps=10',
)
MEMBERS, STEPS = 4, 4000


class _Killed:
  """A run that survived; what was seen at each death."""

  def __init__(self, run):
    self.run = run
    self.star_versions = {}
    self.totals = {}

  def version(self):
    path = self.run.directory / 'checkpoints' / 'star.npz'
    if not path.exists():
      return 0
    with np.load(path) as star:
      return int(star['version'])

  def rows(self, kind):
    return run_directory.RunDirectory(self.run.directory).metrics(kind)

  def steps(self):
    state = self.run.directory / 'metrics' / 'counter.json'
    return json.loads(state.read_text())['totals'].get('actor_steps', 0)

  def kill(self, node):
    """Kills a node once there is a theta_star to lose."""
    self.star_versions[node] = self.version()
    self.totals[node] = self.steps()
    self.run.kill(node)

  def go_on(self, what):
    """Waits until the swarm does more than it had when it was last asked."""
    steps = self.steps()
    self.run.wait_until(lambda: self.steps() > steps + 100, what)


@pytest.fixture(scope='module')
def killed(start_run, tmp_path_factory):
  release = tmp_path_factory.mktemp('release') / 'released'
  run = start_run(
    'pso_dqn',
    *SMALL,
    '--config.environment=faulty_environments:Slow-v0',
    f'--config.run.steps_per_agent={STEPS}',
    '--config.run.evaluations=400',
    modules=HERE,
    # Four deaths have to fit in.
    environment={'FAULTY_RELEASE': str(release), 'FAULTY_SLOW_S': '0.012'},
  )
  seen = _Killed(run)
  run.wait_until(lambda: seen.version() and seen.rows('evaluation'), 'star')
  seen.kill('explorer/0')
  run.wait_until(
    lambda: 'Starting from version' in run.log('explorer/0'),
    'explorer that starts from theta_star',
  )
  # One at a time: each is back at work before the next one dies.
  seen.kill('evaluator/0')
  evaluations = len(seen.rows('evaluation'))
  run.wait_until(
    lambda: len(seen.rows('evaluation')) > evaluations, 'evaluation'
  )
  seen.kill('star/0')
  seen.go_on('steps without a star')
  candidates = len(seen.rows('candidate'))
  run.wait_until(
    lambda: len(seen.rows('candidate')) > candidates, 'candidate tried'
  )
  seen.kill('counter/0')
  seen.go_on('steps after the counter died')
  release.touch()
  return seen, run.wait()


KILLED = (
  'explorer/0',
  'evaluator/0',
  'star/0',
  'counter/0',
)


def test_the_run_finishes_though_every_kind_of_node_was_killed(killed):
  seen, code = killed
  assert code == 0, seen.run.output
  summary = run_directory.open(seen.run.directory).summary()
  assert summary['outcome'] == 'budget'
  seen.run.assert_nothing_is_left()


@pytest.mark.parametrize('node', KILLED)
def test_a_killed_node_is_started_again_once_and_the_user_hears_why(
  killed, node
):
  run = killed[0].run
  assert len(set(run.pids(node))) == 2
  assert re.search(rf'^--- {node}, pid .*, restart 1$', run.log(node), re.M)
  assert f'{node}: killed by SIGKILL' in run.output


def test_nodes_that_nobody_killed_are_not_disturbed(killed):
  run = killed[0].run
  assert len(run.pids('explorer/1')) == 1
  assert 'Traceback' not in run.log('explorer/1')


def test_a_killed_explorer_goes_on_from_theta_star(killed):
  seen, _ = killed
  (version,) = re.findall(
    r'Starting from version (\d+) of theta_star', seen.run.log('explorer/0')
  )
  assert int(version) >= seen.star_versions['explorer/0'] >= 1


def test_no_step_is_done_twice_or_left_out(killed):
  seen, _ = killed
  totals = run_directory.open(seen.run.directory).summary()['totals']
  # What a node did since its last report died with it and is done again; a
  # report that the dying counter took but did not answer is sent again.
  assert totals['actor_steps'] == MEMBERS * STEPS
  assert totals['actor_steps'] > seen.totals['counter/0']


def test_the_star_comes_back_from_the_checkpoint(killed):
  seen, _ = killed
  log = seen.run.log('star/0')
  (version,) = re.findall(r'Went on from version (\d+) of theta_star', log)
  assert int(version) >= seen.star_versions['star/0'] >= 1
  versions = [row['version'] for row in seen.rows('star')]
  assert versions == list(range(1, len(versions) + 1))
  assert seen.version() == versions[-1]


def test_a_reward_that_is_not_a_number_fails_the_run_and_says_so(start_run):
  run = start_run(
    'pso_dqn',
    *SMALL,
    '--config.environment=faulty_environments:TurnsNaN-v0',
    modules=HERE,
  )
  assert run.wait() == 1
  run.assert_nothing_is_left()
  for part in ('Failed', 'explorer/', 'EnvironmentFault', 'reward nan'):
    assert part in run.output
  assert 'faulty_environments:TurnsNaN-v0 returned reward nan' in run.output
  assert f'In {run.directory}' in run.output
