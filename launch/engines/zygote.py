"""A process that forks nodes, and that never has a second thread.

The launcher forks it at its first run, when everything is imported and the
program is built. From then on the launcher may start threads (RPC clients, a
live view, TensorFlow), and nodes can still be started, in this run and later
ones, by a fork from a clean process. The zygote reaps the nodes, delivers
signals to them, and takes them along when the launcher dies.

Messages are JSON, one per packet of a SOCK_SEQPACKET pair:

  launcher -> zygote  {op: begin, scratch}     directory, removed at the end
                      {op: start, index, name, command, ...}    see child.run
                      {op: signal, index, number}
                      {op: end}                kill what is left of the run
                      {op: quit}
  zygote -> launcher  {event: started, index, pid}
                      {event: exited, index, pid, code, oom}
                      code < 0: -signal; pid: null if the fork failed; oom:
                      whether the kernel has just killed for want of memory
                      {event: ended}
  node -> launcher    {event: running, index, pid}
"""

import atexit
import collections
from collections.abc import Callable, Iterable, Mapping
import contextlib
import gc
import json
import os
import select
import shutil
import signal
import socket
import sys
import time
import traceback
from typing import Any, NoReturn

import psutil

from launch import pulse
from launch.engines import child
from launch.engines import linux

_REAP_S = 2.0
_QUIT_S = 5.0
_OOM_S = 10.0  # that a process of much memory takes to end, at most


def send(channel: socket.socket, **message) -> None:
  channel.send(json.dumps(message).encode())


def receive(channel: socket.socket) -> dict[str, Any] | None:
  """Returns the next message; None if the other end is gone."""
  try:
    packet = channel.recv(1 << 20)
  except ConnectionError:
    return None
  return json.loads(packet) if packet else None


