"""Processes of other users, and what they see; helpers of tests."""

import contextlib
import ctypes
import encodings.idna  # noqa: F401  # strangers may not read it later
import os
import pickle
import socket

from murmuration.replay import isolation

_NOBODY = 65534
_PR_SET_DUMPABLE = 4


def in_a_child(function, *args, stranger=False):
  """What a function returns in a fork of this process.

  Args:
    function: called there; what it raises is returned.
    *args: of the function.
    stranger: whether the child is nobody's, where this process is root's; of
      another user it cannot change.
  """
  reading, writing = os.pipe()
  pid = os.fork()
  if not pid:
    found = None
    try:
      os.close(reading)
      if stranger:
        _become_nobody()
      isolation._entered = False
      found = function(*args)
    except BaseException as e:
      found = e
    finally:
      with os.fdopen(writing, 'wb') as pipe:
        pickle.dump(found, pipe)
      os._exit(0)
  os.close(writing)
  with os.fdopen(reading, 'rb') as pipe:
    found = pickle.load(pipe)
  os.waitpid(pid, 0)
  return found


def can_be_another():
  """Whether `stranger` makes a child of another user."""
  return os.geteuid() == 0


def _become_nobody():
  if not can_be_another():
    return
  os.setgroups([])
  os.setgid(_NOBODY)
  os.setuid(_NOBODY)
  # As a program that nobody has started: its /proc is its own.
  ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)


def connects(port):
  """Whether something listens at a port of this machine."""
  for host in ('127.0.0.1', '::1'):
    with contextlib.suppress(OSError):
      socket.create_connection((host, port), 5.0).close()
      return True
  return False


def listening(pid):
  """Inode to port of what listens in the network of a process."""
  found = {}
  for name in ('tcp', 'tcp6'):
    with contextlib.suppress(FileNotFoundError):
      with open(f'/proc/{pid}/net/{name}') as file:
        for line in list(file)[1:]:
          words = line.split()
          if words[3] == '0A':
            found[int(words[9])] = int(words[1].rpartition(':')[2], 16)
  return found


def sockets_of(pid):
  """Inodes of the sockets that a process holds."""
  found = set()
  with contextlib.suppress(FileNotFoundError, ProcessLookupError):
    for file in os.listdir(f'/proc/{pid}/fd'):
      with contextlib.suppress(OSError):
        target = os.readlink(f'/proc/{pid}/fd/{file}')
        if target.startswith('socket:['):
          found.add(int(target[8:-1]))
  return found
