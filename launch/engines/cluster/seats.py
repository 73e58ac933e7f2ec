"""The places of nodes: asked of Ray, looked at, and given up again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import contextlib
import dataclasses
import time
from typing import Any

from launch.engines import restarts
from launch.engines.cluster import actors
from launch.engines.cluster import resources
from launch.engines.cluster import store as store_lib

# While a node waits for its place, a run in which nothing moves has not
# stalled; but not for longer than a new machine takes.
EXCUSED_S = 900.0
MOST_TRIES = 5  # of Ray to place a node, until that is a failure of the node
_FRESH_S = 0.2  # between two looks at places that are waited for
_HELD_S = 1.0  # the same, of those that nodes have
_PAUSE_S = 1.0  # before a place is asked for again; doubles
_ALIVE_S = 1.0  # so old an answer on the cluster's hosts may be
_BY_HOST = 'ray.io/node-id'  # label that Ray gives each host
# A host that could run no node is tried again: its trouble may be over.
_AVOIDED_S = restarts.Rules().restart_window_s


@dataclasses.dataclass
class Seat:
  """A node's place."""

  actor: Any  # holds its resources
  call: Any  # waited for: where it is, then whether it still is
  since: float  # when the node began to wait for a place
  host: str = ''  # Ray's id of it; '' until it is known
  # What the node may use there.
  env: Mapping[str, str] = dataclasses.field(default_factory=dict)
  begins: Any = None  # the agent's answer to the request to start the node
  begun: bool = False  # whether the agent was asked for that
  lost: bool = False  # whether the place is gone, and the node to be killed
  pid: int | None = None  # of the node's process
  said_at: float = 0.0  # when something was last said of the wait
  tries: int = 0  # how often Ray lost the place before it had one
  why: str = ''  # with what words
  again_at: float | None = None  # when to ask anew for a place that got lost
  not_on: frozenset[str] = frozenset()  # hosts that Ray was told to avoid


class Seats:
  """The seats of those nodes that are to run, by their index."""

  def __init__(self, needs: Sequence[resources.Needs], store: store_lib.Store):
    """`needs` is what each node asks for; none has a seat yet."""
    self._needs, self._store = needs, store
    self._class = actors.seat()
    self._seats: dict[int, Seat] = {}
    self._on: dict[str, dict[int, None]] = {}
    self._bad: dict[str, tuple[str, float]] = {}  # why, and since when
    self._alive: tuple[float, list[dict[str, Any]]] = -float('inf'), []
    self._fresh_at = self._held_at = 0.0

  def get(self, index: int) -> Seat | None:
    return self._seats.get(index)

  def items(self) -> list[tuple[int, Seat]]:
    return list(self._seats.items())

  def on(self, host: str) -> list[int]:
    """The nodes that have their place on a host."""
    return list(self._on.get(host, ()))

  def ask(self, index: int) -> None:
    """Asks Ray for a place, on a host that is not known to be bad."""
    options: dict[str, Any] = resources.options(self._needs[index])
    bad = self._avoided()
    if bad:
      options['label_selector'] = {_BY_HOST: f'!in({",".join(bad)})'}
    actor = self._class.options(scheduling_strategy='SPREAD', **options)
    actor = actor.remote()
    before = self.leave(index)
    seat = Seat(
      actor, actor.where.remote(), time.monotonic(), not_on=frozenset(bad)
    )
    if before is not None:
      seat.since, seat.tries, seat.why = before.since, before.tries, before.why
    self._seats[index] = seat

  def take(self, index: int, host: str, env: Mapping[str, str]) -> None:
    """The place is on that host."""
    seat = self._seats[index]
    seat.host, seat.env, seat.call = host, env, seat.actor.hold.remote()
    self._on.setdefault(host, {})[index] = None

  def lose(self, index: int, why: str) -> bool:
    """A place was lost before it was anywhere; returns whether to ask again."""
    seat = self._seats[index]
    pause_s = _PAUSE_S * 2**seat.tries
    seat.tries, seat.why, seat.call = seat.tries + 1, why, None
    seat.again_at = time.monotonic() + pause_s
    return seat.tries < MOST_TRIES

  def leave(self, index: int) -> Seat | None:
    """The node needs its place no more; returns what that was."""
    seat = self._seats.pop(index, None)
    if seat is not None:
      self._on.get(seat.host, {}).pop(index, None)
      with contextlib.suppress(Exception):  # Ray itself may be gone
        self._store.kill(seat.actor)
    return seat

  def close(self) -> None:
    for index in list(self._seats):
      self.leave(index)

  def look(self) -> list[tuple[int, Any]] | None:
    """Nodes and their calls that are answered; None if it did not look.

    It does not at each call: thousands of nodes have a place.
    """
    import ray

    now = time.monotonic()
    if now < self._fresh_at:
      return None
    self._fresh_at = now + _FRESH_S
    all_of_them = now >= self._held_at
    if all_of_them:
      self._held_at = now + _HELD_S
    calls: dict[Any, int] = {}
    for index, seat in self._seats.items():
      if seat.call is not None and (all_of_them or not seat.host):
        calls[seat.call] = index
      if seat.begins is not None and all_of_them:
        calls[seat.begins] = index
    if not calls:
      return []
    ready, _ = ray.wait([*calls], num_returns=len(calls), timeout=0)
    return [(calls[call], call) for call in ready]

  def waits(self) -> bool:
    """Whether a node has waited for its place for less than it may."""
    least = time.monotonic() - EXCUSED_S
    return any(
      seat.pid is None and seat.since > least for seat in self._seats.values()
    )

  def words(self, index: int) -> str:
    """What a node without a place waits for."""
    words = f'waits for {resources.words(self._needs[index])}'
    bad = self._avoided()
    if bad:
      words += f', and {len(bad)} of the hosts cannot run nodes'
    why = self._seats[index].why
    return f'{words}; the last place was lost: {why}' if why else words

  # --- Hosts that cannot run nodes --------------------------------------------

  def avoid(self, host: str, why: str) -> bool:
    """No node is placed there for a while; returns whether that is new."""
    before = self._avoided().get(host)
    self._bad[host] = (before or why), time.monotonic()
    return before is None

  def avoids(self, host: str) -> bool:
    return host in self._avoided()

  def late(self, index: int) -> bool:
    """Whether a node waits for a place and leaves out a host that is fine."""
    seat = self._seats[index]
    return not seat.host and not seat.not_on <= self._avoided().keys()

  def _avoided(self) -> dict[str, str]:
    """Hosts that could run no node lately, and why."""
    least = time.monotonic() - _AVOIDED_S
    self._bad = {h: bad for h, bad in self._bad.items() if bad[1] > least}
    return {host: why for host, (why, _) in self._bad.items()}

  def impossible(self, index: int) -> str:
    """Why no host can take a node; '' if one can, or others are to blame."""
    bad = self._avoided()
    if not bad:
      return ''
    need = self._needs[index]
    fit = [
      node for node in self._hosts() if resources.fits(need, node['Resources'])
    ]
    if any(node['NodeID'] not in bad for node in fit):
      return ''
    return '; '.join(bad[node['NodeID']] for node in fit)

  def _hosts(self) -> list[dict[str, Any]]:
    when, found = self._alive
    if time.monotonic() > when + _ALIVE_S:
      with contextlib.suppress(TimeoutError):
        found = self._store.nodes()
      self._alive = time.monotonic(), found
    return found
