"""More than one learner: wiring, refusals, and a real run in which they die."""

import functools
import json
import pathlib
import re

import pytest

from murmuration.agents import a2c
from murmuration.agents import dqn
from murmuration.agents import impala
from murmuration.environment_loops import environments
from murmuration.launch import actor_settings
from murmuration.launch import experience
from murmuration.launch import experiment as experiment_lib
from murmuration.launch import graph
from murmuration.launch.topologies import actor_learner
from murmuration.run_records import run_directory

MODULES = pathlib.Path(__file__).parents[1]


def _experiment(
  agent=impala.IMPALA, config=None, environment='CartPole-v1', **run
):
  config = config or impala.Config(batch_size=8, unroll_length=5)
  return experiment_lib.Experiment(
    make_agent=functools.partial(agent, config, environments.spec(environment)),
    environment=environment,
    num_agents=1,
    max_replay_size=1000,
    min_replay_size=100,
    run=experiment_lib.RunConfig(**run),
  )


def _dqn(**options):
  return _experiment(dqn.DQN, dqn.Config(hidden_sizes=(8,), **options))


def test_all_learners_sample_and_only_the_first_serves():
  program = actor_learner.build(
    _experiment(config=impala.Config(batch_size=12)),
    actor_settings.Config(num_learners=3, envs_per_actor=4),
  )
  learners = [f'learner/{i}' for i in range(3)]
  others = [*learners[1:], 'actor/0', 'actor/1', 'evaluator/0']
  assert graph.edges(program) == {
    *((node, 'counter/0') for node in [learners[0], *others]),
    # Gradients, parameters, and the queue that learner 0 hosts.
    *((node, 'learner/0') for node in others),
  }
  graph.check(program)


def test_replay_nodes_are_sampled_by_all_learners():
  program = actor_learner.build(
    _dqn(), actor_settings.Config(num_learners=2, shards=2)
  )
  assert ('learner/1', 'learner/0') in graph.edges(program)
  program = actor_learner.build(
    _experiment(dqn.DQN, dqn.Config(hidden_sizes=(8,)), replay='node'),
    actor_settings.Config(num_learners=2, shards=2),
  )
  edges = graph.edges(program)
  for learner in ('learner/0', 'learner/1'):
    assert {(learner, 'replay/0'), (learner, 'replay/1')} <= edges
  graph.check(program)


def test_each_learner_takes_its_share_and_all_together_the_batch():
  one, two = (
    experience.of_actors(
      _experiment(updates_per_call=4),
      actor_settings.Config(envs_per_actor=2, num_learners=count),
    )
    for count in (1, 2)
  )
  assert (one.batch_size, two.batch_size) == (8, 4)
  # Blocks of 2 sequences: 4 updates of 8, or of 4.
  assert one.sample_specs().reward.shape[0] == 16
  assert two.sample_specs().reward.shape[0] == 8
  # The queue is the same for all.
  assert one.plan == two.plan
  assert one.first_steps == two.first_steps


def test_transitions_are_shared_out_too():
  one, two = (
    experience.of_actors(
      _dqn(batch_size=64), actor_settings.Config(num_learners=count)
    )
    for count in (1, 2)
  )
  assert one.sample_specs().shape[0] == 2 * two.sample_specs().shape[0]
  assert one.plan == two.plan


REFUSED = [
  (
    _experiment(a2c.A2C, a2c.Config(batch_size=8)),
    {'num_actors': 1, 'num_learners': 2},
    'a2c learns on policy, and one learner may read ahead',
  ),
  (_dqn(batch_size=33), {'num_learners': 2}, 'cannot be shared out over'),
  (
    _experiment(
      config=impala.Config(batch_size=4, unroll_length=5),
      updates_per_call=1,
    ),
    {'shards': 2, 'num_learners': 2, 'envs_per_actor': 2},
    'Each of actors.num_learners=2 samples 1 items at once',
  ),
  (_dqn(), {'num_learners': 0}, 'num_learners'),
]


@pytest.mark.parametrize(
  'experiment, options, message', REFUSED, ids=[m for _, _, m in REFUSED]
)
def test_what_learners_cannot_share_is_refused(experiment, options, message):
  with pytest.raises(ValueError, match=message):
    actor_learner.build(experiment, actor_settings.Config(**options))


# A run in which learners die.

