"""Members side by side: their variables, and what each would learn alone."""

import numpy as np
import pytest
import tensorflow as tf

from murmuration.agents import base
from murmuration.agents import member_losses
from murmuration.agents import parameters
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


class Quadratic:
  """The least that `of_all` asks of an agent; the target is its experience."""

  name, images = 'quadratic', False
  metrics: dict[str, str] = {}
  layout = parameters.Layout([('w', (3,)), ('unused', (2,))])

  def __init__(self, how):
    self._how = how

  def loss(self, variables, target_variables, batch, importance):
    del target_variables, importance
    loss = self._how(variables[0] - batch)
    return base.LossOutput(loss, None, {})


def _branch(x):
  return tf.cond(
    tf.reduce_sum(x) > 0,
    lambda: tf.reduce_sum(x**2),
    lambda: tf.reduce_sum(2 * x**2),
  )


def _mapped(x):
  return tf.reduce_sum(tf.map_fn(lambda one: one**2, x))


@pytest.mark.parametrize('how', [_branch, _mapped])
def test_a_loss_that_cannot_be_vectorised_is_of_one_member_after_another(how):
  theta = tf.constant([[1.0, 2.0, 3.0, 0, 0], [-1.0, -2.0, -4.0, 0, 0]])
  experience = tf.zeros((2, 3))

  @tf.function(autograph=False)
  def gradients(theta, experience):
    return member_losses.of_all(Quadratic(how), theta, theta, experience, None)[
      1
    ]

  got = gradients(theta, experience)
  factor = tf.constant([2.0, 4.0 if how is _branch else 2.0])
  np.testing.assert_allclose(got, factor[:, None] * theta)


def test_nothing_of_an_attempt_to_vectorise_stays():
  def said(x):
    tf.print('once for each member')
    return _branch(x)

  made = tf.function(
    lambda theta: member_losses.of_all(
      Quadratic(said), theta, theta, tf.zeros((2, 3)), None
    )[1],
    autograph=False,
  ).get_concrete_function(tf.TensorSpec((2, 5)))
  graph = made.graph.as_graph_def()
  inner = [node for f in graph.library.function for node in f.node_def]
  ops = [node.op for node in (*graph.node, *inner)]
  assert ops.count('PrintV2') == 2


@pytest.mark.parametrize('members', [1, 2])
def test_a_loss_that_reaches_no_parameter_is_refused(members):
  theta = tf.ones((members, 5))
  agent = Quadratic(lambda x: tf.reduce_sum(tf.stop_gradient(x)))
  with pytest.raises(ValueError, match='quadratic depends on none of its'):
    member_losses.of_all(agent, theta, theta, tf.zeros((members, 3)), None)


class Given(Quadratic):
  """Its loss gives what it is told, with a loss that can be learned from."""

  metrics = {'seen': 'mean'}

  def loss(self, variables, target_variables, batch, importance):
    return self._how(tf.reduce_sum(variables[0] ** 2), variables[0] ** 2)


def _of_given(how, members, importance=None):
  theta, experience = tf.ones((members, 5)), tf.zeros((members, 3))
  return member_losses.of_all(Given(how), theta, theta, experience, importance)


def _out(loss, priorities=None, seen=0.0, statistics=()):
  return base.LossOutput(loss, priorities, {'seen': seen}, dict(statistics))


@pytest.mark.parametrize('members', [1, 2])
@pytest.mark.parametrize(
  'how, said',
  [
    # Its gradient would be that of the sum.
    (lambda one, each: _out(each), r'loss has shape \(3,\), but \(\) is'),
    (lambda one, each: _out(one, seen=each), r"metric 'seen' has shape \(3,\)"),
    (
      lambda one, each: _out(one, statistics={'unused': each}),
      r"statistic 'unused' has shape \(3,\), but \(2,\) is needed",
    ),
    (
      lambda one, each: base.LossOutput(one, None, {}),
      r'metrics \[\], but its',
    ),
    (lambda one, each: one, 'needed is base.LossOutput'),
  ],
)
def test_what_a_loss_may_not_give_is_said(how, said, members):
  with pytest.raises(ValueError, match=said):
    _of_given(how, members)


def test_priorities_are_one_for_each_transition():
  with pytest.raises(ValueError, match=r'priorities has shape \(3,\), but'):
    _of_given(lambda one, each: _out(one, each), 1, tf.ones((1, 8)))


@pytest.mark.parametrize('members', [1, 2])
def test_plain_numbers_and_other_floats_are_taken(members):
  statistics = {'unused': np.ones(2)}
  out, _ = _of_given(
    lambda one, each: _out(one, seen=1, statistics=statistics)._replace(
      stopped=False
    ),
    members,
  )
  assert out.metrics['seen'].numpy().tolist() == [1.0] * members
  assert out.statistics['unused'].dtype == tf.float32
  assert not out.stopped.numpy().any()
