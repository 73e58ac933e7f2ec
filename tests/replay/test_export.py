"""Replay as data sets: what goes in comes out, step by step."""

import json

import gymnasium
import h5py
import numpy as np
import pytest

from murmuration.environment_loops import stepping
from murmuration.replay import checkpoints
from murmuration.replay import episodes
from murmuration.replay import export
from murmuration.replay import minari
from murmuration.replay import nstep
from murmuration.replay import packing
from murmuration.replay import ring
from murmuration.replay import tables
from tests import counting

LAYOUT = packing.TransitionLayout((3,))
CONFIG = {
  'environment': 'CartPole-v1',
  'agent_name': 'dqn',
  'agent': {'n_step': 3, 'gamma': 0.5},
}
STEPS, ENVS = 100, 6


def _written(n, gamma, form='finished'):
  """Packed windows [N, W] of a counting environment, in order of writing."""
  window = nstep.NStepWindow(ENVS, n, gamma, LAYOUT)
  environment = counting.make_vector(ENVS)
  observation, rows = environment.reset(), []
  for time in range(STEPS):
    action = np.full(ENVS, time % 2, np.int32)
    step = environment.step(action)
    window.observe(observation, action, step)
    rows.append(getattr(window, form)())
    observation = step.next_observation
  rows = np.concatenate(rows)
  return rows[LAYOUT.unpack(rows).weight > 0]


@pytest.mark.parametrize('form', ['finished', 'aligned'])
@pytest.mark.parametrize('n', [1, 3])
def test_episodes_are_those_that_were_played(n, form):
  plan, gamma = counting.Plan(), 0.5
  found = LAYOUT.unpack(_written(n, gamma, form))
  seen, steps = set(), 0
  for got in episodes.episodes(found, n, gamma):
    episode, _, index = (int(x) for x in got.observations[0])
    assert (episode, index) not in seen
    seen.add((episode, index))
    length = plan.length(index, episode)
    ended = len(got.rewards) == length
    assert ended or n == 1  # cut by the end of the data
    steps += len(got.rewards)
    wanted = [[episode, t, index] for t in range(len(got.rewards) + 1)]
    np.testing.assert_array_equal(got.observations, wanted)
    assert len(got.actions) == len(got.rewards)
    rewards = [
      plan.reward(index, episode, t + 1) for t in range(len(got.rewards))
    ]
    np.testing.assert_allclose(got.rewards, rewards, atol=1e-5)
    assert got.terminated == (ended and plan.terminates(index, episode))
  assert {True, False} == {plan.terminates(i, e) for e, i in seen}
  assert steps == len(found.r_t) if n == 1 else steps > len(found.r_t) / 2


def test_an_episode_whose_start_has_left_replay_begins_later():
  plan, gamma = counting.Plan(), 0.5
  found = LAYOUT.unpack(_written(3, gamma))
  length = plan.length(0, 0)
  assert length > 3
  kept = packing.Transition(*(
    x[~((found.o_tm1 == [0, 0, 0]).all(axis=1))] for x in found
  ))  # fmt: skip
  first = next(
    e for e in episodes.episodes(kept, 3, gamma) if e.observations[0][0] == 0
    and e.observations[0][2] == 0
  )  # fmt: skip
  assert first.observations[0][1] == 1 and len(first.rewards) == length - 1


def _corridor(n, steps=200):
  """Windows of two who walk at random between 6 places, from left to right."""
  layout = packing.TransitionLayout((6,))
  window, rng = nstep.NStepWindow(2, n, 0.5, layout), np.random.default_rng(0)
  places, rows, one_hot = np.zeros(2, int), [], np.eye(6, dtype=np.float32)
  for _ in range(steps):
    action = rng.integers(0, 2, 2, np.int32)
    after = np.clip(places + 2 * action - 1, 0, 5)
    last, seen = after == 5, one_hot[after]
    step = stepping.StepBatch(seen, after, 1.0 - last, last, seen)
    window.observe(one_hot[places], action, step)
    rows.append(window.finished())
    places = np.where(last, 0, after)
  return layout.unpack(np.concatenate(rows))


@pytest.mark.parametrize('n', [1, 3])
def test_where_observations_recur_episodes_are_refused(n):
  with pytest.raises(ValueError, match='--format=arrays'):
    list(episodes.episodes(_corridor(n), n, 0.5))


