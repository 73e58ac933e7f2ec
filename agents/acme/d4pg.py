"""Acme's own D4PG: its learner and networks, run by this project."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

from murmuration.agents import settings
from murmuration.agents.acme import agent as acme_agent
from murmuration.agents.actor_critic import agent as actor_critic
from murmuration.environment_loops import environments


@dataclasses.dataclass(frozen=True)
class Config:
  """Acme's D4PG. Defaults are those of acme.agents.tf.d4pg unless marked."""

  policy_sizes: settings.Sizes = (256, 256)  # units of each layer; chosen here
  critic_sizes: settings.Sizes = (256, 256)  # units of each layer; chosen here
  num_atoms: Annotated[int, settings.at_least(2)] = 51  # atoms of the support
  # Lower end of the support, a discounted return; Acme's for the control suite.
  v_min: float = -150.0
  v_max: float = 150.0  # upper end of the support, in the same units
  policy_learning_rate: settings.Positive = 1e-4  # per update
  critic_learning_rate: settings.Positive = 1e-4  # per update
  clipping: bool = True  # whether to clip gradients and dQ/da
  gamma: settings.Fraction = 0.99  # discount per environment step
  n_step: settings.Whole = 5  # environment steps in one return
  batch_size: settings.Whole = 256  # transitions per update
  target_update_period: settings.Whole = 100  # learner steps between updates
  sigma: settings.NotNegative = 0.3  # of the action noise, in units of [-1, 1]
  max_replay_size: settings.Items = 1_000_000  # transitions, at most
  min_replay_size: settings.Items = 1_000  # transitions before learning

  def __post_init__(self):
    settings.check(self, 'agent')
    why = 'they are the ends of the support of the critic.'
    settings.ordered(self, 'agent.v_min', 'agent.v_max', why)


class AcmeD4PG(acme_agent.AcmeAgent):
  """acme.agents.tf.d4pg: builder, networks and learner. Target networks act."""

  name = 'acme_d4pg'
  rate_settings = actor_critic.ActorCritic.rate_settings

  def __init__(self, config: Config, spec: environments.Spec):
    """Makes the agent for one environment.

    Raises:
      environments.EnvironmentRefused: actions are discrete, or actions or
        observations are not vectors.
    """
    actor_critic.require_continuous(spec, "Acme's D4PG")
    if len(spec.action_shape) != 1 or len(spec.observation_shape) != 1:
      raise environments.EnvironmentRefused(
        f'{spec.name} has observations {spec.observation_shape} and actions '
        f"{spec.action_shape}, but Acme's D4PG takes vectors of both. Register "
        'a version that flattens them.'
      )
    super().__init__(config, spec)

  def _make_networks(self) -> Any:
    from acme.agents.tf.d4pg import agent as d4pg
    from acme.tf import networks
    import sonnet as snt
    import tensorflow as tf

    config = self.config
    (num_actions,) = self.spec.action_shape
    found = d4pg.D4PGNetworks(
      policy_network=snt.Sequential(
        [snt.nets.MLP([*config.policy_sizes, num_actions]), tf.tanh]
      ),
      critic_network=snt.Sequential(
        [
          networks.CriticMultiplexer(
            critic_network=snt.nets.MLP(
              list(config.critic_sizes), activate_final=True
            )
          ),
          networks.DiscreteValuedHead(
            config.v_min, config.v_max, config.num_atoms
          ),
        ]
      ),
      observation_network=tf.identity,
    )
    found.init(self.environment_spec)
    return found

  def make_policy(self, explore):
    return self._make_networks().make_policy(
      self.environment_spec, self.config.sigma if explore else 0.0
    )

  def make_learner(self, dataset, replay_client, logger):
    from acme.agents.tf.d4pg import agent as d4pg
    import sonnet as snt

    del replay_client  # the learner gives no priorities
    config = self.config
    builder = d4pg.D4PGBuilder(
      d4pg.D4PGConfig(
        discount=config.gamma,
        target_update_period=config.target_update_period,
        policy_optimizer=snt.optimizers.Adam(config.policy_learning_rate),
        critic_optimizer=snt.optimizers.Adam(config.critic_learning_rate),
        clipping=config.clipping,
      )
    )
    return builder.make_learner(
      (self._make_networks(), self._make_networks()), dataset, logger=logger
    )

  def exploration(self, actor_steps):
    return self.config.sigma
