"""Remote calls: a deadline each, at most once, and no pickles.

A call and its answer are a message each (codec.py). A connection carries one
call at a time and has a thread at the server, so a server has as many of both
as threads that call it at once. It answers only the methods that its object
lists in `serves`. Its address is one of

  unix:PATH         a socket in the file system, for processes of one machine.
                    Each end asks the kernel who the other is (SO_PEERCRED) and
                    takes its own user only.
  tls://HOST:PORT   between machines: TCP, with the run's certificate at both
                    ends (tls.py). HOST may be an IPv6 address.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import difflib
import errno
import functools
import logging
import os
import pathlib
import random
import select
import socket
import ssl
import struct
import textwrap
import threading
import time
import traceback
from typing import Any, TypeVar

import launchpad as lp
from launchpad import address as lp_address
from launchpad.nodes import base
import numpy as np

from murmuration.launch import pulse
from murmuration.launch.rpc import codec
from murmuration.launch.rpc import directory
from murmuration.launch.rpc import tls

_OK, _ERROR = 0, 1  # the first part of an answer
_CHUNK_BYTES = 1 << 16
_JOINED_BYTES = 1 << 15
_MAX_PIECES = 512  # of one system call; the kernel takes 1,024
_CONNECT_S = 1.0
_PROBE_S = (0.02, 0.2)  # between two tries to connect: the first, the longest
_STALL_S = 10.0  # without another byte of an answer that has begun to come
_READ_S = 0.1  # for an answer that has probably come
_PAUSE_S = (0.1, 5.0)  # of `retry`: the first, the longest
_STOP_GRACE_S = 1.0
# Anybody can begin a handshake: with more than this, the oldest is ended.
_MAX_HANDSHAKES = 64
_HANDSHAKE_S = 5.0
_ACCEPT_PAUSE_S = 0.1  # after a failed accept
_BACKLOG = 4096
_PATH_BYTES = 107  # of a socket's name in the kernel, less the zero at its end
_TIMEVAL = struct.Struct('2l')  # seconds, microseconds
_PEER = struct.Struct('3i')  # process, user, group
_UNIX, _TLS = 'unix:', 'tls://'
_TIMED_OUT = (TimeoutError, BlockingIOError)  # Python's and the kernel's

_logger = logging.getLogger(__name__)
# Not the global one, which an environment may draw from.
_random = random.Random()
T = TypeVar('T')


class Unavailable(ConnectionError):
  """The server could not be reached, or did not answer before the deadline."""

  def __init__(self, address: str, method: str, delivered: bool, why: str):
    super().__init__(address, method, delivered, why)
    self.address = address  # of the server, its name, or both
    self.method = method
    self.delivered = delivered  # False if it certainly never reached the server
    self.why = why

  def __str__(self) -> str:
    return f'{self.method}() at {self.address}: {self.why}'


class RemoteError(RuntimeError):
  """The method raised an exception of that type on the server."""

  def __init__(self, type_name: str, message: str, remote_traceback: str):
    super().__init__(type_name, message, remote_traceback)
    self.type_name = type_name
    self.message = message
    self.remote_traceback = remote_traceback

  def __str__(self) -> str:
    return (
      f'{self.type_name}: {self.message}\n'
      'The server raised it here:\n'
      + textwrap.indent(self.remote_traceback, '  ')
    )


# --- Messages and addresses ---------------------------------------------------


class _Connection:
  """One connection, at either end, for one message at a time."""

  def __init__(self, connection: socket.socket):
    self.socket = connection
    self.is_tls = isinstance(connection, ssl.SSLSocket)
    self._flags = 0 if self.is_tls else socket.MSG_WAITALL
    self._timeout_s = 0.0  # not set

  def limit(self, timeout_s: float) -> None:
    """Limits each system call that sends or receives."""
    if timeout_s == self._timeout_s:
      return
    self._timeout_s = timeout_s
    if self.is_tls:
      self.socket.settimeout(timeout_s)
      return
    # The kernel's own limit: for Python's, each would be two system calls.
    span = _TIMEVAL.pack(*divmod(max(int(1e6 * timeout_s), 1), 10**6))
    for side in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
      self.socket.setsockopt(socket.SOL_SOCKET, side, span)

  def send(self, parts: list[Any], deadline: float | None = None) -> None:
    """Sends a message, the whole before `deadline` of time.monotonic."""
    if self.is_tls or sum(map(len, parts)) <= _JOINED_BYTES:
      parts = [b''.join(parts)]
    while True:
      if len(parts) == 1:
        sent = self.socket.send(parts[0])
      else:
        sent = self.socket.sendmsg(parts[:_MAX_PIECES])
      done = 0
      while done < len(parts) and sent >= len(parts[done]):
        sent -= len(parts[done])
        done += 1
      parts = parts[done:]
      if not parts:
        return
      parts[0] = memoryview(parts[0])[sent:]
      if deadline is not None:
        left = deadline - time.monotonic()
        if left <= 0:
          raise TimeoutError
        self.limit(left)

  def receive(self, deadline: float | None = None) -> Any:
    """Receives a message.

    Its first bytes have to be here before `deadline`. The rest may come later,
    for as long as some do within _STALL_S.

    Raises:
      EOFError: the other end has closed the connection.
      ValueError: what came is no message.
      OSError: nothing came in time, or the connection broke.
    """
    if deadline is not None:
      # Sending, or the answers of other servers, may have taken most of it.
      left = deadline - time.monotonic()
      if left < self._timeout_s / 2:
        self.limit(max(left, 1e-3))
    head = b''
    while len(head) < codec.HEADER_BYTES:
      chunk = self.socket.recv(_CHUNK_BYTES)
      if not chunk:
        raise EOFError('the other end closed the connection')
      head += chunk
    size = codec.message_size(head)
    if len(head) >= size:
      return head  # `decode` refuses one that is too long
    # Pages of it that nothing was written to take no memory, so a claim that is
    # not kept costs nothing.
    message = np.empty(size, np.uint8)
    view, filled = message.data, len(head)
    view[:filled] = head
    if deadline is not None and self._timeout_s < _STALL_S:
      self.limit(_STALL_S)
    while filled < size:
      count = self.socket.recv_into(view[filled:], 0, self._flags)
      if not count:
        raise EOFError('the other end closed the connection')
      filled += count
    return message

  def is_stale(self) -> bool:
    """Whether one that carries no call has come to its end."""
    if not self.is_tls:
      return False  # sending will tell, and nothing is lost
    poll = select.poll()
    poll.register(self.socket, select.POLLIN)
    return bool(poll.poll(0))

  def shut_down(self, how: int) -> None:
    """Ends it while a thread uses it, which then closes it."""
    with contextlib.suppress(OSError):  # the other end was faster
      # Not SSLSocket's own: the thread would go on with it without TLS.
      socket.socket.shutdown(self.socket, how)


def _connect(
  address: str, timeout_s: float, credentials: tls.Credentials | None
) -> _Connection:
  """Raises OSError where there is no server of this run."""
  with contextlib.ExitStack() as on_error:
    if address.startswith(_UNIX):
      made = on_error.enter_context(socket.socket(socket.AF_UNIX))
      made.settimeout(timeout_s)
      with _short(address) as name:
        made.connect(name)
      _check_user(made)
      made.settimeout(None)
    else:
      host, port, held = _far(address, credentials)
      made = socket.create_connection((host, port), timeout_s)
      on_error.enter_context(made)
      tls.tune(made)
      made = held.client_context().wrap_socket(made)
    on_error.pop_all()
  return _Connection(made)


def _listen(address: str, credentials: tls.Credentials | None) -> socket.socket:
  """Raises OSError if it is in use, ValueError if it is no address."""
  try:
    if address.startswith(_UNIX):
      return _listen_unix(address)
    host, port, _ = _far(address, credentials)
    family = socket.AF_INET6 if ':' in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=_BACKLOG)
  except OSError as e:
    said = f'Cannot listen at {address} ({e}).'
    if e.errno == errno.EADDRINUSE:
      said += ' Another process probably uses it: `ss -lnp` shows which.'
    raise OSError(e.errno, said) from e


def _listen_unix(address: str) -> socket.socket:
  path = pathlib.Path(address.removeprefix(_UNIX))
  with contextlib.ExitStack() as on_error, _short(address) as name:
    listener = on_error.enter_context(socket.socket(socket.AF_UNIX))
    try:
      listener.bind(name)
    except OSError:
      # What a server that was killed has left. One that lives answers.
      with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(_CONNECT_S)
        if not path.is_socket() or probe.connect_ex(name) == 0:
          raise
      path.unlink()
      listener.bind(name)
    listener.listen(_BACKLOG)
    on_error.pop_all()
  return listener


def _far(
  address: str, credentials: tls.Credentials | None
) -> tuple[str, int, tls.Credentials]:
  """Host, port and credentials."""
  host, _, port = address.removeprefix(_TLS).rpartition(':')
  if not address.startswith(_TLS) or not host or not port.isdigit():
    raise ValueError(
      f'{address!r} is no address of a server: it is unix:PATH or '
      'tls://HOST:PORT.'
    )
  if credentials is None:
    raise ValueError(f'{address} needs the certificates of its run.')
  return host.removeprefix('[').removesuffix(']'), int(port), credentials


def _check_user(connection: socket.socket) -> None:
  """Raises PermissionError unless the other end runs as this user."""
  _, user, _ = _PEER.unpack(
    connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
  )
  if user != os.geteuid():
    raise PermissionError(f'user {user} is not {os.geteuid()}, who runs this')


@contextlib.contextmanager
def _short(address: str) -> Iterator[str]:
  """A name of a socket that fits into the kernel's 108 bytes."""
  path = pathlib.Path(address.removeprefix(_UNIX))
  if len(os.fsencode(path)) <= _PATH_BYTES:
    yield str(path)
    return
  parent = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
  try:
    yield f'/proc/self/fd/{parent}/{path.name}'
  finally:
    os.close(parent)