class Zygote:
  """Lives in the forked process; see the module's docstring."""

  def __init__(self, channel: socket.socket, launcher_pid: int | None):
    """`channel` is to its launcher, whose child this process is.

    Without a `launcher_pid` it is nobody's child, and notices by the channel
    that its launcher is gone.
    """
    self._channel = channel
    self._launcher_pid = launcher_pid
    self._scratch: str | None = None
    self._nodes: dict[int, int] = {}  # pid -> index
    self._unsent: collections.deque[bytes] = collections.deque()
    self._terminated = False
    self._pid = os.getpid()
    self._oom_kills, self._oom_at = linux.oom_kills(), -_OOM_S

  def run(self) -> NoReturn:
    try:
      os.setsid()
      self._wakeup, wakeup = os.pipe()
      os.set_blocking(wakeup, False)
      signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
      signal.signal(signal.SIGCHLD, lambda *unused: None)
      for number in (signal.SIGTERM, signal.SIGCONT):
        signal.signal(number, self._signalled)
      signal.signal(signal.SIGINT, signal.SIG_IGN)
      signal.signal(signal.SIGHUP, signal.SIG_IGN)
      linux.adopt_orphans()
      if self._launcher_pid is not None:
        # A process that is stopped (SIGSTOP) hears no other.
        linux.die_with_parent(self._launcher_pid, signal.SIGCONT)
      linux.set_title('murmuration: zygote')
      # Objects that the collector does not touch stay shared between nodes.
      gc.collect()
      gc.freeze()
      self._loop()
    except BaseException:
      traceback.print_exc()
    finally:
      with contextlib.suppress(BaseException):
        self._end_run()
      os._exit(0)

  def _signalled(self, number: int, unused: Any) -> None:
    if os.getpid() != self._pid:  # a node that has just been forked
      if number == signal.SIGTERM:
        os._exit(child.TERMINATED)
      return
    # Sent by the kernel when the launcher is gone. Else it was for all
    # processes of the job (a service or a batch system stops it): the launcher
    # ends the run in good order, and needs this process for that.
    parent = self._launcher_pid
    self._terminated = parent is not None and os.getppid() != parent

  def _loop(self) -> None:
    while not self._terminated:
      ready, _, _ = select.select(
        [self._channel.fileno(), self._wakeup],
        [self._channel.fileno()] if self._unsent else [],
        [],
        1.0,
      )
      self._flush()
      if self._wakeup in ready:
        os.read(self._wakeup, 4096)
      self._short_of_memory()
      self._reap()
      if self._channel.fileno() in ready:
        message = receive(self._channel)
        if message is None or message['op'] == 'quit':
          return
        if message['op'] == 'begin':
          self._scratch = message['scratch']
        elif message['op'] == 'start':
          self._fork(message)
        elif message['op'] == 'signal':
          self._signal(message['index'], message['number'])
        elif message['op'] == 'end':
          self._end_run()
          self._tell(event='ended')

  def _tell(self, **message) -> None:
    """Sends to the launcher, now or as soon as there is room."""
    self._unsent.append(json.dumps(message).encode())
    self._flush()

  def _flush(self) -> None:
    # Never waits: the launcher may be waiting for room in the other direction,
    # as it starts many nodes before it reads of the first.
    try:
      while self._unsent:
        self._channel.send(self._unsent[0], socket.MSG_DONTWAIT)
        self._unsent.popleft()
    except ConnectionError:
      self._unsent.clear()  # it is gone, which the next read reports
    except OSError:
      pass  # no room yet

  def _fork(self, request: dict[str, Any]) -> None:
    zygote_pid = os.getpid()
    try:
      pid = os.fork()
    except OSError as e:
      self._refuse(request, e)
      return
    if pid:
      self._nodes[pid] = request['index']
      with contextlib.suppress(OSError):
        # The child does it too: either may come first.
        os.setpgid(pid, pid)
      self._tell(event='started', index=request['index'], pid=pid)
      return
    child.run(request, zygote_pid, self._notifier(request['index']))

  def _refuse(self, request: dict[str, Any], error: OSError) -> None:
    """Says of a node that it has failed, as it would itself."""
    why = (
      f'its process could not be forked: {error} (too many processes, or out '
      'of memory?)'
    )
    index = request['index']
    with contextlib.suppress(OSError):
      pulse.open_slot(request['pulse'], index).say(why, -1.0)
    with contextlib.suppress(OSError), open(request['log'], 'a') as log:
      print(why, file=log)
    self._tell(event='exited', index=index, pid=None, code=1, oom=False)

  def _notifier(self, index: int) -> Callable[[], None]:
    def notify() -> None:
      with contextlib.suppress(OSError):
        send(self._channel, event='running', index=index, pid=os.getpid())
      self._channel.close()

    return notify

  def _signal(self, index: int, number: int) -> None:
    for pid, i in self._nodes.items():
      if i == index:
        # Not reaped yet, so the pid is still its own.
        os.kill(pid, number)

  def _reap(self) -> None:
    reaped = False
    while True:
      try:
        pid, status = os.waitpid(-1, os.WNOHANG)
      except ChildProcessError:
        break
      if not pid:
        break
      reaped = True
      if pid in self._nodes:
        index = self._nodes.pop(pid)
        code = os.waitstatus_to_exitcode(status)
        oom = self._short_of_memory()
        self._tell(event='exited', index=index, pid=pid, code=code, oom=oom)
    if reaped:
      self._kill_orphans()

  def _kill_orphans(self) -> bool:
    """Kills what dead nodes had started. Returns whether there was any.

    A living node adopts the orphans among its descendants. So what is a child
    of this process, and no node, was started by a node that has ended. The end
    of each wakes this process, which then finds the children that it had.
    """
    found = False
    for process in psutil.Process().children():
      if process.pid not in self._nodes:
        found = True
        with contextlib.suppress(psutil.Error):
          process.kill()
    return found

  def _short_of_memory(self) -> bool:
    """Whether the kernel has killed for want of memory lately."""
    now, kills = time.monotonic(), linux.oom_kills()
    if kills > self._oom_kills:
      self._oom_kills, self._oom_at = kills, now
    return now - self._oom_at < _OOM_S

  def _end_run(self) -> None:
    self._kill_everything()
    if self._scratch is not None:
      shutil.rmtree(self._scratch, ignore_errors=True)
      self._scratch = None

  def _kill_everything(self) -> None:
    for pid in self._nodes:
      os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + _REAP_S
    while time.monotonic() < deadline:
      self._reap()
      if not self._nodes and not self._kill_orphans():
        return
      time.sleep(0.01)


