"""Trains policies for the zoo, and keeps those that are good enough.

  python studies/zoo.py dqn:cartpole a3c:cartpole
  python studies/zoo.py d4pg:pendulum --seed=2 --wall_clock_s=300

Each AGENT:PRESET is trained in --out with the settings of its preset, until its
target or the end of its budget. Its best policy plays 100 episodes. If their
mean reaches the preset's target, or without one what counts as solved, the
policy is put into murmuration/zoo with its command, seed, score and interval,
and the commit that made it, as presets change.
`make docs` then writes the table of docs/zoo.md. Finished runs are not
repeated; interrupted ones are resumed. A run with another seed is refused.
"""

from __future__ import annotations

import pathlib
import sys

# When run as a file, Python searches studies/ for modules first.
from murmuration.run_records import first

if __name__ == '__main__':
  first.begin()

from murmuration.run_records import later

if __name__ == '__main__':
  later.put_off()  # only the runs need TensorFlow; small policies do not

from murmuration import export
from murmuration import jobs
from murmuration import play
from murmuration.launch import registry
from murmuration.run_records import commands
from murmuration.run_records import curves
from murmuration.run_records import run_directory
from murmuration.studies import runs

EPISODES = 100
MOST_BYTES = 100_000  # size limit of an entry


def main() -> int:
  first.raise_interrupts()
  parser = commands.Parser(__doc__)
  parser.add_argument('cells', nargs='+', metavar='AGENT:PRESET')
  parser.add_argument('--seed', type=commands.at_least(0), default=1)
  parser.add_argument(
    '--wall_clock_s',
    type=commands.at_least(1),
    help='seconds that end a run, whatever it has come to',
  )
  parser.add_argument(
    '--out',
    type=pathlib.Path,
    default=pathlib.Path('zoo'),
    help='where runs are kept; default: %(default)s',
  )
  parser.add_argument(
    '--to',
    type=pathlib.Path,
    default=play.ZOO,
    help='where policies are kept; default: %(default)s',
  )
  try:
    sys.path.append(commands.here())  # for the user's own agents
    args = parser.parse(sys.argv[1:])
    for cell in args.cells:
      if not all(registry.split(cell)):
        raise ValueError(f'{cell!r} is not AGENT:PRESET, such as dqn:cartpole.')
  except ValueError as e:
    return commands.refuse(e)
  missing = 0
  for cell in args.cells:
    path = args.out / cell.replace(':', '-')
    try:
      code = train(cell, path, args.seed, args.wall_clock_s)
      about = enter(path, args.to / f'{path.name}.npz', code)
      print(f'{cell}: {about["score"]:.1f} {about["interval"]}', flush=True)
    except (ValueError, OSError) as e:
      missing += 1
      print(f'{cell}: no entry: {e}', flush=True)
  return int(missing > 0)


def train(
  cell: str, path: pathlib.Path, seed: int, wall_clock_s: int | None
) -> str:
  """Runs AGENT:PRESET in `path`, unless that run has finished.

  Returns:
    The revision that made the run; 'unknown' for what was there.

  Raises:
    ValueError: the run failed, or `path` holds a run with another seed.
  """
  words: tuple[str, ...] = (cell, f'--seed={seed}')
  if wall_clock_s:
    words += (f'--config.run.wall_clock_s={wall_clock_s}',)
  job = jobs.Job(path=path, arguments=words, resumes=True)
  before = 'unknown'
  if not job.begun:
    before = runs.revision()
  else:
    there = run_directory.open(path)
    own = there.config()['seed']
    if own != seed:
      raise ValueError(
        f'{path} is a run of --seed={own}, and asked for is --seed={seed}. '
        'Give that, or another --out, or remove it.'
      )
    # An interrupted run also has a summary, which says so.
    summary = there.summary()
    if summary and summary['finished']:
      if summary.get('outcome') == 'failed':
        raise ValueError(f'{path} has failed: {summary["reason"]}.')
      return before
  codes: list[int] = []
  jobs.run([job], 1, lambda job, code: codes.append(code))
  if codes != [0]:
    raise ValueError(f'the run ended with exit code {codes}, see {job.log}.')
  return runs.revision(since=before)


def enter(path: pathlib.Path, to: pathlib.Path, code: str) -> dict:
  """Writes the best policy of a run as an entry; returns its description.

  `code` is the revision that made the run.

  Raises:
    ValueError: the policy is not good enough, too large, or not exportable.
  """
  config = run_directory.open(path).config()
  needed = config['run']['target_return']
  if needed is None:
    needed = curves.threshold(config['environment'])
  new = to.with_name(f'.{to.name.removesuffix(to.suffix)}.new.npz')
  try:
    export.export(path, to=new, score=EPISODES, code=code)
    about = play.load(str(new)).about
    if needed is None or about['score'] < needed:
      raise ValueError(
        f'its policy has {about["score"]:.1f} {about["interval"]}, and '
        f'{needed} is needed.'
      )
    if new.stat().st_size >= MOST_BYTES:
      raise ValueError(
        f'it takes {new.stat().st_size:,} bytes, and {MOST_BYTES:,} are '
        'too many.'
      )
    new.replace(to)
  finally:
    new.unlink(missing_ok=True)
  return about


if __name__ == '__main__':
  sys.exit(main())
