"""Atari: names, preprocessing, lives, limits; the batch against one game."""

import pathlib

import ale_py
import gymnasium
import numpy as np
import pytest

from murmuration.environment_loops import atari
from murmuration.environment_loops import environments
from murmuration.environment_loops import evaluation
from murmuration.environment_loops import vector

# Chance only from the actions, so that two emulators show the same.
PLAIN = '?noop_max=0'


def _raw(name):
  gymnasium.register_envs(ale_py)
  return gymnasium.make(name, frameskip=1, repeat_action_probability=0.0)


@pytest.mark.parametrize(
  'name, num_actions', [('ALE/Pong-v5', 6), ('ALE/Breakout-v5', 4)]
)
def test_games_show_stacked_bytes_and_take_their_minimal_actions(
  name, num_actions
):
  spec = environments.spec(name)
  assert spec.observation_shape == (84, 84, 4)
  assert spec.observation_dtype == 'uint8'
  assert spec.num_actions == num_actions
  assert spec.max_episode_steps == 27_000
  single = environments.make(name, seed=0)
  batch = vector.make_vector(name, 2, seed=0)
  single.observation_spec().validate(single.reset().observation)
  single.observation_spec().validate(single.step(0).observation)
  first = batch.reset()
  step = batch.step(np.zeros(2, np.int64))
  for array in (first, step.observation, step.next_observation):
    assert array.shape == (2, 84, 84, 4) and array.dtype == np.uint8
    assert array.flags.c_contiguous
  assert step.reward.dtype == np.float32
  single.close()
  batch.close()


def test_a_frame_is_the_maximum_of_the_last_two_of_four():
  cv2 = pytest.importorskip('cv2')
  environment = environments.make('ALE/Breakout-v5' + PLAIN, seed=3)
  raw = _raw('ALE/Breakout-v5')
  raw.reset(seed=3)
  stack = environment.reset().observation
  np.testing.assert_array_equal(stack[..., :3], 0)
  random = np.random.default_rng(0)
  for _ in range(40):
    action = int(random.integers(4))
    before = stack
    timestep = environment.step(action)
    gray, reward = [], 0.0
    for _ in range(4):
      reward += raw.step(action)[1]
      gray.append(raw.unwrapped.ale.getScreenGrayscale())
    frame = cv2.resize(
      np.maximum(gray[-1], gray[-2]), (84, 84), interpolation=cv2.INTER_AREA
    )
    stack = timestep.observation
    np.testing.assert_array_equal(stack[..., 3], frame)
    np.testing.assert_array_equal(stack[..., :3], before[..., 1:])
    assert timestep.reward == reward
  environment.close()
  raw.close()


@pytest.mark.parametrize('options', ['', '&life_loss=1'])
def test_the_batch_shows_pays_and_ends_as_the_single_game(options):
  name = 'ALE/Breakout-v5' + PLAIN + options
  batch = vector.make_vector(name, 2, seed=7)
  seeds = vector.environment_seeds(7, 2)
  singles = [environments.make(name, seed) for seed in seeds]
  first = [single.reset().observation for single in singles]
  np.testing.assert_array_equal(batch.reset(), first)
  random = np.random.default_rng(1)
  ends = rewards = 0
  for _ in range(250):
    actions = random.integers(4, size=2)
    step = batch.step(actions)
    for index, single in enumerate(singles):
      timestep = single.step(int(actions[index]))
      np.testing.assert_array_equal(
        step.observation[index], timestep.observation
      )
      assert step.reward[index] == timestep.reward
      assert step.discount[index] == timestep.discount
      assert step.last[index] == timestep.last()
      expected = timestep.observation
      if timestep.last():
        ends += 1
        expected = single.reset().observation
      rewards += float(timestep.reward)
      np.testing.assert_array_equal(step.next_observation[index], expected)
  assert rewards > 0
  assert ends >= (8 if options else 2)
  batch.close()
  for single in singles:
    single.close()


def test_a_lost_life_ends_the_episode_but_not_the_game():
  name = 'ALE/Breakout-v5' + PLAIN + '&life_loss=1'
  environment = environments.make(name, seed=0)
  ale = environment._environment.unwrapped.ale
  environment.reset()
  lives = []
  random = np.random.default_rng(0)
  while len(lives) < 6:
    timestep = environment.step(int(random.integers(4)))
    if timestep.last():
      assert timestep.discount == 0.0
      lives.append(ale.lives())
      following = environment.step(0).observation
      if lives[-1]:
        np.testing.assert_array_equal(following, timestep.observation)
      else:
        np.testing.assert_array_equal(following[..., :3], 0)
  assert lives == [4, 3, 2, 1, 0, 4]
  environment.close()


def test_rewards_are_not_clipped():
  # A ghost house row of this game pays 30 points a hit.
  name = 'ALE/SpaceInvaders-v5' + PLAIN
  batch = vector.make_vector(name, 2, seed=0)
  batch.reset()
  random = np.random.default_rng(0)
  rewards = [
    batch.step(random.integers(6, size=2)).reward.max() for _ in range(100)
  ]
  assert max(rewards) > 1.0
  batch.close()


@pytest.mark.parametrize('vectorized', [False, True])
def test_the_frame_limit_truncates(monkeypatch, vectorized):
  monkeypatch.setattr(atari, 'MAX_FRAMES', 80)
  name = 'ALE/Pong-v5' + PLAIN
  if vectorized:
    batch = vector.make_vector(name, 2, seed=0)
    batch.reset()
    steps = [batch.step(np.zeros(2, np.int64)) for _ in range(40)]
    ends = [bool(step.last[0]) for step in steps]
    discounts = [float(step.discount[0]) for step in steps]
    batch.close()
  else:
    environment = environments.make(name, seed=0)
    environment.reset()
    timesteps = []
    while len(timesteps) < 40:
      timesteps.append(environment.step(0))
      if timesteps[-1].last():
        environment.reset()
    ends = [timestep.last() for timestep in timesteps]
    discounts = [float(timestep.discount) for timestep in timesteps]
    environment.close()
  assert np.flatnonzero(ends).tolist() == [19, 39]
  assert discounts == [1.0] * 40


