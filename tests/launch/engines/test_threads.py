"""local_mt, in this process."""

import os
import signal
import sys
import threading
import time

import launchpad as lp
import numpy as np
import pytest

from murmuration.launch import engines
from murmuration.launch import pulse
from murmuration.launch import rpc
from murmuration.launch.engines import restarts
from murmuration.launch.engines import signals
from murmuration.launch.engines import supervision


class Server:
  serves = ('echo', 'identity')

  def echo(self, x):
    return x

  def identity(self):
    return id(self)


class Waiter:
  def run(self):
    lp.wait_for_stop()


class Caller:
  def __init__(self, function, *clients):
    self._function, self._clients = function, clients

  def run(self):
    self._function(*self._clients)


def call(program, label, function, *handles):
  with program.group(label):
    program.add_node(lp.PyClassNode(Caller, function, *handles))


def wait(program):
  with program.group('waiter'):
    program.add_node(lp.PyClassNode(Waiter))


def run(program, on_tick=None, **rules):
  restarts.assign(program, **rules)
  return engines.run(program, 'local_mt', on_tick=on_tick)


def test_arrays_and_numpy_scalars_cross_between_threads():
  program = lp.Program('test')
  with program.group('server'):
    server = program.add_node(rpc.Node(Server))

  def check(client):
    np.testing.assert_array_equal(client.echo(np.eye(3)), np.eye(3))
    assert client.echo([np.float32(0.5)]) == [0.5]

  call(program, 'client', check, server)
  outcome = run(program, ends_run='client')
  assert (outcome.exit_code, outcome.reason) == (0, 'client/0 finished')
  assert [node.state for node in outcome.nodes] == ['stopped', 'finished']


def test_a_thread_that_raises_ends_the_run_with_its_traceback(capsys):
  program = lp.Program('test')
  wait(program)

  def spill():
    raise ValueError('milk')

  call(program, 'cat', spill)
  outcome = run(program)
  assert (outcome.exit_code, outcome.reason) == (
    1,
    'cat/0 failed: ValueError: milk',
  )
  assert 'in spill' in outcome.nodes[1].last_error
  assert 'cat/0 died' in capsys.readouterr().err


def test_a_thread_that_raises_is_restarted_and_constructed_anew(capsys):
  program = lp.Program('test')
  tries = []

  class FailsTwice:
    def __init__(self):
      tries.append(self)

    def run(self):
      if len(tries) < 3:
        raise ValueError('again')

  with program.group('node'):
    program.add_node(lp.PyClassNode(FailsTwice))
  outcome = run(program, come_back=True)
  assert outcome.exit_code == 0
  assert outcome.nodes[0].restarts == 2
  assert len(set(map(id, tries))) == 3


def test_what_sets_a_signal_handler_is_refused_once(capsys):
  program = lp.Program('test')
  wait(program)

  def alarm():
    try:
      signal.signal(signal.SIGALRM, print)
    except ValueError as e:
      raise RuntimeError('no environment') from e

  for i in range(3):
    call(program, f'node{i}', alarm)
  outcome = run(program, come_back=True)
  assert outcome.exit_code == 1
  assert [node.restarts for node in outcome.nodes] == [0] * 4
  assert 'local_mp' in outcome.reason and capsys.readouterr().err == ''


def test_a_restarted_server_thread_serves_on_its_port(capsys):
  program = lp.Program('test')
  starts = []

  class FailsOnce(Server):
    def run(self):
      starts.append(self)
      if len(starts) == 1:
        raise ValueError('once')
      lp.wait_for_stop()

  with program.group('server'):
    server = program.add_node(rpc.Node(FailsOnce))

  def until_replaced(client):
    while len(starts) < 2:
      time.sleep(0.01)
    assert rpc.retry(client.identity) == id(starts[1])

  call(program, 'client', until_replaced, server)
  outcome = run(
    program,
    come_back=True,
    ends_run='client',
  )
  assert outcome.exit_code == 0, outcome


def test_lp_stop_ends_the_run_with_0():
  program = lp.Program('test')
  wait(program)
  call(program, 'stopper', lp.stop)
  outcome = run(program)
  assert outcome.exit_code == 0 and 'lp.stop()' in outcome.reason


def test_stop_handlers_of_nodes_are_called():
  program = lp.Program('test')
  called = threading.Event()

  def register():
    lp.register_stop_handler(called.set)
    lp.stop()
    assert called.wait(60)

  call(program, 'node', register)
  outcome = run(program)
  assert outcome.exit_code == 0 and called.is_set()


def test_ctrl_c_is_130_and_the_handler_is_put_back():
  program = lp.Program('test')
  wait(program)
  call(program, 'user', lambda: os.kill(os.getpid(), signal.SIGINT))
  previous = signal.getsignal(signal.SIGINT)
  outcome = run(program)
  assert (outcome.exit_code, outcome.reason) == (130, 'interrupted')
  assert signal.getsignal(signal.SIGINT) is previous


