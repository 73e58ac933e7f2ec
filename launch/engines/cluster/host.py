"""The agent of a host: starts the run's nodes there, and speaks for them.

An actor of Ray. It has no node in it: those are forked from a process of its
own (forkserver.py), and end with the agent, whatever ends that.
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import errno
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

import psutil

from launch import pulse
from launch.engines import linux
from launch.engines import node_logs
from launch.engines import scratch
from launch.engines import zygote
from launch.engines.cluster import addresses
from launch.engines.cluster import code
from launch.engines.cluster import forkserver
from launch.engines.cluster import tunnel as tunnel_lib
from launch.rpc import hosts
from launch.rpc import server
from launch.rpc import tls

# A host that hears nothing from the launcher for so long ends its nodes: the
# launcher may have started them again on others.
LEASE_S = 20.0
_LOOK_S = 1.0  # between two looks at that
_QUIT_S = 5.0
_ROOT = str(pathlib.Path(__file__).resolve().parents[3])  # of the project
_LEAST_DISK = 200e6  # bytes, for programs and signs of life
_LEAST_MEMORY = 500e6  # bytes, of the stack that nodes are forked from
_FULL = (errno.ENOSPC, errno.EDQUOT)  # of a disk
# Variables of nodes that are the launcher's and not the host's: Ray sets some
# for its own processes.
_OURS = ('OMP_', 'OPENBLAS_', 'MKL_', 'TF_', 'XLA_', 'MUJOCO_', 'GRPC_')


@dataclasses.dataclass(frozen=True)
class Plan:
  """What every agent of a run is told."""

  run: str  # the name of its directory on each host
  num_nodes: int  # of the program
  family: bytes  # the nodes, of forkserver.dumps
  token: tuple[str, str]  # a file that each host has to see, and what it holds
  code: str  # the project that the launcher runs, as code.version() says it
  environment: Mapping[str, str]  # of nodes, as far as it is the launcher's
  credentials: tuple[str, str, str] | None  # in a run on several hosts
  plain: bool = False  # whether Reverb goes to other hosts without the tunnel
  launcher: int = 0  # its process, where all of the run is on its machine


def environment() -> dict[str, str]:
  """The launcher's variables for nodes of all hosts."""
  return {k: v for k, v in os.environ.items() if k.startswith(_OURS)}


