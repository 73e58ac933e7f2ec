"""The end of a remote call that answers, as a node and without one."""

from collections.abc import Callable
import contextlib
import difflib
import functools
import threading
import traceback
from typing import Any

import courier
import launchpad as lp
from launchpad import address as lp_address
from launchpad.nodes import base

from launch.rpc import channel as channel_lib
from launch.rpc import client
from launch.rpc import codec
from launch.rpc import directory

_STOP_GRACE_S = 1.0


class Handle(base.Handle[client.Client]):
  """What other nodes hold of a `Node`; becomes a `Client` where they run."""

  def __init__(self, address: lp_address.Address, timeout_s: float):
    self._address = address
    self._timeout_s = timeout_s

  def dereference(self) -> client.Client:
    return client.Client(directory.bound_to(self._address), self._timeout_s)


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
    return codec.encode(
      (channel_lib.OK, _method(instance, method)(*args, **kwargs))
    )
  except BaseException as e:  # Whatever it is, the caller must hear of it.
    error = (type(e).__name__, str(e), traceback.format_exc())
    return codec.encode((channel_lib.ERROR, error))


def _method(instance: Any, name: str) -> Callable[..., Any]:
  method = getattr(instance, name, None)
  if not name.startswith('_') and name != 'run' and callable(method):
    return method
  served = [
    x
    for x in dir(instance)
    if not x.startswith('_')
    and x != 'run'
    and callable(getattr(instance, x, None))
  ]
  near = difflib.get_close_matches(name, served, 3) or served
  raise AttributeError(
    f'{type(instance).__name__} does not serve a method {name!r}. '
    f'It serves {", ".join(near)}.'
  )
