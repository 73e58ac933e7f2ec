"""Makes the tables and plots of docs/results/: all studies, or some.

  python studies/results.py                            # all, into runs/results
  python studies/results.py --study=apex_cartpole      # one (declared.py)
  python studies/results.py --study=cartpole --seeds=3 --variant=PSO-DQN
  python studies/results.py --publish   # what `make results` does

It may be interrupted: the same command continues, and does not repeat finished
runs. All seeds are reported; rules and terms: docs/results/README.md.
"""

from __future__ import annotations

import pathlib
import sys

# When run as a file, Python searches studies/ for modules first.
from murmuration.run_records import first

if __name__ == '__main__':
  first.begin()

import argparse
from collections.abc import Mapping, Sequence
import dataclasses
import importlib.util
import os
import shlex

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')

from murmuration import jobs as jobs_lib
from murmuration.launch import session
from murmuration.run_records import commands
from murmuration.run_records import compared
from murmuration.run_records import jsonable
from murmuration.studies import plan as study_plan
from murmuration.studies import runs as study_runs
from murmuration.studies import summaries
from murmuration.studies import tables

STUDIES_FILE = session.root() / 'studies' / 'declared.py'
PUBLISHED = session.root() / 'docs' / 'results'


def main() -> int:
  first.raise_interrupts()
  jobs_lib.interrupt_on_signals()
  try:
    args = _parser().parse(sys.argv[1:])
    studies = _chosen(load(args.studies), args)
    out = pathlib.Path(args.out)
    arguments = [f'--variant={shlex.quote(v)}' for v in args.variant or ()]
    if args.studies.resolve() != STUDIES_FILE.resolve():
      arguments.append(f'--studies={shlex.quote(str(args.studies))}')
    with jobs_lib.alone({out / study.name for study in studies}):
      return run(
        studies,
        out,
        publish=PUBLISHED if args.publish else None,
        parallel=args.jobs,
        retry_crashed=args.retry_crashed,
        arguments=arguments,
      )
  except (ValueError, OSError) as e:
    return commands.refuse(e)
  except KeyboardInterrupt:
    print('Interrupted. The same command goes on from here.', file=sys.stderr)
    return commands.INTERRUPTED


def run(
  studies: Sequence[study_plan.Study],
  out: pathlib.Path,
  *,
  publish: pathlib.Path | None = None,
  parallel: int = 1,
  retry_crashed: bool = False,
  arguments: Sequence[str] = (),
) -> int:
  """Makes the missing runs, and the results of each study.

  Args:
    studies: what is made.
    out: directory of runs, and of results that are not published; a
      subdirectory for each study.
    publish: directory for the results instead of `out`.
    parallel: runs at a time; one of studies with seconds.
    retry_crashed: whether to make crashed runs again.
    arguments: of the command that is shown with the table.

  Returns:
    1 if a run crashed, else 0.

  Raises:
    ValueError: runs cannot be made. Those made so far are kept.
  """
  jobs = {s.name: study_plan.jobs(s, out / s.name / 'runs') for s in studies}
  # Checks all studies before the first run, so that errors show at once.
  missing = {
    name: study_runs.missing(own, retry_crashed) for name, own in jobs.items()
  }
  at_a_time = {s.name: 1 if s.timed else parallel for s in studies}
  progress = study_runs.Progress(
    [job for own in missing.values() for job in own], at_a_time
  )
  crashed = False
  for study in studies:
    name, own = study.name, jobs[study.name]
    study_runs.run_all(missing[name], at_a_time[name], progress)
    crashed |= any(study_runs.record(job)['exit_code'] for job in own)
    words = [f'--study={name}', f'--seeds={study.seeds}']
    words += [f'--jobs={at_a_time[name]}', *arguments]
    command = ' '.join(['python studies/results.py', *words])
    target = (publish or out) / name
    print(f'\n{name}\n\n{write(study, own, target, command)}\nIn {target}\n')
  return int(crashed)


