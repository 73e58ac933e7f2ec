"""Private networks: who gets one, who can look in, what a refusal says."""

import errno
import json
import os
import signal
import socket
import threading

import pytest

from murmuration.replay import isolation
from tests import strangers


def enter_and_look(times=1):
  """A server on all interfaces, and its own client; or the refusal."""
  before = os.readlink('/proc/self/ns/net')
  for _ in range(times):
    try:
      isolation.prepare()
      isolation.enter('required')
    except isolation.Refused as e:
      return str(e)
    # As a process that this one has started.
    isolation._entered = False
  with socket.create_server(('::', 0), family=socket.AF_INET6) as server:
    reached = strangers.connects(server.getsockname()[1])
  return {
    'moved': os.readlink('/proc/self/ns/net') != before,
    'reached': reached,
    'user': os.geteuid(),
    'interfaces': [name for _, name in socket.if_nameindex()][:1],
  }


@pytest.fixture
def refused(monkeypatch):
  """A system that has no namespaces for us."""

  def unshare(kinds):
    raise OSError(errno.EPERM, 'unshare')

  monkeypatch.setattr(isolation, '_unshare', unshare)
  monkeypatch.setattr(isolation, '_entered', False)


@pytest.mark.parametrize('stranger', [False, True])
@pytest.mark.parametrize('times', [1, 2])
def test_a_private_network_has_a_loopback_and_the_same_user(stranger, times):
  user = strangers.in_a_child(os.geteuid, stranger=stranger)
  seen = strangers.in_a_child(enter_and_look, times, stranger=stranger)
  if strangers.in_a_child(isolation.found, stranger=stranger)[:2] == 'no':
    assert isinstance(seen, str) and 'no private network' in seen
  else:
    assert seen == {
      'moved': True,
      'reached': True,
      'user': user,
      'interfaces': ['lo'],
    }


def test_entering_again_stays_in_the_network_of_the_first_run():
  def twice():
    isolation.enter('auto')
    first = os.readlink('/proc/self/ns/net')
    isolation.enter('auto')
    return first == os.readlink('/proc/self/ns/net')

  assert strangers.in_a_child(twice) is True


def test_who_ignores_the_end_of_children_gets_the_same_network():
  def ignoring():
    before = isolation.found()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    return before == isolation.found()

  assert strangers.in_a_child(ignoring) is True


def test_auto_says_in_one_line_what_stays_open(refused, capsys):
  isolation.prepare()
  isolation.enter('auto')
  said = capsys.readouterr().err
  assert said.count('\n') == 1
  assert said.startswith('note: no private network (')
  assert 'read, change and stop the replay' in said
  assert isolation.found().startswith('no private network: ')


def test_required_refuses_where_the_system_does(refused, capsys):
  with pytest.raises(isolation.Refused, match='--isolate=required: no private'):
    isolation.enter('required')
  assert capsys.readouterr().err == ''


@pytest.mark.parametrize('words', [['--isolate=off'], ['--isolate', 'off']])
def test_off_asks_the_system_for_nothing(words, monkeypatch, capsys):
  before = os.readlink('/proc/self/ns/net')
  monkeypatch.setattr(isolation, '_trial', None)
  monkeypatch.setattr(isolation, '_entered', False)
  isolation.prepare(['run.py', *words])
  isolation.enter('off')
  assert capsys.readouterr().err == ''
  assert os.readlink('/proc/self/ns/net') == before


@pytest.mark.parametrize(
  ('words', 'asks'),
  [
    (['--ray_address=local'], True),
    (['--ray_address', 'local'], True),
    (['--ray_address=10.0.0.1'], False),
    (['--ray_address', '10.0.0.1'], False),
    (['--ray_address=local', '--isolate', 'off'], False),
  ],
)
def test_a_ray_of_this_run_alone_may_have_a_network(words, asks, monkeypatch):
  asked = []
  monkeypatch.setattr(isolation, '_trial', asked.append)
  isolation.prepare(['run.py', *words])
  assert bool(asked) is asks


@pytest.mark.parametrize(
  'user,number,words',
  [
    (0, errno.EPERM, 'CAP_SETFCAP'),
    (1000, errno.EPERM, 'apparmor_restrict_unprivileged_userns'),
    (1000, errno.ENOSPC, 'max_user_namespaces'),
    (1000, errno.ENOSYS, 'not implemented'),
    (1000, 255, 'unknown error'),
  ],
)
def test_a_refusal_has_a_reason(monkeypatch, user, number, words):
  monkeypatch.setattr(os, 'geteuid', lambda: user)
  assert words in isolation._why(number)


@pytest.mark.parametrize('number', [0, errno.EPERM, None])
def test_a_trial_says_how_it_ended_also_before_python_3_9(monkeypatch, number):
  def unshare(kinds):
    if number is None:
      os.kill(os.getpid(), signal.SIGKILL)
    if number:
      raise OSError(number, 'unshare')

  monkeypatch.delattr(os, 'waitstatus_to_exitcode', raising=False)  # 3.9 has it
  monkeypatch.setattr(isolation, '_unshare', unshare)
  assert isolation._trial(0) == (255 if number is None else number)


# Looking in.


@pytest.fixture
def isolated(request):
  """A process with a network of its own: (its number, a port in it).

  The parameter says whether an unprivileged user runs it.
  """
  reading, writing = os.pipe()
  ended, end = os.pipe()

  def serve():
    os.close(end)
    isolation.prepare()
    isolation.enter('auto')
    with socket.create_server(('127.0.0.1', 0)) as server:
      found = {'port': server.getsockname()[1], 'pid': os.getpid()}
      os.write(writing, json.dumps(found).encode())
      os.read(ended, 1)

  thread = threading.Thread(
    target=strangers.in_a_child,
    args=(serve,),
    kwargs={'stranger': getattr(request, 'param', False)},
  )
  thread.start()
  found = json.loads(os.read(reading, 4096))
  yield found['pid'], found['port']
  for file in (end, ended, reading, writing):
    os.close(file)
  thread.join()


def look_in(pid, port):
  return isolation.join(pid, 'runs/a'), strangers.connects(port)


@pytest.mark.parametrize('isolated', [False, True], indirect=True)
def test_who_joins_reaches_the_servers(isolated, request):
  pid, port = isolated
  stranger = request.node.callspec.params['isolated']
  found = strangers.in_a_child(isolation.found, stranger=stranger)
  private = not found.startswith('no ')
  assert strangers.connects(port) is not private
  seen = strangers.in_a_child(look_in, pid, port, stranger=stranger)
  assert seen == (True, True)


def test_another_user_is_refused(isolated):
  pid, port = isolated
  seen = strangers.in_a_child(look_in, pid, port, stranger=True)
  if os.geteuid() == 0:
    assert isinstance(seen, isolation.Refused)
    assert 'only user 0 can look into it' in str(seen)
  else:
    assert seen == (True, True)


def test_root_is_refused_in_the_name_of_a_user(isolated, monkeypatch):
  pid, port = isolated
  monkeypatch.setattr(os, 'geteuid', lambda: 4711)
  with pytest.raises(isolation.Refused, match='this is user 4711'):
    isolation.join(pid, 'runs/a')


def test_a_process_of_this_network_moves_nobody():
  before = os.readlink('/proc/self/ns/net')
  assert isolation.join(os.getpid(), 'runs/a') is True
  assert isolation.join(2**22 + 1, 'runs/a') is False  # above the largest
  assert os.readlink('/proc/self/ns/net') == before
