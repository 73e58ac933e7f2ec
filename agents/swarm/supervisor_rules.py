"""The supervisor's rules: which candidate becomes theta_star (Liu et al. 2018).

Of the candidates that explorers offer, the one with the highest claim waits. A
trial of b + 1 greedy episodes makes a candidate theta_star if its mean return
beats R_star. Between trials, episodes confirm theta_star, and R_star is the
mean of its last `window` returns. How this departs from the paper:
docs/agents/pso_dqn.md. Expected results: tests/vectors/pso_supervisor.json.
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import math
from typing import NamedTuple

import numpy as np

from murmuration.agents.swarm import explorers

_CANDIDATES = ('star', 'waiting', 'trial')
_NUMBERS = (
  'x',
  'claim_bar',
  'idle',
  'version',
  'accepted',
  'rejected',
  'offers',
  'episodes',
)


def weight(x: int, b: int, k: float) -> float:
  """c = arctan(x / (k b)) in radians (equation 4)."""
  return math.atan(x / (k * b))


class Candidate(NamedTuple):
  """Parameters that an explorer offered."""

  theta: np.ndarray  # float32 [D]
  claim: float  # the return that the explorer claims for them
  explorer: int  # its index
  learner_step: int  # its learner steps when it offered them


@dataclasses.dataclass
class Rules:
  """The state between episodes, each of which is `next` and then `finish`."""

  config: explorers.Config
  star: Candidate | None = None
  waiting: Candidate | None = None
  trial: Candidate | None = None
  trial_returns: list[float] = dataclasses.field(default_factory=list)
  hist: list[float] = dataclasses.field(default_factory=list)  # of theta_star
  x: int = 0  # confirming episodes of theta_star
  claim_bar: float = -math.inf  # a claim above it gets a trial at once
  idle: int = 0  # confirmation episodes since the last trial
  version: int = 0  # of theta_star
  accepted: int = 0
  rejected: int = 0
  offers: int = 0
  episodes: int = 0  # finished

  @property
  def r_star(self) -> float:
    """Mean of the last `window` returns of theta_star; -inf if none."""
    return float(np.mean(self.hist)) if self.hist else -math.inf

  @property
  def bar(self) -> float:
    """The claim that a new candidate must exceed to be kept."""
    return self.waiting.claim if self.waiting else -math.inf

  @property
  def c(self) -> float:
    """The weight of the pull: 0 up to b confirmations, `c_max` at most."""
    if self.x <= self.config.b:
      return 0.0
    c = weight(self.x, self.config.b, self.config.k)
    return c if self.config.c_max is None else min(c, self.config.c_max)

  @property
  def rejected_fraction(self) -> float:
    """Of all decided candidates; 0 if there are none."""
    return self.rejected / max(self.accepted + self.rejected, 1)

  def offer(self, candidate: Candidate) -> bool:
    """Keeps the candidate if its claim exceeds that of the waiting one."""
    self.offers += 1
    if not math.isfinite(candidate.claim) or candidate.claim <= self.bar:
      return False
    self.waiting = candidate
    return True

  def next(self) -> Candidate | None:
    """Whose episode is next: the trial's or theta_star's; None: nobody's."""
    if self.trial is None and self.waiting is not None:
      overdue = self.idle >= self.config.idle_episodes
      if self.star is None or overdue or self.waiting.claim > self.claim_bar:
        self.trial, self.waiting = self.waiting, None
        self.trial_returns = []
    return self.trial or self.star

  def finish(self, episode_return: float) -> bool:
    """Takes the return of the episode that `next` named.

    Returns:
      Whether it decided a trial. `version` tells how: acceptance raises it.
    """
    self.episodes += 1
    if self.trial is None:
      self.x += episode_return >= self.r_star
      self.hist = [*self.hist, episode_return][-self.config.window :]
      self.idle += 1
      return False
    self.trial_returns.append(episode_return)
    if len(self.trial_returns) <= self.config.b:
      return False
    old, trial = self.r_star, self.trial
    if float(np.mean(self.trial_returns)) <= old:
      self.reject()
      return True
    self.x = sum(one >= old for one in self.trial_returns)
    # All of it: a trial fits into the window.
    self.star, self.hist = trial, list(self.trial_returns)
    self.claim_bar = trial.claim
    self.version += 1
    self.accepted += 1
    self.trial, self.idle = None, 0
    return True

  def reject(self) -> None:
    """Ends the trial, which failed or took too long."""
    assert self.trial is not None
    self.claim_bar = max(self.claim_bar, self.trial.claim)
    self.rejected += 1
    self.trial, self.idle = None, 0

  def save(self) -> dict[str, np.ndarray]:
    """The state, without the config, as arrays."""
    found = {name: np.array(getattr(self, name)) for name in _NUMBERS}
    found['hist'] = np.array(self.hist, np.float64)
    found['trial_returns'] = np.array(self.trial_returns, np.float64)
    for name in _CANDIDATES:
      candidate = getattr(self, name)
      if candidate is not None:
        found[f'{name}_theta'] = candidate.theta
        found[f'{name}_of'] = np.array(candidate[1:], np.float64)
    return found

  def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
    """Restores the arrays of `save`; the config may have changed."""
    for name in _NUMBERS:
      setattr(self, name, arrays[name].item())
    for name in _CANDIDATES:
      if f'{name}_theta' in arrays:
        claim, explorer, step = arrays[f'{name}_of'].tolist()
        theta = np.array(arrays[f'{name}_theta'])
        setattr(self, name, Candidate(theta, claim, int(explorer), int(step)))
    self.hist = arrays['hist'].tolist()[-self.config.window :]
    # A trial ends with its last episode, so at least one must be left.
    self.trial_returns = arrays['trial_returns'].tolist()[: self.config.b]
