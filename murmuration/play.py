"""Plays a policy of the zoo, or an exported one; needs no TensorFlow.

  murmuration play                        # what there is
  murmuration play impala:cartpole
  murmuration play impala:cartpole --episodes=10 --video=film.gif
  murmuration play runs/NAME/policy.py    # what murmuration export wrote

With a screen (DISPLAY) it opens a window.
"""

from __future__ import annotations

from collections.abc import Sequence
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

from murmuration import episodes
from murmuration import portable
from murmuration.environment_loops import building
from murmuration.environment_loops import faults
from murmuration.environment_loops import making
from murmuration.run_records import commands
from murmuration.run_records import film

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
  if path.is_dir():
    raise ValueError(
      f'{name} is a directory. Of a run, murmuration evaluate {name} plays the '
      'policy; murmuration export makes a file of it, which can be played here.'
    )
  if not path.is_file():
    raise ValueError(
      f'There is no policy {name!r}: choose from {", ".join(policies())}, or '
      'give a file that murmuration export made: RUN/policy.py.'
    )
  if path.suffix not in _ENDINGS:
    raise ValueError(
      f'{name} ends in {path.suffix!r}; what is played here ends in '
      f'{" or ".join(_ENDINGS)}, as murmuration export RUN writes it.'
    )
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


def _read(path: pathlib.Path) -> Any:
  if path.suffix == '.npz':
    return portable.Policy(path.read_bytes())
  spec: Any = importlib.util.spec_from_file_location('_exported', path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module.policy


def main() -> int:
  parser = episodes.parser(__doc__, 3)
  parser.add_argument('name', nargs='?', metavar='AGENT:PRESET|FILE')
  parser.add_argument(
    '--max_steps',
    type=commands.at_least(1),
    help=f'of an episode; default: the limit of the task, else {_MAX_STEPS:,}',
  )
  try:
    sys.path.append(commands.here())  # for environments of the user's own
    args = parser.parse(sys.argv[1:])
    if args.name is None:
      return commands.show(_listing())
    if args.video:
      film.check(args.video)  # before episodes that may take long
    policy = load(args.name)
    name = policy.about['environment']
    with making.Watched(name) as watched:
      environment = _made(name)
      return _played(policy, name, environment, args, watched.moved)
  except (ValueError, OSError) as e:
    return commands.refuse(e)


def _played(
  policy: portable.Policy,
  name: str,
  environment: gymnasium.Env,
  args: Any,
  on_step: Any,
) -> int:
  """Plays all episodes, then the first one again for the film."""
  assert environment.spec is not None, name
  max_steps = args.max_steps or environment.spec.max_episode_steps
  if not max_steps:
    max_steps = _MAX_STEPS
    print(
      f'note: {name} has no step limit: episodes are cut after '
      f'{max_steps:,} steps. --max_steps sets another number.',
      file=sys.stderr,
    )
  returns: list[float] = []
  first.raise_interrupts()
  try:
    for seed in range(args.seed, args.seed + args.episodes):
      played = episodes.rewards(policy, environment, seed, max_steps, on_step)
      returns.append(sum(played))
    building.close(name, environment)
  except KeyboardInterrupt:
    print('interrupted', file=sys.stderr)
    return commands.INTERRUPTED
  except Exception as e:  # of the environment, mostly
    print(f'error: {name} broke off: {faults.gist(e)}', file=sys.stderr)
    return commands.FAILED
  finally:
    if returns:
      _say_returns(policy, returns)
  if args.video:
    most = min(max_steps, args.film_steps)
    return episodes.film_or_say(
      policy, name, args.seed, args.video, most, on_step
    )
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


def _made(name: str) -> gymnasium.Env:
  """The environment, in a window where there is a screen and it has one.

  Raises:
    ValueError: it cannot be made.
  """
  if os.environ.get('DISPLAY'):
    with contextlib.suppress(ValueError):
      return episodes.build(name, 'human')
  return episodes.build(name)


if __name__ == '__main__':
  sys.exit(main())
