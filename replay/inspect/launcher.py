"""Reaches the servers of a run that has a private network.

A launcher may run its program in a private network namespace
(replay/isolation.py). It writes its process id to RUN/launcher.json. A process
that inspects the run joins the namespace of that process.
"""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import json
import os
import pathlib
import socket
import tempfile
import threading
import time
from typing import Any

from replay import isolation

FILE = 'launcher.json'
# Errors from reading a record that is incomplete or another user's.
_UNREADABLE = (OSError, ValueError, KeyError, TypeError)
# What a live run touches: its launcher the record, its counter the other, also
# while the launcher is stopped (Ctrl-Z).
_SIGNS = (FILE, 'metrics/counter.json')
_DEAD_S = 30.0  # without a sign
_SIGN_S = 2.0  # between two of the launcher's
_LOOK_S = 0.5


class Refused(ValueError):
  """The run cannot be joined or resumed; the message says why."""


def record() -> dict[str, Any]:
  """What a launcher writes to RUN/launcher.json.

  The start time distinguishes it from a later process with the same id, and
  `space` says among whose processes that id holds.
  """
  directory = os.open('/proc/self', os.O_RDONLY)
  try:
    started = _started(directory)
  finally:
    os.close(directory)
  host = socket.gethostname()
  return {
    'pid': os.getpid(), 'started': started, 'host': host, 'space': _space()
  }  # fmt: skip


class Signs:
  """Shows other hosts that a run's launcher lives, by its record's time.

  A context. It needs no room on a disk that is full.
  """

  def __init__(self, run: pathlib.Path):
    self._file = run.absolute() / FILE
    self._over = threading.Event()
    self._thread = threading.Thread(target=self._give, daemon=True)

  def __enter__(self) -> Signs:
    self._thread.start()
    return self

  def __exit__(self, *unused: Any) -> None:
    self._over.set()
    self._thread.join()

  def _give(self) -> None:
    while not self._over.wait(_SIGN_S):
      with contextlib.suppress(OSError):
        os.utime(self._file)


def give_up(run: pathlib.Path) -> None:
  """Removes this process's own record; not that of one that came after it."""
  try:
    own = record()
    found = json.loads((run / FILE).read_text(encoding='utf-8'))
    if all(found[name] == own[name] for name in ('pid', 'started', 'space')):
      (run / FILE).unlink(missing_ok=True)
  except _UNREADABLE:
    pass  # gone, or not as this process writes it


def check_ended(
  run: pathlib.Path, say: Callable[[str], Any] = lambda words: None
) -> None:
  """Refuses a run on which another process is still working.

  A second launcher would write the same checkpoints as the first. Processes of
  another host or container cannot be seen: a run of theirs has ended if
  nothing is written for half a minute, which is waited for.

  Args:
    run: its directory.
    say: gets a sentence before a wait.

  Raises:
    Refused: names that process.
  """
  try:
    found = json.loads((run / FILE).read_text(encoding='utf-8'))
    pid, started = int(found['pid']), int(found['started'])
    # Records of earlier versions do not say where.
    if found.get('space', _space()) != _space():
      _check_still(run, f'process {pid} of {found["host"]}', say)
      return
    process = os.open(f'/proc/{pid}', os.O_RDONLY)
  except Refused:
    raise
  except _UNREADABLE:
    return  # after a power cut: half a record, and no launcher
  try:
    lives = _started(process) == started
  except OSError:
    lives = False  # it ended meanwhile
  finally:
    os.close(process)
  if lives:
    raise Refused(
      f'{run} is still running, as process {pid}. Wait until it has ended, or '
      f'end it: kill {pid}'
    )


def _check_still(
  run: pathlib.Path, which: str, say: Callable[[str], Any]
) -> None:
  """Waits until the signs of life are old; refuses if there is a new one."""
  before = _newest_sign_s(run)
  # At most so long, whatever the clock of that host says.
  left_s = min(_DEAD_S - (_now_s(run) - before), _DEAD_S)
  if left_s > 0:
    say(
      f'{run} was run by {which}, another host or container, until just now: '
      f'{left_s:.0f} s to see whether it still is'
    )
  end = time.monotonic() + left_s
  while time.monotonic() < end:
    time.sleep(_LOOK_S)
    if _newest_sign_s(run) != before:
      raise Refused(
        f'{run} is still running, as {which}, another host or container: its '
        'files change. Wait until it has ended, or end it there. If that host '
        f'is dead, try again {_DEAD_S:.0f} s after the last change.'
      )