# --- The end that calls -------------------------------------------------------


class Client:
  """Calls the methods of a served object: `client.method(*args, **kwargs)`.

  Safe to share between threads, to pickle, and to make before the server is up.
  A call waits for the server to come up, but never longer than the deadline,
  and not at all once the program is stopping. It runs at most once on the
  server: a call whose connection breaks midway is not repeated. An answer that
  has begun to come by the deadline is waited for as long as bytes of it come.

  Every call returns what the method returned (arrays read-only) and raises
  `RemoteError` if it raised, `Unavailable` if there was no answer in time, and
  `TypeError` if an argument cannot cross the wire.
  """

  def __init__(self, address: str | directory.Name, timeout_s: float = 10.0):
    """Connects at the first call; each call has `timeout_s`.

    `address` is unix:PATH, or a name, which is looked up at each connection.
    """
    if not 0 < timeout_s <= threading.TIMEOUT_MAX:
      raise ValueError(
        f'timeout_s={timeout_s}: a call needs a deadline > 0, and at most '
        f'{threading.TIMEOUT_MAX:.0f} s.'
      )
    self._server = address
    self._found = ''  # where a server with a name was last
    self.timeout_s = timeout_s
    self._idle: list[_Connection] = []  # that carry no call now
    self._pid = os.getpid()
    # In a node, waits for a server that is gone end when the program stops.
    self._stop_event = directory.stop_event()

  @property
  def address(self) -> str:
    """For messages: where it is; or the name of a server, and where it was."""
    if isinstance(self._server, str):
      return self._server
    name = self._server.name
    return f'{name} ({self._found})' if self._found else name

  def with_deadline(self, timeout_s: float) -> Client:
    """Returns a client of the same server with another deadline."""
    client = Client(self._server, timeout_s)
    client._stop_event, client._idle = self._stop_event, self._idle
    client._found, client._pid = self._found, self._pid
    return client

  def __reduce__(self):
    return Client, (self._server, self.timeout_s)

  def __getattr__(self, method: str) -> Callable[..., Any]:
    if method.startswith('_'):
      raise AttributeError(method)
    return functools.partial(self._call, method)

  def _call(self, method: str, /, *args, **kwargs) -> Any:
    return self._finish(*self._begin(method, args, kwargs))

  def _begin(
    self, method: str, args: Sequence[Any], kwargs: Any, waited_s: float = 0.0
  ) -> tuple[str, _Connection, float]:
    """Sends a call; returns it, its connection and its deadline.

    `waited_s` have been waited for other servers before.
    """
    parts = codec.encode_parts([method, list(args), kwargs])
    deadline = time.monotonic() + self.timeout_s
    # Even then there is time to connect: a server far away may be there.
    least_s = min(_CONNECT_S, self.timeout_s)
    there = max(deadline - waited_s, time.monotonic() + least_s)
    while True:
      connection, is_new = self._connection(method, there)
      left = self.timeout_s
      if is_new:  # Some of it may be over.
        left = max(deadline - time.monotonic(), 1e-3)
      try:
        connection.limit(left)
        connection.send(parts, deadline)
        return method, connection, deadline
      except _TIMED_OUT:
        why = f'no answer within {self.timeout_s:g} s'
        raise self._unavailable(method, True, why) from None
      except OSError as e:  # the server surely has not received the whole call
        # An old connection of a server that was started again may be sent to
        # once more; a new one that breaks at once is given time.
        if time.monotonic() >= there:
          why = f'the connection was refused ({e})'
          raise self._unavailable(method, False, why) from None
        if is_new:
          time.sleep(_PROBE_S[0])

  def _finish(
    self, method: str, connection: _Connection, deadline: float
  ) -> Any:
    """The result of a call that was sent."""
    try:
      status, result = codec.decode(connection.receive(deadline))
    except _TIMED_OUT:
      why = f'no whole answer within {self.timeout_s:g} s'
      raise self._unavailable(method, True, why) from None
    except (OSError, EOFError) as e:
      why = f'connection lost ({e})'
      raise self._unavailable(method, True, why) from None
    except (ValueError, TypeError) as e:
      why = f'what listens there is no server: {e}'
      raise self._unavailable(method, True, why) from None
    self._idle.append(connection)
    if status == _ERROR:
      raise RemoteError(*result)
    return result

  def _unavailable(self, method: str, delivered: bool, why: str) -> Unavailable:
    return Unavailable(self.address, method, delivered, why)

  def _connection(
    self, method: str, deadline: float
  ) -> tuple[_Connection, bool]:
    """Returns a connection to the server, and whether it is a new one."""
    if self._pid != os.getpid():  # those from before a fork are the parent's
      self._idle, self._pid = [], os.getpid()
    while self._idle:
      try:
        connection = self._idle.pop()
      except IndexError:  # another thread was faster
        break
      if not connection.is_stale():
        return connection, False
    pause, longest = _PROBE_S
    begin = time.monotonic()
    while True:
      left = max(deadline - time.monotonic(), 1e-3)
      state = 'it has not started'
      try:
        # Looked up every time: the server may come back elsewhere.
        address, credentials = self._find(left)
        if address is not None:
          timeout_s = min(left, _CONNECT_S)
          return _connect(address, timeout_s, credentials), True
      except directory.Unknown as e:
        state = str(e)
      except (ConnectionRefusedError, FileNotFoundError):
        state = 'nothing listens there'
      except OSError as e:  # somebody may be there, and not let this in
        state = f'there is no connection ({e})'
      left = deadline - time.monotonic()
      if left <= 0:
        why = f'{state} (waited {time.monotonic() - begin:.1f} s)'
        raise self._unavailable(method, False, why)
      pulse.beat()  # of several calls, each may wait a second more
      if self._stop_event.wait(min(pause, left)):
        why = f'{state}, and the program is stopping'
        raise self._unavailable(method, False, why)
      pause = min(2 * pause, longest)

  def _find(self, timeout_s: float) -> tuple[str | None, Any]:
    """The server's address, if it has one, and the run's credentials."""
    server = self._server
    if isinstance(server, str):
      return server, None
    found = server.find(timeout_s)
    if found is None:
      return None, None
    # One of this process has both its addresses; the first is the near one.
    self._found = found = found.split(f' {_TLS}')[0]
    return found, server.directory.credentials


