"""Plays the best policy of a run: prints its returns and writes a film.

  python launch/evaluate.py runs/NAME
  python launch/evaluate.py runs/NAME --episodes=100 --video=film.mp4

The best policy is theta_star of a swarm, the member of a baseline that was best
at the end, or the parameters that were evaluated best; where nothing was
evaluated yet, the newest. The film is RUN/policy.gif; --video= makes none.
"""

from __future__ import annotations

from collections.abc import Callable
import pathlib
import sys
from typing import Any

# Run as a file, Python would look for modules in launch/ first.
if not __package__:
  sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

from murmuration.run_records import first

if __name__ == '__main__':
  first.begin()

from murmuration.run_records import later

if __name__ == '__main__':
  later.put_off()  # a small policy plays without

from murmuration import episodes
from murmuration import export
from murmuration import playing
from murmuration.environment_loops import making
from murmuration.run_records import commands
from murmuration.run_records import film
from murmuration.run_records import run_directory


def main() -> int:
  try:
    sys.path.append(commands.here())  # for agents of the user's own
    parser = episodes.parser(__doc__, 20)
    parser.add_argument('run', metavar='RUN', help='directory of a run')
    args = parser.parse(sys.argv[1:])
    run = run_directory.open(args.run)
    path = run.path / 'policy.gif' if args.video is None else args.video
    if args.video:
      film.check(path)
    with making.Watched(run.config().get('environment', '')) as watched:
      return _play(playing.load(run), run, args, path, watched.moved)
  except (ValueError, OSError) as e:
    return commands.refuse(e)
  except RuntimeError as e:
    print(f'No returns: {e}', file=sys.stderr)
    return commands.FAILED


def _play(
  kept: playing.Kept,
  run: run_directory.RunDirectory,
  args: Any,
  path: str | pathlib.Path,
  on_step: Callable[[], Any],
) -> int:
  name = kept.agent.spec.name
  print(
    f'Playing {kept.what} on {name}, {args.episodes} '
    f'episode{"s"[: args.episodes != 1]}.'
  )
  result = playing.evaluate(
    run, kept, args.episodes, args.seed, on_step=on_step
  )
  returns = result.returns
  print('  ' + ' '.join(f'{r:.0f}' for r in returns))
  print(
    f'  mean {returns.mean():.1f}, standard deviation {returns.std():.1f}, '
    f'worst {returns.min():.1f}, best {returns.max():.1f}'
  )
  if result.broken:
    print(f'  {result.broken} more episodes broke and do not count')
  if not path:
    return 0
  code = episodes.film_or_say(
    export.policy(kept), name, args.seed, path, args.film_steps, on_step
  )
  return code if args.video else 0  # nobody asked for the one by default


if __name__ == '__main__':
  sys.exit(main())
