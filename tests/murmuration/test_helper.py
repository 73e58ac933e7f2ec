"""The process beside a caller: its calls, its end, and how many there are."""

import os
import signal

import numpy as np
import pytest

from launch.engines import linux
from murmuration import helper as helper_lib
from murmuration import objects
from murmuration import policy
from murmuration import process


def test_what_cannot_be_sent_leaves_no_call_behind(tmp_path):
  helper = process.Helper(objects.Objects())
  try:
    with pytest.raises(Exception, match='pickle'):
      helper.call('config', path=lambda: None)
    for _ in range(2):
      with pytest.raises(ValueError, match='config.json|no run'):
        helper.call('config', path=tmp_path)
  finally:
    helper.close()


class Process:
  """Answers all that a policy asks."""

  def __init__(self, given):
    self.process = self
    self.owner = os.getpid()
    self.called, self.closed = [], 0
    self._lock = process.threading.Lock()

  def poll(self):
    return 0 if self.closed else None

  def call(self, operation, **arguments):
    assert not self.closed
    self.called.append(operation)
    return 1

  def close(self):
    self.closed += 1


class Given:
  def __init__(self, key):
    self._key = key

  def pickled(self):
    return self._key


@pytest.fixture
def services(monkeypatch):
  monkeypatch.setattr(process, 'Helper', Process)
  monkeypatch.setattr(process, '_services', {})


def test_the_one_that_was_asked_longest_ago_makes_room(services, tmp_path):
  a, b, c = map(Given, (b'a', b'b', b'c'))
  played = policy.Policy(a, tmp_path)
  first, second = process.service(a), process.service(b)
  assert process.service(a) is first
  process.service(c)
  assert (first.closed, second.closed) == (0, 1)
  process.service(b)
  assert first.closed == 1
  played(np.zeros(2))
  again = process.service(a)
  assert again is not first and again.called == ['policy', 'act']


class Connection:
  """Of a caller that is gone, where `error` says so."""

  def __init__(self, error=None):
    self.error, self.sent = error, []
    self._ends = os.pipe()

  def fileno(self):
    return self._ends[1]

  def send(self, message):
    if self.error:
      raise self.error
    self.sent.append(message)


@pytest.fixture
def asked(monkeypatch):
  monkeypatch.setattr(helper_lib._asked, 'stop', False)
  previous = signal.signal(signal.SIGTERM, helper_lib._asked)
  yield helper_lib._asked
  signal.signal(signal.SIGTERM, previous)


def test_only_who_cannot_be_told_is_gone(asked, tmp_path, monkeypatch):
  def counted(run):
    raise OSError('cannot be read now')

  connection = Connection()
  with monkeypatch.context() as patch:
    patch.setattr(helper_lib, 'totals', counted)
    helper_lib.Ticks(connection, tmp_path, 10)()
  assert not asked.stop and not connection.sent
  found = {'totals': {'actor_steps': 3}, 'elapsed_s': 1.0}
  monkeypatch.setattr(helper_lib, 'totals', lambda run: found)
  helper_lib.Ticks(connection, tmp_path, 10)()
  assert not asked.stop and connection.sent[0][1]['steps'] == 3
  helper_lib.Ticks(Connection(BrokenPipeError()), tmp_path, 10)()
  assert asked.stop


def test_a_stop_before_the_run_is_one_of_the_run(asked, tmp_path, monkeypatch):
  monkeypatch.setattr(linux, 'die_with_parent', lambda *args: None)
  os.kill(os.getpid(), signal.SIGTERM)
  assert asked.stop
  found = helper_lib.train(
    Connection(), tmp_path / 'run', {}, 'local_mp', 1000, agent='dqn'
  )
  assert found == (143, None)
  assert not (tmp_path / 'run').exists()
  # What comes a little later, the engine has with the first tick.
  engines = []
  signal.signal(signal.SIGTERM, lambda *args: engines.append(args))
  helper_lib.Ticks(Connection(), tmp_path, 10)()
  assert len(engines) == 1 and not asked.stop
