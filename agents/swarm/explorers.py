"""The swarm's settings, and the rules of one explorer (Liu et al. 2018).

Learning rates, the weight of each explorer's pull, and the claims with which
candidates are offered; supervisor_rules.py decides on the candidates. Nothing
here uses a clock, a network or TensorFlow.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
from typing import Annotated, Literal

import numpy as np

from agents import base
from agents import settings

Spread = Literal['decades', 'paper', 'none']

_DEFAULT = settings.only_with('supervisor', 'default')


@dataclasses.dataclass(frozen=True)
class Config:
  """The swarm. The paper is Liu et al. 2018.

  Values without a source were chosen here, for small scale.
  """

  # Explorers in all nodes; paper: 31 (section 5.1).
  num_explorers: settings.Nodes = 31
  explorers_per_node: settings.Whole = 16  # explorers in one node, at most
  # Nodes that play the trials of candidates; paper: 1 (section 5.1).
  num_supervisors: settings.Nodes = 1
  # Divisor in the weight of the pull, c = arctan(x / (k b)); 200 in the paper's
  # equation 4, 2 in its Algorithm 4.
  k: settings.Positive = 200.0
  # Confirming episodes above which theta_star pulls; a trial has b + 1.
  b: settings.Whole = 3
  # Largest weight of the pull; None: no limit, as in the paper.
  c_max: settings.NotNegative | None = 0.05
  # Draws of the pull's random factor in an update: 'scalar', one per group of
  # parameters (policy, critic), or 'elementwise', one per parameter.
  r_mode: Literal['scalar', 'elementwise'] = 'scalar'
  # Whether theta_star pulls only explorers with a lower return ('better'), or
  # 'always', as in the paper.
  pull_mode: Literal['better', 'always'] = 'better'
  # How often PPO is pulled: once after the updates of a 'rollout', or with each
  # 'minibatch'. Other agents are pulled with each update.
  pull_every: Literal['rollout', 'minibatch'] = 'rollout'
  # Initial parameters: each explorer's 'own', random, as in the paper, or
  # 'shared' by all.
  start: Literal['own', 'shared'] = 'own'
  inertia: Annotated[
    float, settings.between(0, 1, 'at least 0 and below 1', '[)')
  ] = 0.0  # omega, share of the old velocity that is kept
  # Explorers' learning rates: 'decades', a tenth to ten times the agent's and
  # within [1e-5, 1e-2]; 'paper', 1e-5 to 1e-2; 'none', the agent's.
  lr_spread: Spread = 'decades'
  # Actor steps of one explorer between requests of theta_star; paper: 1.
  star_poll_steps: settings.Whole = 100
  # What an explorer claims for its candidate: its mean training 'return', or
  # its largest 'target', as in the paper.
  claim_mode: Literal['return', 'target'] = 'return'
  claim_episodes: settings.Whole = 5  # training episodes in a 'return' claim
  # Learner steps of an explorer before it offers candidates: some untrained
  # networks do well by luck, and a swarm that stops at one has learned nothing.
  offer_after_updates: settings.Count = 1
  # Rules of the supervisor: 'default', this project's; 'literal', the paper's.
  supervisor: Literal['default', 'literal'] = 'default'
  # Newest episodes of theta_star in R_star.
  window: Annotated[settings.Whole, _DEFAULT] = 20
  # Confirmation episodes after which a candidate gets a trial, whatever its
  # claim.
  idle_episodes: Annotated[settings.Whole, _DEFAULT] = 6
  # Seconds after which an unfinished trial is dropped.
  trial_timeout_s: Annotated[settings.Seconds, _DEFAULT] = 120.0
  # Seconds of pause after a confirmation episode.
  confirmation_period_s: settings.Pause = 0.1
  # Seconds without a supervisor after which an explorer halves the weight of
  # the pull, once for each such period; None: never.
  star_max_age_s: settings.Seconds | None = None

  def __post_init__(self):
    settings.check(self, 'swarm')
    if self.supervisor == 'default':
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