def together(calls: Sequence[tuple[Any, str, Sequence[Any]]]) -> list[Any]:
  """Makes calls at the same time: all are sent before an answer is awaited.

  Servers that are away are waited for from the beginning, not one after the
  other.

  Args:
    calls: client, method and arguments of each. An object that is not a
      `Client` is called directly, before any answer is awaited.

  Returns:
    In their order, the result of each, or its `Unavailable` or `RemoteError`.
  """
  found: list[Any] = [None] * len(calls)
  sent: dict[int, tuple[str, _Connection, float]] = {}
  begin = time.monotonic()
  # Those without a connection last: they may wait for a server that is away.
  numbers = range(len(calls))
  for i in sorted(numbers, key=lambda i: not getattr(calls[i][0], '_idle', 1)):
    client, method, args = calls[i]
    try:
      if isinstance(client, Client):
        waited_s = time.monotonic() - begin
        sent[i] = client._begin(method, args, {}, waited_s)
      else:
        found[i] = getattr(client, method)(*args)
    except (Unavailable, RemoteError) as e:
      found[i] = e
  for i, (method, connection, deadline) in sent.items():
    # Answers came in while a server that is away was waited for.
    deadline = max(deadline, time.monotonic() + _READ_S)
    try:
      found[i] = calls[i][0]._finish(method, connection, deadline)
    except (Unavailable, RemoteError) as e:
      found[i] = e
  return found


