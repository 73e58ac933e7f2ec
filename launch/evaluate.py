"""Plays the best policy of a run: prints its returns and writes a film.

  python launch/evaluate.py runs/NAME
  python launch/evaluate.py runs/NAME --episodes=100 --video=film.mp4

The best policy is theta_star of a swarm, the member of a baseline that was best
at the end, or the parameters that were evaluated best; where nothing was
evaluated yet, the newest.
"""

from __future__ import annotations

import pathlib
import sys

# Run as a file, Python would look for modules in launch/ first.
if not __package__:
  sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

from murmuration.run_records import first

if __name__ == '__main__':
  first.begin()

from murmuration.run_records import later

if __name__ == '__main__':
  later.put_off()  # a small policy plays without

from murmuration import playing
from murmuration.environment_loops import environments
from murmuration.run_records import commands
from murmuration.run_records import film
from murmuration.run_records import run_directory


def main() -> int:
  try:
    sys.path.append(commands.here())  # for agents of the user's own
    args = _parser().parse(sys.argv[1:])
    run = run_directory.open(args.run)
    film_path = run.path / 'policy.gif' if args.video is None else args.video
    if args.video:
      film.check(film_path)
    kept = playing.load(run)
  except (ValueError, RuntimeError, OSError) as e:
    return commands.refuse(e)
  name = run.config()['environment']
  print(
    f'Playing {kept.what} on {name}, {args.episodes} '
    f'episode{"s"[: args.episodes != 1]}.'
  )
  try:
    result = playing.evaluate(run, kept, args.episodes, args.seed)
  except (environments.EnvironmentFault, environments.EnvironmentRefused) as e:
    print(f'No returns: {e}', file=sys.stderr)
    return 1
  returns = result.returns
  print('  ' + ' '.join(f'{r:.0f}' for r in returns))
  print(
    f'  mean {returns.mean():.1f}, standard deviation {returns.std():.1f}, '
    f'worst {returns.min():.1f}, best {returns.max():.1f}'
  )
  if result.broken:
    print(f'  {result.broken} more episodes broke and do not count')
  if not film_path:
    return 0
  try:
    film.check(film_path)
    path = playing.record(
      kept.policy(), name, args.seed, film_path, args.film_steps
    )
  except (RuntimeError, ValueError, OSError) as e:
    print(f'No film: {e}', file=sys.stderr)
    return int(args.video is not None)  # nobody asked for the one by default
  print(f'A film of one episode: {path}')
  return 0


def _parser() -> commands.Parser:
  parser = commands.Parser(__doc__)
  parser.add_argument('run', metavar='RUN', help='directory of a run')
  parser.add_argument(
    '--episodes',
    type=commands.at_least(1),
    default=20,
    help='greedy episodes to play; default: %(default)s',
  )
  parser.add_argument(
    '--seed',
    type=commands.at_least(0),
    default=0,
    help='of the episodes; default: %(default)s',
  )
  parser.add_argument(
    '--video',
    help="film of one episode, .gif or .mp4; '' makes none; default: "
    'RUN/policy.gif',
  )
  parser.add_argument(
    '--film_steps',
    type=commands.at_least(1),
    default=1500,
    help='environment steps of the film at most; default: %(default)s',
  )
  return parser


if __name__ == '__main__':
  sys.exit(main())