def write(
  study: study_plan.Study,
  jobs: Sequence[study_plan.Job],
  target: pathlib.Path,
  command: str,
) -> str:
  """Writes numbers, table and picture of a study whose runs are made.

  Returns the table. There is no picture if no run reached an evaluation.
  """
  systems = summaries.read(study, jobs)
  results = summaries.collect(study, systems, command)
  target.mkdir(parents=True, exist_ok=True)
  jsonable.write(target / 'results.json', results)
  table = tables.render(results)
  (target / 'table.md').write_text(table, encoding='utf-8')
  picture = target / 'learning_curves.png'
  picture.unlink(missing_ok=True)  # it may be of other runs
  try:
    compared.compare_curves(
      {label: system.curves for label, system in systems.items()},
      picture,
      budget=study.budget,
      seconds=results.get('by_seconds', {}).get('seconds'),
      # Of module:Name the name: there is a note beside it.
      title=f'{study.environment.rpartition(":")[2]}, {study.seeds} seeds each',
      threshold=study.threshold,
      random=study.reference.random,
      budgets={label: study.budget_of(label) for label in systems},
    )
  except ValueError as e:  # no evaluation at all
    print(f'{study.name} has no picture: {e}', file=sys.stderr)
  return table


def load(path: pathlib.Path) -> dict[str, study_plan.Study]:
  """STUDIES of a Python file.

  Raises:
    ValueError: the file cannot be read, or has none.
  """
  spec = importlib.util.spec_from_file_location('studies', path)
  if spec is None or spec.loader is None or not path.is_file():
    raise ValueError(f'--studies={path} is no Python file.')
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  if not getattr(module, 'STUDIES', None):
    raise ValueError(f'--studies={path} has no STUDIES, a dict of studies.')
  return module.STUDIES


def _chosen(
  known: Mapping[str, study_plan.Study], args: argparse.Namespace
) -> list[study_plan.Study]:
  """The studies of the command line, with its seeds and variants."""
  found = []
  for name in args.study.split(',') if args.study else known:
    if name not in known:
      raise ValueError(f'There is no study {name!r}; there are {list(known)}.')
    study = known[name]
    seeds = args.seeds or study.seeds
    if args.publish and (seeds < study.seeds or args.variant):
      raise ValueError(
        f'{name} is published with {study.seeds} seeds and all variants, not '
        'with less. Leave --publish out (give --nopublish to make results), or '
        'change the study in studies/declared.py.'
      )
    if args.variant:
      study = study.only(args.variant)
    found.append(dataclasses.replace(study, seeds=seeds))
  return found


def _parser() -> commands.Parser:
  at_least = commands.at_least
  made = commands.Parser(__doc__)
  made.add_argument('--study', help='names, with commas; default: all')
  made.add_argument(
    '--seeds', type=at_least(1), help="of each variant; default: the study's"
  )
  made.add_argument(
    '--jobs',
    type=at_least(1),
    default=1,
    help='runs at a time; studies with seconds have one in any case',
  )
  made.add_argument(
    '--variant',
    action='append',
    help='only this one and the baseline; may be repeated',
  )
  made.add_argument(
    '--publish', action='store_true', help=f'write to {PUBLISHED}, not --out'
  )
  made.add_argument(
    '--nopublish',
    dest='publish',
    action='store_false',
    help='write to --out (the default), after `make results`',
  )
  made.add_argument(
    '--retry_crashed',
    action='store_true',
    help='make crashed runs again: after a repair, never to get better seeds',
  )
  made.add_argument(
    '--out',
    default='runs/results',
    help='where runs and results are kept; default: %(default)s',
  )
  made.add_argument(
    '--studies',
    default=STUDIES_FILE,
    type=pathlib.Path,
    help='file with STUDIES; default: %(default)s',
  )
  return made


if __name__ == '__main__':
  sys.exit(main())
