"""DQN: Mnih et al. 2015, with later extensions as options.

Double Q-learning is here; n-step returns, a dueling head, prioritized replay
and a ladder of epsilons are in value_agent.py. The same agent is the plain
baseline (one member), the explorers of PSO-DQN (P members, swarm topology) and
Ape-X DQN (actors and a learner).
"""

from __future__ import annotations

import dataclasses

from murmuration.agents import value_agent
from murmuration.agents.losses import value
from murmuration.environment_loops import environments


@dataclasses.dataclass(frozen=True)
class Config(value_agent.Config):
  """DQN."""

  double: bool = True  # double Q-learning, by trial; False: plain Q-learning


class DQN(value_agent.ValueAgent):
  """Q-learning from replay with a target network."""

  name = 'dqn'

  def __init__(self, config: Config, spec: environments.Spec):
    super().__init__(config, spec)
    self._double = config.double

  def td_error(self, q_tm1, online, target, transition):
    """Equation 5 of docs/agents/pso_dqn.md, or double Q-learning."""
    of_step = (transition.a_tm1, transition.r_t, transition.d_t)
    q_t = target(transition.o_t)
    if not self._double:
      return value.q_learning(q_tm1, *of_step, q_t)
    return value.double_q_learning(q_tm1, *of_step, q_t, online(transition.o_t))
