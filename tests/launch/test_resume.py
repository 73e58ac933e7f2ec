"""Runs of one process and swarms that ended, and go on: `--resume`."""

import os
import re
import shutil

import numpy as np
import pytest

from murmuration.agents import dqn
from murmuration.run_records import commands
from murmuration.run_records import launcher
from murmuration.run_records import run_directory

SMALL = (
  '--config.agent.hidden_sizes=(16,)',
  '--config.run.eval_episodes=2',
  '--config.run.evaluations=4',
  '--config.run.target_return=None',
  '--seed=5',
)
DQN = (*SMALL, '--config.agent.min_replay_size=50')
SWARM = (
  '--config.swarm.num_explorers=3',
  '--config.swarm.b=1',
  '--config.swarm.offer_after_updates=1',
)
STEPS, MORE = 512, 1024
# Flags; nodes and their members.
RUNS = {
  'baseline': (
    ('dqn', *DQN, '--config.single.num_agents=2'),
    {'worker/0': 2},
  ),
  'swarm': (('pso_dqn', *DQN, *SWARM), {'explorer/0': 3}),
}


class _Kept:
  """What a run had when it ended first."""

  def __init__(self, run):
    directory = run_directory.open(run.directory)
    self.summary = directory.summary()
    self.evaluations = len(directory.metrics('evaluation'))
    self.learners = {}
    for path in directory.checkpoints.glob('[!r]*-[0-9].npz'):  # no ring-*
      with np.load(path) as saved:
        self.learners[path.stem.replace('-', '/')] = dict(saved)


@pytest.fixture(scope='module')
def resumed(start_run):
  """Name to (what the first start kept, the resumed run), run side by side."""
  first = {
    name: start_run(*flags, f'--config.run.steps_per_agent={STEPS}')
    for name, (flags, _) in RUNS.items()
  }
  for run in first.values():
    assert run.wait() == 0, run.output
  kept = {name: _Kept(run) for name, run in first.items()}
  # Without a name: the run knows what it is.
  more = f'--config.run.steps_per_agent={MORE}'
  second = {
    name: start_run(more, resume=run.directory) for name, run in first.items()
  }
  for run in second.values():
    assert run.wait() == 0, run.output
    run.assert_nothing_is_left()
  return {name: (kept[name], run) for name, run in second.items()}


@pytest.mark.parametrize('name', RUNS)
def test_a_resumed_run_counts_on_to_its_new_budget(resumed, name):
  before, run = resumed[name]
  members = sum(RUNS[name][1].values())
  assert before.summary['totals']['actor_steps'] == members * STEPS
  totals = run_directory.open(run.directory).summary()['totals']
  assert totals['actor_steps'] == members * MORE
  assert totals['learner_steps'] > before.summary['totals']['learner_steps']


@pytest.mark.parametrize('name', RUNS)
def test_resumed_learners_go_on_from_where_they_were(resumed, name):
  before, run = resumed[name]
  nodes = RUNS[name][1]
  assert set(before.learners) == set(nodes)
  for node, members in nodes.items():
    learner = before.learners[node]
    assert learner['theta'].shape[0] == members
    steps = int(learner['updates'])
    assert steps > 0
    assert f'Going on from learner step {steps}.' in run.log(node)
    path = run.directory / 'checkpoints' / f'{node.replace("/", "-")}.npz'
    with np.load(path) as after:
      # Twice the environment steps: about twice the updates, and not anew.
      assert int(after['updates']) > 1.5 * steps
  total = sum(int(learner['updates']) * nodes[node]
              for node, learner in before.learners.items())  # fmt: skip
  assert total == before.summary['totals']['learner_steps']


@pytest.mark.parametrize('name', RUNS)
def test_replay_comes_back_with_them(resumed, name):
  _, run = resumed[name]
  for node in RUNS[name][1]:
    (items,) = re.findall(
      r'goes on (?:from .* )?with (\d+) items', run.log(node)
    )
    # An item is a step of all members; windows that were open are lost.
    assert int(items) == STEPS - dqn.Config().n_step + 1


@pytest.mark.parametrize('name', RUNS)
def test_evaluations_go_on_where_they_were(resumed, name):
  before, run = resumed[name]
  rows = run_directory.open(run.directory).metrics('evaluation')
  # By when they were played: the newest goes before those that wait.
  steps = [row['actor_steps_per_member'] for row in rows]
  assert max(steps) >= MORE
  assert len(rows) > before.evaluations
  assert min(steps[before.evaluations :]) >= STEPS
  # What it ended with is not played again. A star that became another one after
  # the last step is: it is played at that step too.
  played = [*zip(steps, (row.get('version', 0) for row in rows))]
  assert sorted(set(played)) == sorted(played)


def test_a_run_keeps_what_it_is(resumed):
  found = {
    name: run_directory.open(run.directory).config()
    for name, (_, run) in resumed.items()
  }
  assert found['baseline']['agent_name'] == 'dqn'
  assert found['baseline']['single']['num_agents'] == 2
  assert 'swarm' not in found['baseline']
  assert found['swarm']['swarm']['num_explorers'] == 3
  assert found['baseline']['seed'] == found['swarm']['seed'] == 5


def test_a_run_of_another_kind_is_refused(resumed, run_commands, request):
  cwd = str(request.config.rootpath)
  directory = resumed['swarm'][1].directory
  more = {
    '--topology=single_process': 'leave --topology out',
    'impala': 'leave impala out',
    '--config.agent.n_step=1': 'agent.n_step',
  }
  answers = run_commands(
    [
      {'argv': [f'--resume={directory}', word], 'cwd': cwd, 'mode': 'no_start'}
      for word in more
    ]
  )
  for answer, said in zip(answers, more.values(), strict=True):
    assert answer['code'] == commands.USAGE, answer
    assert said in answer['stderr']


def test_a_run_that_still_goes_is_refused(resumed, run_commands, request):
  directory = resumed['swarm'][1].directory
  command = {
    'argv': [f'--resume={directory}'],
    'cwd': str(request.config.rootpath),
    'mode': 'no_start',
  }
  with launcher.claim(directory):  # as if it ran in this process
    (answer,) = run_commands([command])
  assert answer['code'] == commands.USAGE, answer
  assert f'still running, as process {os.getpid()}' in answer['stderr']


def test_a_run_that_is_broken_is_refused_before_a_sink_begins(
  resumed, run_commands, request, tmp_path
):
  directory = tmp_path / 'run'
  shutil.copytree(resumed['swarm'][1].directory, directory)
  for generation in directory.rglob('star_server.*'):
    generation.write_bytes(b'of a disk that was full')
  command = {
    'argv': [
      f'--resume={directory}',
      '--sink=murmuration.run_records.sinks:Sink',
    ],
    'cwd': str(request.config.rootpath),
    'mode': 'no_start',
  }
  (answer,) = run_commands([command])
  assert answer['code'] == commands.USAGE, answer
  assert 'star' in answer['stderr']
  assert not (directory / 'sinks').exists()
