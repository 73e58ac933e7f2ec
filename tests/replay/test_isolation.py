"""Private networks: who gets one, who can look in, what a refusal says."""

import errno
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
import types

import pytest

from replay import isolation
from replay.inspect import launcher
from tests import strangers

ROOT = pathlib.Path(__file__).resolve().parents[2]


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
def isolated(tmp_path, monkeypatch, request):
  """A run with a network of its own: (directory, a port in it).

  The parameter says whether an unprivileged user runs it. The directory is a
  relative path: other users may not pass through those above it.
  """
  tmp_path.chmod(0o755)
  monkeypatch.chdir(tmp_path)
  reading, writing = os.pipe()
  ended, end = os.pipe()

  def serve():
    os.close(end)
    isolation.prepare()
    isolation.enter('auto')
    with socket.create_server(('127.0.0.1', 0)) as server:
      found = {'port': server.getsockname()[1], 'record': launcher.record()}
      os.write(writing, json.dumps(found).encode())
      os.read(ended, 1)

  thread = threading.Thread(
    target=strangers.in_a_child,
    args=(serve,),
    kwargs={'stranger': getattr(request, 'param', False)},
  )
  thread.start()
  found = json.loads(os.read(reading, 4096))
  (tmp_path / launcher.FILE).write_text(json.dumps(found['record']))
  yield pathlib.Path(), found['port']
  for file in (end, ended, reading, writing):
    os.close(file)
  thread.join()


def look_in(run, port):
  return launcher.join(run), strangers.connects(port)


@pytest.mark.parametrize('isolated', [False, True], indirect=True)
def test_who_joins_reaches_the_servers(isolated, request):
  run, port = isolated
  stranger = request.node.callspec.params['isolated']
  found = strangers.in_a_child(isolation.found, stranger=stranger)
  private = not found.startswith('no ')
  assert strangers.connects(port) is not private
  seen = strangers.in_a_child(look_in, run, port, stranger=stranger)
  assert seen == (True, True)


def test_another_user_is_refused(isolated):
  run, port = isolated
  seen = strangers.in_a_child(look_in, run, port, stranger=True)
  if os.geteuid() == 0:
    assert isinstance(seen, launcher.Refused)
    assert 'only user 0 can look into it' in str(seen)
  else:
    assert seen == (True, True)


def test_root_is_refused_in_the_name_of_a_user(isolated, monkeypatch):
  run, port = isolated
  monkeypatch.setattr(os, 'geteuid', lambda: 4711)
  with pytest.raises(launcher.Refused, match='this is user 4711'):
    launcher.join(run)


def test_a_process_with_the_number_of_a_dead_launcher_is_not_joined(isolated):
  run, port = isolated
  record = json.loads((run / launcher.FILE).read_text())
  record['started'] -= 1
  (run / launcher.FILE).write_text(json.dumps(record))
  assert strangers.in_a_child(launcher.join, run) is False


def test_a_run_of_this_network_moves_nobody(tmp_path):
  before = os.readlink('/proc/self/ns/net')
  assert launcher.join(tmp_path) is True  # it does not say what it is
  (tmp_path / launcher.FILE).write_text(json.dumps(launcher.record()))
  assert launcher.join(tmp_path) is True
  (tmp_path / launcher.FILE).write_text(
    json.dumps({'pid': 2**22 + 1, 'started': 1})  # above the largest number
  )
  assert launcher.join(tmp_path) is False
  # Of another host its number says nothing, and its network is not here.
  elsewhere = {**launcher.record(), 'started': 1, 'space': 'elsewhere'}
  (tmp_path / launcher.FILE).write_text(json.dumps(elsewhere))
  assert launcher.join(tmp_path) is True
  os.utime(tmp_path / launcher.FILE, (0, 0))
  assert launcher.join(tmp_path) is False
  assert os.readlink('/proc/self/ns/net') == before


def test_a_broken_record_is_named(tmp_path):
  for text in ('', '[1]', '{"pid": 1}'):
    (tmp_path / launcher.FILE).write_text(text)
    with pytest.raises(launcher.Refused, match='launcher.json is not readable'):
      launcher.join(tmp_path)


