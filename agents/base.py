"""The vocabulary: what an agent is, on one page.

An `Agent` says what is learned and nothing else. It owns

  layout      the variables, as slices of one flat vector (parameters.py)
  initial     new parameters from a seed
  actor       the behaviour of one ranked actor with K environments
  act         the same for P members at once, without rank. One of the two is
              enough: an actor is made of `act`, and members are made of actors
  experience  what it learns from: 'transitions' or 'unrolls'
  feed        how a sample of that experience becomes batches
  loss        the equation, for one member, in TensorFlow
  greedy      the policy that is evaluated

The loop that uses them, with the names of launch/nodes:

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

A topology decides which nodes run these calls, and an engine where the nodes
run: the loop is one process in single_process, and two concurrent ones in
actor_learner. Rank reaches an agent only as `ActorInfo`, of which seeds and
epsilons are functions.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
import dataclasses
import sys
import typing
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from murmuration.agents import feeds
from murmuration.agents import optimizers
from murmuration.agents import parameters
from murmuration.agents.networks import conv
from murmuration.environment_loops import environments
from murmuration.replay import blocks
from murmuration.replay import packing

# Observations [K, ...] to actions [K, ...]. One with a memory also has
# `reset()`, for new episodes, and `ended(last)`, where episodes end, bool [K].
Policy = Callable[[np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True)
class ActorInfo:
  """The rank of an actor or explorer: all that an agent knows of its place."""

  index: int  # 0 <= index < count
  count: int
  seed: int  # of the whole run; use `actor_seed` for this actor's own


def actor_seed(info: ActorInfo, purpose: str) -> int:
  """Returns a reproducible seed of its own for each actor and purpose."""
  words = [info.seed, info.index, *purpose.encode()]
  return int(np.random.SeedSequence(words).generate_state(1)[0] >> 1)


def clipped(step: Any, limit: float | None) -> Any:
  """Returns a `vector.StepBatch` with each reward clipped to [-limit, limit].

  Only for learning: reported returns are not clipped. None clips nothing.
  """
  if limit is None:
    return step
  return step._replace(reward=np.clip(step.reward, -limit, limit))


class LossOutput(NamedTuple):
  """The result of one member's loss.

  Attributes:
    loss: scalar to minimise, [].
    priorities: new replay priorities, not negative, [B]; None if the agent has
      none to give.
    metrics: name to scalar [], to be logged.
    statistics: variable name to new value, for parameters that are not learned
      by gradient, such as the running mean of observations.
    stopped: whether this gradient and all later ones of the learner's call are
      ignored, also by the optimizer's state, bool []; None: no. The learner
      logs the share of such updates as 'stopped_updates'.
  """

  loss: tf.Tensor
  priorities: tf.Tensor | None
  metrics: dict[str, tf.Tensor]
  statistics: dict[str, tf.Tensor] = {}
  stopped: tf.Tensor | None = None


class Gradient(NamedTuple):
  """The gradient of a population on one sample.

  Attributes:
    vector: [P, D].
    priorities: [P, B].
    metrics: name to [P].
    stopped: members that it does not move, bool [P].
    statistics: variable name to [P, *shape].
  """

  vector: tf.Tensor
  priorities: tf.Tensor
  metrics: dict[str, tf.Tensor]
  stopped: tf.Tensor
  statistics: dict[str, tf.Tensor] = {}


@dataclasses.dataclass(frozen=True)
class TargetUpdate:
  """Target networks move by `tau` every `period` learner steps."""

  period: int  # learner steps
  tau: float = 1.0  # 1 copies the online network


class RateEnd(NamedTuple):
  """When annealed learning rates reach 0, and the setting that says so.

  Attributes:
    update: learner steps made before the first one with a rate of 0.
    setting: its name, such as 'agent.anneal_updates'.
    value: its value.
    after: learner steps made before rates begin to fall.
    env_steps: environment steps per update, if `value` is in those.
  """

  update: float
  setting: str
  value: float
  after: float = 0.0
  env_steps: float | None = None


class Actor(Protocol):
  """The behaviour of one actor with K environments, and its state."""

  def act(
    self,
    theta: np.ndarray,
    observation: np.ndarray,
    actor_steps: int,
    rng: np.random.Generator,
  ) -> np.ndarray:
    """Exploring actions [K, ...] for `theta [D]` and `observation [K, ...]`."""

  def priorities(
    self, theta: np.ndarray, packed: np.ndarray
  ) -> np.ndarray | None:
    """Initial priorities [M] of packed transitions [M, W]; None: all equal."""
    return None

  def ended(self, last: np.ndarray) -> None:
    """Resets the state of environments whose episode ended, bool [K]."""
    return None


class Members(Protocol):
  """Greedy policies of P members, each in its own environment."""

  def begin(self, member: int, theta: np.ndarray) -> None:
    """Begins an episode of this member with parameters `theta [D]`."""

  def keep(self, members: np.ndarray) -> None:
    """Keeps only these members, int [P'], which become members 0 .. P'-1."""

  def __call__(self, observation: np.ndarray) -> np.ndarray:
    """Observations [P, ...] to actions [P, ...]."""


class Agent(abc.ABC):
  """What is learned. One instance serves any number of members."""

  name: str
  spec: environments.Spec
  layout: parameters.Layout
  optimizer: optimizers.Optimizer
  target_update: TargetUpdate
  gamma: float
  n_step: int  # environment steps in one return
  batch_size: int  # transitions, sequences, or PPO's steps, per update, member
  learning_rate: float  # of a member, per update
  # Of the loss; how to pool updates: 'mean', 'max' or 'min'.
  metrics: dict[str, str]
  max_gradient_norm: float | None = None  # of a member's whole gradient
  # Factors on the learning rate of each parameter [D]; None: all 1.
  learning_rate_scale: np.ndarray | None = None
  # Fields of its config that change nothing for this environment, and why;
  # those that need another field say so themselves (settings.only_with).
  ignored: dict[str, str] = {}
  # The settings to lower if learning diverges.
  rate_settings: tuple[str, ...] = ('agent.learning_rate',)
  rate_end: RateEnd | None = None  # of `rate_factor`; None: rates stay
  # Parameters that move only in updates that are `due`, bool [D]; None: none.
  delayed: np.ndarray | None = None
  # alpha of prioritized replay; None: uniform replay.
  priority_exponent: float | None = None
  importance_exponent: float = 0.0  # beta of prioritized replay
  reward_clip: float | None = None  # of each reward that is learned from
  # Whether XLA compiles a whole learner call of one member into one program.
  # That halves the time of a small MLP, but takes twelve times as long for
  # convolutions: measure before setting it.
  compiled: bool = False
  # Steps of an unroll; if set, `experience` is 'unrolls'.
  unroll_length: int | None = None
  # Learner steps per call where the agent fixes them, such as the epochs of a
  # rollout; None: `run.updates_per_call`.
  updates_per_call: int | None = None
  # Names of the `statistics` that are running maxima. A parameter server and
  # gossip merge them by maximum, all others by mean; learners that average take
  # the first's.
  maxima: tuple[str, ...] = ()
  # Whether actors wait until the rollout they contributed to is learned from.
  on_policy: bool = False
  # A learner class with the interface of `learner.TFLearner`; None: TFLearner.
  learner_class: type[Any] | None = None

  @classmethod
  def config_class(cls) -> Any:
    """The class of the config that instances are made with; None if not said.

    It is said by the dataclass that annotates the parameter of its `__init__`,
    or `config` in the body of the class; of its bases, by the nearest that has
    either.

    Raises:
      ValueError: it is inherited, but the module of the class has a Config of
        its own that is made of it.
      Exception: of an annotation, which may be any expression.
    """
    for one in cls.__mro__:
      names, found = vars(one), None
      init = names.get('__init__')
      if 'config' in getattr(init, '__annotations__', {}):
        found = typing.get_type_hints(init)['config']
      said = names.get('__annotations__', {}).get('config')
      if said is not None and not dataclasses.is_dataclass(found):
        # Alone: what others name may be there under TYPE_CHECKING only.
        place = type('_', (), {'__module__': one.__module__})
        place.__annotations__ = {'config': said}
        found = typing.get_type_hints(place, localns=dict(names))['config']
      if not (isinstance(found, type) and dataclasses.is_dataclass(found)):
        if init is None:
          continue
        return None  # it takes what it does not say
      own = getattr(sys.modules.get(cls.__module__), 'Config', None)
      if (
        one is not cls
        and isinstance(own, type)
        and own.__module__ == cls.__module__
        and issubclass(own, found)
        and own is not found
      ):
        inherited = f'{found.__module__}.{found.__name__}'
        raise ValueError(
          f'{cls.__name__} inherits from {one.__name__} that its config is a '
          f'{inherited}, but {own.__module__} has a Config made of that. Write '
          f'`config: Config` in {cls.__name__}, or `config: {inherited}` if '
          'that is meant.'
        )
      return found
    return None

  @property
  def images(self) -> bool:
    """Whether observations are images, which convolutional networks take."""
    return conv.is_image(self.spec)

  @property
  def experience(self) -> str:
    """'transitions' from replay, or 'unrolls' (unroll/unrolls.py) in blocks."""
    return 'transitions' if self.unroll_length is None else 'unrolls'

  def transition_layout(self) -> packing.TransitionLayout:
    """How a transition is packed into one column."""
    spec = self.spec
    return packing.TransitionLayout(
      spec.observation_shape,
      spec.action_shape,
      spec.discrete,
      spec.observation_dtype,
    )

  def block_layout(self, num_envs: int) -> blocks.BlockLayout:
    """Layout of the blocks that an actor writes; TypeError if it has none."""
    raise TypeError(
      f'{self.name} learns from {self.experience}, which come in no blocks '
      f'(of {num_envs} environments). See unroll/agent.py for agents that do.'
    )

  def feed(
    self, num_envs: int, batch_size: int | None = None, seed: int = 0
  ) -> feeds.Feed:
    """Returns what turns samples into batches.

    Args:
      num_envs: environments of each actor that wrote the samples.
      batch_size: of one learner; None: the agent's.
      seed: of the feed's random draws, such as shuffles.
    """
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

    It is traced once, without AutoGraph: where a tensor decides, use tf.where
    or tf.cond, as Python's `if` raises an error.

    Args:
      variables: parameters of the member, in layout order.
      target_variables: parameters of its target network, in layout order.
      batch: its experience; transitions have the leading axis [B].
      importance: weights of prioritized sampling, [B]; None: all 1.
    """

  def act(
    self,
    theta: np.ndarray,
    observation: np.ndarray,
    actor_steps: int,
    rng: np.random.Generator,
  ) -> np.ndarray:
    """Exploring actions of all members in one pass.

    Agents on unrolls implement only `actor`: their policies may be recurrent.

    Args:
      theta: [P, D].
      observation: [P, K, ...], K environments per member.
      actor_steps: environment steps of each member so far, for schedules.
      rng: source of the exploration.

    Returns:
      Actions [P, K, ...].
    """
    raise NotImplementedError(
      f'{self.name} has no `act`: let its `actor` act, one for each member.'
    )

  def actor(self, info: ActorInfo, num_envs: int) -> Actor:
    """The behaviour of actor `info.index` with `num_envs` environments."""
    return _PlainActor(self)

  def due(self, update: tf.Tensor) -> tf.Tensor:
    """Whether the update after `update` steps moves what is `delayed`.

    bool [] from int64 [], in the graph.
    """
    return tf.constant(True)

  def rate_factor(self, update: tf.Tensor) -> tf.Tensor | None:
    """Factor [] on all learning rates after `update` steps; None: 1.

    In the graph. By default it is 1, then falls linearly to 0 at `rate_end`.
    """
    end = self.rate_end
    if end is None:
      return None
    return optimizers.annealed(update, end.update, end.after)

  def ended(self, last: np.ndarray) -> None:
    """Resets what `act` keeps where episodes ended, bool [P, K].

    What `act` keeps is of all members and actors of one process. An agent that
    keeps something for each gives an `actor` that has it.
    """

  def check_exploration(self, num_envs: int) -> None:
    """Raises ValueError if it cannot explore in `num_envs` environments.

    Of members of a worker that acts itself.
    """

  def remarks(self, metrics: dict[str, float]) -> list[str]:
    """Warnings for the user, given the learner's last metrics."""
    return []

  @abc.abstractmethod
  def exploration(self, actor_steps: int) -> float:
    """The amount of exploration after `actor_steps`, for the log."""

  @abc.abstractmethod
  def greedy(self, theta: np.ndarray) -> Policy:
    """The policy without exploration, for parameters `theta [D]`."""

  def operations(self, theta: np.ndarray) -> list[list[Any]]:
    """`greedy` as operations of murmuration/portable.py, for export.

    Raises:
      ValueError: the agent does not support export.
    """
    raise ValueError(
      f'{self.name} cannot be exported: it does not say its policy as '
      'operations. Give its class `operations(theta)`, as '
      'agents/value_agent.py has it.'
    )

  def greedy_each(self, theta: np.ndarray) -> Members:
    """`greedy` for each member of `theta [P, D]`, in one pass if possible."""
    return _OneByOne(self, theta)


class GreedyMembers:
  """Greedy policies without memory, evaluated in one pass."""

  def __init__(
    self, theta: np.ndarray, act: Callable[[np.ndarray, np.ndarray], np.ndarray]
  ):
    """Takes `theta [P, D]`, which is copied, and the policies.

    `act` maps theta [P, D] and observation [P, 1, ...] to actions [P, 1, ...].
    Its `theta` is modified in place between calls.
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
  """Greedy policies of any agent, evaluated one after the other."""

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


class _PlainActor(Actor):
  """An actor that explores by `agent.act`, whatever its rank."""

  def __init__(self, agent: Agent):
    self._agent = agent

  def act(self, theta, observation, actor_steps, rng):
    actions = self._agent.act(theta[None], observation[None], actor_steps, rng)
    return actions[0]

  def ended(self, last):
    self._agent.ended(last[None])
