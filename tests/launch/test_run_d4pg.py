"""D4PG by the command: presets, a real run with actors, and refusals."""

import gymnasium
import numpy as np
import pytest

from murmuration.agents import d4pg
from murmuration.environment_loops import environments
from murmuration.launch import cell as cell_lib
from murmuration.launch import registry
from murmuration.run_records import commands
from murmuration.run_records import run_directory

NETWORK = {'policy_sizes': (16,), 'critic_sizes': (16,)}
SMALL = (
  'd4pg:inverted_pendulum',
  *(f'--config.agent.{name}={sizes}' for name, sizes in NETWORK.items()),
  '--config.agent.batch_size=16',
  '--config.agent.min_replay_size=100',
  '--config.run.eval_episodes=2',
  '--config.run.evaluations=2',
  '--config.pace.samples_per_insert=4',
)


# Presets.


def _config(preset):
  return cell_lib.resolve('d4pg', preset).sections['agent']


# Why a preset does not know its smallest or largest reward.
UNKNOWN = {
  ('inverted_double_pendulum', 'reward_min'): 'costs of any velocity',
  ('hopper', 'reward_min'): 'forward velocity',
  ('hopper', 'reward_max'): 'forward velocity',
  ('swimmer', 'reward_min'): 'forward velocity',
  ('swimmer', 'reward_max'): 'forward velocity',
  ('pusher', 'reward_min'): 'the distance of an object that slides away',
  ('humanoid_standup', 'reward_max'): 'height over the duration of a step',
}
# Chosen by trial, although the worst rewards do not fit.
NARROW = {
  'reacher': 'reward_min=-2.41 are worth 1 * -2.41 / (1 - 0.95) = -48.2'
}


@pytest.mark.parametrize('preset', registry.agent('d4pg').presets)
def test_a_preset_knows_its_rewards_and_its_support_holds_them(preset):
  config = _config(preset)
  for name in ('reward_min', 'reward_max'):
    known = getattr(config, name) is not None
    assert known != ((preset, name) in UNKNOWN), name
  narrow = d4pg.narrow_support(config)
  if preset in NARROW:
    assert narrow is not None and NARROW[preset] in narrow
  else:
    assert narrow is None


@pytest.mark.parametrize(
  ('preset', 'num_steps'), [('pendulum', 600), ('reacher', 600)]
)
def test_rewards_are_between_those_that_a_preset_states(preset, num_steps):
  cell = cell_lib.resolve('d4pg', preset)
  config = cell.sections['agent']
  environment = gymnasium.make(cell.experiment.environment)
  rng, rewards = np.random.default_rng(0), []
  space = environment.action_space
  for step in range(num_steps):
    if step % 50 == 0:
      environment.reset(seed=step)
    # The ends of the range cost most.
    action = rng.choice([space.low, space.high])
    rewards.append(environment.step(action)[1])
  environment.close()
  assert config.reward_min <= min(rewards) and max(rewards) <= config.reward_max
  # And are not a bound that says nothing.
  assert min(rewards) < 0.9 * config.reward_min


# A real run.


def _finished(run, budget):
  assert run.wait() == 0, run.output
  run.assert_nothing_is_left()
  directory = run_directory.open(run.directory)
  summary = directory.summary()
  assert summary['outcome'] == 'budget'
  assert summary['totals']['actor_steps'] == budget
  assert summary['totals']['learner_steps'] > 0
  run.assert_no_traceback()
  config = directory.config()
  assert config['agent_name'] == 'd4pg'
  rows = directory.metrics('evaluation')
  assert rows and np.isfinite([row['return_mean'] for row in rows]).all()
  return directory


def _kept(directory, **options):
  """The agent of a run, and the parameters that it came to."""
  agent = d4pg.D4PG(
    d4pg.Config(**NETWORK, **options), environments.spec('InvertedPendulum-v5')
  )
  with np.load(directory.checkpoints / 'agents.npz') as saved:
    (theta,) = saved['theta']
  assert theta.shape == (agent.layout.size,) and np.isfinite(theta).all()
  actions = agent.greedy(theta)(np.ones((5, 4), np.float32))
  assert actions.shape == (5, 1)
  return agent, theta


def test_actors_and_a_learner_with_prioritized_replay(start_run):
  run = start_run(
    *SMALL,
    '--config.actors.envs_per_actor=2',
    '--config.agent.prioritized=True',
    '--config.run.steps_per_agent=1500',
  )
  directory = _finished(run, 1500)
  assert {path.stem for path in directory.logs.glob('*.log')} == {
    'counter-0',
    'learner-0',
    'actor-0',
    'actor-1',
    'evaluator-0',
  }
  row = directory.metrics('node_learner')[-1]
  assert row['policy_lag'] >= 0 and row['skipped_updates'] == 0
  assert 0 <= row['target_clipped'] <= 1
  # Priorities come from the learner: the largest has left its first value 1,
  # since critics that know nothing expect 50 and the rewards say 1.
  agent, theta = _kept(directory, prioritized=True)
  assert theta[agent.layout.groups['priority']][0] > 1.0


# What cannot work: one sentence, exit code 2.

REFUSED = {
  'discrete actions': (
    ['--config.environment=CartPole-v1'],
    ['CartPole-v1 takes 2 discrete actions, but D4PG needs continuous'],
  ),
  'unbounded actions': (
    ['--config.environment=unbounded_environment:Unbounded-v0'],
    ['Unbounded-v0', 'action_space='],
  ),
  'a support upside down': (
    ['--config.agent.v_min=10', '--config.agent.v_max=-10'],
    ['agent.v_min=10', 'must be below agent.v_max=-10'],
  ),
  'a support of one point': (
    ['--config.agent.v_min=5', '--config.agent.v_max=5'],
    ['agent.v_min=5', 'must be below'],
  ),
  'one atom': (['--config.agent.num_atoms=1'], ['num_atoms=1', 'at least 2']),
  'a priority that is none': (
    ['--config.agent.priority=age'],
    ['agent.priority', "'mean', 'kl'"],
  ),
  'too few steps': (
    ['--config.run.steps_per_agent=500'],
    ['steps_per_agent=500 leaves nothing to learn from'],
  ),
  'an unknown topology': (['--topology=ring'], ['ring', 'single_process']),
}


@pytest.fixture(scope='module')
def refusals(tmp_path_factory, run_commands):
  cwd = tmp_path_factory.mktemp('cwd')
  found = run_commands(
    [
      {'argv': ['d4pg', *argv], 'cwd': str(cwd), 'mode': 'no_start'}
      for argv, _ in REFUSED.values()
    ]
  )
  assert list(cwd.iterdir()) == []
  return dict(zip(REFUSED, found, strict=True))


@pytest.mark.parametrize('name', sorted(REFUSED))
def test_a_command_that_cannot_work_is_refused(refusals, name):
  answer = refusals[name]
  assert answer['code'] == commands.USAGE, answer
  assert answer['stderr'].startswith('error: ')
  for part in REFUSED[name][-1]:
    assert part in answer['stderr']