def kill_remains(pids: Iterable[int], temporary: str) -> None:
  """Kills what nodes left behind whose zygote was killed, and they with it.

  `pids` led process groups; `temporary` is their directory for such files.
  """
  for pid in pids:
    with contextlib.suppress(ProcessLookupError, PermissionError):
      os.killpg(pid, signal.SIGKILL)
  for process in psutil.process_iter():
    with contextlib.suppress(psutil.Error):
      if process.environ().get('TMPDIR') == temporary:
        process.kill()


class Launcher:
  """The launcher's end: a zygote that is forked now and lives as long as it."""

  def __init__(self):
    for stream in (sys.stdout, sys.stderr):
      stream.flush()  # Or each fork could write it again.
    self.channel, theirs = socket.socketpair(
      socket.AF_UNIX, socket.SOCK_SEQPACKET
    )
    self._launcher_pid = os.getpid()
    self.network = _network()
    self._environment = dict(os.environ)
    self.pid: int | None = os.fork()
    if not self.pid:
      self.channel.close()
      Zygote(theirs, self._launcher_pid).run()
    theirs.close()
    atexit.register(self.quit)

  def send(self, **message) -> None:
    # If the zygote is gone, the next read reports it.
    with contextlib.suppress(ConnectionError):
      send(self.channel, **message)

  def changed_environment(
    self, overrides: Mapping[str, Any]
  ) -> dict[str, str | None]:
    """Environment variables that differ now from those of the zygote."""
    new = {**os.environ, **{k: str(v) for k, v in overrides.items()}}
    return {
      key: new.get(key)
      for key in {*self._environment, *new}
      if self._environment.get(key) != new.get(key)
    }

  def alive(self) -> bool:
    """Whether the zygote is there, and this process is its launcher."""
    if self.pid is None or self._launcher_pid != os.getpid():
      return False
    try:
      ended = os.waitpid(self.pid, os.WNOHANG)[0] != 0
    except ChildProcessError:  # it has, where SIGCHLD is ignored
      ended = True
    if ended:
      self.pid = None
      self.channel.close()
    return self.pid is not None

  def end_run(self) -> None:
    """Returns when no process of the run is left."""
    self.send(op='end')
    deadline = time.monotonic() + _QUIT_S
    while select.select(
      [self.channel], [], [], max(deadline - time.monotonic(), 0)
    )[0]:
      message = receive(self.channel)
      if message is None:
        # It was killed. Its files close before it can be reaped, so `alive`
        # would still say yes, and nobody would kill the nodes' children.
        while self.alive() and time.monotonic() < deadline:
          time.sleep(0.005)
        return
      if message['event'] == 'ended':
        return
    self.quit()

  def quit(self) -> None:
    """Ends the zygote, if this process is its launcher."""
    if not self.alive():
      return
    self.send(op='quit')
    deadline = time.monotonic() + _QUIT_S
    while self.alive():
      if time.monotonic() > deadline and self.pid is not None:
        os.kill(self.pid, signal.SIGKILL)
      time.sleep(0.005)


_launcher: Launcher | None = None


def get() -> Launcher:
  """Returns the zygote of this process; forks it if there is none.

  One that was forked before this process changed its network is replaced.
  """
  global _launcher
  if not _of_this_network():
    check_fork()
    if _launcher is not None:
      _launcher.quit()
    _launcher = Launcher()
  assert _launcher is not None
  return _launcher


def _of_this_network() -> bool:
  return (
    _launcher is not None
    and _launcher.alive()
    and _launcher.network == _network()
  )


def _network() -> str:
  """Which network this process is in (isolation.py)."""
  return os.readlink('/proc/self/ns/net')


def check_fork() -> None:
  """Refuses to fork nodes where they would hang: TensorFlow has threads."""
  if _of_this_network():
    return
  context = sys.modules.get('tensorflow.python.eager.context')
  if context is not None and context.context()._context_handle is not None:
    why = (
      'Probably the environment calls TensorFlow where it is made, or the '
      'agent or topology does: they are made here once before the nodes. Call '
      'it later, such as in the first reset, or set --lp_launch_type=local_mt.'
    )
    if _launcher is not None and _launcher.alive():
      why = (
        'The nodes of an earlier run of this process are in another network, '
        'where this run cannot have its own. Give each a process of its own.'
      )
    raise ValueError(
      'TensorFlow has already run an operation in this process, so its threads '
      f'are up, and a forked node would hang in it. {why}'
    )
