"""Checkpoints of a shard: when it saves, and what its next life has."""

import functools
import threading
import time
import types

import numpy as np
import pytest

from murmuration.agents import learner
from murmuration.launch.services import shard as shard_lib
from murmuration.run_records import checkpoints
from tests.launch.services import shard_cases as cases


@pytest.mark.parametrize('reports', [False, True])
def test_a_shard_that_is_not_finite_ends_and_is_not_saved(tmp_path, reports):
  make = functools.partial(
    shard_lib.Shard,
    cases.make_experiment(str(tmp_path)),
    cases.make_config(),
    0,
  )
  shard, stop = make(), threading.Event()
  first = shard.pull().theta
  shard.push(0, 'a-1', 0, np.ones_like(first), (), 1)
  stop.set()
  shard.run(stop)  # which saves
  kept = shard.pull()
  with np.errstate(over='ignore'):
    # Finite, but its square is not: gradients would move nothing any more.
    assert shard.push(0, 'a-2', 1, np.full_like(first, 2e19), (), 2).accepted
  if reports:  # long before the next checkpoint is due
    shard._reporter = types.SimpleNamespace(due=lambda: True)
    stop.clear()
  with pytest.raises(learner.LearnerFault, match='lower agent.learning_rate'):
    shard.run(stop)
  again = make().pull()
  assert again.version == kept.version
  np.testing.assert_array_equal(again.theta, kept.theta)


def test_a_checkpoint_that_could_not_be_written_is_tried_again(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(shard_lib, '_RETRY_S', 0.2)  # in a loop of 0.1 s
  config = cases.make_config(checkpoint_period=1)
  make = functools.partial(
    shard_lib.Shard, cases.make_experiment(str(tmp_path)), config, 0
  )
  write, tries = checkpoints.write, []

  def full(*args, **arrays):
    tries.append(time.monotonic())
    if len(tries) < 3:
      raise OSError(28, 'No space left on device')
    write(*args, **arrays)

  monkeypatch.setattr(checkpoints, 'write', full)
  shard, stop = make(), threading.Event()
  shard.push(0, 'a-1', 0, np.ones_like(shard.pull().theta), (), 1)
  thread = threading.Thread(target=shard.run, args=(stop,), daemon=True)
  thread.start()
  until = time.monotonic() + 60
  while make().pull().version != 1 and time.monotonic() < until:
    time.sleep(0.05)
  stop.set()
  thread.join(60)
  assert make().pull().version == 1
  assert len(tries) == 4  # the last as it stopped


def test_what_a_shard_took_before_it_died_counts_once(tmp_path):
  config = cases.make_config(num_learners=2, max_staleness=3)
  make = functools.partial(
    shard_lib.Shard, cases.make_experiment(str(tmp_path)), config, 0
  )
  old = make()
  gradient = np.ones_like(old.pull().theta)
  life = old.pull().life
  taken = 1, 'a-1', 0, gradient, (), 10, life
  rejected = 0, 'b-1', 7, gradient, (), 20, life
  old.push(*taken)
  old.push(*rejected)
  ended = threading.Event()
  ended.set()
  old.run(ended)  # which saves
  # It died before its answers came; they are asked for again.
  new = make()
  again = new.push(*taken)
  assert again.accepted and again.version == 1
  np.testing.assert_array_equal(again.theta, old.pull().theta)
  assert not new.push(*rejected).accepted
  assert new.numbers()['gradients_rejected'] == 1


def test_a_shard_whose_learners_have_all_left_saves_at_once(tmp_path):
  config = cases.make_config(num_learners=2, checkpoint_period=100)
  make = functools.partial(
    shard_lib.Shard, cases.make_experiment(str(tmp_path)), config, 0
  )
  shard = make()
  shard.push(0, 'a-1', 0, np.ones_like(shard.pull().theta), (), 1)
  stop = threading.Event()
  thread = threading.Thread(target=shard.run, args=(stop,), daemon=True)
  thread.start()
  shard.leave(0)
  time.sleep(0.3)
  assert make().pull().version == 0  # learner 1 may go on
  shard.leave(1)
  until = time.monotonic() + 60
  while make().pull().version != 1 and time.monotonic() < until:
    time.sleep(0.1)
  assert make().pull().version == 1
  stop.set()
  thread.join(60)
