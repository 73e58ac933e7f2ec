"""Who mixes with whom, and the arithmetic of mixing: pure functions on vectors.

Assran et al. 2019 (GALA, arXiv:1906.04585); docs/topologies/gossip.md has the
equations beside the functions. The exchange is mix.py.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import functools
import math
from typing import Literal, get_args

import numpy as np

Topology = Literal['ring', 'bidirectional_ring', 'exponential', 'full']


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

  @functools.cached_property
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

  def neighbours(self, worker: int) -> list[int]:
    """In- and out-neighbours of a worker in any iteration."""
    return sorted({*self.all_sources(worker), *self.all_receivers(worker)})


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


def bound_factor(graph: Graph) -> float:
  """What times `max_k ||rate G_k||_F` bounds the deviation from the mean.

  With one matrix: `D <- beta (D + g)`, so `D <= beta / (1 - beta) g`, where
  beta is its second largest singular value: by what it shrinks deviations at
  least. With matrices in turn, of a cycle that begins anywhere: the sum over
  its steps of the beta of what follows them, over 1 less that of the whole
  cycle.
  """
  if graph.size == 1:
    return 0.0
  # Each W is circulant, so that all have the same eigenvectors: the eigenvalues
  # of one are the Fourier transform of its first row, those of a product are
  # their products. Without the first, that of the mean, the largest is beta. It
  # is below 1, as distance 1 comes in each cycle.
  rows = np.zeros((graph.cycle, graph.size))
  for k, row in enumerate(rows):
    row[[0, *graph.sources(0, k)]] = 1 / (graph.peers + 1)
  values = np.abs(np.fft.fft(rows)[:, 1:])
  worst = 0.0
  for last in range(graph.cycle):
    # From the last step of the cycle back to its first.
    betas = np.cumprod(np.roll(values, last, 0)[::-1], 0).max(1)
    worst = max(worst, betas.sum() / (1 - betas[-1]))
  return float(worst)


def may_begin(iteration: int, heard: int, tau: int | None) -> bool:
  """The lock: whether a worker may begin the iteration after this one.

  Args:
    iteration: that it has ended.
    heard: newest iteration that it knows of an in-neighbour.
    tau: iterations that one may be behind; None: any number.
  """
  return tau is None or heard >= iteration - tau
