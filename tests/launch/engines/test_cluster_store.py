"""Ray's control store: away, back, and lost; with a Ray that the test plays."""

import contextlib
import errno
import socket
import threading
import types

import launchpad as lp
import pytest

from launch import engines
from launch import rpc
from launch.engines import state
from launch.engines.cluster import engine
from launch.engines.cluster import store as store_lib
from launch.rpc import hosts
from tests.launch.engines import fake_ray
from tests.launch.engines import toys


@pytest.fixture
def clock(monkeypatch):
  """Seconds, of the store."""
  made = types.SimpleNamespace(now=1000.0)
  time = types.SimpleNamespace(
    monotonic=lambda: made.now, strftime=lambda unused: '12:00:00'
  )
  monkeypatch.setattr(store_lib, 'time', time)
  return made


@pytest.fixture
def listen():
  """listen(port=0) plays a store, until the test or its end closes it."""
  with contextlib.ExitStack() as stack:
    yield lambda port=0: stack.enter_context(
      socket.create_server(('127.0.0.1', port))
    )


@pytest.fixture
def ray(monkeypatch):
  monkeypatch.delenv('RAY_ADDRESS', raising=False)
  return fake_ray.play(monkeypatch)


# --- Looks --------------------------------------------------------------------


def test_a_store_that_comes_back_costs_nothing_but_words(clock, listen, capsys):
  server = listen()
  port = server.getsockname()[1]
  store = store_lib.Store(f'127.0.0.1:{port}')
  store.look()
  assert not store.away and capsys.readouterr().err == ''
  server.close()
  for _ in range(3):
    clock.now += 7.0
    store.look()
    assert store.away and store.lost() == ''
  assert capsys.readouterr().err == (
    f"note: Ray's control store (gcs_server at 127.0.0.1:{port}) is away since "
    '12:00:00: [Errno 111] Connection refused. Nodes go on, and none can be '
    'placed. If it is not back in 25 s, the run ends.\n'
  )
  server = listen(port)
  clock.now += 7.0
  store.look()
  assert not store.away and store.lost() == ''
  assert capsys.readouterr().err == (
    "note: Ray's control store is back after 21 s.\n"
  )
  # The next time is counted anew.
  server.close()
  for _ in range(2):
    clock.now += store_lib.WAIT_S - 1.0
    store.look()
  assert store.away and store.lost() == ''


def test_a_store_that_stays_away_is_lost_and_what_to_do_is_said(clock, listen):
  server = listen()
  address = f'127.0.0.1:{server.getsockname()[1]}'
  server.close()
  store = store_lib.Store(address)
  store.look()
  clock.now += store_lib.WAIT_S
  assert store.lost() == ''  # it may be there again
  store.look()
  assert store.lost() == (
    f'Ray lost its control store (gcs_server at {address}), which was not back '
    'after 25 s: [Errno 111] Connection refused'
  )


@pytest.mark.parametrize(
  'number, away',
  [
    (errno.EHOSTUNREACH, True),
    (errno.EMFILE, False),
    (errno.EADDRNOTAVAIL, False),
  ],
)
def test_what_this_process_lacks_is_no_word_on_the_store(
  monkeypatch, number, away
):
  def connect(*unused):
    raise OSError(number, 'no')

  monkeypatch.setattr(socket, 'create_connection', connect)
  store = store_lib.Store('127.0.0.1:1')
  store.look()
  assert store.away == away


def test_it_looks_while_its_context_is_open(monkeypatch):
  seen = threading.Semaphore(0)
  monkeypatch.setattr(store_lib, '_LOOK_S', 0.01)
  monkeypatch.setattr(
    store_lib, '_why_away', lambda address: seen.release() or ''
  )
  before = threading.enumerate()
  with store_lib.Store('127.0.0.1:1'):
    (looks,) = [one for one in threading.enumerate() if one not in before]
    for _ in range(3):
      assert seen.acquire(timeout=60)
  looks.join(60)
  assert not looks.is_alive()


