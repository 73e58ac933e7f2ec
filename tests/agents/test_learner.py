"""The learner: members side by side, targets, skips, checkpoints."""

import numpy as np
import pytest
import tensorflow as tf

from murmuration.agents import base
from murmuration.agents import dqn
from murmuration.agents import feeds
from murmuration.agents import learner as learner_lib
from murmuration.agents import optimizers
from murmuration.agents import parameters
from murmuration.agents.exchange import local as local_exchange
from murmuration.agents.exchange import pull as pull_exchange
from murmuration.environment_loops import environments
from murmuration.replay import packing

NAN = float('nan')
SPEC = environments.Spec('Test-v0', observation_shape=(3,), num_actions=2)
LAYOUT = packing.TransitionLayout(SPEC.observation_shape)
RATES = [1e-2, 3e-3, 1e-3]
BATCH = 8


@pytest.fixture(scope='module')
def agent():
  return dqn.DQN(
    dqn.Config(hidden_sizes=(6,), batch_size=BATCH, target_update_period=2),
    SPEC,
  )


def _packed(count, members, seed=0):
  """[count, P, W] transitions, some terminated, one of each batch a blank."""
  rng = np.random.default_rng(seed)
  shape = (count, members)
  weight = np.ones(shape)
  weight[::BATCH] = 0.0
  return LAYOUT.pack(
    rng.normal(size=(*shape, 3)),
    rng.integers(0, 2, shape),
    rng.normal(size=shape),
    rng.integers(0, 2, shape),
    rng.normal(size=(*shape, 3)),
    weight,
  )


def _learner(agent, theta, rates, **options):
  exchange = options.pop('exchange', None) or local_exchange.Local()
  feed = feeds.Transitions(LAYOUT, BATCH)
  return learner_lib.TFLearner(agent, theta, rates, exchange, feed, **options)


def _theta(agent, members=3):
  return np.stack([agent.initial(seed) for seed in range(members)])


def test_members_side_by_side_are_single_learners(agent):
  theta = _theta(agent)
  together = _learner(agent, theta, RATES, updates_per_call=3)
  calls = [_packed(3 * BATCH, 3, seed) for seed in range(2)]
  pooled = [together.step(tf.constant(call)).metrics for call in calls]
  for member in range(3):
    one = slice(member, member + 1)
    alone = _learner(agent, theta[one], RATES[one], updates_per_call=3)
    for call, metrics in zip(calls, pooled):
      result = alone.step(tf.constant(call[:, one]))
      for name in agent.metrics:
        np.testing.assert_allclose(
          metrics[name][one], result.metrics[name], rtol=1e-3, atol=1e-4
        )
    np.testing.assert_allclose(
      together.parameters()[one], alone.parameters(), rtol=1e-3, atol=1e-5
    )
    assert not np.allclose(alone.parameters(), theta[one], atol=1e-3)


def test_each_member_learns_with_its_own_column_of_probabilities():
  agent = dqn.DQN(
    dqn.Config(hidden_sizes=(6,), batch_size=BATCH, prioritized=True), SPEC
  )
  theta, count = _theta(agent, 2), 3 * BATCH
  packed = _packed(count, 2)
  drawn = np.random.default_rng(1).uniform(0.01, 1, (count, 2))
  drawn = drawn.astype(np.float32)
  together = _learner(agent, theta, RATES[:2], updates_per_call=3)
  result = together.step(tf.constant(packed), drawn)
  assert result.priorities.shape == (count, 2)
  uniform = _learner(agent, theta, RATES[:2], updates_per_call=3)
  uniform.step(tf.constant(packed), np.full_like(drawn, 0.1))
  for member in range(2):
    one = slice(member, member + 1)
    # As a learner of one member gets it, in one of both shapes.
    column = drawn[:, one] if member else drawn[:, member]
    alone = _learner(agent, theta[one], RATES[one], updates_per_call=3)
    own = alone.step(tf.constant(packed[:, one]), column)
    assert own.priorities.shape == column.shape
    np.testing.assert_allclose(
      result.priorities[:, member],
      np.ravel(own.priorities),
      rtol=1e-3,
      atol=1e-4,
    )
    np.testing.assert_allclose(
      together.parameters()[one], alone.parameters(), rtol=1e-3, atol=1e-5
    )
    # The weights matter.
    assert not np.allclose(
      together.parameters()[one], uniform.parameters()[one], atol=1e-5
    )


