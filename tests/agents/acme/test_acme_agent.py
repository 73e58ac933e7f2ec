"""Stock Acme agents: their learners do here what they do at home."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from murmuration.agents import base
from murmuration.agents import feeds
from murmuration.agents import learner as learner_lib
from murmuration.agents.acme import d4pg as acme_d4pg
from murmuration.agents.acme import dqn as acme_dqn
from murmuration.agents.exchange import local
from murmuration.environment_loops import environments
from murmuration.replay import packing

BATCH, UPDATES = 8, 3
SPECS = {
  'acme_dqn': environments.Spec('four', (4,), 2),
  'acme_d4pg': environments.Spec(
    'reach', (4,), None, (2,), (-1.0,) * 2, (1.0,) * 2
  ),
}


def make_agent(name, **options):
  spec = SPECS[name]
  if name == 'acme_dqn':
    config = acme_dqn.Config(
      hidden_sizes=(16,), batch_size=BATCH, target_update_period=2, **options
    )
    return acme_dqn.AcmeDQN(config, spec)
  config = acme_d4pg.Config(
    policy_sizes=(16,),
    critic_sizes=(16,),
    batch_size=BATCH,
    target_update_period=2,
    **{'num_atoms': 11, **options},
  )
  return acme_d4pg.AcmeD4PG(config, spec)


def layout_of(spec):
  return packing.TransitionLayout(
    spec.observation_shape, spec.action_shape, spec.discrete
  )


def make_learner(agent, seed=3, **options):
  return agent.learner_class(
    agent,
    agent.initial(seed)[None],
    [agent.learning_rate],
    local.Local(),
    feeds.Transitions(layout_of(agent.spec), BATCH),
    **{'updates_per_call': UPDATES, 'seed': seed, **options},
  )


def make_sample(spec, seed=0, batches=UPDATES):
  rng, items = np.random.default_rng(seed), batches * BATCH
  actions = rng.uniform(-1, 1, (items, *spec.action_shape))
  if spec.discrete:
    actions = rng.integers(spec.num_actions, size=items)
  return layout_of(spec).pack(
    rng.standard_normal((items, 4)),
    actions,
    rng.uniform(-1, 1, items),
    rng.choice([0.0, 0.9], items),
    rng.standard_normal((items, 4)),
  )


def probabilities(agent, seed=0):
  if agent.priority_exponent is None:
    return None
  rng = np.random.default_rng(seed)
  return rng.uniform(0.1, 1, UPDATES * BATCH).astype(np.float32)


# Its networks take seconds to trace, again in each test.
@pytest.fixture(
  params=['acme_dqn', pytest.param('acme_d4pg', marks=pytest.mark.long)]
)
def agent(request):
  return make_agent(request.param)


@pytest.mark.long
def test_a_learner_that_goes_on_from_a_checkpoint_ends_where_the_other_does(
  agent,
):
  one, other = make_learner(agent), make_learner(agent, seed=8)
  drawn = probabilities(agent)
  one.step(make_sample(agent.spec), drawn)
  assert not np.array_equal(one.parameters(), other.parameters())
  saved = one.save()
  other.restore(saved)
  assert other.updates == one.updates == UPDATES
  for learner in (one, other):
    learner.step(make_sample(agent.spec, seed=1), drawn)
  # Moments of Adam, targets and the counter of their updates are among it.
  for name, value in one.save().items():
    np.testing.assert_array_equal(value, other.save()[name], name)
    if name != 'updates':
      assert not np.array_equal(value, saved[name]) or value.size < 12, name


def test_tracing_moves_nothing_and_steps_learn_from_what_they_are_given(agent):
  traced, plain = make_learner(agent), make_learner(agent)
  traced.trace(None)
  np.testing.assert_array_equal(traced.parameters(), plain.parameters())
  for learner in (traced, plain):
    learner.step(make_sample(agent.spec), probabilities(agent))
  np.testing.assert_array_equal(traced.parameters(), plain.parameters())
  assert traced.updates == UPDATES
  # Not one batch again and again: the order of the batches matters.
  turned = make_learner(agent)
  sample = make_sample(agent.spec).reshape(UPDATES, BATCH, -1)[::-1]
  turned.step(sample.reshape(UPDATES * BATCH, -1), probabilities(agent))
  assert not np.array_equal(turned.parameters(), plain.parameters())


def test_it_is_what_the_stock_learner_makes_of_a_dataset(agent):
  from acme import types
  import reverb

  packed = make_sample(agent.spec)
  ours = make_learner(agent)
  result = ours.step(packed, probabilities(agent))
  fields = layout_of(agent.spec).unpack(packed)
  items = len(packed)
  drawn = probabilities(agent)
  drawn = np.ones(items) if drawn is None else drawn.astype(float)
  dataset = tf.data.Dataset.from_tensor_slices(
    reverb.ReplaySample(
      reverb.SampleInfo(
        np.arange(items, dtype=np.uint64), drawn, *[np.ones(items)] * 3
      ),
      types.Transition(
        fields.o_tm1, fields.a_tm1, fields.r_t, fields.d_t, fields.o_t
      ),
    )
  ).batch(BATCH)
  told = {}

  class Client:
    def mutate_priorities(self, table, updates):
      told.update(updates)

  class Log:
    def write(self, data):
      pass

  tf.random.set_seed(3)
  stock = agent.make_learner(iter(dataset), Client(), Log())
  for _ in range(UPDATES):
    stock.step()
  (variables,) = stock.get_variables(['policy'])
  close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
  close(ours.parameters()[0], agent.layout.pack(variables))
  if result.priorities is None:
    assert not told
  else:
    close(result.priorities, [told[key] for key in range(items)])


def test_the_policy_acts_as_the_learner_s_own_networks_do(agent):
  learner = make_learner(agent)
  (theta,), stock = learner.parameters(), learner._learner
  observation = np.random.default_rng(0).standard_normal((300, 4))
  observation = observation.astype(np.float32)
  greedy = agent.greedy(theta)(observation)
  if agent.spec.discrete:
    wanted = stock._network(tf.constant(observation)).numpy().argmax(-1)
  else:
    wanted = stock._target_policy_network(observation).numpy()
  np.testing.assert_allclose(greedy, wanted, rtol=1e-5, atol=1e-6)
  behaviour = agent.actor(base.ActorInfo(0, 1, 0), 300)
  rng = np.random.default_rng(1)
  explored = np.stack(
    [behaviour.act(theta, observation, 0, rng) for _ in range(6)]
  )
  differ = (explored != greedy).reshape(6, 300, -1).any(-1)
  if agent.spec.discrete:
    assert 0 < differ.mean() < 0.1  # epsilon 0.05, half of it another action
  else:
    assert differ.all() and np.abs(explored).max() <= 1.0


def test_a_checkpoint_of_other_networks_is_refused(agent):
  learner = make_learner(agent)
  saved = {name: np.append(value, 0) for name, value in learner.save().items()}
  with pytest.raises(ValueError, match='Resume with the same config'):
    learner.restore(saved)


def test_parameters_that_are_not_finite_are_said(agent):
  learner, drawn = make_learner(agent), probabilities(agent)
  sample = make_sample(agent.spec)
  assert not learner.step(sample, drawn).broken.any()
  sample[:] = np.nan
  assert learner.step(sample, drawn).broken.all()


def test_a_learner_that_gives_no_priorities_is_told_from_one_that_diverged():
  learner = make_learner(make_agent('acme_dqn'))
  learner._priorities.mutate_priorities = lambda *args, **kwargs: None
  with pytest.raises(learner_lib.LearnerFault, match='no finite priority'):
    learner.step(make_sample(learner.agent.spec), probabilities(learner.agent))


def test_what_is_to_be_lowered_where_it_diverges_is_a_setting(agent):
  for setting in agent.rate_settings:
    assert hasattr(agent.config, setting.removeprefix('agent.'))


@pytest.mark.parametrize(
  'support', [{'v_min': 5.0, 'v_max': 5.0}, {'v_min': 200.0}, {'num_atoms': 1}]
)
def test_a_support_without_width_is_refused(support):
  with pytest.raises(ValueError, match='agent.(v_min|num_atoms)'):
    make_agent('acme_d4pg', **support)


def test_metrics_are_what_the_learner_logs(agent):
  learner = make_learner(agent)
  result = learner.step(make_sample(agent.spec), probabilities(agent))
  wanted = {
    'acme_dqn': {'loss'},
    'acme_d4pg': {'critic_loss', 'policy_loss'},
  }[agent.name]
  assert set(result.metrics) == wanted
  assert all(np.isfinite(value).all() for value in result.metrics.values())


def test_more_than_one_member_is_refused(agent):
  with pytest.raises(ValueError, match='has one member'):
    agent.learner_class(
      agent,
      np.zeros((2, agent.layout.size)),
      [],
      local.Local(),
      feeds.Transitions(layout_of(agent.spec), BATCH),
    )
