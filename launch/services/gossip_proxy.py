"""Gossip through a proxy node for each worker, as in PALA.

    worker j =forward=> proxy j =push_message=> proxy i <=collect= worker i

A proxy keeps the newest message of each in-neighbour and sends its worker's
messages to the out-neighbours. So a worker never waits for a distant neighbour,
and its inbox survives it. A restarted proxy is empty until its neighbours'
next iteration.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
import threading
from typing import Any

from agents.exchange import mix
from launch import rpc
from launch.services import gossip_rpc

_HOLD_S = 1.0  # a call of `collect` waits for a message, at most
_PAUSE_S = 0.5  # before an unavailable proxy is called again


class Proxy:
  """A worker's inbox and outbox; `neighbours` are clients of their proxies."""

  serves = ('push_message', 'forward', 'collect')

  def __init__(self, own: int, neighbours: Mapping[int, Any]):
    self._carrier = gossip_rpc.RpcCarrier(
      own,
      {
        j: client.with_deadline(gossip_rpc.DEADLINE_S)
        for j, client in neighbours.items()
      },
    )
    self._carrier.start(())

  def push_message(self, sender: int, *message: Any) -> bool:
    """Takes the fields of a neighbour's `mix.Message`; False if refused."""
    return self._carrier.receive(sender, mix.Message(*message))

  def forward(self, receiver: int, *message: Any) -> None:
    """Sends a message of its own worker to a neighbour."""
    self._carrier.send([receiver], mix.Message(*message))

  def collect(
    self, received: int, told: Sequence[tuple[int, int, int]]
  ) -> tuple[int, list[tuple]]:
    """Messages received since the last call; waits up to a second for one.

    Args:
      received: the count that the last call returned; 0 at first.
      told: what the worker has: (sender, messages, iteration of parameters).

    Returns:
      Messages so far, and for each sender with news (sender, messages, newest
      iteration, message if its parameters are new, else None).
    """
    carrier = self._carrier
    if received <= carrier.received:  # A larger count is from before a restart.
      carrier.wait(received, _HOLD_S)
    received, found = carrier.received, []
    known = {sender: (count, theta) for sender, count, theta in told}
    for sender in carrier.senders():
      count, iteration = carrier.heard(sender)
      before, had = known.get(sender, (0, -1))
      if count == before:
        continue
      newest = carrier.newest(sender)
      new = newest is not None and newest.iteration != had
      found.append((sender, count, iteration, newest if new else None))
    return received, found


class _Via:
  """Calls a neighbour through the worker's own proxy."""

  def __init__(self, proxy: Any, receiver: int):
    self._proxy, self._receiver = proxy, receiver

  def push_message(self, sender: int, *message: Any) -> None:
    del sender  # The proxy knows its worker.
    self._proxy.forward(self._receiver, *message)


class ProxyCarrier(gossip_rpc.RpcCarrier):
  """A worker's carrier; its inbox is a copy of its proxy's."""

  def __init__(self, own: int, neighbours: Iterable[int], proxy: Any):
    client = proxy.with_deadline(_HOLD_S + gossip_rpc.DEADLINE_S)
    super().__init__(own, {j: _Via(client, j) for j in neighbours})
    self._proxy = client
    self._closed = threading.Event()

  def start(self, shape):
    super().start(shape)
    threading.Thread(
      target=self._collect, name='gossip-collector', daemon=True
    ).start()

  def close(self):
    super().close()
    self._closed.set()

  def _collect(self) -> None:
    received = 0
    told: dict[int, tuple[int, int]] = {}
    while not self._closed.is_set():
      try:
        received, found = self._proxy.collect(
          received, [(sender, *has) for sender, has in told.items()]
        )
      except (rpc.Unavailable, rpc.RemoteError):
        received, told = 0, {}
        self._closed.wait(_PAUSE_S)
        continue
      for sender, count, iteration, newest in found:
        has = told.get(sender, (0, -1))[1]
        if newest is not None:
          has = newest[0]
          self.receive(sender, mix.Message(*newest))
        told[sender] = count, has
        self.receive(sender, mix.Message(iteration))
