"""python launch/run_swarm.py as a user runs it, and as a user gets it wrong."""

import functools
import json
import math
import pathlib
import re

import numpy as np
import pytest
from tensorboard.backend.event_processing import event_accumulator

from murmuration.agents import dqn
from murmuration.environment_loops import environments
from murmuration.run_records import commands
from murmuration.run_records import run_directory

SMALL = (
  '--config.agent.hidden_sizes=(16,)',
  '--config.agent.min_replay_size=50',
  '--config.run.steps_per_agent=400',
  '--config.run.evaluations=4',
  '--config.run.eval_episodes=2',
  '--config.run.target_return=None',
)
SWARM = (
  *SMALL,
  '--config.swarm.num_explorers=3',
  '--config.swarm.explorers_per_node=2',
  '--config.swarm.b=1',
  '--config.swarm.offer_after_updates=1',
)


def _finished(run):
  assert run.wait() == 0, run.output
  run.assert_nothing_is_left()
  return run_directory.open(run.directory)


# A whole run.


@pytest.fixture(scope='module')
def swarm(start_run):
  run = start_run(*SWARM, '--seed=3', script='run_swarm.py', fresh=True)
  return run, _finished(run)


@pytest.mark.main_job
def test_a_swarm_uses_its_budget_and_says_so(swarm):
  run, directory = swarm
  summary = directory.summary()
  assert summary['outcome'] == 'budget'
  assert summary['totals']['actor_steps'] == 3 * 400
  assert summary['totals']['learner_steps'] > 0
  assert 'Finished: the budget of 1,200 environment steps is used' in run.output
  # By the file, or by the installed command where that is not at hand.
  assert re.search(rf'evaluate(\.py)? {run.directory}', run.output)


@pytest.mark.main_job
def test_the_resolved_config_and_versions_are_kept(swarm):
  _, directory = swarm
  config = directory.config()
  assert config['environment'] == 'CartPole-v1'
  assert config['agent']['hidden_sizes'] == [16]
  assert config['swarm']['num_explorers'] == 3
  assert (config['seed'], config['agent_name']) == (3, 'pso_dqn')
  versions = json.loads((directory.path / 'versions.json').read_text())
  for package in ('python', 'tensorflow-cpu', 'dm-reverb', 'gymnasium'):
    assert re.match(r'\d+\.\d+', versions[package])
  (command,) = directory.commands()
  assert '--seed=3' in command and 'run_swarm.py' in command


@pytest.mark.main_job
def test_every_node_has_a_log(swarm):
  run, directory = swarm
  names = {path.stem for path in directory.logs.glob('*.log')}
  assert names == {
    'counter-0',
    'star-0',
    'explorer-0',
    'explorer-1',
    'evaluator-0',
  }
  assert run.log('explorer/1').startswith('--- explorer/1, pid ')
  for name in names:
    assert 'Traceback' not in run.log(name), run.log(name)


@pytest.mark.main_job
def test_rows_of_all_kinds_are_kept(swarm):
  _, directory = swarm
  # One for each quarter of the budget that somebody saw, and one at the end.
  evaluations = directory.metrics('evaluation')
  assert evaluations and evaluations[-1]['version'] >= 1
  for row in evaluations:
    assert len(row['returns']) == 2
    assert row['return_mean'] == pytest.approx(np.mean(row['returns']))
  stars = directory.metrics('star')
  assert [row['version'] for row in stars] == list(range(1, len(stars) + 1))
  records = [row['R_star'] for row in stars]
  assert records and all(math.isfinite(record) for record in records)
  assert {row['explorer'] for row in stars} <= {0, 1, 2}
  candidates = directory.metrics('candidate')
  assert sum(row['accepted'] for row in candidates) == len(stars)
  assert all(math.isfinite(row['trial_mean']) for row in candidates)
  episodes = directory.metrics('supervisor')
  trials = [row for row in episodes if row['kind'] == 'trial']
  # b + 1 = 2 for each; the row of the last one may come after the end.
  assert len(trials) >= 2 * len(candidates) - 1 >= 1
  explorer = directory.metrics('node_explorer')
  assert {row['node'] for row in explorer} == {'explorer/0', 'explorer/1'}
  for name in (
    'episode_return',
    'loss',
    'replay_size',
    'spread',
    'star_distance',
  ):
    assert any(name in row for row in explorer), name
  server = directory.metrics('node_star')[-1]
  for name in ('R_star', 'c', 'x', 'accepted', 'rejected', 'waiting_claim'):
    assert name in server


