"""A server's end of one connection: bytes in, messages out, never a wait."""

from __future__ import annotations

import socket
import ssl
import time
from typing import Any

from murmuration.launch.rpc import channel

# A message or an answer under way may last so long and then as long as it takes
# at the least rate.
_GRACE_S = 30.0
# Who has not shown a certificate gets less: it may be anybody. A client of the
# run waits for no handshake longer than a second.
_HANDSHAKE_S = 5.0
_LEAST_BYTES_PER_S = channel.LEAST_BYTES_PER_S
_WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Connection:
  """Handled by one thread at a time."""

  def __init__(self, accepted: socket.socket):
    self._socket = accepted
    # Whether its handshake is done, or it needs none.
    self.is_shaken = not isinstance(accepted, ssl.SSLSocket)
    self._is_ended = False
    self._incoming = channel.Incoming()
    self._answer: list[Any] = []  # what is left of it
    # Whether it waits until it can send, rather than receive.
    self.wants_to_send = False
    # When the other end is too slow; None while nothing is under way.
    self.late_at: float | None = None
    if not self.is_shaken:
      self.late_at = time.monotonic() + _HANDSHAKE_S

  @property
  def is_in_handshake(self) -> bool:
    return not self.is_shaken and not self._is_ended

  def fileno(self) -> int:
    return self._socket.fileno()

  def proceed(self) -> Any:
    """Does what can be done now. Returns a whole message, or None.

    Raises:
      ValueError: what came is no message.
      EOFError: the other end, or `shut_down`, has ended the connection.
      OSError: it broke.
    """
    try:
      if not self.is_shaken and not self._is_ended:
        self.wants_to_send = False
        self._socket.do_handshake()  # type: ignore[attr-defined]
        self.is_shaken, self.late_at = True, None
      if self._is_ended:  # a call that ran now could not be answered
        raise EOFError
      if self._answer:
        self._flush()
      return self._receive()
    except _WOULD_BLOCK as e:
      self.wants_to_send = bool(self._answer) or isinstance(
        e, ssl.SSLWantWriteError
      )
      return None

  def answer(self, parts: list[Any]) -> None:
    """Sends as much as can be sent now; `proceed` sends the rest."""
    self._answer = channel.pieces(parts, self._socket)
    try:
      self._flush()
    except _WOULD_BLOCK:
      self.wants_to_send = True
      self._expect(sum(len(part) for part in self._answer))

  def _flush(self) -> None:
    while self._answer:
      sent = channel.send(self._socket, self._answer)
      self._answer = channel.unsent(self._answer, sent)
    self.wants_to_send, self.late_at = False, None

  def _receive(self) -> Any:
    known = self._incoming.size
    while (message := self._incoming.step(self._socket)) is None:
      if self.late_at is None or self._incoming.size != known:
        known = self._incoming.size
        self._expect(known)
    self.late_at = None
    return message

  def _expect(self, size: int) -> None:
    self.late_at = time.monotonic() + _GRACE_S + size / _LEAST_BYTES_PER_S

  def shut_down(self) -> None:
    """Ends it while another thread may use it, which then closes it."""
    self._is_ended = True
    try:
      # Not SSLSocket's own: the thread would go on with it without TLS.
      socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
    except OSError:
      pass  # the other end was faster

  def close(self) -> None:
    self._socket.close()
