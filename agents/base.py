"""The vocabulary: what an agent is, on one page.

An `Agent` says what is learned and nothing else. It owns

  layout      which variables there are, as one flat vector (parameters.py)
  initial     new parameters from a seed
  loss        the equation, for one member, in TensorFlow
  act         the behaviour policy, for P members with K environments each
  greedy      the policy that is evaluated

A topology decides who calls these, and an engine where. Rank reaches an agent
only as `ActorInfo`: seeds, learning rates and epsilons are functions of it.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
import dataclasses
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from agents import optimizers
from agents import parameters

# Observations [K, ...] to actions [K].
Policy = Callable[[np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True)
class ActorInfo:
  """Which actor (or explorer) this is: all that an agent learns of its rank."""

  index: int  # 0 <= index < count
  count: int
  seed: int  # of the whole run; use `actor_seed` for this actor's own


def actor_seed(info: ActorInfo, purpose: str) -> int:
  """A seed of its own for each actor and purpose, stable between runs."""
  words = [info.seed, info.index, *purpose.encode()]
  return int(np.random.SeedSequence(words).generate_state(1)[0] >> 1)


class LossOutput(NamedTuple):
  """What one member's loss gives back.

  Attributes:
    loss: [] to minimise.
    priorities: [B] new replay priorities, not negative.
    metrics: name to [] of what to log.
  """

  loss: tf.Tensor
  priorities: tf.Tensor
  metrics: dict[str, tf.Tensor]


class Gradient(NamedTuple):
  """The gradient of a population on one sample.

  Attributes:
    vector: [P, D].
    priorities: [P, B].
    metrics: name to [P].
  """

  vector: tf.Tensor
  priorities: tf.Tensor
  metrics: dict[str, tf.Tensor]


@dataclasses.dataclass(frozen=True)
class TargetUpdate:
  """How target networks follow: every `period` learner steps, by `tau`."""

  period: int  # learner steps
  tau: float = 1.0  # 1 copies


class Agent(abc.ABC):
  """What is learned. One instance serves any number of members."""

  name: str
  layout: parameters.Layout
  optimizer: optimizers.Optimizer
  target_update: TargetUpdate
  gamma: float
  n_step: int  # environment steps in one return
  batch_size: int  # transitions per update and member
  metrics: dict[str, str]  # of the loss, and how updates pool: 'mean', 'max'

  @abc.abstractmethod
  def initial(self, seed: int) -> np.ndarray:
    """New random parameters `theta [D]`, the same for the same seed."""

  @abc.abstractmethod
  def loss(
    self,
    variables: Sequence[tf.Tensor],
    target_variables: Sequence[tf.Tensor],
    transition: Any,
  ) -> LossOutput:
    """The loss of one member on a batch `[B, ...]` of its transitions."""

  @abc.abstractmethod
  def act(
    self,
    theta: np.ndarray,
    observation: np.ndarray,
    actor_steps: int,
    rng: np.random.Generator,
  ) -> np.ndarray:
    """Exploring actions.

    Args:
      theta: [P, D].
      observation: [P, K, ...], K environments for each member.
      actor_steps: environment steps each member has taken, for schedules.
      rng: source of the exploration.

    Returns:
      Actions [P, K].
    """

  @abc.abstractmethod
  def exploration(self, actor_steps: int) -> float:
    """How much it explores after so many steps; for the log."""

  @abc.abstractmethod
  def greedy(self, theta: np.ndarray) -> Policy:
    """The policy without exploration, for parameters `theta [D]`."""

  @abc.abstractmethod
  def learning_rate(self, info: ActorInfo, spread: str) -> float:
    """The learning rate of this member under a spread rule (swarm.py)."""
