"""Where a Ray cluster is, and heads that do not answer or not us."""

import contextlib
import socket
import sys
import time

import pytest

from launch import engines
from launch.engines.cluster import join
from launch.engines.cluster import reach
from tests.launch.engines import fake_ray


@pytest.fixture(autouse=True)
def address_of_nobody(monkeypatch):
  monkeypatch.delenv('RAY_ADDRESS', raising=False)


def test_an_address_where_no_ray_is_is_refused_at_once():
  with pytest.raises(engines.Refused, match='No Ray at 127.0.0.1:1 '):
    reach.listens('127.0.0.1:1')
  with pytest.raises(engines.Refused, match='it is HOST:PORT, or auto'):
    reach.listens('127.0.0.1:ray')


def test_an_address_without_a_port_has_rays_own():
  assert reach.complete('10.0.0.1') == '10.0.0.1:6379'
  assert reach.complete('10.0.0.1:7000') == '10.0.0.1:7000'
  assert reach.complete('auto') == 'auto'
  assert reach.complete('[fd00::1]:7000') == '[fd00::1]:7000'
  assert reach.complete('[fd00::1]') == '[fd00::1]:6379'
  for name in ('fd00::1', 'fd00::1:6379'):
    with pytest.raises(reach.Refused, match='in brackets'):
      reach.complete(name)


def test_what_was_not_said_is_what_ray_address_says(monkeypatch):
  assert engines.Options().address == ''
  assert engines.Options('auto').address == 'auto'
  # As a job has it that was submitted to a cluster.
  monkeypatch.setenv('RAY_ADDRESS', '10.0.0.1:6379')
  assert engines.Options().address == '10.0.0.1:6379'
  assert engines.Options('auto').address == '10.0.0.1:6379'
  assert engines.Options('10.0.0.2:6379').address == '10.0.0.2:6379'
  assert engines.Options('local').address == ''


def test_the_address_of_a_dashboard_is_refused_with_what_is_needed(monkeypatch):
  monkeypatch.setenv('RAY_ADDRESS', 'http://127.0.0.1:8265')
  options = engines.Options()  # also made where another engine runs
  with pytest.raises(
    engines.Refused,
    match=r'http://127.0.0.1:8265 \(RAY_ADDRESS\) is the address of a dashb',
  ):
    engines.check_ray(options.address)


# --- Heads that do not answer -------------------------------------------------


@pytest.fixture
def ray(monkeypatch):
  return fake_ray.play(monkeypatch)


def test_a_head_that_takes_the_connection_and_never_answers_is_refused(
  ray, monkeypatch
):
  monkeypatch.setattr(reach, 'ANSWER_S', 0.5)
  with socket.create_server(('127.0.0.1', 0)) as silent:
    address = f'127.0.0.1:{silent.getsockname()[1]}'
    reach.listens(address)
    with pytest.raises(
      engines.Refused, match=f'Ray at {address} does not answer: .* for 0.5 s'
    ):
      with join.ray_at(address, [], lambda: None):
        pass
  assert ray.asked == []  # it would have tried for ten minutes


def test_a_signal_ends_the_wait_for_an_answer():
  class Asked(Exception):
    pass

  def go_on():
    if time.monotonic() > began + 0.3:
      raise Asked

  began = time.monotonic()
  with socket.create_server(('127.0.0.1', 0)) as silent:
    with pytest.raises(Asked):
      reach.answers(f'127.0.0.1:{silent.getsockname()[1]}', go_on)


@pytest.mark.parametrize(
  'words, sentence',
  [
    (
      'AuthenticationError: RPC error: InvalidAuthToken: missing or incorrect.',
      'wants a token, .*: set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN',
    ),
    (
      'ConnectionError: Could not find any running Ray instance.',
      'No Ray runs on this host, so --ray_address=auto finds none',
    ),
    ('ValueError: of Ray', 'Ray at 10.0.0.1:6379 cannot be used: ValueError'),
  ],
)
def test_a_head_that_refuses_us_is_a_sentence(monkeypatch, words, sentence):
  monkeypatch.setattr(reach, '_PROBE', f'print("refuses", "{words}")')
  with pytest.raises(engines.Refused, match=sentence):
    reach.answers('10.0.0.1:6379', lambda: None)


def test_a_probe_that_says_nothing_leaves_it_to_ray(monkeypatch):
  monkeypatch.setattr(reach, '_PROBE', 'import os; print("asks x"); os.abort()')
  assert reach.answers('10.0.0.1:6379', lambda: None) == '10.0.0.1:6379'


@pytest.mark.parametrize('error', [Exception, RuntimeError, ConnectionError])
def test_what_ray_raises_as_it_starts_is_a_sentence(ray, error):
  def init():
    raise error('No node info found\n  for this host.')

  ray.on_init = init
  with pytest.raises(
    engines.Refused, match=f'{error.__name__}: No node info found for this host'
  ):
    with join.ray_at('', [], lambda: None):
      pass


def test_a_slow_start_is_said_once_and_has_its_limit(ray, monkeypatch, capsys):
  services = sys.modules['ray._private'].services
  late, asked = RuntimeError('Deadline Exceeded'), []

  def get_node(address, node):
    asked.append((address, node))
    if len(asked) < 4:
      raise late
    return 'the node'

  services.get_node = get_node
  monkeypatch.setattr(join, '_SLOW_S', 0.0)
  ray.on_init = lambda: asked.append(services.get_node('here', 'a'))
  with join.ray_at('', [], lambda: None):
    assert services.get_node is get_node
  assert asked == [('here', 'a')] * 4 + ['the node']
  (line,) = capsys.readouterr().err.splitlines()
  assert 'slow to start' in line and 'Deadline Exceeded' in line
  asked.clear()
  monkeypatch.setattr(join, '_START_S', 0.0)
  with pytest.raises(engines.Refused, match='RuntimeError: Deadline Exceeded'):
    with join.ray_at('', [], lambda: None):
      pass
  assert asked == [('here', 'a')]


def test_a_signal_as_the_handlers_are_put_back_breaks_off_too(ray, monkeypatch):
  @contextlib.contextmanager
  def handlers():
    yield
    raise KeyboardInterrupt

  def go_on():
    raise join.BrokenOff

  monkeypatch.setattr(join, '_own_handlers', handlers)
  with pytest.raises(join.BrokenOff):
    with join.ray_at('', [], go_on):
      pass


def test_a_ray_of_our_own_is_one_whatever_ray_address_says(ray, monkeypatch):
  monkeypatch.setenv('RAY_ADDRESS', '10.0.0.1:6379')
  with join.ray_at(engines.Options('local').address, [], lambda: None):
    pass
  assert [options['address'] for options in ray.asked] == ['local']


def test_a_cluster_that_no_flag_named_is_said(ray, monkeypatch, capsys):
  monkeypatch.setenv('RAY_ADDRESS', '10.0.0.1:6379')
  monkeypatch.setattr(reach, '_PROBE', 'print("answers 10.0.0.9:6379")')
  with join.ray_at(engines.Options().address, [], lambda: None):
    pass
  assert [options['address'] for options in ray.asked] == ['10.0.0.9:6379']
  assert 'cluster at 10.0.0.1:6379 (RAY_ADDRESS)' in capsys.readouterr().out


def test_a_ray_that_cannot_be_left_does_not_hide_how_the_run_ended(ray):
  left = []

  def shutdown():
    left.append(ray)
    raise RuntimeError('the raylet is gone')

  ray.shutdown = shutdown
  with contextlib.ExitStack() as stack:
    stack.enter_context(join.ray_at('', [], lambda: None))
  assert left == [ray]
