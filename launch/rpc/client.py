"""The end of a remote call that calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import functools
import logging
import random
import threading
import time
from typing import Any, NamedTuple, TypeVar

from murmuration.launch import pulse
from murmuration.launch.rpc import channel as channel_lib
from murmuration.launch.rpc import codec
from murmuration.launch.rpc import directory
from murmuration.launch.rpc import errors
from murmuration.launch.rpc import tls

_CONNECT_TIMEOUT_S = 1.0
_PROBE_PERIOD_S = (0.02, 0.2)
_READ_S = 0.1  # for an answer that has probably come
_PAUSE_S = (0.1, 5.0)  # of `retry`: the first, and the longest

# Not the global one, which an environment may draw from.
_random = random.Random()
T = TypeVar('T')


class _Sent(NamedTuple):
  """A call whose answer is to come."""

  method: str
  channel: channel_lib.Channel
  deadline: float


class Client:
  """Calls the methods of a served object: `client.method(*args, **kwargs)`.

  Safe to share between threads, to pickle, and to make before the server is up.
  A call waits for the server to come up, but never longer than the deadline,
  and not at all once the program is stopping. It runs at most once on the
  server: a call whose connection breaks midway is not repeated. An answer that
  has begun to come by the deadline is waited for as long as bytes of it come
  in, and at most for what it takes at 100 kB/s.

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
    self._found: str | None = None  # where a server with a name was last
    self.timeout_s = timeout_s
    # Connections that carry no call now. One carries one call at a time, so
    # there are as many as threads that call at once.
    self._idle: list[channel_lib.Channel] = []
    # In a node, waits for a server that is gone end when the program stops.
    self._stop_event = directory.stop_event()

  @property
  def address(self) -> str:
    """For messages: where it is; or the name of a server, and where it was."""
    server = self._server
    if isinstance(server, str):
      return server
    # Not looked up: that is a call too, which may fail or take its time.
    return f'{server.name} ({self._found})' if self._found else server.name

  def with_deadline(self, timeout_s: float) -> Client:
    """Returns a client of the same server with another deadline."""
    client = Client(self._server, timeout_s)
    client._stop_event, client._idle = self._stop_event, self._idle
    client._found = self._found
    return client

  def __reduce__(self):
    return Client, (self._server, self.timeout_s)

  def __repr__(self) -> str:
    return f'rpc.Client({self.address!r}, timeout_s={self.timeout_s})'

  def __getattr__(self, method: str) -> Callable[..., Any]:
    if method.startswith('_'):
      raise AttributeError(method)
    return functools.partial(self._call, method)

  def _call(self, method: str, /, *args, **kwargs) -> Any:
    return self._finish(self._begin(method, args, kwargs))

  def _begin(
    self,
    method: str,
    args: Sequence[Any],
    kwargs: Any,
    waited_s: float = 0.0,
  ) -> _Sent:
    """Sends a call; `waited_s` have been waited for other servers before."""
    parts = codec.encode_parts([method, list(args), kwargs])
    deadline = time.monotonic() + self.timeout_s
    # Even then there is time to connect: a server far away may be there.
    least_s = min(_CONNECT_TIMEOUT_S, self.timeout_s)
    there = max(deadline - waited_s, time.monotonic() + least_s)
    while True:
      channel, is_new = self._connect(method, there)
      left = self.timeout_s
      if is_new:  # Some of it may be over.
        left = max(deadline - time.monotonic(), 1e-3)
      try:
        channel.send(parts, left, deadline)
        return _Sent(method, channel, deadline)
      except TimeoutError:
        why = f'no answer within {self.timeout_s:g} s'
        raise self._unavailable(method, True, why) from None
      except channel_lib.NotDelivered as e:
        # An old connection of a server that was started again may be sent to
        # once more; a new one that breaks at once is given time.
        if time.monotonic() >= there:
          why = f'the connection was refused ({e})'
          raise self._unavailable(method, False, why) from None
        if is_new:
          time.sleep(_PROBE_PERIOD_S[0])

  def _finish(self, sent: _Sent) -> Any:
    """The result of a call that was sent."""
    method, channel, deadline = sent
    try:
      answer = channel.receive(deadline)
    except TimeoutError as e:
      why = f'no answer within {self.timeout_s:g} s'
      if progress := str(e):
        why = f'the answer came too slowly: {progress}'
      raise self._unavailable(method, True, why) from None
    except channel_lib.NoServer as e:
      why = f'what listens there is no server: {e}'
      raise self._unavailable(method, False, why) from None
    except OSError as e:
      why = f'connection lost ({e})'
      raise self._unavailable(method, True, why) from None
    self._idle.append(channel)
    status, result = codec.decode(answer)
    if status == channel_lib.ERROR:
      raise errors.RemoteError(*result)
    return result

  def _unavailable(
    self, method: str, delivered: bool, why: str
  ) -> errors.Unavailable:
    return errors.Unavailable(self.address, method, delivered, why)

  def _connect(
    self, method: str, deadline: float
  ) -> tuple[channel_lib.Channel, bool]:
    """Returns a connection to the server, and whether it is a new one."""
    while self._idle:
      try:
        channel = self._idle.pop()
      except IndexError:  # another thread was faster
        break
      if channel.is_usable():
        return channel, False
    pause, longest = _PROBE_PERIOD_S
    begin = time.monotonic()
    while True:
      left = deadline - time.monotonic()
      # Looked up every time: the server may come back elsewhere.
      address: str | None = None
      state = 'it has not started'
      try:
        address = self._find(max(left, 1e-3))
      except directory.Unknown as e:
        state = str(e)
      if address is not None:
        try:
          timeout_s = min(max(left, 1e-3), _CONNECT_TIMEOUT_S)
          return channel_lib.Channel(
            address, timeout_s, self._credentials()
          ), True
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

  def _find(self, timeout_s: float) -> str | None:
    server = self._server
    if isinstance(server, str):
      return server
    found = server.find(timeout_s)
    if found is not None:
      # One of this process has both its addresses; the first is the near one.
      self._found = found = found.split(' tls://')[0]
    return found

  def _credentials(self) -> tls.Credentials | None:
    server = self._server
    return None if isinstance(server, str) else server.directory.credentials


