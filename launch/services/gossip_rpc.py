"""Gossip messages over RPC, with an inbox in the worker's own process.

Each worker serves `push_message`, which fills its inbox: one slot for each
sender, where the newest message wins. A thread for each receiver sends from a
slot of the same kind, so that a slow or dead receiver does not delay learning.

    worker j: sync -> slot -> thread ==push_message==> worker i: slot -> sync
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
import logging
import threading
from typing import Any

import numpy as np

from agents.exchange import mix
from launch import rpc

_logger = logging.getLogger(__name__)
DEADLINE_S = 2.0
_PAUSE_S = 0.5  # before an unavailable receiver is called again
# A receiver that was killed since does not know that this worker has ended.
_LEFT_PERIOD_S = 2.0


class RpcCarrier:
  """A `mix.Carrier` of messages over RPC, with a slot for each sender."""

  def __init__(self, own: int, neighbours: Mapping[int, Any]):
    self._senders = {
      index: _Sender(own, client) for index, client in neighbours.items()
    }
    self._changed = threading.Condition()
    self._newest: dict[int, mix.Message] = {}
    self._heard: dict[int, tuple[int, int]] = {}
    self.received = 0
    self.refused = 0

  def receive(self, sender: int, message: mix.Message) -> bool:
    """Takes a message; False if refused, because it is not finite."""
    sound = message.theta is None or bool(np.isfinite(message.theta).all())
    with self._changed:
      self.received += 1
      if not sound:
        self.refused += 1
        if self.refused == 1:
          _logger.warning(
            'Refused parameters of worker %d, iteration %d: not finite.',
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

  def senders(self) -> list[int]:
    """Indices of the workers that have sent a message, in order."""
    return sorted(self._heard)

  def newest(self, sender: int) -> mix.Message | None:
    return self._newest.get(sender)

  def heard(self, sender: int) -> tuple[int, int]:
    return self._heard.get(sender, (0, 0))

  def wait(self, received: int, timeout_s: float) -> None:
    with self._changed:
      self._changed.wait_for(lambda: self.received > received, timeout_s)

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


class _Sender:
  """Sends the newest messages to one receiver, with a thread."""

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
    left: list[mix.Message] = []  # what is said again and again
    while not self._closed.is_set():
      with self._changed:
        if not self._changed.wait_for(
          lambda: self._waiting or self._closed.is_set(),
          _LEFT_PERIOD_S if left else None,
        ):
          self._waiting = left
        taken, self._waiting = self._waiting, []
      try:
        while taken:
          self._client.push_message(self._own, *taken[0])
          sent = taken.pop(0)
          left = [sent] if sent.iteration == mix.LEFT else []
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