def _newest_sign_s(run: pathlib.Path) -> float:
  found = [0.0]
  for name in _SIGNS:
    try:
      # Opened: a network file system may know an old time of one that is not.
      with open(run / name, 'rb') as file:
        found.append(os.fstat(file.fileno()).st_mtime)
    except OSError:
      pass
  return max(found)


def _now_s(run: pathlib.Path) -> float:
  """The time by the clock that the run's files have theirs from."""
  try:
    with tempfile.TemporaryFile(dir=run) as file:
      return os.fstat(file.fileno()).st_mtime
  except OSError:
    return time.time()


def join(run: pathlib.Path) -> bool:
  """Moves this process into the network of a running run.

  This process must not have a second thread yet.

  Returns:
    False if the launcher of the run has ended. Otherwise this process is in the
    network of the run, if it has a private one.

  Raises:
    Refused: the run is another user's, or the system does not allow it.
  """
  try:
    values = json.loads((run / FILE).read_text(encoding='utf-8'))
    pid, started = int(values['pid']), int(values['started'])
    if values.get('space', _space()) != _space():
      # Of another host or container, or of before this one was started anew.
      return _now_s(run) - _newest_sign_s(run) < _DEAD_S
  except FileNotFoundError:
    return True
  except _UNREADABLE as e:
    raise Refused(f'{run / FILE} is not readable: {e!r}.') from e
  try:
    # From here on, everything is read from this one process, not from another
    # that gets its id later.
    process = os.open(f'/proc/{pid}', os.O_RDONLY)
  except FileNotFoundError:
    return False
  opened = [process]
  try:
    if _started(process) != started:
      return False
    owner = os.fstat(process).st_uid
    if owner != os.geteuid():
      raise Refused(
        f'{run} is run by user {owner}, in a network of its own, and this is '
        f'user {os.geteuid()}: only user {owner} can look into it.'
      )
    for name in ('net', 'user'):
      opened.append(os.open(f'ns/{name}', os.O_RDONLY, dir_fd=process))
    _, network, user = opened
    if _same(network, '/proc/self/ns/net'):
      return True
    # A network namespace belongs to the user namespace in which it was made.
    if not _same(user, '/proc/self/ns/user'):
      isolation.call('setns', user, isolation.CLONE_NEWUSER)
    isolation.call('setns', network, isolation.CLONE_NEWNET)
  except (FileNotFoundError, ProcessLookupError):
    return False  # it ended meanwhile
  except OSError as e:
    raise Refused(
      f'{run} runs in a network of its own, which this process may not join: '
      f'{e.strerror}. Look from where it was started, or start it with '
      '--isolate=off.'
    ) from e
  finally:
    for file in opened:
      os.close(file)
  return True


def _space() -> str:
  """Identifies the host's boot and the container that process ids hold in."""
  try:
    boot = pathlib.Path('/proc/sys/kernel/random/boot_id').read_text()
    return f'{boot.strip()} {os.readlink("/proc/self/ns/pid")}'
  except OSError:  # a sandbox that shows neither
    return socket.gethostname()


def _started(process: int) -> int | None:
  """Start time of an open /proc/PID, in clock ticks since boot.

  None for a zombie: a process that has ended but was not waited for.
  """
  file = os.open('stat', os.O_RDONLY, dir_fd=process)
  try:
    # From field 3 on; field 2, a name in parentheses, may contain anything.
    fields = os.read(file, 4096).rpartition(b')')[2].split()
    return None if fields[0] == b'Z' else int(fields[19])
  finally:
    os.close(file)


def _same(file: int, path: str) -> bool:
  return os.path.samestat(os.fstat(file), os.stat(path))