def retry(
  fn: Callable[[], T],
  connect_timeout_s: float = 60.0,
  *,
  should_stop: Callable[[], bool] | None = None,
) -> T:
  """Calls until the server is there, with a pause that doubles.

  Args:
    fn: makes the call. It is repeated when it raises `Unavailable`, so it must
      bear being run twice.
    connect_timeout_s: how long to go on, in seconds.
    should_stop: asked before every pause and ten times a second in it.

  Raises:
    Unavailable: the server was not there within connect_timeout_s, or
      should_stop() became true.
  """
  start = time.monotonic()
  pause, longest = _PAUSE_S
  while True:
    try:
      return fn()
    except Unavailable as e:
      now = time.monotonic()
      if now - start >= connect_timeout_s:
        why = f'{e.why} (gave up after {now - start:.1f} s)'
        raise Unavailable(e.address, e.method, e.delivered, why) from e
      if pause == _PAUSE_S[0]:
        _logger.warning('%s; trying again', e)
      end = min(
        now + pause * _random.uniform(0.8, 1.2), start + connect_timeout_s
      )
      while (left := end - time.monotonic()) > 0:
        if should_stop is not None and should_stop():
          raise
        pulse.waits(str(e))
        time.sleep(min(left, 0.1))
    pause = min(2 * pause, longest)