UNROLL, ENVS, UPDATES, STEPS = 5, 4, 4, 8000
SMALL = (
  '--config.agent.hidden_sizes=(16,)',
  f'--config.agent.unroll_length={UNROLL}',
  f'--config.agent.batch_size={2 * ENVS}',
  f'--config.actors.envs_per_actor={ENVS}',
  '--config.actors.num_actors=2',
  '--config.actors.num_learners=2',
  f'--config.run.updates_per_call={UPDATES}',
  '--config.run.eval_episodes=2',
  '--config.run.evaluations=2',
  '--config.run.target_return=None',
)


def _total(run, name):
  path = run.directory / 'metrics' / 'counter.json'
  if not path.exists():
    return 0
  return json.loads(path.read_text())['totals'].get(name, 0)


def _go_on(run, count, what):
  before = _total(run, 'learner_steps')
  run.wait_until(lambda: _total(run, 'learner_steps') >= before + count, what)


@pytest.fixture(scope='module')
def killed(start_run, tmp_path_factory):
  release = tmp_path_factory.mktemp('release') / 'released'
  run = start_run(
    'impala',
    *SMALL,
    '--config.environment=faulty_environments:Slow-v0',
    f'--config.run.steps_per_agent={STEPS}',
    modules=MODULES,
    # Two deaths have to fit in.
    environment={'FAULTY_RELEASE': str(release), 'FAULTY_SLOW_S': '0.012'},
  )
  _go_on(run, 2 * UPDATES, 'learning')
  run.kill('learner/1')
  _go_on(run, 2 * UPDATES, 'learning after learner 1 died')
  checkpoint = run.directory / 'checkpoints' / 'learner-0.npz'
  run.wait_until(checkpoint.exists, 'checkpoint of learner 0')
  run.kill('learner/0')
  _go_on(run, 2 * UPDATES, 'learning after learner 0 died')
  release.touch()
  return run, run.wait()


def test_a_run_finishes_though_both_learners_were_killed(killed):
  run, code = killed
  assert code == 0, run.output
  summary = run_directory.open(run.directory).summary()
  assert summary['outcome'] == 'budget'
  assert summary['totals']['actor_steps'] == STEPS
  for node, starts in (('learner/0', 2), ('learner/1', 2), ('actor/0', 1)):
    assert len(set(run.pids(node))) == starts, node
    assert 'Traceback' not in run.log(node), run.log(node)
  run.assert_nothing_is_left()


def test_who_died_takes_over_where_the_master_is(killed):
  run, _ = killed
  joined = re.findall(
    r'Learning with the others from step (\d+)', run.log('learner/1')
  )
  first, again, after_the_master = (int(step) for step in joined)
  assert first == 0 < again
  (restored,) = re.findall(
    r'Going on from learner step (\d+)', run.log('learner/0')
  )
  assert after_the_master == int(restored) > 0
  assert f'Learner 1 is back at update {again}.' in run.log('learner/0')


def test_parameters_of_all_learners_are_equal_to_the_last_bit(killed):
  run, _ = killed
  ends = [
    re.findall(
      r'Ended at learner step (\d+) with parameters (\w+)', run.log(node)
    )
    for node in ('learner/0', 'learner/1')
  ]
  assert ends[0] == ends[1] and len(ends[0]) == 1, ends
  assert 'has other parameters' not in run.log('learner/0')


def test_each_learner_uses_half_of_the_sequences(killed):
  run, _ = killed
  path = run.directory / 'metrics' / 'counter.json'
  nodes = json.loads(path.read_text())['node_totals']
  # Counted in one report, so exact though reports died with it.
  master = nodes['learner/0']
  assert master['samples'] == ENVS * master['learner_steps'] > 0
  member = nodes['learner/1']
  assert not member.get('learner_steps')
  # What it did last in its first life may not have been reported.
  joined = re.findall(
    r'Learning with the others from step (\d+)', run.log('learner/1')
  )
  (end,) = re.findall(r'Ended at learner step (\d+)', run.log('learner/1'))
  assert member['samples'] % ENVS == 0
  assert member['samples'] >= ENVS * (int(end) - int(joined[-1])) > 0
  rows = run_directory.open(run.directory).metrics('node_learner')
  assert {row['learner_rejoins'] for row in rows if 'learner_rejoins' in row}
