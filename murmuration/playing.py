"""The policy of a run, from what it keeps: loaded, asked, and filmed."""

from __future__ import annotations

from collections.abc import Generator, Iterator
import contextlib
import os
import pathlib
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from murmuration import given
from murmuration import objects
from murmuration.agents import base
from murmuration.environment_loops import actions
from murmuration.environment_loops import atari
from murmuration.environment_loops import environments
from murmuration.environment_loops import evaluation
from murmuration.environment_loops import faults
from murmuration.environment_loops import making
from murmuration.environment_loops import spaces
from murmuration.launch import experiment
from murmuration.launch import registry
from murmuration.run_records import checkpoints
from murmuration.run_records import film
from murmuration.run_records import run_directory

_FPS = 30.0  # where the environment does not say


class Kept(NamedTuple):
  """A run's best parameters: the agent, theta [D], and where they are from."""

  agent: base.Agent
  theta: np.ndarray
  what: str

  def policy(self) -> base.Policy:
    """The greedy policy, anew: it may remember the episode it is in."""
    return self.agent.greedy(self.theta)


class Native:
  """A greedy policy in an environment's own units, for whoever steps it.

  Takes one observation as the environment has it, a flat one, or a batch
  [N, ...] of flat ones; gives what `env.step` takes, or as many.
  """

  def __init__(self, kept: Kept):
    """Makes the policy of kept parameters; episodes begin."""
    self._spec = kept.agent.spec
    self._policy: Any = kept.policy()
    self._seen, self._space = environments.spaces(self._spec.name)

  def __call__(self, observation: Any) -> Any:
    """Actions for observations.

    Raises:
      ValueError: they have another shape than the environment's, or are not
        finite numbers, or no bytes where its images are.
    """
    spec = self._spec
    try:
      if self._is_own(observation):
        observation = spaces.flatten(spec.name, self._seen, observation)
      given = np.asarray(observation)
      observation = given.astype(spec.observation_dtype, copy=False)
    except (ValueError, TypeError, environments.EnvironmentFault) as e:
      raise ValueError(
        f'a {type(observation).__name__} is no observation of {spec.name} '
        f'({e}). Give one as it does, or numbers of shape '
        f'{tuple(spec.observation_shape)}.'
      ) from e
    needed = tuple(spec.observation_shape)
    single = observation.shape == needed
    if not single and (observation.shape[1:] != needed or not len(observation)):
      raise ValueError(
        f'observation has shape {observation.shape}; {spec.name} has '
        f'observations of shape {needed}, or [N, ...] for a batch of N of '
        'them, from 1 up.'
      )
    if not np.isfinite(observation).all():
      raise ValueError(f'the observation is not finite: {observation}.')
    # Of floats in [0, 1] bytes would be black, of larger numbers anything.
    bytes_needed = observation.dtype == np.uint8
    if bytes_needed and (
      given.dtype.kind not in 'iu' or (given != observation).any()
    ):
      raise ValueError(
        f'the observation has dtype {given.dtype}, from {given.min()} to '
        f'{given.max()}; {spec.name} has images of bytes, 0 to 255. Give them '
        'as it does, np.uint8.'
      )
    batch = observation[None] if single else observation
    found = np.asarray(self._policy(batch))
    lead = (len(batch),)
    if spec.num_actions is not None:
      found = actions.to_discrete(spec.name, spec.num_actions, found, lead)
      found = spaces.native(self._space, found)
    else:
      found = actions.to_native(spec.name, self._space, found, lead)
    return found[0] if single else found

  def _is_own(self, observation: Any) -> bool:
    """Whether it is to be flattened: flat ones are taken, too."""
    space = self._seen
    if isinstance(space, gymnasium.spaces.Box) and space.shape:
      return False
    if space.shape is None:  # of a Dict or a Tuple
      return isinstance(observation, (dict, tuple))
    return np.shape(observation) == space.shape

  @property
  def remembers(self) -> bool:
    """Whether its actions follow from earlier observations, too."""
    has_reset = hasattr(self._policy, 'reset')
    return getattr(self._policy, 'remembers', has_reset)

  def reset(self) -> None:
    """All episodes begin anew."""
    if hasattr(self._policy, 'reset'):
      self._policy.reset()

  def ended(self, last: np.ndarray) -> None:
    """Where episodes of a batch have ended, bool [N]."""
    if hasattr(self._policy, 'ended'):
      self._policy.ended(last)