def test_several_updates_in_a_call_are_one_after_the_other(agent):
  theta = _theta(agent)[:2]
  packed = tf.constant(_packed(4 * BATCH, 2))
  learners = []
  for updates in (4, 1):
    pull = pull_exchange.Pull()
    learners.append(
      _learner(agent, theta, RATES[:2], exchange=pull, updates_per_call=updates)
    )
    pull.set_star(np.ones(agent.layout.size), 0.05)
  at_once, one_by_one = learners
  result = at_once.step(packed)
  singles = [one_by_one.step(part) for part in tf.split(packed, 4)]
  assert result.updates == sum(single.updates for single in singles) == 4
  for name, array in at_once.save().items():
    np.testing.assert_allclose(
      array, one_by_one.save()[name], rtol=1e-4, atol=1e-6, err_msg=name
    )
  losses = [single.metrics['loss'] for single in singles]
  np.testing.assert_allclose(
    result.metrics['loss'], np.mean(losses, axis=0), rtol=1e-4
  )
  targets = [single.metrics['target_max'] for single in singles]
  np.testing.assert_allclose(
    result.metrics['target_max'], np.max(targets, axis=0), rtol=1e-4
  )


def test_metrics_pool_over_a_call_as_the_agent_says(linear_learner):
  learner = linear_learner(np.zeros((2, 2)), updates_per_call=3)
  gradients = [[[1, 3], [0, 0]], [[5, 7], [-2, -4]], [[0, 0], [-1, -1]]]
  metrics = learner.step(tf.constant(gradients, tf.float32)).metrics
  np.testing.assert_allclose(metrics['mean_gradient'], [8 / 3, -4 / 3])
  np.testing.assert_allclose(metrics['largest_gradient'], [7, 0])


def test_each_member_descends_at_its_own_rate(linear_learner):
  learner = linear_learner(np.ones((2, 3)), [0.5, 0.25])
  learner.step(tf.constant([[[1, 2, 4], [1, 2, 4]]], tf.float32))
  np.testing.assert_allclose(
    learner.parameters(), [[0.5, 0, -1], [0.75, 0.5, 0]]
  )


def test_each_members_gradient_is_shortened_before_the_optimizer_sees_it(
  linear_learner,
):
  learner = linear_learner(
    np.zeros((3, 2)), [1.0] * 3, optimizer=optimizers.RMSProp(0.0, 1.0)
  )
  learner.agent.max_gradient_norm = 1.0
  gradient = np.array([[3, 4], [0.3, 0.4], [0, 0]], np.float32)
  for _ in range(2):
    learner.step(tf.constant(gradient[None]))
  short = np.array([[0.6, 0.8], [0.3, 0.4], [0, 0]])
  wanted = -2 * short / np.sqrt(short**2 + 1)
  np.testing.assert_allclose(learner.parameters(), wanted, rtol=1e-6)


def test_a_gradient_of_zero_moves_nothing_not_by_momentum_either(
  linear_learner,
):
  learner = linear_learner(np.ones((2, 3)), optimizer=optimizers.Adam())
  gradient = np.ones((1, 2, 3), np.float32)
  learner.step(tf.constant(gradient))
  before = learner.save()
  gradient[0, 1] = 0.0
  assert not learner.step(tf.constant(gradient)).skipped.any()
  after = learner.save()
  for name in ('theta', 'slot_0', 'slot_1', 'steps'):
    np.testing.assert_array_equal(after[name][1], before[name][1], name)
    assert (after[name][0] != before[name][0]).all(), name