def test_steps_of_two_environments_never_make_one_episode():
  """One was cut where the other begins: nothing says which goes on."""

  def windows(*steps):
    before, after = (
      np.array(column, np.float32)[:, None] for column in zip(*steps)
    )
    return packing.Transition(
      before,
      np.zeros(len(steps), np.int32),
      np.ones(len(steps), np.float32),
      np.ones(len(steps), np.float32),
      after,
    )

  # A: 1, 2, 3; B: 7, 3, 4. Each is at 3 once.
  with pytest.raises(ValueError, match='--format=arrays'):
    list(episodes.episodes(windows((1, 2), (7, 3), (2, 3), (3, 4)), 1, 0.5))
  # A: 1, 3; B: 3, 4; A again: 3, 5.
  with pytest.raises(ValueError, match='--format=arrays'):
    list(episodes.episodes(windows((1, 3), (3, 4), (3, 5)), 1, 0.5))
  # B had left 3 before A came there.
  found = list(episodes.episodes(windows((3, 4), (1, 3)), 1, 0.5))
  assert sorted(e.observations[:, 0].tolist() for e in found) == [
    [1, 3], [3, 4]
  ]  # fmt: skip


def test_episodes_that_end_in_the_same_observation_are_not_told_apart():
  found = LAYOUT.unpack(_written(3, 0.5))
  ended = found.d_t == 0
  alike = found._replace(o_t=np.where(ended[:, None], -1, found.o_t))
  with pytest.raises(ValueError, match='observations recur'):
    list(episodes.episodes(alike, 3, 0.5))


@pytest.fixture
def run(tmp_path):
  """A run's directory, with what was written to two shards."""
  return _run(tmp_path / 'run', 3)


def _run(directory, n):
  rows = _written(n, 0.5)
  for shard in range(2):
    path = directory / 'checkpoints' / 'replay' / f'shard_{shard}'
    table = tables.uniform('replay', 10_000, 1, LAYOUT.signature())
    opened = checkpoints.open_server([table], directory=path)
    half = rows[LAYOUT.unpack(rows).o_tm1[:, 2] % 2 == shard]
    with opened.server.localhost_client().trajectory_writer(1) as writer:
      for row in half:
        writer.append(row)
        writer.create_item('replay', 1.0 + shard, writer.history[-1])
    checkpoints.save(opened, path, {})
    opened.server.stop()
  config = {**CONFIG, 'agent': {'n_step': n, 'gamma': 0.5}}
  (directory / 'config.json').write_text(json.dumps(config))
  return directory


def test_arrays_hold_every_transition_in_order(run, tmp_path):
  export.export(str(run), tmp_path / 'out', 'arrays')
  rows, priorities, about = export.load(tmp_path / 'out')
  written = _written(3, 0.5)
  shard = LAYOUT.unpack(written).o_tm1[:, 2] % 2
  expected = np.concatenate([written[shard == 0], written[shard == 1]])
  place = LAYOUT.slices.written_at
  expected[:, place] = 0
  np.testing.assert_array_equal(rows, expected)
  assert about == {
    'environment': 'CartPole-v1',
    'agent': 'dqn',
    'n_step': 3,
    'gamma': 0.5,
    'reward_clip': None,
    'layout': LAYOUT.name,
  }
  assert about == export.about(tmp_path / 'out')
  assert set(np.unique(priorities)) == {1.0, 2.0}
  with pytest.raises(FileExistsError, match='another directory'):
    export.export(str(run), tmp_path / 'out', 'arrays')


@pytest.mark.parametrize('format', ['arrays', 'all'])
def test_an_export_that_is_broken_off_is_not_in_the_way_of_the_next(
  run, tmp_path, monkeypatch, format
):
  def interrupted(path, **unused):
    path.write_bytes(b'half')
    raise KeyboardInterrupt

  with monkeypatch.context() as patch:
    patch.setattr(np, 'savez', interrupted)
    with pytest.raises(KeyboardInterrupt):
      export.export(str(run), tmp_path / 'out', format)
  assert not [*(tmp_path / 'out').iterdir()]
  export.export(str(run), tmp_path / 'out', format)
  assert len(export.load(tmp_path / 'out')[0])


