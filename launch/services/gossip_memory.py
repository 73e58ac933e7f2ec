"""Gossip through memory that workers of one host share, as in GALA.

Each worker has one anonymous memory file with a slot for each sender; a sender
asks for its file descriptor over RPC and maps it through /proc. As in GALA's
code, unread parameters are not overwritten: the sender goes on and writes only
its iteration.

Each field has one writer. A reader ignores parameters until their checksum is
right.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
import contextlib
import logging
import mmap
import os
import pathlib
import threading
import time
from typing import Any
import zlib

import numpy as np

from agents.exchange import mix
from launch import rpc

_logger = logging.getLogger(__name__)
_NAME = 'murmuration-gossip'
_POLL_S = 2e-4
_RETRY_S = 0.1
_LOOK_S = 0.5  # between two checks whether a receiver's process has ended
_HEADER = np.dtype(
  [
    # Written by the sender:
    ('count', np.int64),  # messages
    ('heard', np.int64),  # newest iteration
    ('written', np.int64),  # times that parameters were written
    ('iteration', np.int64),  # of the parameters
    ('largest_step', np.float64),
    ('checksum', np.int64),
    # Written by the receiver:
    ('read', np.int64),  # value of `written` at its last read
    ('closed', np.int64),  # whether it has stopped reading
  ]
)


def _host() -> str:
  """Equal for processes that find each other's memory by process id."""
  host = _host()
  with contextlib.suppress(OSError):
    host += os.readlink('/proc/self/ns/pid')
  return host


class Slots:
  """Mapped memory with a header and parameters [*shape] for each sender."""

  def __init__(self, fd: int, workers: int, shape: tuple[int, ...]):
    nbytes = workers * (_HEADER.itemsize + 4 * int(np.prod(shape)))
    self._map = mmap.mmap(fd, nbytes)
    self.headers = np.frombuffer(self._map, _HEADER, workers)
    self.thetas = np.frombuffer(
      self._map, np.float32, offset=workers * _HEADER.itemsize
    ).reshape(workers, *shape)

  def write(self, sender: int, message: mix.Message) -> None:
    """Writes a message; its parameters only if the last ones were read."""
    header, theta = self.headers[sender : sender + 1], message.theta
    if theta is not None and header['written'] == header['read']:
      self.thetas[sender] = theta
      header['iteration'] = message.iteration
      header['largest_step'] = message.largest_step
      header['checksum'] = zlib.crc32(np.ascontiguousarray(theta).data)
      header['written'] += 1
    header['heard'] = message.iteration
    header['count'] += 1

  def read(self, sender: int) -> mix.Message | None:
    """The message with unread parameters; None if there are none."""
    header = self.headers[sender : sender + 1]
    written = int(header['written'][0])
    if written == int(header['read'][0]):
      return None
    theta = self.thetas[sender].copy()
    if zlib.crc32(theta.data) != int(header['checksum'][0]):
      return None  # The sender is still writing.
    message = mix.Message(
      int(header['iteration'][0]), theta, float(header['largest_step'][0])
    )
    header['read'] = written
    return message


