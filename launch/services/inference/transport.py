"""How frames travel: the actor's links, and the server's listener.

On one host the frame lies in memory that both have mapped, and a packet of
eight bytes says that there is something to read. The memory has no name and the
socket is no file, so the kernel frees both when the last process that uses them
ends, however it dies. Between hosts the bytes of the frame go over RPC.
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

# An actor waits so long for an answer; then it looks whether to stop, and asks
# again.
TRY_S = 1.0
_HELLO_BYTES = 4096
_HELLO_S = 10.0


class Lost(ConnectionError):
  """The server does not know this run of the actor any more."""


class Late(TimeoutError):
  """No answer yet. Ask again, with the same step."""


class Refused(ValueError):
  """The server will not serve this actor."""


class UnknownRun(KeyError):
  """Raised by the server for an actor that has to say hello first."""


def host() -> str:
  """Equal for processes that can share memory and a socket by its name."""
  with contextlib.suppress(OSError):
    boot = pathlib.Path('/proc/sys/kernel/random/boot_id').read_text().strip()
    return f'{boot} {os.stat("/proc/self/ns/net").st_ino}'
  return socket.gethostname()


# The actor's ends.


class SharedMemoryLink:
  """A frame in memory that is shared with the server.

  Attributes:
    frame: of this actor.
  """

  def __init__(
    self, name: str, hello: dict[str, Any], shapes: frames.FrameLayout
  ):
    """Connects.

    Args:
      name: of the server's listener.
      hello: see `sessions.Hello`.
      shapes: of the frame.

    Raises:
      Lost: no server listens there, or it lets nobody in.
      Refused: with the server's reason.
    """
    self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    it = 'does not listen'
    try:
      self._socket.settimeout(_HELLO_S)
      self._socket.connect('\0' + name)
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
    """Returns when the frame holds the answer to request `step`.

    Raises:
      Late: there was none for a second.
      Lost: the server is gone.
    """
    try:
      self._socket.send(step.to_bytes(8, 'little'))
      while True:
        packet = self._socket.recv(8)
        if not packet:
          raise Lost('The inference server is gone.')
        # A request that was sent twice is answered twice; skip the second.
        if int.from_bytes(packet, 'little') == step:
          return
    except BlockingIOError:  # The timeout.
      raise Late(f'no answer to request {step} in {TRY_S:g} s') from None
    except OSError as e:
      raise Lost('The inference server is gone.') from e

  def close(self) -> None:
    self._socket.close()


class RpcLink:
  """A frame of the actor's own, whose bytes go over RPC.

  Attributes:
    frame: of this actor.
  """

  def __init__(
    self, server: Any, hello: dict[str, Any], shapes: frames.FrameLayout
  ):
    """Says hello.

    Args:
      server: client of the server.
      hello: see `sessions.Hello`.
      shapes: of the frame.

    Raises:
      Lost: the server does not answer.
      Refused: with the server's reason.
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
    """As `SharedMemoryLink.exchange`."""
    try:
      answer = self._server.act(*self._key, bytes(self.frame.request_bytes))
    except rpc.Unavailable as e:
      # The call may have run. The server keeps the answer to a step, so the
      # same step can be sent again.
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
    """Nothing is held."""


Link = SharedMemoryLink | RpcLink


# The server's side.


class Listener:
  """Accepts actors of the same host.

  Attributes:
    name: of its socket.
  """

  def __init__(self):
    self.name = f'murmuration-inference-{os.getpid()}-{os.urandom(8).hex()}'
    self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # A name in the abstract namespace: no file.
    self._socket.bind('\0' + self.name)
    self._socket.listen(1024)
    self._socket.setblocking(False)

  def fileno(self) -> int:
    return self._socket.fileno()

  def accept(self) -> Connection | None:
    """The next connection; None if it was closed, or is of another user."""
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
  """The server's end of a `SharedMemoryLink`.

  Attributes:
    index: of the actor; None until it was admitted.
  """

  def __init__(self, connection: socket.socket):
    self._socket = connection
    self._socket.setblocking(False)
    self.index: int | None = None

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
    """Gives the actor a frame; returns it."""
    fd = os.memfd_create('murmuration-inference')
    try:
      os.truncate(fd, shapes.nbytes)
      with contextlib.suppress(OSError):
        socket.send_fds(self._socket, [_packed(None)], [fd])
    finally:
      memory = _mapped(fd, shapes.nbytes)
    return frames.Frame(shapes, memory)

  def refuse(self, reason: str) -> None:
    """Says why there is none."""
    with contextlib.suppress(OSError):
      self._socket.send(_packed(reason))

  def answered(self, step: int) -> None:
    """Says that the frame holds the answer to request `step`."""
    # That the actor is gone is noticed when its connection ends.
    with contextlib.suppress(OSError):
      self._socket.send(step.to_bytes(8, 'little'))

  def close(self) -> None:
    self._socket.close()


def _packed(error: str | None) -> bytes:
  return json.dumps({'error': error}).encode()


def _mapped(fd: int, nbytes: int) -> mmap.mmap:
  """Maps the memory of a descriptor, which is closed."""
  try:
    return mmap.mmap(fd, nbytes)
  finally:
    os.close(fd)
