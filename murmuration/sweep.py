"""Tries settings of an agent with several seeds, and says which were best.

murmuration sweep ppo:cartpole learning_rate=1e-4,1e-3 gamma=0.99,0.999
murmuration sweep ppo:cartpole --how=tpe --trials=30 --prune \\
    'agent.learning_rate=log(1e-5,1e-2)' 'hidden_sizes=(32,),(64,64)'

grid: all combinations. random, tpe: --trials of them; tpe (Optuna's
tree-structured Parzen estimator) draws near those that were good. A trial's
score is the mean over its seeds of the last three evaluations. An interrupted
sweep goes on by the same command, and no run is made twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
import csv
import math
import pathlib
import re
import shlex
import sys
from typing import Any

# When run as a file, Python searches murmuration/ for modules first.
from murmuration.run_records import first

if __name__ == '__main__':
  first.begin()

from murmuration.run_records import later

if __name__ == '__main__':
  later.put_off()  # only the runs need TensorFlow

from murmuration import jobs
from murmuration import trials as trials_lib
from murmuration.launch import command_line
from murmuration.run_records import commands
from murmuration.run_records import compared
from murmuration.run_records import curves
from murmuration.run_records import jsonable
from murmuration.run_records import learning_statistics as statistics
from murmuration.run_records import packages
from murmuration.run_records import run_directory

_TRIALS = 20
_TRIES = 5  # draws for each wanted trial, as some are repeats
_DRAWN = 6  # trials in the picture, as many as it has colours
_NEW_SEED = 1000  # a seed by which no trial was selected


class Search:
  """Asks Optuna for trials, and tells it their scores.

  Optuna's study is kept in the sweep's directory and belongs to one command:
  with other flags there is another study, whose trials have the same runs where
  they have the same settings.
  """

  def __init__(self, sweep: trials_lib.Sweep):
    import optuna
    from optuna.storages import journal

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    args, samplers = sweep.args, optuna.samplers
    self._sweep, self._args = sweep, args
    self._state = optuna.trial.TrialState
    self._sampler = {'tpe': samplers.TPESampler}.get(
      args.how, samplers.RandomSampler
    )
    self._open: dict[str, list[Any]] = {}  # Optuna's running trials by name
    self._reported: set[tuple[str, int]] = set()
    pruner: Any = optuna.pruners.NopPruner()
    if args.prune:
      warm = sweep.evaluations // 3
      pruner = optuna.pruners.MedianPruner(n_warmup_steps=warm)
    self._study = optuna.create_study(
      storage=optuna.storages.JournalStorage(
        journal.JournalFileBackend(str(sweep.directory / 'optuna.log'))
      ),
      study_name=sweep.digest(),
      direction='maximize',
      pruner=pruner,
      load_if_exists=True,
    )

  def trials(self) -> list[trials_lib.Trial]:
    """All that were asked for, each once."""
    found = [kept.user_attrs for kept in self._study.trials]
    settings = {x['name']: x['settings'] for x in found if 'name' in x}
    return [trials_lib.Trial(*pair) for pair in settings.items()]

  def jobs(self) -> Iterator[trials_lib.Job]:
    """The runs that are missing, trial by trial."""
    study, state = self._study, self._state
    for kept in study.get_trials(states=(state.RUNNING,)):
      study.tell(kept.number, state=state.FAIL)  # interrupted
    newest = {kept.user_attrs.get('name'): kept for kept in study.trials}
    for name, kept in newest.items():
      if name and kept.state == state.FAIL:
        study.enqueue_trial(kept.params)
    wanted, draws = self._args.trials or 0, 0
    if self._args.how == 'grid':
      for chosen in self._sweep.combinations():
        study.enqueue_trial(chosen, skip_if_exists=True)
    while study.get_trials(states=(state.WAITING,)) or (
      len(self.trials()) < wanted and draws < _TRIES * wanted
    ):
      draws += 1
      yield from self._missing()

  def _missing(self) -> Iterator[trials_lib.Job]:
    """The missing runs of the next trial."""
    study, args = self._study, self._args
    # A seed for each trial: a sweep that goes on draws other ones.
    seed = args.draw_seed * 100_000 + len(study.trials)
    study.sampler = self._sampler(seed=seed)
    asked = study.ask(self._sweep.spaces)
    try:
      trial = self._sweep.trial(asked.params)
    except ValueError as e:
      print(f'Not run: {e}', flush=True)
      study.tell(asked, state=self._state.FAIL)
      return
    asked.set_user_attr('settings', trial.settings)
    asked.set_user_attr('name', trial.name)
    same = self._open.setdefault(trial.name, [])
    same.append(asked)
    if len(same) > 1:
      return  # its runs are being made
    own = self._sweep.jobs(trial)
    for job in own:
      if args.retry_crashed and _record(job).get('exit_code'):
        job.record.unlink()
    for job in own:
      if job.record.exists():
        self._seen(job)
      elif trial.name in self._open:
        yield job

  def ended(self, job: trials_lib.Job, code: int) -> None:
    """Writes the record of a run, and closes its trial after the last one."""
    returns = curves.of_run(job.path).returns
    whole = not code and len(returns)
    score = statistics.last_evaluations(returns) if whole else None
    jsonable.write(job.record, {'exit_code': code, 'score': score})
    said = f'crashed with exit code {code}, see {job.log}'
    if not code:
      said = 'no evaluation' if score is None else f'score {score:.1f}'
    print(f'{job.path.name}: {job.trial.label}: {said}', flush=True)
    self._seen(job)

  def unwanted(self, job: trials_lib.Job) -> bool:
    """Whether a job's trial is pruned, by its evaluations so far."""
    if job.trial.name not in self._open:
      return True
    if not (self._args.prune and job.begun):
      return False
    asked, curve = self._open[job.trial.name][0], curves.of_run(job.path)
    for number, steps in enumerate(curve.steps, 1):
      share = min(1.0, steps / self._sweep.steps)
      # Seeds follow each other on Optuna's axis of steps.
      at = round((job.seed * 1.1 + share) * self._sweep.evaluations)
      if (job.trial.name, at) not in self._reported:
        self._reported.add((job.trial.name, at))
        asked.report(statistics.last_evaluations(curve.returns[:number]), at)
    pruned = asked.should_prune()
    if pruned:
      print(f'{job.path.name}: {job.trial.label}: pruned', flush=True)
      self._close(job.trial, state=self._state.PRUNED)
    return pruned

  def _seen(self, job: trials_lib.Job) -> None:
    """Closes a trial if all its runs have ended, or if it is pruned."""
    own = [_record(one) for one in self._sweep.jobs(job.trial)]
    if not all(own):
      self.unwanted(job)
    elif job.trial.name in self._open:
      score = _score(own)
      state = self._state.FAIL if score is None else self._state.COMPLETE
      self._close(job.trial, values=score, state=state)

  def _close(self, trial: trials_lib.Trial, **result: Any) -> None:
    for asked in self._open.pop(trial.name):
      self._study.tell(asked, **result)


