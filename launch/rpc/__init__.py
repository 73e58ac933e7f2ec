"""Remote calls: Courier with a codec and a deadline.

Plain Courier hangs for ever when an argument holds a NumPy array or scalar, and
when the server is gone. Here every call is one bytes argument to one Courier
method, has a deadline, and reconnects at once to a server that came back.

Courier listens on all interfaces without authentication and unpickles what it
is sent: run on a machine and network that you trust.
"""

from collections.abc import Callable
import contextlib
import difflib
import functools
import itertools
import logging
import random
import threading
import time
import traceback
from typing import Any, TypeVar

import courier
import launchpad as lp
from launchpad import address as lp_address
from launchpad.launch import worker_manager
from launchpad.nodes import base

from launch.rpc import channel as channel_lib
from launch.rpc import codec

_OK, _ERROR = 0, 1
_CONNECT_TIMEOUT_S = 1.0
_PROBE_PERIOD_S = (0.02, 0.2)
_STOP_GRACE_S = 1.0

T = TypeVar('T')


class Unavailable(ConnectionError):
  """The server could not be reached, or did not answer before the deadline.

  Attributes:
    address: host:port of the server.
    method: the method that was called.
    delivered: False if the call surely never reached the server; True if the
      server may have run it.
  """

  def __init__(self, address: str, method: str, delivered: bool, why: str):
    super().__init__(address, method, delivered, why)
    self.address = address
    self.method = method
    self.delivered = delivered
    self.why = why

  def __str__(self) -> str:
    return f'{self.method}() at {self.address}: {self.why}'


class RemoteError(RuntimeError):
  """The method raised on the server.

  Attributes:
    type_name: class name of the exception there.
    message: its message.
    remote_traceback: its traceback, as text.
  """

  def __init__(self, type_name: str, message: str, remote_traceback: str):
    super().__init__(type_name, message, remote_traceback)
    self.type_name = type_name
    self.message = message
    self.remote_traceback = remote_traceback

  def __str__(self) -> str:
    return (
      f'{self.type_name}: {self.message}\n'
      f'The server raised it here:\n{self.remote_traceback}'
    )


