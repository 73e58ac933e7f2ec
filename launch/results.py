"""Makes the tables and plots of docs/results/: all studies, or some.

  python launch/results.py                            # all, into runs/results/
  python launch/results.py --study=apex_cartpole      # one (configs/studies.py)
  python launch/results.py --study=cartpole --seeds=3 --variants='PSO-DQN'
  python launch/results.py --publish                  # what `make results` does

May be interrupted: the same command goes on, and runs that are there are not
made again. All seeds are reported; rules and words: docs/results/README.md.
"""

from __future__ import annotations

from collections.abc import Mapping
import importlib.util
import os
import pathlib
import signal
import sys

# Run as a file, Python would look for modules in launch/ first.
if not __package__:
  sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')

from absl import flags

from launch import command_line
from launch import metrics
from launch import session
from launch import study_plan
from launch import study_plots
from launch import study_progress
from launch import study_results
from launch import study_runs
from launch import study_table

STUDIES_FILE = session.root() / 'configs' / 'studies.py'
PUBLISHED = session.root() / 'docs' / 'results'
_FLAGS = flags.FLAGS


def main() -> int:
  flags.DEFINE_list('study', None, 'Names of studies; default all.')
  flags.DEFINE_integer('seeds', None, "Of each variant; the study's own.", 1)
  flags.DEFINE_integer(
    'jobs', 1, 'Runs at a time; studies with seconds have one in any case.', 1
  )
  flags.DEFINE_multi_string(
    'variants', None, 'Only this one and the baseline; may be repeated.'
  )
  flags.DEFINE_boolean('publish', False, f'Write to {PUBLISHED}, not --out.')
  flags.DEFINE_boolean(
    'retry_crashed', False,
    'Make crashed runs again: after a repair, never to get better seeds.',
  )  # fmt: skip
  flags.DEFINE_string('out', 'runs/results', 'Where runs and results are kept.')
  flags.DEFINE_string('studies', str(STUDIES_FILE), 'File with STUDIES.')
  try:
    rest = _FLAGS(sys.argv)
    if len(rest) > 1:
      raise command_line.UsageError(
        f'{rest[1]!r} is no flag. Flags are written --name=value; see --help.'
      )
    chosen = _chosen(load(pathlib.Path(_FLAGS.studies)))
    code = run(
      chosen,
      pathlib.Path(_FLAGS.out),
      PUBLISHED if _FLAGS.publish else None,
      _FLAGS.jobs,
      _FLAGS.retry_crashed,
    )
  except (flags.Error, ValueError, OSError) as e:
    command_line.fail(str(e))
  except KeyboardInterrupt:
    print('Interrupted. The same command goes on from here.', file=sys.stderr)
    return 130
  return code


def run(
  studies: Mapping[study_plan.Study, int],
  out: pathlib.Path,
  publish: pathlib.Path | None = None,
  parallel: int = 1,
  retry_crashed: bool = False,
) -> int:
  """Makes the runs that are not there, and the results of each study.

  Args:
    studies: what to run, to its number of seeds.
    out: runs, and results that are not published, in a directory each.
    publish: where results go instead, in a directory each.
    parallel: runs at a time.
    retry_crashed: make crashed runs again.

  Returns:
    1 if a run crashed, else 0.

  Raises:
    ValueError: something cannot be; nothing was run, or what was is kept.
  """
  if publish is not None:
    for study, seeds in studies.items():
      _check_publishable(study, seeds)
  jobs = {
    study: study_plan.jobs(study, seeds, out / study.name / 'runs')
    for study, seeds in studies.items()
  }
  # All of it before the first run: to be refused after hours is no fun.
  missing = {s: study_runs.missing(j, retry_crashed) for s, j in jobs.items()}
  at_a_time = {s: 1 if s.timed else parallel for s in studies}
  progress = study_progress.Progress(
    [job for own in jobs.values() for job in own],
    [job for own in missing.values() for job in own],
    {study.name: count for study, count in at_a_time.items()},
  )
  crashed = 0
  for study, own in jobs.items():
    study_runs.run_all(missing[study], at_a_time[study], progress)
    crashed += sum(study_runs.record(job)['exit_code'] != 0 for job in own)
    target = (publish or out) / study.name
    print(f'\n{study.name}\n\n{write(study, own, target)}In {target}\n')
  return 1 if crashed else 0


def write(
  study: study_plan.Study, jobs: list[study_plan.Job], target: pathlib.Path
) -> str:
  """Numbers, table and picture of a study whose runs are there.

  Returns:
    The table.
  """
  systems = study_results.read(study, jobs)
  results = study_results.collect(study, systems, command(study, jobs))
  target.mkdir(parents=True, exist_ok=True)
  metrics.write_json(target / 'results.json', results)
  table = study_table.render(results)
  (target / 'table.md').write_text(table, encoding='utf-8')
  study_plots.compare_curves(
    {label: system.curves for label, system in systems.items()},
    target / 'learning_curves.png',
    budget=study.budget,
    seconds=results.get('by_seconds', {}).get('seconds'),
    title=f'{study.environment}, {results["seeds"]} seeds each',
    threshold=study.threshold,
  )
  return table


def command(study: study_plan.Study, jobs: list[study_plan.Job]) -> str:
  """What makes these results again."""
  seeds = len({seed for job in jobs for seed in job.seeds})
  return (
    f"make results ARGS='--study={study.name} --seeds={seeds} "
    f"--jobs={max(study_runs.record(job)['at_a_time'] for job in jobs)}'"
  )


def load(path: pathlib.Path) -> dict[str, study_plan.Study]:
  """STUDIES of a file.

  Raises:
    ValueError: it cannot be read, or has none.
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
  known: Mapping[str, study_plan.Study],
) -> dict[study_plan.Study, int]:
  """The studies of the command line, to their seeds."""
  for name in _FLAGS.study or ():
    if name not in known:
      raise ValueError(f'There is no study {name!r}; there are {list(known)}.')
  found = {}
  for name in _FLAGS.study or known:
    study = known[name]
    if _FLAGS.variants:
      if _FLAGS.publish:
        raise ValueError(
          '--variants leaves systems out, and --publish shows all. Leave '
          'one of them out.'
        )
      study = study.only(_FLAGS.variants)
    found[study] = _FLAGS.seeds or study.seeds
  return found


def _check_publishable(study: study_plan.Study, seeds: int) -> None:
  if seeds < study.seeds:
    raise ValueError(
      f'{study.name} is published with {study.seeds} seeds, and --seeds='
      f'{seeds} are fewer. Leave --publish out (make results ARGS="--nopublish '
      '..."), or change the study in configs/studies.py.'
    )


if __name__ == '__main__':
  # A terminal that closes and a polite kill end it as Ctrl-C does.
  for _number in (signal.SIGTERM, signal.SIGHUP):
    if signal.getsignal(_number) != signal.SIG_IGN:
      signal.signal(_number, signal.default_int_handler)
  sys.exit(main())
