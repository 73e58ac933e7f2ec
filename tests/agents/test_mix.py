"""Gossip in a learner; between workers: launch/services/test_gossip.py."""

import types

import numpy as np
import pytest
import tensorflow as tf

from agents.exchange import mix
from agents.exchange import mixing


class _Post:
  """A carrier that keeps what is sent, and brings what is put in `came`."""

  received = refused = 0

  def __init__(self):
    self.sent = []
    self.came = {}  # sender to its message

  def start(self, shape):
    del shape

  def send(self, receivers, message):
    self.sent += [(receiver, message) for receiver in receivers]

  def newest(self, sender):
    return self.came.get(sender)

  def heard(self, sender):
    del sender
    return 0, 0


@pytest.mark.vectors('gossip', kind='step_mix')
def test_a_worker_steps_first_then_sends_and_then_mixes(vector, linear_learner):
  start, gradients = (
    np.array(vector.inputs[name], np.float32) for name in ('X', 'grads')
  )
  stepped = start - np.float32(vector.inputs['lr']) * gradients
  steps = np.linalg.norm(stepped - start, axis=1)
  graph = mixing.Graph('ring', len(start))
  for i, theta in enumerate(start):
    post = _Post()
    exchange = mix.Mix(graph, i, post, tau=None)
    learner = linear_learner(
      theta[None], [vector.inputs['lr']], exchange=exchange
    )
    exchange.begin(
      types.SimpleNamespace(learner=learner, steps=0, over=lambda: False)
    )
    # In the ring it hears the one before it, and the one after it hears it.
    post.came = {
      j: mix.Message(1, stepped[None, j], steps[j]) for j in range(len(start))
    }
    exchange.updated(learner.step(tf.constant(gradients[None, None, i])))
    assert exchange.sync()
    receiver, sent = post.sent[-1]
    assert receiver == (i + 1) % len(start)
    tolerance = vector.tolerance['float32']
    np.testing.assert_allclose(sent.theta[0], stepped[i], **tolerance)
    np.testing.assert_allclose(
      learner.parameters()[0], vector.expected['X'][i], **tolerance
    )
    np.testing.assert_allclose(sent.largest_step, steps[i], rtol=1e-4)
    # Of what it knows: this worker, and the one before it.
    known = np.stack([vector.expected['X'][i], stepped[i - 1]])
    mean, bound = known.mean(axis=0), mixing.bound_factor(graph)
    found = exchange.metrics()
    for name, wanted in (
      ('distance_bound', bound * len(start) ** 0.5 * max(steps[[i, i - 1]])),
      ('distance_to_mean', np.linalg.norm(known[0] - mean)),
      ('mean_norm', np.linalg.norm(mean)),
    ):
      np.testing.assert_allclose(found[name], wanted, rtol=1e-4, err_msg=name)


def test_the_target_network_of_one_started_again_is_a_neighbours_too(
  linear_learner,
):
  found = mix.Message(30, np.full((1, 3), 7.0, np.float32))
  exchange = mix.Mix(
    mixing.Graph('ring', 2), 0, _Post(), tau=None, ask=lambda: found
  )
  fresh = np.ones((1, 3), np.float32)
  learner = linear_learner(exchange.initial(fresh, True), exchange=exchange)
  exchange.begin(
    types.SimpleNamespace(learner=learner, steps=0, over=lambda: False)
  )
  for name in ('theta', 'target'):
    np.testing.assert_array_equal(learner.save()[name], found.theta)


def test_a_step_that_is_not_finite_is_skipped_and_the_same_is_sent(
  linear_learner,
):
  post = _Post()
  exchange = mix.Mix(mixing.Graph('ring', 2), 0, post, tau=None)
  learner = linear_learner(np.ones((1, 3)), exchange=exchange)
  exchange.begin(
    types.SimpleNamespace(learner=learner, steps=0, over=lambda: False)
  )
  for gradient, moved in ((np.nan, False), (1.0, True)):
    before = learner.parameters()
    post.sent.clear()
    result = learner.step(tf.fill((1, 1, 3), np.float32(gradient)))
    assert result.skipped == (not moved)
    exchange.updated(result)
    exchange.sync()
    ((receiver, message),) = post.sent
    assert receiver == 1
    np.testing.assert_array_equal(message.theta, learner.parameters())
    assert (message.theta != before).any() == moved
  assert message.iteration == 2  # nobody waits for the one that was skipped


def test_steps_without_a_mean_count_in_the_next_one(linear_learner):
  weights, answers = [], [None, np.full((1, 3), 7.0, np.float32)]

  def average(number, steps, theta, over):
    del number, theta, over
    weights.append(steps)
    return answers.pop(0) if answers else None

  graph = mixing.Graph('ring', 2)
  exchange = mix.Mix(graph, 0, _Post(), tau=None, avg_period=1, average=average)
  learner = linear_learner(np.ones((1, 3)), exchange=exchange)
  worker = types.SimpleNamespace(learner=learner, steps=40, over=lambda: False)
  exchange.begin(worker)  # of a resumed run
  for steps in (140, 340, 340, 390):  # the first mean came too late
    worker.steps = steps
    exchange.updated(None)
    exchange.sync()
  assert weights == [100, 300, 1, 50]  # of no steps at all one, not 0


@pytest.mark.parametrize('averaged', [False, True])
def test_a_running_maximum_is_mixed_to_the_largest(linear_learner, averaged):
  def average(number, steps, theta, over):
    del number, steps, over
    mean = theta / 2
    mean.flags.writeable = False  # as what arrives
    return mean

  post = _Post()
  exchange = mix.Mix(
    mixing.Graph('ring', 2), 0, post, None, avg_period=1 if averaged else 0,
    average=average if averaged else None,
  )  # fmt: skip
  learner = linear_learner(np.full((1, 3), 4.0), exchange=exchange)
  learner.agent.maxima = ('first',)
  exchange.setup(learner, 0)
  exchange.begin(
    types.SimpleNamespace(learner=learner, steps=0, over=lambda: False)
  )
  post.came[1] = mix.Message(1, np.float32([[9.0, 2.0, 2.0]]))
  exchange.updated(None)
  exchange.sync()
  half = 0.5 if averaged else 1.0
  np.testing.assert_allclose(
    learner.parameters(), [[9.0, 3.0 * half, 3.0 * half]]
  )
  post.came[1] = mix.Message(2, np.float32([[5.0, 2.0, 2.0]]))
  exchange.updated(None)
  exchange.sync()
  assert learner.parameters()[0, 0] == 9.0  # its own is the largest
