"""Linux functions for processes: parent death, orphans, memory and titles."""

import contextlib
import ctypes
import os
import pathlib
import resource
import signal

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
# Some programs close all descriptors that they might have, one by one, and in
# containers the limit may be a thousand million.
_DESCRIPTORS = 1 << 16


def die_with_parent(parent_pid: int, number: int = signal.SIGKILL) -> None:
  """Makes the kernel send this process a signal when its parent dies."""
  _prctl(_PR_SET_PDEATHSIG, number)
  if os.getppid() != parent_pid:  # the parent died before the call
    os.kill(os.getpid(), number)


def adopt_orphans() -> None:
  """Makes this process the parent of descendants whose parent dies."""
  _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def oom_kills() -> int:
  """How many processes the kernel has killed for want of memory, since it runs.

  0 if it does not say. Those of containers count too.
  """
  with contextlib.suppress(OSError):
    for line in pathlib.Path('/proc/vmstat').read_text().splitlines():
      name, _, number = line.partition(' ')
      if name == 'oom_kill':
        return int(number)
  return 0


def allow_descriptors() -> None:
  """Lets this process and its children have as many open files as they may."""
  soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
  most = _DESCRIPTORS
  if hard != resource.RLIM_INFINITY:
    most = min(most, hard)
  if soft != resource.RLIM_INFINITY and soft < most:
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def set_title(title: str) -> None:
  """Sets the title of this process in ps and top."""
  with contextlib.suppress(OSError):
    _prctl(_PR_SET_NAME, title.rsplit(' ', 1)[-1].encode()[:15])
  with contextlib.suppress(OSError, ValueError, IndexError):
    # ps reads the command line from the process's memory: overwrites it there.
    text = pathlib.Path('/proc/self/stat').read_text()
    fields = text.rsplit(')', 1)[1].split()
    start, end = int(fields[45]), int(fields[46])
    if start and end - start > 1:
      ctypes.memset(start, 0, end - start)
      encoded = title.encode()[: end - start - 1]
      ctypes.memmove(start, encoded, len(encoded))


def _prctl(option: int, value) -> None:
  libc = ctypes.CDLL(None, use_errno=True)
  if not isinstance(value, bytes):
    value = ctypes.c_ulong(value)
  if libc.prctl(option, value, *3 * [ctypes.c_ulong(0)]) != 0:
    number = ctypes.get_errno()
    raise OSError(number, f'prctl({option}): {os.strerror(number)}')
