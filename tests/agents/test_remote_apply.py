"""A learner whose updates are made elsewhere."""

import numpy as np
import pytest
import tensorflow as tf

from murmuration.agents import base
from murmuration.agents import optimizers
from murmuration.agents import slice_update
from murmuration.agents.exchange import remote_apply

NAN = float('nan')


@pytest.mark.vectors('gorila', kind='loss_outlier')
def test_losses_are_discarded_as_in_the_vectors(vector):
  inputs = vector.inputs
  losses = remote_apply.LossFilter(
    inputs['k'], inputs['decay'], inputs['warmup']
  )
  for loss, wanted in zip(inputs['losses'], vector.expected['steps']):
    assert losses.discards(float(loss)) == wanted['discard']
    tolerance = vector.tolerance['float64']
    _, mean, variance = losses.state
    np.testing.assert_allclose(mean, wanted['mean'], **tolerance)
    np.testing.assert_allclose(variance**0.5, wanted['std'], **tolerance)


def test_a_jump_of_all_losses_is_discarded_at_onset_and_accepted_later():
  losses = remote_apply.LossFilter(sigmas=4.0, decay=0.99, warmup=100)
  rng = np.random.default_rng(0)
  for loss in rng.normal(1.0, 0.1, 200):
    losses.discards(loss)
  # Rewards times 1000: a loss that is huge, and stays so.
  discarded = [losses.discards(1e3 * x) for x in rng.normal(1.0, 0.1, 100)]
  assert all(discarded[:5])
  assert 5 <= sum(discarded) < 20  # the rule takes a lasting level for true


class Server:
  """A parameter server in the same process, of one slice."""

  def __init__(self, theta, optimizer=None, rate=0.1):
    self.slice = slice_update.Slice(
      np.array(theta, np.float32), optimizer or optimizers.SGD(), rate
    )
    self.messages = []
    self.jump = 0  # updates that others made meanwhile
    self.accepted = 1.0

  def pull(self):
    version = self.slice.version + self.jump
    return remote_apply.Answer(
      self.slice.theta.copy(), version, 0, 2 * version, self.accepted
    )

  def push(self, message):
    self.messages.append(message)
    if message.vector is not None:
      self.slice.apply(message.vector, self.slice.version)
    return self.pull()


def _gradients(size, count, seed=0):
  rng = np.random.default_rng(seed)
  return rng.normal(size=(count, 1, size)).astype(np.float32)


@pytest.mark.parametrize(
  'optimizer', [optimizers.Adagrad(), optimizers.RMSProp(), optimizers.Adam()]
)
def test_one_learner_and_its_server_make_the_updates_of_a_learner_alone(
  linear_learner, optimizer
):
  theta = np.ones((1, 5), np.float32)
  server = Server(theta[0], optimizer)
  target = base.TargetUpdate(7, 0.5)
  apart = linear_learner(
    theta,
    exchange=remote_apply.RemoteApply(server),
    optimizer=optimizer,
    target_update=target,
    updates_per_call=4,
  )
  alone = linear_learner(
    theta, optimizer=optimizer, target_update=target, updates_per_call=4
  )
  for seed in range(75):
    gradients = tf.constant(_gradients(5, 4, seed))
    apart.step(gradients)
    alone.step(gradients)
  for name in ('theta', 'target', 'updates'):
    np.testing.assert_allclose(
      apart.save()[name], alone.save()[name], rtol=1e-5, atol=1e-5
    )
  assert np.abs(alone.parameters() - 1).max() > 0.05


@pytest.mark.parametrize('bad', [NAN, 1e25])
def test_a_gradient_that_is_not_finite_stays_at_home(linear_learner, bad):
  server = Server(np.ones(3))
  exchange = Statistics(server)
  learner = linear_learner(np.ones((1, 3)), exchange=exchange)
  result = learner.step(tf.constant([[[1.0, bad, 1.0]]]))
  # Nor do statistics of the same batch leave it.
  assert result.skipped == 1
  assert server.messages == [remote_apply.Message(None, {}, 0)]
  np.testing.assert_array_equal(learner.parameters(), np.ones((1, 3)))
  server.accepted = 0.75
  learner.step(tf.ones((1, 1, 3)))
  found = exchange.metrics()
  assert (found['gradients_sent'], found['gradients_rejected']) == (1, 0.25)


