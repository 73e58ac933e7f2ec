"""What a worker keeps, and to whom it is given back."""

import functools
import pathlib

import numpy as np
import pytest
import reverb

from murmuration.agents import dqn
from murmuration.agents.exchange import local
from murmuration.environment_loops import environments
from murmuration.launch import experiment as experiment_lib
from murmuration.launch.nodes import saves as saves_lib
from murmuration.replay import checkpoints
from murmuration.run_records import run_directory

STEPS = 100


class _Remembers(local.Local):
  """What the members have before their first step."""

  def __init__(self, keeps_learner):
    self.keeps_learner = keeps_learner

  def begin(self, worker):
    self.steps = worker.steps
    self.learner = worker.learner.save()


@pytest.fixture
def run(recorder, run_worker, make_counter):
  """run(directory, steps, ...): its exchange, and the worker that ended."""

  def start(directory, steps, hidden=8, keeps_learner=False):
    experiment = _experiment(directory, steps, hidden)
    counter = make_counter(directory, {'actor_steps': experiment.total_steps})
    exchange = _Remembers(keeps_learner)
    worker = run_worker(
      experiment,
      counter,
      node='explorer/3',
      exchange=lambda: exchange,
      first_shard=3,
    )
    counter.close()
    return exchange, worker

  return start


def _experiment(directory, steps, hidden):
  config = dqn.Config(hidden_sizes=(hidden,), min_replay_size=20, batch_size=4)
  spec = environments.Spec('counting', (3,), 2)
  return experiment_lib.Experiment(
    functools.partial(dqn.DQN, config, spec),
    'counting',
    2,
    1000,
    20,
    experiment_lib.Pace(4.0),
    run=experiment_lib.RunConfig(steps_per_agent=steps, updates_per_call=4),
    run_dir=str(directory),
  )


@pytest.mark.long
def test_a_learner_goes_to_the_next_start_of_a_run_and_to_no_other(
  run, tmp_path
):
  path = run_directory.create(tmp_path / 'run', {}, {}).path
  _, first = run(path, STEPS)
  saved = first.learner.save()
  with np.load(path / 'checkpoints' / 'explorer-3.npz') as kept:
    assert set(kept) == {'start', 'random', *saved}
  # A node that died in the same start begins with what its exchange says, but
  # its learning rates go on falling.
  again, _ = run(path, STEPS)
  assert again.learner['updates'] == saved['updates'] > 0
  assert (again.learner['theta'] != saved['theta']).any()
  assert not again.learner['steps'].any()
  # A resumed run has the learner whole, and the replay.
  _, last = run(path, STEPS + 60)
  saved = last.learner.save()
  run_directory.create(path, {}, {}, resume=True)
  resumed, worker = run(path, STEPS + 90)
  assert resumed.steps == STEPS + 60
  for name, value in saved.items():
    np.testing.assert_array_equal(resumed.learner[name], value)
  # It learned at once: 20 steps without a transition would be no call.
  assert worker.learner.updates >= saved['updates'] + 28
  shard = path / 'checkpoints' / 'replay' / 'shard_3'
  assert any(shard.glob('generation_*'))


def test_where_its_exchange_says_so_a_node_that_died_goes_on(run, tmp_path):
  path = run_directory.create(tmp_path / 'run', {}, {}).path
  _, first = run(path, STEPS, keeps_learner=True)
  again, _ = run(path, STEPS, keeps_learner=True)
  assert again.learner['updates'] == first.learner.updates > 0
  for name, value in first.learner.save().items():
    np.testing.assert_array_equal(again.learner[name], value)


def test_a_learner_of_another_network_is_refused(run, tmp_path):
  path = run_directory.create(tmp_path / 'run', {}, {}).path
  run(path, STEPS)
  run_directory.create(path, {}, {}, resume=True)
  with pytest.raises(ValueError, match='Resume with the same config'):
    run(path, 2 * STEPS, hidden=9)


def _assert_a_small_share(kept, learner, now, saves, took_s):
  """Of an hour in which `saves`, of took_s each, move the clock `now`."""
  while now[0] < 3600:
    now[0] += 1
    if kept.due():
      kept.save(learner)
  assert len(saves) >= 4
  assert len(saves) * took_s < 3600 / 10


def test_saving_replay_takes_a_small_share_of_the_time(monkeypatch, tmp_path):
  now, took_s = [0.0], 30.0
  monkeypatch.setattr(saves_lib.time, 'monotonic', lambda: now[0])
  saves = []

  class Host:
    def save(self, meta, last):
      saves.append(now[0])
      now[0] += took_s

  class Learner:
    updates = 7

    def save(self):
      return {'theta': np.zeros((1, 2))}

  kept = saves_lib.Saves(str(tmp_path), 'worker/0', [Host()], 120.0)
  _assert_a_small_share(kept, Learner(), now, saves, took_s)


def test_saving_a_learner_takes_a_small_share_of_the_time(
  monkeypatch, tmp_path
):
  now, took_s = [0.0], 6.0
  monkeypatch.setattr(saves_lib.time, 'monotonic', lambda: now[0])
  saves = []

  class Learner:
    updates = 7

    def save(self):
      saves.append(now[0])
      now[0] += took_s
      return {'theta': np.zeros((1, 2))}

  kept = saves_lib.Saves(str(tmp_path), 'worker/0', [], 120.0)
  _assert_a_small_share(kept, Learner(), now, saves, took_s)


def test_a_large_learner_is_saved_less_often(monkeypatch, tmp_path):
  now = [0.0]
  monkeypatch.setattr(saves_lib.time, 'monotonic', lambda: now[0])
  monkeypatch.setattr(saves_lib, '_BYTES_PER_S', 100.0)

  class Learner:
    updates = 7

    def save(self):
      return {'theta': np.zeros((1, 100)), 'm': np.zeros((1, 100))}

  kept = saves_lib.Saves(str(tmp_path), 'worker/0', [], 120.0)
  kept.save(Learner())
  now[0] += 15.9  # 1600 bytes
  assert not kept.due()
  now[0] += 0.1
  assert kept.due()


def test_a_save_that_fails_is_tried_again_after_the_same_pause(
  monkeypatch, tmp_path
):
  now, took_s = [0.0], 6.0
  monkeypatch.setattr(saves_lib.time, 'monotonic', lambda: now[0])

  class Learner:
    whole = True

    def save(self):
      now[0] += took_s
      if not self.whole:
        raise OSError('the disk is full')
      return {'theta': np.zeros((1, 2))}

  kept = saves_lib.Saves(str(tmp_path), 'worker/0', [], 120.0)
  learner = Learner()
  kept.save(learner)
  took_s, learner.whole = 60.0, False
  with pytest.raises(OSError, match='the disk is full'):
    kept.save(learner)
  now[0] += 119.0  # 20 times what the one before it took, from its own end
  assert not kept.due()
  now[0] += 1.0
  assert kept.due()


def test_a_checkpoint_of_replay_that_is_broken_does_not_end_a_worker(
  run, tmp_path, monkeypatch, caplog
):
  whole = reverb.Client.checkpoint

  def lossy(client):
    path = pathlib.Path(whole(client))
    (path / checkpoints.ITEMS).write_bytes(b'cut')
    return path

  monkeypatch.setattr(reverb.Client, 'checkpoint', lossy)
  path = run_directory.create(tmp_path / 'run', {}, {}).path
  _, worker = run(path, STEPS)
  assert worker.steps == STEPS
  assert 'Replay was not checkpointed' in caplog.text
