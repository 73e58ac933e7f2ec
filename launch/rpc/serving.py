"""A listening socket, its connections, and the threads that answer calls.

All threads wait on one epoll instance. It hands each event to one of them, and
reports nothing more of that connection until the thread has finished with it
(EPOLLONESHOT). So the thread that receives a call also answers it, idle and
slow connections occupy no thread, and there is at most one thread more than
there were concurrent calls.

Anybody can begin a handshake, and only the run's own can finish one. So those
under way are counted apart, and with too many the oldest is ended: strangers
take no room from the run's nodes, which need milliseconds for theirs.
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

from murmuration.launch.rpc import connection as connection_lib
from murmuration.launch.rpc import sockets
from murmuration.launch.rpc import tls

_logger = logging.getLogger(__name__)
_STOP_GRACE_S = 1.0
_LOOK_S = 2.0  # between two searches for slow connections
_ACCEPT_PAUSE_S = 0.1  # after a failed accept


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
      answer: maps a message to the parts of its answer; must not raise.
      address: see sockets.py.
      max_threads: maximum number of concurrent calls.
      credentials: for an address that other machines can reach.

    Raises:
      OSError: the address is in use.
      ValueError: the address needs credentials.
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
    # Half of this process's file descriptors; the node needs some too.
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    self._max_connections = files // 2
    self._max_handshakes = max(files // 8, 1)  # besides
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
    """Accepts no more calls; waits up to a second for those in progress."""
    with self._lock:
      self._stopping = True
      if self._running:  # else the last thread has closed the eventfd
        os.eventfd_write(self._wakeup, 1)
    deadline = time.monotonic() + _STOP_GRACE_S
    for thread in self._threads:
      thread.join(max(deadline - time.monotonic(), 0.0))
    sockets.close_listener(self._listener, self._address)
    for connection in list(self._connections.values()):
      connection.shut_down()
    # A call that never returns must not keep the node from ending, so the last
    # thread to finish closes everything else.

  def _start_thread(self) -> None:
    """Needs the lock. Raises RuntimeError if no thread can be started."""
    thread = threading.Thread(
      target=self._work, name=f'rpc {self._address}', daemon=True
    )
    thread.start()  # may raise; the thread itself first waits for the lock
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
        self._idle += 1  # before the connection can cause another event
      if again is not None and mask:
        try:
          self._poll.modify(again, mask | select.EPOLLONESHOT)
        except (OSError, ValueError):
          pass  # closed by `stop`

  def _serve(self, connection: connection_lib.Connection) -> int:
    """Processes a connection as far as possible without blocking.

    Returns the epoll events to wait for next; 0 if the connection is closed.
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
    except Exception as e:  # the thread must go on with other connections
      self._say(f'ended a connection: {type(e).__name__}: {e}')
    self._connections.pop(connection.fileno(), None)
    connection.close()
    return 0

  def _accept(self) -> None:
    """Accepts one connection.

    One at a time: what `_make_room` has ended is closed before the next.
    """
    try:
      accepted, _ = self._listener.accept()
    except BlockingIOError:
      return
    except OSError as e:
      if e.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
        self._say(f'cannot take connections in: {e}')
        time.sleep(_ACCEPT_PAUSE_S)
      return
    connection: Any = None
    try:
      self._make_room()
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

  def _make_room(self) -> None:
    """Raises Stranger if there is none for one more."""
    if len(self._connections) < self._max_handshakes:
      return  # the share of both is larger
    connections = list(self._connections.values())  # the oldest first
    if sum(one.is_shaken for one in connections) >= self._max_connections:
      raise sockets.Stranger(
        f'there are {self._max_connections} already, half of the files that a '
        'process may open (`ulimit -n`)'
      )
    waiting = [one for one in connections if one.is_in_handshake]
    if len(waiting) >= self._max_handshakes:
      self._say(
        f'ended a connection: {self._max_handshakes} others have not shown a '
        'certificate either, and it was the first of them'
      )
      waiting[0].shut_down()

  def _end_slow(self) -> None:
    """Ends connections that take too long to send or receive a message."""
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
    """Logs each text once, and at most 20 texts."""
    if what not in self._said and len(self._said) < 20:
      self._said.add(what)
      _logger.warning('The server at %s %s', self._address, what)
