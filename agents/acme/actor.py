"""This project's actors as `acme.core.Actor`: act, follow a learner, write.

An `Actor` has K environments. The node of actor_learner steps them together
with `act` and `record`; `acme.EnvironmentLoop` drives an actor of K = 1 by
Acme's own methods. Both write exactly the same experience.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from acme import core
import dm_env
import numpy as np

from murmuration.agents import base
from murmuration.environment_loops import stepping

# Writes one step: (observation, action, step, version of the parameters).
Write = Callable[[np.ndarray, np.ndarray, stepping.StepBatch, int], Any]


class Source(Protocol):
  """Where parameters come from, such as `variables.Follower`."""

  theta: np.ndarray  # the newest parameters, [D]
  version: int  # learner steps that led to them

  def fetch(self) -> bool:
    """Takes newer parameters, if there are any; returns whether."""

  def fetch_newer(self, timeout_s: float) -> bool:
    """Waits for newer parameters; returns whether there were any."""


class Actor(core.Actor):
  """Acts for K environments with the newest parameters; writes each step."""

  def __init__(
    self,
    behaviour: base.Actor,
    source: Source,
    write: Write,
    rng: np.random.Generator,
    *,
    reward_clip: float | None = None,
    update_period: int = 1,
    steps: int = 0,
    count: int = 1,
    total: int = 0,
    abandon: Callable[[], None] = lambda: None,
    wait_s: float = 30.0,
  ):
    """Makes an actor that has not acted yet.

    Args:
      behaviour: `agent.actor(info, num_envs)`.
      source: of the parameters; it must have some already.
      write: adds a step to replay, such as `TransitionAdder.add`.
      rng: source of the exploration.
      reward_clip: `agent.reward_clip`.
      update_period: calls of `update` between two fetches of parameters.
      steps: environment steps made before this process was restarted.
      count: number of actors of the agent.
      total: environment steps that all of them had made by then; 0: not known.
      abandon: drops an unfinished episode, such as `TransitionAdder.reset`.
        Called if an episode begins before the last one has ended.
      wait_s: how long `update(wait=True)` waits for newer parameters.
    """
    self.behaviour = behaviour
    self.source = source
    self.steps = steps  # environment steps so far, of all K
    self._count = count
    # Of a resumed run with another number of actors, whose own steps times
    # their number is not what was made; or of actors that are slower.
    self._more = total - steps * count if total else 0
    self._write = write
    self._rng = rng
    self._reward_clip = reward_clip
    self._update_period = update_period
    self._abandon = abandon
    self._wait_s = wait_s
    self._updates = 0
    self._observation: np.ndarray | None = None
    self._version = 0
    # The last step of an episode; its successor is the next first observation.
    self._ended: tuple | None = None

  @property
  def steps_of_all(self) -> int:
    """Estimated steps of all actors, for schedules."""
    return self.steps * self._count + self._more

  # For K environments that are stepped together.

  def act(self, observation: np.ndarray) -> np.ndarray:
    """Actions [K, ...] for `observation [K, ...]`."""
    source = self.source
    action = self.behaviour.act(
      source.theta, observation, self.steps_of_all, self._rng
    )
    # With central inference the version is known only after acting.
    self._version = source.version
    return action

  def record(
    self, observation: np.ndarray, action: np.ndarray, step: stepping.StepBatch
  ) -> None:
    """Writes the step that the last `act` and its `action` [K, ...] led to."""
    kept = base.clipped(step, self._reward_clip)
    self._write(observation, action, kept, self._version)
    if step.last.any():
      self.behaviour.ended(step.last)
    self.steps += len(step.last)

  # For one environment, the methods of Acme's loop.

  def observe_first(self, timestep: dm_env.TimeStep) -> None:
    if self._observation is not None:
      self._abandon()
      self.behaviour.ended(np.ones(1, np.bool_))
    self._observation = np.asarray(timestep.observation)[None]
    if self._ended is not None:
      observation, action, step = self._ended
      self._ended = None
      step = step._replace(next_observation=self._observation)
      self.record(observation, action, step)

  def select_action(self, observation: np.ndarray) -> np.ndarray:
    return self.act(np.asarray(observation)[None])[0]

  def observe(self, action: Any, next_timestep: dm_env.TimeStep) -> None:
    if self._observation is None:
      raise ValueError(
        'observe came before observe_first: an episode begins with its first '
        'timestep.'
      )
    observation = self._observation
    arrived = np.asarray(next_timestep.observation)[None]
    step = stepping.StepBatch(
      observation=arrived,
      reward=np.array([next_timestep.reward], np.float32),
      discount=np.array([next_timestep.discount], np.float32),
      last=np.array([next_timestep.last()]),
      next_observation=arrived,
    )
    taken = (observation, np.asarray(action)[None], step)
    self._observation = arrived
    if next_timestep.last():
      self._ended, self._observation = taken, None
    else:
      self.record(*taken)

  def update(self, wait: bool = False) -> None:
    """Fetches newer parameters at every `update_period`th call, or waits."""
    self._updates += 1
    if wait:
      self.source.fetch_newer(self._wait_s)
    elif self._updates % self._update_period == 0:
      self.source.fetch()

  def finish(self) -> None:
    """Writes the last step of the last episode, if no other one follows."""
    if self._ended is not None:
      ended, self._ended = self._ended, None
      self.record(*ended)
