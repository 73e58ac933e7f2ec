"""The swarm's numbers, and the rules of one explorer (Liu et al. 2018).

Learning rates, the weight of each explorer's pull, and the claims with which
candidates are offered. What happens to a candidate is in supervision.py. No
clock, no network, no TensorFlow.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from agents import base
from agents import checks

_CHOICES = {
  'claim_mode': ('return', 'target'),
  'supervisor': ('default', 'literal'),
  'r_mode': ('scalar', 'elementwise'),
  'lr_spread': ('decades', 'paper', 'none'),
  'pull_mode': ('better', 'always'),
  'pull_every': ('rollout', 'minibatch'),
  'start': ('own', 'shared'),
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
  pull_every: str = 'rollout'  # after its epochs; 'minibatch'; others: update
  start: str = 'own'  # [S] each has random parameters; 'shared': all the same
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
    checks.whole(
      self,
      'swarm',
      (
        'num_explorers',
        'explorers_per_node',
        'num_supervisors',
        'b',
        'star_poll_steps',
        'claim_episodes',
        'window',
        'idle_episodes',
      ),
    )
    checks.positive(self, 'swarm', ('k', 'trial_timeout_s', 'star_max_age_s'))
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
    if not self.confirmation_period_s >= 0:
      raise ValueError(
        f'swarm.confirmation_period_s={self.confirmation_period_s} must not '
        'be negative.'
      )


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