def load(run: run_directory.RunDirectory) -> Kept:
  """The run's best parameters.

  Raises:
    ValueError: the agent is not known, or the run keeps no parameters yet.
  """
  config = run.config()
  given.__kinds__.update(objects.kinds(config))
  try:
    agent = registry.make(config)
  except ValueError as e:
    raise ValueError(f'{run.path}: {e}') from e
  for name in checkpoints.PLAYED:
    saved = checkpoints.read(run.checkpoints / name)
    if saved is not None:
      return Kept(agent, *_chosen(run, name, saved))
  raise ValueError(
    f'{run.path} keeps no parameters yet: it has none of '
    f'{", ".join(checkpoints.PLAYED)} in checkpoints/. Let the run go on a '
    'little.'
  )


def _chosen(
  run: run_directory.RunDirectory, name: str, saved: dict[str, np.ndarray]
) -> tuple[np.ndarray, str]:
  """The parameters of a file that are played, and what they are."""
  theta = saved['theta']
  if name == checkpoints.STAR:
    return theta, (
      f'theta_star version {int(saved["version"])} of explorer '
      f'{int(saved["explorer"])} (R* {float(saved["r_star"]):.1f})'
    )
  steps = int(saved['steps'])
  if name == checkpoints.BEST:
    return theta, (
      f'the best that was evaluated: return {float(saved["return_mean"]):.1f}'
      f' after {steps:,} steps'
    )
  rows = run.metrics('evaluation')
  returns = rows[-1].get('member_returns') if rows else None
  if returns is None and len(theta) == 1:
    return theta[0], f'the policy after {steps:,} learner steps'
  best = 0
  # A member whose episodes broke has NaN; all of them may.
  if returns and np.isfinite(returns).any():
    best = int(np.nanargmax(returns))
  return theta[best], f'agent {best} after {steps:,} steps'


def evaluate(
  run: run_directory.RunDirectory, kept: Kept, episodes: int, seed: int
) -> evaluation.VectorResult:
  """Plays whole episodes, as the run's own evaluations do.

  Raises:
    environments.EnvironmentFault: hardly anything but broken episodes, or
      something was raised in one.
  """
  name, settings = run.config()['environment'], run.config().get('run', {})
  # Runs of earlier versions have no such setting.
  limit = settings.get('eval_max_steps', experiment.RunConfig.eval_max_steps)
  policy = kept.policy()
  with making.Watched(name) as watched, _in_a_sentence(name):
    limited = environments.spec(name).max_episode_steps is not None
    result = evaluation.evaluate_vector(
      policy,
      name,
      episodes,
      seed,
      None if limited else limit,
      watched.moved,
      epsilon=settings.get('eval_epsilon', 0.0),
    )
  assert result is not None  # nothing stops it
  return result


@contextlib.contextmanager
def _in_a_sentence(name: str) -> Iterator[None]:
  """Makes an EnvironmentFault of whatever breaks an episode."""
  try:
    yield
  except environments.EnvironmentRefused:
    raise
  except environments.EnvironmentFault as e:
    # Who plays a policy has no run to set anything in.
    said = str(e).replace(faults.TO_DROP, '')
    raise environments.EnvironmentFault(said) from e
  except Exception as e:
    raise environments.EnvironmentFault(
      f'an episode of {name} broke off: {faults.gist(e)}.'
    ) from e


def record(
  policy: base.Policy,
  name: str,
  seed: int,
  path: str | os.PathLike[str],
  max_steps: int | None = None,
) -> pathlib.Path:
  """Films one episode.

  Args:
    policy: greedy, at the start of an episode.
    name: of the environment.
    seed: of the episode.
    path: of the film, .gif or .mp4.
    max_steps: of the film; a longer episode is cut.

  Raises:
    ValueError, RuntimeError: the environment breaks or gives no pictures, or
      they cannot be written.
  """
  # The environment may change the working directory.
  path = pathlib.Path(path).resolve()

  def frames(environment: Any) -> Generator[Any, None, None]:
    # As they are played: all of them at once would take a gigabyte.
    with _in_a_sentence(name):
      timestep, steps = environment.reset(), 0
      yield environment.render()
      while not timestep.last() and steps != max_steps:
        watched.moved()
        action = np.asarray(policy(np.asarray(timestep.observation)[None]))[0]
        timestep, steps = environment.step(action), steps + 1
        yield environment.render()

  with making.Watched(name) as watched:
    with contextlib.closing(
      environments.make(atari.whole_games(name), seed, render_mode='rgb_array')
    ) as environment:
      per_second = environment.frames_per_second or _FPS
      with contextlib.closing(frames(environment)) as shown:
        return film.record(shown, path, per_second)