def _record(job: trials_lib.Job) -> dict[str, Any]:
  return jsonable.read(job.record) if job.record.exists() else {}


def _steps_made(job: trials_lib.Job) -> int:
  """Environment steps of all agents of a run, up to its last evaluation."""
  if not job.begun:
    return 0
  found = run_directory.open(job.path)
  made = [row.get('actor_steps', 0) for row in found.metrics('evaluation')]
  totals = (found.summary() or {}).get('totals', {})
  return int(totals.get('actor_steps', max(made, default=0)))


def _score(records: Sequence[Mapping[str, Any]]) -> float | None:
  """The mean over seeds; None if one has no score."""
  scores: list[Any] = [record.get('score') for record in records]
  return None if None in scores else sum(scores) / len(scores)


def rows(
  sweep: trials_lib.Sweep, trials: Sequence[trials_lib.Trial]
) -> list[dict[str, Any]]:
  """Rows of the table: higher scores first, no score last.

  All have the same columns: a setting that changes nothing in a trial is None
  in its row.
  """
  found = []
  for trial in trials:
    own = sweep.jobs(trial)
    records = [_record(job) for job in own]
    scores = [r['score'] for r in records if r.get('score') is not None]
    crashed = any(record.get('exit_code') for record in records)
    row = {**dict.fromkeys(sweep.spaces), **trial.settings}
    row |= {'steps': sweep.steps, 'score': _score(records)}
    row |= {'worst': min(scores, default=None)}
    row |= {'best': max(scores, default=None)}
    state = 'crashed' if crashed else 'done' if all(records) else 'pruned'
    row |= {'state': state, 'env_steps': sum(map(_steps_made, own))}
    found.append({**row, 'run': f'{trial.name}-*'})
  return sorted(
    found,
    key=lambda row: math.inf if row['score'] is None else -row['score'],
  )


