"""Hosts of a cluster that are addresses of this machine's loopback; no Ray."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
import pathlib
import subprocess
from typing import Any

from launch.engines.cluster import addresses
from launch.engines.cluster import tunnel
from launch.rpc import hosts
from launch.rpc import server
from launch.rpc import tls


class _Remote:
  def __init__(self, function: Callable):
    self.remote = function


class Names:
  """The actor of names, in this process."""

  def __init__(self) -> None:
    found: dict[str, Any] = {}
    self.claim, self.find = _Remote(found.__setitem__), _Remote(found.get)


class Host(addresses.Addresses):
  """What an agent knows.

  Attributes:
    process: the host's tunnel.
    tunnel: client of it.
  """

  process: subprocess.Popen
  tunnel: Any

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
  given = [credentials.authority, credentials.certificate, credentials.key]
  with contextlib.ExitStack() as stack:
    made: list[Host] = []
    for index in range(number):
      place = top / str(index)
      place.mkdir()
      ip = f'127.0.0.{index + 1}'
      process, client = tunnel.start(place, ip, credentials)
      stack.callback(process.wait)
      assert process.stdin is not None
      stack.callback(process.stdin.close)
      found = Host(
        names, f'id{index}', ip, place, client, plain, given, lambda: None
      )
      found.process, found.tunnel = process, client
      stack.enter_context(server.serve(found, f'unix:{place / hosts.SOCKET}'))
      made.append(found)
    yield made
