"""Reaches the servers of a run that has a private network.

A launcher may run its program in a private network namespace
(replay/isolation.py). It writes its process id to RUN/launcher.json. A process
that inspects the run joins the namespace of that process.
"""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any

from replay import isolation

FILE = 'launcher.json'
# Errors from reading a record that is incomplete or another user's.
_UNREADABLE = (OSError, ValueError, KeyError, TypeError)


class Refused(ValueError):
  """The run cannot be joined or resumed; the message says why."""


def record() -> dict[str, Any]:
  """What a launcher writes to RUN/launcher.json.

  The start time distinguishes it from a later process with the same id.
  """
  directory = os.open('/proc/self', os.O_RDONLY)
  try:
    return {'pid': os.getpid(), 'started': _started(directory)}
  finally:
    os.close(directory)


def check_ended(run: pathlib.Path) -> None:
  """Refuses a run on which a process of this host is still working.

  A second launcher would write the same checkpoints as the first.

  Raises:
    Refused: names that process.
  """
  try:
    pid, started = _read(run)
    process = os.open(f'/proc/{pid}', os.O_RDONLY)
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
    pid, started = _read(run)
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


def _read(run: pathlib.Path) -> tuple[int, int]:
  """Process id and start time of a run's launcher."""
  values = json.loads((run / FILE).read_text(encoding='utf-8'))
  return int(values['pid']), int(values['started'])


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
