"""Shards and their learners, as threads that share no variable."""

import dataclasses
import functools
import threading
import time
import types

import numpy as np
import pytest

from murmuration.agents import dqn
from murmuration.agents import ppo
from murmuration.agents.exchange import base as exchange_base
from murmuration.agents.exchange import local as local_exchange
from murmuration.agents.exchange import remote_apply
from murmuration.launch.services import shard as shard_lib
from murmuration.launch.services import shard_exchange
from tests.launch.services import shard_cases as cases

UPDATES = cases.UPDATES
CALLS = 250  # where the loops are compared: 1,000 updates


def test_one_learner_and_its_shards_are_the_plain_loop_however_many():
  alone = cases.make_learner(local_exchange.Local())
  before = alone.parameters()
  for seed in range(CALLS):
    alone.step(cases.packed(seed))
  assert np.abs(alone.parameters() - before).max() > 0.05
  found = {}
  for num_shards in (1, 4):
    config = cases.make_config(num_shards=num_shards)
    apart, exchange = cases.remote(config, cases.make_shards(config))
    np.testing.assert_array_equal(apart.parameters(), before)
    for seed in range(CALLS):
      apart.step(cases.packed(seed))
    for name in ('theta', 'target'):
      np.testing.assert_allclose(
        apart.save()[name], alone.save()[name], rtol=1e-5, atol=1e-5
      )
    numbers = exchange.metrics()
    assert numbers['server_version'] == CALLS * UPDATES
    assert numbers['gradients_sent'] == CALLS * UPDATES
    assert numbers['gradients_rejected'] == numbers['mixed_pulls'] == 0
    found[num_shards] = apart.parameters()
  np.testing.assert_allclose(found[1], found[4], rtol=0, atol=1e-6)


def test_a_learner_that_lags_is_rejected_and_the_others_go_on():
  config = cases.make_config(num_learners=2, max_staleness=2)
  (client,) = cases.make_shards(config)
  one, _ = cases.remote(config, [client], 0)
  slow, exchange = cases.remote(config, [client], 1)
  one.step(cases.packed(0))
  slow.step(cases.packed(1))
  # The first of its four was of 4 updates ago; then it has what is new.
  assert exchange.metrics()['gradients_rejected'] == 1
  assert client.shard.numbers()['gradients_rejected_of_1'] == 1
  numbers = client.shard.numbers()
  assert numbers['version'] == 2 * UPDATES - 1
  assert numbers['staleness_max'] == UPDATES
  assert (numbers['staleness_of_0'], numbers['staleness_of_1']) == (0, 0)


def test_a_learner_late_by_fifty_updates_moves_nothing_and_costs_nothing():
  config = cases.make_config(num_learners=2, max_staleness=4)
  alone, beside = cases.make_shards(config), cases.make_shards(config)
  found = []
  for shards in (alone, beside):
    made, _ = cases.remote(config, shards, 0)
    for seed in range(15):  # 60 updates
      made.step(cases.packed(seed))
      if shards is beside and seed >= 13:  # of a version 52 and more ago
        late = shards[0].shard.push(
          1, f'late-{seed}', 0, np.ones_like(made.parameters()[0]), (), 0
        )
        assert not late.accepted
    found.append(made.parameters())
  np.testing.assert_array_equal(found[0], found[1])
  assert beside[0].shard.numbers()['gradients_rejected_of_1'] == 2
  assert beside[0].shard.numbers()['staleness_max'] == 60


def test_a_minute_of_rejections_is_said_with_the_counters(caplog):
  (client,) = cases.make_shards(
    cases.make_config(num_learners=2, max_staleness=4)
  )
  shard = client.shard
  gradient = np.zeros(shard.pull().theta.shape, np.float32)

  def said_after(passed_s):
    shard._accepted_at -= passed_s
    shard._say_if_rejecting()
    return caplog.text.count('Rejected so far, by learner: {1: ')

  assert said_after(61) == 0  # nothing came
  shard.push(1, 'a-1', 7, gradient, (), 0)  # of the future
  assert said_after(0) == 1
  assert '{1: 1}' in caplog.text
  assert said_after(30) == 1  # once a minute
  assert said_after(31) == 2
  assert shard.push(0, 'b-1', 0, gradient, (), 0).accepted
  assert said_after(61) == 2
  assert shard.push(0, 'b-2', 1, gradient, (), 0).accepted
  shard.push(1, 'a-2', 7, gradient, (), 0)
  assert said_after(30) == 2  # one was accepted since


