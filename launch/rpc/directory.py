"""The addresses of a run's servers, by name.

A server claims its address when its node starts, and a client looks the name up
whenever it connects. So no server has an address before it runs, and a
restarted node may get another one. Names are those of nodes ('counter/0') and
of further servers in a node ('learner/0/replay1').

`Local` is for the engines of one machine. The directory of a cluster (hosts.py)
also gives addresses tls://HOST:PORT and the certificates of its run.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import fcntl
import json
import logging
import pathlib
import random
import socket
import threading
import time
from typing import Literal
import urllib.parse

from launchpad import address as lp_address
from launchpad.launch import worker_manager

from murmuration.launch.rpc import tls

Kind = Literal['rpc', 'port']
_WAIT_S = 60.0
_PROBE_PERIOD_S = 0.05
_logger = logging.getLogger(__name__)


class Unknown(Exception):
  """The address of a server cannot be looked up now; a retry may succeed."""


class Directory(abc.ABC):
  """Knows where the servers of one run listen. Can be pickled."""

  @abc.abstractmethod
  def claim(self, name: str, kind: Kind = 'rpc') -> str:
    """Returns the address on which a starting server is to listen.

    No other name has it. It is the server's previous one if that is still free.
    `kind` is 'rpc' for an address of `rpc.serve`; 'port' for 'host:port', which
    a foreign server such as Reverb needs.
    """

  @abc.abstractmethod
  def find(self, name: str, timeout_s: float | None = None) -> str | None:
    """Returns the address of a server; None if it has never started.

    `timeout_s` limits the look-up; None: as the directory does by itself. It
    raises Unknown if it fails, with the reason.
    """

  @property
  def credentials(self) -> tls.Credentials | None:
    """Certificates of the run, if other machines can reach its servers."""
    return None


class Local(Directory):
  """The directory of one machine: a file that only its user can read.

  Servers of this project listen on sockets beside the file, others on ports.
  """

  def __init__(self, path: pathlib.Path):
    self._file = path / 'addresses.json'
    self._sockets = path / 'sockets'

  def __reduce__(self):
    return Local, (self._file.parent,)

  def claim(self, name: str, kind: Kind = 'rpc') -> str:
    with self._file.with_suffix('.lock').open('w') as lock:
      fcntl.flock(lock, fcntl.LOCK_EX)
      addresses = self._read()
      before = addresses.get(name)
      if kind == 'rpc':
        self._sockets.mkdir(mode=0o700, exist_ok=True)
        # A name may hold slashes; each needs a file of its own.
        file = urllib.parse.quote(name, safe='')
        address = f'unix:{self._sockets / file}'
      elif before is not None and is_free(_port(before)):
        address = before
      else:
        taken = {_port(x) for x in addresses.values() if x[:5] != 'unix:'}
        # Not 'localhost': a minimal container's /etc/hosts may lack that name,
        # and a private network has nobody to ask for it.
        address = f'127.0.0.1:{pick_port(taken)}'
        if before is not None:
          _logger.warning(
            '%s moves to %s: another process uses %s.', name, address, before
          )
      if address != before:  # else not written again: the disk may be full
        new = self._file.with_suffix('.new')
        new.write_text(json.dumps({**addresses, name: address}))
        new.rename(self._file)
      return address

  def find(self, name: str, timeout_s: float | None = None) -> str | None:
    return self._read().get(name)

  def _read(self) -> dict[str, str]:
    try:
      return json.loads(self._file.read_text())
    except FileNotFoundError:  # Nothing has started, or the run is over.
      return {}


@dataclasses.dataclass(frozen=True)
class Name(lp_address.AbstractAddressBuilder):
  """A name and the directory that knows it; binds an address of Launchpad."""

  name: str
  directory: Directory

  def find(self, timeout_s: float | None = None) -> str | None:
    return self.directory.find(self.name, timeout_s)

  def build(self) -> str:
    """Waits for the server's first start; for clients of foreign servers."""
    stop = stop_event()
    deadline = time.monotonic() + _WAIT_S
    while True:
      state = 'it has not started'
      try:
        if (address := self.find()) is not None:
          return address
      except Unknown as e:
        state = str(e)
      if time.monotonic() > deadline or stop.wait(_PROBE_PERIOD_S):
        raise ConnectionError(
          f'{self.name} has no address: {state} within {_WAIT_S:g} s, or the '
          'program is stopping. See its log.'
        )


def stop_event() -> threading.Event:
  """The stop event of this thread's node; elsewhere, one that is never set."""
  try:
    return worker_manager.get_worker_manager().stop_event()
  except RuntimeError:
    return threading.Event()


def bound_to(address: lp_address.Address) -> Name:
  """The name that an engine has bound to one of Launchpad's addresses."""
  return address._address_builder


def pick_port(taken: set[int]) -> int:
  """Picks a free port, not among `taken`, below the ephemeral range.

  Launchpad picks one from that range; there, a restarted server can find its
  port used by an outgoing connection, even one of its own clients.
  """
  low, high = 10_000, 32_767
  with contextlib.suppress(OSError, ValueError):
    path = pathlib.Path('/proc/sys/net/ipv4/ip_local_port_range')
    high = int(path.read_text().split()[0]) - 1
  if high < 12_000:  # With few ports below that range, any port will do.
    high = 60_000
  for _ in range(1000):
    port = random.SystemRandom().randint(low, high)
    if port not in taken and is_free(port):
      return port
  raise OSError(
    f'Found no free port between {low} and {high} in 1000 tries. Close what '
    'listens there (`ss -ltn`), or lower net.ipv4.ip_local_port_range.'
  )


def is_free(port: int) -> bool:
  """Whether a server could listen on the port, on all interfaces."""
  try:
    # Ignores the closing connections of a server that has just died.
    socket.create_server(('', port)).close()
  except OSError:
    return False
  return True


def _port(address: str) -> int:
  return int(address.rsplit(':', 1)[1])
