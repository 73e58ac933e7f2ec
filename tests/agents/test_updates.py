"""Updates one by one on the host are those of the traced loop."""

import numpy as np
import pytest
import tensorflow as tf

from murmuration.agents import dqn
from murmuration.agents import feeds
from murmuration.agents import learner
from murmuration.agents.exchange import average as average_exchange
from murmuration.agents.exchange import base as exchange_base
from murmuration.agents.exchange import local as local_exchange
from murmuration.environment_loops import environments
from murmuration.replay import packing

NAN = float('nan')
SPEC = environments.Spec('Test-v0', observation_shape=(3,), num_actions=2)
LAYOUT = packing.TransitionLayout(SPEC.observation_shape)
BATCH, UPDATES = 4, 5


def _learner(exchange, compiled, updates=UPDATES):
  agent = dqn.DQN(
    dqn.Config(hidden_sizes=(6,), batch_size=BATCH, target_update_period=2),
    SPEC,
  )
  agent.compiled = compiled
  agent.importance_exponent = 0.4
  return learner.TFLearner(
    agent,
    agent.initial(0)[None],
    [0.05],
    exchange,
    feeds.Transitions(LAYOUT, BATCH),
    updates_per_call=updates,
  )


def _sample(seed, updates=UPDATES):
  """Items and their probabilities; the third update's are not finite."""
  rng = np.random.default_rng(seed)
  shape = (updates * BATCH,)
  reward = rng.normal(size=shape)
  reward[2 * BATCH] = NAN
  packed = LAYOUT.pack(
    rng.normal(size=(*shape, 3)),
    rng.integers(0, 2, shape),
    reward,
    rng.integers(0, 2, shape),
    rng.normal(size=(*shape, 3)),
    np.ones(shape),
  )
  return tf.constant(packed), tf.constant(rng.uniform(0.1, 1, shape), 'float32')


@pytest.mark.parametrize(
  'prioritized', [pytest.param(False, marks=pytest.mark.long), True]
)
@pytest.mark.parametrize('compiled', [False, True])
def test_updates_on_the_host_are_those_in_the_graph(compiled, prioritized):
  calls = []

  def reduce(share):
    calls.append(share.update)
    return share

  learners = [
    _learner(local_exchange.Local(), compiled),
    _learner(average_exchange.Average(reduce), compiled),
  ]
  samples = [_sample(seed)[: 1 + prioritized] for seed in range(2)]
  before = learners[0].parameters()
  # Built beforehand, for which nobody is asked and nothing learned.
  learners[1].trace(
    *(tf.TensorSpec(x.shape, x.dtype) for x in samples[0]),
  )
  assert not calls
  np.testing.assert_array_equal(learners[1].parameters(), before)
  for sample in samples:
    in_graph, on_host = (learner.step(*sample) for learner in learners)
    np.testing.assert_array_equal(on_host.skipped, [1])
    assert on_host.updates == UPDATES
    np.testing.assert_array_equal(on_host.skipped, in_graph.skipped)
    for name, value in in_graph.metrics.items():
      np.testing.assert_allclose(
        on_host.metrics[name], value, rtol=1e-4, err_msg=name
      )
    if prioritized:
      new = on_host.priorities
      np.testing.assert_allclose(new, in_graph.priorities, rtol=1e-4)
      assert np.flatnonzero(np.isnan(new)).tolist() == list(
        range(2 * BATCH, 3 * BATCH)
      )
    else:
      assert on_host.priorities is in_graph.priorities is None
  assert calls == list(range(2 * UPDATES))
  for name, array in learners[0].save().items():
    np.testing.assert_allclose(
      learners[1].save()[name], array, rtol=1e-4, atol=1e-6, err_msg=name
    )
  assert np.abs(learners[0].parameters() - before).max() > 0.05


def test_parameters_are_those_of_the_last_update_where_an_exchange_gave_up():
  """A comparison at update 50, within a call that ends at update 53."""

  def reduce(share):
    if share.update == 53:
      raise exchange_base.Stopped
    return share

  stopped = _learner(average_exchange.Average(reduce), False, 8)
  stopped.restore({**stopped.save(), 'updates': np.array(48)})
  with pytest.raises(exchange_base.Stopped):
    stopped.step(_sample(0, 8)[0])
  assert stopped.updates == 53
  np.testing.assert_array_equal(stopped.parameters(), stopped.theta.numpy())


class _Reads(local_exchange.Local):
  """Asks for the parameters between gradient and update."""

  on_host = True

  def __init__(self):
    self.read = []

  def meet(self, learner, gradient):
    self.read.append(learner.parameters().copy())
    return gradient


def test_an_exchange_that_asks_for_parameters_gets_those_of_the_last_update():
  exchange = _Reads()
  made = _learner(exchange, compiled=False, updates=3)
  sample, probabilities = _sample(0, updates=3)
  made.step(sample, probabilities)
  first, second, third = exchange.read[-3:]
  assert (first != second).any()  # The third batch is skipped.
  assert (second != third).any()
