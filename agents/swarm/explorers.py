"""The swarm's settings, and the rules of one explorer (Liu et al. 2018).

Learning rates, the weight of each explorer's pull, and the claims with which
candidates are offered; supervision.py decides on the candidates. Nothing here
uses a clock, a network or TensorFlow.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
from typing import Annotated, Literal

import numpy as np

from agents import base
from agents import settings

Spread = Literal['decades', 'paper', 'none']


@dataclasses.dataclass(frozen=True)
class Config:
  """The swarm. [S] Liu et al. 2018; [R] chosen here, for small scale."""

  num_explorers: settings.Nodes = 31  # [S] section 5.1
  explorers_per_node: settings.Whole = 16  # members hosted by one node
  num_supervisors: settings.Nodes = 1  # [S] section 5.1
  k: settings.Positive = 200.0  # [S] equation 4; Algorithm 4 prints 2
  b: settings.Whole = 3  # episodes; wins above which theta_star pulls [R]
  # Clamp of the pull [R]; None is literal.
  c_max: settings.NotNegative | None = 0.05
  # 'scalar': one draw per update; 'elementwise'.
  r_mode: Literal['scalar', 'elementwise'] = 'scalar'
  # Only towards a better theta_star; 'always' [S].
  pull_mode: Literal['better', 'always'] = 'better'
  # After its epochs; 'minibatch'; others: update.
  pull_every: Literal['rollout', 'minibatch'] = 'rollout'
  # [S] each has random parameters; 'shared': all the same.
  start: Literal['own', 'shared'] = 'own'
  inertia: Annotated[
    float, settings.between(0, 1, 'at least 0 and below 1', '[)')
  ] = 0.0  # omega, share of the old velocity kept
  lr_spread: Spread = 'decades'  # 'decades' [R], 'paper' [S], 'none'
  # Actor steps of one explorer [R]; paper: 1.
  star_poll_steps: settings.Whole = 100
  # 'return' [R]; 'target' is literal [S].
  claim_mode: Literal['return', 'target'] = 'return'
  claim_episodes: settings.Whole = 5  # episodes in a claim
  # Learner steps of an explorer before it offers [R]: some untrained networks
  # do well by luck, and a swarm that stops at one has learned nothing.
  offer_after_updates: settings.Count = 1
  # 'default' [R]; 'literal' [S].
  supervisor: Literal['default', 'literal'] = 'default'
  window: settings.Whole = 20  # episodes in R_star
  # Confirmations before any claim gets a trial, 2b.
  idle_episodes: settings.Whole = 6
  # Seconds; a longer trial is dropped.
  trial_timeout_s: settings.Seconds = 120.0
  # Seconds between confirmation episodes.
  confirmation_period_s: settings.Pause = 0.1
  # Seconds; then c halves per period.
  star_max_age_s: settings.Seconds | None = None

  def __post_init__(self):
    settings.check(self, 'swarm')
    why = 'a trial of b + 1 episodes has to fit into the window.'
    settings.ordered(self, 'swarm.b', 'swarm.window', why)


def learning_rate(
  base_rate: float, info: base.ActorInfo, spread: Spread
) -> float:
  """The learning rate of explorer i of N (docs/agents/pso_dqn.md).

  'decades': base * 10^(-1 + 2 i / (N - 1)), clipped to [1e-5, 1e-2];
  'paper': log-spaced over [1e-5, 1e-2]; 'none': the base.
  """
  if spread == 'none' or info.count == 1:
    return base_rate
  part = info.index / (info.count - 1)
  if spread == 'paper':
    return 10.0 ** (-5 + 3 * part)
  return min(max(base_rate * 10.0 ** (-1 + 2 * part), 1e-5), 1e-2)


def learning_rates(
  agent: base.Agent, infos: Sequence[base.ActorInfo], spread: Spread
) -> list[float]:
  """Learning rates of the members of one node, [P]."""
  return [learning_rate(agent.learning_rate, info, spread) for info in infos]


def pull_weights(
  c: float, r_star: float, own_returns: np.ndarray, mode: str
) -> np.ndarray:
  """The weight of the pull on each explorer, [P]: c, or 0.

  Departure 1 (docs/agents/pso_dqn.md), mode 'better': an explorer whose own
  training return is at least R_star is not pulled. In a particle swarm the best
  is never worse than a particle's own best. Here it can be, because a star is
  replaced only after a trial: the first accepted network of a task with a floor
  (Acrobot: -500) would confirm itself for ever and hold back all others.

  `own_returns` [P] are mean training returns, NaN if not yet known. The other
  mode is 'always'.
  """
  if mode == 'always':
    return np.full(len(own_returns), c, np.float32)
  return np.where(own_returns >= r_star, 0.0, c).astype(np.float32)


class ReturnClaims:
  """Claims of P explorers: mean return of their last training episodes.

  For `claim_mode='return'`. A claim is made at an episode's end, once
  `claim_episodes` episodes have ended.
  """

  def __init__(self, num_members: int, claim_episodes: int):
    self._recent: list[list[float]] = [[] for _ in range(num_members)]
    self._length = claim_episodes
    # Mean of each member's recent returns, NaN without an episode, [P].
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

  def forget(self, member: int) -> None:
    """Discards the returns of a member whose parameters were replaced."""
    self._recent[member].clear()
    self.means[member] = np.nan


class TargetClaims:
  """`claim_mode='target'`: claims rise with the largest target (literal)."""

  def __init__(self, num_members: int):
    self._best = np.full(num_members, -np.inf)

  def updated(self, largest_target: np.ndarray) -> list[tuple[int, float]]:
    """(member, claim) where the largest target [P] is at least the best yet."""
    better = np.isfinite(largest_target) & (largest_target >= self._best)
    self._best = np.where(better, largest_target, self._best)
    return [(int(i), float(self._best[i])) for i in np.flatnonzero(better)]

  def forget(self, member: int) -> None:
    """Discards the best target of a member with replaced parameters."""
    self._best[member] = -np.inf