@pytest.mark.long
def test_no_ops_make_the_starts_differ_and_the_seed_repeats_them():
  def starts(seed):
    batch = vector.make_vector('ALE/Pong-v5', 4, seed)
    batch.reset()
    # The ball appears after the longest start.
    for _ in range(12):
      step = batch.step(np.zeros(4, np.int64))
    batch.close()
    return step.observation

  seen = starts(0)
  assert len(np.unique(seen.reshape(4, -1), axis=0)) >= 3
  np.testing.assert_array_equal(starts(0), seen)
  assert not np.array_equal(starts(1), seen)


@pytest.mark.parametrize('noop_max', [0, 2])
def test_a_batch_starts_with_up_to_so_many_no_ops(noop_max):
  batch = vector.make_vector(f'ALE/Pong-v5?noop_max={noop_max}', 12, seed=0)
  _, info = batch._vector.reset(seed=np.arange(12))
  assert set(info['episode_frame_number']) == set(range(noop_max + 1))
  batch.close()


def test_sticky_actions_are_off_unless_asked_for():
  def shown(name, seed):
    batch = vector.make_vector(name, 1, seed)
    batch.reset()
    for action in [1, 2, 3, 2, 3] * 8:
      step = batch.step(np.array([action]))
    batch.close()
    return step.observation

  for name, chance in (
    ('ALE/Breakout-v5?noop_max=0', False),
    ('ALE/Breakout-v5?noop_max=0&sticky=0.5', True),
  ):
    first, second = shown(name, 1), shown(name, 2)
    assert np.array_equal(first, second) != chance, name


def test_more_threads_change_nothing():
  def last(name):
    batch = vector.make_vector(name, 2, seed=5)
    batch.reset()
    for _ in range(10):
      step = batch.step(np.array([0, 2]))
    batch.close()
    return step.observation

  np.testing.assert_array_equal(
    last('ALE/Pong-v5'), last('ALE/Pong-v5?threads=2')
  )


@pytest.mark.parametrize(
  'one, other, same',
  [
    ('', '?threads=4', True),
    ('?threads=2&sticky=0.25', '?sticky=0.25', True),
    ('?sticky=0.25&noop_max=0', '?noop_max=0&sticky=.25', True),
    ('?sticky=0.0', '?noop_max=30', True),
    ('?life_loss=1&threads=4', '?threads=4', False),
    ('?noop_max=0', '?threads=4', False),
  ],
)
def test_threads_make_no_other_task(one, other, same):
  names = f'ALE/Pong-v5{one}', f'ALE/Pong-v5{other}'
  assert atari.same_task(*names) == atari.same_task(*names[::-1]) == same
  assert not atari.same_task(names[0], 'ALE/Breakout-v5')
  assert not atari.same_task(names[0], None) and atari.same_task(None, None)


@pytest.mark.parametrize(
  'query',
  ['sticky=2', 'life_loss=yes', 'noop_max=-1', 'frames=3', '', 'threads=0'],
)
def test_options_that_mean_nothing_are_refused(query):
  with pytest.raises(environments.EnvironmentRefused, match='sticky'):
    environments.spec(f'ALE/Pong-v5?{query}')


def test_an_unknown_game_is_refused_with_the_nearest_ones():
  with pytest.raises(environments.EnvironmentRefused, match='ALE/Pong-v5'):
    environments.spec('ALE/Ping-v5')


def test_a_missing_rom_is_named(monkeypatch, tmp_path):
  def path(game):
    return pathlib.Path(tmp_path) / f'{game}.bin'

  monkeypatch.setattr(ale_py.roms, 'get_rom_path', path)
  with pytest.raises(environments.EnvironmentRefused, match='ROM pong.bin'):
    environments.build('ALE/Pong-v5')
  with pytest.raises(environments.EnvironmentRefused, match='ROM tennis.bin'):
    environments.spec('ALE/Tennis-v5?noop_max=7')


def test_games_can_be_rendered():
  environment = environments.make('ALE/Pong-v5', 0, render_mode='rgb_array')
  environment.reset()
  frame = environment.render()
  assert frame.shape == (210, 160, 3) and frame.dtype == np.uint8
  environment.close()


def test_a_return_is_of_a_whole_game_also_where_training_ends_with_a_life():
  assert (
    atari.whole_games('ALE/Breakout-v5?life_loss=1&noop_max=0')
    == 'ALE/Breakout-v5?noop_max=0'
  )
  assert atari.whole_games('ALE/Breakout-v5?life_loss=1') == 'ALE/Breakout-v5'
  assert atari.whole_games('CartPole-v1') == 'CartPole-v1'
  lengths = []

  def serve(observations):
    lengths.append(len(observations))
    return np.ones(len(observations), np.int32)

  evaluation.evaluate_vector(serve, 'ALE/Breakout-v5?life_loss=1', 1, seed=0)
  by_life = environments.make('ALE/Breakout-v5?life_loss=1', seed=0)
  life, timestep = 0, by_life.reset()
  while not timestep.last():
    timestep = by_life.step(1)
    life += 1
  by_life.close()
  # Five lives; each takes about as long without a paddle that moves.
  assert len(lengths) > 3 * life
