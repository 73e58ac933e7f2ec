"""Long runs, and whether their nodes grow: memory, descriptors and threads.

    make soak                                  # an hour of each system
    python tests/faults/soak.py --systems=impala --minutes=10
    python tests/faults/soak.py --together     # side by side: half the time

Every 10 seconds it measures each process of a run: proportional set size (PSS,
in which memory that forked nodes share counts once), open descriptors and
threads. PSS leaves out mapped files, because their share depends on the other
programs that map the same library.
Growth is the difference between the medians of the second quarter of the time,
when replay is full, and of the fourth. The exit code is 1 if a node has grown
by more than is allowed or was restarted, or if a run's exit code is not 0.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
import contextlib
import dataclasses
import os
import pathlib
import re
import shutil
import signal
import statistics
import sys
import time

# When run as a file, Python searches tests/faults/ for modules first.
import psutil

from murmuration.run_records import jsonable
from murmuration.run_records import plots
from murmuration.run_records import run_directory
from tests.faults import launched

_PERIOD_S = 10.0  # at most; a short soak samples more often
_LOOKS = 60  # samples of a run, at least
_END_S = 120.0  # grace period for a run to end after its time
_REFUSED = 2  # exit code of a run that refuses its flags
_MEGABYTE = 1e6
# Allowed growth of a node: 5 %, or these amounts if larger. Pools of threads
# and connections stay as large as the highest number of concurrent calls.
_SHARE, _SPARE_MB, _SPARE = 0.05, 10.0, 4

SYSTEMS: dict[str, tuple[str, ...]] = {
  'apex': ('apex_dqn:cartpole', '--config.run.replay=node'),
  'impala': ('impala:cartpole',),
}
# Only the clock ends a run; it evaluates every 50,000 steps.
_ENDLESS = (
  '--config.run.target_return=None',
  '--config.run.steps_per_agent=10_000_000_000',
  '--config.run.evaluations=200_000',
)


@dataclasses.dataclass(frozen=True)
class Size:
  """Resources of one process, or their sums over several."""

  pss_mb: float
  descriptors: int
  threads: int


_UNITS = {
  'pss_mb': 'PSS, MB',
  'descriptors': 'descriptors',
  'threads': 'threads',
}
_SUM = 'all'


@dataclasses.dataclass(frozen=True)
class Sample:
  """Sizes at one moment: of each process of a run, and their sum, 'all'."""

  minutes: float
  sizes: Mapping[str, Size]


def look(launcher: psutil.Process) -> dict[str, Size]:
  """Sizes of the launcher, of each process under it, and their sum, 'all'."""
  found: dict[str, Size] = {}
  for process in (launcher, *launcher.children(recursive=True)):
    with contextlib.suppress(psutil.Error, OSError):
      name = launched.node(process) or f'{process.name()} {process.pid}'
      if process == launcher:
        name = 'launcher'
      found[name] = Size(
        _pss(process.pid) / _MEGABYTE,
        process.num_fds(),
        process.num_threads(),
      )
  found[_SUM] = Size(
    *(sum(getattr(size, unit) for size in found.values()) for unit in _UNITS)
  )
  return found


def _pss(pid: int) -> int:
  """PSS in bytes, without mapped files."""
  lines = pathlib.Path(f'/proc/{pid}/smaps_rollup').read_text().splitlines()
  sizes = dict(line.split(':', 1) for line in lines[1:])
  kilobytes = (sizes[kind].split()[0] for kind in ('Pss_Anon', 'Pss_Shmem'))
  return 1024 * sum(map(int, kilobytes))


class Soak:
  """One run, from its start to its end."""

  def __init__(
    self, system: str, seconds: float, out: pathlib.Path, flags: Sequence[str]
  ):
    self.system = system
    self.samples: list[Sample] = []
    self._seconds = seconds
    path = out / system
    shutil.rmtree(path, ignore_errors=True)
    self._run = run_directory.RunDirectory(path)
    self._printed = out / f'{system}.txt'
    self.exit_code: int | None = None
    self._began = time.monotonic()
    self._process = launched.start(
      *SYSTEMS[system],
      *_ENDLESS,
      f'--config.run.wall_clock_s={seconds}',
      f'--run_dir={path}',
      *flags,
      said=self._printed,
    )
    self._launcher = psutil.Process(self._process.pid)

  @property
  def last_words(self) -> str:
    return launched.last_words(self._printed)

  @property
  def going(self) -> bool:
    late = time.monotonic() - self._began > self._seconds + _END_S
    return self._process.poll() is None and not late

  def sample(self) -> None:
    with contextlib.suppress(psutil.Error):
      minutes = (time.monotonic() - self._began) / 60
      self.samples.append(Sample(minutes, look(self._launcher)))

  def end(self) -> None:
    """Stops the run if it has not ended; `exit_code` then stays None."""
    self.exit_code = launched.ask_to_end(self._process)
    self._process.kill()
    self._process.wait()

  def restarted(self) -> list[str]:
    """Nodes that were restarted, from the headers of their logs.

    Samples do not show this: a restarted node soon has the same name again.
    """
    found: set[str] = set()
    for path in (self._run.path / 'logs').glob('*.log'):
      text = path.read_text(errors='replace')
      found.update(re.findall(r'^--- (\S+), pid .*, restart \d+', text, re.M))
    return sorted(found)

  def steps(self) -> tuple[int, int]:
    """Steps of all actors, and of the learner."""
    totals = (self._run.summary() or {}).get('totals', {})
    return totals.get('actor_steps', 0), totals.get('learner_steps', 0)


@dataclasses.dataclass(frozen=True)
class Growth:
  """Medians of one process in the second and in the last quarter."""

  name: str
  before: Size
  after: Size

  @property
  def faults(self) -> list[str]:
    """A sentence for each quantity that grew by more than is allowed."""
    allowed = max(_SPARE_MB, _SHARE * self.before.pss_mb)
    words = []
    if self.after.pss_mb > self.before.pss_mb + allowed:
      words.append(
        f'{self.name} grew from {self.before.pss_mb:.0f} to '
        f'{self.after.pss_mb:.0f} MB; {allowed:.0f} MB more are allowed'
      )
    for unit in ('descriptors', 'threads'):
      old, new = getattr(self.before, unit), getattr(self.after, unit)
      if new > old + max(_SPARE, _SHARE * old):
        words.append(f'{self.name} has {new:g} {unit}, and had {old:g}')
    return words


def growth(samples: Sequence[Sample]) -> tuple[list[Growth], list[str]]:
  """Growth of each process, and the names of those that came or went.

  A process counts in a quarter if every sample of the quarter has it. This
  leaves out short-lived children at the start and at the end; the last 3 % are
  ignored.

  Raises:
    ValueError: too few samples.
  """
  end = samples[-1].minutes if samples else 0.0
  quarters = [
    [s for s in samples if low * end <= s.minutes <= high * end]
    for low, high in ((0.25, 0.5), (0.75, 0.97))
  ]
  if not all(quarters):
    raise ValueError(
      f'{len(samples)} samples in {end:.1f} minutes are too few to judge. '
      'Give more --minutes.'
    )
  there = [
    set.intersection(*(set(s.sizes) for s in quarter)) for quarter in quarters
  ]
  found = []
  for name in sorted(there[0] & there[1]):
    medians = [
      Size(
        *(
          statistics.median(getattr(s.sizes[name], unit) for s in quarter)
          for unit in _UNITS
        )
      )
      for quarter in quarters
    ]
    found.append(Growth(name, *medians))
  return found, sorted(there[0] ^ there[1])


def table(found: Sequence[Growth]) -> str:
  rows = [
    f'| process | {" | ".join(_UNITS.values())} |',
    '| --- | --- | --- | --- |',
  ]
  for row in found:
    numbers = (
      f'{getattr(row.before, unit):.0f} to {getattr(row.after, unit):.0f}'
      for unit in _UNITS
    )
    rows.append(f'| {row.name} | {" | ".join(numbers)} |')
  return '\n'.join(rows)


def draw(
  runs: Mapping[str, Sequence[Sample]], path: os.PathLike[str] | str
) -> pathlib.Path:
  """Plots the sums of each run over time, one panel per quantity."""
  with plots.canvas(path, width=12.6) as figure:
    drawn = figure.subplots(1, len(_UNITS), squeeze=False)[0]
    for axes, (unit, label) in zip(drawn, _UNITS.items()):
      for (system, samples), colour in zip(runs.items(), plots.COLOURS):
        axes.plot(
          [s.minutes for s in samples],
          [getattr(s.sizes[_SUM], unit) for s in samples],
          color=colour,
          label=system,
        )
      axes.set_ylim(bottom=0)
      axes.set_xlabel('minutes')
      axes.set_title(f'{label}, all processes')
    drawn[0].legend()
  return pathlib.Path(path)


def main(argv: Sequence[str]) -> int:
  """Returns the exit code: 0 if nothing is broken."""
  # SIGTERM raises KeyboardInterrupt, so that the runs are stopped too.
  signal.signal(signal.SIGTERM, signal.default_int_handler)
  parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
  parser.add_argument(
    '--systems', default=','.join(SYSTEMS), help='default: %(default)s'
  )
  parser.add_argument(
    '--minutes', type=float, default=60.0, help='of each; default: 60'
  )
  parser.add_argument(
    '--together', action='store_true', help='all systems at the same time'
  )
  parser.add_argument('--out', type=pathlib.Path, default='runs/soak')
  args, flags = parser.parse_known_args(argv)
  names = launched.chosen(parser, args.systems, SYSTEMS)
  args.out.mkdir(parents=True, exist_ok=True)
  broken, samples = [], {}
  for group in [names] if args.together else [[name] for name in names]:
    for soak in _soak(group, 60 * args.minutes, args.out, flags):
      samples[soak.system] = soak.samples
      if why := _not_judged(soak):
        said = f'{soak.system} ended with exit code {soak.exit_code}: {why}'
        print(said, file=sys.stderr)
        return soak.exit_code or 1
      broken += _report(soak, args.out)
  print(f'Picture: {draw(samples, args.out / "soak.png")}')
  return int(bool(broken))


def _soak(
  names: Sequence[str], seconds: float, out: pathlib.Path, flags: Sequence[str]
) -> list[Soak]:
  """Runs systems side by side and prints their memory every minute."""
  soaks: list[Soak] = []
  said = 0
  try:
    soaks += [Soak(name, seconds, out, flags) for name in names]
    while going := [soak for soak in soaks if soak.going]:
      time.sleep(min(_PERIOD_S, seconds / _LOOKS))
      for soak in going:
        soak.sample()
      # A run that ends at once may have no samples.
      going = [soak for soak in going if soak.samples]
      minutes = int(max((s.samples[-1].minutes for s in going), default=0))
      if minutes > said:
        said = minutes
        sizes = (
          f'{s.system} {s.samples[-1].sizes[_SUM].pss_mb:,.0f} MB'
          for s in going
        )
        print(f'{minutes} minutes: {", ".join(sizes)}', flush=True)
  finally:
    for soak in soaks:
      soak.end()
  return soaks


def _not_judged(soak: Soak) -> str:
  """Why the run cannot be judged, or '' if it can."""
  if soak.exit_code == _REFUSED:
    return soak.last_words
  try:
    growth(soak.samples)
  except ValueError as e:
    return soak.last_words if soak.exit_code else str(e)
  return ''


def _report(soak: Soak, out: pathlib.Path) -> list[str]:
  """Writes and prints what was measured; returns the faults."""
  jsonable.write(
    out / f'{soak.system}.json', [dataclasses.asdict(s) for s in soak.samples]
  )
  found, changed = growth(soak.samples)
  steps, updates = soak.steps()
  print(
    f'\n{soak.system}: {soak.samples[-1].minutes:.0f} minutes, {steps:,} '
    f'steps, {updates:,} updates\n\n{table(found)}\n'
  )
  broken = [fault for row in found for fault in row.faults]
  if soak.exit_code != 0:
    broken.append(f'{soak.system} ended with exit code {soak.exit_code}')
  broken += [f'{name} was not there all the time' for name in changed]
  broken += [f'{name} was started again' for name in soak.restarted()]
  for fault in broken:
    print(f'BROKEN: {fault}')
  return broken


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
