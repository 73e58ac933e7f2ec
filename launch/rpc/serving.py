"""A socket, its connections, and the threads that answer what comes in.

Threads wait together in one epoll, which hands each event to one of them and
then leaves that connection alone until the thread is done with it. So a call is
answered by the thread that received it; idle or slow connections cost a
descriptor and no thread; and there are no more threads than calls were under
way at one time.
"""

from __future__ import annotations

from collections.abc import Callable
import errno
import logging
import os
import resource
import select
import ssl
import threading
import time
from typing import Any

from launch.rpc import connection as connection_lib
from launch.rpc import sockets
from launch.rpc import tls

_logger = logging.getLogger(__name__)
_STOP_GRACE_S = 1.0
_LOOK_S = 2.0  # between two looks for those that are too slow
_ACCEPT_PAUSE_S = 0.1  # after one that failed


class Server:
  """Listens from the start; answers until `stop`."""

  def __init__(
    self,
    answer: Callable[[Any], list[Any]],
    address: str,
    max_threads: int,
    credentials: tls.Credentials | None = None,
  ):
    """Listens, and starts the first thread.

    Args:
      answer: makes the parts of an answer from a message; must not raise.
      address: see sockets.py.
      max_threads: how many calls are answered at the same time.
      credentials: for an address that others can reach.

    Raises:
      OSError: the address is in use.
    """
    if sockets.needs_certificate(address) and credentials is None:
      raise ValueError(f'{address} needs the certificates of its run.')
    self._answer = answer
    self._address = address
    self._max_threads = max_threads
    self._credentials = credentials
    self._listener = sockets.listen(address)
    self._poll = select.epoll()
    self._wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    self._poll.register(self._wakeup, select.EPOLLIN)
    self._poll.register(self._listener, select.EPOLLIN | select.EPOLLONESHOT)
    # Half of what this process may open; the node needs some itself.
    self._max_connections = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2
    self._connections: dict[int, connection_lib.Connection] = {}
    self._said: set[str] = set()
    self._looked = time.monotonic()
    self._lock = threading.Lock()
    self._idle = self._running = 0  # threads
    self._threads: list[threading.Thread] = []
    self._stopping = False
    with self._lock:
      self._start_thread()

  def stop(self) -> None:
    """Takes no more calls; waits a second for those that are under way."""
    with self._lock:
      self._stopping = True
      if self._running:  # else the last thread has closed it
        os.eventfd_write(self._wakeup, 1)
    deadline = time.monotonic() + _STOP_GRACE_S
    for thread in self._threads:
      thread.join(max(deadline - time.monotonic(), 0.0))
    sockets.close_listener(self._listener, self._address)
    for connection in list(self._connections.values()):
      connection.shut_down()
    # A call that never returns must not keep the node from ending: the last
    # thread closes the rest, whenever that is.

  def _start_thread(self) -> None:
    """With the lock held. RuntimeError: there can be no more threads."""
    thread = threading.Thread(
      target=self._work, name=f'rpc {self._address}', daemon=True
    )
    thread.start()  # counted only if it runs; it waits for the lock
    self._threads.append(thread)
    self._running += 1
    self._idle += 1  # until it takes its first event

  def _try_to_start_thread(self) -> None:
    try:
      self._start_thread()
    except RuntimeError as e:
      count = len(self._threads)
      self._say(f'answers {count} calls at a time, not more: {e}')

  def _work(self) -> None:
    try:
      self._answer_events()
    finally:
      with self._lock:
        self._running -= 1
        last = not self._running
      if last:
        for connection in list(self._connections.values()):
          connection.close()
        self._poll.close()
        os.close(self._wakeup)

  def _answer_events(self) -> None:
    """What each thread does."""
    while True:
      events = self._poll.poll(_LOOK_S, 1)
      if self._stopping:
        return
      if time.monotonic() - self._looked > _LOOK_S:
        self._end_slow()
      if not events:
        continue
      with self._lock:
        self._idle -= 1
      descriptor, _ = events[0]
      again: Any = None
      if descriptor == self._listener.fileno():
        self._accept()
        again, mask = self._listener, select.EPOLLIN
      elif descriptor != self._wakeup:
        again = self._connections[descriptor]
        mask = self._serve(again)
      with self._lock:
        self._idle += 1  # before anything more can come in
      if again is not None and mask:
        try:
          self._poll.modify(again, mask | select.EPOLLONESHOT)
        except (OSError, ValueError):
          pass  # closed by `stop`

  def _serve(self, connection: connection_lib.Connection) -> int:
    """Goes on with a connection as far as possible now.

    Returns:
      What to wait for on it; 0 if it is over.
    """
    try:
      message = connection.proceed()
      if message is not None:
        with self._lock:
          if (
            not self._idle
            and len(self._threads) < self._max_threads
            and not self._stopping
          ):
            self._try_to_start_thread()
        connection.answer(self._answer(message))
        del message
      return select.EPOLLOUT if connection.wants_to_send else select.EPOLLIN
    except EOFError:
      pass
    except (OSError, ValueError) as e:
      if isinstance(e, (ssl.SSLError, ValueError)):
        self._say(f'refused a connection: {e}')
    except Exception as e:  # the thread is to answer others
      self._say(f'ended a connection: {type(e).__name__}: {e}')
    self._connections.pop(connection.fileno(), None)
    connection.close()
    return 0

  def _accept(self) -> None:
    """Takes in all who wait."""
    while True:
      try:
        accepted, _ = self._listener.accept()
      except BlockingIOError:
        break
      except OSError as e:
        if e.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
          self._say(f'cannot take connections in: {e}')
          time.sleep(_ACCEPT_PAUSE_S)
        break
      connection: Any = None
      try:
        if len(self._connections) >= self._max_connections:
          raise sockets.Stranger(
            f'there are {self._max_connections} already, half of the files '
            'that a process may open (`ulimit -n`)'
          )
        connection = connection_lib.Connection(
          sockets.accepted(accepted, self._credentials)
        )
        self._connections[connection.fileno()] = connection
        self._poll.register(connection, select.EPOLLIN | select.EPOLLONESHOT)
      except (OSError, ValueError) as e:
        self._say(f'refused a connection: {e}')
        accepted.close()
        if connection is not None:
          self._connections.pop(connection.fileno(), None)
          connection.close()

  def _end_slow(self) -> None:
    """Ends connections whose message, or whose reading, takes too long."""
    with self._lock:
      now = time.monotonic()
      if now - self._looked <= _LOOK_S:
        return  # another thread has just done it
      self._looked = now
    for connection in list(self._connections.values()):
      late_at = connection.late_at
      if late_at is not None and now > late_at:
        self._say('ended a connection: the other end is too slow')
        connection.shut_down()

  def _say(self, what: str) -> None:
    """Logs each thing once, however often it happens."""
    if what not in self._said and len(self._said) < 20:
      self._said.add(what)
      _logger.warning('The server at %s %s', self._address, what)
