"""The vocabulary: what an agent is, on one page.

An `Agent` says what is learned and nothing else. It owns

  layout      which variables there are, as one flat vector (parameters.py)
  initial     new parameters from a seed
  actor       the behaviour of one ranked actor with K environments
  act         the same for P members at once, without rank; not of all agents
  experience  what it learns from: 'transitions' or 'unrolls'
  feed        how a sample of that experience becomes batches
  loss        the equation, for one member, in TensorFlow
  greedy      the policy that is evaluated

The loop in which they are used, with the names of launch/nodes:

  actor, theta = agent.actor(info, num_envs), agent.initial(seed)
  learner = TFLearner(agent, theta[None], [agent.learning_rate], exchange,
                      agent.feed(num_envs))
  observation = environments.reset()
  while True:
    for _ in range(acting_steps):
      actions = actor.act(theta, observation, actor_steps, rng)
      step = environments.step(actions)
      adder.add(observation, actions, step)  # to replay, or to a queue
      actor.ended(step.last)
      observation = step.next_observation
    learner.step(sampler.sample())  # feed.arrange, feed.unpack, agent.loss
    theta = learner.parameters()[0]

A topology decides who calls these, and an engine where: the loop is one process
in single_process, and two that run at once in actor_learner. Rank reaches an
agent only as `ActorInfo`: seeds and epsilons are functions of it.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
import dataclasses
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from agents import feeds
from agents import optimizers
from agents import parameters
from agents.networks import conv
from environment_loops import environments
from replay import blocks
from replay import packing

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


def clipped(step: Any, limit: float | None) -> Any:
  """What is learned from a `vector.StepBatch`: rewards in [-limit, limit].

  Each reward by itself, never a sum; reported returns are not clipped. None
  clips nothing.
  """
  if limit is None:
    return step
  return step._replace(reward=np.clip(step.reward, -limit, limit))


class LossOutput(NamedTuple):
  """What one member's loss gives back.

  Attributes:
    loss: [] to minimise.
    priorities: [B] new replay priorities, not negative.
    metrics: name to [] of what to log.
    statistics: variable name to its new value: what is part of the parameters
      but not learned by gradient, such as the running mean of observations.
    stopped: [] bool, whether this gradient and those of the rest of the
      learner's call move nothing, the optimizer's state neither; None: they do.
      The learner gives the share as metric 'stopped_updates'.
  """

  loss: tf.Tensor
  priorities: tf.Tensor
  metrics: dict[str, tf.Tensor]
  statistics: dict[str, tf.Tensor] = {}
  stopped: tf.Tensor | None = None


class Gradient(NamedTuple):
  """The gradient of a population on one sample.

  Attributes:
    vector: [P, D].
    priorities: [P, B].
    metrics: name to [P].
    stopped: [P] bool, members that it does not move.
    statistics: variable name to [P, *shape].
  """

  vector: tf.Tensor
  priorities: tf.Tensor
  metrics: dict[str, tf.Tensor]
  stopped: tf.Tensor
  statistics: dict[str, tf.Tensor] = {}


@dataclasses.dataclass(frozen=True)
class TargetUpdate:
  """How target networks follow: every `period` learner steps, by `tau`."""

  period: int  # learner steps
  tau: float = 1.0  # 1 copies


class RateEnd(NamedTuple):
  """Where learning rates that fall have come to 0, and which setting says so.

  Attributes:
    update: learner steps made before the first one with a rate of 0.
    setting: such as 'agent.anneal_updates'.
    value: of the setting.
    after: learner steps made before they begin to fall.
    env_steps: in one update, where `value` counts those.
  """

  update: float
  setting: str
  value: float
  after: float = 0.0
  env_steps: float | None = None


class Actor(Protocol):
  """The behaviour of one actor with K environments; keeps its own state."""

  def act(
    self,
    theta: np.ndarray,
    observation: np.ndarray,
    actor_steps: int,
    rng: np.random.Generator,
  ) -> np.ndarray:
    """Exploring actions [K, ...] for `theta [D]`, `observation [K, ...]`."""

  def priorities(
    self, theta: np.ndarray, packed: np.ndarray
  ) -> np.ndarray | None:
    """First priorities [M] of packed transitions [M, W]; None: all alike."""

  def ended(self, last: np.ndarray) -> None:
    """Says where an episode has ended, bool [K], for state that is kept."""


class Members(Protocol):
  """Greedy policies of P members, each in an environment of its own."""

  def begin(self, member: int, theta: np.ndarray) -> None:
    """An episode of this member begins, with parameters `theta [D]`."""

  def keep(self, members: np.ndarray) -> None:
    """Only these of them, int [P'], act from now on: the new P' members."""

  def __call__(self, observation: np.ndarray) -> np.ndarray:
    """Observations [P, ...] to actions [P, ...]."""


class Agent(abc.ABC):
  """What is learned. One instance serves any number of members."""

  name: str
  spec: environments.Spec
  layout: parameters.Layout
  optimizer: optimizers.Optimizer
  target_update: TargetUpdate
  serve_target: bool = False  # whether target networks act, not online ones
  gamma: float
  n_step: int  # environment steps in one return
  batch_size: int  # transitions, or sequences, per update and member
  learning_rate: float  # of a member, per update
  metrics: dict[str, str]  # of the loss, and how updates pool: 'mean', 'max'
  max_gradient_norm: float | None = None  # of a member's whole gradient
  # Factors on the learning rate of each parameter [D]; None: all alike.
  learning_rate_scale: np.ndarray | None = None
  # What to lower where learning diverges, as a config names it.
  rate_settings: tuple[str, ...] = ('agent.learning_rate',)
  rate_end: RateEnd | None = None  # of `rate_factor`; None: rates stay
  # Which parameters move only in updates that are `due`, bool [D]; None: none.
  delayed: np.ndarray | None = None
  # alpha of prioritized replay; None: uniform replay.
  priority_exponent: float | None = None
  importance_exponent: float = 0.0  # beta of prioritized replay
  reward_clip: float | None = None  # of each reward that is learned from
  # Whether XLA makes one program of a whole learner call, where there is one
  # member: half the time of a small MLP, but twelve times that of a
  # convolution. Measure before setting it.
  compiled: bool = False
  # Steps of an unroll, which makes `experience` 'unrolls'.
  unroll_length: int | None = None
  # Learner steps in one call, where that is not free (a rollout's epochs);
  # None: as `run.updates_per_call` says.
  updates_per_call: int | None = None
  # Which `statistics` of the loss are largest values so far: what several
  # learners have found becomes one by its maximum, all else by its mean.
  maxima: tuple[str, ...] = ()
  # Whether actors wait, after their share of a rollout, until it is learned.
  on_policy: bool = False
  # A learner of its own, made and used like `learner.TFLearner`; None: that.
  learner_class: type[Any] | None = None

  @property
  def images(self) -> bool:
    """Whether observations are images, which convolutions take in."""
    return conv.is_image(self.spec)

  @property
  def experience(self) -> str:
    """'transitions' from replay, or 'unrolls' (unroll/unrolls.py) in blocks."""
    return 'transitions' if self.unroll_length is None else 'unrolls'

  def transition_layout(self) -> packing.TransitionLayout:
    """How a transition is packed."""
    spec = self.spec
    return packing.TransitionLayout(
      spec.observation_shape,
      spec.action_shape,
      spec.discrete,
      spec.observation_dtype,
    )

  def block_layout(self, num_envs: int) -> blocks.BlockLayout:
    """Of unrolls: what an actor with `num_envs` environments writes."""
    raise TypeError(
      f'{self.name} learns from {self.experience}, which come in no blocks '
      f'(of {num_envs} environments). See unroll/agent.py for agents that do.'
    )

  def feed(
    self, num_envs: int, batch_size: int | None = None, seed: int = 0
  ) -> feeds.Feed:
    """How samples become batches.

    Args:
      num_envs: environments of the actors that write them.
      batch_size: of one learner; None: of the agent.
      seed: of what the feed draws at random, such as shuffles.
    """
    del num_envs, seed
    return feeds.Transitions(
      self.transition_layout(), batch_size or self.batch_size
    )

  @abc.abstractmethod
  def initial(self, seed: int) -> np.ndarray:
    """New random parameters `theta [D]`, the same for the same seed."""

  @abc.abstractmethod
  def loss(
    self,
    variables: Sequence[tf.Tensor],
    target_variables: Sequence[tf.Tensor],
    batch: Any,
    importance: tf.Tensor | None = None,
  ) -> LossOutput:
    """The loss of one member.

    Args:
      variables: of the member, in layout order.
      target_variables: of its target network, likewise.
      batch: its experience, with leading axes [B] for transitions.
      importance: [B] weights of prioritized sampling; None means all 1.
    """

  def act(
    self,
    theta: np.ndarray,
    observation: np.ndarray,
    actor_steps: int,
    rng: np.random.Generator,
  ) -> np.ndarray:
    """Exploring actions of all members in one pass.

    Those on unrolls have `actor` alone: their policies may remember.

    Args:
      theta: [P, D].
      observation: [P, K, ...], K environments for each member.
      actor_steps: environment steps each member has taken, for schedules.
      rng: source of the exploration.

    Returns:
      Actions [P, K].
    """
    raise NotImplementedError(
      f'{self.name} has no `act`: let its `actor` act, one for each member.'
    )

  def actor(self, info: ActorInfo, num_envs: int) -> Actor:
    """The behaviour of actor `info.index` with `num_envs` environments."""
    del info, num_envs
    return _PlainActor(self)

  def due(self, update: tf.Tensor) -> tf.Tensor:
    """Whether this update moves what is `delayed` too, bool []. In the graph.

    Args:
      update: learner steps made before this one, int64 [].
    """
    del update
    return tf.constant(True)

  def rate_factor(self, update: tf.Tensor) -> tf.Tensor | None:
    """Factor [] on all learning rates; None: 1. In the graph.

    1, then linear to 0 at `rate_end`. Override it for another schedule.
    """
    end = self.rate_end
    if end is None:
      return None
    return optimizers.annealed(update, end.update, end.after)

  def ended(self, last: np.ndarray) -> None:
    """Says where episodes have ended, bool [P, K], to what `act` keeps."""
    del last

  def remarks(self, metrics: dict[str, float]) -> list[str]:
    """Warnings that a user should read, given the learner's last metrics."""
    del metrics
    return []

  @abc.abstractmethod
  def exploration(self, actor_steps: int) -> float:
    """How much it explores after so many steps; for the log."""

  @abc.abstractmethod
  def greedy(self, theta: np.ndarray) -> Policy:
    """The policy without exploration, for parameters `theta [D]`."""

  def operations(self, theta: np.ndarray) -> list[list[Any]]:
    """`greedy` as operations of murmuration/portable.py, to be exported.

    Raises:
      ValueError: this agent does not say them.
    """
    raise ValueError(
      f'{self.name} cannot be exported: it does not say its policy as '
      'operations. Give its class `operations(theta)`, as '
      'agents/value_agent.py has it.'
    )

  def greedy_each(self, theta: np.ndarray) -> Members:
    """As `greedy`, for `theta [P, D]`: in one pass where the agent can."""
    return _OneByOne(self, theta)


class GreedyMembers:
  """Greedy policies that remember nothing, in one pass."""

  def __init__(
    self, theta: np.ndarray, act: Callable[[np.ndarray, np.ndarray], np.ndarray]
  ):
    """Takes what acts.

    Args:
      theta: [P, D], copied.
      act: (theta [P, D], observation [P, 1, ...]) -> actions [P, 1, ...]. Its
        theta is changed in place between calls.
    """
    self._theta = np.array(theta, np.float32)
    self._act = act

  def begin(self, member: int, theta: np.ndarray) -> None:
    self._theta[member] = theta

  def keep(self, members: np.ndarray) -> None:
    self._theta = self._theta[members]

  def __call__(self, observation: np.ndarray) -> np.ndarray:
    return self._act(self._theta, observation[:, None])[:, 0]


class _OneByOne:
  """Greedy policies of any agent, one after the other."""

  def __init__(self, agent: Agent, theta: np.ndarray):
    self._agent = agent
    self._policies = [agent.greedy(one) for one in theta]

  def begin(self, member: int, theta: np.ndarray) -> None:
    self._policies[member] = self._agent.greedy(theta)

  def keep(self, members: np.ndarray) -> None:
    self._policies = [self._policies[member] for member in members]

  def __call__(self, observation: np.ndarray) -> np.ndarray:
    return np.concatenate(
      [policy(one[None]) for policy, one in zip(self._policies, observation)]
    )


class _PlainActor:
  """An actor that explores as its agent does, whatever its rank."""

  def __init__(self, agent: Agent):
    self._agent = agent

  def act(self, theta, observation, actor_steps, rng):
    actions = self._agent.act(theta[None], observation[None], actor_steps, rng)
    return actions[0]

  def priorities(self, theta, packed):
    del theta, packed
    return None

  def ended(self, last):
    del last
