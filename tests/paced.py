"""A slow link to a server: its answers come through in pieces."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import socket
import threading
import time

_PIECE_BYTES = 1 << 16


@contextlib.contextmanager
def link(
  address: str, pause_s: float, most_bytes: int | None = None
) -> Iterator[str]:
  """Yields the address at which the server is reached through the link.

  Args:
    address: of the server, 'unix:PATH' or 'tls://HOST:PORT'.
    pause_s: before each piece of 64 KiB that the server sends.
    most_bytes: how many of them come through, on each connection; None: all.
  """
  listener = _listen(address)
  ends: list[socket.socket] = []

  def accept() -> None:
    with contextlib.suppress(OSError):
      while True:
        here, there = listener.accept()[0], _connect(address)
        ends.extend((here, there))
        for words in (
          (here, there, 0.0, None),
          (there, here, pause_s, most_bytes),
        ):
          threading.Thread(target=_carry, args=words, daemon=True).start()

  threading.Thread(target=accept, daemon=True).start()
  try:
    if listener.family == socket.AF_UNIX:
      yield f'unix:{listener.getsockname()}'
    else:
      host, port = listener.getsockname()
      yield f'tls://{host}:{port}'
  finally:
    for end in (listener, *ends):
      with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
      end.close()


def _listen(address: str) -> socket.socket:
  if address.startswith('tls://'):
    return socket.create_server(('127.0.0.1', 0))
  listener = socket.socket(socket.AF_UNIX)
  listener.bind(f'{address.removeprefix("unix:")}.slow')
  listener.listen()
  return listener


def _connect(address: str) -> socket.socket:
  if address.startswith('tls://'):
    host, port = address.removeprefix('tls://').rsplit(':', 1)
    return socket.create_connection((host, int(port)))
  connection = socket.socket(socket.AF_UNIX)
  connection.connect(address.removeprefix('unix:'))
  return connection


def _carry(
  source: socket.socket, to: socket.socket, pause_s: float, most: int | None
) -> None:
  sent = 0
  with contextlib.suppress(OSError):
    while most is None or sent < most:
      piece = source.recv(_PIECE_BYTES)
      if not piece:
        to.shutdown(socket.SHUT_RDWR)
        return
      time.sleep(pause_s)
      to.sendall(piece)
      sent += len(piece)
