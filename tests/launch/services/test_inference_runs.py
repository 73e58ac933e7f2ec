"""Central inference for real: programs whose server and actors are killed."""

import json
import pathlib

import pytest

from murmuration.run_records import run_directory

MODULES = pathlib.Path(__file__).parents[1]
ENVS, UNROLL, STEPS = 4, 5, 6000
COMMON = (
  '--config.agent.hidden_sizes=(16,)',
  '--config.environment=faulty_environments:Slow-v0',
  '--config.actors.inference=central',
  f'--config.actors.envs_per_actor={ENVS}',
  # Both actors: half of them would be one.
  f'--config.actors.inference_max_batch={2 * ENVS}',
  '--config.run.eval_episodes=2',
  '--config.run.evaluations=2',
  '--config.run.target_return=None',
)
RUNS = {
  # Parameters stand still: then pi / mu is 1, if each block belongs together.
  'impala': (
    f'--config.agent.unroll_length={UNROLL}',
    f'--config.agent.batch_size={ENVS}',
    '--config.agent.lstm_size=8',
    '--config.agent.stack=2',
    '--config.agent.learning_rate=1e-12',
    '--config.run.updates_per_call=4',
    f'--config.run.steps_per_agent={STEPS}',
  ),
  'apex_dqn': (
    '--config.agent.batch_size=16',
    '--config.agent.min_replay_size=100',
    '--config.pace.samples_per_insert=8.0',
    f'--config.run.steps_per_agent={STEPS}',
  ),
}


@pytest.fixture(scope='module', params=RUNS)
def killed(request, start_run, tmp_path_factory):
  release = tmp_path_factory.mktemp('release') / 'released'
  run = start_run(
    request.param,
    *COMMON,
    *RUNS[request.param],
    modules=MODULES,
    # Two deaths have to fit in.
    environment={'FAULTY_RELEASE': str(release), 'FAULTY_SLOW_S': '0.012'},
  )
  path = run.directory / 'metrics' / 'counter.json'

  def total(name):
    return json.loads(path.read_text())['totals'].get(name, 0)

  def go_on(name, count, what):
    before = total(name)
    run.wait_until(lambda: total(name) >= before + count, what)

  run.wait_until(path.exists, 'counter')
  go_on('learner_steps', 4, 'learning')
  run.kill('inference/0')
  go_on('actor_steps', 200, 'steps after the server died')
  go_on('learner_steps', 4, 'learning after the server died')
  run.kill('actor/0')
  go_on('actor_steps', 200, 'steps after an actor died')
  release.touch()
  return request.param, run, run.wait()


def test_the_run_finishes_and_leaves_nothing(killed):
  _, run, code = killed
  assert code == 0, run.output
  summary = run_directory.open(run.directory).summary()
  assert summary['outcome'] == 'budget'
  assert summary['totals']['actor_steps'] >= STEPS
  run.assert_nothing_is_left()


def test_who_was_killed_is_started_again_and_nobody_else(killed):
  _, run, _ = killed
  for node in ('inference/0', 'actor/0'):
    assert len(set(run.pids(node))) == 2
    assert f'{node}: killed by SIGKILL' in run.output
  for node in ('actor/1', 'learner/0', 'evaluator/0', 'counter/0'):
    assert len(run.pids(node)) == 1
    assert 'Traceback' not in run.log(node), run.log(node)


def test_an_actor_says_once_that_its_episodes_begin_anew(killed):
  _, run, _ = killed
  assert run.log('actor/1').count('All episodes begin anew') == 1


def test_what_it_reports_is_in_the_metrics(killed):
  _, run, _ = killed
  rows = run_directory.open(run.directory).metrics('node_inference')
  rows = [row for row in rows if 'mean_batch' in row]
  assert max(row['mean_batch'] for row in rows) > ENVS
  for row in rows:
    assert ENVS <= row['mean_batch'] <= 2 * ENVS
    assert row['wait_ms'] >= row['pass_ms'] > 0


def test_the_lag_of_the_policy_is_known(killed):
  agent, run, _ = killed
  rows = run_directory.open(run.directory).metrics('node_learner')
  rows = [row for row in rows if 'policy_lag' in row]
  assert rows and min(row['policy_lag'] for row in rows) >= 0
  if agent == 'impala':
    # On an idle machine at most 20; on a busy one the server is late to look.
    updates = STEPS // (ENVS * UNROLL)
    assert max(row['policy_lag_max'] for row in rows) <= updates / 2
    assert max(row['rho_deviation'] for row in rows) < 1e-4