def together(
  calls: Sequence[tuple[Any, str, Sequence[Any]]],
) -> list[Any]:
  """Makes calls at the same time: all are sent before an answer is awaited.

  Servers that are away are waited for from the beginning, not one after the
  other.

  Args:
    calls: client, method and arguments of each. What is no `Client` is called
      as if it were one, before any answer is awaited.

  Returns:
    In their order, what each gave, or the `Unavailable` or `RemoteError` that
    it ended with.
  """
  found: list[Any] = [None] * len(calls)
  sent: dict[int, _Sent] = {}
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
    except (errors.Unavailable, errors.RemoteError) as e:
      found[i] = e
  for i, one in sent.items():
    try:
      # Answers came in while a server that is away was waited for: a long one
      # is not read whole before the deadline of its call is over.
      deadline = time.monotonic() + _READ_S
      found[i] = calls[i][0]._finish(
        one._replace(deadline=max(one.deadline, deadline))
      )
    except (errors.Unavailable, errors.RemoteError) as e:
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
  attempt = 0
  while True:
    attempt += 1
    try:
      return fn()
    except errors.Unavailable as e:
      end = time.monotonic() + pause * _random.uniform(0.8, 1.2)
      waited = time.monotonic() - start
      if waited >= connect_timeout_s:
        why = f'{e.why} (gave up after {attempt} tries in {waited:.1f} s)'
        raise errors.Unavailable(e.address, e.method, e.delivered, why) from e
      why = str(e)
      if attempt == 1:
        logging.getLogger(__name__).warning('%s; trying again', e)
      while (
        left := min(end, start + connect_timeout_s) - time.monotonic()
      ) > 0:
        if should_stop is not None and should_stop():
          raise
        pulse.waits(why)
        time.sleep(min(left, 0.1))
    pause = min(2 * pause, longest)
