"""A process that forks nodes, and that never has a second thread.

It is forked when the program is built, and so has all nodes in its memory. From
then on the launcher may start threads (RPC clients, a live view, TensorFlow),
and nodes are still started by a fork from a clean process. The zygote reaps the
nodes, delivers signals to them, and takes them along when the launcher dies. On
another host of a cluster it gets the nodes from a file.

Messages are JSON, one per packet of a SOCK_SEQPACKET pair:

  launcher -> zygote  {op: start, index, again, env}    variables of the node
                      {op: signal, index, number}
                      {op: quit}
  zygote -> launcher  {event: started, index, pid}
                      {event: exited, index, pid, code, oom}
                      code < 0: -signal; pid: null if the fork failed; oom:
                      whether the kernel has just killed for want of memory
  node -> launcher    {event: running, index, pid}
"""

import collections
from collections.abc import Iterable, Sequence
import contextlib
import gc
import json
import os
import resource
import select
import shutil
import signal
import socket
import sys
import threading
import time
import traceback
from typing import Any, NoReturn

import psutil

from murmuration.launch.engines import child
from murmuration.launch.engines import linux
from murmuration.launch.engines import prepare

_REAP_S = 2.0
_QUIT_S = 5.0
_OOM_S = 10.0  # that a large process takes to end, at most
_LINGER_S = 0.5  # for processes of a dead node to end by themselves
_ABORT_S = 1.0  # from a node's SIGABRT to its SIGKILL


class Channel:
  """One end of the connection; it never waits for room to send.

  The other end may itself be waiting for room, or be stopped. Any thread may
  send.
  """

  def __init__(self, end: socket.socket):
    self.socket = end
    self._unsent: collections.deque[bytes] = collections.deque()
    self._lock = threading.Lock()

  def fileno(self) -> int:
    return self.socket.fileno()

  def wait(self, others: Sequence[int], timeout_s: float) -> bool:
    """Waits for a message, or one of other descriptors. Whether there is one.

    Sends meanwhile what there was no room for.
    """
    unsent = [self.fileno()] if self._unsent else []
    readers = [self.fileno(), *others]
    ready, room, _ = select.select(readers, unsent, [], timeout_s)
    if room:
      self._flush()
    return self.fileno() in ready

  def send(self, **message: Any) -> None:
    self._unsent.append(json.dumps(message).encode())
    self._flush()

  def receive(self) -> dict[str, Any] | None:
    """Returns the next message; None if the other end is gone."""
    try:
      packet = self.socket.recv(1 << 20)
    except ConnectionError:
      return None
    return json.loads(packet) if packet else None

  def _flush(self) -> None:
    with self._lock:
      try:
        while self._unsent:
          self.socket.send(self._unsent[0], socket.MSG_DONTWAIT)
          self._unsent.popleft()
      except BlockingIOError:
        pass  # no room yet
      except ConnectionError:
        self._unsent.clear()  # it is gone, which the next read reports


