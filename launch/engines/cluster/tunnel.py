"""Carries Reverb from host to host, inside TLS.

    client -> 127.0.0.1:ENTRY -> TLS -> the other host's gate -> 127.0.0.1:PORT

Reverb's clients keep the address that they were given, and know no TLS. An
entry is that address: it stays the same when the server comes back on another
host, as each connection asks anew where the server is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
import contextlib
import socket
import sys
import threading
from typing import Any

from murmuration.launch.rpc import directory
from murmuration.launch.rpc import tls

RAYS_PORTS = range(10_000, 20_000)  # for its clients and workers, by default
_CHUNK_BYTES = 1 << 18
_CONNECT_S = 5.0

# Where a server is: 'gate' of its host and 'here', its address there.
Find = Callable[[str], dict[str, Any] | None]


class Tunnel:
  """The entries and the gate of one host, in a thread of its own."""

  def __init__(self, ip: str, credentials: tls.Credentials):
    """Listens at the gate, an address of this host that others reach.

    Raises:
      OSError: `ip` is no address of this host.
    """
    self._credentials = credentials
    self._loop = asyncio.new_event_loop()
    self._entries: dict[str, int] = {}
    self._lock = threading.Lock()
    port = directory.pick_port({*RAYS_PORTS})
    family = socket.AF_INET6 if ':' in ip else socket.AF_INET
    self._listener = socket.create_server((ip, port), family=family)
    self.gate = f'{ip}:{port}'  # of this host

  def start(self, find: Find) -> None:
    """Takes connections; `find` tells where a server is."""
    self._find = find
    threading.Thread(target=self._loop.run_forever, daemon=True).start()
    self._run(
      asyncio.start_server(
        self._from_outside,
        sock=self._listener,
        ssl=self._credentials.server_context(),
        ssl_handshake_timeout=_CONNECT_S,
      )
    )

  def entry(self, name: str) -> int:
    """The port of this host at which a server of any host is reached."""
    with self._lock:
      if name not in self._entries:
        listener = socket.create_server(('127.0.0.1', 0))
        self._run(
          asyncio.start_server(
            lambda r, w: self._from_here(name, r, w), sock=listener
          )
        )
        self._entries[name] = listener.getsockname()[1]
      return self._entries[name]

  def _run(self, what: Any) -> None:
    asyncio.run_coroutine_threadsafe(what, self._loop).result()

  async def _ask(self, name: str) -> dict[str, Any] | None:
    return await self._loop.run_in_executor(None, self._find, name)

  async def _from_here(
    self,
    name: str,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
  ) -> None:
    """A client of this host: on to where the server is now."""
    with _ending(writer, f'no way to {name}'):
      place = await self._ask(name)
      if place is None:
        return
      if place['gate'] == self.gate:
        there = await _connect(place['here'])
      else:
        there = await _connect(
          place['gate'], self._credentials.client_context()
        )
        there[1].write(f'{name}\n'.encode())
      await _carry((reader, writer), there)

  async def _from_outside(
    self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
  ) -> None:
    """A host of this run: on to a server here."""
    with _ending(writer, 'a connection from outside'):
      tls.tune(writer.get_extra_info('socket'))
      line = await asyncio.wait_for(reader.readline(), _CONNECT_S)
      place = await self._ask(line.decode().rstrip('\n'))
      if place is None or place['gate'] != self.gate:
        return  # it is somewhere else by now
      there = await _connect(place['here'])
      await _carry(there, (reader, writer))


async def _connect(address: str, context: Any = None) -> Any:
  host, port = address.rsplit(':', 1)
  connection = asyncio.open_connection(host, int(port), ssl=context)
  reader, writer = await asyncio.wait_for(connection, _CONNECT_S)
  tls.tune(writer.get_extra_info('socket'))
  return reader, writer


async def _carry(here: Any, there: Any) -> None:
  """Both ways, until either end closes."""
  ways = [
    asyncio.create_task(_copy(here[0], there[1])),
    asyncio.create_task(_copy(there[0], here[1])),
  ]
  try:
    await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
  finally:
    for way in ways:
      way.cancel()
    here[1].close()
    there[1].close()


async def _copy(
  reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
  with contextlib.suppress(OSError):
    while data := await reader.read(_CHUNK_BYTES):
      writer.write(data)
      await writer.drain()


@contextlib.contextmanager
def _ending(writer: asyncio.StreamWriter, what: str) -> Iterator[None]:
  """Closes a connection in the end; says what went wrong."""
  try:
    yield
  except Exception as e:  # whatever it is, the client tries again
    print(f'{what}: {type(e).__name__}: {e}', file=sys.stderr, flush=True)
  finally:
    writer.close()
