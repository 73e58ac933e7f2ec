"""The graphs and the arithmetic of mixing, as pure functions on vectors.

Assran et al. 2019 (GALA, arXiv:1906.04585); docs/topologies/gossip.md lists the
equations beside the functions. The exchange is in mix.py.
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
  """Which workers, placed on a circle, exchange messages in each iteration.

  In iteration k worker i hears `peers` of its in-neighbours, those at the next
  distances of the topology, in turn; as many workers hear it. Each mixing
  matrix W therefore has equal weights 1/(p+1) and is doubly stochastic.
  """

  topology: Topology
  size: int  # workers, n
  peers: int = 1  # in-neighbours per iteration, p

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
    """Distances on the circle to the in-neighbours behind a worker."""
    n = self.size
    found = {
      'ring': [1],
      'bidirectional_ring': [1, -1],
      'exponential': [2**e for e in range(n.bit_length())],
      'full': list(range(1, n)),
    }[self.topology]
    return list(dict.fromkeys(d % n for d in found if d % n))

  @property
  def cycle(self) -> int:
    """Number of iterations after which the turns repeat."""
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
  """One row of W: equal weights; `own` replaces what has not arrived.

  `arrived` are parameters of in-neighbours that were not mixed before, of the
  `expected` ones that are alive in this iteration.
  """
  share = own.dtype.type(1 / (expected + 1))
  mixed = (1 - share * len(arrived)) * own
  for theirs in arrived:
    mixed += share * theirs
  return mixed


def average(vectors: Sequence[np.ndarray], steps: Sequence[float]):
  """`sum_j q_j theta_j`, with `q_j = m_j / sum m` for environment steps m."""
  weights = np.asarray(steps, np.float64)
  weights = weights / weights.sum()
  total = np.zeros_like(vectors[0])
  for weight, vector in zip(weights, vectors):
    total += vector.dtype.type(weight) * vector
  return total


def bound_factor(graph: Graph) -> float:
  """Factor on `max_k ||rate G_k||_F` that bounds the deviation from the mean.

  With a single matrix, `D <- beta (D + g)` gives `D <= beta / (1 - beta) g`,
  where beta, its second largest singular value, bounds the share of a deviation
  that mixing leaves. With a cycle of matrices, add up beta of the product from
  each step on, and divide by 1 - beta of the whole product. The cycle may begin
  anywhere, so the worst case counts.
  """
  if graph.size == 1:
    return 0.0
  # Each W is circulant, so all have the same eigenvectors. The eigenvalues of W
  # are the Fourier transform of its first row, and those of matrices multiply.
  # Without the first one, which belongs to the mean, the largest is beta. It is
  # below 1 for a cycle, because distance 1 occurs in each.
  rows = np.zeros((graph.cycle, graph.size))
  for k, row in enumerate(rows):
    row[[0, *graph.sources(0, k)]] = 1 / (graph.peers + 1)
  values = np.abs(np.fft.fft(rows)[:, 1:])
  worst = 0.0
  for last in range(graph.cycle):
    # Products from the last step of the cycle back to its first.
    betas = np.cumprod(np.roll(values, last, 0)[::-1], 0).max(1)
    worst = max(worst, betas.sum() / (1 - betas[-1]))
  return float(worst)


def may_begin(iteration: int, heard: int, tau: int | None) -> bool:
  """The lock: whether a worker may begin the iteration after `iteration`.

  An in-neighbour, known to have completed iteration `heard`, may be at most
  `tau` iterations behind; None allows any number.
  """
  return tau is None or heard >= iteration - tau