@pytest.mark.main_job
def test_tensorboard_reads_what_the_json_lines_say(swarm):
  _, directory = swarm
  events = event_accumulator.EventAccumulator(str(directory.metrics_directory))
  events.Reload()
  found = [
    (event.step, event.value)
    for event in events.Scalars('evaluation/return_mean')
  ]
  rows = directory.metrics('evaluation')
  assert [step for step, _ in found] == [row['actor_steps'] for row in rows]
  np.testing.assert_allclose(
    [value for _, value in found], [row['return_mean'] for row in rows]
  )
  tags = events.Tags()['scalars']
  assert 'explorer_0/actor_steps_per_s' in tags
  assert 'star/R_star' in tags


@pytest.mark.main_job
def test_the_kept_star_is_a_policy_that_plays(swarm):
  _, directory = swarm
  agent = dqn.DQN(
    dqn.Config(hidden_sizes=(16,)), environments.spec('CartPole-v1')
  )
  with np.load(directory.checkpoints / 'star.npz') as star:
    theta, version = star['theta'], int(star['version'])
  assert theta.shape == (agent.layout.size,) and np.isfinite(theta).all()
  assert version == directory.metrics('star')[-1]['version']
  actions = agent.greedy(theta)(np.zeros((5, 4), np.float32))
  assert actions.shape == (5,) and set(actions) <= {0, 1}


@pytest.mark.main_job
def test_a_learning_curve_is_drawn(swarm):
  _, directory = swarm
  picture = (directory.path / 'learning_curve.png').read_bytes()
  assert picture.startswith(b'\x89PNG') and len(picture) > 5_000


@pytest.mark.main_job
def test_plain_lines_show_the_run_where_there_is_no_terminal(swarm):
  run, _ = swarm
  assert '\x1b' not in run.output
  assert re.search(r'\] running: .*explorer/0', run.output)
  assert re.search(r'1,200 of 1,200 env steps.*R\* .*accepted', run.output)


# Other forms of it.


def test_two_agents_without_a_swarm_share_a_worker(start_run):
  run = start_run('dqn', *SMALL, '--config.single.num_agents=2')
  directory = _finished(run)
  assert directory.config()['agent_name'] == 'dqn'
  assert directory.summary()['totals']['actor_steps'] == 800
  rows = directory.metrics('evaluation')
  steps = [row['actor_steps_per_member'] for row in rows]
  assert steps[0] == 0 and steps[-1] == 400 and len(steps) == 5
  assert {len(row['member_returns']) for row in rows} == {2}
  with np.load(directory.checkpoints / 'agents.npz') as saved:
    assert saved['theta'].shape[0] == 2 and saved['steps'] == 400
  assert not directory.metrics('star')
  assert {path.stem for path in directory.logs.iterdir()} == {
    'counter-0',
    'worker-0',
  }
  assert (directory.path / 'learning_curve.png').exists()


def test_ctrl_c_is_130_says_what_was_kept_and_leaves_nothing(start_run):
  run = start_run(
    *SWARM, '--config.run.steps_per_agent=10000000', script='run_swarm.py'
  )
  star = run.directory / 'checkpoints' / 'star.npz'
  run.wait_until(star.exists, 'theta_star')
  run.interrupt()
  assert run.wait() == 130
  run.assert_nothing_is_left()
  assert 'Interrupted' in run.output
  assert f'In {run.directory}' in run.output
  kept = run.output.partition(f'In {run.directory}')[2]
  for name in ('summary.json', 'metrics', 'logs', 'checkpoints'):
    assert name in kept
  directory = run_directory.open(run.directory)
  assert directory.summary()['outcome'] == 'stopped'
  assert directory.metrics('star')
  with np.load(star) as saved:
    assert np.isfinite(saved['theta']).all()


# What cannot work: one sentence, exit code 2, nothing written.

