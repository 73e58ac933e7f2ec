"""One process and one seed: the same parameters, bit for bit."""

import functools
import logging
import random
import shutil
from typing import Any

import gymnasium
from gymnasium.envs.classic_control import cartpole
import numpy as np
import pytest

from murmuration.agents import d4pg
from murmuration.agents import dqn
from murmuration.agents import impala
from murmuration.agents import ppo
from murmuration.environment_loops import environments
from murmuration.launch import cell as cell_lib
from murmuration.launch import experience
from murmuration.launch import experiment as experiment_lib
from murmuration.run_records import checkpoints
from murmuration.run_records import run_directory

STEPS = 600
SMALL: dict[str, Any] = {'hidden_sizes': (16,)}
REPLAY: dict[str, Any] = {'min_replay_size': 50, 'batch_size': 16}
# Agent, its config, and its task.
AGENTS = {
  'dqn': (dqn.DQN, dqn.Config(**SMALL, **REPLAY), 'CartPole-v1'),
  'dqn with priorities': (
    dqn.DQN,
    dqn.Config(**SMALL, **REPLAY, prioritized=True),
    'CartPole-v1',
  ),
  'd4pg': (
    d4pg.D4PG,
    d4pg.Config(**REPLAY, policy_sizes=(16,), critic_sizes=(16,)),
    'Pendulum-v1',
  ),
  'ppo': (
    ppo.PPO,
    ppo.Config(**SMALL, rollout_steps=128, unroll_length=32, epochs=2),
    'CartPole-v1',
  ),
  'impala': (
    impala.IMPALA,
    impala.Config(**SMALL, unroll_length=5, batch_size=4),
    'CartPole-v1',
  ),
}


def experiment_of(name, run_dir, seed=0, steps=STEPS):
  agent, config, task = AGENTS[name]
  make = functools.partial(agent, config, environments.spec(task))
  return experiment_lib.Experiment(
    make,
    task,
    1,
    getattr(config, 'max_replay_size', 1),
    getattr(config, 'min_replay_size', 1),
    seed=seed,
    run=experiment_lib.RunConfig(
      steps_per_agent=steps, updates_per_call=4, deterministic=True
    ),
    run_dir=str(run_dir),
  )


@pytest.fixture
def run(run_worker, make_counter, tmp_path):
  """run(agent, directory, ...): what its learner came to, by array."""

  def start(name, directory, resume=False, **options):
    path = tmp_path / directory
    run_directory.create(path, {}, {}, resume=resume)
    experiment = experiment_of(name, path, **options)
    counter = make_counter(path, {'actor_steps': experiment.total_steps})
    worker = run_worker(experiment, counter)
    counter.close()
    return worker.learner.save()

  return start


@pytest.mark.parametrize(
  'name',
  [
    'dqn',
    *(
      pytest.param(name, marks=pytest.mark.long)
      for name in AGENTS
      if name != 'dqn'
    ),
  ],
)
def test_a_seed_gives_the_same_parameters_twice(run, name):
  first, second = run(name, 'a'), run(name, 'b')
  assert first['updates'] > 10
  for array in first:
    np.testing.assert_array_equal(first[array], second[array], array)
  if name == 'dqn':
    other = run(name, 'c', seed=1)
    assert (other['theta'] != first['theta']).any()


@pytest.mark.long
@pytest.mark.parametrize('name', ['dqn', 'd4pg'])
def test_what_is_resumed_is_as_repeatable(run, name, tmp_path, caplog):
  caplog.set_level(logging.INFO)
  # Environments cannot be saved: their episodes begin anew, with seeds of the
  # step. All the rest goes on, so that two resumptions of one state are equal.
  first = run(name, 'a')
  shutil.copytree(tmp_path / 'a', tmp_path / 'b')
  found = []
  for directory in ('a', 'b'):
    found.append(run(name, directory, resume=True, steps=2 * STEPS))
    assert f'Going on from learner step {first["updates"]}.' in caplog.text
    assert 'Replay goes on with' in caplog.text
    caplog.clear()
    assert found[-1]['updates'] > 1.9 * first['updates'] > 0
  for array in found[0]:
    np.testing.assert_array_equal(found[0][array], found[1][array], array)


def test_random_numbers_of_acting_go_on(run_worker, make_counter, tmp_path):
  path = tmp_path / 'run'
  run_directory.create(path, {}, {})
  counter = make_counter(path, {'actor_steps': STEPS})
  worker = run_worker(experiment_of('dqn', path), counter)
  counter.close()
  rng = worker._acting._rng
  saved = checkpoints.read(path / 'checkpoints' / 'worker-0.npz')
  ring = checkpoints.read(path / 'checkpoints' / 'ring-worker-0-0.npz')
  wanted = rng.random(5)
  run_directory.create(path, {}, {}, resume=True)
  counter = make_counter(path, {'actor_steps': STEPS})
  # With its budget used a resumed worker takes no step.
  again = run_worker(experiment_of('dqn', path), counter)
  assert again.learner.updates == saved['updates']
  for restored in again._experience.rings:
    for name, array in restored.save().items():
      np.testing.assert_array_equal(array, ring[name], name)
  drawn = again._acting._rng.random(5)
  counter.close()
  np.testing.assert_array_equal(wanted, drawn)
  assert int(ring['count']) > 500 and int(saved['updates']) > 20


def test_what_no_seed_can_repeat_is_refused():
  for topology, overrides, why in (
    ('swarm', {}, 'is for one process'),
    ('single_process', {'run.tf_threads': '2'}, 'needs run.tf_threads=1'),
  ):
    overrides = {'run.deterministic': 'True', **overrides}
    with pytest.raises(ValueError, match=why):
      cell_lib.resolve('dqn', topology=topology, overrides=overrides)


def test_a_repeatable_run_asks_no_server(tmp_path):
  found = experience.of_members(experiment_of('dqn', tmp_path), 1)
  found.use_rings(3)
  adder, _ = found.adder(None, 'replay', None, None, lambda: False)
  assert found.source([], 'replay', lambda: False) is found.rings[0]
  adder.close()


class Draws(cartpole.CartPoleEnv):
  """CartPole-v1 that draws from all generators there are."""

  def step(self, action):
    observation, reward, *rest = super().step(action)
    drawn = random.random() + np.random.rand() + self.action_space.sample()
    return observation, reward + drawn, *rest


class Covered(gymnasium.Wrapper):
  """Has an action space of its own, over the one that is drawn from."""

  max_episode_steps = 50

  def __init__(self):
    super().__init__(Draws())
    self.action_space = gymnasium.spaces.Discrete(2)


def test_global_generators_are_seeded_too(run, monkeypatch):
  task = f'{__name__}:Covered'
  monkeypatch.setitem(AGENTS, 'draws', (*AGENTS['dqn'][:2], task))
  found = []
  for directory in ('one', 'other'):
    random.seed()
    np.random.seed()
    found.append(run('draws', directory))
  for name, array in found[0].items():
    np.testing.assert_array_equal(array, found[1][name], err_msg=name)
