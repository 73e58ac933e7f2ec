"""Acting through a server is acting locally, alone and in batches."""

import threading

import numpy as np
import pytest

from launch.services.inference import remote

TRANSPORTS = ('shared_memory', 'rpc')
AGENTS = ('impala', 'dqn', 'd4pg')
ENVS = 4


def _agree(world, policy, index, steps, world_rng):
  """Has an actor act both ways; returns the actions."""
  local, rng = world.local(index)
  theta, actions = world.learner.theta, []
  for t in range(steps):
    seen, last = world.observation(world_rng), world_rng.random(ENVS) < 0.1
    expected = local.act(theta, seen, t * ENVS, rng)
    got = policy.act(policy.theta, seen, t * ENVS, None)
    assert got.dtype == expected.dtype and got.shape == expected.shape
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
    for name in ('behaviour', 'core'):
      if hasattr(local, name):
        np.testing.assert_allclose(
          getattr(policy, name), getattr(local, name), rtol=1e-5, atol=1e-5
        )
    local.ended(last)
    policy.ended(last)
    actions.append(got)
  return np.array(actions)


@pytest.mark.parametrize('transport', TRANSPORTS)
@pytest.mark.parametrize('agent', AGENTS)
def test_alone_an_actor_acts_as_it_would_locally(world, agent, transport):
  made = world(agent, num_actors=1)
  policy = made.policy(0, transport)
  actions = _agree(made, policy, 0, 30, np.random.default_rng(0))
  assert len(np.unique(actions)) > 1
  assert policy.version == 0


@pytest.mark.parametrize('agent', AGENTS)
def test_in_batches_too_on_both_ways_in(world, agent):
  made = world(agent, inference_max_wait_ms=300.0)
  ways = ('shared_memory', 'rpc', 'auto')
  failures, sizes = [], []
  made.observe_batches(sizes.append)

  # All are there before the first acts, so that nobody is left behind.
  policies = [made.policy(i, way) for i, way in enumerate(ways)]

  def act(index, policy):
    try:
      _agree(made, policy, index, 60, np.random.default_rng(index))
    except BaseException as e:
      failures.append(e)

  threads = [
    threading.Thread(target=act, args=pair, daemon=True)
    for pair in enumerate(policies)
  ]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join(120)
  assert failures == []
  # Else what was compared is not what batches do.
  assert sum(sizes) == 180 and np.mean(sizes) > 1.2


@pytest.mark.parametrize('transport', TRANSPORTS)
def test_a_new_run_of_an_actor_begins_anew(world, transport):
  made = world()
  rng = np.random.default_rng(0)
  first = made.policy(1, transport)
  for _ in range(5):
    first.act(None, made.observation(rng), 0, None)
  assert np.abs(first.core).max() > 0
  second = made.policy(1, transport)
  _agree(made, second, 1, 5, rng)
  # The first one finds out, and takes its place back.
  with pytest.raises(remote.RunLost):
    first.act(None, made.observation(rng), 0, None)
  seen = made.observation(rng)
  first.act(None, seen, 0, None)
  # At the start of an episode: an empty LSTM, and a stack of one observation.
  np.testing.assert_array_equal(first.core[:, 4:], 0)
  np.testing.assert_array_equal(first.core[:, :4], seen)


@pytest.mark.parametrize('transport', TRANSPORTS)
def test_each_answer_says_which_parameters_chose_it(world, transport):
  made = world(num_actors=1)
  policy = made.policy(0, transport)
  rng = np.random.default_rng(0)
  policy.act(None, made.observation(rng), 0, None)
  assert policy.version == 0
  assert not policy.fetch_newer(0.05)
  theta = made.learner.theta + 1
  threading.Timer(0.1, made.learner.published.publish, (8, theta)).start()
  assert policy.fetch_newer(25.0)
  policy.act(None, made.observation(rng), 0, None)
  assert policy.version == 8 and 0 <= policy.age_s < 25


@pytest.mark.parametrize('agent', AGENTS)
def test_first_priorities_are_the_servers(world, agent):
  made = world(agent, num_actors=1)
  policy = made.policy(0, 'auto')
  local, _ = made.local(0)
  if agent == 'impala':
    assert policy.priorities(None, np.zeros((3, 1), np.float32)) is None
    policy._server = None  # is not asked again
    assert policy.priorities(None, np.zeros((3, 1), np.float32)) is None
    return
  layout = made.agent.transition_layout()
  packed = np.random.default_rng(0).random((5, layout.width), np.float32)
  np.testing.assert_allclose(
    policy.priorities(None, packed),
    local.priorities(made.learner.theta, packed),
    rtol=1e-6,
  )