def text_table(table: Sequence[Mapping[str, Any]]) -> str:
  cells = [[*table[0]], *([_short(v) for v in row.values()] for row in table)]
  wide = [max(map(len, column)) for column in zip(*cells)]
  return '\n'.join(
    '  '.join(cell.rjust(width) for cell, width in zip(row, wide))
    for row in cells
  )


def _short(value: Any) -> str:
  if isinstance(value, float):
    return f'{value:.1f}'
  if isinstance(value, int):
    return f'{value:,}'
  return '-' if value is None else value


def run(sweep: trials_lib.Sweep) -> int:
  """Makes the missing runs, then the table and the picture.

  Returns 1 if a run crashed, else 0.

  Raises:
    ValueError: a run refused its flags, or was stopped; or no trial could run.
  """
  with open(sweep.directory / 'command.txt', 'a', encoding='utf-8') as file:
    file.write(commands.line() + '\n')
  search = Search(sweep)
  jobs.run(search.jobs(), sweep.args.jobs, search.ended, search.unwanted)
  trials = search.trials()
  if not trials:
    raise ValueError('no trial could be run.')
  table, path = rows(sweep, trials), sweep.directory / 'table.csv'
  with open(path, 'w', newline='', encoding='utf-8') as file:
    writer = csv.DictWriter(file, list(table[0]))
    writer.writeheader()
    writer.writerows(table)
  by_run = {f'{trial.name}-*': trial for trial in trials}
  ordered = [by_run[row['run']] for row in table]
  steps = sum(row['env_steps'] for row in table)
  print(
    f'\n{text_table(table)}\n\n{steps:,} environment steps in all runs.\n'
    f'{_picture(sweep, ordered[:_DRAWN])}\nTable: {path}'
  )
  if table[0]['score'] is not None:
    best = ordered[0]
    again = shlex.join([*sweep.flags, *trials_lib.as_flags(best.settings)])
    print(
      f'Best: {best.label}: {table[0]["score"]:.1f}. The best of several looks '
      'better than it is. With a seed that chose nothing:\n'
      f'  {commands.called("run")} {again} --seed={_NEW_SEED}'
    )
  return int(any(row['state'] == 'crashed' for row in table))


def _picture(
  sweep: trials_lib.Sweep, trials: Sequence[trials_lib.Trial]
) -> str:
  """Draws trials with those of their runs that have a score; says where."""
  try:
    path = compared.compare_curves(
      {
        trial.label: [
          curves.of_run(job.path)
          for job in sweep.jobs(trial)
          if _record(job).get('score') is not None
        ]
        for trial in trials
      },
      sweep.directory / 'curves.png',
      budget=sweep.steps,
      title=f'{sweep.environment}: the best of the sweep',
      threshold=curves.threshold(sweep.environment),
    )
  except ValueError as e:  # no evaluation at all
    return f'No picture: {e}'
  return f'Picture: {path}'


