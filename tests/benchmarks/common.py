"""What the benchmarks share: arguments, the machine, runs, tables, results.

Every script prints Markdown tables. With --save it also puts them into
docs/results/performance.json, from which report.py writes docs/performance.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
import contextlib
import dataclasses
import datetime
import os
import pathlib
import re
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import psutil

from murmuration.run_records import metrics
from murmuration.studies import runs as study_runs
from tests.benchmarks import report

ROOT = pathlib.Path(__file__).resolve().parents[2]
NO_TARGET = '--config.run.target_return=None'
# Steps that no run comes to the end of.
NO_END = (
  '--config.run.steps_per_agent=1000000000',
  '--config.run.wall_clock_s=600',
)
SETTLE_S = 3.0  # from the first update of actors and a learner to the window
_BUSY_LOAD = 0.5  # of other programs, from which figures are worth little
_STOP_S = 20.0
_POLL_S = 0.25
_READY_LIMIT_S = 240.0  # from the start of a run to its first updates


def arguments(
  description: str | None,
  define: Callable[[argparse.ArgumentParser], Any] = lambda parser: None,
) -> argparse.Namespace:
  """Parses --quick, --full, --save and what `define` adds.

  `make bench` gives all scripts the same ARGS, so each takes these three. What
  is saved takes the place of what was: with an argument of `define` it would be
  a part of it, or something else, and is refused.
  """
  parser = argparse.ArgumentParser(
    description=description,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  size = parser.add_mutually_exclusive_group()
  size.add_argument(
    '--quick', action='store_true', help='only shows that the script works'
  )
  size.add_argument(
    '--full', action='store_true', help='more repetitions, for the record'
  )
  parser.add_argument(
    '--save',
    action='store_true',
    help='keep the result in docs/results and render docs/performance.md',
  )
  define(parser)
  args = parser.parse_args()
  if args.save:
    for name, value in vars(args).items():
      if name not in ('full', 'save') and value != parser.get_default(name):
        parser.error(
          f'--{name} and --save: what is kept is the whole result, by the '
          'usual arguments. Leave one of them out.'
        )
    args.code, args.busy_cores = study_runs.revision(), _busy_cores()
  return args


def choose(args: argparse.Namespace, quick: Any, usual: Any, full: Any) -> Any:
  """The value for the size that was asked for."""
  return quick if args.quick else full if args.full else usual


def machine() -> str:
  """The machine in one line."""
  model = 'unknown CPU'
  with contextlib.suppress(OSError):
    for line in pathlib.Path('/proc/cpuinfo').read_text().splitlines():
      if line.startswith('model name'):
        model = line.partition(':')[2].strip()
        break
  memory = psutil.virtual_memory().total / 2**30
  return f'{os.cpu_count()} cores, {model}, {memory:.0f} GiB'


def table(headers: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
  """A Markdown table with aligned columns; numbers to the right."""
  cells = [[str(cell) for cell in row] for row in [headers, *rows]]
  widths = [max(3, *map(len, column)) for column in zip(*cells)]
  numeric = [
    all(_is_number(row[i]) for row in cells[1:]) for i in range(len(headers))
  ]
  lines = [
    '| '
    + ' | '.join(
      cell.rjust(width) if right else cell.ljust(width)
      for cell, width, right in zip(row, widths, numeric)
    )
    + ' |'
    for row in cells
  ]
  rule = [
    '-' * (width - 1) + ':' if right else '-' * width
    for width, right in zip(widths, numeric)
  ]
  lines.insert(1, '| ' + ' | '.join(rule) + ' |')
  return '\n'.join(lines)


def _is_number(cell: str) -> bool:
  return re.fullmatch(r'-|-?[\d,.]+( %)?', cell) is not None


def rates_table(
  found: dict[str, list[dict[str, Any]]],
  more: dict[str, Callable[[list[dict[str, Any]]], Any]] | None = None,
) -> tuple[str, dict[str, float]]:
  """Rates of systems that ran in turns.

  Args:
    found: system to its runs, each with 'env_steps_per_s', 'updates_per_s' and
      'first_update_s'.
    more: heading of a further column to what it says of a system's runs.

  Returns:
    A table, and the median of each system's environment steps/s.
  """
  medians = {
    name: statistics.median(run['env_steps_per_s'] for run in runs)
    for name, runs in found.items()
  }
  more = more or {}
  rows = [
    (
      name,
      ' '.join(f'{run["env_steps_per_s"]:,.0f}' for run in runs),
      ' '.join(f'{run["updates_per_s"]:,.1f}' for run in runs),
      f'{statistics.median(run["first_update_s"] for run in runs):.1f}',
      *(says(runs) for says in more.values()),
    )
    for name, runs in found.items()
  ]
  headers = ('system', 'env steps/s', 'updates/s', 'first update, s', *more)
  return table(headers, rows), medians


@dataclasses.dataclass
class Result:
  """What a benchmark found.

  Attributes:
    title: heading.
    tables: Markdown.
    notes: sentences: how it was measured, and verdicts.
    numbers: name to value, for programs.
  """

  title: str
  tables: list[str]
  notes: list[str]
  numbers: dict[str, Any]


def publish(result: Result, args: argparse.Namespace) -> None:
  """Prints a result; keeps it if the command line says so."""
  print(f'\n{result.title}\n{machine()}\n')
  for text in result.tables:
    print(text + '\n')
  for note in result.notes:
    print(f'- {note}')
  print(flush=True)
  if not args.save:
    return
  results = report.load()
  script = pathlib.Path(sys.argv[0]).stem
  results[script] = {**dataclasses.asdict(result), **origin(args)}
  report.save(results)
  report.render()


def origin(args: argparse.Namespace) -> dict[str, Any]:
  """By what, where and when a result was made, for `report.made`."""
  script = pathlib.Path(sys.argv[0]).resolve().relative_to(ROOT)
  found = {
    'command': shlex.join(['python', str(script), *sys.argv[1:]]),
    'machine': machine(),
    'date': datetime.date.today().isoformat(),
  }
  if args.save:
    found['code'] = study_runs.revision(since=args.code)
    found['busy_cores'] = args.busy_cores
  return found


def warn_if_busy() -> None:
  """Says so if other programs use the processor now."""
  load = _busy_cores()
  if load > _BUSY_LOAD:
    print(f'warning: {load:.1f} cores are busy with something else', flush=True)


def _busy_cores() -> float:
  """Cores that all programs use, over a second in which this one waits."""
  return psutil.cpu_percent(interval=1.0) / 100 * (os.cpu_count() or 1)


class Run:
  """`launch/run.py` as a user starts it, in a directory of its own."""

  def __init__(
    self,
    directory: pathlib.Path,
    flags: Sequence[str],
    script: str = 'run_swarm.py',
  ):
    self.directory = directory / 'run'
    self.output = directory / 'output.txt'
    self.started_at = time.time()
    self._clock = time.monotonic()
    with self.output.open('wb') as output:
      self.process = psutil.Popen(
        [
          sys.executable,
          f'launch/{script}',
          '--lp_launch_type=local_mp',
          f'--run_dir={self.directory}',
          *flags,
        ],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
      )

  def elapsed_s(self) -> float:
    return time.monotonic() - self._clock

  def rows(self, kind: str) -> list[dict[str, Any]]:
    """What is in metrics/<kind>.jsonl so far."""
    return metrics.read_jsonl(self.directory / 'metrics' / f'{kind}.jsonl')

  def learning(self) -> list[dict[str, Any]]:
    """A row for each node that has made its first update."""
    return self.rows('first_update')

  def wait_for(self, what: str, check: Callable[[], Any], limit_s: float):
    """Returns the first true answer of `check`.

    Raises:
      RuntimeError: the run ended, or the time is over.
    """
    deadline = time.monotonic() + limit_s
    while not (answer := check()):
      if self.process.poll() is not None:
        raise RuntimeError(f'The run ended before {what}.\n{self._tail()}')
      if time.monotonic() > deadline:
        raise RuntimeError(f'No {what} in {limit_s:g} s.\n{self._tail()}')
      time.sleep(_POLL_S)
    return answer

  def processes(self) -> list[psutil.Process]:
    """The launcher and everything under it."""
    with contextlib.suppress(psutil.NoSuchProcess):
      return [self.process, *self.process.children(recursive=True)]
    return []

  def wait(self, limit_s: float) -> int | None:
    """Exit code, or None if it is still running after `limit_s`."""
    with contextlib.suppress(psutil.TimeoutExpired, subprocess.TimeoutExpired):
      return self.process.wait(limit_s)
    return None

  def stop(self) -> None:
    """Ctrl-C; kills what does not stop."""
    if self.process.poll() is None:
      self.process.send_signal(signal.SIGINT)
      if self.wait(_STOP_S) is None:
        self.process.kill()  # its nodes die with it
        self.process.wait()

  def _tail(self) -> str:
    text = self.output.read_text(errors='replace')
    return '\n'.join(text.splitlines()[-20:])


@contextlib.contextmanager
def swarm_run(*flags: str, script: str = 'run_swarm.py') -> Iterator[Run]:
  """Starts a run; at the end it is stopped and its directory removed."""
  with tempfile.TemporaryDirectory(prefix='bench-') as directory:
    run = Run(pathlib.Path(directory), flags, script)
    try:
      yield run
    finally:
      run.stop()


def window_rates(
  run: Run,
  kinds: dict[str, str],
  settle_s: float,
  window_s: float,
  num_nodes: int = 1,
) -> dict[str, float]:
  """Rates over a window of a run that learns, summed over nodes.

  Args:
    run: the run; its first update may still be to come.
    kinds: name of a total, such as 'own_actor_steps', to the kind of rows that
      have it, such as 'node_actor'.
    settle_s: seconds from the first update of `num_nodes` to the window.
    window_s: seconds of the window.
    num_nodes: nodes that learn, and that have what is in `kinds`, at least.

  Returns:
    For each total what it grew by per second, by the nodes' own clocks.

  Raises:
    RuntimeError: the run ended, or reported too seldom.
  """
  run.wait_for(
    f'first update of {num_nodes} node(s)',
    lambda: len({row['node'] for row in run.learning()}) >= num_nodes,
    _READY_LIMIT_S,
  )
  time.sleep(settle_s)
  skip = {kind: len(run.rows(kind)) for kind in kinds.values()}
  # A row is up to a second older than the file: one more to lose none.
  time.sleep(window_s + 1.0)
  if run.process.poll() is not None:
    raise RuntimeError('The run ended in the window: take a shorter one.')
  found = {}
  for name, kind in kinds.items():
    by_node: dict[str, list] = {}
    for row in run.rows(kind)[skip[kind] :]:
      by_node.setdefault(row['node'], []).append(row)
    often = sum(len(rows) > 1 for rows in by_node.values())
    if often < max(num_nodes, len(by_node)):
      raise RuntimeError(
        f'{often} of {max(num_nodes, len(by_node))} nodes of {kind} reported '
        f'twice or more in {window_s:g} s, where all should: the machine is '
        'too busy for this window.'
      )
    found[name] = sum(
      (rows[-1][name] - rows[0][name])
      / (rows[-1]['elapsed_s'] - rows[0]['elapsed_s'])
      for rows in by_node.values()
    )
  return found


def actors_and_learner(
  flags: Sequence[str],
  window_s: float,
  more: Callable[[Run, dict[str, float]], dict[str, float]] | None = None,
) -> dict[str, float]:
  """Rates of one run of run.py with actors and a learner.

  Args:
    flags: of run.py.
    window_s: seconds of the window.
    more: of the run and its rates, further numbers.
  """
  kinds = {'actor_steps': 'node_actor', 'learner_steps': 'node_learner'}
  with swarm_run(*flags, script='run.py') as run:
    found = window_rates(
      run, {f'own_{k}': v for k, v in kinds.items()}, SETTLE_S, window_s
    )
    numbers = {
      'env_steps_per_s': found['own_actor_steps'],
      'updates_per_s': found['own_learner_steps'],
      'first_update_s': run.learning()[0]['unix_time_s'] - run.started_at,
    }
    return {**numbers, **(more(run, numbers) if more else {})}


def window_note(window_s: float) -> str:
  """When the rates of `actors_and_learner` are from."""
  return f'Window: {window_s:g} s, from {SETTLE_S:g} s after the first update.'


def in_turns(
  systems: dict[str, Callable[[], dict[str, Any] | None]],
  repetitions: int,
  what: str = 'env_steps_per_s',
) -> dict[str, list[dict[str, Any]]]:
  """Measures systems one after the other, so often, and prints as it goes.

  Args:
    systems: name to its measurement, which gives None where it is not there.
    repetitions: of all of them.
    what: number that is printed of each.

  Returns:
    System to its runs, for `rates_table`.
  """
  found: dict[str, list[dict[str, Any]]] = {}
  for _ in range(repetitions):
    for name, measure in systems.items():
      numbers = measure()
      if numbers is not None:
        found.setdefault(name, []).append(numbers)
        shown = numbers[what]
        print(
          f'{name}: {shown:,.{0 if shown > 999 else 1}f} {what}', flush=True
        )
  return found


def timed(function: Callable[[], Any], seconds: float) -> dict[str, float]:
  """Calls for about `seconds`; costs of one call in microseconds.

  Returns:
    'wall_us' of this thread, 'cpu_us' of all threads of the process.
  """
  function()
  calls, block = 0, 1
  wall, cpu = time.perf_counter(), time.process_time()
  while (spent := time.perf_counter() - wall) < seconds:
    for _ in range(block):
      function()
    calls += block
    # Looking at the clock must not count where a call takes a microsecond.
    block = 1 if spent > 1e-3 * calls else 10
  return {
    'wall_us': 1e6 * (time.perf_counter() - wall) / calls,
    'cpu_us': 1e6 * (time.process_time() - cpu) / calls,
    'calls': calls,
  }
