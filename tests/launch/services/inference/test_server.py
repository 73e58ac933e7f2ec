"""What a server does with those who are late, odd, gone, or ask twice."""

import dataclasses
import os
import socket
import threading
import time

import numpy as np
import pytest

from launch import rpc
from launch.services.inference import remote
from launch.services.inference import server as server_lib
from launch.services.inference import sessions
from launch.services.inference import transport as transport_lib
from tests import strangers

TRANSPORTS = ('shared_memory', 'rpc')
ENVS = 4


@pytest.mark.parametrize('transport', TRANSPORTS)
def test_a_step_that_is_asked_for_twice_is_made_once(world, transport):
  made = world(num_actors=1)
  policy = made.policy(0, transport)
  rng = np.random.default_rng(0)
  local, local_rng = made.local(0)
  for t in range(4):
    seen = made.observation(rng)
    expected = local.act(made.learner.theta, seen, 0, local_rng)
    first = policy.act(None, seen, 0, None)
    for _ in range(3):
      policy._frame.action[...] = -1
      policy._link.exchange(t)
      assert policy._frame.refusal is None
      if transport == 'rpc':
        np.testing.assert_array_equal(policy._frame.action, first)
    # Were it made again, state and generator would have gone on.
    np.testing.assert_array_equal(first, expected)
    np.testing.assert_allclose(policy.core, local.core, atol=1e-5)


@pytest.mark.parametrize('transport', TRANSPORTS)
def test_a_server_that_was_started_again_costs_one_run(
  world, transport, caplog
):
  made = world(num_actors=1)
  policy = made.policy(0, transport)
  rng = np.random.default_rng(0)
  for _ in range(3):
    policy.act(None, made.observation(rng), 0, None)
  before = policy.core.copy()
  ending = threading.Thread(target=made.end, daemon=True)
  ending.start()
  ending.join(60)
  assert not ending.is_alive()
  threading.Timer(0.5, made.start).start()
  with pytest.raises(remote.RunLost):
    policy.act(None, made.observation(rng), 0, None)
  said = [r for r in caplog.messages if 'All episodes begin anew' in r]
  assert len(said) == 1
  seen = made.observation(rng)
  policy.act(None, seen, 0, None)
  np.testing.assert_array_equal(policy.core[:, :4], seen)
  assert np.abs(before[:, 4:]).max() > 0


def test_an_actor_that_is_silent_does_not_stop_the_others(world):
  made = world(inference_max_wait_ms=20.0)
  rng = np.random.default_rng(0)
  acting, silent = made.policy(0, 'auto'), made.policy(1, 'auto')
  silent.act(None, made.observation(rng), 0, None)
  for _ in range(10):
    acting.act(None, made.observation(rng), 0, None)
  silent.close()
  for _ in range(10):
    acting.act(None, made.observation(rng), 0, None)
  assert list(made.server._sessions) == [0]


def test_half_of_the_actors_are_answered_while_the_others_step(world):
  # So long that a request which has to wait for others is seen to wait.
  made = world(num_actors=2, inference_max_wait_ms=1e6)
  first, second = made.policy(0, 'auto'), made.policy(1, 'auto')
  sizes = []
  made.observe_batches(sizes.append)
  rng = np.random.default_rng(0)
  for policy in (first, second, first, first, second, second):
    policy.act(None, made.observation(rng), 0, None)
  assert sizes == [1] * 6


def test_as_many_are_waited_for_as_the_batch_is_told_to_hold(world):
  made = world(
    num_actors=2, inference_max_batch=2 * ENVS, inference_max_wait_ms=1e6
  )
  first, second = made.policy(0, 'auto'), made.policy(1, 'auto')
  sizes = []
  made.observe_batches(sizes.append)
  rng = np.random.default_rng(0)
  first.act(None, made.observation(rng), 0, None)  # nobody else is known yet
  seen, acted = made.observation(rng), threading.Event()

  def act():
    second.act(None, seen, 0, None)
    acted.set()

  thread = threading.Thread(target=act, daemon=True)
  thread.start()
  assert not acted.wait(0.3)
  first.act(None, made.observation(rng), 0, None)
  thread.join(60)
  assert not thread.is_alive()
  assert sizes == [1, 2]


@pytest.mark.parametrize('transport', TRANSPORTS)
def test_frames_of_another_shape_are_refused_and_the_others_go_on(
  world, transport
):
  made = world()
  good = made.policy(0, transport)
  rng = np.random.default_rng(0)
  good.act(None, made.observation(rng), 0, None)
  wrong = dataclasses.replace(made.shapes, observation_shape=(5,))
  policy = remote.RemotePolicy(made.client, wrong, 1, 0, transport)
  with pytest.raises(
    transport_lib.Refused, match='the same agent, environment and'
  ):
    policy.start()
  with pytest.raises(ValueError, match=r'float32 \[4, 5\].*told.*\[4, 4\]'):
    good.act(None, np.zeros((ENVS, 5), np.float32), 0, None)
  good._step -= 1  # it was not sent
  good.act(None, made.observation(rng), 0, None)