# --- The end that is called ---------------------------------------------------


@contextlib.contextmanager
def serve(
  instance: Any, address: str, credentials: tls.Credentials | None = None
) -> Iterator[None]:
  """Serves the methods that an object lists while the context is open.

  Args:
    instance: the object. Its attribute `serves` holds the names of the methods
      that clients may call, and of no others.
    address: unix:PATH, tls://HOST:PORT, or both, separated by a space.
    credentials: of the run, for an address that other machines can reach.

  Raises:
    OSError: the address is in use.
    TypeError: a name in `serves` is not that of a public method.
  """
  methods = _methods(instance)
  answer = functools.partial(_answer, type(instance).__name__, methods)
  with contextlib.ExitStack() as servers:
    for one in address.replace(f' {_TLS}', f'\0{_TLS}').split('\0'):
      servers.callback(_Server(answer, one, credentials).stop)
    yield


def _methods(instance: Any) -> dict[str, Callable[..., Any]]:
  names = getattr(instance, 'serves', ())
  methods: dict[str, Any] = {
    name: getattr(instance, name, None) for name in names
  }
  for name, method in methods.items():
    if name.startswith('_') or name == 'run' or not callable(method):
      raise TypeError(
        f'{type(instance).__name__}.serves holds {name!r}, which is no public '
        'method that others can call.'
      )
  return methods


