"""One connection to a Courier server, which carries bytes."""

import contextlib
import datetime
import itertools
import socket

from courier.python import client as courier_client
from courier.python import py_client

METHOD = 'call'
OK, ERROR = 0, 1  # the first part of an answer
Error = courier_client.StatusThrown

_NEXT_TARGET = itertools.count(1)


class Channel:
  """One gRPC channel; closed when the last call on it is over."""

  def __init__(self, address: str):
    self._client = py_client.PyClient(_fresh_target(address))

  def call(self, message: bytes, timeout_s: float) -> bytes:
    # wait_for_ready, timeout, compress, chunk_tensors
    timeout = datetime.timedelta(seconds=timeout_s)
    return self._client.PyCall(
      METHOD, [message], {}, False, timeout, False, False
    )

  def __del__(self):
    with contextlib.suppress(AttributeError):
      self._client.Shutdown()


def _fresh_target(address: str) -> str:
  """Spells an address in a way that this process has not used lately.

  gRPC shares connections, and their growing reconnect delay (up to 2 minutes),
  between all channels to the same target; another spelling starts anew.
  """
  host, port = address.rsplit(':', 1)
  turn = next(_NEXT_TARGET)
  ip = socket.gethostbyname(host)
  if ip.startswith('127.'):
    # The whole of 127.0.0.0/8 is this machine.
    return f'127.0.{turn // 250 % 250}.{turn % 250 + 1}:{port}'
  return [address, f'{ip}:{port}', f'ipv4:{ip}:{port}', f'dns:///{address}'][
    turn % 4
  ]


def accepts(address: str, timeout_s: float) -> bool:
  """Whether something listens at host:port."""
  host, port = address.rsplit(':', 1)
  try:
    socket.create_connection((host, int(port)), timeout_s).close()
  except OSError:
    return False
  return True
