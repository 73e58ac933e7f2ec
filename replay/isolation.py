"""A private network for Reverb servers, which have no password of their own.

Reverb listens on all interfaces, without a password, and nothing closes its
port. So a launcher enters a new network namespace, with nothing in it but the
loopback interface, and its nodes are started there. Root may do so; another
user needs a user namespace first, which a process can enter only while it has
one thread:

    isolation.prepare()      # before TensorFlow is imported
    isolation.enter('auto')  # once it is known that this run wants it

A network namespace belongs to a thread and to what that thread starts: `enter`
is for the main thread, before it starts a server or a node. Threads that are
there by then (NumPy and TensorFlow start one each) open no sockets.
"""

from __future__ import annotations

from collections.abc import Sequence
import contextlib
import ctypes
import errno
import fcntl
import os
import socket
import struct
import sys

MODES = ('auto', 'required', 'off')
CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 1
_UNKNOWN = 255  # what a trial says that failed without an errno

_entered = False


class Refused(ValueError):
  """The system gives no private network; the message says why."""


def prepare(argv: Sequence[str] = ()) -> None:
  """Takes the right to make networks, where this process has not got it.

  Call it before anything is imported that may start threads. Where the system
  refuses, nothing changes, and `enter` says so.

  Args:
    argv: a command line; with `--isolate=off` in it nothing changes either, nor
      with a `--ray_address` other than `local`.
  """
  said = {*argv, *map('='.join, zip(argv, argv[1:]))}  # in one word or two
  cluster = any(word.startswith('--ray_address') for word in argv)
  if '--isolate=off' in said or (cluster and '--ray_address=local' not in said):
    return
  if _trial(CLONE_NEWNET) and not _trial(CLONE_NEWUSER | CLONE_NEWNET):
    with contextlib.suppress(OSError):  # there is a second thread already
      _unshare(CLONE_NEWUSER)


def enter(mode: str) -> None:
  """Moves this thread, and what it starts from now on, into a new network.

  Args:
    mode: 'auto': where the system refuses it, say what stays open, and go on.
      'required': raise then. 'off': do nothing.

  Raises:
    Refused: there is no private network, and one is required.
  """
  global _entered
  # Once: a second run of this process may have nodes that fork from the
  # first one's zygote.
  if mode == 'off' or _entered:
    return
  number = _trial(CLONE_NEWNET)
  if not number:
    _unshare(CLONE_NEWNET)
    _entered = True
    return
  if mode == 'required':
    raise Refused(
      f'--isolate=required: no private network: {_why(number)}. With '
      '--isolate=auto the run starts all the same, with open ports.'
    )
  print(
    f'note: no private network ({_why(number)}): whoever reaches this machine '
    'can read, change and stop the replay.',
    file=sys.stderr,
  )


def found() -> str:
  """What runs get on this machine, in one line."""
  if not _trial(CLONE_NEWNET):
    return 'private network for each run (network namespace)'
  number = _trial(CLONE_NEWUSER | CLONE_NEWNET)
  if not number:
    return 'private network for each run (user and network namespace)'
  return f'no private network: {_why(number)}; ports of runs are open'


def _why(number: int) -> str:
  """In words why there is no namespace."""
  if number == errno.EPERM and not os.geteuid():
    return (
      'this root has neither CAP_SYS_ADMIN nor CAP_SETFCAP, another user may '
      'have more luck'
    )
  if number in (errno.EPERM, errno.EACCES, errno.ENOSPC):
    return (
      'user namespaces are switched off for users, see sysctl '
      'user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns'
    )
  return 'unknown error' if number == _UNKNOWN else os.strerror(number)


def _trial(kinds: int) -> int:
  """0 if a child of this process can enter such namespaces, or the errno.

  In a child, because there is no way back from half of it.
  """
  receives, sends = os.pipe()
  pid = os.fork()
  if not pid:
    code = _UNKNOWN
    try:
      _unshare(kinds)
      code = 0
    except OSError as e:
      code = e.errno or _UNKNOWN
    finally:
      os.write(sends, bytes([code]))
      os._exit(0)
  os.close(sends)
  with open(receives, 'rb') as file:
    found = file.read(1)
  # Where SIGCHLD is ignored there is none by now, nor would it say its code.
  with contextlib.suppress(ChildProcessError):
    os.waitpid(pid, 0)
  return found[0] if found else _UNKNOWN


def _unshare(kinds: int) -> None:
  """Enters new namespaces; as the same user, with the loopback interface up.

  Raises:
    OSError: the system refuses it.
  """
  user, group = os.geteuid(), os.getegid()
  call('unshare', kinds)
  if kinds & CLONE_NEWUSER:
    for name, text in (
      ('setgroups', 'deny'),  # the kernel asks for it before gid_map
      ('uid_map', f'{user} {user} 1'),
      ('gid_map', f'{group} {group} 1'),
    ):
      with open(f'/proc/self/{name}', 'w', encoding='utf-8') as file:
        file.write(text)
  if kinds & CLONE_NEWNET:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
      request = struct.pack('16sh22x', b'lo', _IFF_UP)  # struct ifreq
      fcntl.ioctl(any_socket, _SIOCSIFFLAGS, request)


def call(name: str, *arguments: int) -> None:
  """Calls a function of libc.

  Raises:
    OSError: it failed.
  """
  libc = ctypes.CDLL(None, use_errno=True)
  if getattr(libc, name)(*arguments) != 0:
    number = ctypes.get_errno()
    raise OSError(number, f'{name}: {os.strerror(number)}')


def is_held(path: str | os.PathLike[str]) -> bool:
  """Whether a process holds a lock on a file.

  A launcher holds one on its record, launcher.json, as long as it lives. Only
  then is there a network to join.
  """
  try:
    with open(path, 'rb') as file:
      fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
  except BlockingIOError:
    return True
  except OSError:
    pass
  return False


def join(pid: int, what: str) -> bool:
  """Moves this process into the network of another, which runs `what`.

  This process must not have a second thread yet.

  Returns:
    False if that process has ended. Otherwise this one is in its network, if it
    has a private one.

  Raises:
    Refused: it is another user's, or the system does not allow it.
  """
  opened: list[int] = []
  try:
    # From here on, everything is read from this one process, not from another
    # that gets its id later.
    opened.append(os.open(f'/proc/{pid}', os.O_RDONLY))
    owner = os.fstat(opened[0]).st_uid
    if owner != os.geteuid():
      raise Refused(
        f'{what} is run by user {owner}, in a network of its own, and this is '
        f'user {os.geteuid()}: only user {owner} can look into it.'
      )
    for name in ('net', 'user'):
      opened.append(os.open(f'ns/{name}', os.O_RDONLY, dir_fd=opened[0]))
    _, network, user = opened
    if _same(network, '/proc/self/ns/net'):
      return True
    # A network namespace belongs to the user namespace in which it was made.
    if not _same(user, '/proc/self/ns/user'):
      call('setns', user, CLONE_NEWUSER)
    call('setns', network, CLONE_NEWNET)
  except (FileNotFoundError, ProcessLookupError):
    return False  # it ended meanwhile
  except OSError as e:
    raise Refused(
      f'{what} runs in a network of its own, which this process may not join: '
      f'{e.strerror}. Look from where it was started, or start it with '
      '--isolate=off.'
    ) from e
  finally:
    for file in opened:
      os.close(file)
  return True


def _same(file: int, path: str) -> bool:
  return os.path.samestat(os.fstat(file), os.stat(path))
