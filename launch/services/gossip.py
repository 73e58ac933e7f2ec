"""What carries gossip between workers (agents/exchange/mix.py), and averages.

Each worker serves `push_message` into its inbox: one slot for each sender, in
which the newest message wins. It sends with a thread for each receiver, from
one slot likewise: a receiver that is slow or dead costs learning nothing.

    worker j: sync -> slot -> thread ==push_message==> worker i: slot -> sync

The averager is a node of its own. A round is closed when all that are there
have brought their parameters, or after `timeout_s` without those that are late;
they are not waited for again before they come by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
import functools
import logging
import threading
import time
from typing import Any, Literal
import zlib

import numpy as np

from agents.exchange import mix
from agents.exchange import mixing
from launch import rpc
from launch.services import gossip_memory

_logger = logging.getLogger(__name__)
_DEADLINE_S = 2.0
_PAUSE_S = 0.5  # before a receiver that is away is called again
# How long the averager holds a call before it says "not yet".
_HOLD_S = 1.0
_KEPT_ROUNDS = 2


class Inbox:
  """The messages that have come in: one slot for each sender."""

  def __init__(self):
    self._changed = threading.Condition()
    self._newest: dict[int, mix.Message] = {}
    self._heard: dict[int, tuple[int, int]] = {}
    self.received = 0
    self.refused = 0

  def receive(self, sender: int, message: mix.Message) -> bool:
    """Takes a message; False if it is refused, as it is not finite."""
    sound = message.theta is None or bool(np.isfinite(message.theta).all())
    with self._changed:
      self.received += 1
      if not sound:
        self.refused += 1
        if self.refused == 1:
          _logger.warning(
            'Refused parameters of worker %d, iteration %d: not finite, or '
            'damaged.',
            sender,
            message.iteration,
          )
      count, iteration = self._heard.get(sender, (0, 0))
      self._heard[sender] = count + 1, max(iteration, message.iteration)
      before = self._newest.get(sender)
      newer = before is None or message.iteration > before.iteration
      if sound and newer and message.theta is not None:
        self._newest[sender] = message
      self._changed.notify_all()
    return sound

  def newest(self, sender: int) -> mix.Message | None:
    return self._newest.get(sender)

  def heard(self, sender: int) -> tuple[int, int]:
    return self._heard.get(sender, (0, 0))

  def wait(self, received: int, timeout_s: float) -> None:
    with self._changed:
      self._changed.wait_for(lambda: self.received > received, timeout_s)


class _Sender:
  """A thread that brings the newest messages to one receiver."""

  def __init__(self, own: int, client: Any):
    self._own, self._client = own, client
    self._changed = threading.Condition()
    self._waiting: list[mix.Message] = []
    self._closed = threading.Event()
    self.thread = threading.Thread(
      target=self._run, name='gossip-sender', daemon=True
    )

  def put(self, message: mix.Message) -> None:
    with self._changed:
      self._waiting = _newest([*self._waiting, message])
      self._changed.notify_all()

  def close(self) -> None:
    self._closed.set()
    with self._changed:
      self._changed.notify_all()

  def _run(self) -> None:
    away = False
    while not self._closed.is_set():
      with self._changed:
        self._changed.wait_for(lambda: self._waiting or self._closed.is_set())
        taken, self._waiting = self._waiting, []
      try:
        while taken:
          self._client.push_message(self._own, *packed(taken[0]))
          taken.pop(0)
          away = False
      except (rpc.Unavailable, rpc.RemoteError) as e:
        if not away and not self._closed.is_set():
          _logger.warning('A neighbour does not answer: %s', e)
        away = True
        with self._changed:
          self._waiting = _newest([*taken, *self._waiting])
        self._closed.wait(_PAUSE_S)


def _newest(messages: list[mix.Message]) -> list[mix.Message]:
  """The newest message with parameters, and a newer one without, if any."""
  full = [m for m in messages if m.theta is not None][-1:]
  if full and messages[-1] is full[0]:
    return full
  return [*full, *messages[-1:]]


def packed(message: mix.Message) -> tuple:
  """A message as it crosses the wire, with a checksum of its parameters."""
  if message.theta is None:
    return message.iteration, None, message.largest_step, 0
  # On the host already, in one piece: a device tensor was copied before.
  theta = np.ascontiguousarray(message.theta, np.float32)
  return message.iteration, theta, message.largest_step, zlib.crc32(theta.data)


class RpcCarrier(Inbox):
  """Messages over RPC, from an inbox in the worker's own process."""

  def __init__(self, own: int, neighbours: Mapping[int, Any]):
    """Takes the worker's index, and clients of all its neighbours."""
    super().__init__()
    self._senders = {
      index: _Sender(own, client) for index, client in neighbours.items()
    }

  def start(self, shape: tuple[int, ...]) -> None:
    del shape
    for sender in self._senders.values():
      sender.thread.start()

  def send(self, receivers: Iterable[int], message: mix.Message) -> None:
    for receiver in receivers:
      self._senders[receiver].put(message)

  def close(self) -> None:
    for sender in self._senders.values():
      sender.close()


def ask(neighbours: Mapping[int, Any]) -> mix.Message | None:
  """What a live neighbour has now; None if none answers."""
  for client in neighbours.values():
    try:
      answer = client.gossip_state()
    except (rpc.Unavailable, rpc.RemoteError):
      continue
    if answer is not None:
      return mix.Message(*answer)
  return None