REFUSED = {
  'unknown environment': (
    ['--config.environment=CartPol-v1'],
    ['CartPol-v1', 'CartPole-v1'],
  ),
  'continuous actions': (
    ['--config.environment=Pendulum-v1'],
    ['Pendulum-v1 takes continuous actions', 'CartPole-v1'],
  ),
  'negative explorers': (
    ['--config.swarm.num_explorers=-1'],
    ['num_explorers=-1', 'from 1 to'],
  ),
  'negative steps': (
    ['--config.run.steps_per_agent=-5'],
    ['steps_per_agent=-5', 'a whole number from 1 to'],
  ),
  'b of 0': (['--config.swarm.b=0'], ['swarm.b=0', '--config.swarm.b']),
  'negative batch': (['--config.agent.batch_size=-4'], ['batch_size=-4']),
  'negative time': (['--config.run.wall_clock_s=-1'], ['wall_clock_s=-1']),
  'a window that no trial fits': (['--config.swarm.window=3'], ['window=3']),
  'misspelt key': (
    ['--config.swarm.num_explorer=3'],
    ['swarm.num_explorers '],
  ),
  'too few steps': (
    ['--config.run.steps_per_agent=100'],
    ['steps_per_agent=100', 'learning begins after 505 steps'],
  ),
  'replay too small': (
    ['--config.agent.max_replay_size=10'],
    ['min_replay_size=500 must be at most agent.max_replay_size=10'],
  ),
}
DIRECTORIES = {
  'a run is there': (['--run_dir=old'], 'run', ['already holds a run']),
  'a run is there, and a sink': (
    ['--run_dir=old', '--sink=murmuration.run_records.sinks:Sink'],
    'run',
    ['already holds a run'],
  ),
  'something else is there': (['--run_dir=other'], 'run', ['holds thesis.txt']),
  'a file is there': (['--run_dir=file'], 'run', ['--run_dir']),
  'a file is above': (['--run_dir=file/run'], 'run', ['--run_dir']),
  'full disk': (['--run_dir=new'], 'disk_full', ['5 MB free', '200 MB']),
  'full disk, default': ([], 'disk_full', ['5 MB free', 'runs/pso_dqn']),
  'no right to write': (['--run_dir=new'], 'read_only', ['may not write']),
}


def _everything_in(directory):
  return {
    str(path.relative_to(directory)): path.read_bytes()
    if path.is_file()
    else None
    for path in sorted(pathlib.Path(directory).rglob('*'))
  }


@pytest.fixture(scope='module')
def refusals(run_commands, tmp_path_factory):
  """Answers to all wrong commands, and whether they wrote anything."""
  cwd = tmp_path_factory.mktemp('cwd')
  run_directory.create(cwd / 'old', {'kept': True}, {}, command='before')
  (cwd / 'other').mkdir()
  (cwd / 'other' / 'thesis.txt').write_text('all of it')
  (cwd / 'file').write_text('mine')
  before = _everything_in(cwd)
  case = functools.partial(dict, cwd=str(cwd))
  cases = {name: case(argv=argv) for name, (argv, _) in REFUSED.items()}
  cases['help'] = case(argv=['--help'])
  for name, (argv, mode, _) in DIRECTORIES.items():
    cases[name] = case(argv=argv, mode=mode)
  answers = dict(
    zip(
      cases,
      run_commands(list(cases.values()), script='run_swarm.py'),
      strict=True,
    )
  )
  assert _everything_in(cwd) == before
  return answers


@pytest.mark.parametrize('name', sorted({**REFUSED, **DIRECTORIES}))
def test_a_command_that_cannot_work_is_refused(refusals, name):
  answer = refusals[name]
  assert answer['code'] == commands.USAGE, answer
  assert answer['stdout'] == ''
  assert answer['stderr'].startswith('error: ')
  assert len(answer['stderr'].splitlines()) <= 10, answer['stderr']
  for part in (REFUSED.get(name) or DIRECTORIES[name])[-1]:
    assert part in answer['stderr']


def test_a_refusal_of_the_real_command_leaves_no_directory(start_run):
  run = start_run(
    '--config.environment=CartPol-v1', script='run_swarm.py', fresh=True
  )
  assert run.wait() == commands.USAGE
  assert run.output.startswith('error: Unknown environment')
  assert not run.directory.exists()
  run.assert_nothing_is_left()


def test_help_shows_the_flags_that_a_user_needs(refusals):
  text = refusals['help']['stdout']
  assert 'Runs the swarm' in text
  for name in ('--run_dir', '--seed', '--lp_launch_type', '--topology'):
    assert name in text, name
