"""Gossip in a learner; between workers: launch/services/test_gossip.py."""

import types

import numpy as np
import pytest
import tensorflow as tf

from murmuration.launch.services import gossip
from tests.launch.services import gossip_workers as played


def _begin(exchange, learner):
  exchange.begin(
    types.SimpleNamespace(learner=learner, steps=0, over=lambda: False)
  )


def _one_of(size, index=0, **options):
  """The exchange of one worker of a ring, and the client that it sends to."""
  graph = gossip.Graph('ring', size)
  clients = {j: played.Client() for j in range(size)}
  for j in graph.neighbours(index):
    clients[j].exchange = played.make_exchange(graph, j, clients)
  exchange = played.make_exchange(graph, index, clients, tau=None, **options)
  exchange.push_message((index - 1) % size, 0)
  return exchange, clients[(index + 1) % size]


@pytest.mark.vectors('gossip', kind='step_mix')
def test_a_worker_steps_first_then_sends_and_then_mixes(vector, linear_learner):
  start, gradients = (
    np.array(vector.inputs[name], np.float32) for name in ('X', 'grads')
  )
  stepped = start - np.float32(vector.inputs['lr']) * gradients
  for i, theta in enumerate(start):
    exchange, receiver = _one_of(len(start), i)
    learner = linear_learner(
      theta[None], [vector.inputs['lr']], exchange=exchange
    )
    _begin(exchange, learner)
    # In the ring it hears the one before it, and the one after it hears it.
    exchange.push_message((i - 1) % len(start), 1, stepped[None, i - 1])
    exchange.updated(learner.step(tf.constant(gradients[None, None, i])))
    assert exchange.sync()
    sender, sent = receiver.got[-1]
    assert sender == i
    tolerance = vector.tolerance['float32']
    np.testing.assert_allclose(sent.theta[0], stepped[i], **tolerance)
    np.testing.assert_allclose(
      learner.parameters()[0], vector.expected['X'][i], **tolerance
    )
    # Of what it knows: this worker, and the one before it.
    known = np.stack([vector.expected['X'][i], stepped[i - 1]])
    mean, found = known.mean(axis=0), exchange.metrics()
    for name, wanted in (
      ('distance_to_mean', np.linalg.norm(known[0] - mean)),
      ('mean_norm', np.linalg.norm(mean)),
    ):
      np.testing.assert_allclose(found[name], wanted, rtol=1e-4, err_msg=name)


def test_the_target_network_of_one_started_again_is_a_neighbours_too(
  linear_learner,
):
  theta = np.full((1, 3), 7.0, np.float32)
  exchange, neighbour = _one_of(2)
  neighbour.state = gossip.Message(30, theta)
  fresh = np.ones((1, 3), np.float32)
  learner = linear_learner(exchange.initial(fresh, True), exchange=exchange)
  _begin(exchange, learner)
  for name in ('theta', 'target'):
    np.testing.assert_array_equal(learner.save()[name], theta)


def test_a_step_that_is_not_finite_is_skipped_and_the_same_is_sent(
  linear_learner,
):
  exchange, receiver = _one_of(2)
  learner = linear_learner(np.ones((1, 3)), exchange=exchange)
  _begin(exchange, learner)
  for gradient, moved in ((np.nan, False), (1.0, True)):
    before = learner.parameters()
    receiver.got.clear()
    result = learner.step(tf.fill((1, 1, 3), np.float32(gradient)))
    assert result.skipped == (not moved)
    exchange.updated(result)
    exchange.sync()
    ((sender, message),) = receiver.got
    assert sender == 0
    np.testing.assert_array_equal(message.theta, learner.parameters())
    assert (message.theta != before).any() == moved
  assert message.iteration == 2  # nobody waits for the one that was skipped


class _Half(played.Client):
  """An averager whose means are half of what it gets."""

  def meet(self):
    pass

  def average(self, worker, number, steps, theta):
    del worker, number, steps
    mean = theta / 2
    mean.flags.writeable = False  # as what arrives
    return True, mean


@pytest.mark.parametrize('averaged', [False, True])
def test_a_running_maximum_is_mixed_to_the_largest(linear_learner, averaged):
  options = {'averager': _Half(), 'avg_period': 1} if averaged else {}
  exchange, _ = _one_of(2, **options)
  learner = linear_learner(np.full((1, 3), 4.0), exchange=exchange)
  learner.agent.maxima = ('first',)
  exchange.setup(learner, 0)
  _begin(exchange, learner)
  exchange.push_message(1, 1, np.float32([[9.0, 2.0, 2.0]]))
  exchange.updated(None)
  exchange.sync()
  half = 0.5 if averaged else 1.0
  np.testing.assert_allclose(
    learner.parameters(), [[9.0, 3.0 * half, 3.0 * half]]
  )
  exchange.push_message(1, 2, np.float32([[5.0, 2.0, 2.0]]))
  exchange.updated(None)
  exchange.sync()
  assert learner.parameters()[0, 0] == 9.0  # its own is the largest