def test_the_command_writes_both_and_says_so(run, tmp_path, capsys):
  # Four numbers are CartPole's; three are enough to see the episodes.
  assert export.main([str(run), str(tmp_path / 'out')]) == 0
  said = capsys.readouterr().out
  assert 'transitions' in said and "load_dataset('dqn_cartpole-v0')" in said
  rows, *_ = export.load(tmp_path / 'out')
  played = list(episodes.episodes(LAYOUT.unpack(rows), 3, 0.5))
  data = tmp_path / 'out' / 'dqn_cartpole-v0' / 'data'
  metadata = json.loads((data / 'metadata.json').read_text())
  assert metadata['total_episodes'] == len(played) > 10
  assert json.loads(metadata['env_spec'])['id'] == 'CartPole-v1'
  with h5py.File(data / 'main_data.hdf5') as file:
    assert len(file) == len(played)
    total = sum(len(file[name]['rewards']) for name in file)
  assert metadata['total_steps'] == total


def test_minari_takes_a_class_of_the_user_s_own(tmp_path, monkeypatch):
  (tmp_path / 'own_task.py').write_text(
    'from gymnasium.envs.classic_control import cartpole\n'
    'class Poles(cartpole.CartPoleEnv):\n  pass\n'
  )
  monkeypatch.syspath_prepend(tmp_path)
  episode = episodes.Episode(
    np.zeros((3, 4), np.float32),
    np.array([0, 1], np.int32),
    np.ones(2, np.float32),
    True,
  )
  counts = minari.write(tmp_path, 'a-v0', 'own_task:Poles', [episode], {})
  assert counts == (1, 2)
  metadata = tmp_path / 'a-v0' / 'data' / 'metadata.json'
  assert json.loads(metadata.read_text())['env_spec'] is None
  with pytest.raises(ValueError, match='--format=arrays'):
    minari.write(tmp_path, 'b-v0', 'no_such_module:Poles', [episode], {})


def test_a_task_of_the_user_s_own_has_its_name_and_all_its_steps(
  tmp_path, monkeypatch, capsys
):
  (tmp_path / 'own_task.py').write_text(
    'from gymnasium.envs.classic_control import cartpole\n'
    'class Poles(cartpole.CartPoleEnv):\n  pass\n'
  )
  monkeypatch.syspath_prepend(tmp_path)
  run = _run(tmp_path / 'run', 1)
  config = json.loads((run / 'config.json').read_text())
  config['environment'] = 'own_task:Poles'
  (run / 'config.json').write_text(json.dumps(config))
  out = tmp_path / 'out'
  assert export.main([str(run), str(out), '--format=minari']) == 0
  said = capsys.readouterr().out
  assert (out / 'dqn_own_task_poles-v0').is_dir()
  # With single steps nothing is left out, so nothing is said of a rest.
  assert '600 of 600 steps. MINARI' in said


def test_minari_has_the_units_of_the_environment(tmp_path):
  def episode(terminated):
    return episodes.Episode(
      np.arange(9, dtype=np.float32).reshape(3, 3),
      np.array([[-1.0], [0.5]], np.float32),
      np.array([1.0, 2.0], np.float32),
      terminated,
    )

  both = [episode(True), episode(False)]
  counts = minari.write(tmp_path, 'a-v0', 'Pendulum-v1', both, {})
  assert counts == (2, 4)
  data = tmp_path / 'a-v0' / 'data'
  with h5py.File(data / 'main_data.hdf5') as file:
    for name, ends in (
      ('episode_0', 'terminations'),
      ('episode_1', 'truncations'),
    ):
      group = file[name]
      np.testing.assert_array_equal(group['actions'], [[-2.0], [1.0]])
      np.testing.assert_array_equal(group['rewards'], [1.0, 2.0])
      assert group['observations'].shape == (3, 3)
      flags = {'terminations', 'truncations'}
      assert group[ends][:].tolist() == [False, True]
      assert not group[(flags - {ends}).pop()][:].any()
      assert group.attrs['total_steps'] == 2
  metadata = json.loads((data / 'metadata.json').read_text())
  space = json.loads(metadata['action_space'])
  assert (space['low'], space['high']) == ([-2.0], [2.0])
  assert minari._own_units(
    gymnasium.spaces.Discrete(2, start=5), np.array([0, 1])
  ).tolist() == [5, 6]


class Parts(gymnasium.Env):
  observation_space = gymnasium.spaces.Discrete(4, start=1)
  action_space: gymnasium.Space = gymnasium.spaces.MultiDiscrete(
    [2, 3], start=[0, 7]
  )


class Switches(Parts):
  action_space = gymnasium.spaces.MultiBinary(2)