def test_ctrl_c_that_is_handled_late_ends_the_run(monkeypatch):
  take = signals.Signals._take

  def late(self, *signal_):
    time.sleep(4 * supervision._POLL_S)  # as on a busy machine
    take(self, *signal_)

  monkeypatch.setattr(signals.Signals, '_take', late)
  heard = []

  def user():
    time.sleep(10 * supervision._POLL_S)  # nothing happens any more
    os.kill(os.getpid(), signal.SIGINT)
    heard.append(lp.stop_event().wait(60))

  program = lp.Program('test')
  call(program, 'user', user)
  outcome = run(program)
  assert heard == [True] and outcome.exit_code == 130


def test_sigterm_is_143_and_the_handler_is_put_back():
  program = lp.Program('test')
  wait(program)
  call(program, 'user', lambda: os.kill(os.getpid(), signal.SIGTERM))
  previous = signal.getsignal(signal.SIGTERM)
  outcome = run(program)
  assert (outcome.exit_code, outcome.reason) == (143, 'terminated (SIGTERM)')
  assert signal.getsignal(signal.SIGTERM) is previous


def test_a_thread_that_does_not_stop_is_named(monkeypatch):
  monkeypatch.setattr(supervision, 'STOP_GRACE_S', 0.2)
  monkeypatch.setattr(supervision, 'KILL_GRACE_S', 0.1)
  program = lp.Program('test')
  begun, release = threading.Event(), threading.Event()

  def deaf():
    begun.set()
    release.wait(60)

  call(program, 'deaf', deaf)
  call(program, 'last', lambda: begun.wait(60))
  outcome = run(program, ends_run='last')
  release.set()
  assert outcome.exit_code == 0
  assert outcome.reason == 'last/0 finished; still there: deaf/0'
  assert 'in deaf' in outcome.nodes[0].last_error


def test_a_silent_thread_ends_the_run_with_a_sentence(monkeypatch):
  monkeypatch.setattr(supervision, 'STOP_GRACE_S', 0.2)
  monkeypatch.setattr(supervision, 'KILL_GRACE_S', 0.1)
  program = lp.Program('test')
  release = threading.Event()

  def hangs():
    pulse.stop_event()
    release.wait(60)

  call(program, 'hanger', hangs)
  outcome = run(program, come_back=True, silent_s=1.0)
  release.set()
  assert outcome.exit_code == 1
  assert outcome.reason.startswith('hanger/0 failed: silent for 1 s, in ')
  assert 'A thread cannot be killed' in outcome.reason
  assert 'in hangs' in outcome.nodes[0].last_error


def test_a_thread_that_exits_in_the_middle_has_failed():
  program = lp.Program('test')
  wait(program)
  call(program, 'leaver', lambda: sys.exit(0))
  outcome = run(program)
  assert (outcome.exit_code, outcome.reason) == (
    1,
    'leaver/0 failed: SystemExit: 0',
  )


def test_no_thread_of_the_engine_is_left():
  program = lp.Program('test')
  wait(program)
  call(program, 'last', lambda: time.sleep(0.1))
  before = threading.active_count()
  run(program, ends_run='last')
  # A node has ended for the engine a moment before its thread has.
  deadline = time.monotonic() + 20
  while threading.active_count() > before:
    assert time.monotonic() < deadline, threading.enumerate()
    time.sleep(0.02)


def test_on_tick_sees_the_nodes_and_the_end(monkeypatch):
  monkeypatch.setattr(supervision, '_TICK_S', 0.05)
  program = lp.Program('test')
  wait(program)
  seen, enough = [], threading.Event()
  call(program, 'last', lambda: enough.wait(30))

  def look(run_state):
    seen.append(run_state)
    if len(seen) == 2:
      enough.set()

  run(program, look, ends_run='last')
  assert len(seen) >= 3
  assert [n.name for n in seen[0].nodes] == ['waiter/0', 'last/0']
  assert not seen[0].stopping and seen[-1].stopping
  assert seen[-1].reason == 'last/0 finished'
  assert [n.state for n in seen[-1].nodes] == ['stopped', 'finished']


def test_servers_outlive_their_clients_in_a_stop(monkeypatch):
  # Long, for a busy machine: the server is asked when its client has ended.
  monkeypatch.setattr(supervision, 'SERVERS_LATER_S', 30.0)
  monkeypatch.setattr(supervision, 'STOP_GRACE_S', 60.0)
  program = lp.Program('test')
  last_words = []
  with program.group('server'):
    server = program.add_node(rpc.Node(Server))

  def report_late(client):
    lp.wait_for_stop()
    time.sleep(0.2)
    last_words.append(client.echo('bye'))

  call(program, 'client', report_late, server)
  call(program, 'last', lambda: time.sleep(0.1))
  run(program, ends_run='last')
  assert last_words == ['bye']


def test_unknown_engines_and_empty_programs_are_refused():
  with pytest.raises(ValueError, match='local_mt, local_mp'):
    engines.run(lp.Program('test'), 'local')
  with pytest.raises(ValueError, match='no nodes'):
    engines.run(lp.Program('test'), 'local_mt')