def test_delayed_parameters_stay_too_where_nothing_moves(
  linear_learner, monkeypatch
):
  kind = type(linear_learner(np.ones((1, 3))).agent)
  monkeypatch.setattr(kind, 'delayed', np.array([False, True, True]))
  monkeypatch.setattr(kind, 'due', lambda self, made: True, raising=False)
  learner = linear_learner(np.ones((3, 3)), optimizer=optimizers.Adam())
  gradient = np.ones((1, 3, 3), np.float32)
  learner.step(tf.constant(gradient))
  before = learner.save()
  gradient[0, 1] = 0.0
  gradient[0, 2, 0] = NAN
  learner.step(tf.constant(gradient))
  after = learner.save()
  for name in ('theta', 'slot_0', 'slot_1', 'steps'):
    np.testing.assert_array_equal(after[name][1:], before[name][1:], name)
    assert (after[name][0] != before[name][0]).all(), name


def test_places_without_a_transition_do_not_teach(agent):
  packed = _packed(BATCH, 2)
  blanks = packed[..., LAYOUT.slices.weight.start] == 0
  assert blanks.any()
  other = packed.copy()
  other[blanks] = 1e3 * np.random.default_rng(9).normal(size=packed.shape[-1])
  other[blanks, 3] = 1.0  # an action
  other[blanks, LAYOUT.slices.weight.start] = 0.0
  learner = _learner(agent, _theta(agent)[:2], RATES[:2])
  one, two = (
    learner.gradient(tf.constant(p.swapaxes(0, 1))) for p in (packed, other)
  )
  np.testing.assert_allclose(one.vector, two.vector, rtol=1e-5, atol=1e-7)
  for name in agent.metrics:
    np.testing.assert_allclose(one.metrics[name], two.metrics[name], rtol=1e-5)


def test_a_batch_without_transitions_gives_no_gradient(agent):
  packed = _packed(BATCH, 2)
  packed[..., LAYOUT.slices.weight] = 0.0
  learner = _learner(agent, _theta(agent)[:2], RATES[:2])
  gradient = learner.gradient(tf.constant(packed.swapaxes(0, 1)))
  np.testing.assert_array_equal(gradient.vector, np.zeros_like(gradient.vector))


def test_statistics_are_taken_where_they_and_the_gradient_are_finite(
  linear_learner, monkeypatch
):
  learner = linear_learner(np.ones((3, 3)))
  kind = type(learner.agent)
  loss, seen = kind.loss, tf.constant([7.0])

  def with_statistics(self, variables, *rest):
    out = loss(self, variables, *rest)
    # Not finite where the gradient is above 1.
    broken = out.metrics['largest_gradient'] > 1.0
    return out._replace(statistics={'first': tf.where(broken, NAN, seen)})

  monkeypatch.setattr(kind, 'loss', with_statistics)
  learner.step(tf.constant([[[1, 1, 1], [1, NAN, 1], [1, 2, 1]]], tf.float32))
  np.testing.assert_allclose(
    learner.parameters(), [[7, 0.9, 0.9], [1, 1, 1], [0.9, 0.8, 0.9]]
  )


def test_targets_follow_every_period_updates(linear_learner):
  learner = linear_learner(
    np.zeros((2, 3)), target_update=base.TargetUpdate(period=3)
  )
  copied = learner.parameters()
  for update in range(1, 8):
    learner.step(tf.ones((1, 2, 3)))
    if update % 3 == 0:
      copied = learner.parameters()
    np.testing.assert_array_equal(learner.target.numpy(), copied)
  np.testing.assert_allclose(copied, -0.6, rtol=1e-5)


@pytest.mark.vectors('soft_target')
def test_soft_targets_are_those_of_the_vectors(vector, linear_learner):
  learner = linear_learner(
    [vector.inputs['online']],
    target_update=base.TargetUpdate(period=1, tau=vector.inputs['tau']),
  )
  saved = learner.save()
  saved['target'] = np.array([vector.inputs['target']], np.float32)
  learner.restore(saved)
  learner.step(tf.zeros_like(learner.theta)[None])
  np.testing.assert_allclose(
    learner.target.numpy()[0],
    vector.expected['target'],
    **vector.tolerance['float32'],
  )


