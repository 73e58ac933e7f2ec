"""The exchange of gossip with a learner; without one: services/test_gossip."""

import types

import numpy as np

from agents.exchange import mix
from agents.exchange import mixing


class _Carrier:
  """Keeps what is sent; nothing comes."""

  received = refused = 0

  def __init__(self):
    self.sent = []

  def start(self, shape):
    assert shape == (1, 2)

  def send(self, receivers, message):
    self.sent += [(receiver, message) for receiver in receivers]

  def heard(self, sender):
    return 0, 0

  def newest(self, sender):
    return None

  def wait(self, received, timeout_s):
    raise AssertionError('tau=None waits for nobody')


def test_after_a_gradient_that_is_not_finite_the_unchanged_is_sent(
  linear_learner,
):
  carrier = _Carrier()
  exchange = mix.Mix(mixing.Graph('ring', 2), 0, carrier, tau=None)
  made = linear_learner([[1.0, 2.0]], exchange=exchange)
  worker = types.SimpleNamespace(learner=made, steps=0, over=lambda: False)
  exchange.begin(worker)
  for gradient in ([[0.5, 0.5]], [[np.nan, 1.0]]):
    exchange.updated(made.step(np.array([gradient], np.float32)))
    assert not exchange.sync()
  full = [m.theta for _, m in carrier.sent if m.theta is not None]
  assert len(full) == 2
  np.testing.assert_allclose(full[0], [[0.95, 1.95]])
  np.testing.assert_array_equal(full[1], full[0])
