"""The example that serves a policy: examples/serve.py."""

from concurrent import futures
import http.client
import importlib.util
import json
import pathlib
import sys
import threading
import time

import numpy as np
import pytest

from murmuration import export
from murmuration import playing
from murmuration.agents import dqn
from murmuration.agents import impala
from murmuration.agents import ppo
from murmuration.environment_loops import environments

ROOT = pathlib.Path(__file__).resolve().parents[1]
CLIENTS = 16


@pytest.fixture(scope='module')
def example():
  path = ROOT / 'examples' / 'serve.py'
  spec = importlib.util.spec_from_file_location('serve', path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


def _exported(agent, directory):
  theta = agent.initial(1)
  noise = np.random.default_rng(0).standard_normal(len(theta))
  kept = playing.Kept(agent, (theta + 0.3 * noise).astype(np.float32), 'a test')
  path = directory / 'policy.py'
  path.write_text(export._source(export.packed(kept)))
  return str(path)


class Counted:
  """A policy whose first call waits until all requests are there."""

  def __init__(self, policy):
    self._policy, self.size, self.about = policy, policy.size, policy.about
    self.sizes, self.go_on = [], threading.Event()

  def __call__(self, observations):
    self.sizes.append(len(observations))
    assert self.go_on.wait(60)
    return self._policy(observations)


def _begin(listening):
  # Its end waits for the next of its looks.
  looks = {'poll_interval': 0.02}
  threading.Thread(
    target=listening.serve_forever, kwargs=looks, daemon=True
  ).start()


def _asked(port, content):
  connection = http.client.HTTPConnection('127.0.0.1', port, timeout=60)
  connection.request('POST', '/', json.dumps(content))
  answer = connection.getresponse()
  found = answer.status, json.loads(answer.read())
  connection.close()
  return found


def test_requests_that_wait_are_one_batch_and_each_gets_its_own_answer(
  example, tmp_path
):
  agent = ppo.PPO(ppo.Config(), environments.spec('Pendulum-v1'))
  policy = example.load(_exported(agent, tmp_path))
  counted = Counted(policy)
  batcher = example.Batcher(counted)
  x = np.random.default_rng(0).normal(size=(CLIENTS, 3))
  with futures.ThreadPoolExecutor(CLIENTS) as pool:
    answers = [pool.submit(batcher, row) for row in x]
    deadline = time.monotonic() + 60
    while not counted.sizes or (
      batcher._waiting.qsize() + sum(counted.sizes) < CLIENTS
    ):
      assert time.monotonic() < deadline
      time.sleep(0.01)
    counted.go_on.set()
    got = np.stack([answer.result(60) for answer in answers])
  np.testing.assert_allclose(got, policy(x), atol=1e-6)
  assert len(counted.sizes) <= 3 and sum(counted.sizes) == CLIENTS


def test_it_serves_over_http_and_says_what_is_wrong(example, tmp_path):
  agent = ppo.PPO(ppo.Config(), environments.spec('CartPole-v1'))
  policy = example.load(_exported(agent, tmp_path))
  listening = example.serve(policy, 0)
  _begin(listening)
  try:
    x = np.random.default_rng(1).normal(size=(20, 4))
    with futures.ThreadPoolExecutor(4) as pool:
      found = pool.map(
        lambda row: _asked(listening.server_port, row), x.tolist()
      )
      assert [*found] == [(200, int(action)) for action in policy(x)]
    for wrong, said in (
      ([0.0] * 3, '(3,); needed is (4,)'),
      ('x', 'float'),
      ([None, 0, 0, 0], 'not finite'),
      ([0, float('nan'), 0, 0], 'not finite'),
      ([0, 0, 1e39, 0], 'not finite'),
    ):
      code, why = _asked(listening.server_port, wrong)
      assert code == 400 and said in why
  finally:
    listening.shutdown()
    listening.server_close()


def test_a_policy_that_learned_from_bytes_gets_bytes(example, tmp_path):
  spec = environments.Spec(
    'CartPole-v1', (12, 12), 2, observation_dtype='uint8'
  )
  agent = dqn.DQN(dqn.Config(network='strided'), spec)
  policy = example.load(_exported(agent, tmp_path))
  listening = example.serve(policy, 0)
  _begin(listening)
  try:
    images = np.random.default_rng(1).integers(0, 256, (5, 12, 12), np.uint8)
    for image in images:
      answer = _asked(listening.server_port, image.tolist())
      assert answer == (200, int(policy(image)))
    for change in (0.5, 256, -256):
      code, why = _asked(listening.server_port, (images[0] + change).tolist())
      assert code == 400 and 'whole numbers from 0 to 255' in why
  finally:
    listening.shutdown()
    listening.server_close()


class Zero:
  """A policy of numbers without a shape."""

  size, about = 0, {'observation_shape': ()}

  def __call__(self, observations):
    return np.zeros(len(observations), int)


@pytest.fixture
def port(example):
  listening = example.serve(Zero(), 0)
  _begin(listening)
  yield listening.server_port
  listening.shutdown()
  listening.server_close()


@pytest.mark.parametrize(
  ('length', 'code'),
  [('x', 400), ('-1', 400), ('', 400), ('9' * 5000, 400), ('9' * 9, 413)],
)
def test_a_length_that_is_no_size_is_answered_and_ends_the_connection(
  port, length, code
):
  connection = http.client.HTTPConnection('127.0.0.1', port, timeout=60)
  connection.putrequest('POST', '/')
  connection.putheader('Content-Length', length)
  connection.endheaders()
  answer = connection.getresponse()
  assert answer.status == code and 'Content-Length' in json.loads(answer.read())
  assert connection.sock.recv(1) == b''
  connection.close()


@pytest.mark.parametrize('body', ['9' * 400, '[' * 100_000, '', '{}'])
def test_what_is_no_observation_is_answered(port, body):
  connection = http.client.HTTPConnection('127.0.0.1', port, timeout=60)
  connection.request('POST', '/', body)
  assert connection.getresponse().status == 400
  connection.close()


@pytest.mark.parametrize(
  ('name', 'said'),
  [
    ('.', 'is no policy.py'),
    ('policy.npz', 'is no policy.py'),
    ('other.py', 'is no policy.py'),
    ('bare.py', 'is no policy.py'),
    ('broken.py', 'is no policy.py'),
    ('gone.py', 'No such file'),
    ('zero.py', 'port must be 0-65535'),
  ],
)
def test_what_cannot_be_served_is_exit_code_2(
  example, tmp_path, monkeypatch, capsys, name, said
):
  (tmp_path / 'policy.npz').write_bytes(b'')
  (tmp_path / 'other.py').write_text('policy = print\n')
  (tmp_path / 'bare.py').write_text('')
  (tmp_path / 'broken.py').write_text('policy = (\n')
  (tmp_path / 'zero.py').write_text(
    'class policy:\n  size, about = 0, {"observation_shape": ()}\n'
  )
  argv = ['serve.py', str(tmp_path / name), '--port=99999']
  monkeypatch.setattr(sys, 'argv', argv)
  assert example.main() == 2
  assert said in capsys.readouterr().err


def test_a_policy_that_remembers_is_refused(example, tmp_path):
  agent = impala.IMPALA(
    impala.Config(lstm_size=8), environments.spec('CartPole-v1')
  )
  with pytest.raises(ValueError, match='remembers its episodes'):
    example.serve(example.load(_exported(agent, tmp_path)), 0)
