"""Acting through a server is acting locally, alone and in batches."""

import functools
import pathlib
import threading

import numpy as np
import pytest

from murmuration.agents import impala
from murmuration.environment_loops import environments
from murmuration.launch import actor_settings
from murmuration.launch import experiment as experiment_lib
from murmuration.launch import graph
from murmuration.launch import rpc
from murmuration.launch.services import inference
from murmuration.launch.topologies import actor_learner

ROOT = pathlib.Path(__file__).parents[3]
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


@pytest.mark.parametrize('agent', AGENTS)
def test_alone_an_actor_acts_as_it_would_locally(world, agent):
  made = world(agent, num_actors=1)
  policy = made.policy(0)
  actions = _agree(made, policy, 0, 30, np.random.default_rng(0))
  assert len(np.unique(actions)) > 1
  assert policy.version == 0


@pytest.mark.parametrize('agent', AGENTS)
def test_in_a_batch_an_actor_acts_as_it_would_locally(world, agent):
  # Batches of all three, unless one of them is late.
  made = world(agent, inference_max_wait_ms=300.0, inference_max_batch=3 * ENVS)
  failures = []
  # All are there before the first acts, so that all are waited for.
  policies = [made.policy(i) for i in range(3)]

  def act(index, policy):
    try:
      _agree(made, policy, index, 40, np.random.default_rng(index))
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


def test_a_new_run_of_an_actor_begins_anew(world):
  made = world()
  rng = np.random.default_rng(0)
  first = made.policy(1)
  for _ in range(5):
    first.act(None, made.observation(rng), 0, None)
  assert np.abs(first.core).max() > 0
  second = made.policy(1)
  _agree(made, second, 1, 5, rng)
  # The first one finds out, and takes its place back.
  with pytest.raises(inference.RunLost):
    first.act(None, made.observation(rng), 0, None)
  seen = made.observation(rng)
  first.act(None, seen, 0, None)
  # At the start of an episode: an empty LSTM, and a stack of one observation.
  np.testing.assert_array_equal(first.core[:, 4:], 0)
  np.testing.assert_array_equal(first.core[:, :4], seen)


def test_an_actor_joins_a_restarted_server(world):
  made = world(num_actors=1)
  policy, rng = made.policy(0), np.random.default_rng(0)
  policy.act(None, made.observation(rng), 0, None)
  made.end()
  made.start()
  with pytest.raises(inference.RunLost):
    policy.act(None, made.observation(rng), 0, None)
  policy.act(None, made.observation(rng), 0, None)


def test_a_repeated_request_gets_the_same_answer_and_no_further_step(world):
  made = world(num_actors=1)
  rng = np.random.default_rng(0)
  seen = [made.observation(rng) for _ in range(2)]
  local, own = made.local(0)
  assert made.client.join(0, 5, 100)
  for step in (0, 0, 0, 1, 1):
    answer = made.client.act(0, 5, step, seen[step], 0, None)
    if answer == {}:  # it took longer than a call waits
      continue
    if step == 0:
      first = answer
  for name in ('action', 'core', 'behaviour'):
    np.testing.assert_array_equal(
      made.client.act(0, 5, 1, seen[1], 0, None)[name], answer[name]
    )
  expected = [local.act(made.learner.theta, x, 0, own) for x in seen]
  np.testing.assert_array_equal(first['action'], expected[0])
  np.testing.assert_array_equal(answer['action'], expected[1])
  # Of another run of this actor nothing is known.
  assert made.client.act(0, 6, 2, seen[0], 0, None) is None


def test_observations_of_another_shape_are_refused(world):
  made = world(num_actors=1)
  policy = made.policy(0)
  with pytest.raises(rpc.RemoteError, match='shape'):
    policy.act(None, np.zeros((ENVS, 3), np.float32), 0, None)


def test_each_answer_says_which_parameters_chose_it(world):
  made = world(num_actors=1)
  policy = made.policy(0)
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
  policy = made.policy(0)
  local, _ = made.local(0)
  if agent == 'impala':
    assert policy.priorities(None, np.zeros((3, 1), np.float32)) is None
    return
  layout = made.agent.transition_layout()
  packed = np.random.default_rng(0).random((5, layout.width), np.float32)
  np.testing.assert_allclose(
    policy.priorities(None, packed),
    local.priorities(made.learner.theta, packed),
    rtol=1e-6,
  )


def test_an_actor_gives_up_on_a_server_that_does_not_answer(world):
  made = world(num_actors=1, max_param_age_s=0.2)
  policy = made.policy(0, patience_s=1.0)

  def gone(version):
    raise rpc.Unavailable('nowhere', 'get_parameters', True, 'gone')

  made.learner.get_parameters = gone
  rng = np.random.default_rng(0)
  with pytest.raises(inference.NoAnswer):
    for _ in range(10_000):  # until the parameters are too old
      policy.act(None, made.observation(rng), 0, None)


def test_a_stop_ends_a_wait_for_the_server(tmp_path):
  client = rpc.Client(f'unix:{tmp_path}/nobody', timeout_s=0.1)
  policy = inference.RemotePolicy(client, 0, 0, lambda: True)
  with pytest.raises(inference.RunLost):
    policy.start()


def _program(**options):
  spec = environments.spec('CartPole-v1')
  experiment = experiment_lib.Experiment(
    functools.partial(impala.IMPALA, impala.Config(), spec),
    'CartPole-v1',
    num_agents=1,
    max_replay_size=1,
    min_replay_size=1,
    run=experiment_lib.RunConfig(replay='node'),
  )
  return actor_learner.build(experiment, actor_settings.Config(**options))


def test_actors_ask_the_server_and_the_server_asks_the_learner():
  program = _program(inference='central')
  graph.check(program)
  edges = graph.edges(program)
  for actor in ('actor/0', 'actor/1'):
    assert {target for source, target in edges if source == actor} == {
      'counter/0', 'inference/0', 'replay/0'
    }  # fmt: skip
  assert {target for source, target in edges if source == 'inference/0'} == {
    'counter/0', 'learner/0'
  }  # fmt: skip


def test_the_page_shows_the_program():
  page = ROOT / 'docs' / 'topologies' / 'central_inference.md'
  picture = graph.to_mermaid(_program(inference='central'))
  assert f'```mermaid\n{picture}```' in page.read_text(encoding='utf-8')
