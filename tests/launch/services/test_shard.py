"""Shards and their learners, as threads that share no variable."""

import dataclasses
import functools
import threading
import types

import numpy as np
import pytest
import tensorflow as tf

from agents import base
from agents import dqn
from agents import feeds
from agents import learner
from agents import parameters
from agents.exchange import base as exchange_base
from agents.exchange import local as local_exchange
from agents.exchange import remote_apply
from environment_loops import environments
from launch import experiment as experiment_lib
from launch import rpc
from launch.services import shard as shard_lib
from launch.services import shard_exchange
from launch.topologies import parameter_server
from replay import packing

BATCH, UPDATES = 8, 4
NAN = float('nan')
CALLS = 250  # where the loops are compared: 1,000 updates
SPEC = environments.spec('CartPole-v1')
LAYOUT = packing.TransitionLayout(SPEC.observation_shape)
AGENT = dqn.Config(
  hidden_sizes=(16,),
  batch_size=BATCH,
  optimizer='adagrad',
  learning_rate=0.05,
  target_update_period=10,
  max_gradient_norm=0.5,
)


def _experiment(run_dir=None):
  return experiment_lib.Experiment(
    make_agent=functools.partial(dqn.DQN, AGENT, SPEC),
    environment='CartPole-v1',
    num_agents=1,
    max_replay_size=1000,
    min_replay_size=100,
    run_dir=run_dir,
  )


def _config(**changes):
  return parameter_server.Config(**{'num_learners': 1, **changes})


class Direct:
  """Stands for a client of a shard; `shard` None: it is away."""

  def __init__(self, shard=None):
    self.shard = shard
    self.lose_answers = 0

  def with_deadline(self, timeout_s):
    del timeout_s
    return self

  def _call(self, method, *args):
    if self.shard is None:
      raise rpc.Unavailable('nowhere', method, False, 'nothing listens')
    answer = getattr(self.shard, method)(*args)
    if self.lose_answers:
      self.lose_answers -= 1
      raise rpc.Unavailable('nowhere', method, True, 'connection lost')
    return tuple(answer)

  def pull(self):
    return self._call('pull')

  def push(self, *args):
    return self._call('push', *args)

  def leave(self, learner):
    self.shard.leave(learner)


def _shards(config, run_dir=None):
  return [
    Direct(shard_lib.Shard(_experiment(run_dir), config, i))
    for i in range(config.num_shards)
  ]


def _packed(seed):
  rng = np.random.default_rng(seed)
  shape = (UPDATES * BATCH,)
  return tf.constant(
    LAYOUT.pack(
      rng.normal(size=(*shape, 4)),
      rng.integers(0, 2, shape),
      rng.normal(size=shape),
      rng.integers(0, 2, shape),
      rng.normal(size=(*shape, 4)),
      np.ones(shape),
    )
  )


def _learner(exchange, theta=None):
  agent = _experiment().make_agent()
  if theta is None:
    seed = base.actor_seed(base.ActorInfo(0, 1, 0), 'initial from step 0')
    theta = exchange.initial(agent.initial(seed)[None], False)
  return learner.TFLearner(
    agent,
    theta,
    [agent.learning_rate],
    exchange,
    feeds.Transitions(LAYOUT, BATCH),
    updates_per_call=UPDATES,
  )


def _remote(config, shards, index=0, over=lambda: False):
  places = shard_lib.places(_experiment().make_agent(), config)
  exchange = shard_exchange.ServerExchange(config, places, index, shards)
  made = _learner(exchange)
  worker = types.SimpleNamespace(learner=made, steps=0, over=over)
  exchange.begin(worker)
  return made, exchange


def test_one_learner_and_its_shards_are_the_plain_loop_however_many():
  alone = _learner(local_exchange.Local())
  before = alone.parameters()
  for seed in range(CALLS):
    alone.step(_packed(seed))
  assert np.abs(alone.parameters() - before).max() > 0.05
  found = {}
  for num_shards in (1, 4):
    config = _config(num_shards=num_shards, consistent_pull=num_shards > 1)
    apart, exchange = _remote(config, _shards(config))
    np.testing.assert_array_equal(apart.parameters(), before)
    for seed in range(CALLS):
      apart.step(_packed(seed))
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


