"""One connection to a server, for one call at a time."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import time
from typing import Any

import numpy as np

from murmuration.launch.rpc import codec
from murmuration.launch.rpc import sockets
from murmuration.launch.rpc import tls

OK, ERROR = 0, 1  # the first part of an answer
CHUNK_BYTES = 1 << 16
_JOINED_BYTES = 1 << 15
_MAX_PIECES = 512  # The kernel takes 1,024.
# A message that is on its way may take as long as it needs at this rate: that
# of a link between hosts that loses a frame in a hundred and is 50 ms late.
LEAST_BYTES_PER_S = 1e5
_STALL_S = 10.0  # without a byte more of it
_TIMED_OUT = (TimeoutError, BlockingIOError)  # Python's and the kernel's


class NotDelivered(ConnectionError):
  """The server has surely not received the whole call."""


class NoServer(ConnectionError):
  """What answers is no server of this project."""


class Channel:
  """Not safe to share between threads; after an error it is to be dropped."""

  def __init__(
    self,
    address: str,
    timeout_s: float,
    credentials: tls.Credentials | None = None,
  ):
    """Connects; see `sockets.connect`."""
    self._socket = sockets.connect(address, timeout_s, credentials)
    self._timeout_s = 0.0  # not set
    is_tls = isinstance(self._socket, ssl.SSLSocket)
    self._all = 0 if is_tls else socket.MSG_WAITALL
    self._process = os.getpid()
    self._incoming = Incoming()

  def is_usable(self) -> bool:
    """Whether it may carry another call."""
    if self._process != os.getpid():
      return False  # one from before a fork is the parent's
    if not isinstance(self._socket, ssl.SSLSocket):
      return True  # sending will tell, and nothing is lost
    self._timeout_s = 0.0
    self._socket.setblocking(False)
    try:
      self._socket.recv(1)
    except ssl.SSLWantReadError:
      return True
    except OSError:
      pass
    return False  # it has come to its end, or anything came in

  def send(self, parts: list[Any], timeout_s: float, deadline: float) -> None:
    """Sends a message, which `receive` brings the answer to.

    A piece of it, or of the answer, may take `timeout_s`, and the whole until
    `deadline`, of `time.monotonic`.

    Raises:
      TimeoutError: it could not be sent in time.
      NotDelivered: the connection broke while sending.
    """
    self._set_timeout(timeout_s)
    try:
      self._send(parts, deadline)
    except _TIMED_OUT:
      raise TimeoutError from None
    except OSError as e:
      raise NotDelivered(str(e)) from e

  def receive(self, deadline: float) -> Any:
    """The message that answers what was sent.

    Args:
      deadline: of `time.monotonic`, until which its first bytes have to be
        here. The rest may come later, for as long as bytes do, and at no less
        than LEAST_BYTES_PER_S in all.

    Raises:
      TimeoutError: there was no answer in time; says how much of one came.
      NoServer: the answer makes no sense.
      ConnectionError: the connection broke; the call may have run.
    """
    last: float | None = None  # when the whole has to be here
    try:
      # Sending, or the answers of other servers, may have taken most of it.
      left = deadline - time.monotonic()
      if left < self._timeout_s / 2:
        self._set_timeout(max(left, 1e-3))
      while (message := self._incoming.step(self._socket, self._all)) is None:
        if size := self._incoming.size:
          last = last or deadline + size / LEAST_BYTES_PER_S
          deadline = max(deadline, min(time.monotonic() + _STALL_S, last))
        self._wait_until(deadline)
      return message
    except _TIMED_OUT:
      raise TimeoutError(self._incoming.progress()) from None
    except EOFError:
      raise ConnectionError('the server closed the connection') from None
    except ValueError as e:
      raise NoServer(str(e)) from e

  def __del__(self):
    with contextlib.suppress(AttributeError, OSError):
      self._socket.close()

  def _set_timeout(self, timeout_s: float) -> None:
    # A call to the kernel, so only if it has changed.
    if timeout_s == self._timeout_s:
      return
    self._timeout_s = timeout_s
    if isinstance(self._socket, ssl.SSLSocket):
      self._socket.settimeout(timeout_s)
    else:
      sockets.set_timeout(self._socket, timeout_s)

  def _wait_until(self, deadline: float) -> None:
    left = deadline - time.monotonic()
    if left <= 0:
      raise TimeoutError
    self._set_timeout(left)

  def _send(self, parts: list[Any], deadline: float) -> None:
    parts = pieces(parts, self._socket)
    while True:
      parts = unsent(parts, send(self._socket, parts))
      if not parts:
        return
      self._wait_until(deadline)


# For both ends.


class Incoming:
  """A message that comes in piece by piece."""

  def __init__(self):
    self.size = 0  # of the whole in bytes, once it is known
    self._head = b''  # less than a header
    self._message: Any = None  # of which `_filled` bytes are here
    self._filled = 0

  def progress(self) -> str:
    """For messages: how much of one is here; '' if that is nothing."""
    return f'{self._filled:,} of {self.size:,} bytes' if self.size else ''

  def step(self, connection: socket.socket, flags: int = 0) -> Any:
    """Receives once; returns the message when it is whole, None before.

    Raises:
      EOFError: the other end has closed the connection.
      ValueError: what came is no message.
      OSError: nothing came, or the connection broke.
    """
    if self.size:
      view = self._message.data[self._filled :]
      count = connection.recv_into(view, 0, flags)
      if not count:
        raise EOFError
      self._filled += count
      if self._filled < self.size:
        return None
      message, self._message, self.size = self._message, None, 0
      return message
    chunk = connection.recv(CHUNK_BYTES)
    if not chunk:
      raise EOFError
    chunk = self._head + chunk
    if len(chunk) < codec.HEADER_BYTES:
      self._head = chunk
      return None
    self._head = b''
    size = codec.message_size(chunk)
    if len(chunk) == size:
      return chunk
    if len(chunk) > size:
      raise ValueError('more comes than it says')
    # Pages of it that nothing was written to take no memory, so a claim that is
    # not kept costs nothing.
    self._message = np.empty(size, np.uint8)
    self._message[: len(chunk)] = np.frombuffer(chunk, np.uint8)
    self.size, self._filled = size, len(chunk)
    return None


def pieces(parts: list[Any], connection: socket.socket) -> list[Any]:
  """A message as it is best sent: one piece if small, else as it lies."""
  size = sum(len(part) for part in parts)
  if size <= _JOINED_BYTES or isinstance(connection, ssl.SSLSocket):
    return [b''.join(parts)]
  return parts


def send(connection: socket.socket, parts: list[Any]) -> int:
  """Sends some of a message; returns the bytes that went."""
  if len(parts) == 1:
    return connection.send(parts[0])
  return connection.sendmsg(parts[:_MAX_PIECES])


def unsent(parts: list[Any], sent: int) -> list[Any]:
  """What is left of a message of which so many bytes were sent."""
  for i, part in enumerate(parts):
    if sent < len(part):
      return [memoryview(part)[sent:], *parts[i + 1 :]]
    sent -= len(part)
  return []
