"""One connection to a server, for one call at a time."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import time
from typing import Any

import numpy as np

from launch.rpc import codec
from launch.rpc import sockets
from launch.rpc import tls

OK, ERROR = 0, 1  # the first part of an answer
CHUNK_BYTES = 1 << 16
_JOINED_BYTES = 1 << 15
_MAX_PIECES = 512  # The kernel takes 1,024.


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
    self._timeout_s = timeout_s
    self._process = os.getpid()

  def is_usable(self) -> bool:
    """Whether it may carry another call."""
    # A connection from before a fork is the parent's.
    if self._process != os.getpid() or sockets.is_closed(self._socket):
      return False
    if isinstance(self._socket, ssl.SSLSocket):
      self._timeout_s = 0.0  # `is_closed` has changed it
    return True

  def call(self, parts: list[Any], timeout_s: float) -> Any:
    """Sends a message; returns the one that answers it.

    Raises:
      TimeoutError: there was no answer in time.
      NotDelivered: the connection broke while sending.
      NoServer: the answer makes no sense.
      ConnectionError: the connection broke; the call may have run.
    """
    deadline = time.monotonic() + timeout_s
    self._set_timeout(timeout_s)
    try:
      self._send(parts, deadline)
    except TimeoutError:
      raise
    except OSError as e:
      raise NotDelivered(str(e)) from e
    return self._receive(deadline)

  def close(self) -> None:
    self._socket.close()

  def __del__(self):
    with contextlib.suppress(AttributeError, OSError):
      self._socket.close()

  def _set_timeout(self, timeout_s: float) -> None:
    # A call to the kernel, so only if it has changed.
    if timeout_s != self._timeout_s:
      self._socket.settimeout(timeout_s)
      self._timeout_s = timeout_s

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

  def _receive(self, deadline: float) -> Any:
    chunk = self._socket.recv(CHUNK_BYTES)
    while 0 < len(chunk) < codec.HEADER_BYTES:
      self._wait_until(deadline)
      more = self._socket.recv(CHUNK_BYTES)
      chunk = chunk + more if more else b''
    if not chunk:
      raise ConnectionError('the server closed the connection')
    try:
      size = codec.message_size(chunk)
    except ValueError as e:
      raise NoServer(str(e)) from e
    if len(chunk) == size:
      return chunk
    if len(chunk) > size:
      raise NoServer('it sends more than it says')
    message = np.empty(size, np.uint8)
    view = message.data
    view[: len(chunk)] = chunk
    done = len(chunk)
    while done < size:
      self._wait_until(deadline)
      count = self._socket.recv_into(view[done:])
      if not count:
        raise ConnectionError('the server closed the connection')
      done += count
    return message


# For both ends.


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
