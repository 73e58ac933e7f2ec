"""A stock Acme agent, run with its own learner and networks.

Acme (Hoffman et al. 2020, arXiv:2006.00979) builds a TensorFlow agent from a
policy, an `acme.Learner` that iterates over batches of transitions, and an
adder of n-step transitions. An `AcmeAgent` provides the first two; adder,
replay, processes and fault tolerance are those of all agents here. See
learner.py for how the learner is driven, and docs/agents/acme.md.

Networks are created when first needed, not with the agent: agents are created
in the process that nodes are forked from, where TensorFlow must not have run.
Acme's agents import JAX, so they are imported late too.
"""

from __future__ import annotations

import abc
import functools
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from murmuration.agents import base
from murmuration.agents import parameters
from murmuration.agents.acme import learner as acme_learner
from murmuration.agents.networks import conv
from murmuration.environment_loops import environments

if TYPE_CHECKING:
  import acme
  from acme import specs


class AcmeAgent(base.Agent):
  """A stock agent; subclasses implement the abstract methods."""

  learner_class = acme_learner.AcmeLearner
  # Name under which the learner's `get_variables` returns the acting policy, in
  # the order of `make_policy(...).variables`.
  served = 'policy'

  metrics: dict[str, str] = {}  # only those that the learner logs
  learning_rate = math.nan  # the learner has its own

  def __init__(self, config: Any, spec: environments.Spec):
    """Makes the agent for one environment.

    `config` has `gamma` and `n_step` (environment steps) of the returns that
    actors write, and `batch_size` in transitions per update. If `prioritized`,
    replay uses `priority_exponent`; the learner computes importance weights
    from the sampling probabilities itself.
    """
    self.config = config
    self.spec = spec
    self.gamma = config.gamma
    self.n_step = config.n_step
    self.batch_size = config.batch_size
    if getattr(config, 'prioritized', False):
      self.priority_exponent = config.priority_exponent

  @abc.abstractmethod
  def make_policy(self, explore: bool) -> Any:
    """Makes the acting snt.Module: observations [K, ...] to actions [K, ...].

    Its variables must exist already. It draws its exploration in TensorFlow.
    """

  @abc.abstractmethod
  def make_learner(
    self, dataset: Any, replay_client: Any, logger: Any
  ) -> acme.Learner:
    """Makes the stock learner, with its own networks, without checkpoints.

    Args:
      dataset: iterable and iterator of batches, each a reverb.ReplaySample
        with an acme.types.Transition.
      replay_client: takes new priorities by Reverb's `mutate_priorities`.
      logger: an Acme logger.
    """

  @property
  def environment_spec(self) -> specs.EnvironmentSpec:
    """The environment's spec in Acme's form."""
    from acme import specs  # slow to import, so only where an Acme agent runs

    spec = self.spec
    actions = specs.BoundedArray(
      spec.action_shape, np.float32, -1.0, 1.0, name='action'
    )
    if spec.num_actions is not None:
      actions = specs.DiscreteArray(spec.num_actions, name='action')
    return specs.EnvironmentSpec(
      observations=specs.Array(
        spec.observation_shape, np.dtype(spec.observation_dtype)
      ),
      actions=actions,
      rewards=specs.Array((), np.float32, name='reward'),
      discounts=specs.BoundedArray((), np.float32, 0.0, 1.0, name='discount'),
    )

  @functools.cached_property
  def layout(self) -> parameters.Layout:  # type: ignore[override]
    """The layout of the acting policy; other variables stay in the learner."""
    # Numbered, because names alone may not be unique.
    return parameters.Layout(
      (f'{index}.{variable.name.rpartition("/")[2]}', variable.shape)
      for index, variable in enumerate(self.make_policy(False).variables)
    )

  def initial(self, seed: int) -> np.ndarray:
    tf.random.set_seed(seed)
    variables = self.make_policy(False).variables
    return self.layout.pack([variable.numpy() for variable in variables])

  def loss(self, variables, target_variables, batch, importance=None):
    raise NotImplementedError(
      f'{self.name} learns with a learner of its own, which has no loss to '
      'give away. Run it under actor_learner.'
    )

  def actor(self, info: base.ActorInfo, num_envs: int) -> base.Actor:
    return _Explorer(self, num_envs)

  def greedy(self, theta: np.ndarray) -> base.Policy:
    policy = Policy(self, explore=False)
    theta = np.array(theta, np.float32)
    return lambda observation: policy(theta, observation)


class Policy:
  """A stock policy for K environments, evaluated in one TensorFlow call.

  Parameters are cached by the identity of theta, so an array that is changed in
  place is not noticed.
  """

  def __init__(
    self, agent: AcmeAgent, explore: bool, num_envs: int | None = None
  ):
    conv.prepare_to_act()
    self._module = agent.make_policy(explore)
    self._variables = self._module.variables
    self._layout = agent.layout
    self._theta: np.ndarray | None = None
    spec = agent.spec
    # Acme's noise needs the number of environments when it is traced. An actor
    # has a fixed number, an evaluation does not.
    shape = (num_envs, *spec.observation_shape)
    self._call = tf.function(
      self._module,
      input_signature=[tf.TensorSpec(shape, spec.observation_dtype)],
    )

  def __call__(self, theta: np.ndarray, observation: np.ndarray) -> np.ndarray:
    """Actions [K, ...] for `theta [D]` and `observation [K, ...]`."""
    if theta is not self._theta:
      for variable, value in zip(
        self._variables, self._layout.unpack(theta), strict=True
      ):
        variable.assign(value)
      self._theta = theta
    return self._call(observation).numpy()


class _Explorer(base.Actor):
  """The exploring behaviour of one actor.

  It has no priorities: Acme's adder gives all items the priority 1.
  """

  def __init__(self, agent: AcmeAgent, num_envs: int):
    self._agent = agent
    self._num_envs = num_envs
    self._policy: Policy | None = None

  def act(self, theta, observation, actor_steps, rng):
    if self._policy is None:
      # Random ops traced from here on use this seed.
      tf.random.set_seed(int(rng.integers(2**31)))
      self._policy = Policy(self._agent, True, self._num_envs)
    return self._policy(theta, observation)
