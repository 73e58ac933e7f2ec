"""The addresses of the servers of one host, and those of other hosts' ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import pathlib
import threading
import time
from typing import Any
import urllib.parse

from launch.rpc import client
from launch.rpc import directory

RAYS_PORTS = range(10_000, 20_000)  # for its clients and workers, by default
_ASK_S = 10.0  # for the actor of names to answer
_FRESH_S = 0.1  # so old an answer may be: many clients look for one server


class Addresses:
  """What the agent of a host tells its nodes, see rpc/hosts.py.

  Safe to share between threads.
  """

  serves = ('claim', 'find', 'place', 'credentials', 'ask_to_stop')

  def __init__(
    self,
    names: Any,
    host: str,
    ip: str,
    place: pathlib.Path,
    tunnel: client.Client | None,
    plain: bool,
    credentials: Sequence[str] | None,
    ask_to_stop: Callable[[], None],
  ):
    """Makes the addresses of a host.

    `names` is the actor that knows all, `place` the run's directory here. Where
    there are no other hosts, there are no `tunnel` and `credentials`. With
    `plain`, Reverb of other hosts is reached without the tunnel.
    """
    self._names = names
    self._host, self._ip, self._tunnel = host, ip, tunnel
    self._plain, self._credentials = plain, credentials
    self.ask_to_stop = ask_to_stop
    self._sockets = place / 'sockets'
    self._sockets.mkdir(mode=0o700)
    self._ports: dict[str, int] = {}
    self._fresh: dict[str, tuple[float, dict[str, Any] | None]] = {}
    self._lock = threading.Lock()

  def claim(self, name: str, kind: directory.Kind) -> str:
    """As Directory.claim."""
    place: dict[str, Any] = {'host': self._host}
    if kind == 'rpc':
      # A name may hold slashes, and no two have the same file.
      file = self._sockets / urllib.parse.quote(name, safe='')
      place['here'] = address = f'unix:{file}'
      if self._tunnel is not None:
        place['there'] = f'tls://{self._ip}:{self._port(name)}'
        address = f'{address} {place["there"]}'
    else:
      port = self._port(name)
      place['here'] = address = f'127.0.0.1:{port}'
      place['port'] = port
      if self._tunnel is not None:
        place['gate'] = self._tunnel.gate()
        place['plain'] = f'{self._ip}:{port}'
    self._ask(self._names.claim.remote(name, place))
    return address

  def find(self, name: str) -> str | None:
    """As Directory.find: the way to a server from this host."""
    place = self.place(name)
    if place is None:
      return None
    if self._plain and 'plain' in place:
      return place['here' if place['host'] == self._host else 'plain']
    if self._tunnel is not None and 'port' in place:
      # Also to one that is here now: it may come back elsewhere.
      return f'127.0.0.1:{self._tunnel.entry(name)}'
    return place['here' if place['host'] == self._host else 'there']

  def place(self, name: str) -> dict[str, Any] | None:
    """Where a server is, as `claim` has made it; None before that."""
    when, place = self._fresh.get(name, (0.0, None))
    if time.monotonic() - when > _FRESH_S:
      place = self._ask(self._names.find.remote(name))
      self._fresh[name] = time.monotonic(), place
    return place

  def credentials(self) -> list[str] | None:
    return None if self._credentials is None else list(self._credentials)

  def _port(self, name: str) -> int:
    """The one of before, if that is still free."""
    with self._lock:
      before = self._ports.get(name)
      if before is None or not directory.is_free(before):
        taken = {*RAYS_PORTS, *self._ports.values()}
        self._ports[name] = directory.pick_port(taken)
      return self._ports[name]

  def _ask(self, call: Any) -> Any:
    import ray

    return ray.get(call, timeout=_ASK_S)
