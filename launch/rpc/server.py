"""The server of remote calls: `Node` in a program, `serve` outside one."""

from collections.abc import Callable, Iterator, Mapping
import contextlib
import difflib
import functools
import traceback
from typing import Any

import launchpad as lp
from launchpad import address as lp_address
from launchpad.nodes import base

from murmuration.launch.rpc import channel
from murmuration.launch.rpc import client
from murmuration.launch.rpc import codec
from murmuration.launch.rpc import directory
from murmuration.launch.rpc import serving
from murmuration.launch.rpc import tls


class Handle(base.Handle[client.Client]):
  """A reference to a `Node`; becomes a `Client` in the node that holds it."""

  def __init__(self, address: lp_address.Address, timeout_s: float):
    self._address = address
    self._timeout_s = timeout_s

  def dereference(self) -> client.Client:
    return client.Client(directory.bound_to(self._address), self._timeout_s)


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
    thread_pool_size: int = 16,
    **kwargs,
  ):
    """Describes the node; nothing starts yet.

    Args:
      constructor: makes the object, in the node.
      *args: of the constructor, as **kwargs; handles become clients.
      timeout_s: deadline of every call that clients make, in seconds.
      thread_pool_size: maximum number of concurrent calls.
      **kwargs: see *args.
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
    name = directory.bound_to(self._address)
    credentials = name.directory.credentials
    with serve(instance, name.build(), self._thread_pool_size, credentials):
      if self._should_run and hasattr(instance, 'run'):
        instance.run()
      else:
        lp.wait_for_stop()


@contextlib.contextmanager
def serve(
  instance: Any,
  address: str,
  thread_pool_size: int = 16,
  credentials: tls.Credentials | None = None,
) -> Iterator[None]:
  """Serves the methods that an object lists while the context is open.

  Args:
    instance: the object. Its attribute `serves` holds the names of the methods
      that clients may call, and of no others.
    address: unix:PATH, tls://HOST:PORT, or both, separated by a space.
    thread_pool_size: maximum number of concurrent calls at each address.
    credentials: of the run, for an address that other machines can reach.

  Raises:
    OSError: the address is in use.
    TypeError: a name in `serves` is not that of a public method.
  """
  methods = _methods(instance)
  answer = functools.partial(_answer, type(instance).__name__, methods)
  with contextlib.ExitStack() as servers:
    for one in address.replace(' tls://', '\0tls://').split('\0'):
      server = serving.Server(answer, one, thread_pool_size, credentials)
      servers.callback(server.stop)
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
  try:
    method, args, kwargs = codec.decode(message)
    if method not in methods:
      near = difflib.get_close_matches(str(method), methods, 3) or methods
      raise AttributeError(
        f'{owner} does not serve a method {method!r}. It serves '
        f'{", ".join(near) or "none: name them in its attribute `serves`"}.'
      )
    result = methods[method](*args, **kwargs)
    return codec.encode_parts([channel.OK, result])
  except BaseException as e:  # every error is sent to the caller
    error = [type(e).__name__, str(e), traceback.format_exc()]
    # A text may hold lone surrogates, for instance from a file's name.
    sent = [text.encode(errors='replace').decode() for text in error]
    return codec.encode_parts([channel.ERROR, sent])
