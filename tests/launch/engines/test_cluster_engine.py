"""How a run on Ray begins, or does not; with a Ray that the test plays."""

import contextlib
import ctypes
import io
import os
import signal
import sys
import time

import launchpad as lp
import pytest

from launch import engines
from launch import rpc
from launch.engines import state
from launch.engines.cluster import engine
from launch.engines.cluster import join
from tests.launch.engines import fake_ray
from tests.launch.engines import toys


@pytest.fixture
def cluster(monkeypatch):
  monkeypatch.delenv('RAY_ADDRESS', raising=False)
  before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
  yield fake_ray.play(monkeypatch)
  # Ray's own for SIGTERM would end this process without a word.
  after = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
  assert after == before


def program(directory):
  made = lp.Program('test')
  with made.group('waiter'):
    for index in range(2):
      made.add_node(rpc.Node(toys.Waiter, str(directory), f'waiter{index}'))
  return made


def run(directory):
  """Runs it; the outcome, and the states that were shown."""
  shown = []
  try:
    outcome = engines.run(
      program(directory), 'ray', run_dir=directory, on_tick=shown.append
    )
  except (KeyboardInterrupt, SystemExit) as e:
    pytest.fail(f'the run ended by {e!r}')
  return outcome, shown


SIGNALS = [
  (signal.SIGINT, state.INTERRUPTED, 'interrupted'),
  (signal.SIGTERM, state.TERMINATED, 'terminated (SIGTERM)'),
]


@pytest.mark.parametrize('number, code, reason', SIGNALS)
def test_a_signal_while_ray_starts_ends_the_run_as_any_other(
  cluster, tmp_path, number, code, reason
):
  cluster.on_init = lambda: os.kill(os.getpid(), number)
  outcome, shown = run(tmp_path)
  assert (outcome.exit_code, outcome.reason) == (code, reason)
  assert [(node.name, node.state) for node in outcome.nodes] == [
    ('waiter/0', 'stopped'),
    ('waiter/1', 'stopped'),
  ]
  assert [(seen.stopping, seen.reason) for seen in shown] == [(True, reason)]
  assert cluster.made['agent'] == []
  assert not list(tmp_path.glob('.seen*'))


@pytest.mark.parametrize('number, code, reason', SIGNALS)
def test_a_start_that_a_signal_broke_is_no_fault_of_ray(
  cluster, tmp_path, number, code, reason
):
  def init():  # a signal to the whole group ends Ray's own processes first
    os.kill(os.getpid(), number)
    raise RuntimeError('Failed to start GCS.')

  cluster.on_init = init
  outcome, _ = run(tmp_path)
  assert (outcome.exit_code, outcome.reason) == (code, reason)


@pytest.mark.parametrize('number, code, reason', SIGNALS)
def test_a_second_signal_does_not_wait_for_ray(
  cluster, tmp_path, capfd, number, code, reason
):
  started = []

  def init():
    os.kill(os.getpid(), number)
    os.kill(os.getpid(), number)
    started.append(True)

  cluster.on_init = init
  outcome, _ = run(tmp_path)
  assert (outcome.exit_code, outcome.reason) == (code, reason) and not started
  assert 'another signal does not wait' in capfd.readouterr().err


@pytest.mark.parametrize('number, code, reason', SIGNALS)
def test_after_a_signal_ray_has_so_long_to_start(
  cluster, tmp_path, monkeypatch, number, code, reason
):
  monkeypatch.setattr(join, '_GIVE_UP_S', 0.05)
  monkeypatch.setattr(join, '_AGAIN_S', 1.0)
  started, before = [], signal.getsignal(signal.SIGALRM)

  def init():
    os.kill(os.getpid(), number)
    with contextlib.suppress(KeyboardInterrupt):  # as Ray may lose one
      time.sleep(60)
    time.sleep(60)
    started.append(True)

  cluster.on_init = init
  outcome, _ = run(tmp_path)
  assert (outcome.exit_code, outcome.reason) == (code, reason)
  assert not started
  assert signal.getsignal(signal.SIGALRM) == before