def test_the_norm_is_that_of_the_whole_gradient(linear_learner):
  server = Server(np.zeros(4))
  learner = linear_learner(
    np.zeros((1, 4)), exchange=remote_apply.RemoteApply(server)
  )
  learner.agent.max_gradient_norm = 1.0
  learner.step(tf.constant([[[3.0, 0.0, 0.0, 4.0]]]))
  learner.step(tf.constant([[[0.3, 0.0, 0.0, 0.4]]]))
  learner.step(tf.zeros((1, 1, 4)))
  sent = [message.vector for message in server.messages]
  np.testing.assert_allclose(sent[0], [0.6, 0, 0, 0.8], rtol=1e-6)
  np.testing.assert_allclose(sent[1], [0.3, 0, 0, 0.4], rtol=1e-6)
  np.testing.assert_array_equal(sent[2], np.zeros(4))


def test_a_target_follows_the_updates_of_all_learners(linear_learner):
  server = Server(np.zeros(2))
  learner = linear_learner(
    np.zeros((1, 2)),
    exchange=remote_apply.RemoteApply(server),
    target_update=base.TargetUpdate(100),
  )
  ones = tf.ones((1, 1, 2))
  for jump, follows in ((0, False), (97, False), (150, True), (190, False)):
    server.jump = jump
    learner.step(ones)
    saved = learner.save()
    same = np.array_equal(saved['target'], saved['theta'])
    assert same == follows, jump


def test_the_target_of_a_restored_learner_follows_from_its_version_on(
  linear_learner,
):
  server = Server(np.zeros(2))
  exchange = remote_apply.RemoteApply(server)
  learner = linear_learner(
    np.zeros((1, 2)), exchange=exchange, target_update=base.TargetUpdate(100)
  )
  learner.restore({**learner.save(), 'server_version': np.array(150)})
  exchange.begin(Worker(learner, 0))
  for jump, follows in ((160, False), (200, True)):
    server.jump = jump
    learner.step(tf.ones((1, 1, 2)))
    saved = learner.save()
    assert np.array_equal(saved['target'], saved['theta']) == follows


def test_a_soft_target_follows_as_often_as_there_were_updates(linear_learner):
  server = Server([1.0], rate=0.0)
  learner = linear_learner(
    [[0.0]],
    exchange=remote_apply.RemoteApply(server),
    target_update=base.TargetUpdate(1, 0.1),
  )
  server.jump = 4
  learner.step(tf.ones((1, 1, 1)))
  np.testing.assert_allclose(learner.save()['target'], 1 - 0.9**5, rtol=1e-6)


class Statistics(remote_apply.RemoteApply):
  """Adds a statistic to each gradient: what stands there, and more."""

  more = 1.0
  stopped = False
  name, place = 'first', slice(0, 1)

  def meet(self, learner, gradient):
    new = learner.theta[:, self.place] + self.more
    gradient = gradient._replace(
      statistics={self.name: new}, stopped=np.array([self.stopped])
    )
    return super().meet(learner, gradient)


def test_what_is_not_learned_by_gradient_comes_as_the_server_has_it(
  linear_learner,
):
  server = Server(np.zeros(3))
  learner = linear_learner(np.zeros((1, 3)), exchange=Statistics(server))
  for _ in range(2):
    learner.step(tf.ones((1, 1, 3)))
  (sent,) = server.messages[-1].statistics.items()
  assert sent[0] == 0
  # This server does not take them; so the learner has none either.
  np.testing.assert_allclose(sent[1], [1.0 - 0.1])
  np.testing.assert_allclose(learner.parameters(), [[-0.2] * 3])


