"""Gossip: each worker mixes its parameters with those of a few neighbours.

Assran et al. 2019 (GALA, arXiv:1906.04585). With X [n, D] the parameters of n
workers, one local step each and then one mixing is

    X <- W (X - rate * G)

Worker i does its row of W alone: its own update, then its own message to its
out-neighbours, then the mixture of what its in-neighbours have sent. An
iteration is one call of the learner. There is no server and no barrier: a
worker waits only while an in-neighbour is more than `tau` iterations behind.

The first half of this module is pure functions, on vectors; `Mix` is the
exchange. What carries messages is behind `Carrier`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
import dataclasses
import logging
import math
import time
from typing import Literal, NamedTuple, Protocol, get_args

import numpy as np
import tensorflow as tf

from agents.exchange import local

_logger = logging.getLogger(__name__)

Topology = Literal['ring', 'bidirectional_ring', 'exponential', 'full']

# Iteration of a worker that learns no more: nobody waits for it.
LEFT = 2**62
_LOOK_AROUND_S = 0.5
# A worker that was never heard of may still trace its update.
_FIRST_PATIENCE_S = 120.0


@dataclasses.dataclass(frozen=True)
class Graph:
  """Who sends to whom, in which iteration: workers on a circle.

  In iteration k worker i hears `peers` of its in-neighbours, and as many hear
  it: those at the next distances of the topology, in turn. So each W has equal
  weights 1/(p+1) and is doubly stochastic.

  Attributes:
    topology: name.
    size: workers, n.
    peers: in-neighbours of one iteration, p.
  """

  topology: Topology
  size: int
  peers: int = 1

  def __post_init__(self):
    known = get_args(Topology)
    if self.topology not in known:
      raise ValueError(
        f'topology={self.topology!r} is not known. Choose one of {known}.'
      )
    most = max(1, len(self.distances))
    if not 1 <= self.peers <= most:
      raise ValueError(
        f'peers_per_iteration={self.peers} must be from 1 to {most}: a '
        f'{self.topology} of {self.size} workers has so many in-neighbours.'
      )

  @property
  def distances(self) -> list[int]:
    """How far behind a worker on the circle its in-neighbours are."""
    n = self.size
    found = {
      'ring': [1],
      'bidirectional_ring': [1, -1],
      'exponential': [2**e for e in range(n.bit_length()) if 2**e < n],
      'full': list(range(1, n)),
    }[self.topology]
    return list(dict.fromkeys(d % n for d in found if d % n))

  @property
  def cycle(self) -> int:
    """Iterations after which the turns repeat."""
    count = max(1, len(self.distances))
    return count // math.gcd(count, self.peers)

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

  def matrix(self, iteration: int) -> np.ndarray:
    """`W [n, n]` of an iteration: row i is what worker i takes of each."""
    weights = np.eye(self.size)
    for worker in range(self.size):
      weights[worker, self.sources(worker, iteration)] = 1.0
    return weights / weights.sum(axis=1, keepdims=True)


def mix_row(
  own: np.ndarray, arrived: Sequence[np.ndarray], expected: int
) -> np.ndarray:
  """One row of W: equal weights; what has not arrived is replaced by `own`.

  Args:
    own: parameters of this worker.
    arrived: those of in-neighbours, not mixed before.
    expected: in-neighbours of this iteration that live.
  """
  share = own.dtype.type(1 / (expected + 1))
  mixed = (1 - share * len(arrived)) * own
  for theirs in arrived:
    mixed += share * theirs
  return mixed


def push_sum(
  shares: np.ndarray, numerators: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """One round of push-sum, for graphs of which W is not doubly stochastic.

  Every `Graph` is regular, so `Mix` needs none of it.

  Args:
    shares: [n, n], column j is what worker j sends to each; columns sum to 1.
    numerators: [n, D].
    weights: [n]; a worker's parameters are its numerator over its weight.
  """
  return shares @ numerators, shares @ weights


def average(vectors: Sequence[np.ndarray], steps: Sequence[float]):
  """`sum_j q_j theta_j`, with `q_j = m_j / sum m` of environment steps m."""
  weights = np.asarray(steps, np.float64)
  weights = weights / weights.sum()
  total = np.zeros_like(vectors[0])
  for weight, vector in zip(weights, vectors):
    total += vector.dtype.type(weight) * vector
  return total


def contraction(weights: np.ndarray) -> float:
  """beta: by what a doubly stochastic `W [n, n]` shrinks deviations at least.

  Its second largest singular value: the largest once the mean is taken off.
  """
  size = len(weights)
  return float(np.linalg.norm(weights - np.full((size, size), 1 / size), 2))


def bound_factor(graph: Graph) -> float:
  """What times `max_k ||rate G_k||_F` bounds the deviation from the mean.

  With one matrix: `D <- beta (D + g)`, so `D <= beta / (1 - beta) g`. With
  matrices in turn, of a cycle that begins anywhere: the sum over its steps of
  the contraction of what follows them, over 1 less that of the whole cycle.
  """
  if graph.size == 1:
    return 0.0
  matrices = [graph.matrix(k) for k in range(graph.cycle)]
  worst = 0.0
  for first in range(graph.cycle):
    product, total = np.eye(graph.size), 0.0
    for weights in reversed(matrices[first:] + matrices[:first]):
      product = product @ weights
      total += contraction(product)
    beta = contraction(product)
    worst = max(worst, total / (1 - beta) if beta < 1 else math.inf)
  return worst


def may_begin(iteration: int, heard: int, tau: int | None) -> bool:
  """The lock: whether a worker may begin the iteration after this one.

  Args:
    iteration: that it has ended.
    heard: newest iteration that it knows of an in-neighbour.
    tau: iterations that one may be behind; None: any number.
  """
  return tau is None or heard >= iteration - tau


class Message(NamedTuple):
  """What a worker tells after an iteration.

  Attributes:
    iteration: that it has ended.
    theta: [P, D] after the worker's own update; None says the number alone.
    largest_step: longest update that it knows of, any worker's.
  """

  iteration: int
  theta: np.ndarray | None = None
  largest_step: float = 0.0


class Carrier(Protocol):
  """Brings messages; see launch/services/gossip.py and gossip_memory.py."""

  @property
  def received(self) -> int:
    """Messages so far, from all."""

  @property
  def refused(self) -> int:
    """Of those, not finite or damaged."""

  def start(self, shape: tuple[int, ...]) -> None:
    """Begins to carry parameters of this shape."""

  def send(self, receivers: Iterable[int], message: Message) -> None:
    """Sends, and returns at once; a newer message replaces an older one."""

  def newest(self, sender: int) -> Message | None:
    """The newest message with parameters; None before the first."""

  def heard(self, sender: int) -> tuple[int, int]:
    """Messages from a sender, and the newest iteration among them."""

  def wait(self, received: int, timeout_s: float) -> None:
    """Waits until there were more messages than `received`."""

  def close(self) -> None:
    """Ends sending."""


class Average(Protocol):
  """Finds the mean of all workers; see launch/services/gossip.py."""

  def __call__(
    self,
    number: int,
    steps: int,
    theta: np.ndarray,
    over: Callable[[], bool],
  ) -> np.ndarray | None:
    """The mean of a round; None if there is none."""

  def leave(self) -> None:
    """This worker takes no part in later rounds."""


class Mix(local.Local):
  """The gradient; between calls, the mixture with in-neighbours.

  In this order: own update, own message, wait by the lock, mixture, and every
  `avg_period` iterations the mean of all. Between two rollouts only, so what
  acts is what learns. A neighbour that keeps the lock for `lock_timeout_s` is
  taken for dead: its row goes on without it until it is heard again.
  """

  shared_start = True

  def __init__(
    self,
    graph: Graph,
    index: int,
    carrier: Carrier,
    tau: int | None = 1,
    lock_timeout_s: float = 10.0,
    avg_period: int = 0,
    average: Average | None = None,
    ask: Callable[[], Message | None] = lambda: None,
  ):
    """Makes the exchange of one worker.

    Args:
      graph: of all workers.
      index: of this one.
      carrier: of its messages.
      tau: iterations that an in-neighbour may be behind; None: any number.
      lock_timeout_s: how long it waits for one that is further behind.
      avg_period: iterations between two means of all; 0: none.
      average: finds them.
      ask: what a live neighbour has now; None if none answers.
    """
    self._ask = ask
    self._graph = graph
    self._index = index
    self._carrier = carrier
    self._tau = tau
    self._timeout_s = lock_timeout_s
    self._period = avg_period if average is not None else 0
    self._average = average
    self._sources = graph.all_sources(index)
    self._bound_factor = bound_factor(graph)
    self._again = self._due = False
    self._begun: Message | None = None  # what this worker has now
    self._last: np.ndarray | None = None  # parameters after the last mixture
    self._first = self._iteration = 0
    self._averaged_at = 0  # steps
    self._mixed = dict.fromkeys(self._sources, -1)  # newest iteration
    self._staleness: dict[int, int] = {}
    self._dead: dict[int, int] = {}  # to the messages heard before
    self._largest_step = 0.0
    self._mixtures = self._averages = 0
    self._waited_s = 0.0

  def setup(self, learner, seed):
    self._kept = tf.Variable(0, dtype=tf.int64, name='gossip_iteration')

  def variables(self):
    return {'gossip_iteration': self._kept}

  def initial(self, theta, again):
    self._again = again
    return theta

  def begin(self, worker):
    self._worker = worker
    self._iteration = int(self._kept.numpy())
    found = self._ask() if self._again else None
    behind = 0 if found is None else found.iteration - self._iteration
    # What the lock allows may be so in a run that is resumed.
    if behind > (0 if self._tau is None else self._tau + 1):
      assert found is not None and found.theta is not None
      _logger.info(
        'Going on from iteration %d of a neighbour, not from %d.',
        found.iteration,
        self._iteration,
      )
      self._count(found.iteration)
      worker.learner.set_parameters(found.theta)
    self._first = self._iteration
    self._averaged_at = worker.steps
    theta = worker.learner.parameters()
    self._keep(theta)
    self._carrier.start(theta.shape)
    self._carrier.send(
      self._graph.all_receivers(self._index), Message(self._iteration)
    )

  def state(self) -> Message | None:
    """What this worker has now; None before it has begun."""
    return self._begun

  def updated(self, result):
    self._count(self._iteration + 1)
    self._due = True

  def sync(self):
    if not self._due:
      return False
    self._due = False
    iteration, own = self._iteration, self._worker.learner.parameters()
    self._measure(own)
    self._send(iteration, own)
    self._wait(iteration)
    theta = self._mixture(iteration, own)
    if self._period and iteration % self._period == 0:
      theta = self._mean(iteration // self._period, theta)
    moved = theta is not own
    if moved:
      self._worker.learner.set_parameters(theta)
    self._keep(theta)
    return moved

  def ended(self):
    self._carrier.send(self._graph.all_receivers(self._index), Message(LEFT))
    if self._average is not None:
      self._average.leave()

  def replacement(self, member):
    for source in self._sources:
      newest = self._carrier.newest(source)
      if newest is not None and newest.theta is not None:
        return newest.theta[member]
    return None

  def reset_member(self, member):
    self._last = None  # what comes next is no step of the learner

  def metrics(self):
    found = {
      'gossip_iteration': self._iteration,
      'gossip_waited_s': self._waited_s,
      'mixtures': self._mixtures,
      'averages': self._averages,
      'neighbours_dead': len(self._dead),
      'messages_refused': self._carrier.refused,
      'distance_bound': self._bound_factor
      * math.sqrt(self._graph.size)
      * self._largest_step,
      **{
        f'staleness_from_{source}': late
        for source, late in self._staleness.items()
      },
    }
    if self._begun is not None and self._begun.theta is not None:
      newest = [self._carrier.newest(source) for source in self._sources]
      own = self._begun.theta
      known = [m.theta for m in newest if m is not None and m.theta is not None]
      mean = np.mean([own, *known], axis=0)
      found['distance_to_mean'] = float(np.linalg.norm(own - mean))
      found['mean_norm'] = float(np.linalg.norm(mean))
    return found

  def close(self):
    self._carrier.close()

  # The parts of an iteration.

  def _count(self, iteration: int) -> None:
    self._iteration = iteration
    self._kept.assign(iteration)

  def _keep(self, theta: np.ndarray) -> None:
    self._last = theta
    self._begun = Message(self._iteration, theta)

  def _measure(self, own: np.ndarray) -> None:
    if self._last is not None:
      step = float(np.linalg.norm(own - self._last))
      if math.isfinite(step):
        self._largest_step = max(self._largest_step, step)

  def _send(self, iteration: int, own: np.ndarray) -> None:
    number = Message(iteration, None, self._largest_step)
    full = number._replace(theta=own) if np.isfinite(own).all() else number
    now = self._graph.receivers(self._index, iteration)
    self._carrier.send(now, full)
    # The others need only know how far this worker is.
    others = set(self._graph.all_receivers(self._index)) - set(now)
    self._carrier.send(others, number)

  def _wait(self, iteration: int) -> None:
    """Until no living in-neighbour is more than tau behind."""
    self._readmit()
    begin = time.monotonic()
    while True:
      received = self._carrier.received
      late = [j for j in self._sources if self._holds(j, iteration)]
      waited_s = time.monotonic() - begin
      if not late or self._worker.over():
        break
      for source in late:
        count, _ = self._carrier.heard(source)
        if waited_s > (self._timeout_s if count else _FIRST_PATIENCE_S):
          self._dead[source] = count
          _logger.warning(
            'Worker %d was not heard of for %.1f s: going on without it.',
            source,
            waited_s,
          )
      self._carrier.wait(received, min(_LOOK_AROUND_S, self._timeout_s))
    self._waited_s += waited_s

  def _holds(self, source: int, iteration: int) -> bool:
    if source in self._dead:
      return False
    count, heard = self._carrier.heard(source)
    # At the start all have the same, whatever their number.
    heard = max(heard, self._first) if count else self._first
    return not may_begin(iteration, heard, self._tau)

  def _readmit(self) -> None:
    for source, before in list(self._dead.items()):
      if self._carrier.heard(source)[0] != before:
        del self._dead[source]
        _logger.warning('Worker %d is heard again.', source)

  def _mixture(self, iteration: int, own: np.ndarray) -> np.ndarray:
    """What is learned from next; `own` itself if nothing has arrived."""
    living = [
      j
      for j in self._graph.sources(self._index, iteration)
      if j not in self._dead
    ]
    arrived = []
    for source in living:
      message = self._carrier.newest(source)
      # Nothing is mixed twice.
      if message is None or message.iteration <= self._mixed[source]:
        continue
      assert message.theta is not None
      self._mixed[source] = message.iteration
      self._staleness[source] = iteration - message.iteration
      self._largest_step = max(self._largest_step, message.largest_step)
      arrived.append(message.theta)
    if not arrived or not np.isfinite(own).all():
      return own
    self._mixtures += 1
    return mix_row(own, arrived, len(living))

  def _mean(self, number: int, theta: np.ndarray) -> np.ndarray:
    assert self._average is not None
    steps = self._worker.steps
    begin = time.monotonic()
    found = self._average(
      number, max(1, steps - self._averaged_at), theta, self._worker.over
    )
    self._waited_s += time.monotonic() - begin
    self._averaged_at = steps
    if found is None:
      return theta
    self._averages += 1
    return found
