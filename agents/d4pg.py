"""D4PG: Barth-Maron et al. 2018, arXiv:1804.08617.

DDPG whose critic is a categorical distribution over returns, with n-step
targets, from uniform or prioritized replay. The policy's loss is taken at the
states of the sample, as in the paper (Acme takes the next ones).
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import functools
import logging
import math
from typing import Annotated, Literal

import numpy as np
import tensorflow as tf

from murmuration.agents import replay_agent
from murmuration.agents import settings
from murmuration.agents.actor_critic import agent as actor_critic
from murmuration.agents.actor_critic import config as actor_critic_config
from murmuration.agents.actor_critic import deterministic
from murmuration.agents.losses import categorical
from murmuration.environment_loops import environments

_logger = logging.getLogger(__name__)

# From this share of clipped mass on the support is said to be too narrow.
_CLIPPED_SHARE = 0.05
# Atoms are at least so many steps of float32 apart, evenly to 3%.
_FLOAT_STEPS = 16


@dataclasses.dataclass(frozen=True)
class Config(actor_critic_config.Deterministic):
  """D4PG. Defaults are small-scale values (docs/agents/d4pg.md)."""

  policy_learning_rate: settings.Positive = 3e-4  # per update; paper: 1e-4
  critic_learning_rate: settings.Positive = 1e-3  # per update; paper: 1e-4
  n_step: settings.Whole = 3  # environment steps in one return; paper: 5
  max_dq_da: settings.Positive | None = 1.0  # norm of dQ/da per sample, as Acme
  target_update_period: settings.Whole = 100  # learner steps, as the paper
  target_update_tau: settings.Share = 1.0  # 1 copies
  num_atoms: Annotated[int, settings.at_least(2)] = 51  # of the support, paper
  v_min: float = -150.0  # of the support: scaled discounted return; Acme
  v_max: float = 150.0  # likewise
  # |mean of target - Q|, or 'kl'.
  priority: Annotated[Literal['mean', 'kl'], replay_agent.PRIORITIZED] = 'mean'
  # Of one step, before scaling. Where known, the support is checked at start.
  reward_min: float | None = None
  reward_max: float | None = None  # likewise

  def __post_init__(self):
    super().__post_init__()
    why = 'they are the ends of the support of the critic.'
    settings.ordered(self, 'agent.v_min', 'agent.v_max', why)
    self._check_atoms()
    why = 'they are the least and the largest reward of one step.'
    settings.ordered(
      self, 'agent.reward_min', 'agent.reward_max', why, equal=True
    )

  def _check_atoms(self) -> None:
    """Raises ValueError if float32 does not hold the atoms evenly spaced."""
    apart = (self.v_max - self.v_min) / (self.num_atoms - 1)
    largest = max(abs(self.v_min), abs(self.v_max))
    if apart < _FLOAT_STEPS * np.spacing(np.float32(largest)):
      raise ValueError(
        f'agent.v_min={self.v_min}, agent.v_max={self.v_max}: '
        f'agent.num_atoms={self.num_atoms} atoms between them are {apart:.3g} '
        f'apart, which float32 does not resolve near {largest:.3g}. Widen the '
        'support, lower agent.num_atoms, or subtract a constant from rewards.'
      )


class D4PG(deterministic.Deterministic):
  """Deterministic policy gradient with a categorical critic."""

  name = 'd4pg'
  metrics = {
    **deterministic.Deterministic.metrics,
    'target_clipped': 'mean',  # mass of targets outside the support
    # Reward sums as if they went on for ever. No target is clipped exactly
    # where the support holds both: R + D v_min >= v_min is v_min <= R / (1 - D)
    # for D < 1, and likewise above.
    'needed_v_min': 'min',
    'needed_v_max': 'max',
  }

  def __init__(self, config: Config, spec: environments.Spec):
    super().__init__(config, spec, critic_outputs=config.num_atoms)
    self.config: Config = config
    self._atoms = categorical.support(
      config.v_min, config.v_max, config.num_atoms
    )
    self._needed = (math.inf, -math.inf)  # v_min, v_max, of all metrics so far
    narrow = narrow_support(config)
    if narrow:
      _warn_once(narrow)

  def _values(self, outputs):
    return categorical.mean(tf.nn.softmax(outputs), self._atoms)

  def _critic_loss(self, outputs, target_outputs, r_t, discount_t):
    config = self.config
    target = categorical.bellman_target(
      r_t, discount_t, self._pessimistic(target_outputs), self._atoms
    )
    mean = categorical.mean(target.probabilities, self._atoms)
    losses = [
      categorical.cross_entropy(target.probabilities, o) for o in outputs
    ]
    q_tm1 = [tf.stop_gradient(self._values(o)) for o in outputs]
    size = tf.add_n([tf.abs(mean - q) for q in q_tm1]) / len(q_tm1)
    # With gamma=1 the sum has no bound: the 1e-6 makes it a very large number.
    endless = r_t / tf.maximum(1.0 - discount_t, 1e-6)
    priorities = size
    if config.priority == 'kl':
      crossed = tf.add_n(losses) / len(losses)
      rest = categorical.entropy(target.probabilities)
      # Rounding may make a divergence of 0 negative.
      priorities = tf.nn.relu(tf.stop_gradient(crossed) - rest)
    return actor_critic.CriticLoss(
      tf.add_n(losses),
      priorities,
      {
        'q_mean': q_tm1[0],
        'td_error': size,
        'target_max': target.unclipped_mean,
        'target_min': target.unclipped_mean,
        'target_clipped': target.clipped,
        'needed_v_min': endless,
        'needed_v_max': endless,
      },
    )

  def _pessimistic(self, outputs) -> tf.Tensor:
    """Probabilities of the critic with the smaller mean, per sample [B, K]."""
    p_t = [tf.nn.softmax(o) for o in outputs]
    if len(p_t) == 1:
      return p_t[0]
    first, second = (categorical.mean(p, self._atoms) for p in p_t)
    return tf.where((first <= second)[:, None], *p_t)

  def remarks(self, metrics: Mapping[str, float]) -> list[str]:
    found = super().remarks(metrics)
    low, high = self._needed = (
      min(self._needed[0], metrics['needed_v_min']),
      max(self._needed[1], metrics['needed_v_max']),
    )
    if metrics['target_clipped'] > _CLIPPED_SHARE:
      config = self.config
      found.append(
        f'{metrics["target_clipped"]:.0%} of the mass of the targets lies '
        f'outside the support [{config.v_min:g}, {config.v_max:g}] and is '
        'clipped. If they went on for ever, the rewards sampled so far would '
        f'be worth from {low:.4g} to {high:.4g}: with agent.v_min at most and '
        'agent.v_max at least that, none of their targets is clipped. Widen '
        f'them, or lower agent.reward_scale={config.reward_scale:g} or '
        f'agent.gamma={config.gamma:g}.'
      )
    return found


@functools.cache
def _warn_once(text: str) -> None:
  # A command makes its agent several times: to check it, and for each node.
  _logger.warning(text)


def narrow_support(config: Config) -> str | None:
  """Says where returns that the rewards allow do not fit into the support.

  Values are discounted sums that go on after a time limit, so they reach
  r / (1 - gamma) for rewards that stay at r.
  """
  if config.gamma == 1:
    return (
      'agent.gamma=1 makes values sums without end after a time limit: no '
      'support holds them. Set agent.gamma below 1.'
    )
  for name, reward, end, sign in (
    ('reward_min', config.reward_min, config.v_min, -1),
    ('reward_max', config.reward_max, config.v_max, 1),
  ):
    if reward is None:
      continue
    # A reward of the other sign bounds nothing: an episode can end before it.
    value = max(sign * reward, 0) * config.reward_scale / (1 - config.gamma)
    if value > sign * end + 1e-6 * abs(end):
      return (
        f'The support [{config.v_min:g}, {config.v_max:g}] is too narrow: '
        f'rewards of {name}={reward:g} are worth {config.reward_scale:g} * '
        f'{reward:g} / (1 - {config.gamma:g}) = {sign * value:.4g}. Widen '
        'agent.v_min and agent.v_max, or lower agent.reward_scale or '
        'agent.gamma.'
      )
  return None