def _answer(
  owner: str, methods: Mapping[str, Callable[..., Any]], message: Any
) -> list[Any]:
  """Runs one call. Returns the parts of the encoded answer."""
  method, args, kwargs = codec.decode(message)
  try:
    if method not in methods:
      near = difflib.get_close_matches(str(method), methods, 3) or methods
      raise AttributeError(
        f'{owner} does not serve a method {method!r}. It serves '
        f'{", ".join(near) or "none: name them in its attribute `serves`"}.'
      )
    return codec.encode_parts([_OK, methods[method](*args, **kwargs)])
  except BaseException as e:  # every error is sent to the caller
    error = [type(e).__name__, str(e), traceback.format_exc()]
    # A text may hold lone surrogates, for instance from a file's name.
    sent = [text.encode(errors='replace').decode() for text in error]
    return codec.encode_parts([_ERROR, sent])


class _Server:
  """Listens from the start; answers until `stop`."""

  def __init__(
    self,
    answer: Callable[[Any], list[Any]],
    address: str,
    credentials: tls.Credentials | None,
  ):
    self._answer, self._address = answer, address
    self._credentials = credentials
    self._listener = _listen(address, credentials)
    self._threads: dict[_Connection, threading.Thread] = {}
    self._in_handshake: dict[_Connection, None] = {}  # the oldest first
    self._lock = threading.Lock()  # of both
    self._said: set[str] = set()
    self._stopping = False
    self._accepts = threading.Thread(target=self._accept, daemon=True)
    self._accepts.start()

  def stop(self) -> None:
    """Accepts no more calls; waits up to a second for those in progress."""
    self._stopping = True
    if self._address.startswith(_UNIX):
      path = pathlib.Path(self._address.removeprefix(_UNIX))
      path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
      self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread
    self._accepts.join()
    self._listener.close()
    with self._lock:
      threads = dict(self._threads)
    for connection in threads:
      connection.shut_down(socket.SHUT_RD)
    deadline = time.monotonic() + _STOP_GRACE_S
    for thread in threads.values():
      thread.join(max(deadline - time.monotonic(), 0.0))
    # A call that never returns does not keep the node from ending.
    for connection in threads:
      connection.shut_down(socket.SHUT_RDWR)

  def _accept(self) -> None:
    while not self._stopping:
      try:
        accepted, _ = self._listener.accept()
      except OSError as e:
        if not self._stopping:  # no more files, for instance
          self._say('cannot take a connection in', e)
          time.sleep(_ACCEPT_PAUSE_S)
        continue
      try:
        self._take_in(accepted)
      except (OSError, ValueError, RuntimeError) as e:  # or no more threads
        self._say('refused a connection', e)

  def _take_in(self, accepted: socket.socket) -> None:
    with contextlib.ExitStack() as on_error:
      on_error.enter_context(accepted)
      if accepted.family == socket.AF_UNIX:
        _check_user(accepted)
      else:
        tls.tune(accepted)
        assert self._credentials is not None
        accepted = self._credentials.server_context().wrap_socket(
          accepted, server_side=True, do_handshake_on_connect=False
        )
        on_error.enter_context(accepted)
      connection = _Connection(accepted)
      thread = threading.Thread(
        target=self._serve, args=(connection,), daemon=True
      )
      with self._lock:
        self._threads[connection] = thread
        if connection.is_tls:
          self._in_handshake[connection] = None
        if len(self._in_handshake) > _MAX_HANDSHAKES:
          oldest = next(iter(self._in_handshake))
          del self._in_handshake[oldest]
          oldest.shut_down(socket.SHUT_RDWR)
      on_error.callback(self._forget, connection)
      thread.start()
      on_error.pop_all()

  def _serve(self, connection: _Connection) -> None:
    try:
      if connection.is_tls:
        connection.socket.settimeout(_HANDSHAKE_S)
        connection.socket.do_handshake()  # type: ignore[attr-defined]
        connection.socket.settimeout(None)
        with self._lock:
          self._in_handshake.pop(connection, None)
      while True:
        message = connection.receive()
        parts = self._answer(message)
        connection.send(parts)
        del message, parts  # while idle, it keeps no array alive
    except EOFError:
      pass
    except (ssl.SSLError, TimeoutError, ValueError, TypeError) as e:
      self._say('refused a connection', e)
    except OSError:
      pass  # it broke
    except Exception as e:
      self._say('ended a connection', e)
    finally:
      self._forget(connection)
      connection.socket.close()

  def _forget(self, connection: _Connection) -> None:
    with self._lock:
      self._threads.pop(connection, None)
      self._in_handshake.pop(connection, None)

  def _say(self, what: str, error: Exception) -> None:
    """Logs the first error of each kind."""
    kind = type(error).__name__
    if kind not in self._said:
      self._said.add(kind)
      _logger.warning(
        'The server at %s %s: %s: %s', self._address, what, kind, error
      )