def test_a_filter_of_losses_survives_its_learner():
  config = cases.make_config(outlier_sigmas=4.0)
  shards = cases.make_shards(config)
  made, exchange = cases.remote(config, shards)
  for seed in range(5):
    made.step(cases.packed(seed))
  kept = made.save()
  assert exchange._filter.state[0] == 5 * UPDATES
  again, restarted = cases.remote(config, shards)
  again.restore(kept)
  worker = types.SimpleNamespace(learner=again, steps=0, over=lambda: False)
  restarted.begin(worker)
  np.testing.assert_array_equal(restarted._filter.state, exchange._filter.state)


def test_a_gradient_that_was_sent_twice_counts_once():
  config = cases.make_config(num_shards=2)
  shards = cases.make_shards(config)
  made, exchange = cases.remote(config, shards)
  shards[1].lose_answers = 1
  made.step(cases.packed(0))
  versions = [client.shard.numbers()['version'] for client in shards]
  assert versions == [UPDATES, UPDATES]
  assert exchange.metrics()['gradients_rejected'] == 0


def test_a_shard_that_is_away_is_waited_for(caplog, monkeypatch):
  said = []  # to the launcher
  monkeypatch.setattr(shard_exchange.pulse, 'waits', said.append)
  config = cases.make_config(num_shards=2)
  shards = cases.make_shards(config)
  made, exchange = cases.remote(config, shards)
  made.step(cases.packed(0))  # which traces
  shard, shards[1].shard = shards[1].shard, None

  def come_back():
    until = time.monotonic() + 60
    while 'Waiting for shard 1' not in caplog.text and time.monotonic() < until:
      time.sleep(0.01)
    time.sleep(0.5)  # it is called more than once meanwhile
    shards[1].shard = shard

  threading.Thread(target=come_back).start()
  made.step(cases.packed(1))
  assert shard.numbers()['version'] == 2 * UPDATES
  assert exchange.metrics()['server_waited_s'] > 0.3
  assert caplog.text.count('Waiting for shard 1') == 1
  assert said[-1].startswith('shard 1 is away: ')
  assert 'Shard 1 is back' in caplog.text


def test_a_wait_ends_with_the_run():
  config = cases.make_config()
  shards = cases.make_shards(config)
  over = threading.Event()
  made, _ = cases.remote(config, shards, over=over.is_set)
  shards[0].shard = None
  threading.Timer(0.3, over.set).start()
  with pytest.raises(exchange_base.Stopped):
    made.step(cases.packed(0))


def test_a_shard_goes_on_from_its_checkpoint(tmp_path):
  config = cases.make_config(max_staleness=3)
  shards = cases.make_shards(config, str(tmp_path))
  made, exchange = cases.remote(config, shards)
  made.step(cases.packed(0))
  ended = threading.Event()
  ended.set()
  shards[0].shard.run(ended)  # which saves
  kept = made.parameters()
  made.step(cases.packed(1))
  shards[0].shard = shard_lib.Shard(
    cases.make_experiment(str(tmp_path)), config, 0
  )
  assert shards[0].shard.numbers()['version'] == UPDATES
  np.testing.assert_array_equal(shards[0].shard.pull().theta, kept[0])
  made.step(cases.packed(2))
  # The first gradient was of the future; the three others are accepted.
  assert exchange.metrics()['gradients_rejected'] == 1
  assert shards[0].shard.numbers()['version'] == 2 * UPDATES - 1


def test_a_gradient_of_updates_that_a_restart_lost_is_not_taken_for_a_new_one(
  tmp_path,
):
  config = cases.make_config()
  make = functools.partial(
    shard_lib.Shard, cases.make_experiment(str(tmp_path)), config, 0
  )
  client = cases.Direct(make())
  places = shard_lib.places(cases.make_experiment().make_agent(), config)
  slow, quick = (shard_exchange.Shards([client], places, i) for i in (0, 0))
  quick.start()
  ones = remote_apply.Message(np.ones(client.shard.pull().theta.size), {}, 0)
  assert quick.push(ones).accepted == 1
  slow.start()  # of version 1, which is not saved
  client.shard = make()
  quick.start()
  assert quick.push(ones).accepted == 1
  before = client.shard.pull()
  assert before.version == 1
  again = slow.push(ones)
  assert (again.accepted, again.version) == (0, 1)
  np.testing.assert_array_equal(again.theta, before.theta)
  assert client.shard.numbers()['gradients_rejected_of_0'] == 1
  # It was told of the new life.
  assert slow.push(ones).accepted == 1


def test_a_learner_takes_what_shards_have_once_that_is_finite(monkeypatch):
  monkeypatch.setattr(shard_exchange, '_PAUSE_S', 0.01)
  (client,) = shards = cases.make_shards(cases.make_config())
  over = []
  _, exchange = cases.remote(
    cases.make_config(), shards, over=lambda: bool(over)
  )
  theta = client.shard._slice.theta
  good = theta.copy()
  theta[3] = np.nan

  def restored():
    time.sleep(0.1)
    theta[:] = good

  threading.Thread(target=restored).start()
  np.testing.assert_array_equal(exchange.replacement(0), good)
  theta[3] = np.nan
  over.append(True)  # then nobody waits
  assert exchange.replacement(0) is None


