"""Several actors of one agent, and one forward pass for all of them.

Exploration and recurrent state belong to one actor: each has its `base.Actor`
and its generator. The network costs most of the time, and its rows are
independent. So a `Batchable` actor gives the inputs of its rows and takes their
outputs, and one pass computes the rows of all actors.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import math
from typing import Any, Protocol

import numpy as np

from agents import base

Arrays = tuple[np.ndarray, ...]


class Batchable(Protocol):
  """A `base.Actor` in four parts; `act` is one after the other.

  Only `choose` and `take` change its state: the parts before them may be
  repeated, also with other parameters.
  """

  def inputs(self, observation: np.ndarray, actor_steps: int) -> Arrays:
    """What its K rows are computed from, [K, ...] each."""

  def forward(self, theta: np.ndarray, *inputs: np.ndarray) -> Arrays:
    """The network, for rows of any actors of this agent: [M, ...] each."""

  def choose(self, outputs: Arrays, streams: Streams) -> Arrays:
    """Actions, then whatever `take` needs beside them, [M, ...] each."""

  def take(self, *chosen: np.ndarray) -> np.ndarray:
    """Keeps what belongs to its own rows, [K, ...] each; returns actions."""


class Streams:
  """Generators of several actors, drawn from as if they were one.

  Actor i's share of each draw is what its own generator would have given it
  alone: its actions do not depend on which other actors are in the batch.

  Attributes:
    parts: rows of each actor, and its generator.
    actors: likewise, for what explores in a way of its own.
  """

  def __init__(
    self,
    rngs: Sequence[np.random.Generator],
    rows: Sequence[int],
    actors: Sequence[Any] = (),
  ):
    self.parts: list[tuple[slice, np.random.Generator]] = []
    self.actors = actors
    end = 0
    for rng, count in zip(rngs, rows):
      self.parts.append((slice(end, end + count), rng))
      end += count

  def random(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """As `np.random.Generator.random`, for `shape` with leading axis M."""
    drawn = np.empty(shape, dtype)
    for rows, rng in self.parts:
      rng.random(dtype=dtype, out=drawn[rows])
    return drawn

  def standard_normal(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """As `np.random.Generator.standard_normal`, likewise."""
    drawn = np.empty(shape, dtype)
    for rows, rng in self.parts:
      rng.standard_normal(dtype=dtype, out=drawn[rows])
    return drawn


@dataclasses.dataclass
class Request:
  """One actor that asks for the actions of its K environments."""

  actor: base.Actor
  observation: np.ndarray  # [K, ...]
  actor_steps: int  # for schedules
  rng: np.random.Generator


class NotFinite(ArithmeticError):
  """The network gave numbers that are not finite.

  Attributes:
    broken: places of the requests that had such numbers among their rows.
  """

  def __init__(self, broken: list[int]):
    super().__init__(broken)
    self.broken = broken

  def __str__(self) -> str:
    return f'The outputs for requests {self.broken} are not finite.'


class Acting:
  """Acts for actors of one agent."""

  def __init__(self, agent: base.Agent, num_envs: int):
    """Makes what all actors share.

    Args:
      agent: of all of them.
      num_envs: environments of each, K.
    """
    # It serves no request; its network caches what it prepares of each theta.
    self._common: Any = agent.actor(base.ActorInfo(0, 1, 0), num_envs)
    self.batchable = hasattr(self._common, 'forward')

  def act(
    self, theta: np.ndarray, requests: Sequence[Request]
  ) -> list[np.ndarray]:
    """Actions [K, ...] for each request; one forward pass if batchable.

    Raises:
      NotFinite: nobody's state has changed if batchable; repeat it with other
        parameters, or without the broken requests.
    """
    if not self.batchable:
      return self._act_one_by_one(theta, requests)
    columns = [
      request.actor.inputs(request.observation, request.actor_steps)  # type: ignore[attr-defined]
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
    places = [place for place, _ in streams.parts]
    _check(outputs, places)
    chosen = self._common.choose(outputs, streams)
    return [
      request.actor.take(*(column[place] for column in chosen))  # type: ignore[attr-defined]
      for request, place in zip(requests, places)
    ]

  def _act_one_by_one(self, theta, requests):
    actions = [
      request.actor.act(
        theta, request.observation, request.actor_steps, request.rng
      )
      for request in requests
    ]
    broken = [i for i, a in enumerate(actions) if not np.isfinite(a).all()]
    if broken:
      raise NotFinite(broken)
    return actions


def _check(outputs: Arrays, places: Sequence[slice]) -> None:
  """Raises NotFinite for the requests whose rows are not finite."""
  bad = [
    x for x in outputs if x.size and x.dtype.kind == 'f' and not _finite(x)
  ]
  if bad:
    raise NotFinite(
      [
        i
        for i, place in enumerate(places)
        if not all(_finite(x[place]) for x in bad)
      ]
    )


def _finite(x: np.ndarray) -> bool:
  # A sum is finite only if all are; where it is not, it may just be large.
  return math.isfinite(np.add.reduce(x, axis=None)) or bool(
    np.isfinite(x).all()
  )