def test_versions_that_never_fit_are_said_once(monkeypatch, caplog):
  monkeypatch.setattr(shard_exchange, '_CONSISTENT_S', 0.01)
  config = _config(num_shards=2, consistent_pull=True)
  shards = _shards(config)
  made, exchange = _remote(config, shards)
  made.step(_packed(0))
  assert exchange.metrics()['mixed_pulls'] == 0
  # What a shard that is started again has lost, the other way round.
  gradient = np.zeros_like(shards[0].shard.pull().theta)
  shards[0].shard.push(1, 'x', UPDATES, gradient, (), 0)
  made.step(_packed(1))
  assert exchange.metrics()['mixed_pulls'] == UPDATES
  assert caplog.text.count('leave server.consistent_pull out') == 1
  assert f'versions {[UPDATES + 2, UPDATES + 1]} after' in caplog.text


def test_a_learner_that_lags_is_rejected_and_the_others_go_on():
  config = _config(num_learners=2, max_staleness=2)
  (client,) = _shards(config)
  one, _ = _remote(config, [client], 0)
  slow, exchange = _remote(config, [client], 1)
  one.step(_packed(0))
  slow.step(_packed(1))
  # The first of its four was of 4 updates ago; then it has what is new.
  assert exchange.metrics()['gradients_rejected'] == 1
  assert client.shard.numbers()['gradients_rejected_of_1'] == 1
  numbers = client.shard.numbers()
  assert numbers['version'] == 2 * UPDATES - 1
  assert numbers['staleness_max'] == UPDATES
  assert (numbers['staleness_of_0'], numbers['staleness_of_1']) == (0, 0)


def test_a_learner_late_by_fifty_updates_moves_nothing_and_costs_nothing():
  config = _config(num_learners=2, max_staleness=4)
  alone, beside = _shards(config), _shards(config)
  found = []
  for shards in (alone, beside):
    made, _ = _remote(config, shards, 0)
    for seed in range(15):  # 60 updates
      made.step(_packed(seed))
      if shards is beside and seed >= 13:  # of a version 52 and more ago
        late = shards[0].shard.push(
          1, f'late-{seed}', 0, np.ones_like(made.parameters()[0]), (), 0
        )
        assert not late.accepted
    found.append(made.parameters())
  np.testing.assert_array_equal(found[0], found[1])
  assert beside[0].shard.numbers()['gradients_rejected_of_1'] == 2
  assert beside[0].shard.numbers()['staleness_max'] == 60


def test_a_minute_of_rejections_is_said_with_the_counters(monkeypatch, caplog):
  monkeypatch.setattr(shard_lib, '_REJECTING_S', 0.0)
  (client,) = _shards(_config(num_learners=2, max_staleness=4))
  gradient = np.zeros(client.shard.pull().theta.shape, np.float32)
  client.shard.push(1, 'a', 7, gradient, (), 0)  # of the future
  client.shard._say_if_rejecting()
  assert 'Rejected so far, by learner: {1: 1}' in caplog.text


def test_slices_by_variable_are_one_shard_too():
  found = []
  for changes in ({}, {'num_shards': 3, 'slices': 'variables'}):
    config = _config(**changes)
    made, _ = _remote(config, _shards(config))
    for seed in range(20):
      made.step(_packed(seed))
    found.append(made.parameters())
  np.testing.assert_allclose(found[0], found[1], rtol=0, atol=1e-6)


def test_a_filter_of_losses_survives_its_learner():
  config = _config(outlier_sigmas=4.0)
  shards = _shards(config)
  made, exchange = _remote(config, shards)
  for seed in range(5):
    made.step(_packed(seed))
  kept = made.save()
  assert exchange._filter.state[0] == 5 * UPDATES
  again, restarted = _remote(config, shards)
  again.restore(kept)
  worker = types.SimpleNamespace(learner=again, steps=0, over=lambda: False)
  restarted.begin(worker)
  np.testing.assert_array_equal(restarted._filter.state, exchange._filter.state)


def test_a_gradient_that_was_sent_twice_counts_once():
  config = _config(num_shards=2)
  shards = _shards(config)
  made, exchange = _remote(config, shards)
  shards[1].lose_answers = 1
  made.step(_packed(0))
  versions = [client.shard.numbers()['version'] for client in shards]
  assert versions == [UPDATES, UPDATES]
  assert exchange.metrics()['gradients_rejected'] == 0


