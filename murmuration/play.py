"""Plays a policy of the zoo, or an exported one; needs no TensorFlow.

  murmuration play                        # what there is
  murmuration play impala:cartpole
  murmuration play impala:cartpole --episodes=10 --video=film.gif
  murmuration play runs/NAME/policy.py    # what murmuration export wrote

With a screen (DISPLAY) it opens a window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
import contextlib
import importlib.util
import os
import pathlib
import sys
from typing import Any

from murmuration.run_records import first

if __name__ == '__main__':
  first.begin()

import gymnasium
import numpy as np

from murmuration import portable
from murmuration.environment_loops import atari
from murmuration.environment_loops import building
from murmuration.environment_loops import faults
from murmuration.environment_loops import making
from murmuration.run_records import commands

ZOO = pathlib.Path(__file__).with_name('zoo')
_MAX_STEPS = 100_000  # as in an evaluation
_ENDINGS = ('.py', '.npz')  # of files that it reads


def policies() -> dict[str, pathlib.Path]:
  """Names in the zoo to their files."""
  return {
    path.stem.replace('-', ':'): path for path in sorted(ZOO.glob('*.npz'))
  }


def load(name: str) -> portable.Policy:
  """A policy of the zoo, or of a file that `murmuration export` made.

  Raises:
    ValueError: there is none; names those that there are. Or the file is none.
    OSError: it cannot be read.
  """
  path = policies().get(name, pathlib.Path(name))
  if path.is_file() and path.suffix not in _ENDINGS:
    raise ValueError(
      f'{name} ends in {path.suffix!r}; what is played here ends in '
      f'{" or ".join(_ENDINGS)}, as murmuration export RUN writes it.'
    )
  if path.is_file():
    try:
      policy = _read(path)
      [policy.about[key] for key in ('environment', 'agent', 'what')]
    except OSError:
      raise
    except Exception as e:  # whatever another file, or half of one, leads to
      raise ValueError(
        f'{name} is no policy that murmuration export made '
        f'({type(e).__name__}: {e}).'
      ) from None
    return policy
  if path.is_dir():
    raise ValueError(
      f'{name} is a directory. Of a run, murmuration evaluate {name} plays the '
      'policy; murmuration export makes a file of it, which can be played here.'
    )
  raise ValueError(
    f'There is no policy {name!r}: choose from {", ".join(policies())}, or '
    'give a file that murmuration export made: RUN/policy.py.'
  )


def _read(path: pathlib.Path) -> Any:
  if path.suffix == '.npz':
    return portable.Policy(path.read_bytes())
  spec: Any = importlib.util.spec_from_file_location('_exported', path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module.policy


def play(
  policy: portable.Policy,
  episodes: int,
  seed: int,
  environment: gymnasium.Env,
  max_steps: int = sys.maxsize,
  film_steps: int = sys.maxsize,
  on_step: Callable[[], Any] = lambda: None,
  record: Callable[[Iterator[Any]], Any] = list,
  on_end: Callable[[float], Any] = lambda found: None,
) -> tuple[np.ndarray, Any]:
  """Plays whole episodes.

  Args:
    policy: what acts.
    episodes: how many, one after the other.
    seed: of the first; each has the next one.
    environment: where.
    max_steps: after so many an episode is cut.
    film_steps: of the first episode so many are filmed.
    on_step: called before each step.
    record: takes the frames of the first episode, where there are some, as they
      are played: all of them at once would take a gigabyte.
    on_end: takes the return of each episode when it is over.

  Returns:
    Returns [episodes], and what `record` made, or the error that it failed by.
  """
  returns, film = np.zeros(episodes), None
  broke = False

  def frames(episode: int) -> Iterator[Any]:
    nonlocal broke
    try:
      observation, _ = environment.reset(seed=seed + episode)
      policy.reset()
      filmed = environment.render_mode == 'rgb_array' and not episode
      for step in range(max_steps):
        on_step()
        if filmed and step < film_steps:
          yield building.picture(environment)
        observation, reward, terminated, truncated, _ = environment.step(
          policy(observation)
        )
        returns[episode] += reward
        if terminated or truncated:
          break
    except Exception:
      broke = True
      raise

  for episode in range(episodes):
    played = frames(episode)
    if not episode:
      try:
        film = record(played)
      except (RuntimeError, ValueError, OSError) as e:
        if broke:  # the error is not of `record`
          raise
        film = e
    for _ in played:  # what `record` left
      pass
    on_end(returns[episode])
  return returns, film


def main() -> int:
  parser = commands.Parser(__doc__)
  parser.add_argument('name', nargs='?', metavar='AGENT:PRESET|FILE')
  parser.add_argument('--episodes', type=commands.at_least(1), default=3)
  parser.add_argument('--seed', type=commands.at_least(0), default=0)
  parser.add_argument(
    '--max_steps',
    type=commands.at_least(1),
    help=f'of an episode; default: the limit of the task, else {_MAX_STEPS:,}',
  )
  parser.add_argument('--video', help='a film of the first episode, .gif, .mp4')
  parser.add_argument(
    '--film_steps',
    type=commands.at_least(1),
    default=1500,
    help='of the film at most; default: %(default)s',
  )
  try:
    sys.path.append(commands.here())  # for environments of the user's own
    args = parser.parse(sys.argv[1:])
    if args.name is None:
      return commands.show(_listing())
    if args.video:
      from murmuration.run_records import film

      film.check(args.video)  # before episodes that may take long
      # Whatever makes the environment may change the working directory.
      video = pathlib.Path(args.video).resolve()
    policy = load(args.name)
  except (ValueError, OSError) as e:
    return commands.refuse(e)
  name = policy.about['environment']
  with making.Watched(name) as watched:
    try:
      environment = _made(name, 'rgb_array' if args.video else None)
    except (ValueError, OSError) as e:
      return commands.refuse(e)
    assert environment.spec is not None, name
    max_steps = args.max_steps or environment.spec.max_episode_steps
    if not max_steps:
      max_steps = _MAX_STEPS
      print(
        f'note: {name} has no step limit: episodes are cut after '
        f'{max_steps:,} steps. --max_steps sets another number.',
        file=sys.stderr,
      )
    fps = environment.metadata.get('render_fps') or 30  # as evaluate has it
    ended: list[float] = []
    first.raise_interrupts()
    try:
      _, filmed = play(
        policy,
        args.episodes,
        args.seed,
        environment,
        max_steps,
        args.film_steps,
        watched.moved,
        (lambda frames: film.record(frames, video, fps))
        if args.video
        else list,
        ended.append,
      )
    except KeyboardInterrupt:
      if ended:
        _say_returns(policy, ended)
      print('interrupted', file=sys.stderr)
      return commands.INTERRUPTED
    except Exception as e:  # of the environment, mostly
      if ended:
        _say_returns(policy, ended)
      print(f'error: {name} broke off: {faults.gist(e)}', file=sys.stderr)
      return 1
    building.close(name, environment)
  _say_returns(policy, ended)
  if isinstance(filmed, Exception):
    print(f'No film: {filmed}', file=sys.stderr)
    return 1
  if args.video:
    print(f'  {args.video}')
  return 0


def _say_returns(policy: portable.Policy, returns: Sequence[float]) -> None:
  about = policy.about
  print(f'{about["agent"]} on {about["environment"]}: {about["what"]}')
  each = ' '.join(f'{r:.0f}' for r in returns)
  print(f'  {each}  mean {np.mean(returns):.1f}')


def _listing() -> str:
  lines = []
  for name in policies():
    about = load(name).about
    lines.append(f'{name:24s} {about["score"]:.1f} {about["interval"]}')
    lines.append(f'{"":24s} {about["command"]}')
  return '\n'.join(lines)


def _made(name: str, mode: str | None) -> gymnasium.Env:
  """The environment, in a window where there is a screen and it has one.

  Raises:
    ValueError: it cannot be made.
  """
  name = atari.whole_games(name)  # a life is an episode for learning only
  if mode is None and os.environ.get('DISPLAY'):
    with contextlib.suppress(ValueError):
      return building.build(name, 'human')
  return building.build(name, mode)


if __name__ == '__main__':
  sys.exit(main())
