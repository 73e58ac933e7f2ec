"""Who runs a run: RUN/launcher.json, locked for as long as its launcher lives.

The kernel frees the lock of a process that ends, however it ends. On a file
system without locks a run that is still running is not noticed.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import fcntl
import json
import os
import pathlib
import socket
import time

from murmuration.replay import isolation

FILE = 'launcher.json'
# A process that only looks whether a run is locked has it for a moment.
_PATIENCE_S = 1.0
_PAUSE_S = 0.02


class Refused(ValueError):
  """Another process has the run; the message says which."""


@contextlib.contextmanager
def claim(run: pathlib.Path) -> Iterator[None]:
  """Takes a run: within this context no other process can.

  Writes the process and the host, by which the inspector finds the network.

  Raises:
    Refused: another process has it.
  """
  path = run.absolute() / FILE
  file = _locked(path)
  # The nodes are forked from this process, and must not hold the lock for it.
  os.register_at_fork(after_in_child=file.close)
  try:
    file.truncate(0)
    json.dump({'pid': os.getpid(), 'host': socket.gethostname()}, file)
    file.flush()
    yield
  finally:
    with contextlib.suppress(OSError):
      # A run that was moved or begun anew meanwhile is not this one.
      if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
        path.unlink()
    with contextlib.suppress(OSError):  # a full disk
      file.close()


def running(run: pathlib.Path) -> bool:
  """Whether a launcher of this run lives."""
  return isolation.is_held(run / FILE)


def _locked(path: pathlib.Path):
  """Opens the file with a lock on it."""
  until = time.monotonic() + _PATIENCE_S
  while True:
    # Not 'w', which would empty the file of a launcher that lives.
    file = open(path, 'a+', encoding='utf-8')
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
      if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
        return file
    except FileNotFoundError:
      pass  # the launcher before ended just now, and removed it
    except BlockingIOError:
      if time.monotonic() > until:
        raise _refused(path) from None
    except OSError:
      return file  # no locks here
    file.close()
    time.sleep(_PAUSE_S)


def _refused(path: pathlib.Path) -> Refused:
  who = 'another process'
  with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
    values = json.loads(path.read_text(encoding='utf-8'))
    who = f'process {values["pid"]} of {values["host"]}'
  return Refused(
    f'{path.parent} is still running, as {who}. Wait until it has ended, or '
    'end that process.'
  )