class Client:
  """Calls the methods of a served object: `client.method(*args, **kwargs)`.

  Safe to share between threads, to pickle, and to make before the server is up.
  A call waits for the server to come up, but never longer than the deadline,
  and not at all once the program is stopping. It runs at most once on the
  server: a call whose connection breaks midway is not repeated.

  Every call returns what the method returned (arrays read-only) and raises
  `RemoteError` if it raised, `Unavailable` if there was no answer in time, and
  `TypeError` if an argument cannot cross the wire.
  """

  def __init__(self, address: str, timeout_s: float = 10.0):
    """Makes a client; connects at the first call.

    Args:
      address: host:port.
      timeout_s: deadline of every call, in seconds.
    """
    if not timeout_s > 0:
      raise ValueError(f'timeout_s={timeout_s}: a call needs a deadline > 0.')
    self._address = address
    self._timeout_s = timeout_s
    self._lock = threading.Lock()
    self._channel: channel_lib.Channel | None = None
    # In a node, waits for a server that is gone end when the program stops.
    try:
      self._stop_event = worker_manager.get_worker_manager().stop_event()
    except RuntimeError:
      self._stop_event = threading.Event()

  @property
  def address(self) -> str:
    return self._address

  @property
  def timeout_s(self) -> float:
    return self._timeout_s

  def with_deadline(self, timeout_s: float) -> 'Client':
    """Returns a client of the same server with another deadline."""
    client = Client(self._address, timeout_s)
    client._stop_event = self._stop_event
    return client

  def __reduce__(self):
    return Client, (self._address, self._timeout_s)

  def __repr__(self) -> str:
    return f'rpc.Client({self._address!r}, timeout_s={self._timeout_s})'

  def __getattr__(self, method: str) -> Callable[..., Any]:
    if method.startswith('_'):
      raise AttributeError(method)
    return functools.partial(self._call, method)

  def _call(self, method: str, /, *args, **kwargs) -> Any:
    message = codec.encode((method, args, kwargs))
    deadline = time.monotonic() + self._timeout_s
    while True:
      channel = self._connect(method, deadline)
      left = max(deadline - time.monotonic(), 1e-3)
      try:
        answer = channel.call(message, left)
        break
      except channel_lib.Error as e:
        self._check_retry(channel, method, deadline, e.status)
    status, result = codec.decode(answer)
    if status == _ERROR:
      raise RemoteError(*result)
    return result

  def _check_retry(
    self,
    channel: channel_lib.Channel,
    method: str,
    deadline: float,
    status: Any,
  ) -> None:
    """Returns if the call may be sent again; raises Unavailable if not."""
    code, text = status.code(), status.message()
    if code.name == 'DEADLINE_EXCEEDED':
      raise Unavailable(
        self._address, method, True, f'no answer within {self._timeout_s:g} s'
      ) from None
    with self._lock:
      if self._channel is channel:
        self._channel = None
    if 'failed to connect' not in text:
      raise Unavailable(
        self._address, method, True, f'connection lost ({text})'
      ) from None
    if time.monotonic() >= deadline:
      raise Unavailable(
        self._address, method, False, f'what listens there is no server: {text}'
      ) from None
    time.sleep(_PROBE_PERIOD_S[0])

  def _connect(self, method: str, deadline: float) -> channel_lib.Channel:
    """Returns a channel to a server that accepts connections."""
    pause, longest = _PROBE_PERIOD_S
    while True:
      with self._lock:
        if self._channel:
          return self._channel
      left = deadline - time.monotonic()
      if channel_lib.accepts(
        self._address, min(max(left, 1e-3), _CONNECT_TIMEOUT_S)
      ):
        with self._lock:
          self._channel = self._channel or channel_lib.Channel(self._address)
          return self._channel
      left = deadline - time.monotonic()
      if left <= 0:
        raise Unavailable(
          self._address,
          method,
          False,
          f'nothing listens there (waited {self._timeout_s:g} s)',
        )
      if self._stop_event.wait(min(pause, left)):
        raise Unavailable(
          self._address,
          method,
          False,
          'nothing listens there, and the program is stopping',
        )
      pause = min(2 * pause, longest)


class Handle(base.Handle[Client]):
  """What other nodes hold of a `Node`; becomes a `Client` where they run."""

  def __init__(self, address: lp_address.Address, timeout_s: float):
    self._address = address
    self._timeout_s = timeout_s

  def dereference(self) -> Client:
    return Client(self._address.resolve(), self._timeout_s)


class Node(lp.CourierNode):
  """Serves every public method of an object, except `run`, over RPC.

  If the object has a `run` method, it is called while the object is served, and
  serving ends when it returns. Otherwise the object is served until the program
  stops. Handles inside a dataclass argument are not connected (Launchpad does
  not see them): pass them as arguments, or in lists, tuples or dicts.
  """

  def __init__(
    self,
    constructor: Callable[..., Any],
    *args,
    timeout_s: float = 10.0,
    thread_pool_size: int = 16,
    **kwargs,
  ):
    """Describes the node; nothing starts yet.

    Args:
      constructor: makes the object, in the node: constructor(*args, **kwargs).
      *args: arguments; handles become clients.
      timeout_s: deadline of every call that clients make, in seconds.
      thread_pool_size: how many calls are answered at the same time.
      **kwargs: keyword arguments; handles become clients.
    """
    super().__init__(constructor, *args, **kwargs)
    self._timeout_s = timeout_s
    self._thread_pool_size = thread_pool_size

  def create_handle(self) -> Handle:
    return self._track_handle(Handle(self._address, self._timeout_s))

  def run(self) -> None:
    # Launchpad keeps the instance; a restarted thread needs a new one.
    self._instance = None
    instance = self._construct_instance()
    address = self._address.resolve()
    with serve(instance, address, self._thread_pool_size):
      if self._should_run and hasattr(instance, 'run'):
        instance.run()
      else:
        lp.wait_for_stop()