@pytest.mark.parametrize('number, code, reason', SIGNALS)
def test_a_signal_while_the_agent_of_this_host_starts_ends_the_run(
  cluster, tmp_path, monkeypatch, number, code, reason
):
  waited = []

  def wait(refs, num_returns=1, timeout=None):
    waited.append(timeout)
    if len(waited) == 2:
      os.kill(os.getpid(), number)
    assert len(waited) < 10
    return [], refs

  monkeypatch.setattr(cluster, 'wait', wait)
  outcome, _ = run(tmp_path)
  assert (outcome.exit_code, outcome.reason) == (code, reason)
  assert max(waited[:2]) <= 1.0
  assert all(actor.dead for made in cluster.made.values() for actor in made)


def test_a_handler_that_ray_puts_below_pythons_is_not_left_there(
  cluster, tmp_path, monkeypatch
):
  libc = ctypes.CDLL(None)
  # One that takes the signal and says nothing to Python.
  cluster.on_init = lambda: libc.signal(signal.SIGTERM, 1)

  def wait(refs, num_returns=1, timeout=None):
    os.kill(os.getpid(), signal.SIGTERM)
    return [], refs

  monkeypatch.setattr(cluster, 'wait', wait)
  monkeypatch.setattr(engine, '_HERE_S', 0.0)
  outcome, _ = run(tmp_path)
  assert outcome.exit_code == state.TERMINATED


def test_why_the_agent_of_this_host_did_not_start_is_one_line(
  cluster, tmp_path, monkeypatch
):
  trace = (
    'ray::Agent.__init__() (pid=7)\n  File "host.py", line 1, in __init__\n'
    'OSError: [Errno 28] No space left on device'
  )

  def wait(refs, num_returns=1, timeout=None):
    for ref in refs:
      ref.answer(fake_ray.RayError(trace))
    return refs, []

  monkeypatch.setattr(cluster, 'wait', wait)
  with pytest.raises(engines.Refused) as refused:
    run(tmp_path)
  assert str(refused.value) == (
    'The agent of this host did not start: OSError: [Errno 28] No space left '
    'on device'
  )


def test_an_agent_of_this_host_that_takes_too_long_is_refused(
  cluster, tmp_path, monkeypatch
):
  monkeypatch.setattr(engine, '_HERE_S', 0.0)
  with pytest.raises(engines.Refused, match='did not start within 0 s'):
    run(tmp_path)


def test_a_run_on_ray_goes_on_though_nobody_reads_what_it_says(
  cluster, tmp_path, monkeypatch
):
  class Closed(io.StringIO):
    def write(self, text):
      raise BrokenPipeError(32, 'Broken pipe')

  cluster.on_init = lambda: os.kill(os.getpid(), signal.SIGINT)
  monkeypatch.setattr(sys, 'stdout', Closed())
  outcome, _ = run(tmp_path)
  assert outcome.exit_code == state.INTERRUPTED


@pytest.mark.parametrize('before', [None, '7'])
def test_ray_is_imported_such_that_it_does_not_end_the_launcher_with_its_raylet(
  tmp_path, monkeypatch, before
):
  (tmp_path / 'ray.py').write_text(
    "import os\nraylet = os.environ['RAY_RAYLET_PID']\n"
  )
  monkeypatch.syspath_prepend(tmp_path)
  monkeypatch.delitem(sys.modules, 'ray', raising=False)
  if before is None:
    monkeypatch.delenv('RAY_RAYLET_PID', raising=False)
  else:
    monkeypatch.setenv('RAY_RAYLET_PID', before)  # as in a job of Ray's
  engine.check('10.0.0.6:6379')
  assert sys.modules['ray'].raylet == str(os.getpid())
  assert os.environ.get('RAY_RAYLET_PID') == before
  monkeypatch.delitem(sys.modules, 'ray')
