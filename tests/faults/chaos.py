"""Runs whose nodes are killed and stopped at random, and whether they survive.

    make chaos                                  # minutes for each system
    python tests/faults/chaos.py --systems=impala --events=10 --seed=3

A seeded monkey kills (SIGKILL) a random node every 3 to 6 seconds, or stops it
(SIGSTOP) until the next event, but never the launcher. A run survives if it
ends with exit code 0 and exactly its budget of steps, reaches its task's bar,
and leaves nothing behind. If a run ends before the monkey is done, another one
begins.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
import contextlib
import dataclasses
import pathlib
import random
import shutil
import signal
import sys
import tempfile
import time

# When run as a file, Python searches tests/faults/ for modules first.
import psutil

from murmuration.run_records import run_directory
from tests.faults import launched

_PAUSE_S = (3.0, 6.0)
_END_S = 480.0  # limit since the start or the last event
_GONE_S = 5.0
_SHARED = pathlib.Path('/dev/shm')


@dataclasses.dataclass(frozen=True)
class System:
  """Command-line words of a run, and the greedy return that it must reach."""

  words: tuple[str, ...]
  bar: float


# The settings of docs/results/, except that no target ends a run early.
SYSTEMS = {
  'apex': System(('apex_dqn:cartpole', '--config.run.replay=node'), 475.0),
  'impala': System(('impala:cartpole',), 475.0),
  'swarm': System(
    (
      'pso_dqn:cartpole',
      '--config.swarm.num_explorers=8',
      '--config.swarm.explorers_per_node=4',
    ),
    475.0,
  ),
  'd4pg': System(('d4pg:inverted_pendulum',), 950.0),
}


class Monkey:
  """Kills and stops nodes at random, from a seed."""

  def __init__(self, seed: int, events: int):
    self._random = random.Random(seed)
    self.left = events
    self.kills = self.stops = 0
    self._stopped: psutil.Process | None = None
    self.rest()

  def rest(self) -> None:
    self._next = time.monotonic() + self._random.uniform(*_PAUSE_S)

  def visit(self, launcher: psutil.Process) -> None:
    """Kills or stops a node if an event is due and there is a node.

    The next event comes after a node that was stopped has gone on.
    """
    if time.monotonic() < self._next:
      return
    if self._stopped is not None:
      with contextlib.suppress(psutil.Error):
        self._stopped.resume()
      self._stopped = None
    if not self.left:
      return
    self.rest()
    nodes = dict(sorted(_nodes(launcher).items()))
    if not nodes:
      return
    name = self._random.choice(list(nodes))
    number = self._random.choice((signal.SIGKILL, signal.SIGSTOP))
    with contextlib.suppress(psutil.Error):
      nodes[name].send_signal(number)
      self.left -= 1
      self.kills += number == signal.SIGKILL
      self.stops += number == signal.SIGSTOP
      if number == signal.SIGSTOP:
        self._stopped = nodes[name]
      print(f'  {time.strftime("%X")} {number.name} {name}', flush=True)


class NoRun(ValueError):
  """The system cannot be run as asked; the message says why."""


@dataclasses.dataclass
class Result:
  system: str
  seed: int
  kills: int
  stops: int
  seconds: float
  exit_code: int | None
  steps: int
  budget: int
  best: float
  left: list[str]

  @property
  def faults(self) -> list[str]:
    """A sentence for each promise that was broken."""
    bar = SYSTEMS[self.system].bar
    return [
      words
      for broken, words in (
        (self.exit_code != 0, f'exit code {self.exit_code}'),
        (self.steps != self.budget, f'{self.steps:,} of {self.budget:,} steps'),
        (not self.best >= bar, f'bar of {bar:g} not reached'),
        (bool(self.left), f'left behind: {", ".join(self.left)}'),
      )
      if broken
    ]


def run(
  name: str, seed: int, monkey: Monkey, out: pathlib.Path, flags: Sequence[str]
) -> Result:
  """Runs a system once while the monkey acts on it.

  Raises:
    NoRun: the run refused its flags; the message has the end of its output.
  """
  path = out / f'{name}-{seed}'
  temporary = pathlib.Path(tempfile.mkdtemp(prefix='chaos-'))
  before = _shared()
  kills, stops, began = monkey.kills, monkey.stops, time.monotonic()
  monkey.rest()
  said = path.with_suffix('.txt')
  process = launched.start(
    *SYSTEMS[name].words,
    '--config.run.target_return=None',
    f'--seed={seed}',
    f'--run_dir={path}',
    *flags,
    said=said,
    TMPDIR=str(temporary),
  )
  launcher, until = psutil.Process(process.pid), time.monotonic() + _END_S
  try:
    while process.poll() is None and time.monotonic() < until:
      time.sleep(0.1)
      events = monkey.left
      with contextlib.suppress(psutil.Error):
        monkey.visit(launcher)
      # Extended only by events: a launcher may hang after its nodes have ended.
      if monkey.left < events:
        until = time.monotonic() + _END_S
    code = launched.ask_to_end(process)
    left = _remains(temporary) + [str(p) for p in sorted(_shared() - before)]
  finally:  # also at Ctrl-C, which does not reach a session of its own
    process.kill()
    process.wait()
    shutil.rmtree(temporary, ignore_errors=True)
  if not (path / 'config.json').is_file():
    why = launched.last_words(said)
    raise NoRun(f'{name} ended with exit code {code}: {why}')
  directory = run_directory.RunDirectory(path)
  evaluations = directory.metrics('evaluation')
  totals = (directory.summary() or {}).get('totals', {})
  config = directory.config()
  members = config.get('swarm', {}).get('num_explorers', 1)
  return Result(
    name,
    seed,
    monkey.kills - kills,
    monkey.stops - stops,
    time.monotonic() - began,
    code,
    totals.get('actor_steps', 0),
    members * config['run']['steps_per_agent'],
    max((row['return_mean'] for row in evaluations), default=float('nan')),
    left,
  )


def _nodes(launcher: psutil.Process) -> dict[str, psutil.Process]:
  """Live nodes by name."""
  found = {}
  for process in launcher.children(recursive=True):
    with contextlib.suppress(psutil.Error):
      name = launched.node(process)
      if '/' in name:
        found[name] = process
  return found


def _remains(temporary: pathlib.Path) -> list[str]:
  """Processes and files that an ended run left behind."""
  until = time.monotonic() + _GONE_S
  while True:
    found = [str(path) for path in temporary.iterdir()]
    for process in launched.living('TMPDIR', str(temporary)):
      with contextlib.suppress(psutil.Error):
        # A process that remains may hold ports too.
        found.append(f'process {process.pid} ({process.name()})')
    if not found or time.monotonic() > until:
      return found
    time.sleep(0.2)


def _shared() -> set[pathlib.Path]:
  return set(_SHARED.iterdir()) if _SHARED.is_dir() else set()


def table(results: Sequence[Result]) -> str:
  rows = [
    '| system | seed | killed | stopped | exit | steps | best greedy return | '
    'left behind | seconds |',
    '| --- | --- | --- | --- | --- | --- | --- | --- | --- |',
  ]
  for r in results:
    rows.append(
      f'| {r.system} | {r.seed} | {r.kills} | {r.stops} | {r.exit_code} | '
      f'{r.steps:,} of {r.budget:,} | {r.best:.0f} of '
      f'{SYSTEMS[r.system].bar:g} | {len(r.left) or "nothing"} | '
      f'{r.seconds:.0f} |'
    )
  return '\n'.join(rows)


def main(argv: Sequence[str]) -> int:
  """Returns 0 if all runs survived, 1 if not, and 2 if one could not start."""
  parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
  parser.add_argument(
    '--systems', default=','.join(SYSTEMS), help='default: %(default)s'
  )
  parser.add_argument(
    '--events', type=int, default=25, help='of each system; default: 25'
  )
  parser.add_argument('--seed', type=int, default=0)
  parser.add_argument('--out', type=pathlib.Path, default='runs/chaos')
  args, flags = parser.parse_known_args(argv)
  if args.events < 1:
    parser.error(f'--events={args.events}: give at least 1')
  systems = launched.chosen(parser, args.systems, SYSTEMS)
  args.out.mkdir(parents=True, exist_ok=True)
  results: list[Result] = []
  for name in systems:
    monkey, seed = Monkey(args.seed, args.events), args.seed
    while monkey.left:
      print(f'{name}, seed {seed}', flush=True)
      shutil.rmtree(args.out / f'{name}-{seed}', ignore_errors=True)
      try:
        results.append(run(name, seed, monkey, args.out, flags))
      except NoRun as e:
        print(e, file=sys.stderr)
        return 2
      for fault in results[-1].faults:
        print(f'  BROKEN: {fault}', flush=True)
      seed += 1
  print(table(results))
  return int(any(result.faults for result in results))


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