def test_a_member_skips_a_gradient_that_is_not_finite_alone(linear_learner):
  options = {'optimizer': optimizers.Adam(), 'updates_per_call': 4}
  theta = np.ones((2, 3))
  gradients = np.random.default_rng(0).normal(size=(4, 2, 3))
  gradients = gradients.astype(np.float32)
  # As if that update had never been asked of it, in moments and counts too.
  whole = linear_learner(theta, **options)
  whole.step(tf.constant(gradients))
  without = linear_learner(theta, **{**options, 'updates_per_call': 3})
  without.step(tf.constant(np.delete(gradients, 2, axis=0)))
  learner = linear_learner(theta, **options)
  before = learner.save()
  # The square of the last is beyond float32: limited by its norm it would be 0.
  for bad in (NAN, np.inf, -np.inf, 1e25):
    learner.restore(before)
    broken = gradients.copy()
    broken[2, 1, 0] = bad
    result = learner.step(tf.constant(broken))
    np.testing.assert_array_equal(result.skipped, [0, 1])
    assert not result.broken.any()
    for name in ('theta', 'slot_0', 'slot_1', 'steps'):
      got = learner.save()[name]
      np.testing.assert_allclose(got[0], whole.save()[name][0], err_msg=name)
      np.testing.assert_allclose(got[1], without.save()[name][1], err_msg=name)


def test_a_member_whose_parameters_overflowed_is_reported(linear_learner):
  learner = linear_learner(np.ones((2, 3)), [1.0, 1e30])
  gradient = np.zeros((1, 2, 3), np.float32)
  gradient[..., 0] = 1e18  # One parameter is enough.
  learner.step(tf.constant(gradient))
  # It is seen at the first update that it has to skip.
  gradient[0, 1] = NAN
  result = learner.step(tf.constant(gradient))
  np.testing.assert_array_equal(result.broken, [False, True])


def test_learning_ends_after_a_hundred_skips_in_a_row(linear_learner):
  learner = linear_learner(np.zeros((2, 2)), updates_per_call=50)
  bad = np.zeros((50, 2, 2), np.float32)
  bad[:, 1] = NAN
  almost = bad.copy()
  almost[-1] = 0.0
  for gradients in (bad, almost, bad, np.zeros_like(bad), bad):
    learner.step(tf.constant(gradients))
  with pytest.raises(
    learner_lib.LearnerFault,
    match='Member 1 skipped 100 .*agent.learning_rate',
  ):
    learner.step(tf.constant(bad))


def test_updates_at_a_rate_of_zero_are_warned_of_once(linear_learner, caplog):
  learner = linear_learner(np.zeros((2, 2)), updates_per_call=51)
  learner.agent.rate_end = base.RateEnd(100.0, 'agent.anneal_env_steps', 3200)
  gradients = tf.zeros((51, 2, 2))
  for _ in range(2):
    learner.step(gradients)
  # 102 of 100: what a budget that fits has made at its end.
  assert caplog.records == []
  for _ in range(2):
    learner.step(gradients)
  (record,) = caplog.records
  for part in ('step 100', 'agent.anneal_env_steps=3200', 'step 153'):
    assert part in record.getMessage()


def test_a_replaced_member_has_a_clean_count_of_skips(linear_learner):
  learner = linear_learner(np.zeros((1, 2)), updates_per_call=60)
  bad = tf.fill((60, 1, 2), NAN)
  learner.step(bad)
  learner.set_member(0, np.zeros(2))
  learner.step(bad)


def test_a_replaced_member_starts_anew_and_the_others_do_not(linear_learner):
  options = {'optimizer': optimizers.Adam()}
  rng = np.random.default_rng(0)
  learner = linear_learner(np.ones((3, 4)), **options)
  for _ in range(3):
    learner.step(tf.constant(rng.normal(size=(1, 3, 4)), tf.float32))
  before, new = learner.save(), rng.normal(size=4).astype(np.float32)
  learner.set_member(1, new)
  np.testing.assert_array_equal(learner.parameters()[1], new)
  after = learner.save()
  for name in ('theta', 'target', 'slot_0', 'slot_1', 'steps'):
    np.testing.assert_array_equal(after[name][::2], before[name][::2])
  np.testing.assert_array_equal(after['target'][1], new)
  # From here on it is a learner that has just begun.
  fresh = linear_learner(new[None], **options)
  gradient = rng.normal(size=(1, 3, 4)).astype(np.float32)
  learner.step(tf.constant(gradient))
  fresh.step(tf.constant(gradient[:, 1:2]))
  np.testing.assert_allclose(
    learner.parameters()[1], fresh.parameters()[0], rtol=1e-6
  )