class _Link:
  """Keeps the memory of one receiver mapped, with a thread."""

  def __init__(self, own: int, client: Any, workers: int):
    self._own, self._client, self._workers = own, client, workers
    self._shape: tuple[int, ...] = ()
    self._closed = threading.Event()
    self._pid = 0
    self._slots: Slots | None = None
    self._last: mix.Message | None = None
    self._lock = threading.Lock()
    self._thread = threading.Thread(
      target=self._run, name='gossip-link', daemon=True
    )

  def start(self, shape: tuple[int, ...]) -> None:
    self._shape = shape
    self._thread.start()

  def put(self, message: mix.Message) -> None:
    """Writes a message now, or as soon as the memory is mapped."""
    with self._lock:
      self._last = message
      if self._slots is not None:
        self._slots.write(self._own, message)

  def close(self) -> None:
    self._closed.set()

  def _run(self) -> None:
    while not self._closed.is_set():
      slots = self._slots
      if slots is not None and (
        slots.headers['closed'].any()
        or not pathlib.Path(f'/proc/{self._pid}').exists()
      ):
        with self._lock:  # `put` may be writing to them
          self._slots = slots = None
      if slots is None:
        self._connect()
      self._closed.wait(_RETRY_S if self._slots is None else _LOOK_S)

  def _connect(self) -> None:
    try:
      found = self._client.gossip_memory()
    except (rpc.Unavailable, rpc.RemoteError):
      return
    if found is None:
      return  # The neighbour has not begun.
    host, pid, fd = found
    if host != _host():
      _logger.error(
        'A neighbour runs on another host or in another container, and '
        "gossip.carrier='shared_memory' needs one. Set "
        '--config.gossip.carrier=rpc.'
      )
      self._closed.set()
      return
    try:
      own = os.open(f'/proc/{pid}/fd/{fd}', os.O_RDWR)
    except OSError:
      return  # The process has just ended.
    try:
      if not os.readlink(f'/proc/self/fd/{own}').startswith(f'/memfd:{_NAME}'):
        return  # Closed since: another file has its number.
      slots = Slots(own, self._workers, self._shape)
      with self._lock:
        self._slots, self._pid = slots, pid
        if self._last is not None:
          slots.write(self._own, self._last)
    except (OSError, ValueError) as e:
      # The neighbour has just closed it, or there is no memory: tried again.
      _logger.info("A neighbour's memory cannot be mapped yet: %s", e)
    finally:
      os.close(own)


class SharedMemoryCarrier:
  """A `mix.Carrier` of messages through memory."""

  def __init__(self, own: int, workers: int, neighbours: Mapping[int, Any]):
    self._workers = workers
    self._links = {
      index: _Link(own, client, workers) for index, client in neighbours.items()
    }
    self._newest: dict[int, mix.Message] = {}
    self._slots: Slots | None = None
    self._fd = -1
    self.refused = 0

  @property
  def received(self) -> int:
    return 0 if self._slots is None else int(self._slots.headers['count'].sum())

  def start(self, shape: tuple[int, ...]) -> None:
    fd = os.memfd_create(_NAME)
    nbytes = self._workers * (_HEADER.itemsize + 4 * int(np.prod(shape)))
    os.ftruncate(fd, nbytes)
    self._slots, self._fd = Slots(fd, self._workers, shape), fd
    for link in self._links.values():
      link.start(shape)

  def memory(self) -> tuple[str, int, int] | None:
    """Host, process id and file descriptor; None before `start`."""
    if self._slots is None or self._slots.headers['closed'].any():
      return None
    return _host(), os.getpid(), self._fd

  def send(self, receivers: Iterable[int], message: mix.Message) -> None:
    for receiver in receivers:
      self._links[receiver].put(message)

  def newest(self, sender: int) -> mix.Message | None:
    found = None if self._slots is None else self._slots.read(sender)
    if found is not None:
      assert found.theta is not None
      if np.isfinite(found.theta).all():
        self._newest[sender] = found
      else:
        self.refused += 1
        _logger.warning('Refused parameters of worker %d.', sender)
    return self._newest.get(sender)

  def heard(self, sender: int) -> tuple[int, int]:
    if self._slots is None:
      return 0, 0
    header = self._slots.headers[sender]
    return int(header['count']), int(header['heard'])

  def wait(self, received: int, timeout_s: float) -> None:
    until = time.monotonic() + timeout_s
    while self.received <= received and time.monotonic() < until:
      time.sleep(_POLL_S)

  def close(self) -> None:
    for link in self._links.values():
      link.close()
    if self._slots is not None:
      self._slots.headers['closed'] = 1
      os.close(self._fd)


def _host() -> str:
  """Equal for processes that can map each other's memory."""
  boot = pathlib.Path('/proc/sys/kernel/random/boot_id').read_text().strip()
  return f'{boot} {os.stat("/proc/self/ns/net").st_ino}'
