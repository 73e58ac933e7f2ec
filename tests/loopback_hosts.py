"""Hosts of a cluster that are addresses of this machine's loopback; no Ray."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
import dataclasses
import pathlib
from typing import Any

from murmuration.launch import rpc
from murmuration.launch.engines.cluster import addresses
from murmuration.launch.engines.cluster import tunnel
from murmuration.launch.rpc import hosts
from murmuration.launch.rpc import tls


class _Remote:
  def __init__(self, function: Callable):
    self.remote = function


class Names:
  """The actor of names, in this process."""

  def __init__(self) -> None:
    self.found: dict[str, Any] = {}
    self.claim = _Remote(self.found.__setitem__)
    self.find = _Remote(self.found.get)


class Host(addresses.Addresses):
  """What an agent knows.

  Attributes:
    gate: of the host, 'IP:PORT'.
  """

  gate: str

  def _ask(self, call: Any) -> Any:
    return call


@contextlib.contextmanager
def make(
  top: pathlib.Path, number: int, plain: bool = False
) -> Iterator[list[Host]]:
  """So many hosts, each with its tunnel.

  Args:
    top: each has its directory there, `top / str(index)`.
    number: 1 to 250.
    plain: whether Reverb goes without the tunnels.
  """
  credentials, names = tls.make(), Names()
  plan = {'credentials': dataclasses.astuple(credentials), 'plain': plain}
  with contextlib.ExitStack() as stack:
    made: list[Host] = []
    for index in range(number):
      place = top / str(index)
      place.mkdir()
      ip = f'127.0.0.{index + 1}'
      way = tunnel.Tunnel(ip, credentials)
      host = Host(names, f'id{index}', ip, place, way, plan, lambda: None)
      host.gate = way.gate
      stack.enter_context(rpc.serve(host, f'unix:{place / hosts.SOCKET}'))
      made.append(host)
    yield made