class Zygote:
  """Lives in the forked process; see the module's docstring."""

  def __init__(
    self, end: socket.socket, family: prepare.Family, launcher_pid: int | None
  ):
    """Makes the zygote of `family`.

    `end` is its end of the channel to the launcher. With a `launcher_pid`, this
    process is a child of the launcher and dies with it; without one, it ends
    when the channel is closed.
    """
    self._channel = Channel(end)
    self._family = family
    self._launcher_pid = launcher_pid
    self._nodes: dict[int, int] = {}  # pid -> index
    self._kill_at: dict[int, float] = {}  # pid -> when
    self._exits: list[dict[str, Any]] = []  # of nodes, not yet reported
    self._bereft = False  # whether a dead node may have left processes
    self._linger_until = 0.0
    self._terminated = False
    self._pid = os.getpid()
    self._oom_kills, self._oom_at = linux.oom_kills(), -_OOM_S

  def run(self) -> NoReturn:
    try:
      os.setsid()
      self._wakeup, wakeup = os.pipe()
      for end in (self._wakeup, wakeup):
        os.set_blocking(end, False)
      signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
      signal.signal(signal.SIGCHLD, lambda *unused: None)
      for number in (signal.SIGTERM, signal.SIGCONT):
        signal.signal(number, self._signalled)
      signal.signal(signal.SIGINT, signal.SIG_IGN)
      signal.signal(signal.SIGHUP, signal.SIG_IGN)
      linux.adopt_orphans()
      if self._launcher_pid is not None:
        # The only one that is delivered to a stopped process (SIGSTOP).
        linux.die_with_parent(self._launcher_pid, signal.SIGCONT)
      linux.set_title('murmuration: zygote')
      if 'tensorflow' in sys.modules:  # nodes that need none import none
        from murmuration.replay import tensors

        tensors.stop_leak()
      # Objects that the collector does not touch stay shared between nodes.
      gc.collect()
      gc.freeze()
      self._loop()
    except BaseException:
      traceback.print_exc()
    finally:
      with contextlib.suppress(BaseException):
        self._kill_everything()
        shutil.rmtree(self._family.top, ignore_errors=True)
      os._exit(0)

  def _signalled(self, number: int, unused: Any) -> None:
    if os.getpid() != self._pid:  # a node that has just been forked
      if number == signal.SIGTERM:
        os._exit(child.TERMINATED)
      return
    # The kernel sends this when the launcher is gone. Otherwise a service or a
    # batch system has sent it to all processes of the job: the launcher ends
    # the run in good order, and needs this process for that.
    parent = self._launcher_pid
    self._terminated = parent is not None and os.getppid() != parent

  def _loop(self) -> None:
    while not self._terminated:
      soon = self._kill_at or self._bereft
      heard = self._channel.wait([self._wakeup], 0.1 if soon else 1.0)
      with contextlib.suppress(BlockingIOError):
        os.read(self._wakeup, 4096)
      self._short_of_memory()
      self._reap()
      self._kill_overdue()
      if heard:
        message = self._channel.receive()
        if message is None or message['op'] == 'quit':
          return
        if message['op'] == 'start':
          self._fork(message['index'], message['again'], message['env'])
        elif message['op'] == 'signal':
          self._signal(message['index'], message['number'])

  def _fork(self, index: int, again: int, env: dict[str, str]) -> None:
    family, zygote_pid = self._family, os.getpid()
    try:
      pid = os.fork()
    except OSError as e:
      why = f'its process could not be forked: {e} (too many processes?)'
      family.slots[index].say(why, -1.0)
      self._channel.send(
        event='exited', index=index, pid=None, code=1, oom=False
      )
      return
    if pid:
      self._nodes[pid] = index
      self._channel.send(event='started', index=index, pid=pid)
      return

    def notify() -> None:
      message = {'event': 'running', 'index': index, 'pid': os.getpid()}
      with contextlib.suppress(OSError):
        self._channel.socket.send(json.dumps(message).encode())
      self._channel.socket.close()

    child.run(family, index, again, env, zygote_pid, notify)

  def _signal(self, index: int, number: int) -> None:
    for pid, i in self._nodes.items():
      if i == index:
        if number == signal.SIGABRT:
          # Its stacks are in its log, so it writes no core. If it does not end
          # (it may be stopped), it is killed.
          with contextlib.suppress(OSError):
            resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))
          self._kill_at[pid] = time.monotonic() + _ABORT_S
        # Not reaped yet, so the pid is still its own.
        os.kill(pid, number)

  def _kill_overdue(self) -> None:
    for pid, when in self._kill_at.items():
      if time.monotonic() >= when:
        os.kill(pid, signal.SIGKILL)

  def _reap(self) -> None:
    """Reports nodes that have ended, and kills what they had started.

    A living node adopts the orphans among its descendants. So a child of this
    process that is not a node was started by a node that has ended.
    """
    while True:
      try:
        pid, status = os.waitpid(-1, os.WNOHANG)
      except ChildProcessError:
        break
      if not pid:
        break
      self._kill_at.pop(pid, None)
      if pid in self._nodes:
        if not self._exits:
          self._linger_until = time.monotonic() + _LINGER_S
        exited = {'event': 'exited', 'index': self._nodes.pop(pid), 'pid': pid}
        exited['code'] = os.waitstatus_to_exitcode(status)
        self._exits.append({**exited, 'oom': self._short_of_memory()})
        self._bereft = True
    if not self._bereft:
      return
    if self._orphans() and time.monotonic() < self._linger_until:
      return  # one may be writing the last lines of a log
    # The children of those come here next.
    self._bereft = self._kill_orphans()
    for exited in self._exits:
      self._channel.send(**exited)
    self._exits.clear()

  def _orphans(self) -> list[psutil.Process]:
    children = psutil.Process().children()
    return [child for child in children if child.pid not in self._nodes]

  def _kill_orphans(self) -> bool:
    """Returns whether there were any."""
    orphans = self._orphans()
    for process in orphans:
      with contextlib.suppress(psutil.Error):
        process.kill()
    return bool(orphans)

  def _short_of_memory(self) -> bool:
    """Whether the kernel has just killed a process for want of memory."""
    now, kills = time.monotonic(), linux.oom_kills()
    if kills > self._oom_kills:
      self._oom_kills, self._oom_at = kills, now
    return now - self._oom_at < _OOM_S

  def _kill_everything(self) -> None:
    for pid in self._nodes:
      os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + _REAP_S
    while self._kill_orphans() or self._nodes:
      if time.monotonic() > deadline:
        return
      self._reap()
      time.sleep(0.01)


def kill_remains(pids: Iterable[int], temporary: str) -> None:
  """Kills what nodes had started, after they died with their zygote.

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
  """The launcher's end: a zygote that is forked now, for one run."""

  def __init__(self, family: prepare.Family):
    for stream in (sys.stdout, sys.stderr):
      stream.flush()  # Or each fork could write it again.
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    launcher_pid = os.getpid()
    self._pid = os.fork()
    if not self._pid:
      ours.close()
      Zygote(theirs, family, launcher_pid).run()
    theirs.close()
    self.channel = Channel(ours)

  def quit(self) -> bool:
    """Ends the zygote and all nodes. Returns False if it was killed before."""
    self.channel.send(op='quit')
    deadline, ended = time.monotonic() + _QUIT_S, 0
    with contextlib.suppress(ChildProcessError):  # SIGCHLD is ignored
      while not ended:
        ended, status = os.waitpid(self._pid, os.WNOHANG)
        if not ended and time.monotonic() > deadline:
          os.kill(self._pid, signal.SIGKILL)
        time.sleep(0.005)
    self.channel.socket.close()
    return not ended or status == 0


def check_fork() -> None:
  """Refuses to fork nodes where they would hang: TensorFlow has threads."""
  context = sys.modules.get('tensorflow.python.eager.context')
  if context is not None and context.context()._context_handle is not None:
    raise ValueError(
      'TensorFlow has already run an operation in this process, so its threads '
      'are up, and a forked node would hang in it. Probably the environment '
      'calls TensorFlow where it is made, or the agent or topology does: they '
      'are made here once before the nodes. Call it later, such as in the '
      'first reset, or set --lp_launch_type=local_mt.'
    )
