"""One actor in one environment."""

import numpy as np
import pytest

from environment_loops import counting
from environment_loops import environments
from environment_loops import loop


class RecordingActor:
  """Writes down each call; its action is the number of the call."""

  def __init__(self):
    self.calls = []
    self.num_updates = 0
    self.num_actions = 0

  def select_action(self, observation):
    self.calls.append(('select', tuple(observation)))
    self.num_actions += 1
    return self.num_actions % 2

  def observe_first(self, timestep):
    assert timestep.first()
    self.calls.append(('first', tuple(timestep.observation)))

  def observe(self, action, next_timestep):
    arrival = tuple(next_timestep.observation)
    self.calls.append(('observe', action, arrival, next_timestep.discount))

  def update(self, wait=False):
    self.num_updates += 1


class CountingObserver:
  def __init__(self):
    self.actions = []

  def observe_first(self, environment, timestep):
    self.actions = []

  def observe(self, environment, timestep, action):
    self.actions.append(action)

  def get_metrics(self):
    return {'observed_steps': len(self.actions)}


def test_the_actor_sees_each_step_once_and_in_order():
  actor = RecordingActor()
  environment = counting.make(lengths=(2,), endings=(counting.TERMINATION,))
  environment_loop = loop.EnvironmentLoop(environment, actor)
  assert environment_loop.run(num_episodes=2) == 4
  expected = []
  for episode in (0, 1):
    expected += [
      ('first', (episode, 0, 0)),
      ('select', (episode, 0, 0)),
      ('observe', 1, (episode, 1, 0), 1.0),
      ('select', (episode, 1, 0)),
      ('observe', 0, (episode, 2, 0), 0.0),
    ]
  assert actor.calls == expected
  assert actor.num_updates == 4


def test_an_episode_gives_its_return_length_and_speed():
  environment_loop = loop.EnvironmentLoop(counting.make(), RecordingActor())
  result = environment_loop.run_episode()
  assert result['episode_return'] == 1 + 2 + 3 + 4 + 5
  assert result['episode_length'] == 5
  assert result['steps_per_second'] > 0
  assert set(result) == {'episode_return', 'episode_length', 'steps_per_second'}


def test_metrics_of_observers_join_the_result():
  environment_loop = loop.EnvironmentLoop(
    counting.make(), RecordingActor(), observers=[CountingObserver()]
  )
  lengths = []
  for _ in range(4):
    result = environment_loop.run_episode()
    assert result['observed_steps'] == result['episode_length']
    lengths.append(result['episode_length'])
  assert lengths == [5, 2, 1, 7]


def test_a_step_budget_is_met_at_the_end_of_an_episode():
  results = []
  environment_loop = loop.EnvironmentLoop(
    counting.make(), RecordingActor(), on_episode=results.append
  )
  assert environment_loop.run(num_steps=6) == 7
  assert [result['episode_length'] for result in results] == [5, 2]
  assert environment_loop.run(num_steps=1) == 1
  assert environment_loop.run(num_steps=0) == 0
  assert environment_loop.actor_steps == 8


def test_a_stop_ends_the_loop_inside_an_episode():
  actor = RecordingActor()
  results = []
  environment_loop = loop.EnvironmentLoop(
    counting.make(lengths=(3, 1000)),
    actor,
    should_stop=lambda: actor.num_actions >= 10,
    on_episode=results.append,
  )
  assert environment_loop.run() == 10
  assert [result['episode_length'] for result in results] == [3]


def test_a_budget_that_makes_no_sense_is_refused():
  environment_loop = loop.EnvironmentLoop(counting.make(), RecordingActor())
  with pytest.raises(ValueError, match='give one'):
    environment_loop.run(num_steps=1, num_episodes=1)
  with pytest.raises(ValueError, match='never end'):
    environment_loop.run()
  with pytest.raises(ValueError, match='negative'):
    environment_loop.run(num_steps=-1)


def test_it_runs_on_a_real_environment():
  class Still(RecordingActor):
    def select_action(self, observation):
      assert observation.dtype == np.float32
      return 1

  environment = environments.make('MountainCar-v0', seed=0)
  result = loop.EnvironmentLoop(environment, Still()).run_episode()
  assert result['episode_return'] == -200
  assert result['episode_length'] == 200
