"""Tries settings of an agent with several seeds, and says which were best.

murmuration sweep ppo:cartpole learning_rate=1e-4,1e-3 gamma=0.99,0.999
murmuration sweep ppo:cartpole --how=random --trials=20 \\
    'agent.learning_rate=log(1e-5,1e-2)' 'hidden_sizes=(32,),(64,64)'

grid: all combinations. random: --trials of them, drawn. A trial's score is the
mean over its seeds of the last three evaluations. A sweep may be interrupted:
the same command continues it. Runs with the same settings are not repeated, and
with more --steps they go on where they ended; but where the preset's rate falls
over the whole budget (A2C, IMPALA), other --steps are other settings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import csv
import math
import pathlib
import shlex
import signal
import sys
from typing import Any

# When run as a file, Python searches studies/ for modules first.
from murmuration.run_records import first

if __name__ == '__main__':
  first.begin()

from murmuration.run_records import later

if __name__ == '__main__':
  later.put_off()  # only the runs need TensorFlow

from murmuration.launch import command_line
from murmuration.run_records import commands
from murmuration.run_records import counter_file
from murmuration.run_records import curves
from murmuration.run_records import durable
from murmuration.run_records import jsonable
from murmuration.run_records import learning_statistics as statistics
from murmuration.run_records import run_directory
from murmuration.studies import plan as study_plan
from murmuration.studies import plots as study_plots
from murmuration.studies import progress as study_progress
from murmuration.studies import runs as study_runs
from murmuration.studies import search
from murmuration.studies import sweep_plan

_DRAWN = 6  # systems in the picture, as many as it has colours
_NEW_SEED = 1000  # a seed by which no trial was selected
_LATE = 1.1  # part of the budget: an evaluation may come slightly late


def main() -> int:
  first.raise_interrupts()
  # SIGHUP and SIGTERM interrupt it as Ctrl-C does.
  for number in (signal.SIGTERM, signal.SIGHUP):
    if signal.getsignal(number) != signal.SIG_IGN:
      signal.signal(number, signal.default_int_handler)
  try:
    sys.path.append(commands.here())  # for settings of the form module:Name
    spaces, words = sweep_plan.spaces(sys.argv[1:])
    rest, fixed = command_line.overrides(words)
    args = _parser().parse(rest)
    sweep = sweep_plan.plan(args, spaces, fixed)
    if args.plan:
      return commands.show(_planned(sweep))
    _check(sweep.directory)
    with study_runs.alone([sweep.directory]):
      return run(sweep, args.jobs, args.retry_crashed)
  except (ValueError, OSError) as e:
    return commands.refuse(e)
  except KeyboardInterrupt:
    print('Interrupted. The same command goes on from here.', file=sys.stderr)
    return commands.INTERRUPTED


def _check(directory: pathlib.Path) -> None:
  """Refuses what can be no sweep's; ValueError says why."""
  if directory.exists() and not directory.is_dir():
    raise ValueError(f'{directory} is a file: a sweep needs a directory.')
  if (directory / 'config.json').exists():
    raise ValueError(
      f'{directory} is a run: give another directory, --dir=NEW.'
    )


def run(
  sweep: sweep_plan.Sweep, parallel: int = 1, retry_crashed: bool = False
) -> int:
  """Makes the missing runs, then the table and the picture.

  `parallel` runs are made at a time; `retry_crashed` resumes crashed ones.
  Returns 1 if a run crashed, else 0.

  Raises:
    ValueError: a run refused its flags, or was stopped.
  """
  sweep.directory.mkdir(parents=True, exist_ok=True)
  with open(sweep.directory / 'command.txt', 'a', encoding='utf-8') as file:
    file.write(commands.line() + '\n')
  print(_planned(sweep), flush=True)
  jobs = sweep.jobs()
  missing = [
    job
    for job in jobs
    if not job.record.exists()
    or (retry_crashed and study_runs.record(job)['exit_code'])
  ]
  progress = study_progress.Progress(
    jobs, missing, {sweep.directory.name: parallel}
  )
  study_runs.run_all(missing, parallel, progress)
  records: dict[str, list[dict[str, Any]]] = {name: [] for name in sweep.trials}
  for job in jobs:
    records[job.variant].append(scored(job))
  table = rows(sweep, records)
  _write_csv(sweep.directory / 'table.csv', table)
  print(f'\n{text_table(table)}\n\n{_ending(sweep, table)}')
  return int(any(row['crashed'] for row in table))


