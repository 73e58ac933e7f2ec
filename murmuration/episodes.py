"""Episodes of one policy in an environment of gymnasium, played and filmed.

Light to import: no agents, no TensorFlow.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
import contextlib
import os
import pathlib
import sys
from typing import Any

from murmuration.environment_loops import atari
from murmuration.environment_loops import building
from murmuration.environment_loops import faults
from murmuration.run_records import commands
from murmuration.run_records import film

_FPS = 30.0  # where the environment does not say


def parser(description: str | None, episodes: int) -> commands.Parser:
  """The flags of commands that play; `episodes` is the default."""
  made = commands.Parser(description)
  made.add_argument(
    '--episodes',
    type=commands.at_least(1),
    default=episodes,
    help='greedy episodes to play; default: %(default)s',
  )
  made.add_argument(
    '--seed',
    type=commands.at_least(0),
    default=0,
    help='of the first episode; default: %(default)s',
  )
  made.add_argument('--video', help='film of one episode, .gif or .mp4')
  made.add_argument(
    '--film_steps',
    type=commands.at_least(1),
    default=1500,
    help='environment steps of the film at most; default: %(default)s',
  )
  return made


@contextlib.contextmanager
def in_a_sentence(name: str) -> Iterator[None]:
  """Makes an EnvironmentFault of whatever breaks an episode."""
  try:
    yield
  except faults.EnvironmentRefused:
    raise
  except faults.EnvironmentFault as e:
    # Who plays a policy has no run to set anything in.
    said = str(e).replace(faults.TO_DROP, '')
    raise faults.EnvironmentFault(said) from e
  except Exception as e:
    raise faults.EnvironmentFault(
      f'an episode of {name} broke off: {faults.gist(e)}.'
    ) from e


def build(name: str, render_mode: str | None = None) -> Any:
  """The environment of a policy; a whole game even if it learned from lives."""
  return building.build(atari.whole_games(name), render_mode)


def rewards(
  policy: Any,
  environment: Any,
  seed: int,
  max_steps: int = sys.maxsize,
  on_step: Callable[[], Any] = lambda: None,
) -> Iterator[float]:
  """Plays an episode: 0 after the reset, then the reward of each step.

  Args:
    policy: gives actions in the environment's own units.
    environment: of gymnasium.
    seed: of the episode.
    max_steps: after so many it is cut.
    on_step: called before each step.
  """
  observation, _ = environment.reset(seed=seed)
  policy.reset()
  yield 0.0
  for _ in range(max_steps):
    on_step()
    observation, reward, terminated, truncated, _ = environment.step(
      policy(observation)
    )
    yield float(reward)
    if terminated or truncated:
      return


def record(
  policy: Any,
  name: str,
  seed: int,
  path: str | os.PathLike[str],
  max_steps: int = sys.maxsize,
  on_step: Callable[[], Any] = lambda: None,
) -> pathlib.Path:
  """Films one episode.

  Args:
    policy: gives actions in the environment's own units.
    name: of the environment.
    seed: of the episode.
    path: of the film, .gif or .mp4.
    max_steps: of the film; a longer episode is cut.
    on_step: called before each step.

  Raises:
    ValueError, RuntimeError: the environment breaks or gives no pictures, or
      they cannot be written.
  """
  path = pathlib.Path(path).resolve()  # the environment may change directory
  environment = build(name, 'rgb_array')

  def frames() -> Generator[Any, None, None]:
    # As they are played: all of them at once would take a gigabyte.
    with in_a_sentence(name):
      for _ in rewards(policy, environment, seed, max_steps, on_step):
        yield building.picture(environment)

  try:
    with contextlib.closing(frames()) as shown:
      fps = environment.metadata.get('render_fps') or _FPS
      return film.record(shown, path, fps)
  finally:
    building.close(name, environment)


def film_or_say(
  policy: Any, name: str, seed: int, path: Any, *more: Any
) -> int:
  """As `record`, for a command: says where it is, or why there is none.

  Returns:
    The exit code.
  """
  try:
    film.check(path)
    print(f'A film of one episode: {record(policy, name, seed, path, *more)}')
  except (RuntimeError, ValueError, OSError) as e:
    print(f'No film: {e}', file=sys.stderr)
    return commands.FAILED
  return commands.FINISHED
