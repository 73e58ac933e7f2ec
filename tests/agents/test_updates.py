"""Updates one by one on the host are those of the traced loop."""

import numpy as np
import pytest
import tensorflow as tf

from agents import dqn
from agents import feeds
from agents import learner
from agents.exchange import average as average_exchange
from agents.exchange import local as local_exchange
from environment_loops import environments
from replay import packing

NAN = float('nan')
SPEC = environments.Spec('Test-v0', observation_shape=(3,), num_actions=2)
LAYOUT = packing.TransitionLayout(SPEC.observation_shape)
BATCH, UPDATES = 4, 5


def _learner(exchange, compiled):
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
    updates_per_call=UPDATES,
  )


def _sample(seed):
  """Items and their probabilities; the third update's are not finite."""
  rng = np.random.default_rng(seed)
  shape = (UPDATES * BATCH,)
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