class Levels(Parts):
  action_space = gymnasium.spaces.Box(-128, 127, (1,), np.int8)


@pytest.mark.parametrize(
  'kind, last, own',
  [(Parts, 5, [1, 9]), (Switches, 3, [1, 1]), (Levels, 255, [127])],
)
def test_minari_has_actions_in_parts_and_flat_observations(
  tmp_path, kind, last, own
):
  seen = np.eye(4, dtype=np.float32)[:3]
  actions, rewards = np.array([0, last], np.int32), np.ones(2, np.float32)
  episode = episodes.Episode(seen, actions, rewards, True)
  name = f'{__name__}:{kind.__name__}'
  assert minari.write(tmp_path, 'a-v0', name, [episode], {}) == (1, 2)
  data = tmp_path / 'a-v0' / 'data'
  with h5py.File(data / 'main_data.hdf5') as file:
    group = file['episode_0']
    np.testing.assert_array_equal(group['observations'], seen)
    first, other = group['actions'][:].astype(int).tolist()
    assert other == own and group['actions'].dtype == kind.action_space.dtype
  start = getattr(
    kind.action_space, 'start', getattr(kind.action_space, 'low', 0)
  )
  assert first == np.broadcast_to(start, len(own)).tolist()
  metadata = json.loads((data / 'metadata.json').read_text())
  assert json.loads(metadata['observation_space'])['shape'] == [4]
  space = json.loads(metadata['action_space'])
  assert space['type'] == type(kind.action_space).__name__


@pytest.mark.parametrize(
  ('name', 'said'),
  [('nowhere', 'no directory'), ('empty', 'neither a run')],
)
def test_what_has_no_replay_is_refused(tmp_path, name, said, capsys):
  (tmp_path / 'empty').mkdir()
  out = tmp_path / 'out'
  assert export.main([str(tmp_path / name), str(out)]) == 2
  assert said in capsys.readouterr().err


def test_replay_in_the_memory_of_workers_is_exported_in_order(tmp_path):
  checkpoints_directory = tmp_path / 'run' / 'checkpoints'
  checkpoints_directory.mkdir(parents=True)
  rows = _written(3, 0.5)[:150]
  for node, own in enumerate((rows[:90], rows[90:])):
    spec = LAYOUT.signature()
    # Of the first 90, the 20 oldest have left.
    kept = ring.Ring(
      70, 4, spec.shape, LAYOUT.dtype, 0, exponent=0.5, layout=spec.name
    )
    kept.extend(own, np.arange(len(own)) + 1.0)
    path = checkpoints_directory / f'ring-learner-{node}-0.npz'
    np.savez(path, **kept.save())
  # Left behind by a version whose files did not say what they hold.
  older = {k: v for k, v in kept.save().items() if k != 'layout'}
  np.savez(checkpoints_directory / 'ring-0.npz', **older)
  out = [str(tmp_path / 'out'), '--format=arrays']
  assert export.main([str(tmp_path / 'run'), *out]) == 0
  found, priorities, _ = export.load(tmp_path / 'out')
  wanted = LAYOUT.unpack(np.concatenate([rows[20:90], rows[90:]]))
  for name in export.FIELDS:
    np.testing.assert_array_equal(
      getattr(LAYOUT.unpack(found), name), getattr(wanted, name), name
    )
  assert priorities.tolist() == [*range(21, 91), *range(1, 61)]


def test_replay_that_does_not_say_what_it_holds_is_refused(tmp_path, capsys):
  (tmp_path / 'run' / 'checkpoints').mkdir(parents=True)
  older = {'rows': np.ones((2, 3), np.float32), 'priorities': np.ones(2)}
  path = tmp_path / 'run' / 'checkpoints' / 'ring-0.npz'
  np.savez(path, **older, count=2)
  assert export.main([str(tmp_path / 'run'), str(tmp_path / 'out')]) == 2
  assert str(path) in capsys.readouterr().err


def test_minari_without_the_config_of_a_run_is_refused(run, tmp_path, capsys):
  (run / 'config.json').unlink()
  shard = str(run / 'checkpoints' / 'replay' / 'shard_0')
  out = str(tmp_path / 'out')
  assert export.main([shard, out, '--format=minari']) == 2
  assert '--format=arrays' in capsys.readouterr().err
  assert export.main([shard, out, '--format=arrays']) == 0


