"""How to reach the servers of a run that has a network of its own.

A launcher may run its program in a private network namespace
(replay/isolation.py). It leaves its process id in RUN/launcher.json, and who
may look into the run joins that process's namespace.
"""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any

from replay import isolation

FILE = 'launcher.json'
# What reading a record that is cut or of somebody else may raise.
_UNREADABLE = (OSError, ValueError, KeyError, TypeError)


class Refused(ValueError):
  """The run cannot be joined, or not gone on with; the message says why."""


def record() -> dict[str, Any]:
  """What a launcher writes to RUN/launcher.json.

  The start time tells it from a later process with the same id.
  """
  directory = os.open('/proc/self', os.O_RDONLY)
  try:
    return {'pid': os.getpid(), 'started': _started(directory)}
  finally:
    os.close(directory)


def check_ended(run: pathlib.Path) -> None:
  """Refuses a run that a process of this host still works on.

  A second launcher would write the same checkpoints as the first.

  Args:
    run: directory of the run.

  Raises:
    Refused: names that process.
  """
  try:
    pid, started = _read(run)
    process = os.open(f'/proc/{pid}', os.O_RDONLY)
  except _UNREADABLE:
    return  # a power cut may leave half a record, and no launcher
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

  This process must have no second thread yet.

  Args:
    run: directory of the run.

  Returns:
    False if the process that launched the run has ended. Else this process is
    in its network, where the run says what it is.

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
    # From here on all is read from this one process, and not from another
    # that is given its number.
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
    # A network belongs to the user namespace that it was made in.
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
  """The process id of a run's launcher, and its start time."""
  values = json.loads((run / FILE).read_text(encoding='utf-8'))
  return int(values['pid']), int(values['started'])


def _started(process: int) -> int | None:
  """Clock ticks from the machine's start to that of an open /proc/PID.

  None if it has ended, and is there only until its parent notices.
  """
  file = os.open('stat', os.O_RDONLY, dir_fd=process)
  try:
    # From field 3; the second one, a name in parentheses, may hold anything.
    fields = os.read(file, 4096).rpartition(b')')[2].split()
    return None if fields[0] == b'Z' else int(fields[19])
  finally:
    os.close(file)


def _same(file: int, path: str) -> bool:
  return os.path.samestat(os.fstat(file), os.stat(path))
