"""DDPG, D4PG and SAC on images by the command."""

import pathlib

import numpy as np
import pytest

from murmuration import playing
from murmuration.launch import cell as cell_lib
from murmuration.launch import registry
from murmuration.run_records import checkpoints
from murmuration.run_records import run_directory

HERE = pathlib.Path(__file__).parent
HWC, CHW = (16, 12, 3), (3, 16, 12)
AGENTS = ('ddpg', 'd4pg', 'sac')
SMALL = (
  '--config.agent.policy_sizes=(16,)',
  '--config.agent.critic_sizes=(16,)',
  '--config.agent.batch_size=8',
  '--config.agent.min_replay_size=50',
  '--config.agent.normalize_observations=False',
  '--config.run.eval_episodes=2',
  '--config.run.evaluations=1',
  '--config.pace.samples_per_insert=4',
)


@pytest.fixture
def build(monkeypatch):
  """build(agent, topology, overrides): the program of a cell on images."""
  monkeypatch.syspath_prepend(HERE)

  def make(agent, topology, overrides):
    of_images = {
      'environment': 'image_environment:Dot-v0',
      'agent.normalize_observations': 'False',
    }
    return cell_lib.resolve(
      agent, '', topology, {**of_images, **overrides}
    ).build()

  return make


@pytest.mark.parametrize('topology', registry.TOPOLOGIES)
@pytest.mark.parametrize('agent', AGENTS)
def test_no_topology_that_takes_numbers_refuses_images(agent, topology, build):
  # The table of noise is to be a hundred times what is perturbed.
  large = {'evolution.table_size': '50000000'}
  overrides = large if topology == 'evolution' else {}
  if topology != 'offline':
    assert build(agent, topology, overrides).groups
    return
  with pytest.raises(ValueError, match='offline.data'):  # as of numbers
    build(agent, topology, overrides)


def test_what_images_do_not_go_with_is_said(build):
  for overrides, message in (
    ({'agent.network': 'mlp'}, '576 numbers.*network=auto'),
    ({'agent.normalize_observations': 'True'}, 'normalize_observations=False'),
    ({'agent.network': 'nature'}, 'at least 36 x 36.*network=auto'),
  ):
    with pytest.raises(ValueError, match=message):
      build('d4pg', 'actor_learner', overrides)
  with pytest.raises(ValueError, match='table_size'):
    build('d4pg', 'evolution', {})


def _learned(run, learner, shape):
  assert run.wait() == 0, run.output
  run.assert_nothing_is_left()
  run.assert_no_traceback()
  directory = run_directory.open(run.directory)
  assert directory.summary()['totals']['learner_steps'] > 0
  kept = playing.load(directory)
  actions = kept.policy()(np.zeros((3, *shape), np.uint8))
  assert actions.shape == (3, 2) and (np.abs(actions) <= 1).all()
  # Learning moves the encoder's first layer: the target network lags behind.
  (place,) = (
    v.slice for v in kept.agent.layout.variables if v.name == 'encoder/conv_0/w'
  )
  saved = checkpoints.read(directory.checkpoints / f'{learner}.npz')
  (theta,), (target,) = saved['theta'], saved['target']
  assert np.isfinite(theta).all()
  assert not np.array_equal(theta[place], target[place])


@pytest.mark.parametrize('agent', AGENTS)
def test_it_learns_from_images_in_one_process(start_run, agent, monkeypatch):
  monkeypatch.syspath_prepend(HERE)
  run = start_run(
    agent,
    *SMALL,
    '--topology=single_process',
    '--config.environment=image_environment:Dot-v0',
    '--config.run.steps_per_agent=300',
    modules=HERE,
  )
  _learned(run, 'worker-0', HWC)


def test_actors_and_a_learner_share_images_with_channels_first(
  start_run, monkeypatch
):
  monkeypatch.syspath_prepend(HERE)
  run = start_run(
    'sac',
    *SMALL,
    '--topology=actor_learner',
    '--config.agent.prioritized=True',
    '--config.environment=image_environment:DotFirst-v0',
    # Actors wait for the learner when they have got so far ahead of it.
    '--config.run.steps_per_agent=1500',
    modules=HERE,
  )
  _learned(run, 'learner-0', CHW)