def _planned(
  sweep: trials_lib.Sweep, checked: Sequence[trials_lib.Trial]
) -> str:
  args, count = sweep.args, sweep.args.trials or len(checked)
  lines = [f'  {trial.name}  {trial.label}' for trial in checked]
  if args.how != 'grid':
    lines = [f'  {key}: {space}' for key, space in sweep.spaces.items()]
  first_line = (
    f'{count} trials, {args.seeds} seeds of each, {sweep.steps:,} steps of '
    f'each agent, in {sweep.directory}:'
  )
  return '\n'.join([first_line, *lines])


def main() -> int:
  first.raise_interrupts()
  jobs.interrupt_on_signals()
  try:
    packages.require('murmuration sweep', {'optuna': 'optuna'})
    sys.path.append(commands.here())  # for settings of the form module:Name
    sweep = read(sys.argv[1:])
    planned = _planned(sweep, sweep.checked())
    if sweep.args.plan:
      return commands.show(planned)
    if (sweep.directory / 'config.json').exists():
      raise ValueError(
        f'{sweep.directory} is a run: give another directory, --dir=NEW.'
      )
    print(planned, flush=True)
    with jobs.alone([sweep.directory]):
      return run(sweep)
  except (ValueError, OSError) as e:
    return commands.refuse(e)
  except KeyboardInterrupt:
    print('Interrupted. The same command goes on from here.', file=sys.stderr)
    return commands.INTERRUPTED


def read(argv: Sequence[str]) -> trials_lib.Sweep:
  """The sweep of a command line; ValueError says what is wrong with it."""
  words, fixed = command_line.overrides(argv)
  tried = [word for word in words if re.match(r'[A-Za-z][\w.]*=', word)]
  args = _parser().parse([word for word in words if word not in tried])
  if args.how == 'grid' and args.trials is not None:
    raise ValueError('--trials is for random and tpe: a grid has them all.')
  if args.how != 'grid':
    args.trials = args.trials or _TRIALS
  return trials_lib.plan(args, tried, fixed)


def _parser() -> commands.Parser:
  made = commands.Parser(__doc__)
  made.add_argument(
    'agent',
    # The words after it are taken out before: they may stand anywhere.
    metavar='AGENT[:PRESET] [SETTING=VALUES ...]',
    help='as of `murmuration run`; and what is tried, in a word for each '
    'setting: values between commas, uniform(LOW,HIGH), log(LOW,HIGH) or '
    'int(LOW,HIGH)',
  )
  made.add_argument('--how', default='grid', choices=('grid', 'random', 'tpe'))
  for name, least, default, said in (
    ('trials', 1, None, f'of random and tpe; default: {_TRIALS}'),
    ('seeds', 1, 3, 'of each trial; default: 3'),
    (
      'steps',
      1,
      None,
      "environment steps of each agent; default: the preset's",
    ),
    ('jobs', 1, 1, 'runs at a time; default: 1'),
    ('draw_seed', 0, 0, 'of what random and tpe draw; default: 0'),
  ):
    kind = commands.at_least(least)
    made.add_argument(f'--{name}', type=kind, default=default, help=said)
  for name, said in (
    ('prune', 'stop a trial whose best evaluation is below the median of the '
     'others at that point, from the sixth trial on'),
    ('retry_crashed', 'go on with crashed runs'),
    ('plan', 'show what would be run, and end'),
  ):  # fmt: skip
    made.add_argument(f'--{name}', action='store_true', help=said)
  made.add_argument(
    '--dir',
    type=pathlib.Path,
    help='where runs and tables are; default: runs/sweep-AGENT-TASK',
  )
  for name in trials_lib.OF_RUN:
    made.add_argument(f'--{name}', help='of every run, as of `murmuration run`')
  made.add_argument(
    '--config.SECTION.NAME',
    metavar='VALUE',
    dest='unused',
    help='a setting that stays; --config.environment=ID is the task',
  )
  return made


if __name__ == '__main__':
  sys.exit(main())