def scored(job: study_plan.Job) -> dict[str, Any]:
  """The record of a run that ended, with its score, which is computed once.

  `score` is the mean of the last three evaluations; None if the run crashed or
  has none. The first evaluation at or past the budget is the last that counts,
  however late a whole generation ends, or one that is slightly late: what came
  later, an earlier sweep with more steps made of the same run. `env_steps`
  counts all agents since the start of the run.
  """
  record = study_runs.record(job)
  if 'score' not in record:
    curve = curves.of_run(job.path)
    reached = int((curve.steps < job.budget).sum()) + 1
    late = int((curve.steps <= _LATE * job.budget).sum())
    returns = curve.returns[: max(reached, late)]
    whole = not record['exit_code'] and len(returns)
    record['score'] = statistics.last_evaluations(returns) if whole else None
    record['env_steps'] = _steps_made(job.path)
    jsonable.write(job.record, record)
  return record


def rows(
  sweep: sweep_plan.Sweep,
  records: Mapping[str, Sequence[Mapping[str, Any]]],
) -> list[dict[str, Any]]:
  """Rows of the table: higher scores first, no score last.

  `records` maps a trial to the records of its seeds. A setting that changes
  nothing in a trial is None in its row.
  """
  found = []
  tried = dict.fromkeys(key for trial in sweep.trials.values() for key in trial)
  for name, own in records.items():
    scores = [record['score'] for record in own]
    known = [score for score in scores if score is not None]
    found.append(
      {
        **tried,
        **sweep.trials[name],
        'steps': sweep.steps,
        'score': search.mean(scores),
        'worst': min(known) if known else None,
        'best': max(known) if known else None,
        'crashed': sum(bool(record['exit_code']) for record in own),
        'env_steps': sum(record['env_steps'] for record in own),
        'run': f'{name}-*',
      }
    )
  return sorted(
    found,
    key=lambda row: math.inf if row['score'] is None else -row['score'],
  )


def text_table(table: Sequence[Mapping[str, Any]]) -> str:
  cells = [list(table[0])] + [
    [_short(v) for v in row.values()] for row in table
  ]
  wide = [max(map(len, column)) for column in zip(*cells)]
  return '\n'.join(
    '  '.join(cell.rjust(width) for cell, width in zip(row, wide))
    for row in cells
  )


def _ending(sweep: sweep_plan.Sweep, table: Sequence[Mapping[str, Any]]) -> str:
  """Number of steps, picture, and the command to type next."""
  runs, steps = (
    len(sweep.trials) * sweep.seeds,
    sum(r['env_steps'] for r in table),
  )
  said = [f'{steps:,} environment steps in all {runs} runs.']
  best = table[0]
  groups = {}
  for row in table[:_DRAWN]:
    name, label = _name(row), sweep.label(_name(row))
    jobs = [sweep.job(name, i) for i in range(sweep.seeds)]
    if row['crashed']:
      label += f', {row["crashed"]} crashed'
    # A crashed one would go on flat, where it ended.
    groups[label] = [
      curves.of_run(job.path)
      for job in jobs
      if not study_runs.record(job)['exit_code']
    ]
  try:
    said.append(
      'Picture: '
      + str(
        study_plots.compare_curves(
          groups,
          sweep.directory / 'curves.png',
          budget=sweep.steps,
          title=f'{sweep.environment}: the best of {len(table)}',
          threshold=curves.threshold(sweep.environment),
        )
      )
    )
  except ValueError as e:  # no evaluation at all
    said.append(f'No picture: {e}')
  said.append(f'Table: {sweep.directory / "table.csv"}')
  if best['score'] is not None:
    trial = sweep.trials[_name(best)]
    again = [
      *sweep.flags,
      *sweep_plan.as_flags({**trial, sweep_plan.STEPS: str(sweep.steps)}),
    ]
    said += [
      f'Best: {sweep.label(_name(best))}: {best["score"]:.1f}. The best of '
      'several looks better than it is. With a seed that chose nothing:',
      f'  {commands.called("run")} {shlex.join(again)} --seed={_NEW_SEED}',
    ]
  return '\n'.join(said)


