"""A small study with real agents, and its runs played by evaluate.py."""

import json

import numpy as np
from PIL import Image
import pytest

from murmuration import playing
from murmuration.agents import dqn
from murmuration.launch import registry
from murmuration.run_records import run_directory
from murmuration.studies import plan as study_plan
from murmuration.studies import results
from murmuration.studies import runs as study_runs

_SMALL = (
  '--config.agent.hidden_sizes=(16,)',
  '--config.agent.min_replay_size=50',
  '--config.run.evaluations=4',
  '--config.run.eval_episodes=2',
)
STUDY = study_plan.Study(
  name='small',
  environment='CartPole-v1',
  budget=800,
  threshold=9.0,
  seeds=2,
  variants={
    'DQN': study_plan.Variant(('dqn', *_SMALL), together=True),
    'Ape-X DQN': study_plan.Variant(
      (
        'apex_dqn',
        *_SMALL,
        '--config.actors.num_actors=1',
        '--config.actors.envs_per_actor=4',
      ),
    ),
  },
  baseline='DQN',
  goals=(study_plan.Goal('Ape-X DQN', 9.0, reached=2, seeds=2),),
)


@pytest.fixture(scope='module')
def made(tmp_path_factory, forked_runs):
  out = tmp_path_factory.mktemp('results')
  assert results.run([STUDY], out, parallel=2) == 0
  return out / 'small'


def _open(made, name):
  return run_directory.open(made / 'runs' / name)


def test_two_systems_are_run_and_compared(made):
  found = json.loads((made / 'results.json').read_text())
  plain, apex = found['variants']['DQN'], found['variants']['Ape-X DQN']
  for entry in (plain, apex):
    assert entry['crashed'] == 0
    # The least that an episode of CartPole-v1 returns, and the most.
    assert all(8 <= auc <= 500 for auc in entry['auc'] + entry['last_three'])
    assert len(entry['auc']) == 2 and min(entry['steps_per_s']) > 0
  assert (plain['processes'], apex['processes']) == (1, 2)
  assert apex['auc_difference'][0] == pytest.approx(
    np.mean(apex['auc']) - np.mean(plain['auc'])
  )
  (goal,) = found['goals']
  assert goal['of'] == 2 and goal['met'] is not None
  table = (made / 'table.md').read_text()
  assert '| DQN | 2 |' in table and '| Ape-X DQN | 2 |' in table
  assert (made / 'learning_curves.png').read_bytes().startswith(b'\x89PNG')


def test_the_numbers_are_those_of_the_runs(made):
  found = json.loads((made / 'results.json').read_text())['variants']
  rows = _open(made, 'dqn-of-2').metrics('evaluation')
  members = np.array([row['member_returns'] for row in rows])
  np.testing.assert_allclose(
    found['DQN']['last_three'], members[-3:].mean(axis=0)
  )
  for seed in range(2):
    run = _open(made, f'ape-x-dqn-{seed}')
    assert run.config()['seed'] == seed
    assert run.summary()['totals']['actor_steps'] == 800


def test_what_is_there_is_what_its_commands_still_stand_for(made):
  # The scripts print the config that they would run with: it is the kept one.
  assert study_runs.missing(study_plan.jobs(STUDY, made / 'runs')) == []


def test_the_policy_of_a_learner_is_played_and_filmed(
  made, run_commands, tmp_path
):
  run = _open(made, 'ape-x-dqn-1')
  film = tmp_path / 'film.gif'
  flags = ['--episodes=3', '--film_steps=5', f'--video={film}']
  (done,) = run_commands(
    [{'argv': [str(run.path), *flags], 'cwd': str(tmp_path)}],
    script='evaluate.py',
  )
  assert done['code'] == 0, done['stderr']
  best = max(row['return_mean'] for row in run.metrics('evaluation'))
  said = f'Playing the best that was evaluated: return {best:.1f} after'
  assert said in done['stdout']
  assert '3 episodes' in done['stdout'] and 'mean ' in done['stdout']
  with Image.open(film) as image:
    # A frame before each step and one after the last; equal ones are merged.
    assert 2 <= image.n_frames <= 6


def test_the_best_member_of_a_baseline_is_played(made):
  run = _open(made, 'dqn-of-2')
  returns = run.metrics('evaluation')[-1]['member_returns']
  kept = playing.load(run)
  best = int(np.argmax(returns))
  assert kept.what == f'agent {best} after 800 steps'
  with np.load(run.checkpoints / 'agents.npz') as saved:
    np.testing.assert_array_equal(kept.theta, saved['theta'][best])
  actions = kept.policy()(np.zeros((5, 4), np.float32))
  assert actions.shape == (5,)


@pytest.mark.parametrize(
  ('returns', 'best'), [([np.nan, -3.0], 1), ([np.nan, np.nan], 0)]
)
def test_a_member_whose_episodes_broke_is_not_the_best(
  made, monkeypatch, returns, best
):
  run = _open(made, 'dqn-of-2')
  rows = [{'member_returns': returns}]
  monkeypatch.setattr(run, 'metrics', lambda kind: rows)
  assert playing.load(run).what == f'agent {best} after 800 steps'


def test_a_run_that_keeps_nothing_yet_says_so(tmp_path):
  config = {
    'agent_name': 'apex_dqn',
    'environment': 'CartPole-v1',
    'agent': {'hidden_sizes': [16]},
  }
  run = run_directory.create(tmp_path / 'run', config, {})
  with pytest.raises(ValueError, match='keeps no parameters yet'):
    playing.load(run)


def test_an_unknown_agent_names_the_known_ones():
  with pytest.raises(ValueError, match="'sarsa'.*apex_dqn.*module:Name"):
    registry.make({'agent_name': 'sarsa'})


@pytest.mark.parametrize('name', registry.agents())
def test_the_configs_of_an_agent_make_it(name):
  continuous = name.endswith(('d4pg', 'ddpg', 'sac'))
  environment = 'Pendulum-v1' if continuous else 'CartPole-v1'
  agent = registry.make(
    {'agent_name': name, 'environment': environment, 'agent': {}}
  )
  theta = agent.initial(0)
  assert theta.shape == (agent.layout.size,)
  observation = np.zeros((3, *agent.spec.observation_shape), np.float32)
  assert agent.greedy(theta)(observation).shape == (3, *agent.spec.action_shape)


def test_images_are_played_by_a_network_for_images():
  agent = registry.make(
    {'agent_name': 'apex_dqn', 'environment': 'ALE/Pong-v5', 'agent': {}}
  )
  assert isinstance(agent, dqn.DQN)
  policy = agent.greedy(agent.initial(0))
  assert policy(np.zeros((2, 84, 84, 4), np.uint8)).shape == (2,)