class Agent:
  """One for each host that has nodes of the run."""

  def __init__(self, plan: Plan, names: Any):
    """Starts the process that nodes are forked from; `names` has addresses."""
    import ray

    self._plan = plan
    self._id = ray.get_runtime_context().get_node_id()
    (self._ip,) = [
      node['NodeManagerAddress']
      for node in ray.nodes()
      if node['NodeID'] == self._id
    ]
    self._asked = False
    self._pid = 0  # of the zygote
    self._pids: dict[int, int] = {}
    self._sent: dict[int, bytes] = {}  # what poll said last
    self._heard = float('inf')  # when the launcher last asked
    self._over = threading.Event()
    self._lapsed = False  # whether the lease has ended the nodes
    self._launcher = psutil.Process(plan.launcher) if plan.launcher else None
    self._tunnel: subprocess.Popen | None = None
    # First: with other code than the launcher's, what follows may fail in ways
    # that say nothing to anybody.
    self._problem = mismatch(plan)
    if self._problem:
      return
    self._top = scratch.Scratch()
    try:
      self._set_up(plan, names)
    except BaseException:
      # Nobody can ask this agent for its end.
      self._top.remove()
      raise

  def _set_up(self, plan: Plan, names: Any) -> None:
    # Its name is the same on all hosts: nodes know their run by it.
    self._place = self._top.path / plan.run
    self._place.mkdir()
    (self._place / forkserver.FILE).write_bytes(plan.family)
    self._slots = pulse.Board(self._place, plan.num_nodes).slots
    tunnel = None
    if plan.credentials is not None:
      self._tunnel, tunnel = tunnel_lib.start(
        self._place, self._ip, tls.Credentials(*plan.credentials)
      )
    own = addresses.Addresses(
      names,
      self._id,
      self._ip,
      self._place,
      tunnel,
      plan.plain,
      plan.credentials,
      self._ask,
    )
    self._serving = server.serve(own, f'unix:{self._place / hosts.SOCKET}')
    self._serving.__enter__()
    self._channel = zygote.Channel(self._spawn())
    threading.Thread(target=self._watch_lease, daemon=True).start()

  def describe(self) -> dict[str, Any]:
    """Where it is; 'problem' says why no node can run here.

    With a 'place' of '' it has not begun, and `describe` is all that it does.
    """
    return {
      'name': socket.gethostname(),
      'ip': self._ip,
      'place': '' if self._problem else str(self._place),
      'problem': self._problem or full(),
    }

  def _spawn(self) -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    not_its = (*_OURS, 'RAY_')
    own = {k: v for k, v in os.environ.items() if not k.startswith(not_its)}
    own['PYTHONPATH'] = os.pathsep.join([_ROOT, *filter(None, sys.path)])
    descriptor = theirs.fileno()
    with (self._place / 'forkserver.log').open('wb') as log:
      subprocess.run(
        [
          sys.executable,
          '-c',
          forkserver.COMMAND,
          str(descriptor),
          str(self._place),
        ],
        pass_fds=[descriptor],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env={**own, **self._plan.environment},
        start_new_session=True,
        check=True,
      )
    theirs.close()
    return ours

  def start(
    self, index: int, again: int, env: Mapping[str, str], slot: bytes
  ) -> None:
    """Starts a node: with variables of its own, and shown before its beats."""
    self._slots[index].write(slot)
    self._sent[index] = slot
    self._channel.send(op='start', index=index, again=again, env=dict(env))

  def signal(self, index: int, number: int) -> None:
    self._channel.send(op='signal', index=index, number=number)

  def poll(self, timeout_s: float) -> dict[str, Any]:
    """What happened since the last call; waits so long for something.

    Returns:
      'messages' of the zygote, see zygote.py; 'slots' that changed; whether a
      node 'asked' to stop the run; 'gone': why no node can run here any more,
      '' if they can; and 'problem' as in describe.
    """
    self._heard = time.monotonic()
    messages, gone = [], ''
    while self._channel.wait([], timeout_s):
      timeout_s = 0.0
      message = self._channel.receive()
      if message is None:
        gone = self._without_zygote()
        break
      messages.append(message)
      index = message['index']
      if message['event'] == 'ready':
        self._pid = message['pid']
      elif message['event'] == 'exited':
        self._pids.pop(index, None)
      else:
        self._pids[index] = message['pid']
    if not gone and self._tunnel is not None:
      code = self._tunnel.poll()
      if code is not None:
        gone = f'the tunnel to other hosts ended with exit code {code}'
        gone += _last_line(self._place / 'tunnel.log')
    slots = {}
    for index in [*self._sent]:
      shown = self._slots[index].read()
      if shown != self._sent[index]:
        slots[index] = self._sent[index] = shown
    return {
      'messages': messages,
      'slots': slots,
      'asked': self._asked,
      'gone': gone,
      'problem': full(),
    }

  def end(self) -> None:
    """Returns when no process and no file of the run is left here."""
    if self._problem:
      return
    self._over.set()
    self._serving.__exit__(None, None, None)
    self._channel.send(op='quit')
    deadline = time.monotonic() + _QUIT_S
    # Who adopted it may never reap it.
    while linux.process_state(self._pid) not in ('', 'Z'):
      if time.monotonic() > deadline:
        break
      time.sleep(0.01)
    self._top.remove()

  def _without_zygote(self) -> str:
    """Ends what the zygote would have ended; returns what became of it."""
    why = 'what starts nodes was killed'
    if self._lapsed:
      why = f'nothing was heard from the launcher for {LEASE_S:.0f} s'
    elif not self._pid:
      log = _last_line(self._place / 'forkserver.log')
      why = f'what starts nodes ended before it was ready{log}'
    # After the lease it has ended its nodes: others may have their numbers now.
    pids = () if self._lapsed else self._pids.values()
    zygote.kill_remains(pids, str(self._place))
    self._top.remove()
    return why

  def _ask(self) -> None:
    self._asked = True

  def _watch_lease(self) -> None:
    self._heard = time.monotonic()  # what comes before may take long
    while not self._over.wait(_LOOK_S):
      if self._sees_launcher():
        self._heard = time.monotonic()
      # Also if this host was what stood still: the others went on meanwhile.
      elif time.monotonic() - self._heard >= LEASE_S:
        self._lapsed = True
        self._channel.socket.shutdown(socket.SHUT_RDWR)
        return

  def _sees_launcher(self) -> bool:
    """Whether the launcher's process is here, if only stopped (Ctrl-Z)."""
    if self._launcher is None or not self._launcher.is_running():
      return False
    return linux.process_state(self._launcher.pid) not in ('', 'Z')


def _last_line(log: pathlib.Path) -> str:
  """What a log says last, after a colon; '' if it says nothing."""
  lines = [line.strip() for line in node_logs.since(log, 0) if line.strip()]
  return f': {lines[-1]}' if lines else ''


def mismatch(plan: Plan) -> str:
  """What this host has that is not the launcher's; '' if all is the same."""
  here = code.version()
  if here != plan.code:
    return (
      f'it has another version of the project or of its packages '
      f'({here}; the launcher {plan.code}). Install the same on all '
      'hosts, and start Ray there with that Python'
    )
  path, text = plan.token
  try:
    seen = pathlib.Path(path).read_text(encoding='utf-8')
  except OSError as e:
    seen = str(e)
  if seen != text:
    return (
      f'it does not see the run directory: {path}, which the launcher has '
      f'just written, is not there or another ({seen.strip()[:200]}). Put '
      'the run on a file system that all hosts mount at the same path: '
      '--run_dir=...'
    )
  return _unwritable(os.path.dirname(path))


def _unwritable(directory: str) -> str:
  """Why nodes of this host could not write to the run; '' if they can."""
  try:
    with tempfile.TemporaryFile(dir=directory):
      return ''
  except OSError as e:
    if e.errno in _FULL:
      return ''  # on all hosts; nodes wait for room
    return (
      f'it cannot write to the run directory, where nodes have their logs and '
      f'checkpoints ({e}). Mount it so that this user may write there'
    )


def full() -> str:
  """What this host has too little of for any node; '' if it has enough."""
  files = tempfile.gettempdir()
  disk = shutil.disk_usage(files).free
  memory = psutil.virtual_memory().available
  if disk < _LEAST_DISK:
    return (
      f'its disk is full: {files} has {disk / 1e6:.0f} MB free, and nodes need '
      f'{_LEAST_DISK / 1e6:.0f}. Make room there, or start Ray on that host '
      'with TMPDIR set to a directory that has it'
    )
  if memory < _LEAST_MEMORY:
    return (
      f'its memory is full: {memory / 1e6:.0f} MB are available, and the '
      f'stack alone takes {_LEAST_MEMORY / 1e6:.0f}. End something there, or '
      'place fewer nodes there: --cluster=GROUP:memory=BYTES'
    )
  return ''
