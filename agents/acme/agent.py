"""A stock Acme agent, by its parts: it keeps its learner and its networks.

Acme (Hoffman et al. 2020, arXiv:2006.00979) builds a TensorFlow agent of a
policy, an `acme.Learner` that iterates over batches of transitions, and an
adder of n-step transitions. An `AcmeAgent` brings the first two; adder, replay,
processes and what survives them are those of every other agent here. See
learner.py for how the learner is driven, and docs/agents/acme.md.

Networks are made when they are first needed, never with the agent: agents are
made in the process that nodes are forked from, and TensorFlow must not have
worked there. Acme's agents import JAX, so they too are imported late.
"""

from __future__ import annotations

import abc
import functools
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from agents import base
from agents import parameters
from agents.acme import learner as acme_learner
from agents.networks import conv
from environment_loops import environments

if TYPE_CHECKING:
  import acme
  from acme import specs


class AcmeAgent(base.Agent):
  """What a stock agent has to say; subclasses fill in the abstract methods.

  Attributes:
    served: name under which the learner's `get_variables` gives what acts, in
      the order of `make_policy(...).variables`.
  """

  learner_class = acme_learner.AcmeLearner
  served = 'policy'

  metrics: dict[str, str] = {}  # those that the learner logs
  learning_rate = math.nan  # the learner has its own

  def __init__(self, config: Any, spec: environments.Spec):
    """Makes the agent for one environment.

    Args:
      config: has `gamma`, of the n-step returns that actors write, `n_step`,
        environment steps in one, and `batch_size`, transitions per update. If
        replay is `prioritized`, by `priority_exponent`: the learner weighs
        samples itself, by their probabilities.
      spec: of the environment.
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
    """What acts: an snt.Module of observations [K, ...] to actions [K, ...].

    Its variables have been created. It draws its exploration in TensorFlow.
    """

  @abc.abstractmethod
  def make_learner(
    self, dataset: Any, replay_client: Any, logger: Any
  ) -> acme.Learner:
    """The stock learner, with networks of its own and without checkpoints.

    Args:
      dataset: iterable and iterator of batches, each a reverb.ReplaySample
        with an acme.types.Transition.
      replay_client: takes new priorities; its `mutate_priorities` is Reverb's.
      logger: takes what the learner writes to an Acme logger.
    """

  @property
  def environment_spec(self) -> specs.EnvironmentSpec:
    """The environment, as Acme says it."""
    from acme import specs  # costs time where no Acme agent runs

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
    """Of what acts; what only learns stays with the learner."""
    # Numbered: a name by itself need not be the only one.
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
    del info
    return _Explorer(self, num_envs)

  def greedy(self, theta: np.ndarray) -> base.Policy:
    policy = Policy(self, explore=False)
    theta = np.array(theta, np.float32)
    return lambda observation: policy(theta, observation)


class Policy:
  """A stock policy for K environments: a TensorFlow call for all of them.

  A theta is known by its identity: one that is changed in place may pass for
  the old one.
  """

  def __init__(
    self, agent: AcmeAgent, explore: bool, num_envs: int | None = None
  ):
    conv.use_one_thread()
    self._module = agent.make_policy(explore)
    self._variables = self._module.variables
    self._layout = agent.layout
    self._theta: np.ndarray | None = None
    spec = agent.spec
    # Acme's noise must know the number of environments when it is traced; an
    # actor's stays what it is, an evaluation's does not.
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


class _Explorer:
  """The behaviour of one actor."""

  def __init__(self, agent: AcmeAgent, num_envs: int):
    self._agent = agent
    self._num_envs = num_envs
    self._policy: Policy | None = None

  def act(self, theta, observation, actor_steps, rng):
    del actor_steps
    if self._policy is None:
      # What is traced from here on draws by this seed.
      tf.random.set_seed(int(rng.integers(2**31)))
      self._policy = Policy(self._agent, True, self._num_envs)
    return self._policy(theta, observation)

  def priorities(self, theta, packed):
    """Acme's adder gives all items the priority 1."""
    del theta, packed
    return None

  def ended(self, last):
    """Nothing is kept of an episode."""