class Gossip(mix.Mix):
  """`Mix` with a carrier; the worker serves what the carrier needs."""

  serves = ('push_message', 'gossip_memory', 'gossip_state')

  def __init__(
    self,
    graph: mixing.Graph,
    index: int,
    neighbours: Mapping[int, Any],
    averager: Any = None,
    *,
    carrier: Literal['rpc', 'shared_memory'] = 'rpc',
    lock_timeout_s: float = 10.0,
    **options,
  ):
    """Makes the exchange of one worker.

    Args:
      graph: of all workers.
      index: of this one.
      neighbours: clients of its in- and out-neighbours, by their indices.
      averager: client of the averager, if there is one.
      carrier: of messages; memory is shared on one host only.
      lock_timeout_s: see `mix.Mix`, as the other options.
      **options: of `mix.Mix`.
    """
    clients = {
      j: client.with_deadline(_DEADLINE_S) for j, client in neighbours.items()
    }
    self._inbox: RpcCarrier | None = None
    self._memory: gossip_memory.SharedMemoryCarrier | None = None
    made: mix.Carrier
    if carrier == 'rpc':
      made = self._inbox = RpcCarrier(index, clients)
    else:
      made = self._memory = gossip_memory.SharedMemoryCarrier(
        index, graph.size, clients
      )
    super().__init__(
      graph,
      index,
      made,
      ask=functools.partial(ask, clients),
      lock_timeout_s=lock_timeout_s,
      average=None
      if averager is None
      else Averaging(index, averager, lock_timeout_s),
      **options,
    )

  def push_message(
    self,
    sender: int,
    iteration: int,
    theta: np.ndarray | None,
    largest_step: float,
    checksum: int,
  ) -> bool:
    """Takes a neighbour's message; False if it is refused."""
    if self._inbox is None:
      raise RuntimeError(
        "This worker's messages come through shared memory. Give all workers "
        'the same gossip.carrier.'
      )
    if theta is not None and zlib.crc32(theta.data) != checksum:
      theta = np.full_like(theta, np.nan)
    return self._inbox.receive(
      sender, mix.Message(iteration, theta, largest_step)
    )

  def gossip_memory(self) -> tuple[str, int, int] | None:
    """Host, process and file descriptor of the memory for messages."""
    return None if self._memory is None else self._memory.memory()

  def gossip_state(self) -> tuple | None:
    """What this worker has now, for one that is started again."""
    state = self.state()
    return None if state is None else tuple(state)


class _Round:
  """The parameters that have come for one mean."""

  def __init__(self, closes_at: float):
    self.closes_at = closes_at
    self.parts: dict[int, tuple[int, np.ndarray]] = {}
    self.mean: np.ndarray | None = None


class Averager:
  """Finds the mean of all workers, round by round. Keeps nothing else."""

  serves = ('average', 'leave')

  def __init__(self, num_workers: int, timeout_s: float):
    """Takes how many there are, and how long a round waits for the last."""
    self._timeout_s = timeout_s
    self._changed = threading.Condition()
    self._here = set(range(num_workers))
    self._rounds: dict[int, _Round] = {}

  def average(
    self, worker: int, number: int, steps: int, theta: np.ndarray
  ) -> tuple[bool, np.ndarray | None]:
    """Takes a worker's part of a round; the same one may come again.

    Returns:
      Whether the round is closed, and then its mean if this part is in it.
    """
    with self._changed:
      self._here.add(worker)
      if not np.isfinite(theta).all():
        _logger.warning('Refused parameters of worker %d: not finite.', worker)
        return True, None
      if number not in self._rounds:
        if any(number < other for other in self._rounds):
          return True, None
        self._rounds[number] = _Round(time.monotonic() + self._timeout_s)
        for old in sorted(self._rounds)[:-_KEPT_ROUNDS]:
          del self._rounds[old]
      own = self._rounds[number]
      if own.mean is None:
        own.parts[worker] = steps, np.array(theta)
      until = time.monotonic() + _HOLD_S
      while own.mean is None:
        now = time.monotonic()
        late = self._here - set(own.parts)
        if not late or now >= own.closes_at:
          self._close(own, late)
        elif now >= until:
          return False, None
        else:
          self._changed.wait(min(until, own.closes_at) - now)
      return True, own.mean if worker in own.parts else None

  def leave(self, worker: int) -> None:
    """A worker learns no more: rounds do not wait for it."""
    with self._changed:
      self._here.discard(worker)
      self._changed.notify_all()

  def _close(self, own: _Round, late: set[int]) -> None:
    if late:
      _logger.warning('A mean without the workers %s.', sorted(late))
      self._here -= late
    order = sorted(own.parts)
    own.mean = mixing.average(
      [own.parts[j][1] for j in order], [own.parts[j][0] for j in order]
    )
    self._changed.notify_all()


class Averaging:
  """A worker's side of the averager; without an answer there is no mean."""

  def __init__(self, worker: int, averager: Any, timeout_s: float):
    self._worker = worker
    self._averager = averager.with_deadline(_HOLD_S + _DEADLINE_S)
    self._timeout_s = timeout_s

  def __call__(
    self,
    number: int,
    steps: int,
    theta: np.ndarray,
    over: Callable[[], bool],
  ) -> np.ndarray | None:
    # A round closes within the time-out of its first part.
    until = time.monotonic() + 2 * self._timeout_s
    try:
      while not over() and time.monotonic() < until:
        closed, mean = self._averager.average(
          self._worker, number, steps, theta
        )
        if closed:
          return mean
    except (rpc.Unavailable, rpc.RemoteError) as e:
      _logger.warning('No mean this time: %s', e)
    return None

  def leave(self) -> None:
    try:
      self._averager.leave(self._worker)
    except (rpc.Unavailable, rpc.RemoteError):
      pass  # it waits once, and then no more
