"""Members side by side: their variables, and what each would learn alone."""

import numpy as np
import pytest
import tensorflow as tf

from agents import member_losses
from agents import parameters
from tests.agents import unroll_cases as cases


def test_variables_of_a_population_are_slices_of_its_vector():
  layout = parameters.Layout([('w', (2, 3)), ('b', (4,))])
  theta = np.random.default_rng(0).normal(size=(5, 10))
  parts = member_losses.split(layout, tf.constant(theta))
  for part, expected in zip(parts, layout.unpack(theta), strict=True):
    np.testing.assert_array_equal(part, expected)


@pytest.mark.parametrize('options', [{}, {'lstm_size': 3}, {'stack': 2}])
def test_each_member_learns_as_it_would_alone(options):
  # The start is above this limit, whose gradient is a function of its own.
  agent = cases.make_impala(cases.CONTINUOUS, sigma_max=0.5, **options)
  theta = np.stack([cases.make_theta(agent, seed) for seed in range(3)])
  batches = [cases.batch_of(cases.make_block(agent, seed)) for seed in range(3)]

  def of(*members):
    own, experience = theta[list(members)], [batches[m] for m in members]
    stacked = tf.nest.map_structure(lambda *x: tf.stack(x), *experience)
    return member_losses.of_all(
      agent, tf.constant(own), tf.constant(own), stacked, None
    )

  out, together = of(0, 1, 2)
  for member in range(3):
    alone, gradient = of(member)
    np.testing.assert_allclose(out.loss[member], alone.loss[0], rtol=1e-5)
    np.testing.assert_allclose(
      together[member], gradient[0], rtol=1e-3, atol=1e-5
    )