def test_a_shard_that_is_away_is_waited_for(caplog, monkeypatch):
  said = []  # to the launcher
  monkeypatch.setattr(shard_exchange.pulse, 'waits', said.append)
  config = _config(num_shards=2)
  shards = _shards(config)
  made, exchange = _remote(config, shards)
  made.step(_packed(0))  # which traces
  shard, shards[1].shard = shards[1].shard, None
  timer = threading.Timer(0.5, lambda: setattr(shards[1], 'shard', shard))
  timer.start()
  made.step(_packed(1))
  assert shard.numbers()['version'] == 2 * UPDATES
  assert exchange.metrics()['server_waited_s'] > 0.3
  assert caplog.text.count('Waiting for shard 1') == 1
  assert said[-1].startswith('shard 1 is away: ')
  assert 'Shard 1 is back' in caplog.text


def test_or_the_others_move_without_it(caplog):
  config = _config(num_shards=2, all_shards_required=False)
  shards = _shards(config)
  made, _ = _remote(config, shards)
  before = made.parameters()[0]
  shards[1].shard = None
  made.step(_packed(0))
  after = made.parameters()[0]
  half = -(-before.size // 2)
  assert (after[:half] != before[:half]).any()
  np.testing.assert_array_equal(after[half:], before[half:])
  assert caplog.text.count('Learning without shard 1') == 1


def test_a_wait_ends_with_the_run():
  config = _config()
  shards = _shards(config)
  over = threading.Event()
  made, _ = _remote(config, shards, over=over.is_set)
  shards[0].shard = None
  threading.Timer(0.3, over.set).start()
  with pytest.raises(exchange_base.Stopped):
    made.step(_packed(0))


def test_a_shard_goes_on_from_its_checkpoint(tmp_path):
  config = _config(max_staleness=3)
  shards = _shards(config, str(tmp_path))
  made, exchange = _remote(config, shards)
  made.step(_packed(0))
  ended = threading.Event()
  ended.set()
  shards[0].shard.run(ended)  # which saves
  kept = made.parameters()
  made.step(_packed(1))
  shards[0].shard = shard_lib.Shard(_experiment(str(tmp_path)), config, 0)
  assert shards[0].shard.numbers()['version'] == UPDATES
  np.testing.assert_array_equal(shards[0].shard.pull().theta, kept[0])
  made.step(_packed(2))
  # The first gradient was of the future; the three others are accepted.
  assert exchange.metrics()['gradients_rejected'] == 1
  assert shards[0].shard.numbers()['version'] == 2 * UPDATES - 1


@pytest.mark.parametrize('reports', [False, True])
def test_a_shard_that_is_not_finite_ends_and_is_not_saved(tmp_path, reports):
  make = functools.partial(
    shard_lib.Shard, _experiment(str(tmp_path)), _config(), 0
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


def test_what_a_shard_took_before_it_died_counts_once(tmp_path):
  config = _config(num_learners=2, max_staleness=3)
  make = functools.partial(
    shard_lib.Shard, _experiment(str(tmp_path)), config, 0
  )
  old = make()
  gradient = np.ones_like(old.pull().theta)
  taken, rejected = (1, 'a-1', 0, gradient, (), 10), (0, 'b-1', 7, gradient)
  old.push(*taken)
  old.push(*rejected, (), 20)
  ended = threading.Event()
  ended.set()
  old.run(ended)  # which saves
  # It died before its answers came; they are asked for again.
  new = make()
  again = new.push(*taken)
  assert again.accepted and again.version == 1
  np.testing.assert_array_equal(again.theta, old.pull().theta)
  assert not new.push(*rejected, (), 20).accepted
  assert new.numbers()['gradients_rejected'] == 1


def test_without_a_limit_what_is_late_is_taken_and_its_lag_is_logged():
  (client,) = _shards(_config(num_learners=2))
  gradient = np.zeros_like(client.shard.pull().theta)
  for update in range(50):
    client.shard.push(0, f'{update}', update, gradient, (), 0)
  assert client.shard.push(1, 'late', 0, gradient, (), 0).accepted
  numbers = client.shard.numbers()
  assert numbers['staleness_of_1'] == numbers['staleness_max'] == 50
  assert numbers['gradients_rejected'] == 0


def test_steps_of_all_learners_are_added_up():
  config = _config(num_learners=2)
  (client,) = _shards(config)
  for index, steps in ((0, 100), (1, 30), (0, 150), (1, 20)):
    reply = client.shard.push(index, f'{index}-{steps}', 0, None, (), steps)
  # A learner that came back has not taken its steps back.
  assert reply.steps == 180


def test_statistics_go_to_their_shard():
  size = _experiment().make_agent().layout.size
  half = -(-size // 2)
  config = _config(num_shards=2)
  shards = _shards(config)
  places = shard_lib.places(_experiment().make_agent(), config)
  client = shard_exchange.Shards(shards, places)
  client.start()
  # Across the border of two shards.
  message = remote_apply.Message(
    np.zeros(size, np.float32), {half - 1: np.float32([7, 8, 9])}, 0
  )
  theta = client.push(message).theta
  np.testing.assert_array_equal(theta[half - 1 : half + 2], [7, 8, 9])


def _push_statistics(shard, index, ticket, start, values):
  """Sends them without a gradient; what stands there afterwards."""
  statistics = ((start, np.float32(values)),)
  reply = shard.push(index, ticket, 0, None, statistics, 0)
  return reply.theta[start : start + len(values)].tolist()


def test_statistics_of_all_learners_become_one():
  agent = _experiment().make_agent()
  largest = agent.layout.variables[1]
  agent.maxima = (largest.name,)
  experiment = dataclasses.replace(_experiment(), make_agent=lambda: agent)
  shard = shard_lib.Shard(experiment, _config(num_learners=2), 0)
  push = functools.partial(_push_statistics, shard)
  assert push(0, 'a', 0, [1.0, 2.0]) == [1.0, 2.0]
  assert push(1, 'b', 0, [3.0, 6.0]) == [2.0, 4.0]
  assert push(0, 'c', 0, [5.0, 2.0]) == [4.0, 4.0]
  assert push(1, 'd', 0, [NAN, 1.0]) == [4.0, 4.0]
  assert push(0, 'e', largest.offset, [1.0, 9.0]) == [1.0, 9.0]
  assert push(1, 'f', largest.offset, [5.0, 2.0]) == [5.0, 9.0]


def test_a_largest_priority_that_a_learner_has_not_seen_is_kept(tmp_path):
  agent = _experiment().make_agent()
  largest = agent.layout.variables[1]
  agent.maxima = (largest.name,)
  make = functools.partial(
    shard_lib.Shard,
    dataclasses.replace(_experiment(str(tmp_path)), make_agent=lambda: agent),
    _config(num_learners=2),
    0,
  )
  old = make()
  assert _push_statistics(old, 0, 'a', largest.offset, [9.0]) == [9.0]
  ended = threading.Event()
  ended.set()
  old.run(ended)  # which saves
  # Of what was pulled before the 9.
  assert _push_statistics(make(), 1, 'b', largest.offset, [6.0]) == [9.0]


def test_one_that_is_gone_does_not_hold_the_mean_of_the_others():
  config = _config(num_learners=2)
  (client,) = _shards(config)
  _, exchange = _remote(config, [client], 1)
  push = functools.partial(_push_statistics, client.shard)
  assert push(0, 'a', 0, [2.0]) == [2.0]
  assert push(1, 'b', 0, [4.0]) == [3.0]
  exchange.ended()
  assert push(0, 'c', 0, [5.0]) == [5.0]


def test_a_running_mean_is_of_what_all_learners_have_seen():
  (client,) = _shards(_config(num_learners=2))
  known = dict.fromkeys((0, 1), float(client.shard.pull().theta[0]))
  for count in range(1, 200):
    for index, seen in enumerate((0.0, 10.0)):
      mean = known[index] + (seen - known[index]) / count
      (known[index],) = _push_statistics(
        client.shard, index, f'{index}-{count}', 0, [mean]
      )
  assert known[0] == pytest.approx(5.0, abs=0.1)
  assert known[1] == pytest.approx(5.0, abs=0.1)


def test_synchronous_learners_get_the_same_statistics():
  config = _config(num_learners=2, synchronous=True, sync_timeout_s=200.0)
  (client,) = _shards(config)
  found = {}

  def learn(index):
    values = [float(index), 1.0]
    found[index] = _push_statistics(client.shard, index, 'a', 0, values)

  threads = [
    threading.Thread(target=learn, args=(i,), daemon=True) for i in range(2)
  ]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join(60)
  assert found == {0: [0.5, 1.0], 1: [0.5, 1.0]}
  # The other comes no more.
  shard = client.shard
  shard._config = dataclasses.replace(shard._config, sync_timeout_s=0.01)
  assert _push_statistics(shard, 0, 'b', 0, [7.0, 8.0]) == [7.0, 8.0]


def test_a_reader_has_the_parameters_of_all_shards():
  config = _config(num_shards=3)
  shards = _shards(config)
  made, _ = _remote(config, shards)
  made.step(_packed(0))
  layout = made.agent.layout
  reader = shard_exchange.Reader(shards, layout)
  found = reader.get_parameters(-1)
  assert found['version'] == UPDATES
  _, theta = parameters.decode(layout, found['theta'])
  np.testing.assert_array_equal(theta, made.parameters()[0])
  assert reader.get_parameters(UPDATES)['theta'] is None


# A2C: the mean of all.


def _together(config, shards, calls, count=2, end=False):
  """Learners in threads; `calls[i]`: seeds of learner i. Then it may `end`."""
  made = [_remote(config, shards, i) for i in range(count)]
  for one, _ in made:
    # Who compiles in a round may miss it.
    one.trace(tf.TensorSpec.from_tensor(_packed(0)))

  def learn(index):
    for seed in calls[index]:
      made[index][0].step(_packed(seed))
    if end:
      made[index][1].ended()

  threads = [
    threading.Thread(target=learn, args=(i,), daemon=True) for i in range(count)
  ]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join(60)
    assert not thread.is_alive()
  return [one for one, _ in made]


def test_synchronous_learners_apply_the_mean_of_their_gradients():
  config = _config(num_learners=2, synchronous=True)
  shards = _shards(config)
  one, two = _together(config, shards, [range(5), range(5)])
  np.testing.assert_array_equal(one.parameters(), two.parameters())
  alone = _learner(local_exchange.Local())
  for seed in range(5):
    alone.step(_packed(seed))
  # The mean of two equal gradients is each of them; so is the loop.
  np.testing.assert_allclose(
    one.parameters(), alone.parameters(), rtol=1e-5, atol=1e-5
  )
  assert shards[0].shard.numbers()['version'] == 5 * UPDATES
  assert one._exchange.scheduled(one.updates) == 2 * 5 * UPDATES


def test_rates_fall_by_the_gradients_of_all():
  agent = dqn.DQN(
    dqn.Config(hidden_sizes=(4,), optimizer='sgd', anneal_updates=40), SPEC
  )
  experiment = dataclasses.replace(_experiment(), make_agent=lambda: agent)
  config = _config(num_learners=2, synchronous=True)
  shard = shard_lib.Shard(experiment, config, 0)
  # After 10 updates of 2 gradients each: half of 40.
  assert shard._slice._factor(10) == pytest.approx(0.5)


def test_one_that_is_missing_is_waited_for_once(caplog):
  config = _config(num_learners=2, synchronous=True, sync_timeout_s=3.0)
  shards = _shards(config)
  one, _ = _together(config, shards, [range(3), range(1)])
  assert one.updates == 3 * UPDATES
  assert shards[0].shard.numbers()['version'] == 3 * UPDATES
  assert caplog.text.count('goes on without learner 1') == 1


@pytest.mark.parametrize('moves', [True, False])
def test_a_call_that_comes_again_as_its_round_closes_gets_its_verdict(
  moves, monkeypatch, caplog
):
  config = _config(num_learners=2, synchronous=True, sync_timeout_s=3.0)
  (client,) = _shards(config)
  shard, close, found = client.shard, client.shard._close, {}
  gradient = np.ones_like(shard.pull().theta) if moves else None

  def push(learner):
    return shard.push(learner, f'{learner}-1', 0, gradient, (), 0)

  def close_and_ask_again(*round_):
    close(*round_)
    # Before whoever waits for the round has woken.
    monkeypatch.undo()
    found['again'] = push(0)

  monkeypatch.setattr(shard, '_close', close_and_ask_again)
  threads = [
    threading.Thread(target=lambda i=i: found.update({i: push(i)}), daemon=True)
    for i in range(2)
  ]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join(60)
  assert {key: reply.accepted for key, reply in found.items()} == {
    0: True,
    1: True,
    'again': True,
  }
  assert shard.numbers()['version'] == int(moves)
  assert shard.numbers()['gradients_rejected'] == 0
  # Nor does it stand in the next round, which would close without the other.
  assert 'goes on without' not in caplog.text


def test_one_that_learns_no_more_is_not_waited_for(caplog):
  config = _config(num_learners=2, synchronous=True, sync_timeout_s=200.0)
  shards = _shards(config)
  one, _ = _together(config, shards, [range(3), range(1)], end=True)
  assert one.updates == 3 * UPDATES
  assert shards[0].shard.numbers()['version'] == 3 * UPDATES
  assert 'goes on without' not in caplog.text