def test_a_restored_learner_goes_on_identically(linear_learner):
  def make(theta, seed):
    pull = pull_exchange.Pull(0.5)
    learner = linear_learner(
      theta,
      exchange=pull,
      optimizer=optimizers.Adam(),
      # 5 updates are saved in the middle of a period.
      target_update=base.TargetUpdate(period=3, tau=0.5),
      updates_per_call=5,
      seed=seed,
    )
    return learner, pull

  rng = np.random.default_rng(0)
  gradients = tf.constant(rng.normal(size=(4, 5, 2, 3)), tf.float32)
  learner, pull = make(np.ones((2, 3)), seed=1)
  pull.set_star(np.arange(3.0), 0.2)
  learner.step(gradients[0])
  saved = learner.save()
  kept = {name: array.copy() for name, array in saved.items()}
  for gradient in gradients[1:]:
    learner.step(gradient)
  for name, array in saved.items():  # a copy, not a window
    np.testing.assert_array_equal(array, kept[name])

  other, pull = make(np.zeros((2, 3)), seed=2)
  other.restore(saved)
  for gradient in gradients[1:]:
    other.step(gradient)
  for name, array in learner.save().items():
    np.testing.assert_array_equal(other.save()[name], array, err_msg=name)
  # A new weight alone still finds the star that was saved.
  pull.set_star(None, 0.1)
  assert (other.save()['c'] > 0).all()


def test_a_checkpoint_of_another_learner_is_refused_whole(linear_learner):
  learner = linear_learner(np.ones((2, 3)))
  before = learner.save()
  saved = linear_learner(np.zeros((3, 3))).save()
  with pytest.raises(ValueError, match=r'theta of shape \(3, 3\).*\(2, 3\)'):
    learner.restore(saved)
  saved = linear_learner(np.zeros((2, 3))).save()
  del saved['steps']
  with pytest.raises(ValueError, match='steps of shape None'):
    learner.restore(saved)
  for name, array in learner.save().items():
    np.testing.assert_array_equal(array, before[name])


def test_learners_that_cannot_be_are_refused(linear_learner, agent):
  with pytest.raises(ValueError, match='3 learning rates for 2 members'):
    linear_learner(np.zeros((2, 3)), [0.1] * 3)
  with pytest.raises(parameters.LayoutMismatch, match=r'\(2, 5\)'):
    _learner(agent, np.zeros((2, 5)), RATES[:2])
  with pytest.raises(parameters.LayoutMismatch, match=r'needed \[P, '):
    _learner(agent, agent.initial(0), RATES[:1])


@pytest.mark.parametrize('prioritized', [False, True])
def test_a_call_is_built_beforehand_and_nothing_learned(agent, prioritized):
  learner = _learner(agent, _theta(agent)[:1], RATES[:1], updates_per_call=2)
  sample = tf.constant(_packed(2 * BATCH, 1))
  drawn = tf.fill([2 * BATCH], 0.1) if prioritized else None
  learner.step(sample, drawn)
  before = learner.save()
  new = _learner(agent, _theta(agent)[:1], RATES[:1], updates_per_call=2)
  new.trace(
    tf.TensorSpec.from_tensor(sample),
    tf.TensorSpec.from_tensor(drawn) if prioritized else None,
  )
  assert new.updates == 0
  new.step(sample, drawn)
  traced = new._call._call._calls[0].function
  assert traced.experimental_get_tracing_count() == 1
  after = new.save()
  for name, array in before.items():
    np.testing.assert_array_equal(after[name], array)