@contextlib.contextmanager
def serve(instance: Any, address: str, thread_pool_size: int = 16):
  """Serves the public methods of an object while the context is open.

  Args:
    instance: the object.
    address: host:port; the port is listened on, on all interfaces.
    thread_pool_size: how many calls are answered at the same time.

  Yields:
    Nothing.

  Raises:
    OSError: the port is in use.
  """
  port = lp_address.get_port_from_address(address)
  server = courier.Server(port=port, thread_pool_size=thread_pool_size)
  server.Bind(channel_lib.METHOD, functools.partial(_answer, instance))
  try:
    server.Start()
  except channel_lib.Error as e:
    raise OSError(
      f'Cannot listen on port {port} ({e}). Another process probably uses it: '
      f'look with `ss -ltnp sport = :{port}`, end it, and start the run again.'
    ) from e
  try:
    yield
  finally:
    # A call that never returns must not keep the node from ending.
    thread = threading.Thread(target=_stop_server, args=(server,), daemon=True)
    thread.start()
    thread.join(_STOP_GRACE_S)


def _stop_server(server: courier.Server) -> None:
  server.Stop()
  server.Join()


def _answer(instance: Any, message: bytes) -> bytes:
  """Runs one call on the server."""
  try:
    method, args, kwargs = codec.decode(message)
    return codec.encode((_OK, _method(instance, method)(*args, **kwargs)))
  except BaseException as e:  # Whatever it is, the caller must hear of it.
    error = (type(e).__name__, str(e), traceback.format_exc())
    return codec.encode((_ERROR, error))


def _method(instance: Any, name: str) -> Callable[..., Any]:
  method = getattr(instance, name, None)
  if not name.startswith('_') and name != 'run' and callable(method):
    return method
  served = [
    x
    for x in dir(instance)
    if not x.startswith('_') and x != 'run' and callable(getattr(instance, x))
  ]
  near = difflib.get_close_matches(name, served, 3) or served
  raise AttributeError(
    f'{type(instance).__name__} does not serve a method {name!r}. '
    f'It serves {", ".join(near)}.'
  )


def retry(
  fn: Callable[[], T],
  connect_timeout_s: float = 60.0,
  *,
  first: float = 0.1,
  cap: float = 5.0,
  should_stop: Callable[[], bool] | None = None,
) -> T:
  """Calls until the server is there, with a pause that doubles.

  Args:
    fn: makes the call. It is repeated when it raises `Unavailable`, so it must
      bear being run twice.
    connect_timeout_s: how long to go on, in seconds.
    first: first pause, in seconds; doubles, with jitter.
    cap: longest pause, in seconds.
    should_stop: asked before every pause and ten times a second in it.

  Returns:
    What fn returned.

  Raises:
    Unavailable: the server was not there within connect_timeout_s, or
      should_stop() became true.
  """
  start = time.monotonic()
  pause = first
  for attempt in itertools.count(1):
    try:
      return fn()
    except Unavailable as e:
      end = time.monotonic() + pause * random.uniform(0.8, 1.2)
      waited = time.monotonic() - start
      if waited >= connect_timeout_s:
        why = f'{e.why} (gave up after {attempt} tries in {waited:.1f} s)'
        raise Unavailable(e.address, e.method, e.delivered, why) from e
      if attempt == 1:
        logging.getLogger(__name__).warning('%s; trying again', e)
      while (
        left := min(end, start + connect_timeout_s) - time.monotonic()
      ) > 0:
        if should_stop is not None and should_stop():
          raise
        time.sleep(min(left, 0.1))
    pause = min(2 * pause, cap)
  raise AssertionError('unreachable')