def _planned(sweep: sweep_plan.Sweep) -> str:
  lines = [f'trials: {len(sweep.trials)}, seeds of each: {sweep.seeds}']
  lines += [f'  {name}  {sweep.label(name)}' for name in sweep.trials]
  lines.append(f'steps of each agent: {sweep.steps:,}')
  return '\n'.join([*lines, f'In {sweep.directory}'])


def _steps_made(path: pathlib.Path) -> int:
  """Environment steps of all agents of a run, even of one that crashed."""
  found = run_directory.open(path).summary()
  try:
    found = found or counter_file.counted(path / 'metrics')
  except durable.Broken:
    found = None
  return int((found or {}).get('totals', {}).get('actor_steps', 0))


def _write_csv(path: pathlib.Path, table: Sequence[Mapping[str, Any]]) -> None:
  with open(path, 'w', newline='', encoding='utf-8') as file:
    writer = csv.DictWriter(file, list(table[0]))
    writer.writeheader()
    writer.writerows(table)


def _name(row: Mapping[str, Any]) -> str:
  return row['run'].removesuffix('-*')


def _short(value: Any) -> str:
  if value is None:
    return '-'
  if isinstance(value, float):
    return f'{value:.1f}'
  return f'{value:,}' if isinstance(value, int) else str(value)


def _parser() -> commands.Parser:
  at_least = commands.at_least
  parser = commands.Parser(__doc__)
  parser.add_argument(
    'agent',
    # The words after it are taken out before: they may stand anywhere.
    metavar='AGENT[:PRESET] [SETTING=VALUES ...]',
    help='as of `murmuration run`; and what is tried, in a word for each '
    'setting: values between commas, uniform(LOW,HIGH), log(LOW,HIGH) or '
    'int(LOW,HIGH)',
  )
  parser.add_argument('--how', default='grid', help=', '.join(sweep_plan.HOW))
  parser.add_argument(
    '--trials', type=at_least(1), help='of random; default: 9'
  )
  parser.add_argument(
    '--draw_seed', type=at_least(0), default=0, help='of what is drawn'
  )
  parser.add_argument(
    '--seeds', type=at_least(1), default=3, help='of each trial; default: 3'
  )
  parser.add_argument(
    '--steps',
    type=at_least(1),
    help="environment steps of each agent; default: the preset's",
  )
  parser.add_argument(
    '--jobs', type=at_least(1), default=1, help='runs at a time; default: 1'
  )
  parser.add_argument(
    '--dir',
    type=pathlib.Path,
    help='where runs and tables are; default: runs/sweep-AGENT-TASK',
  )
  parser.add_argument(
    '--plan', action='store_true', help='shows what would be run, and ends'
  )
  parser.add_argument(
    '--retry_crashed', action='store_true', help='go on with crashed runs'
  )
  parser.add_argument('--topology', help="default: the agent's own")
  parser.add_argument('--lp_launch_type', default='local_mp', metavar='ENGINE')
  parser.add_argument(
    '--ray_address',
    default='',
    metavar='HOST:PORT',
    help='of the Ray cluster that every run is on; with --lp_launch_type=ray',
  )
  parser.add_argument('--isolate', default='auto', metavar='MODE')
  parser.add_argument(
    '--config.SECTION.NAME',
    metavar='VALUE',
    dest='unused',
    help='a setting that stays; --config.environment=ID is the task',
  )
  return parser


if __name__ == '__main__':
  sys.exit(main())
