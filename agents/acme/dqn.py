"""Acme's own DQN: its learner and network, run by this project."""

from __future__ import annotations

import dataclasses
import logging
from typing import Annotated, Any

from murmuration.agents import settings
from murmuration.agents.acme import agent as acme_agent
from murmuration.environment_loops import environments

_logger = logging.getLogger(__name__)
_PRIORITIZED = settings.only_with('prioritized', True)


@dataclasses.dataclass(frozen=True)
class Config:
  """Acme's DQN. Defaults are those of acme.agents.tf.dqn unless marked."""

  hidden_sizes: settings.Sizes = (64, 64)  # units of each layer; chosen here
  learning_rate: settings.Positive = 1e-3  # per update
  gamma: settings.Fraction = 0.99  # discount per environment step
  # Environment steps in one return; Acme: 5. Acme's learner clips the n-step
  # sum of rewards to [-1, 1].
  n_step: settings.Whole = 1
  batch_size: settings.Whole = 256  # transitions per update
  huber_loss_parameter: settings.Positive = 1.0  # TD error, linear beyond
  # Limit on the norm of the whole gradient; None: no limit.
  max_gradient_norm: settings.Positive | None = None
  target_update_period: settings.Whole = 100  # learner steps between updates
  epsilon: settings.Fraction = 0.05  # chance of a random action
  # Whether replay is sampled by TD error; False: uniformly.
  prioritized: bool = True
  # Exponent alpha of the priorities.
  priority_exponent: Annotated[settings.Fraction, _PRIORITIZED] = 0.6
  # Exponent beta of the importance weights.
  importance_exponent: Annotated[settings.Fraction, _PRIORITIZED] = 0.2
  max_replay_size: settings.Items = 1_000_000  # transitions, at most
  min_replay_size: settings.Items = 1_000  # transitions before learning

  def __post_init__(self):
    settings.check(self, 'agent')


class AcmeDQN(acme_agent.AcmeAgent):
  """acme.agents.tf.dqn.DQNLearner and its epsilon-greedy policy."""

  name = 'acme_dqn'

  def __init__(self, config: Config, spec: environments.Spec):
    """Makes the agent for one environment.

    Raises:
      environments.EnvironmentRefused: the actions are not discrete, or the
        observations are images.
    """
    self._num_actions = environments.require_discrete(spec, "Acme's DQN")
    super().__init__(config, spec)
    if self.images:
      raise environments.EnvironmentRefused(
        f"{spec.name} has images {spec.observation_shape}, and Acme's DQN has "
        'an MLP here. Take dqn, or register a version that gives float vectors.'
      )

  def _make_network(self) -> Any:
    from acme.tf import utils
    import sonnet as snt

    network = snt.Sequential(
      [
        snt.Flatten(),
        snt.nets.MLP([*self.config.hidden_sizes, self._num_actions]),
      ]
    )
    utils.create_variables(network, [self.environment_spec.observations])
    return network

  def make_policy(self, explore):
    import sonnet as snt
    import trfl

    epsilon = self.config.epsilon if explore else 0.0
    return snt.Sequential(
      [
        self._make_network(),
        lambda q: trfl.epsilon_greedy(q, epsilon=epsilon).sample(),
      ]
    )

  def make_learner(self, dataset, replay_client, logger):
    from acme.agents.tf.dqn import learning

    config = self.config
    if config.n_step > 1:
      _logger.warning(
        "Acme's DQN learner clips the sum of agent.n_step=%d rewards to "
        '[-1, 1]: right where no sum is larger. Set agent.n_step=1 otherwise.',
        config.n_step,
      )
    return learning.DQNLearner(
      network=self._make_network(),
      target_network=self._make_network(),
      discount=config.gamma,
      importance_sampling_exponent=config.importance_exponent,
      learning_rate=config.learning_rate,
      target_update_period=config.target_update_period,
      dataset=dataset,
      huber_loss_parameter=config.huber_loss_parameter,
      replay_client=replay_client,
      logger=logger,
      checkpoint=False,
      max_gradient_norm=config.max_gradient_norm,
    )

  def exploration(self, actor_steps):
    return self.config.epsilon