def test_a_run_is_over_when_its_launcher_is(tmp_path):
  launcher.check_ended(tmp_path)  # it does not say what it is
  launching = subprocess.Popen(['sleep', '1000'])
  try:
    process = os.open(f'/proc/{launching.pid}', os.O_RDONLY)
    own = {'pid': launching.pid, 'started': launcher._started(process)}
    os.close(process)
    (tmp_path / launcher.FILE).write_text(json.dumps(own))
    with pytest.raises(launcher.Refused, match=f'as process {launching.pid}'):
      launcher.check_ended(tmp_path)
  finally:
    launching.kill()
  # Until its parent waits for it, its number is taken.
  os.waitid(os.P_PID, launching.pid, os.WEXITED | os.WNOWAIT)
  launcher.check_ended(tmp_path)
  launching.wait()
  another = launcher.record()
  another['started'] -= 1
  for text in (json.dumps(own), json.dumps(another), '', '[1]', '{"pid": 1}'):
    (tmp_path / launcher.FILE).write_text(text)
    launcher.check_ended(tmp_path)


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
  """A run of another container; a list of calls, one for each look at it."""
  record = {**launcher.record(), 'space': 'another', 'host': 'pod-7'}
  (tmp_path / launcher.FILE).write_text(json.dumps(record))
  looks, clock = [], types.SimpleNamespace(now=0.0)

  def sleep(unused):
    clock.now += 10.0
    looks.pop(0)()

  # Its own clock: threads of other tests may sleep meanwhile.
  time_there = types.SimpleNamespace(
    sleep=sleep, monotonic=lambda: clock.now, time=time.time
  )
  monkeypatch.setattr(launcher, 'time', time_there)
  return looks


def test_a_run_of_another_container_goes_on_while_its_files_change(
  tmp_path, elsewhere
):
  (tmp_path / 'metrics').mkdir()
  counter = tmp_path / 'metrics' / 'counter.json'

  def counts():
    counter.touch()
    later = counter.stat().st_mtime + 1.0  # whatever a file system's clock says
    os.utime(counter, (later, later))

  elsewhere[:] = [lambda: None, counts]
  said = []
  with pytest.raises(launcher.Refused, match='of pod-7, another host or'):
    launcher.check_ended(tmp_path, said.append)
  assert len(said) == 1 and not elsewhere


def test_a_run_of_another_container_has_ended_when_nothing_changes(
  tmp_path, elsewhere, monkeypatch
):
  record, said = tmp_path / launcher.FILE, []
  old = time.time() - launcher._DEAD_S - 1
  os.utime(record, (old, old))
  launcher.check_ended(tmp_path, said.append)
  assert said == []  # at once
  # One that was killed just now is waited for, and no longer where its clock
  # was ahead.
  for ahead in (0, 3600):
    os.utime(record, (old + 3600 + ahead,) * 2)
    elsewhere[:] = [lambda: None] * 3
    monkeypatch.setattr(launcher, '_now_s', lambda run: old + 3600)
    launcher.check_ended(tmp_path, said.append)
    assert '30 s to see' in said.pop() and not elsewhere


def test_a_launcher_gives_signs_until_it_ends(tmp_path, monkeypatch):
  monkeypatch.setattr(launcher, '_SIGN_S', 0.01)
  record = tmp_path / launcher.FILE
  record.touch()
  os.utime(record, (0, 0))
  with launcher.Signs(tmp_path) as signs:
    deadline = time.monotonic() + 60
    while not record.stat().st_mtime and time.monotonic() < deadline:
      time.sleep(0.01)
    assert record.stat().st_mtime
    record.unlink()
    time.sleep(0.1)  # for one that would make it anew
  assert not signs._thread.is_alive() and not record.exists()


def test_a_record_that_does_not_say_where_is_of_this_host(tmp_path):
  record = launcher.record()
  old = {'pid': record['pid'], 'started': record['started']}
  (tmp_path / launcher.FILE).write_text(json.dumps(old))
  with pytest.raises(launcher.Refused, match=f'as process {os.getpid()}'):
    launcher.check_ended(tmp_path)


def test_a_record_is_given_up_by_its_own_process_alone(tmp_path):
  file, own = tmp_path / launcher.FILE, launcher.record()
  launcher.give_up(tmp_path)  # it is gone
  for name in ('pid', 'started', 'space'):
    file.write_text(json.dumps({**own, name: 1}))
    launcher.give_up(tmp_path)
    assert file.exists()
  file.write_text(json.dumps(own))
  launcher.give_up(tmp_path)
  assert not file.exists()


def test_the_doctor_says_what_runs_get_here():
  done = subprocess.run(
    [
      sys.executable,
      '-c',
      'import doctor; print(doctor.network_of_runs())',
    ],
    env={**os.environ, 'PYTHONPATH': str(ROOT / 'requirements')},
    capture_output=True,
    text=True,
    timeout=60,
  )
  assert done.stdout.strip() == isolation.found(), done.stderr
