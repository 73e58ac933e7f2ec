"""The transport of frames: the actor's links and the server's listener.

On one host the frame is in shared memory, and a packet of eight bytes signals
that there is something to read. The memory is anonymous and the socket is not a
file, so the kernel frees both when the last process that uses them ends,
however it dies. Between hosts the bytes of the frame go over RPC.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import pathlib
import socket
from typing import Any

from launch import rpc
from launch.rpc import sockets
from launch.services.inference import frames

# An actor waits so long for an answer, then checks whether to stop and repeats
# its request.
TRY_S = 1.0
_HELLO_BYTES = 4096
_HELLO_S = 10.0


class Lost(ConnectionError):
  """The server no longer knows this run of the actor."""


class Late(TimeoutError):
  """No answer yet; the actor repeats the request, with the same step."""


class Refused(ValueError):
  """The server refuses to serve this actor or this request."""


class UnknownRun(KeyError):
  """Raised by the server for an actor that has to send a hello first."""


def host() -> str:
  """An identifier, equal for processes that can use a `SharedMemoryLink`."""
  with contextlib.suppress(OSError):
    boot = pathlib.Path('/proc/sys/kernel/random/boot_id').read_text().strip()
    return f'{boot} {os.stat("/proc/self/ns/net").st_ino}'
  return socket.gethostname()


# The actor's side.


class SharedMemoryLink:
  """An actor's connection whose `frame` is in memory shared with the server."""

  def __init__(
    self, name: str, hello: dict[str, Any], shapes: frames.FrameLayout
  ):
    """Connects to the listener of that `name` with a `sessions.Hello`.

    Raises Lost if none lets it in, and Refused with the server's reason.
    """
    self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    it = 'does not listen'
    try:
      self._socket.settimeout(_HELLO_S)
      self._socket.connect('\0' + name)
      sockets.check_user(self._socket)
      it = 'did not let this actor in'
      self._socket.send(json.dumps(hello).encode())
      answer, fds, _, _ = socket.recv_fds(self._socket, _HELLO_BYTES, 1)
      if not answer:
        raise ConnectionError('it closed the connection')
    except OSError as e:
      self._socket.close()
      raise Lost(f'The inference server {it}: {e}') from e
    refusal = json.loads(answer)['error']
    if refusal is not None:
      self._socket.close()
      raise Refused(refusal)
    self.frame = frames.Frame(shapes, _mapped(fds[0], shapes.nbytes))
    sockets.set_timeout(self._socket, TRY_S)

  def exchange(self, step: int) -> None:
    """Sends request `step`. Returns when the frame holds its answer.

    Raises Late if there was none within a second, Lost if the server is gone.
    """
    try:
      self._socket.send(step.to_bytes(8, 'little'))
      while True:
        packet = self._socket.recv(8)
        if not packet:
          raise Lost('The inference server is gone.')
        # Skips a second answer to an earlier request that was sent twice.
        if int.from_bytes(packet, 'little') == step:
          return
    except BlockingIOError:  # The timeout.
      raise Late(f'no answer to request {step} in {TRY_S:g} s') from None
    except OSError as e:
      raise Lost('The inference server is gone.') from e

  def close(self) -> None:
    self._socket.close()


class RpcLink:
  """An actor's connection that sends the bytes of its `frame` over RPC."""

  def __init__(
    self, server: Any, hello: dict[str, Any], shapes: frames.FrameLayout
  ):
    """Joins a server, given its client, with a `sessions.Hello`.

    Raises Lost if it does not answer, and Refused with its reason.
    """
    self.frame = frames.Frame(shapes)
    self._server = server.with_deadline(TRY_S)
    self._key = hello['index'], hello['run_id']
    try:
      refusal = server.join(hello)
    except (rpc.Unavailable, rpc.RemoteError) as e:
      raise Lost(str(e)) from e
    if refusal is not None:
      raise Refused(refusal)

  def exchange(self, step: int) -> None:
    """See `SharedMemoryLink.exchange`."""
    try:
      answer = self._server.act(*self._key, bytes(self.frame.request_bytes))
    except rpc.Unavailable as e:
      # The call may have run. Sending the same step again is safe, since the
      # server keeps the answer.
      raise Late(str(e)) from e
    except rpc.RemoteError as e:
      if e.type_name == 'UnknownRun':
        raise Lost('The inference server was started again.') from e
      if e.type_name == 'Late':
        raise Late(e.message) from e
      raise
    self.frame.reply_bytes[:] = answer
    assert self.frame.answered_step == step, (self.frame.answered_step, step)

  def close(self) -> None:
    """Does nothing."""


Link = SharedMemoryLink | RpcLink


# The server's side.


class Listener:
  """Accepts connections of actors on the same host, at a socket `name`."""

  def __init__(self):
    self.name = f'murmuration-inference-{os.getpid()}-{os.urandom(8).hex()}'
    self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # A name in the abstract namespace makes no file.
    self._socket.bind('\0' + self.name)
    self._socket.listen(1024)
    self._socket.setblocking(False)

  def fileno(self) -> int:
    return self._socket.fileno()

  def accept(self) -> Connection | None:
    """The next connection; None if it was closed or is another user's."""
    try:
      connection, _ = self._socket.accept()
    except OSError:
      return None
    try:
      sockets.check_user(connection)
    except sockets.Stranger:
      connection.close()
      return None
    return Connection(connection)

  def close(self) -> None:
    self._socket.close()


class Connection:
  """The server's end of a `SharedMemoryLink`."""

  def __init__(self, connection: socket.socket):
    self._socket = connection
    self._socket.setblocking(False)
    self.index: int | None = None  # of the actor, once it is admitted

  def fileno(self) -> int:
    return self._socket.fileno()

  def receive(self) -> bytes | None:
    """One packet, b'' if there is none, None at the end of the connection."""
    try:
      packet = self._socket.recv(_HELLO_BYTES)
    except BlockingIOError:
      return b''
    except OSError:
      return None
    return packet or None

  def admit(self, shapes: frames.FrameLayout) -> frames.Frame:
    """Sends the actor a new frame in shared memory, and returns it."""
    fd = os.memfd_create('murmuration-inference')
    try:
      os.truncate(fd, shapes.nbytes)
      with contextlib.suppress(OSError):
        socket.send_fds(self._socket, [_packed(None)], [fd])
    finally:
      memory = _mapped(fd, shapes.nbytes)
    return frames.Frame(shapes, memory)

  def refuse(self, reason: str) -> None:
    """Sends the actor a reason instead of a frame."""
    with contextlib.suppress(OSError):
      self._socket.send(_packed(reason))

  def answered(self, step: int) -> None:
    """Signals that the frame holds the answer to request `step`."""
    # If the actor is gone, the end of its connection is handled elsewhere.
    with contextlib.suppress(OSError):
      self._socket.send(step.to_bytes(8, 'little'))

  def close(self) -> None:
    self._socket.close()


def _packed(error: str | None) -> bytes:
  return json.dumps({'error': error}).encode()


def _mapped(fd: int, nbytes: int) -> mmap.mmap:
  """Maps the memory of a file descriptor and closes the descriptor."""
  try:
    return mmap.mmap(fd, nbytes)
  finally:
    os.close(fd)