# --- Calls --------------------------------------------------------------------


def test_a_call_has_so_long_and_its_errors_are_heard():
  assert store_lib.within(10.0, lambda: 5) == 5
  with pytest.raises(KeyError, match='gone'):
    store_lib.within(10.0, lambda: {}['gone'])
  never = threading.Event()
  with pytest.raises(TimeoutError, match='not answered within 0.05 s'):
    store_lib.within(0.05, never.wait)
  never.set()


def test_nodes_are_told_to_stop_though_ray_no_longer_answers(
  ray, tmp_path, monkeypatch
):
  never = threading.Event()

  def hangs(*unused):
    never.wait()
    return []

  monkeypatch.setattr(store_lib, '_CALL_S', 0.05)
  with fake_ray.backend_on(tmp_path, [{'CPU': 1.0}] * 2) as backend:
    agent, _ = fake_ray.place(ray, backend)
    ray.nodes = ray.kill = hangs
    # Also before anybody has noticed.
    backend.start(1, 1)
    ray.store_away = 'Connection refused'
    backend.store.look()
    backend.stop(0)
    assert (0, 15) in agent.asked('signal')
    backend.stop(1)  # it waits for a place that nobody gives
    (event,) = backend.poll(0.0)
    assert (event.index, event.kind) == (1, 'exited')
    # A host of which no name is known.
    backend.start(1, 2)
    ray.made['seat'][-1].last('where').answer(('three', {}))
    assert backend.poll(0.0) == []
  # No call of Ray's ends actors now: they are told themselves.
  assert agent.asked('end') == [()]
  (names,) = ray.made['names']
  for actor in (agent, names, ray.made['seat'][-1]):
    assert len(actor.asked('__ray_call__')) == 1
  never.set()


def test_a_store_that_hangs_is_asked_once_until_it_answers(ray, monkeypatch):
  never, asked = threading.Event(), []

  def hangs(*unused):
    asked.append(1)
    never.wait()

  monkeypatch.setattr(store_lib, '_CALL_S', 0.5)
  store = store_lib.Store('127.0.0.1:1')
  actor = fake_ray.Actor()
  kill, ray.kill = ray.kill, hangs
  for _ in range(3):
    store.kill(actor)
  assert len(asked) == 1 and len(actor.asked('__ray_call__')) == 2
  never.set()
  monkeypatch.setattr(store_lib, '_CALL_S', 60.0)
  ray.kill = lambda unused: asked.append(2)
  store.nodes()
  store.kill(actor)
  assert asked[-1] == 2
  ray.kill = kill


# --- Runs ---------------------------------------------------------------------


def test_a_run_without_its_store_ends_and_says_why(ray, tmp_path, monkeypatch):
  def wait(refs, num_returns=1, timeout=None):
    for ref in refs:
      if ref.method == 'describe':
        ref.answer(fake_ray.described())
        ray.store_away = 'no route'
    return [ref for ref in refs if ref.ready], []

  monkeypatch.setattr(hosts, '_agent', None)
  monkeypatch.setattr(store_lib, '_LOOK_S', 0.01)
  monkeypatch.setattr(store_lib, 'WAIT_S', 0.05)
  monkeypatch.setattr(ray, 'wait', wait)
  program = lp.Program('test')
  with program.group('waiter'):
    program.add_node(rpc.Node(toys.Waiter, str(tmp_path), 'waiter'))
  outcome = engines.run(program, 'ray', run_dir=tmp_path)
  assert outcome.exit_code == state.FAILED
  assert outcome.reason == (
    'Ray lost its control store (gcs_server at 10.0.0.6:6379), which was not '
    f'back after 0 s: no route. Start the run again with --resume={tmp_path}'
  )


def test_on_a_cluster_ray_is_to_be_started_first(tmp_path):
  assert engine._then('10.0.0.6:6379', tmp_path) == (
    f'Start Ray again, and then the run with --resume={tmp_path}'
  )
