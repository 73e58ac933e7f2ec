"""How to reach the servers of a run that has a network of its own.

A launcher may run its program in a private network namespace
(replay/isolation.py). It leaves its process id in RUN/launcher.json, and who
may look into the run joins that process's namespace.
"""

from __future__ import annotations

import ctypes
import json
import os
import pathlib
from typing import Any

FILE = 'launcher.json'
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000


class Refused(ValueError):
  """The run's network cannot be joined; the message says why."""


def record() -> dict[str, Any]:
  """What a launcher writes to RUN/launcher.json.

  The start time tells it from a later process with the same id.
  """
  directory = os.open('/proc/self', os.O_RDONLY)
  try:
    return {'pid': os.getpid(), 'started': _started(directory)}
  finally:
    os.close(directory)


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
    values = json.loads((run / FILE).read_text(encoding='utf-8'))
    pid, started = int(values['pid']), int(values['started'])
  except FileNotFoundError:
    return True
  except (OSError, ValueError, KeyError, TypeError) as e:
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
      _setns(user, _CLONE_NEWUSER)
    _setns(network, _CLONE_NEWNET)
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


def _started(process: int) -> int:
  """Clock ticks from the machine's start to that of an open /proc/PID."""
  file = os.open('stat', os.O_RDONLY, dir_fd=process)
  try:
    # Field 22; the second one, a name in parentheses, may hold anything.
    return int(os.read(file, 4096).rpartition(b')')[2].split()[19])
  finally:
    os.close(file)


def _same(file: int, path: str) -> bool:
  return os.path.samestat(os.fstat(file), os.stat(path))


def _setns(file: int, kind: int) -> None:
  libc = ctypes.CDLL(None, use_errno=True)
  if libc.setns(file, kind) != 0:
    number = ctypes.get_errno()
    raise OSError(number, os.strerror(number))
