"""The rules of the swarm, as pure state machines (Liu et al. 2018).

Explorers offer candidates, of which the one with the highest claim waits.
`DefaultSupervision` or `LiteralSupervision` decides, one greedy episode at a
time, which candidate becomes theta_star and how strongly it pulls. No clock, no
network, no TensorFlow: a parameter server drives these, and
specs/vectors/pso_supervisor.json is their truth.

Any number of supervisors may play: each asks for an episode and reports its
return, and the episodes of one trial are pooled in the order they end.
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import math
from typing import Any, NamedTuple

import numpy as np

from agents import base

_CHOICES = {
  'claim_mode': ('return', 'target'),
  'supervisor': ('default', 'literal'),
  'r_mode': ('scalar', 'elementwise'),
  'lr_spread': ('decades', 'paper', 'none'),
  'pull_mode': ('better', 'always'),
}


@dataclasses.dataclass(frozen=True)
class Config:
  """The swarm. [S] Liu et al. 2018; [R] small-scale defaults of the specs."""

  num_explorers: int = 31  # [S] section 5.1
  explorers_per_node: int = 16  # members hosted by one node
  num_supervisors: int = 1  # [S] section 5.1
  k: float = 200.0  # [S] equation 4; Algorithm 4 prints 2
  b: int = 3  # episodes; wins above which theta_star pulls [R]
  c_max: float | None = 0.05  # clamp of the pull [R]; None is literal
  r_mode: str = 'scalar'  # 'scalar': one draw per update; 'elementwise'
  pull_mode: str = 'better'  # only towards a better theta_star; 'always' [S]
  inertia: float = 0.0  # omega, share of the old velocity kept
  lr_spread: str = 'decades'  # 'decades' [R], 'paper' [S], 'none'
  star_poll_steps: int = 100  # actor steps of one explorer [R]; paper: 1
  claim_mode: str = 'return'  # 'return' [R]; 'target' is literal [S]
  claim_episodes: int = 5  # episodes in a claim
  supervisor: str = 'default'  # 'default' [R]; 'literal' [S]
  window: int = 20  # episodes in R_star
  idle_episodes: int = 6  # confirmations before any claim gets a trial, 2b
  trial_timeout_s: float = 120.0  # seconds; a longer trial is dropped
  confirmation_period_s: float = 0.1  # seconds between confirmation episodes
  star_max_age_s: float | None = None  # seconds; then c halves per period

  def __post_init__(self):
    for name, allowed in _CHOICES.items():
      if getattr(self, name) not in allowed:
        raise ValueError(
          f'swarm.{name}={getattr(self, name)!r} is not known. Choose one of '
          f'{list(allowed)}.'
        )
    for name in (
      'num_explorers', 'explorers_per_node', 'num_supervisors', 'b',
      'star_poll_steps', 'claim_episodes', 'window', 'idle_episodes',
    ):  # fmt: skip
      number = getattr(self, name)
      if number != int(number) or number < 1:
        raise ValueError(
          f'swarm.{name}={number} must be a whole number of at least 1. '
          f'Set --config.swarm.{name}.'
        )
    if not self.k > 0:
      raise ValueError(f'swarm.k={self.k} must be positive (equation 4).')
    if self.c_max is not None and not self.c_max >= 0:
      raise ValueError(
        f'swarm.c_max={self.c_max} must not be negative; None leaves the pull '
        'unclamped.'
      )
    if not 0 <= self.inertia < 1:
      raise ValueError(f'swarm.inertia={self.inertia} must be in [0, 1).')
    if self.window <= self.b:
      raise ValueError(
        f'swarm.window={self.window} must be above b={self.b}: a trial of '
        'b + 1 episodes has to fit into it.'
      )
    for name in ('trial_timeout_s', 'star_max_age_s'):
      number = getattr(self, name)
      if number is not None and not number > 0:
        raise ValueError(f'swarm.{name}={number} must be positive seconds.')
    if not self.confirmation_period_s >= 0:
      raise ValueError(
        f'swarm.confirmation_period_s={self.confirmation_period_s} must not '
        'be negative.'
      )


def weight(x: int, b: int, k: float) -> float:
  """c = arctan(x / (k b)) in radians (equation 4)."""
  return math.atan(x / (k * b))


def learning_rate(base_rate: float, info: base.ActorInfo, spread: str) -> float:
  """The learning rate of explorer i of N (specs/pso.md, section 4).

  'decades': base * 10^(-1 + 2 i / (N - 1)), clipped to [1e-5, 1e-2];
  'paper': log-spaced over [1e-5, 1e-2]; 'none': the base.
  """
  if spread not in _CHOICES['lr_spread']:
    raise ValueError(
      f'lr_spread={spread!r} is not known. Choose one of '
      f'{list(_CHOICES["lr_spread"])}.'
    )
  if spread == 'none' or info.count == 1:
    return base_rate
  part = info.index / (info.count - 1)
  if spread == 'paper':
    return 10.0 ** (-5 + 3 * part)
  return min(max(base_rate * 10.0 ** (-1 + 2 * part), 1e-5), 1e-2)


class Ticket(NamedTuple):
  """One greedy episode to run."""

  kind: str  # 'trial' or 'confirmation'
  candidate: int  # whose parameters to play


class Verdict(NamedTuple):
  """What one finished episode changed."""

  published: int | None  # candidate that became theta_star
  dropped: int | None  # candidate whose trial failed


@dataclasses.dataclass
class DefaultSupervision:
  """Supervisor, default (specs/pso.md, section 2).

  A trial of b + 1 episodes accepts a candidate whose mean beats R_star; between
  trials theta_star is confirmed. `window` bounds the returns R_star averages.
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
    """Mean of the last `window` returns of theta_star; -inf without one."""
    return float(np.mean(self.hist)) if self.hist else -math.inf

  @property
  def bar(self) -> float:
    """The claim that a new candidate has to beat to be kept."""
    return self.waiting[1] if self.waiting else -math.inf

  def offer(self, candidate: int, claim: float) -> bool:
    """Keeps the candidate if its claim is above the waiting one."""
    if not math.isfinite(claim) or claim <= self.bar:
      return False
    self.waiting = (candidate, claim)
    return True

  def next_episode(self) -> Ticket | None:
    """The next episode to run, or None: wait for a candidate."""
    if self.trial is None and self.waiting is not None:
      claim = self.waiting[1]
      overdue = self.idle >= self.idle_episodes
      if self.star is None or claim > self.claim_bar or overdue:
        self.trial, self.waiting = self.waiting, None
        self.trial_returns, self.trial_in_flight = [], 0
    if self.trial is not None:
      begun = len(self.trial_returns) + self.trial_in_flight
      if begun < self.b + 1:
        self.trial_in_flight += 1
        return Ticket('trial', self.trial[0])
    if self.star is not None:
      return Ticket('confirmation', self.star)
    return None

  def cancel(self, ticket: Ticket) -> None:
    """The episode will not be reported: its supervisor is gone."""
    if self._of_trial(ticket):
      self.trial_in_flight -= 1

  def drop_trial(self) -> int | None:
    """Gives the running trial up (it took too long). Returns its candidate."""
    if self.trial is None:
      return None
    return self._reject()

  def finish(self, ticket: Ticket, episode_return: float) -> Verdict:
    """Takes the return of one episode in."""
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
    # Anything else is the late episode of a trial or a star that is gone.
    return Verdict(None, None)

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
    self.hist = self.trial_returns[-self.window :]
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
  """Supervisor as printed (Algorithms 2 and 4), kept to compare with.

  Departures of the default from it: specs/pso.md, section 5, 9 to 17.
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
      if self.loaded is not None and self.loaded != self.star:
        self.rejected += 1
      self.loaded, self.arrived, self.x = self.arrived, None, 0
    return None if self.loaded is None else Ticket('trial', self.loaded)

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


def make_supervision(config: Config) -> Supervision:
  """The supervisor that the config asks for."""
  if config.supervisor == 'literal':
    return LiteralSupervision(b=config.b, k=config.k)
  return DefaultSupervision(
    b=config.b,
    k=config.k,
    c_max=config.c_max,
    window=config.window,
    idle_episodes=config.idle_episodes,
  )


def state_of(machine: Supervision) -> dict[str, Any]:
  """The machine as plain numbers and lists, for a checkpoint."""
  return dataclasses.asdict(machine)


def restore(machine: Supervision, state: Mapping[str, Any]) -> None:
  """Takes a checkpointed state back. Episodes in flight are lost with the
  process that asked for them, so they are asked for again."""
  for field in dataclasses.fields(machine):
    found = state[field.name]
    is_pair = field.name in ('waiting', 'trial') and found is not None
    setattr(machine, field.name, tuple(found) if is_pair else found)
  if isinstance(machine, DefaultSupervision):
    machine.trial_in_flight = 0


def pull_weights(
  c: float, r_star: float, own_returns: np.ndarray, mode: str
) -> np.ndarray:
  """The weight of the pull for each explorer, [P].

  Departure 1 (docs/agents/pso_dqn.md), mode 'better': an explorer whose own
  training return is at least R_star is not pulled. In particle swarms the best
  is never worse than a particle's own best; here it can be, because a star is
  replaced only after a trial. Without this the first accepted network of a task
  with a floor (Acrobot: -500) confirms itself for ever and holds all others.

  Args:
    c: weight of theta_star.
    r_star: its mean return.
    own_returns: mean training return of each explorer, NaN if not yet known,
      [P].
    mode: 'better' or 'always'.
  """
  if mode == 'always':
    return np.full(len(own_returns), c, np.float32)
  return np.where(own_returns >= r_star, 0.0, c).astype(np.float32)


class ReturnClaims:
  """Claims of P explorers: mean return of their last training episodes.

  `claim_mode='return'`: a claim exists at an episode's end, once
  `claim_episodes` episodes have ended.
  """

  def __init__(self, num_members: int, claim_episodes: int):
    self._recent: list[list[float]] = [[] for _ in range(num_members)]
    self._length = claim_episodes
    # Mean of what each member has so far, NaN without an episode, [P].
    self.means = np.full(num_members, np.nan)

  def finished(self, member: int, episode_return: float) -> float | None:
    """The member's claim after this episode, or None if it is too early."""
    recent = self._recent[member]
    recent.append(episode_return)
    del recent[: -self._length]
    self.means[member] = np.mean(recent)
    if len(recent) < self._length:
      return None
    return float(self.means[member])


class TargetClaims:
  """`claim_mode='target'`: claims rise with the largest target (literal)."""

  def __init__(self, num_members: int):
    self._best = np.full(num_members, -np.inf)

  def updated(self, largest_target: np.ndarray) -> list[tuple[int, float]]:
    """(member, claim) of each member whose largest target [P] is a new best."""
    better = np.isfinite(largest_target) & (largest_target >= self._best)
    self._best = np.where(better, largest_target, self._best)
    return [(int(i), float(self._best[i])) for i in np.flatnonzero(better)]
