"""Gossip: each worker mixes its parameters with those of a few neighbours.

Assran et al. 2019 (GALA, arXiv:1906.04585). With X [n, D] the parameters of n
workers, one local step each followed by one mixing is

    X <- W (X - rate * G)

Worker i computes its row of W alone: its own update, then a message to its
out-neighbours, then the mixture with what its in-neighbours have sent. An
iteration is one call of the learner. There is no server and no barrier: once
all have begun, a worker waits only while an in-neighbour is more than `tau`
iterations behind.

Each worker serves `push_message`, which fills its inbox: one slot for each
sender, where the newest message wins. A thread for each receiver sends from a
slot of the same kind, so that a slow or dead receiver does not delay learning.

    worker j: sync -> slot -> thread ==push_message==> worker i: slot -> sync
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import functools
import logging
import threading
import time
from typing import Any, Literal, NamedTuple

import numpy as np
import tensorflow as tf

from murmuration.agents.exchange import local
from murmuration.launch import pulse
from murmuration.launch import rpc
from murmuration.launch.services import gossip_averager

_logger = logging.getLogger(__name__)

# The iteration announced by a worker that has ended, so that none waits for it.
LEFT = 2**62
_DEADLINE_S = 2.0
_PAUSE_S = 0.5  # before an unavailable receiver is called again
# A receiver that was killed since does not know that this worker has ended.
_LEFT_PERIOD_S = 2.0
_LOOK_AROUND_S = 0.5

Topology = Literal['ring', 'bidirectional_ring', 'exponential', 'full']


@dataclasses.dataclass(frozen=True)
class Graph:
  """Which workers, placed on a circle, exchange messages in each iteration.

  In iteration k worker i hears `peers` of its in-neighbours, those at the next
  distances of the topology, in turn; as many workers hear it. Each mixing
  matrix W therefore has equal weights 1/(p+1) and is doubly stochastic.
  """

  topology: Topology
  size: int  # workers, n
  peers: int = 1  # in-neighbours per iteration, p

  def __post_init__(self):
    most = max(1, len(self.distances))
    if not 1 <= self.peers <= most:
      raise ValueError(
        f'peers_per_iteration={self.peers} must be from 1 to {most}: a '
        f'{self.topology} of {self.size} workers has so many in-neighbours.'
      )

  @functools.cached_property
  def distances(self) -> list[int]:
    """Distances on the circle to the in-neighbours behind a worker."""
    n = self.size
    found = {
      'ring': [1],
      'bidirectional_ring': [1, -1],
      'exponential': [2**e for e in range(n.bit_length())],
      'full': list(range(1, n)),
    }[self.topology]
    return list(dict.fromkeys(d % n for d in found if d % n))

  def _turn(self, iteration: int) -> list[int]:
    own = self.distances
    first = iteration * self.peers
    return [own[(first + i) % len(own)] for i in range(self.peers) if own]

  def sources(self, worker: int, iteration: int) -> list[int]:
    """In-neighbours of a worker in an iteration."""
    return [(worker - d) % self.size for d in self._turn(iteration)]

  def receivers(self, worker: int, iteration: int) -> list[int]:
    """Out-neighbours of a worker in an iteration."""
    return [(worker + d) % self.size for d in self._turn(iteration)]

  def all_sources(self, worker: int) -> list[int]:
    """In-neighbours of a worker in any iteration."""
    return [(worker - d) % self.size for d in self.distances]

  def all_receivers(self, worker: int) -> list[int]:
    """Out-neighbours of a worker in any iteration."""
    return [(worker + d) % self.size for d in self.distances]

  def neighbours(self, worker: int) -> list[int]:
    """In- and out-neighbours of a worker in any iteration."""
    return sorted({*self.all_sources(worker), *self.all_receivers(worker)})


def mix_row(
  own: np.ndarray, arrived: Sequence[np.ndarray], expected: int
) -> np.ndarray:
  """One row of W: equal weights; `own` replaces what has not arrived.

  `arrived` are parameters of in-neighbours that were not mixed before, of the
  `expected` ones that are alive in this iteration.
  """
  share = own.dtype.type(1 / (expected + 1))
  mixed = (1 - share * len(arrived)) * own
  for theirs in arrived:
    mixed += share * theirs
  return mixed


class Message(NamedTuple):
  """What a worker sends after an iteration."""

  iteration: int  # that it has completed
  theta: Any = None  # float32 [P, D] after its own update, if sent


class NothingMixed(RuntimeError):
  """Neighbours are heard, and no parameters of theirs arrive."""

  no_restart_helps = True


class Inbox:
  """The newest message of each sender. Thread-safe.

  Attributes:
    newest: by sender, the newest message with parameters.
    counts: number of messages from each sender.
    iterations: newest iteration announced by each sender.
    received: number of messages from all senders.
    refused: of these, the number whose parameters were not finite.
  """

  def __init__(self):
    self._changed = threading.Condition()
    self.newest: dict[int, Message] = {}
    self.counts: dict[int, int] = {}
    self.iterations: dict[int, int] = {}
    self.received = self.refused = 0

  def put(self, sender: int, message: Message) -> None:
    iteration, theta = message
    with self._changed:
      self.received += 1
      self.counts[sender] = self.counts.get(sender, 0) + 1
      self.iterations[sender] = max(iteration, self.iterations.get(sender, 0))
      if theta is not None and not np.isfinite(theta).all():
        self.refused += 1
        if self.refused == 1:
          _logger.warning(
            'Refused parameters of worker %d, iteration %d: not finite.',
            sender,
            iteration,
          )
      elif theta is not None:
        before = self.newest.get(sender)
        if before is None or iteration > before.iteration:
          self.newest[sender] = message
      self._changed.notify_all()

  def wait(self, received: int, timeout_s: float) -> None:
    """Waits until more than `received` messages have arrived."""
    with self._changed:
      self._changed.wait_for(lambda: self.received > received, timeout_s)


class Sender:
  """Sends the newest messages to one receiver, in a thread.

  Attributes:
    fault: the error that ended the thread, if one did.
  """

  def __init__(self, own: int, client: Any):
    self._own, self._client = own, client
    self._changed = threading.Condition()
    self._waiting: list[Message] = []
    self._closed = threading.Event()
    self.fault: Exception | None = None
    self._thread = threading.Thread(
      target=self._run, name='gossip-sender', daemon=True
    )

  def start(self) -> None:
    self._thread.start()

  def put(self, message: Message) -> None:
    """Sends a message; it replaces older ones that were not sent yet."""
    with self._changed:
      self._waiting = _newest([*self._waiting, message])
      self._changed.notify_all()

  def close(self) -> None:
    self._closed.set()
    with self._changed:
      self._changed.notify_all()

  def _run(self) -> None:
    try:
      self._send()
    except Exception as e:  # raised in the worker's own loop
      self.fault = e

  def _send(self) -> None:
    away = False
    left: list[Message] = []  # repeated while nothing else is to be sent
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
          if taken[0].iteration == LEFT:
            left = [taken[0]]
          del taken[0]
          away = False
      except rpc.Unavailable as e:
        if not away and not self._closed.is_set():
          _logger.warning('A neighbour does not answer: %s', e)
        away = True
        with self._changed:
          self._waiting = _newest([*taken, *self._waiting])
        self._closed.wait(_PAUSE_S)


def _newest(messages: list[Message]) -> list[Message]:
  """The newest message with parameters, and a newer one without, if any."""
  full = [m for m in messages if m.theta is not None][-1:]
  if full and messages[-1] is full[0]:
    return full
  return [*full, *messages[-1:]]


class Gossip(local.Local):
  """The gradient; between calls, the mixture with in-neighbours.

  The order is: own update, own message, wait by the lock, mixture, and every
  `avg_period` iterations the mean of all workers. Mixing happens only between
  rollouts, so the parameters that act are those that learn. A neighbour that
  blocks the lock for `patience_s` is considered dead: mixing continues without
  it until a message from it arrives.
  """

  shared_start = True
  serves = ('push_message', 'gossip_state')

  def __init__(
    self,
    graph: Graph,
    index: int,
    neighbours: Mapping[int, Any],
    averager: Any = None,
    *,
    tau: int | None = 1,
    avg_period: int = 0,
    patience_s: float = 10.0,
    first_patience_s: float = 120.0,
  ):
    """Makes the exchange of one worker.

    Args:
      graph: of all workers.
      index: of this worker.
      neighbours: clients of its in- and out-neighbours, by index.
      averager: client of the averager; None: no means of all workers.
      tau: iterations that an in-neighbour may be behind; None: any number.
      avg_period: iterations between two means of all workers.
      patience_s: how long to wait for an in-neighbour that is further behind,
        or for a mean.
      first_patience_s: how long to wait at the start until all in-neighbours
        are heard, which may still trace their update.
    """
    self._graph, self._index, self._tau = graph, index, tau
    self._sources = graph.all_sources(index)
    self._patience_s = patience_s
    self._first_patience_s = first_patience_s
    self._clients = {
      j: client.with_deadline(_DEADLINE_S) for j, client in neighbours.items()
    }
    receivers = graph.all_receivers(index)
    self._senders = {
      j: Sender(index, client)
      for j, client in self._clients.items()
      if j in receivers
    }
    self._inbox = Inbox()
    self._period = 0 if averager is None else avg_period
    self._average: Any = None
    if averager is not None:
      self._average = gossip_averager.Averaging(index, averager, patience_s)
    self._again = self._due = False
    self._found: Message | None = None  # a neighbour's state at the start
    self._state: Message | None = None  # this worker's present state
    self._first = self._iteration = 0
    self._averaged_at = 0  # environment steps
    self._mixed = dict.fromkeys(self._sources, -1)  # newest iteration mixed
    self._staleness: dict[int, int] = {}
    self._dead: dict[int, int] = {}  # worker to messages heard before its death
    self._mixtures = self._averages = 0
    self._waited_s = 0.0
    self._began = time.monotonic()

  # Served over RPC.

  def push_message(self, sender: int, *message: Any) -> None:
    """Takes the fields of a neighbour's `Message`."""
    self._inbox.put(sender, Message(*message))

  def gossip_state(self, asker: int) -> Message | None:
    """This worker's present state; None before it has begun.

    The asker was started again, and waits for a message of each in-neighbour:
    it gets one.
    """
    if self._state is not None and asker in self._senders:
      self._send([asker], Message(self._state.iteration))
    return self._state

  # The exchange.

  def setup(self, learner, seed):
    self._kept = tf.Variable(0, dtype=tf.int64, name='gossip_iteration')
    agent = learner.agent
    self._maxima = [
      v.slice for v in agent.layout.variables if v.name in agent.maxima
    ]

  def variables(self):
    if self._state is not None:
      self._kept.assign(self._iteration)  # only needed when saving
    return {'gossip_iteration': self._kept}

  def initial(self, theta, again):
    # The target network starts from these parameters too. A checkpoint is
    # restored later and overrides both.
    self._again, self._found = again, self._ask() if again else None
    return theta if self._found is None else self._found.theta

  def begin(self, worker):
    self._worker = worker
    self._iteration = int(self._kept.numpy())
    # The neighbours have gone on while the update was traced.
    found = (self._ask() or self._found) if self._again else None
    behind = 0 if found is None else found.iteration - self._iteration
    # A resumed run may start with any difference that the lock allows.
    if behind > (0 if self._tau is None else self._tau + 1):
      assert found is not None
      _logger.info(
        'Going on from iteration %d of a neighbour, not from %d.',
        found.iteration,
        self._iteration,
      )
      self._iteration = found.iteration
      worker.learner.set_parameters(found.theta)
    self._first = self._iteration
    self._averaged_at = worker.steps
    self._state = Message(self._iteration, worker.learner.parameters())
    for sender in self._senders.values():
      sender.start()
    self._send(self._senders, Message(self._iteration))
    self._meet()
    self._began = time.monotonic()
    if self._average is not None:
      self._average.meet(self._first_patience_s, worker.over)

  def updated(self, result):
    self._iteration += 1
    self._due = True

  def sync(self):
    self._raise_faults()
    if not self._due:
      return False
    self._due = False
    iteration, own = self._iteration, self._worker.learner.parameters()
    number = Message(iteration)
    now = self._graph.receivers(self._index, iteration)
    self._send(now, Message(iteration, own) if _finite(own) else number)
    # The other neighbours only need to know this worker's iteration.
    self._send(set(self._senders) - set(now), number)
    self._wait(iteration)
    passed_s = time.monotonic() - self._began
    silent = self._sources and not self._inbox.newest
    if silent and passed_s > self._first_patience_s:
      raise NothingMixed(
        f'No parameters of a neighbour have arrived in {passed_s:.0f} s, '
        'though they are heard: is the connection too slow for messages of '
        f'{own.nbytes:,} bytes?'
      )
    theta = self._mixture(iteration, own)
    if self._period and iteration % self._period == 0:
      theta = self._mean(iteration // self._period, theta)
    moved = theta is not own
    if moved:
      self._worker.learner.set_parameters(theta)
    self._state = Message(iteration, theta)
    return moved

  def ended(self):
    self._send(self._senders, Message(LEFT))
    if self._average is not None:
      self._average.leave()

  def replacement(self, member):
    known = map(self._inbox.newest.get, self._sources)
    return next((m.theta[member] for m in known if m is not None), None)

  def metrics(self):
    found = {
      'gossip_iteration': self._iteration,
      'gossip_waited_s': self._waited_s,
      'mixtures': self._mixtures,
      'averages': self._averages,
      'neighbours_dead': len(self._dead),
      'messages_refused': self._inbox.refused,
      **{
        f'staleness_from_{source}': late
        for source, late in self._staleness.items()
      },
    }
    if self._state is not None:
      own, known = self._state.theta, map(self._inbox.newest.get, self._sources)
      mean = np.mean([own, *(m.theta for m in known if m is not None)], axis=0)
      found['distance_to_mean'] = float(np.linalg.norm(own - mean))
      found['mean_norm'] = float(np.linalg.norm(mean))
    return found

  def close(self):
    for sender in self._senders.values():
      sender.close()

  # Between workers.

  def _send(self, receivers: Iterable[int], message: Message) -> None:
    for receiver in receivers:
      self._senders[receiver].put(message)

  def _raise_faults(self) -> None:
    for sender in self._senders.values():
      if sender.fault is not None:
        raise sender.fault

  def _ask(self) -> Message | None:
    """The newest finite state of any neighbour; None if none has one."""
    calls = [
      (client, 'gossip_state', (self._index,))
      for client in self._clients.values()
    ]
    # A neighbour that has not begun answers None; a failed call, an error.
    found = [
      Message(*answer)
      for answer in rpc.together(calls)
      if isinstance(answer, tuple) and _finite(answer[1])
    ]
    return max(found, key=lambda message: message.iteration, default=None)

  def _meet(self) -> None:
    """Waits until every in-neighbour has been heard.

    Raises:
      RuntimeError: one was not heard in time.
    """
    # Here and not in the first `_wait`: a node that fails before it has done
    # any work ends the run after a few restarts, any other is always restarted.
    begin, inbox = time.monotonic(), self._inbox
    while not self._worker.over():
      received = inbox.received
      missing = [j for j in self._sources if j not in inbox.counts]
      if not missing:
        break
      self._raise_faults()
      names = ', '.join(f'worker/{j}' for j in missing)
      if time.monotonic() - begin > self._first_patience_s:
        raise RuntimeError(
          f'No message of {names} has arrived within '
          f'{self._first_patience_s:g} s, so nothing can be mixed. Can this '
          'host be reached from theirs?'
        )
      pulse.waits(f'no message of {names} has arrived')
      inbox.wait(received, _LOOK_AROUND_S)

  # The parts of an iteration.

  def _wait(self, iteration: int) -> None:
    """Waits until no living in-neighbour is more than tau behind."""
    for source, before in list(self._dead.items()):
      if self._inbox.counts[source] != before:
        del self._dead[source]
        _logger.warning('Worker %d is heard again.', source)
    begin = time.monotonic()
    while True:
      received = self._inbox.received
      late = [j for j in self._sources if self._holds(j, iteration)]
      waited_s = time.monotonic() - begin
      if not late or self._worker.over():
        break
      self._raise_faults()
      if waited_s > self._patience_s:
        for source in late:
          self._dead[source] = self._inbox.counts[source]
          _logger.warning(
            'Waited %.1f s for worker %d, gone or more than gossip.tau '
            'iterations behind: going on without it.',
            waited_s,
            source,
          )
      self._inbox.wait(received, min(_LOOK_AROUND_S, self._patience_s))
    self._waited_s += waited_s

  def _holds(self, source: int, iteration: int) -> bool:
    """The lock: whether a worker has to wait before its next iteration."""
    if self._tau is None or source in self._dead:
      return False
    # All start equal, whatever the iteration number.
    heard = max(self._inbox.iterations[source], self._first)
    return heard < iteration - self._tau

  def _mixture(self, iteration: int, own: np.ndarray) -> np.ndarray:
    """The parameters to continue from; `own` itself if nothing has arrived."""
    living = [
      j
      for j in self._graph.sources(self._index, iteration)
      if j not in self._dead
    ]
    arrived = []
    for source in living:
      message = self._inbox.newest.get(source)
      # Each message is mixed once.
      if message is None or message.iteration <= self._mixed[source]:
        continue
      self._mixed[source] = message.iteration
      self._staleness[source] = iteration - message.iteration
      arrived.append(message.theta)
    if not arrived:
      return own
    self._mixtures += 1
    return self._with_maxima(mix_row(own, arrived, len(living)), own, *arrived)

  def _with_maxima(self, mixed: np.ndarray, *known: np.ndarray) -> np.ndarray:
    """`mixed` with running maxima as maxima are: a mean would forget them."""
    for place in self._maxima:
      mixed[:, place] = np.maximum.reduce([theta[:, place] for theta in known])
    return mixed

  def _mean(self, number: int, theta: np.ndarray) -> np.ndarray:
    steps, begin = self._worker.steps, time.monotonic()
    found = self._average(
      number, max(1, steps - self._averaged_at), theta, self._worker.over
    )
    self._waited_s += time.monotonic() - begin
    if found is None:
      return theta  # Its steps since the last mean count in the next one.
    self._averaged_at = steps
    self._averages += 1
    # What has come is read-only.
    return self._with_maxima(found.copy(), theta, found)


def _finite(theta: np.ndarray) -> bool:
  return bool(np.isfinite(theta).all())
