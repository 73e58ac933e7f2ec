"""A worker's gossip exchange: `mix.Mix` with a carrier of its messages.

Carriers: gossip_rpc.py, gossip_memory.py, gossip_proxy.py. Means of all
workers: gossip_averager.py.
"""

from __future__ import annotations

from collections.abc import Mapping
import functools
from typing import Any, Literal

import numpy as np

from agents.exchange import mix
from agents.exchange import mixing
from launch import rpc
from launch.services import gossip_averager
from launch.services import gossip_memory
from launch.services import gossip_proxy
from launch.services import gossip_rpc


def ask(neighbours: Mapping[int, Any]) -> mix.Message | None:
  """The newest finite state of any neighbour; None if none has one."""
  calls = [(client, 'gossip_state', ()) for client in neighbours.values()]
  # A neighbour that has not begun answers None; a failed call is an Exception.
  found = [
    mix.Message(*answer)
    for answer in rpc.together(calls)
    if isinstance(answer, tuple) and np.isfinite(answer[1]).all()
  ]
  return max(found, key=lambda message: message.iteration, default=None)


class Gossip(mix.Mix):
  """`Mix` with a carrier, whose methods the worker serves."""

  serves = ('push_message', 'gossip_memory', 'gossip_state')

  def __init__(
    self,
    graph: mixing.Graph,
    index: int,
    neighbours: Mapping[int, Any],
    averager: Any = None,
    proxy: Any = None,
    *,
    carrier: Literal['rpc', 'shared_memory', 'proxy'] = 'rpc',
    lock_timeout_s: float = 10.0,
    **options,
  ):
    """Makes the exchange of one worker.

    Args:
      graph: of all workers.
      index: of this worker.
      neighbours: clients of its in- and out-neighbours, by index.
      averager: client of the averager, if there is one.
      proxy: client of the worker's own proxy, if carrier='proxy'.
      carrier: of the messages; 'shared_memory' needs workers on one host.
      lock_timeout_s: see `mix.Mix`.
      **options: of `mix.Mix`.
    """
    clients = {
      j: client.with_deadline(gossip_rpc.DEADLINE_S)
      for j, client in neighbours.items()
    }
    self._messages: Any  # the carrier
    if carrier == 'rpc':
      self._messages = gossip_rpc.RpcCarrier(index, clients)
    elif carrier == 'proxy':
      self._messages = gossip_proxy.ProxyCarrier(index, clients, proxy)
    else:
      self._messages = gossip_memory.SharedMemoryCarrier(
        index, graph.size, clients
      )
    super().__init__(
      graph,
      index,
      self._messages,
      ask=functools.partial(ask, clients),
      lock_timeout_s=lock_timeout_s,
      average=None
      if averager is None
      else gossip_averager.Averaging(index, averager, lock_timeout_s),
      **options,
    )

  def push_message(self, sender: int, *message: Any) -> bool:
    """Takes the fields of a neighbour's `mix.Message`; False if refused."""
    return self._messages.receive(sender, mix.Message(*message))

  def gossip_memory(self) -> tuple[str, int, int] | None:
    """Host, process id and file descriptor of the memory for messages."""
    return self._messages.memory()

  def gossip_state(self) -> tuple | None:
    """This worker's present state, for a neighbour that was restarted."""
    state = self.state()
    return None if state is None else tuple(state)