def test_a_request_of_another_size_gets_an_error_and_the_batch_goes_on(world):
  made = world(inference_max_wait_ms=200.0)
  good, other = made.policy(0, 'rpc'), made.policy(1, 'rpc')
  rng = np.random.default_rng(0)
  results = []

  def act():
    results.append(good.act(None, made.observation(rng), 0, None))

  thread = threading.Thread(target=act, daemon=True)
  thread.start()
  request = bytes(other._frame.request_bytes)
  with pytest.raises(rpc.RemoteError, match='memoryview assignment'):
    made.client.act(*other._link._key, request + b'1234')
  thread.join(60)
  assert len(results) == 1
  other.act(None, made.observation(rng), 0, None)


def test_calls_that_overtake_one_another_change_nothing(world):
  made = world(num_actors=1)
  policy = made.policy(0, 'rpc')
  rng = np.random.default_rng(0)
  old = None
  for _ in range(3):
    old = old or bytes(policy._frame.request_bytes)
    policy.act(None, made.observation(rng), 0, None)
  core = policy.core.copy()
  with pytest.raises(rpc.RemoteError, match='overtaken'):
    made.client.act(*policy._link._key, old)
  policy._link.exchange(2)
  np.testing.assert_array_equal(policy.core, core)


def _wait_for_newer(made, version):
  """Returns once the server has other parameters; a call may end before."""
  deadline = time.monotonic() + 60
  while not made.client.newer_than(version, 1.0):
    assert time.monotonic() < deadline


@pytest.mark.filterwarnings('ignore:overflow', 'ignore:invalid value')
@pytest.mark.parametrize('agent', ['impala', 'dqn'])
def test_numbers_that_are_not_finite_are_chosen_with_the_last_that_were(
  world, agent
):
  made = world(agent, num_actors=1, update_period=1)
  policy = made.policy(0, 'auto')
  rng = np.random.default_rng(0)
  theta = made.learner.theta
  policy.act(None, made.observation(rng), 0, None)
  broken = np.full_like(theta, 1e38)
  made.learner.published.publish(5, broken)
  _wait_for_newer(made, 0)
  got = policy.act(None, made.observation(rng), 0, None)
  assert np.isfinite(got).all() and policy.version == 0
  made.learner.published.publish(6, theta)
  _wait_for_newer(made, 5)
  policy.act(None, made.observation(rng), 0, None)
  assert policy.version == 6
  assert made.server._policy.not_finite == 1


def test_what_no_parameters_can_act_on_is_refused_and_the_batch_goes_on(world):
  made = world(inference_max_wait_ms=500.0)
  good, bad = made.policy(0, 'auto'), made.policy(1, 'auto')
  rng = np.random.default_rng(0)
  errors = []

  def ask():
    try:
      bad.act(None, made.observation(rng) * np.nan, 0, None)
    except transport_lib.Refused as e:
      errors.append(str(e))

  thread = threading.Thread(target=ask, daemon=True)
  thread.start()
  local, local_rng = made.local(0)
  seen = made.observation(rng)
  expected = local.act(made.learner.theta, seen, 0, local_rng)
  np.testing.assert_array_equal(good.act(None, seen, 0, None), expected)
  thread.join(60)
  assert len(errors) == 1 and 'no finite numbers' in errors[0]
  assert made.server._figures.refused == 1


def test_with_old_parameters_actors_wait(world):
  made = world(num_actors=1, max_param_age_s=0.2)
  policy = made.policy(0, 'auto')
  rng = np.random.default_rng(0)
  policy.act(None, made.observation(rng), 0, None)
  away = rpc.Unavailable('localhost:1', 'get_parameters', False, 'away')

  def fail(have_version):
    raise away

  made.learner.get_parameters = fail
  time.sleep(0.4)
  acted = threading.Event()

  def act():
    policy.act(None, made.observation(rng), 0, None)
    acted.set()

  thread = threading.Thread(target=act, daemon=True)
  thread.start()
  assert not acted.wait(0.5)
  assert 'waits for the learner' in policy._why_silent()
  del made.learner.get_parameters
  assert acted.wait(60)
  thread.join(60)


@pytest.mark.parametrize('age_s', [0.2, 60.0])
def test_parameters_are_asked_for_before_they_are_too_old(world, age_s):
  made = world(num_actors=1, max_param_age_s=age_s)
  waits, waited = [], threading.Event()

  class Look(threading.Event):
    def wait(self, timeout=None):
      waits.append(timeout)
      waited.set()
      return super().wait(timeout)

  made.server._look = Look()
  assert waited.wait(60)
  assert max(waits) == min(0.5, age_s / 2)


