"""One actor in one environment: Acme's loop, stoppable in mid-episode.

Acme's own `EnvironmentLoop` cannot be stopped inside an episode, and an episode
may take longer than the ten seconds a stop is allowed.
"""

from collections.abc import Callable, Sequence
import time
from typing import Any, Protocol

import dm_env

from environment_loops import observers as observers_lib


class Actor(Protocol):
  """What the loop needs of an actor; `acme.core.Actor` has it."""

  def select_action(self, observation: Any) -> Any:
    """Returns an action for one observation."""

  def observe_first(self, timestep: dm_env.TimeStep) -> None:
    """Takes the first timestep of an episode."""

  def observe(self, action: Any, next_timestep: dm_env.TimeStep) -> None:
    """Takes an action and the timestep it led to."""

  def update(self, wait: bool = False) -> None:
    """Fetches newer variables, or learns."""


class EnvironmentLoop:
  """Runs an actor in an environment, episode by episode."""

  def __init__(
    self,
    environment: dm_env.Environment,
    actor: Actor,
    observers: Sequence[observers_lib.Observer] = (),
    should_stop: Callable[[], bool] | None = None,
    on_episode: Callable[[dict[str, float]], None] | None = None,
  ):
    """Creates the loop.

    Args:
      environment: where the actor acts.
      actor: selects actions and observes what they lead to.
      observers: watch each timestep; their metrics join the episode's result.
      should_stop: asked before each step; true ends the loop there.
      on_episode: receives the result of each whole episode.
    """
    self._environment = environment
    self._actor = actor
    self._observers = tuple(observers)
    self._should_stop = should_stop
    self._on_episode = on_episode
    self._actor_steps = 0

  @property
  def actor_steps(self) -> int:
    """Environment steps made so far."""
    return self._actor_steps

  def run_episode(self) -> dict[str, float] | None:
    """Runs one episode.

    Returns:
      episode_return (undiscounted, unscaled), episode_length (environment
      steps), steps_per_second, and the observers' metrics; None if stopped
      before the end.
    """
    start = time.perf_counter()
    timestep = self._environment.reset()
    self._actor.observe_first(timestep)
    for observer in self._observers:
      observer.observe_first(self._environment, timestep)
    episode_return = 0.0
    length = 0
    while not timestep.last():
      if self._stopped():
        return None
      action = self._actor.select_action(timestep.observation)
      timestep = self._environment.step(action)
      self._actor.observe(action, next_timestep=timestep)
      for observer in self._observers:
        observer.observe(self._environment, timestep, action)
      self._actor.update()
      episode_return += float(timestep.reward)
      length += 1
      self._actor_steps += 1
    elapsed_s = max(time.perf_counter() - start, 1e-9)
    result: dict[str, float] = {
      'episode_return': episode_return,
      'episode_length': length,
      'steps_per_second': length / elapsed_s,
    }
    for observer in self._observers:
      result.update(observer.get_metrics())
    return result

  def run(
    self, num_steps: int | None = None, num_episodes: int | None = None
  ) -> int:
    """Runs whole episodes up to a budget, or until stopped if none is given.

    Args:
      num_steps: start no episode once so many environment steps were made here.
      num_episodes: run so many episodes.

    Returns:
      Environment steps made in this call.

    Raises:
      ValueError: both budgets are given, a negative one, or neither although
        nothing could stop the loop.
    """
    if num_steps is not None and num_episodes is not None:
      raise ValueError(
        f'num_steps={num_steps} and num_episodes={num_episodes}; give one.'
      )
    if num_steps is None and num_episodes is None and self._should_stop is None:
      raise ValueError(
        'Neither num_steps nor num_episodes, and no should_stop: the loop '
        'would never end. Give one of them.'
      )
    if (num_steps or 0) < 0 or (num_episodes or 0) < 0:
      raise ValueError(
        f'num_steps={num_steps}, num_episodes={num_episodes}; a budget cannot '
        f'be negative.'
      )
    first = self._actor_steps
    episodes = 0
    while not self._stopped():
      if num_steps is not None and self._actor_steps - first >= num_steps:
        break
      if num_episodes is not None and episodes >= num_episodes:
        break
      result = self.run_episode()
      if result is None:
        break
      episodes += 1
      if self._on_episode is not None:
        self._on_episode(result)
    return self._actor_steps - first

  def _stopped(self) -> bool:
    return self._should_stop is not None and self._should_stop()
