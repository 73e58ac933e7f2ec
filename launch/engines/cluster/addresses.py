"""The addresses of the servers of one host, and those of other hosts' ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
import pathlib
import threading
from typing import Any
import urllib.parse

from murmuration.launch.engines.cluster import tunnel as tunnel_lib
from murmuration.launch.rpc import directory

_ASK_S = 10.0  # for the actor of names to answer


class Addresses:
  """What the agent of a host tells its nodes, see rpc/hosts.py.

  Safe to share between threads.
  """

  serves = ('claim', 'find', 'credentials', 'ask_to_stop')

  def __init__(
    self,
    names: Any,
    host: str,
    ip: str,
    place: pathlib.Path,
    tunnel: tunnel_lib.Tunnel | None,
    plan: Mapping[str, Any],
    ask_to_stop: Callable[[], None],
  ):
    """Makes the addresses of a host.

    `names` is the actor that knows all, `place` the run's directory here, and
    `plan` as in host.py. Where there are no other hosts, there is no `tunnel`.
    """
    self._names = names
    self._host, self._ip, self._tunnel = host, ip, tunnel
    self._plan = plan
    self.ask_to_stop = ask_to_stop
    self._sockets = place / 'sockets'
    self._sockets.mkdir(mode=0o700)
    self._ports: dict[str, int] = {}
    self._lock = threading.Lock()
    if tunnel is not None:
      tunnel.start(self._find)

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
      if self._tunnel is not None:
        place['gate'] = self._tunnel.gate
        place['there'] = f'{self._ip}:{port}'
    self._ask(self._names.claim.remote(name, place))
    return address

  def find(self, name: str) -> str | None:
    """As Directory.find: the way to a server from this host."""
    place = self._find(name)
    if place is None:
      return None
    if 'gate' in place and self._tunnel is not None and not self._plan['plain']:
      # Also to one that is here now: it may come back elsewhere.
      return f'127.0.0.1:{self._tunnel.entry(name)}'
    return place['here' if place['host'] == self._host else 'there']

  def credentials(self) -> list[str]:
    return list(self._plan['credentials'])

  def _find(self, name: str) -> dict[str, Any] | None:
    """Where a server is, as `claim` has made it; None before that."""
    return self._ask(self._names.find.remote(name))

  def _port(self, name: str) -> int:
    """The one of before, if that is still free."""
    with self._lock:
      before = self._ports.get(name)
      if before is None or not directory.is_free(before):
        taken = {*tunnel_lib.RAYS_PORTS, *self._ports.values()}
        self._ports[name] = directory.pick_port(taken)
      return self._ports[name]

  def _ask(self, call: Any) -> Any:
    import ray

    return ray.get(call, timeout=_ASK_S)
