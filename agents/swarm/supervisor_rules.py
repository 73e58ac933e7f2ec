"""The supervisor's rules, as pure state machines (Liu et al. 2018).

Of the candidates that explorers offer, the one with the highest claim waits.
`DefaultSupervision` or `LiteralSupervision` decides, one greedy episode at a
time, which candidate becomes theta_star and how strongly it pulls. The star
server drives these; tests/vectors/pso_supervisor.json has expected results.

Any number of supervisors may play: each requests an episode and reports its
return. The episodes of one trial are pooled in the order in which they end.
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import math
from typing import Any, NamedTuple

import numpy as np

from agents.swarm import explorers


def weight(x: int, b: int, k: float) -> float:
  """c = arctan(x / (k b)) in radians (equation 4)."""
  return math.atan(x / (k * b))


class Ticket(NamedTuple):
  """A greedy episode to play."""

  kind: str  # 'trial' or 'confirmation'
  candidate: int  # whose parameters are played


class Verdict(NamedTuple):
  """What a finished episode changed."""

  published: int | None  # candidate that became theta_star
  dropped: int | None  # candidate whose trial failed


@dataclasses.dataclass
class DefaultSupervision:
  """The default supervisor (docs/agents/pso_dqn.md).

  A trial of b + 1 episodes accepts a candidate if its mean beats R_star;
  between trials, episodes confirm theta_star. R_star is the mean of its last
  `window` returns.
  """

  b: int
  k: float
  c_max: float | None
  window: int
  idle_episodes: int

  star: int | None = None
  hist: list[float] = dataclasses.field(default_factory=list)
  x: int = 0
  c: float = 0.0
  claim_bar: float = -math.inf
  idle: int = 0
  waiting: tuple[int, float] | None = None  # candidate, claim
  trial: tuple[int, float] | None = None  # candidate, claim
  trial_returns: list[float] = dataclasses.field(default_factory=list)
  trial_in_flight: int = 0
  accepted: int = 0
  rejected: int = 0

  @property
  def r_star(self) -> float:
    """Mean of the last `window` returns of theta_star; -inf if none."""
    return float(np.mean(self.hist)) if self.hist else -math.inf

  @property
  def bar(self) -> float:
    """The claim that a new candidate must exceed to be kept."""
    return self.waiting[1] if self.waiting else -math.inf

  def offer(self, candidate: int, claim: float) -> bool:
    """Keeps the candidate if its claim exceeds that of the waiting one."""
    if not math.isfinite(claim) or claim <= self.bar:
      return False
    self.waiting = (candidate, claim)
    return True

  def next_episode(self) -> Ticket | None:
    """The next episode to play; None until there is a candidate."""
    if self.trial is None and self.waiting is not None:
      claim = self.waiting[1]
      overdue = self.idle >= self.idle_episodes
      if self.star is None or claim > self.claim_bar or overdue:
        self.trial, self.waiting = self.waiting, None
    if self.trial is not None:
      begun = len(self.trial_returns) + self.trial_in_flight
      if begun < self.b + 1:
        self.trial_in_flight += 1
        return Ticket('trial', self.trial[0])
    if self.star is not None:
      return Ticket('confirmation', self.star)
    return None

  def cancel(self, ticket: Ticket) -> None:
    """Withdraws an episode whose supervisor is gone."""
    if self._of_trial(ticket):
      self.trial_in_flight -= 1

  def drop_trial(self) -> int | None:
    """Rejects the running trial, which took too long; returns its candidate."""
    if self.trial is None:
      return None
    return self._reject()

  def finish(self, ticket: Ticket, episode_return: float) -> Verdict:
    """Takes the return of one episode."""
    if self._of_trial(ticket):
      self.trial_in_flight -= 1
      self.trial_returns.append(episode_return)
      if len(self.trial_returns) < self.b + 1:
        return Verdict(None, None)
      if float(np.mean(self.trial_returns)) > self.r_star:
        return Verdict(self._accept(), None)
      return Verdict(None, self._reject())
    if ticket.kind == 'confirmation' and ticket.candidate == self.star:
      if episode_return >= self.r_star:
        self.x += 1
        self._weigh()
      self.hist = (self.hist + [episode_return])[-self.window :]
      self.idle += 1
    # Any other ticket is late: its trial has ended, or its star was replaced.
    return Verdict(None, None)

  def fit_config(self) -> None:
    """Fits a state saved under another config to the limits of this one."""
    self.hist = self.hist[-self.window :]
    # The trial ends when its last episode does, so at least one must be left.
    self.trial_returns = self.trial_returns[: self.b]
    self._weigh()

  def _of_trial(self, ticket: Ticket) -> bool:
    return (
      ticket.kind == 'trial'
      and self.trial is not None
      and ticket.candidate == self.trial[0]
    )

  def _accept(self) -> int:
    assert self.trial is not None
    candidate, claim = self.trial
    old = self.r_star
    self.star = candidate
    self.x = sum(episode >= old for episode in self.trial_returns)
    self.hist = self.trial_returns  # all of it: a trial fits into the window
    self.claim_bar = claim
    self._weigh()
    self.accepted += 1
    self._end_trial()
    return candidate

  def _reject(self) -> int:
    assert self.trial is not None
    candidate, claim = self.trial
    self.claim_bar = max(self.claim_bar, claim)
    self.rejected += 1
    self._end_trial()
    return candidate

  def _end_trial(self) -> None:
    self.trial, self.trial_returns, self.trial_in_flight = None, [], 0
    self.idle = 0

  def _weigh(self) -> None:
    c = weight(self.x, self.b, self.k) if self.x > self.b else 0.0
    self.c = c if self.c_max is None else min(c, self.c_max)


@dataclasses.dataclass
class LiteralSupervision:
  """The supervisor as printed (Algorithms 2 and 4), for comparison.

  docs/agents/pso_dqn.md lists where the default departs from it.
  """

  b: int
  k: float

  loaded: int | None = None
  arrived: int | None = None
  star: int | None = None
  x: int = 0
  c: float = 0.0
  published_c: float = 0.0
  r_global: float = -math.inf
  accepted: int = 0
  rejected: int = 0
  claim_bar: float = -math.inf

  @property
  def r_star(self) -> float:
    return self.r_global

  @property
  def bar(self) -> float:
    return -math.inf

  def offer(self, candidate: int, claim: float) -> bool:
    if not math.isfinite(claim):
      return False
    self.arrived = candidate
    return True

  def next_episode(self) -> Ticket | None:
    if self.arrived is not None:
      if self.loaded != self.star:
        self.rejected += 1
      self.loaded, self.arrived, self.x = self.arrived, None, 0
    if self.loaded is None:
      return None
    # theta_star is confirmed without end; supervisors pause between episodes.
    kind = 'confirmation' if self.loaded == self.star else 'trial'
    return Ticket(kind, self.loaded)

  def cancel(self, ticket: Ticket) -> None:
    del ticket

  def drop_trial(self) -> int | None:
    return None

  def finish(self, ticket: Ticket, episode_return: float) -> Verdict:
    if ticket.candidate != self.loaded or episode_return < self.r_global:
      return Verdict(None, None)
    self.x += 1
    self.c = weight(self.x, self.b, self.k)
    if self.x <= self.b:
      return Verdict(None, None)
    self.r_global = episode_return
    self.published_c = self.c
    if self.star != self.loaded:
      self.accepted += 1
    self.star = self.loaded
    return Verdict(self.star, None)


Supervision = DefaultSupervision | LiteralSupervision


def make_supervision(config: explorers.Config) -> Supervision:
  """Makes the supervisor that the config names."""
  if config.supervisor == 'literal':
    return LiteralSupervision(b=config.b, k=config.k)
  return DefaultSupervision(
    b=config.b,
    k=config.k,
    c_max=config.c_max,
    window=config.window,
    idle_episodes=config.idle_episodes,
  )


def restore(machine: Supervision, state: Mapping[str, Any]) -> None:
  """Restores a checkpointed state, except for settings of the config.

  Episodes in flight ended with the processes that played them, so they are
  requested again.
  """
  given = {field.name for field in dataclasses.fields(explorers.Config)}
  for field in dataclasses.fields(machine):
    if field.name in given:
      continue  # a resumed run may have another value
    found = state[field.name]
    is_pair = field.name in ('waiting', 'trial') and found is not None
    setattr(machine, field.name, tuple(found) if is_pair else found)
  if isinstance(machine, DefaultSupervision):
    machine.trial_in_flight = 0
    machine.fit_config()
