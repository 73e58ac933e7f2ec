"""The agent of a host: starts the run's nodes there, and speaks for them.

It lives in an actor of Ray. It has no node in it: those are forked from a
process of its own (forkserver.py), and end with the agent, whatever ends that.
"""

from __future__ import annotations

from collections.abc import Mapping
import importlib.metadata
import os
import platform
import socket
import subprocess
import sys
import threading
import time
from typing import Any

from murmuration.launch import pulse
from murmuration.launch import rpc
from murmuration.launch.engines import node_logs
from murmuration.launch.engines import scratch
from murmuration.launch.engines import zygote
from murmuration.launch.engines.cluster import addresses
from murmuration.launch.engines.cluster import forkserver
from murmuration.launch.engines.cluster import tunnel
from murmuration.launch.rpc import hosts
from murmuration.launch.rpc import tls

# A host that hears nothing from the launcher for so long ends its nodes: the
# launcher may have started them again on others.
LEASE_S = 20.0
_LOOK_S = 1.0  # between two looks at that
_QUIT_S = 5.0


class Host:
  """One for each host that has nodes of the run."""

  def __init__(self, plan: Mapping[str, Any], names: Any):
    """Starts the process that nodes are forked from.

    Args:
      plan: what all agents of a run are told. 'run': the name of its directory
        on each host. 'family': of forkserver.dumps. 'num_nodes': of the
        program. 'logs': a directory that all hosts see. 'versions': of the
        packages that have to be the same. 'environment': variables of nodes.
        'credentials': of a run on several hosts, else empty. 'plain': whether
        Reverb goes to other hosts without the tunnel.
      names: the actor that knows addresses.

    Raises:
      RuntimeError: nodes cannot run here.
    """
    import ray

    _check(plan['versions'], plan['logs'])
    self._asked = False
    self._pids: dict[int, int] = {}
    self._sent: dict[int, bytes] = {}  # what poll said last
    self._heard = float('inf')  # when the launcher last asked
    self._lapsed = False  # whether the lease has ended the nodes
    here = ray.get_runtime_context().get_node_id()
    (ip,) = [
      node['NodeManagerAddress']
      for node in ray.nodes()
      if node['NodeID'] == here
    ]
    self._top = scratch.Scratch()
    try:
      self._place = self._top.path / plan['run']
      self._place.mkdir()
      (self._place / forkserver.FILE).write_bytes(plan['family'])
      self._slots = pulse.Board(self._place, plan['num_nodes']).slots
      way = None
      if plan['credentials']:
        way = tunnel.Tunnel(ip, tls.Credentials(*plan['credentials']))
      own = addresses.Addresses(
        names, here, ip, self._place, way, plan, self._ask
      )
      self._serving = rpc.serve(own, f'unix:{self._place / hosts.SOCKET}')
      self._serving.__enter__()
      self._channel = zygote.Channel(self._spawn(plan['environment']))
    except BaseException:
      self._top.remove()  # nobody can ask this agent for its end
      raise
    if plan['credentials']:
      threading.Thread(target=self._watch_lease, daemon=True).start()

  def _spawn(self, environment: Mapping[str, str]) -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    own = {
      key: value
      for key, value in os.environ.items()
      if not key.startswith(('RAY_', 'OMP_', 'PYTHONBREAKPOINT'))
    }
    own['PYTHONPATH'] = os.pathsep.join(filter(None, sys.path))
    descriptor = str(theirs.fileno())
    with (self._place / 'forkserver.log').open('wb') as log:
      subprocess.run(
        [
          *(sys.executable, '-c', forkserver.COMMAND),
          *(descriptor, str(self._place)),
        ],
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env={**own, **environment},
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
      'place': the run's directory here. 'messages' of the zygote, see
      zygote.py. 'slots' that changed. Whether a node 'asked' to stop the run.
      'gone': why no node can run here any more, '' if they can.
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
      self._pids.pop(message['index'], None)
      if message['event'] != 'exited':
        self._pids[message['index']] = message['pid']
    slots = {}
    for index in [*self._sent]:
      shown = self._slots[index].read()
      if shown != self._sent[index]:
        slots[index] = self._sent[index] = shown
    return {
      'place': str(self._place),
      'messages': messages,
      'slots': slots,
      'asked': self._asked,
      'gone': gone,
    }

  def end(self) -> None:
    """Returns when no process and no file of the run is left here."""
    self._serving.__exit__(None, None, None)
    self._channel.send(op='quit')
    deadline = time.monotonic() + _QUIT_S
    while (left := deadline - time.monotonic()) > 0:
      if self._channel.wait([], left) and self._channel.receive() is None:
        break  # it has ended, and its end of the channel with it
    self._top.remove()

  def _without_zygote(self) -> str:
    """Ends what the zygote would have ended; returns what became of it."""
    if self._lapsed:
      # It has ended its nodes: others may have their numbers now.
      self._pids.clear()
      why = f'nothing was heard from the launcher for {LEASE_S:.0f} s'
    else:
      log = node_logs.since(self._place / 'forkserver.log', 0)
      said = [line.strip() for line in log if line.strip()]
      why = f'what starts nodes has ended: {said[-1] if said else "killed"}'
    zygote.kill_remains(self._pids.values(), str(self._place))
    self._top.remove()
    return why

  def _ask(self) -> None:
    self._asked = True

  def _watch_lease(self) -> None:
    self._heard = time.monotonic()  # what comes before may take long
    # Also if this host was what stood still: the others went on meanwhile.
    while time.monotonic() - self._heard < LEASE_S:
      time.sleep(_LOOK_S)
    self._lapsed = True
    self._channel.socket.shutdown(socket.SHUT_RDWR)


def _check(versions: Mapping[str, str], logs: str) -> None:
  """Raises RuntimeError where nodes would not be what the launcher's are."""
  for name, version in versions.items():
    here = _version(name)
    if here not in (None, version):
      raise RuntimeError(
        f'it has {name} {here}, and the launcher has {version}. Install the '
        'same packages on all hosts.'
      )
  if not os.access(logs, os.W_OK):
    raise RuntimeError(
      f'it cannot write to {logs}. Put the run on a file system that all hosts '
      'mount at the same path: --run_dir=...'
    )


def _version(name: str) -> str | None:
  if name == 'Python':
    return platform.python_version()
  try:
    return importlib.metadata.version(name)
  except importlib.metadata.PackageNotFoundError:
    return None