def test_what_has_not_moved_is_not_sent(linear_learner):
  server = Server(np.full(3, 0.25))
  exchange = Statistics(server)
  learner = linear_learner(np.zeros((1, 3)), exchange=exchange)
  exchange.begin(Worker(learner, 0))
  for exchange.more in (0.0, 0.0, 1.0):
    learner.step(tf.ones((1, 1, 3)))
  sent = [list(message.statistics) for message in server.messages]
  assert sent == [[], [], [0]]


def test_a_statistic_goes_to_its_place_also_from_an_update_that_is_stopped(
  linear_learner,
):
  server = Server([0.25, 0.5, 0.75])
  exchange = Statistics(server)
  exchange.name, exchange.place = 'rest', slice(1, 3)
  learner = linear_learner(np.zeros((1, 3)), exchange=exchange)
  exchange.begin(Worker(learner, 0))
  for exchange.more, exchange.stopped in ((0.0, False), (1.0, True)):
    learner.step(tf.ones((1, 1, 3)))
  first, second = server.messages
  assert first.vector is not None and not first.statistics
  assert second.vector is None
  ((start, value),) = second.statistics.items()
  assert start == 1
  np.testing.assert_allclose(value, [1.4, 1.65])
  np.testing.assert_allclose(learner.parameters(), [[0.15, 0.4, 0.65]])


class Losses(remote_apply.RemoteApply):
  """The loss of a batch is its mean gradient."""

  def meet(self, learner, gradient):
    loss = gradient.metrics['mean_gradient']
    return super().meet(learner, gradient._replace(metrics={'loss': loss}))


def test_a_loss_far_above_the_others_moves_nothing(linear_learner):
  server = Server(np.zeros(2))
  losses = remote_apply.LossFilter(4.0, warmup=3)
  exchange = Losses(server, losses)
  learner = linear_learner(np.zeros((1, 2)), exchange=exchange)
  for size in (1.0, 1.1, 0.9, 1.0, 1000.0, 1.0):
    learner.step(tf.fill((1, 1, 2), size))
  assert [m.vector is None for m in server.messages] == [False] * 4 + [
    True,
    False,
  ]
  assert exchange.metrics()['losses_discarded'] == 1


class Worker:
  """What the exchange sees of a worker."""

  def __init__(self, learner, steps):
    self.learner, self.steps = learner, steps


def test_exploration_falls_with_the_steps_of_all(linear_learner):
  server = Server([1.0, 2.0])
  exchange = remote_apply.RemoteApply(server)
  learner = linear_learner(np.zeros((1, 2)), exchange=exchange)
  pulled = server.pull
  server.pull = lambda: pulled()._replace(steps=500)
  exchange.begin(Worker(learner, 120))
  np.testing.assert_array_equal(learner.parameters(), [[1.0, 2.0]])
  assert exchange.actor_steps(130) == 510
  # A server that was restored may know of fewer steps than its learner.
  exchange.begin(worker := Worker(learner, 600))
  assert exchange.actor_steps(610) == 610
  # Each answer says it anew.
  worker.steps = 160
  learner.step(tf.ones((1, 1, 2)))
  assert exchange.actor_steps(170) == 510


def test_rates_at_zero_are_warned_of_by_the_gradients_of_all(
  linear_learner, caplog
):
  server = Server(np.zeros(2))
  learner = linear_learner(
    np.zeros((1, 2)), exchange=remote_apply.RemoteApply(server)
  )
  learner.agent.rate_end = base.RateEnd(100.0, 'agent.anneal_updates', 100)
  server.jump = 49
  learner.step(tf.ones((1, 1, 2)))
  assert caplog.records == []
  server.jump = 60
  learner.step(tf.ones((1, 1, 2)))
  (record,) = caplog.records
  assert 'this is step 124' in record.getMessage()  # 62 updates of 2


def test_more_than_one_member_is_refused(linear_learner):
  exchange = remote_apply.RemoteApply(Server(np.zeros(2)))
  with pytest.raises(ValueError, match='2 members cannot share'):
    linear_learner(np.zeros((2, 2)), exchange=exchange)