def test_a_call_that_a_newer_one_has_overtaken_is_not_applied():
  (client,) = cases.make_shards(cases.make_config())
  shard = client.shard
  gradient = np.ones_like(shard.pull().theta)
  for number in (9, 10):
    reply = shard.push(0, f'a-{number}', number - 9, gradient, (), number)
    assert reply.accepted
  late = shard.push(0, 'a-9', 2, gradient, (), 9)
  assert late.version == 2
  np.testing.assert_array_equal(late.theta, reply.theta)
  assert shard.push(0, 'b-1', 2, gradient, (), 11).version == 3  # a next life


def test_without_a_limit_what_is_late_is_taken_and_its_lag_is_logged():
  (client,) = cases.make_shards(cases.make_config(num_learners=2))
  gradient = np.zeros_like(client.shard.pull().theta)
  for update in range(50):
    client.shard.push(0, f'a-{update}', update, gradient, (), 0)
  assert client.shard.push(1, 'late-1', 0, gradient, (), 0).accepted
  numbers = client.shard.numbers()
  assert numbers['staleness_of_1'] == numbers['staleness_max'] == 50
  assert numbers['gradients_rejected'] == 0


def test_steps_of_all_learners_are_added_up():
  config = cases.make_config(num_learners=2)
  (client,) = cases.make_shards(config)
  for index, steps in ((0, 100), (1, 30), (0, 150), (1, 20)):
    reply = client.shard.push(index, f'{index}-{steps}', 0, None, (), steps)
  # A learner that came back has not taken its steps back.
  assert reply.steps == 180


def test_rates_fall_by_the_updates_that_a_restarted_shard_has_made(tmp_path):
  agent = dqn.DQN(
    dqn.Config(hidden_sizes=(4,), optimizer='sgd', anneal_updates=40),
    cases.SPEC,
  )
  experiment = dataclasses.replace(
    cases.make_experiment(str(tmp_path)), make_agent=lambda: agent
  )

  def push(shard, number):
    gradient = np.ones_like(shard.pull().theta)
    shard.push(0, f'a-{number}', number, gradient, (), 0)

  shard = shard_lib.Shard(experiment, cases.make_config(), 0)
  for number in range(20):
    push(shard, number)
  stop = threading.Event()
  stop.set()
  shard.run(stop)  # which saves
  # A resumed run may have more learners.
  again = shard_lib.Shard(experiment, cases.make_config(num_learners=5), 0)
  before = again.pull()
  assert (before.version, before.scheduled) == (20, 20)
  push(again, 20)
  # Half of 40 were made: half the rate.
  moved = before.theta - again.pull().theta
  np.testing.assert_allclose(moved, agent.learning_rate / 2, rtol=1e-4)


def test_rates_fall_by_environment_steps_also_of_updates_that_are_stopped():
  config = ppo.Config(
    hidden_sizes=(4,),
    rollout_steps=128,
    unroll_length=16,
    batch_size=32,
    epochs=2,
    anneal_env_steps=1280,
  )
  agent = ppo.PPO(config, cases.SPEC)
  assert agent.updates_per_call == 8
  experiment = dataclasses.replace(
    cases.make_experiment(), make_agent=lambda: agent
  )
  shard = shard_lib.Shard(experiment, cases.make_config(), 0)
  factor = shard._slice._factor
  for rollout in range(10):
    for update in range(8):
      steps = 128 * (rollout + 1)
      gradient = np.ones_like(shard.pull().theta) if update < 2 else None
      number = 8 * rollout + update
      shard.push(0, f'a-{number}', shard.pull().version, gradient, (), steps)
      at = shard._scheduled(1)
      assert factor(at) == pytest.approx(1 - rollout / 10)
  assert shard.pull().version == 20


def test_what_the_others_learn_is_served_by_one_that_has_ended():
  config = cases.make_config(num_learners=2)
  shards = cases.make_shards(config)
  first, exchange = cases.remote(config, shards, 0)
  other, _ = cases.remote(config, shards, 1)
  other.step(cases.packed(0))
  assert not exchange.sync()  # its next gradient brings what there is
  exchange.ended()
  assert exchange.sync()
  np.testing.assert_array_equal(first.parameters(), other.parameters())
  shards[0].shard._slice.theta[3] = np.nan
  assert not exchange.sync()
  np.testing.assert_array_equal(first.parameters(), other.parameters())
