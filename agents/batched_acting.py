"""One forward pass for several actors of one agent.

Exploration and recurrent state belong to an actor: each has its `base.Actor`
and its random generator. Most of the time is spent in the network, whose rows
are independent. A batchable actor therefore has its `act` in four parts, and
one pass computes the rows of all actors:

  inputs(observation, actor_steps)  the network's inputs for its rows [K, ...]
  forward(theta, *inputs)           outputs [M, ...], for rows of any actors
  choose(outputs, streams)          actions, then what else `take` needs
  take(*chosen)                     stores the state of its rows; their actions
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import math
from typing import Any

import numpy as np

from murmuration.agents import base
from murmuration.agents import contract

Arrays = tuple[np.ndarray, ...]


class Streams:
  """Generators of several actors, drawn from as if they were one.

  Actor i's share of each draw is what its own generator would give it alone, so
  its actions do not depend on the other actors in the batch.
  """

  def __init__(
    self,
    rngs: Sequence[np.random.Generator],
    rows: Sequence[int],
    actors: Sequence[Any] = (),
  ):
    # Rows of each actor, and its generator.
    self.parts: list[tuple[slice, np.random.Generator]] = []
    self.actors = actors  # in the same order, for their own ways to explore
    end = 0
    for rng, count in zip(rngs, rows):
      self.parts.append((slice(end, end + count), rng))
      end += count

  def random(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Like `np.random.Generator.random`; `shape` has the leading axis M."""
    drawn = np.empty(shape, dtype)
    for rows, rng in self.parts:
      rng.random(dtype=dtype, out=drawn[rows])
    return drawn

  def standard_normal(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Like `np.random.Generator.standard_normal`; leading axis M."""
    drawn = np.empty(shape, dtype)
    for rows, rng in self.parts:
      rng.standard_normal(dtype=dtype, out=drawn[rows])
    return drawn


@dataclasses.dataclass
class Request:
  """One actor's request for the actions of its K environments."""

  actor: Any  # `base.Actor`
  observation: np.ndarray  # [K, ...]
  actor_steps: int  # for schedules
  rng: np.random.Generator


class Acting:
  """Acts for actors of one agent."""

  def __init__(self, agent: base.Agent, num_envs: int):
    """Makes what all actors share; each has `num_envs` environments, K."""
    # It serves no request; its network caches what it prepares of a theta.
    self._common: Any = agent.actor(base.ActorInfo(0, 1, 0), num_envs)
    kind = type(self._common)
    parts = ('inputs', 'forward', 'choose', 'take')
    # Who has only an `act` of its own acts otherwise than its parent's parts.
    self.batchable = all(
      hasattr(kind, part) for part in parts
    ) and not contract.overrides(kind, 'act', 'forward')

  def act(
    self, theta: np.ndarray, requests: Sequence[Request]
  ) -> list[np.ndarray]:
    """Actions [K, ...] for each request; one forward pass if batchable.

    Raises:
      ArithmeticError: the network's outputs are not finite.
    """
    if not self.batchable:
      return [
        request.actor.act(
          theta, request.observation, request.actor_steps, request.rng
        )
        for request in requests
      ]
    columns = [
      request.actor.inputs(request.observation, request.actor_steps)
      for request in requests
    ]
    rows = [len(request.observation) for request in requests]
    inputs = columns[0]
    if len(columns) > 1:
      inputs = tuple(np.concatenate(parts) for parts in zip(*columns))
    outputs = self._common.forward(theta, *inputs)
    streams = Streams(
      [request.rng for request in requests],
      rows,
      [request.actor for request in requests],
    )
    _check(outputs)
    chosen = self._common.choose(outputs, streams)
    return [
      request.actor.take(*(column[place] for column in chosen))
      for request, (place, _) in zip(requests, streams.parts)
    ]


def _check(outputs: Arrays) -> None:
  """Raises ArithmeticError if outputs are not finite."""
  for x in outputs:
    # A finite sum proves that all are finite; another one may be an overflow.
    if x.size and x.dtype.kind == 'f':
      total = np.add.reduce(x, axis=None)
      if not math.isfinite(total) and not np.isfinite(x).all():
        raise ArithmeticError(
          'The network gives no finite numbers for an observation.'
        )
