"""What a host has one of: ways to Reverb on other hosts, copies of parameters.

    client -> 127.0.0.1:ENTRY -> TLS -> the other host's gate -> 127.0.0.1:PORT

Reverb's clients keep the address that they were given, and know no TLS. An
entry is that address: it stays the same when the server comes back on another
host, as each connection asks anew where the server is. Parameters of a learner
come here once for all actors of the host (copies.py).

It is a process of its own, which ends when its standard input does, and so with
the agent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
import contextlib
import dataclasses
import json
import os
import pathlib
import socket
import subprocess
import sys
import threading
import traceback
from typing import Any

from launch.engines.cluster import addresses
from launch.engines.cluster import copies
from launch.rpc import client
from launch.rpc import directory
from launch.rpc import hosts
from launch.rpc import server
from launch.rpc import sockets
from launch.rpc import tls

COMMAND = f'from {__name__} import main; main()'  # of `python -c`
_CHUNK_BYTES = 1 << 18
_CONNECT_S = 5.0
_START_S = 30.0
# Until a learner's answer begins; less than who asks waits for it (copies.py).
_PARAMETERS_S = 1.5


def start(
  place: pathlib.Path, ip: str, credentials: tls.Credentials
) -> tuple[subprocess.Popen, client.Client]:
  """Starts the tunnel of this host; returns it, and what calls it."""
  own = {**os.environ}
  own['PYTHONPATH'] = os.pathsep.join(path for path in sys.path if path)
  with (place / 'tunnel.log').open('wb') as log:
    process = subprocess.Popen(
      [sys.executable, '-c', COMMAND, ip],
      stdin=subprocess.PIPE,
      stdout=log,
      stderr=log,
      env=own,
      start_new_session=True,
    )
  plan = [str(place), *dataclasses.astuple(credentials)]
  assert process.stdin is not None
  process.stdin.write(json.dumps(plan).encode() + b'\n')
  process.stdin.flush()
  return process, client.Client(f'unix:{place / hosts.TUNNEL}', _START_S)


class Tunnel:
  """Lives in a process of its own; serves the agent and nodes of this host."""

  serves = ('gate', 'entry', 'parameters')

  def __init__(
    self, place: pathlib.Path, ip: str, credentials: tls.Credentials
  ):
    self._ip = ip
    self._agent = client.Client(f'unix:{place / hosts.SOCKET}', _CONNECT_S)
    self._to_gate = credentials.client_context()
    self._at_gate = credentials.server_context()
    self._loop = asyncio.new_event_loop()
    self._entries: dict[str, int] = {}
    self._lock = threading.Lock()
    self._port = directory.pick_port({*addresses.RAYS_PORTS})
    found = hosts.Directory(place)
    self._copies = copies.Copies(
      lambda name: client.Client(directory.Name(name, found), _PARAMETERS_S)
    )

  def run(self) -> None:
    # An address that cannot be had ends this process, and so is heard of.
    self._loop.run_until_complete(
      asyncio.start_server(
        self._from_outside,
        self._ip,
        self._port,
        ssl=self._at_gate,
        ssl_handshake_timeout=_CONNECT_S,
      )
    )
    self._loop.run_forever()

  def gate(self) -> str:
    """Where other hosts connect to: 'IP:PORT'."""
    return f'{self._ip}:{self._port}'

  def entry(self, name: str) -> int:
    """The port of this host at which a server of any host is reached."""
    with self._lock:
      if name not in self._entries:
        listener = socket.create_server(('127.0.0.1', 0))
        accept = asyncio.start_server(
          lambda r, w: self._from_here(name, r, w), sock=listener
        )
        asyncio.run_coroutine_threadsafe(accept, self._loop).result()
        self._entries[name] = listener.getsockname()[1]
      return self._entries[name]

  def parameters(self, name: str, have_version: int) -> dict[str, Any]:
    """As `get_parameters` of that server, with other nodes' answers."""
    return self._copies.get(name, have_version)

  async def _ask(self, name: str) -> dict[str, Any] | None:
    return await self._loop.run_in_executor(None, self._agent.place, name)

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
      if place['gate'] == self.gate():
        there = await _connect('127.0.0.1', place['port'])
      else:
        host, port = place['gate'].rsplit(':', 1)
        there = await _connect(host, int(port), self._to_gate)
        there[1].write(f'{name}\n'.encode())
      await _carry((reader, writer), there)

  async def _from_outside(
    self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
  ) -> None:
    """A host of this run: on to a server here."""
    with _ending(writer, 'a connection from outside'):
      _tune(writer)
      line = await asyncio.wait_for(reader.readline(), _CONNECT_S)
      place = await self._ask(line.decode().rstrip('\n'))
      if place is None or place['gate'] != self.gate():
        return  # it is somewhere else by now
      there = await _connect('127.0.0.1', place['port'])
      await _carry(there, (reader, writer))


async def _connect(host: str, port: int, context: Any = None) -> Any:
  connection = asyncio.open_connection(host, port, ssl=context)
  reader, writer = await asyncio.wait_for(connection, _CONNECT_S)
  _tune(writer)
  return reader, writer


def _tune(writer: asyncio.StreamWriter) -> None:
  plain = writer.get_extra_info('socket')
  if plain is not None:
    sockets.tune(plain)


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


_said: set[str] = set()


@contextlib.contextmanager
def _ending(writer: asyncio.StreamWriter, what: str) -> Iterator[None]:
  """Closes a connection in the end; says what went wrong, each thing once."""
  try:
    yield
  except Exception as e:  # whatever it is, the client tries again
    said = f'{what}: {type(e).__name__}: {e}'
    if said not in _said and len(_said) < 100:
      _said.add(said)
      print(said, file=sys.stderr, flush=True)
  finally:
    writer.close()


def _end_with_input() -> None:
  sys.stdin.buffer.read()
  os._exit(0)


def main() -> None:
  where, *credentials = json.loads(sys.stdin.buffer.readline())
  place = pathlib.Path(where)
  tunnel = Tunnel(place, sys.argv[1], tls.Credentials(*credentials))
  threading.Thread(target=_end_with_input, daemon=True).start()
  with server.serve(tunnel, f'unix:{place / hosts.TUNNEL}'):
    try:
      tunnel.run()
    except BaseException:
      traceback.print_exc()
    # No interpreter shutdown: a thread is reading, and Python would abort.
    os._exit(1)
