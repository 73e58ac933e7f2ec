"""What a trainer keeps, and to whom it is given back."""

import functools
import pathlib
import threading

import numpy as np
import pytest
import reverb

from agents import dqn
from environment_loops import environments
from launch import experiment as experiment_lib
from launch import link as link_lib
from launch.nodes import trainer as trainer_lib
from launch.nodes import trainer_state
from replay.checkpoints import files as checkpoint_files
from run_records import run_directory

STEPS = 100

pytestmark = pytest.mark.usefixtures('private_directory')


class _Remembers(link_lib.Link):
  """What the members have before their first step."""

  def begin(self, trainer):
    self.steps = trainer.steps
    self.learner = trainer.learner.save()


def _run(make_counter, directory, steps, hidden=8):
  config = dqn.Config(hidden_sizes=(hidden,), min_replay_size=20, batch_size=4)
  spec = environments.Spec('counting', (3,), 2)
  experiment = experiment_lib.Experiment(
    functools.partial(dqn.DQN, config, spec),
    'counting',
    2,
    1000,
    20,
    1,
    run=experiment_lib.RunConfig(steps_per_agent=steps, updates_per_call=4),
    run_dir=str(directory),
  )
  counter = make_counter(directory, {'actor_steps': experiment.total_steps})
  link = _Remembers()
  infos = [experiment.actor_info(i) for i in range(2)]
  trainer = trainer_lib.Trainer(
    experiment, 'explorer/3', infos, 'none', counter, link=link, shard=3
  )
  trainer.run(threading.Event())
  counter.close()
  return link, trainer


def test_a_learner_goes_to_the_next_start_of_a_run_and_to_no_other(
  recorder, make_counter, tmp_path
):
  path = run_directory.create(tmp_path / 'run', {}, {}).path
  _, first = _run(make_counter, path, STEPS)
  saved = first.learner.save()
  with np.load(path / 'checkpoints' / 'explorer-3.npz') as kept:
    assert set(kept) == {'start', *saved}
  # A node that died in the same start begins with what its link says.
  again, _ = _run(make_counter, path, STEPS)
  assert again.learner['updates'] == 0
  assert (again.learner['theta'] != saved['theta']).any()
  # A resumed run has the learner whole, and the replay.
  _, last = _run(make_counter, path, STEPS + 60)
  saved = last.learner.save()
  run_directory.create(path, {}, {}, resume=True)
  resumed, trainer = _run(make_counter, path, STEPS + 90)
  assert resumed.steps == STEPS + 60
  for name, value in saved.items():
    np.testing.assert_array_equal(resumed.learner[name], value)
  # It learned at once: 20 steps without a transition would be no call.
  assert trainer.learner.updates >= saved['updates'] + 28
  shard = path / 'checkpoints' / 'replay' / 'shard_3'
  assert any(shard.glob('generation_*'))


def test_a_learner_of_another_network_is_refused(
  recorder, make_counter, tmp_path
):
  path = run_directory.create(tmp_path / 'run', {}, {}).path
  _run(make_counter, path, STEPS)
  run_directory.create(path, {}, {}, resume=True)
  with pytest.raises(ValueError, match='Resume with the same config'):
    _run(make_counter, path, 2 * STEPS, hidden=9)


def test_saving_replay_takes_a_small_share_of_the_time(monkeypatch, tmp_path):
  now, took_s = [0.0], 30.0
  monkeypatch.setattr(trainer_state.time, 'monotonic', lambda: now[0])
  saves = []

  class Host:
    def save(self, meta, last):
      saves.append(now[0])
      now[0] += took_s

  class Learner:
    updates = 7

    def save(self):
      return {'theta': np.zeros((1, 2))}

  state = trainer_state.State(str(tmp_path), 'trainer/0', Host(), 120.0)
  while now[0] < 3600:
    now[0] += 1
    state.save_now_and_then(Learner())
  assert len(saves) >= 4
  assert len(saves) * took_s < 3600 / 10


def test_a_checkpoint_of_replay_that_is_broken_does_not_end_a_trainer(
  recorder, make_counter, tmp_path, monkeypatch, caplog
):
  whole = reverb.Client.checkpoint

  def lossy(client):
    path = pathlib.Path(whole(client))
    (path / checkpoint_files.ITEMS).write_bytes(b'cut')
    return path

  monkeypatch.setattr(reverb.Client, 'checkpoint', lossy)
  path = run_directory.create(tmp_path / 'run', {}, {}).path
  _, trainer = _run(make_counter, path, STEPS)
  assert trainer.steps == STEPS
  assert 'Replay was not checkpointed' in caplog.text
