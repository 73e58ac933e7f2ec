"""The swarm's settings, and the rules of one explorer (Liu et al. 2018).

Learning rates, the weight of each explorer's pull, and the claims with which
candidates are offered; supervisor_rules.py decides on the candidates. Nothing
here uses a clock, a network or TensorFlow.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
from typing import Literal

import numpy as np

from murmuration.agents import base
from murmuration.agents import settings

Spread = Literal['decades', 'paper', 'none']


@dataclasses.dataclass(frozen=True)
class Config:
  """The swarm. The paper is Liu et al. 2018.

  Values without a source were chosen here, for small scale.
  """

  # Explorers in all nodes; paper: 31 (section 5.1).
  num_explorers: settings.Nodes = 31
  explorers_per_node: settings.Whole = 16  # explorers in one node, at most
  # Divisor in the weight of the pull, c = arctan(x / (k b)); 200 in the paper's
  # equation 4, 2 in its Algorithm 4.
  k: settings.Positive = 200.0
  # Confirming episodes above which theta_star pulls; a trial has b + 1.
  b: settings.Whole = 3
  # Largest weight of the pull; None: no limit, as in the paper.
  c_max: settings.NotNegative | None = 0.05
  # How often PPO is pulled: once after the updates of a 'rollout', or with each
  # 'minibatch'. Other agents are pulled with each update.
  pull_every: Literal['rollout', 'minibatch'] = 'rollout'
  # Initial parameters: each explorer's 'own', random, as in the paper, or
  # 'shared' by all.
  start: Literal['own', 'shared'] = 'own'
  # Explorers' learning rates: 'decades', a tenth to ten times the agent's and
  # within [1e-5, 1e-2]; 'paper', 1e-5 to 1e-2; 'none', the agent's.
  lr_spread: Spread = 'decades'
  # Actor steps of one explorer between requests of theta_star; paper: 1.
  star_poll_steps: settings.Whole = 100
  # Training episodes whose mean return an explorer claims for its candidate.
  claim_episodes: settings.Whole = 5
  # Learner steps of an explorer before it offers candidates: some untrained
  # networks do well by luck, and a swarm that stops at one has learned nothing.
  offer_after_updates: settings.Count = 1
  window: settings.Whole = 20  # newest episodes of theta_star in R_star
  # Confirmation episodes after which a candidate gets a trial, whatever its
  # claim.
  idle_episodes: settings.Whole = 6
  # Seconds after which an unfinished trial is dropped.
  trial_timeout_s: settings.Seconds = 120.0
  # Seconds of pause after a confirmation episode.
  confirmation_period_s: settings.Pause = 0.1

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
  c: float, r_star: float, own_returns: np.ndarray
) -> np.ndarray:
  """The weight of the pull on each explorer, [P]: c, or 0.

  Departure 1 (docs/agents/pso_dqn.md): an explorer whose own training return is
  at least R_star is not pulled. In a particle swarm the best is never worse
  than a particle's own best. Here it can be, because a star is replaced only
  after a trial: the first accepted network of a task with a floor (Acrobot:
  -500) would confirm itself for ever and hold back all others.

  `own_returns` [P] are mean training returns, NaN if not yet known.
  """
  return np.where(own_returns >= r_star, 0.0, c).astype(np.float32)


class Claims:
  """Claims of P explorers: mean return of their last training episodes.

  A claim is made at an episode's end, once `claim_episodes` have ended.
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