def test_parameters_are_asked_for_once_in_so_many_steps(world):
  made = world(num_actors=1, update_period=3 * ENVS)
  policy = made.policy(0, 'auto')
  batches, looks = [], []

  class Look(threading.Event):
    def set(self):
      looks.append(len(batches))
      super().set()

  made.server._look = Look()
  made.observe_batches(batches.append)
  rng = np.random.default_rng(0)
  for _ in range(7):
    policy.act(None, made.observation(rng), 0, None)
  assert looks == [3, 6]


def test_a_call_without_an_answer_ends_about_when_its_actor_asks_again(world):
  # Parameters are too old from the first moment on: nobody is answered.
  made = world(num_actors=1, max_param_age_s=1e-9)
  policy = made.policy(0, 'rpc')
  seen = made.observation(np.random.default_rng(0))
  policy._frame.ask(0, 0, None, seen)
  request = bytes(policy._frame.request_bytes)
  with pytest.raises(rpc.RemoteError, match='no answer within 1 s'):
    made.client.with_deadline(60.0).act(*policy._link._key, request)


def test_it_reports_as_other_nodes_do(world):
  made = world(num_actors=1)
  policy = made.policy(0, 'auto')
  rng = np.random.default_rng(0)
  deadline = time.monotonic() + 60
  while 'mean_batch' not in getattr(made.counter, 'metrics', {}):
    policy.act(None, made.observation(rng), 0, None)
    assert time.monotonic() < deadline
  assert made.counter.node == 'inference/0'
  metrics = made.counter.metrics
  assert metrics['mean_batch'] == ENVS
  assert metrics['passes_per_step'] == 1 / ENVS
  assert metrics['requests_per_s'] > 0 and metrics['wait_p99_ms'] > 0


def test_nothing_that_has_a_name_is_left(world):
  memory = strangers.named_memory('self')
  made = world(num_actors=1)
  policy = made.policy(0, 'shared_memory')
  policy.act(None, made.observation(np.random.default_rng(0)), 0, None)
  assert strangers.named_memory('self') == memory
  name = made.server._listener.name
  assert name in _sockets()
  made.close()
  assert name not in _sockets()


def test_another_host_cannot_share_memory(world, monkeypatch):
  monkeypatch.setattr(
    server_lib.Server,
    'where',
    lambda self: {'ready': True, 'host': 'x', 'socket': 'y'},
  )
  made = world(num_actors=1)
  policy = remote.RemotePolicy(made.client, made.shapes, 0, 0, 'shared_memory')
  with pytest.raises(ValueError, match='is on another host. Set it to auto'):
    policy.start()
  policy = remote.RemotePolicy(made.client, made.shapes, 0, 0, 'auto')
  policy.start()
  assert isinstance(policy._link, transport_lib.RpcLink)
  policy.act(None, made.observation(np.random.default_rng(0)), 0, None)


def test_a_connection_that_sends_nonsense_is_refused_or_closed(world):
  made = world(num_actors=1)
  made.policy(0, 'auto')
  hello = dataclasses.asdict(sessions.Hello(3, 1, 1, made.shapes.fingerprint))
  with pytest.raises(transport_lib.Refused, match='no actor 3 of 1'):
    transport_lib.SharedMemoryLink(
      made.server._listener.name, hello, made.shapes
    )
  with pytest.raises(transport_lib.Lost, match='actor in: it closed'):
    transport_lib.SharedMemoryLink(
      made.server._listener.name, {'a': 1}, made.shapes
    )
  with pytest.raises(transport_lib.Lost, match='does not listen'):
    transport_lib.SharedMemoryLink('nobody', hello, made.shapes)
  with pytest.raises(transport_lib.Lost, match='actor in: it closed'):
    transport_lib.SharedMemoryLink(
      made.server._listener.name, {**hello, 'index': 'x'}, made.shapes
    )
  # After the frame has been sent.
  bad_seed = {**hello, 'index': 0, 'seed': 'x'}
  link = transport_lib.SharedMemoryLink(
    made.server._listener.name, bad_seed, made.shapes
  )
  with pytest.raises(transport_lib.Lost):
    link.exchange(0)
  for bad in (5, {'index': 0}, {**hello, 'index': 'x'}):
    with pytest.raises(TypeError):
      made.server.join(bad)
  made.policy(0, 'auto')


def test_an_actor_and_a_server_of_another_user_refuse_each_other(
  world, monkeypatch
):
  made = world(num_actors=1)
  made.policy(0, 'auto')
  hello = dataclasses.asdict(sessions.Hello(0, 1, 1, made.shapes.fingerprint))
  user = os.geteuid()
  monkeypatch.setattr(os, 'geteuid', lambda: user + 1)
  name = made.server._listener.name
  with pytest.raises(transport_lib.Lost, match='who runs this'):
    transport_lib.SharedMemoryLink(name, hello, made.shapes)
  with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
    stranger.settimeout(30.0)
    stranger.connect('\0' + name)
    assert stranger.recv(100) == b''  # the server closes it, unasked


def _sockets():
  with open('/proc/net/unix') as file:
    return file.read()
