"""What the runs of cluster_demo.py leave: lives, silences, ends, one table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import datetime
import itertools
import json
import os
import pathlib
import re
import statistics
import threading
import time
from typing import Any

from murmuration.run_records import curves
from murmuration.run_records import jsonable

_DOCS = pathlib.Path(__file__).resolve().parents[2] / 'docs'
RESULTS = _DOCS / 'results' / 'cluster_demo.json'
PAGE = _DOCS / 'clusters.md'
BEGIN, END = '<!-- demo: begin -->', '<!-- demo: end -->'
_LOOK_S = 0.2
# Counts that show a node's work; kinds of rows that another node writes for it.
_WORK = ('own_actor_steps', 'own_learner_steps')
_COUNTER = 'counter/0'
_RARE = 'evaluator'  # speaks once in an evaluation


@dataclasses.dataclass
class Start:
  """A life of a node, from the header of its log."""

  host: str
  at: float


def starts(run: pathlib.Path) -> dict[str, list[Start]]:
  """Every start of every node."""
  found: dict[str, list[Start]] = {}
  for path in sorted((run / 'logs').glob('*.log')):
    text = path.read_text(errors='replace')
    for name, day, host in re.findall(
      r'^--- (\S+), pid \d+, (\S+ [\d:]+).*, on (\S+)$', text, re.M
    ):
      at = datetime.datetime.fromisoformat(day).timestamp()
      found.setdefault(name, []).append(Start(host, at))
  return found


class Reports:
  """When rows of a run were seen, by this process's own clock.

  Rows have the time of the counter, which stands still if that is lost.
  """

  def __init__(self, run: pathlib.Path):
    """Sees what is there at each `look`.

    Args:
      run: its directory, which may not be there yet.
    """
    self._metrics = run / 'metrics'
    self._read: dict[pathlib.Path, int] = {}  # bytes of it
    # Of each node, when and how much it had done by then.
    self._seen: dict[str, list[tuple[float, float]]] = {_COUNTER: []}
    self._returns: list[tuple[float, float]] = []
    self._over = threading.Event()

  def __enter__(self) -> Reports:
    self._thread = threading.Thread(target=self._follow, daemon=True)
    self._thread.start()
    return self

  def __exit__(self, *unused: Any) -> None:
    self._over.set()
    self._thread.join()
    self.look(time.time())

  def _follow(self) -> None:
    while not self._over.wait(_LOOK_S):
      self.look(time.time())

  def look(self, now: float) -> None:
    """Takes in the rows that have come since."""
    for path in self._metrics.glob('*.jsonl'):
      with path.open('rb') as file:
        file.seek(self._read.get(path, 0))
        new = file.read()
      whole = new[: new.rfind(b'\n') + 1]
      self._read[path] = self._read.get(path, 0) + len(whole)
      for line in whole.splitlines():
        self._take(path.stem, jsonable.decode(json.loads(line)), now)

  def _take(self, kind: str, row: Mapping[str, Any], now: float) -> None:
    node = row.get('node')
    if node is None:
      return
    # A candidate or an evaluation has none of these counts.
    before = self._seen.setdefault(node, [])
    done = sum(row.get(name, 0.0) for name in _WORK)
    before.append((now, max(done, before[-1][1] if before else 0.0)))
    self._seen[_COUNTER].append((now, 0.0))
    if kind == 'evaluation' and curves.finite([row['return_mean']]):
      self._returns.append((now, float(row['return_mean'])))

  def still_s(self, since: float) -> dict[str, float]:
    """Of each node the longest time without work that it has reported.

    What a node did in a silence, as its counts show, is taken off: a node that
    only could not reach the counter has worked on. How long that took is
    reckoned at the rate that it had before.

    Args:
      since: silences that ended before this do not count; of time.time().
    """
    return {node: _still_s(seen, since) for node, seen in self._seen.items()}

  def returns(self, since: float) -> list[float]:
    """Greedy returns of the evaluations that came in after this."""
    return [found for at, found in self._returns if at > since]


def _still_s(seen: Sequence[tuple[float, float]], since: float) -> float:
  pairs = list(itertools.pairwise(seen))
  rates = [
    (y - x) / (b - a) for (a, x), (b, y) in pairs if a < b <= since and y > x
  ]
  rate = statistics.median(rates) if rates else 0.0
  return max(
    (
      b - a - (min((y - x) / rate, b - a) if rate else 0.0)
      for (a, x), (b, y) in pairs
      if b > since
    ),
    default=0.0,
  )


@dataclasses.dataclass
class Result:
  """What came of one run.

  Attributes:
    system: its name.
    lost: nodes of the lost host.
    again_s: of each of them that was started again, seconds from the loss.
    still_s: of nodes that report their work, seconds without; see
      `Reports.still_s`. Of a lost counter, those without any report.
    joined: nodes that were started on the host that joined later.
    exit_code: of the launcher; None if it did not end.
    returns: greedy returns after the loss, in their order.
    bar: that one of them has to reach.
    problem: what kept the run from being seen to its end; ''.
    date: of its end.
    cores: of the machine.
    load: of it before the run began, the mean of a minute.
  """

  system: str
  lost: list[str]
  again_s: dict[str, float]
  still_s: dict[str, float]
  joined: list[str]
  exit_code: int | None
  returns: list[float]
  bar: float
  problem: str
  date: str
  cores: int
  load: float

  @property
  def faults(self) -> list[str]:
    """What was promised and does not hold."""
    missing = ', '.join(sorted({*self.lost} - {*self.again_s}))
    return [
      words
      for broken, words in (
        (self.problem, self.problem),
        (self.exit_code != 0, f'exit code {self.exit_code}'),
        (missing, f'not started again: {missing}'),
        (not self.joined, 'nothing runs on the new host'),
        (
          not max(self.returns, default=0.0) >= self.bar,
          f'after the loss no greedy return of {self.bar:g}',
        ),
      )
      if broken
    ]


def result(
  system: str,
  run: pathlib.Path,
  before: Mapping[str, Sequence[Start]],
  lost: str,
  joined: str,
  at: float,
  reports: Reports,
  **other: Any,
) -> Result:
  """What the directory of a run that has ended shows.

  Args:
    system: its name.
    run: its directory.
    before: all starts up to the loss.
    lost: the host's name.
    joined: name of the host that came later.
    at: when the host was lost, of time.time().
    reports: of the run.
    **other: further fields of the result.
  """
  held = sorted(
    name for name, lives in before.items() if lives[-1].host == lost
  )
  again_s = {}
  found = starts(run)
  for name in held:
    later = [one.at for one in found[name] if one.at >= int(at)]
    if later:
      again_s[name] = max(later[0] - at, 0.0)
  return Result(
    system=system,
    lost=held,
    again_s=again_s,
    still_s={
      name: seconds
      for name, seconds in reports.still_s(at).items()
      if name.partition('/')[0] != _RARE
      and (name != _COUNTER or _COUNTER in held)
    },
    joined=sorted(
      name for name, lives in found.items() if lives[-1].host == joined
    ),
    returns=reports.returns(at),
    date=datetime.date.today().isoformat(),
    cores=os.cpu_count() or 1,
    **other,
  )


def table(results: Sequence[Result]) -> str:
  """In Markdown, a row for each run."""
  rows = [
    '| system | lost with the host | runs again after, s | lost nodes without '
    'work, s | the others, s | on the new host | end | greedy return, best and '
    'last |',
    '| --- | --- | --- | --- | --- | --- | --- | --- |',
  ]
  for one in results:
    still: dict[bool, dict[str, float]] = {True: {}, False: {}}
    for name, seconds in one.still_s.items():
      still[name in one.lost][name] = seconds
    cells = [
      one.system,
      _counted(one.lost),
      _spans(one.again_s),
      _spans(still[True]),
      _spans(still[False]),
      _counted(one.joined),
      f'exit code {one.exit_code}' if not one.faults else '; '.join(one.faults),
      f'{max(one.returns):.0f}, {one.returns[-1]:.0f}' if one.returns else '-',
    ]
    rows.append(f'| {" | ".join(cells)} |')
  return '\n'.join(rows)


def _counted(nodes: Sequence[str]) -> str:
  """Such as '2 actors, learner'."""
  kinds = [name.partition('/')[0] for name in nodes]
  return (
    ', '.join(
      kind if kinds.count(kind) == 1 else f'{kinds.count(kind)} {kind}s'
      for kind in sorted({*kinds})
    )
    or '-'
  )


def _spans(seconds: Mapping[str, float]) -> str:
  """Such as 'actor 9 to 11, learner 10'."""
  kinds: dict[str, list[int]] = {}
  for name, span in seconds.items():
    kinds.setdefault(name.partition('/')[0], []).append(round(span))
  return (
    ', '.join(
      f'{kind} {min(found)}'
      + (f' to {max(found)}' if max(found) > min(found) else '')
      for kind, found in sorted(kinds.items())
    )
    or '-'
  )


def load() -> dict[str, Result]:
  """What was kept, by system."""
  if not RESULTS.exists():
    return {}
  found = json.loads(RESULTS.read_text())
  return {system: Result(**fields) for system, fields in found.items()}


def text(results: Mapping[str, Result]) -> str:
  """What stands on the page."""
  found = list(results.values())
  dates = ' and '.join(sorted({one.date for one in found}))
  loads = [one.load for one in found]
  cores = ' or '.join(sorted({str(one.cores) for one in found}))
  return (
    f'`make cluster-demo ARGS=--save`, {dates}, {cores} cores shared with '
    f'other work (load average {min(loads):.0f} to {max(loads):.0f} before a '
    f'run began); seconds from the loss.\n\n{table(found)}'
  )


def save(results: Sequence[Result], order: Sequence[str]) -> None:
  """Keeps results beside those of other systems, and writes the page.

  Raises:
    ValueError: the page has no markers.
  """
  kept = {**load(), **{one.system: one for one in results}}
  kept = {system: kept[system] for system in order if system in kept}
  fields = {system: dataclasses.asdict(one) for system, one in kept.items()}
  RESULTS.write_text(json.dumps(fields, indent=2) + '\n')
  before, found_begin, rest = PAGE.read_text().partition(BEGIN)
  _, found_end, after = rest.partition(END)
  if not (found_begin and found_end):
    raise ValueError(
      f'{PAGE} needs a line {BEGIN} and, below it, a line {END}.'
    )
  PAGE.write_text(f'{before}{BEGIN}\n{text(kept)}\n\n{END}{after}')
