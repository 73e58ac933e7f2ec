"""A2C by the command: presets, and real runs."""

import dataclasses
import json
import pathlib
import re

import numpy as np
import pytest

from murmuration.launch import cell as cell_lib
from murmuration.launch import experience
from murmuration.launch import registry
from murmuration.launch.topologies import actor_learner
from murmuration.run_records import run_directory


def _parts(preset=''):
  cell = cell_lib.resolve('a2c', preset)
  return cell.experiment, cell.sections['actors']


@pytest.mark.parametrize('preset', registry.agent('a2c').presets)
def test_a_preset_makes_one_update_of_one_block(preset):
  experiment, config = _parts(preset)
  found = experience.of_actors(experiment, config)
  assert (config.num_actors, found.updates_per_call) == (1, 1)
  assert found.plan.batch_size == 1
  unroll = experiment.make_agent().unroll_length
  assert found.acting_steps == unroll * config.envs_per_actor


def test_blocks_that_actors_cannot_share_are_refused():
  experiment, config = _parts()
  config = dataclasses.replace(config, num_actors=2)
  with pytest.raises(ValueError, match='cannot be shared out') as caught:
    actor_learner.build(experiment, config)
  # Of what the agent has, and what mends it.
  assert 'rollout' not in str(caught.value)
  assert 'agent.batch_size be a multiple of num_act' in str(caught.value)
  chosen = {'actors.num_actors': '2', 'agent.batch_size': '32'}
  cell_lib.resolve('a2c', overrides=chosen).build()


def test_a_batch_of_part_of_a_block_names_what_may_be_set():
  overrides = {'agent.batch_size': '8'}
  with pytest.raises(ValueError, match='actors.envs_per_actor') as caught:
    cell_lib.resolve('a2c', overrides=overrides).build()
  assert 'updates_per_call' not in str(caught.value)
  overrides['actors.envs_per_actor'] = '8'
  cell_lib.resolve('a2c', overrides=overrides).build()


def test_actors_are_never_behind_and_every_block_is_learned_from(start_run):
  # Two actors of 8: each update waits for both, and both wait for it.
  run = start_run(
    'a2c',
    '--config.actors.num_actors=2',
    '--config.actors.envs_per_actor=8',
    '--config.run.steps_per_agent=16000',
    '--config.run.target_return=None',
    '--config.run.evaluations=2',
    '--config.run.eval_episodes=2',
  )
  assert run.wait() == 0, run.output
  run.assert_nothing_is_left()
  directory = run_directory.open(run.directory)
  assert directory.config()['agent_name'] == 'a2c'
  rows = directory.metrics('node_learner')
  # The first is of the time before the first rollout.
  rows = [row for row in rows if 'loss' in row]
  assert rows and {row['policy_lag_max'] for row in rows} == {0}
  # Zero lag: pi is mu.
  assert max(row['rho_deviation'] for row in rows) < 1e-3
  totals = directory.summary()['totals']
  assert totals['actor_steps'] == 16000
  # 80 steps each; the last may come after the budget is used.
  assert 16000 // 80 - 1 <= totals['learner_steps'] <= 16000 // 80
  with np.load(directory.checkpoints / 'agents.npz') as saved:
    assert np.isfinite(saved['theta']).all()


# Deaths in the middle of a rollout: whoever waits must not wait for ever.

STEPS = 6000


@pytest.fixture(scope='module')
def killed(start_run, tmp_path_factory):
  release = tmp_path_factory.mktemp('release') / 'released'
  run = start_run(
    'a2c',
    '--config.environment=faulty_environments:Slow-v0',
    '--config.agent.hidden_sizes=(16,)',
    '--config.agent.batch_size=8',
    '--config.actors.num_actors=2',
    '--config.actors.envs_per_actor=4',
    f'--config.run.steps_per_agent={STEPS}',
    '--config.run.target_return=None',
    '--config.run.evaluations=2',
    '--config.run.eval_episodes=2',
    modules=pathlib.Path(__file__).parent,
    # Two deaths have to fit in.
    environment={'FAULTY_RELEASE': str(release), 'FAULTY_SLOW_S': '0.012'},
  )

  def updates():
    path = run.directory / 'metrics' / 'counter.json'
    if not path.exists():
      return 0
    return json.loads(path.read_text())['totals'].get('learner_steps', 0)

  def go_on(what):
    before = updates()
    run.wait_until(lambda: updates() >= before + 3, what)

  go_on('learning')
  run.kill('actor/0')
  go_on('learning after an actor died')
  checkpoint = run.directory / 'checkpoints' / 'learner-0.npz'
  run.wait_until(checkpoint.exists, 'checkpoint of the learner')
  run.kill('learner/0')
  go_on('learning after the learner died')
  release.touch()
  return run, run.wait()


def test_on_policy_a_run_finishes_though_actor_and_learner_died(killed):
  run, code = killed
  assert code == 0, run.output
  directory = run_directory.open(run.directory)
  summary = directory.summary()
  assert summary['outcome'] == 'budget'
  assert summary['totals']['actor_steps'] == STEPS
  for node, starts in (('actor/0', 2), ('learner/0', 2), ('actor/1', 1)):
    assert len(set(run.pids(node))) == starts, node
    assert 'Traceback' not in run.log(node), run.log(node)
  (step,) = re.findall(
    r'Going on from learner step (\d+)', run.log('learner/0')
  )
  with np.load(directory.checkpoints / 'learner-0.npz') as saved:
    assert int(saved['updates']) > int(step) > 0
    assert np.isfinite(saved['theta']).all()
  run.assert_nothing_is_left()


def test_on_policy_deaths_leave_a_lag_of_two_updates_at_most(killed):
  # A block that outlived its actor is learned with the next rollout, and one of
  # each after it. The queue dies with the learner; but each actor may write the
  # block that it was at to the next queue. While one acts, the other then makes
  # an update for each of these two, and none without it after them.
  rows = run_directory.open(killed[0].directory).metrics('node_learner')
  lags = [row['policy_lag_max'] for row in rows if 'policy_lag_max' in row]
  assert lags and max(lags) <= 2