# --- In a program of Launchpad ------------------------------------------------


class Handle(base.Handle[Client]):
  """A reference to a `Node`; becomes a `Client` in the node that holds it."""

  def __init__(self, address: lp_address.Address, timeout_s: float):
    self._address = address
    self._timeout_s = timeout_s

  def dereference(self) -> Client:
    return Client(directory.bound_to(self._address), self._timeout_s)


class Node(lp.CourierNode):
  """Serves the methods of an object that its attribute `serves` lists.

  If the object has a `run` method, it is called while the object is served, and
  serving ends when it returns. Otherwise the object is served until the program
  stops. Handles inside a dataclass argument are not connected (Launchpad does
  not see them): pass them as arguments, or in lists, tuples or dicts. An array
  that a method returns is sent without a copy, and must not change any more.
  """

  def __init__(
    self,
    constructor: Callable[..., Any],
    *args,
    timeout_s: float = 10.0,
    **kwargs,
  ):
    """Describes the node; nothing starts yet.

    Args:
      constructor: makes the object, in the node.
      *args: of the constructor, as **kwargs; handles become clients.
      timeout_s: deadline of every call that clients make, in seconds.
      **kwargs: see *args.
    """
    super().__init__(constructor, *args, **kwargs)
    self._timeout_s = timeout_s

  def create_handle(self) -> Handle:
    return self._track_handle(Handle(self._address, self._timeout_s))

  def run(self) -> None:
    # Launchpad keeps the instance; a restarted thread needs a new one.
    self._instance = None
    instance = self._construct_instance()
    name = directory.bound_to(self._address)
    with serve(instance, name.build(), name.directory.credentials):
      if self._should_run and hasattr(instance, 'run'):
        instance.run()
      else:
        lp.wait_for_stop()