@pytest.mark.parametrize(
  ('agent', 'mixed'),
  [
    ({'n_step': 1, 'gamma': 0.5}, True),
    ({'n_step': 3, 'gamma': 0.9}, True),
    ({'n_step': 3, 'gamma': 0.5, 'reward_clip': 1.0}, True),
    ({'n_step': 3, 'gamma': 0.5, 'batch_size': 8}, False),
  ],
)
def test_a_run_that_went_on_with_other_sums_says_so(
  run, tmp_path, capsys, agent, mixed
):
  before = {**CONFIG, 'agent': agent}
  (run / 'config.1.json').write_text(json.dumps(before))
  out = tmp_path / 'out'
  assert export.main([str(run), str(out), '--format=minari']) == 2 * mixed
  assert ('--format=arrays' in capsys.readouterr().err) == mixed
  assert export.main([str(run), str(out), '--format=arrays']) == 0
  assert ('may still hold' in capsys.readouterr().out) == mixed
  about = export.about(out)
  assert about['n_step'] == 3
  sums = {'reward_clip': None, **agent}
  assert about.get('also', []) == ([sums] if mixed else [])


def test_without_discounts_episodes_cannot_be_told_apart(run, tmp_path, capsys):
  blind = {**CONFIG, 'agent': {'n_step': 3, 'gamma': 0.0}}
  (run / 'config.json').write_text(json.dumps(blind))
  out = str(tmp_path / 'out')
  assert export.main([str(run), out, '--format=minari']) == 2
  assert 'agent.gamma=0.0 and agent.n_step=3' in capsys.readouterr().err


@pytest.mark.parametrize(('n', 'code'), [(1, 0), (3, 2)])
def test_another_gamma_changes_no_sum_of_one_reward(tmp_path, capsys, n, code):
  run = _run(tmp_path / 'run', n)
  before = {**CONFIG, 'agent': {'n_step': n, 'gamma': 0.9}}
  (run / 'config.1.json').write_text(json.dumps(before))
  out = tmp_path / 'out'
  assert export.main([str(run), str(out), '--format=minari']) == code
  assert (out / 'dqn_cartpole-v0').exists() == (code == 0)
  assert ('may still hold' in capsys.readouterr().err) == (code == 2)


def test_blocks_of_unrolls_are_refused(tmp_path, capsys):
  import tensorflow as tf

  path = tmp_path / 'shard_0'
  signature = tf.TensorSpec((5,), tf.float32, name='block')
  table = tables.uniform('queue', 10, 1, signature)
  opened = checkpoints.open_server([table], directory=path)
  checkpoints.save(opened, path, {})
  opened.server.stop()
  assert export.main([str(path), str(tmp_path / 'out')]) == 2
  assert 'holds no transitions' in capsys.readouterr().err


@pytest.mark.parametrize('kind', ['others', 'array', 'empty', 'cut'])
def test_a_file_of_something_else_is_no_data_set(tmp_path, kind):
  path = tmp_path / export.FILE
  with path.open('wb') as file:
    if kind == 'array':
      np.save(file, np.zeros(3))
    elif kind != 'empty':
      np.savez(file, x=np.zeros(3))
  if kind == 'cut':
    path.write_bytes(path.read_bytes()[:-10])
  for read in (export.load, export.about):
    with pytest.raises(ValueError, match='no data set of transitions'):
      read(path)


def _minari_fails(out, capsys, run, said):
  before = sorted(out.rglob('*'))
  assert export.main([str(run), str(out)]) == 2
  assert said in capsys.readouterr().err
  assert sorted(out.rglob('*')) == before


def test_without_an_episode_arrays_can_still_go_there(
  run, tmp_path, capsys, monkeypatch
):
  out = tmp_path / 'out'
  out.mkdir()
  with monkeypatch.context() as patch:
    patch.setattr(episodes, 'episodes', lambda *unused: iter(()))
    _minari_fails(out, capsys, run, '--format=arrays')
  assert export.main([str(run), str(out), '--format=arrays']) == 0
  # What is there already is refused before anything is written.
  _minari_fails(out, capsys, run, f'{out / export.FILE} is there already')
  assert export.main([str(run), str(out), '--format=minari']) == 0
  (out / export.FILE).unlink()
  there = out / 'dqn_cartpole-v0'
  assert there.stat().st_mode == out.stat().st_mode  # others may read it too
  _minari_fails(out, capsys, run, f'{there} is there already. Give another')
