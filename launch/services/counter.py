"""The counter: one place that adds up, logs, and says when a run is over.

Nodes report increments and read from the answer whether to stop. The counter
is measurement only: a run would learn the same without it, and a node that
cannot reach it goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
import math
import os
import pathlib
import threading
import time
from typing import Any

from launch import pulse
from run_records import counter_file
from run_records import jsonable
from run_records import rates
from run_records import run_end
from run_records import run_log

_GRACE_S = 1.5  # After all nodes know: for what they still have to log.
_MAX_GRACE_S = 5.0
_ALIVE_S = 3.0  # Who did not report for so long is not waited for.
_TICK_S = 0.1
_LONGEST_DEAD_S = 60.0  # that a counter is taken to have been away
# Of a run that ends before anything is counted.
_NONE = {'actor_steps': 0, 'episodes': 0, 'learner_steps': 0}
_METRICS_PERIOD_S = 1.0  # a node's are logged at most this often
_METRICS_SHARE = 1e-4  # and at most so often, as a share of the run so far
# Kinds of rows that come with each episode or generation and never stop. They
# are thinned out by the same share in a long run; a shorter one keeps all.
_ENDLESS = frozenset(('supervisor', 'generation'))


class Counter:
  """Totals, rates, budget, and the metrics files of one run. Thread-safe."""

  serves = (
    'begin',
    'report',
    'log',
    'finish',
    'hold',
    'finished',
    'totals',
    'snapshot',
  )

  def __init__(
    self,
    run_dir: str | os.PathLike[str] | None,
    budget: Mapping[str, int] | None = None,
    wall_clock_s: float | None = None,
    *,
    clock: Callable[[], float] = time.monotonic,
  ):
    """Starts at zero, or where an earlier counter of this run left off.

    Args:
      run_dir: the run's directory; None keeps everything in memory.
      budget: count name to the total at which the run is over, for instance
        {'actor_steps': 930_000}. The first to be reached ends it.
      wall_clock_s: seconds of running after which the run is over. Time
        before a resume counts; time in between does not.
      clock: seconds, monotonic.
    """
    self._end = run_end.RunEnd(budget, wall_clock_s)
    self._run_dir = None if run_dir is None else pathlib.Path(run_dir)
    self._clock = clock
    self._lock = threading.RLock()
    self._nodes: dict[str, rates.NodeRecord] = {}
    self._rates = rates.Rates()
    self._totals: dict[str, int] = {}
    self._elapsed_before_s = 0.0
    self._holds: dict[str, float] = {}  # node to when its hold ends
    self._numbers: dict[str, tuple] = {}  # node to that of its newest row
    self._logged: dict[str, float] = {}  # kind to when a row was, if _ENDLESS
    self._unlogged: dict[str, dict[str, Any]] = {}  # and its newest left out
    self._files = run_log.RunLog(self._run_dir)
    self._changes = 0  # that must not be lost
    self._started = clock()
    self._start = pulse.life()[0]  # of the run, or its resumption
    self._file: counter_file.CounterFile | None = None
    if self._run_dir is not None:
      self._file = counter_file.CounterFile(self._run_dir / 'metrics')
      self._restore(self._file)

  def begin(self, node: str, life: tuple[str, int]) -> dict[str, int]:
    """A node begins a life: what is still on its way from older ones is void.

    It does again what it had not been told is counted; counted too, when it
    arrives late, that would be counted twice. Returns the node's totals.
    """
    with self._lock:
      now = self._clock()
      state = self._nodes.setdefault(node, rates.NodeRecord(now))
      state.begin(life)
      self._changed(node, state, {}, now)
      totals = dict(state.totals)
    self._save()
    return totals

  def report(
    self,
    node: str,
    counts: Mapping[str, int],
    metrics: Mapping[str, Any] | None = None,
    life: tuple[tuple[str, int], Mapping[str, int]] | None = None,
  ) -> dict[str, Any]:
    """Adds what a node did since its last report.

    Args:
      node: label and index, for instance 'explorer/0'.
      counts: count name to increment, not negative.
      metrics: the node's present numbers; merged over its earlier ones.
      life: which of the node's lives it is, and what it knows to be counted of
        that. A report whose answer was lost is then counted once.

    Returns:
      {'totals': count name to total of all nodes, 'finished': bool}. A node
      that reads finished=True leaves its loop.

    Raises:
      ValueError: an increment that is negative or not an integer.
    """
    for name, count in counts.items():
      if not (count >= 0 and count % 1 == 0):
        raise ValueError(
          f'{node} reported {name}={count!r}; counts are what was done since '
          'the last report: integers, not negative.'
        )
    with self._lock:
      now = self._clock()
      state = self._nodes.setdefault(node, rates.NodeRecord(now))
      state.seen = now
      if life is not None:
        counts = state.news(*life, counts)
      self._add(state, counts)
      for name, count in counts.items():
        self._rates.add(name, int(count), now)
        state.rates.add(name, int(count), now)
      if metrics:
        state.metrics.update(metrics)
        state.unlogged = True
        # So the rows of runs of weeks, too, are as many as can be read.
        period_s = max(_METRICS_PERIOD_S, _METRICS_SHARE * self._elapsed(now))
        if now - state.logged >= period_s:
          self._log_node(node, state, now)
      self._check_limits(now)
      if any(counts.values()):
        self._changed(node, state, counts, now)
    # What a node was told is counted must survive this process: the node will
    # not report it again, and the budget would never be reached.
    self._save()
    with self._lock:
      state.told = self.finished()
      return {'totals': dict(self._totals), 'finished': self.finished()}

  def log(self, node: str, kind: str, row: Mapping[str, Any]) -> None:
    """Appends a row to metrics/<kind>.jsonl and its numbers to TensorBoard.

    `node`, `actor_steps` (the total; of updates, where nobody acts) and
    `elapsed_s` are added where the row does not give them; `age_s` in the row
    is how long ago it was true. Of kinds that never stop, rows are left out in
    a run of hours, but never the last, unless the counter is killed.
    """
    row = dict(row)
    # Numbers grow: one that is not above the last came again, its answer late.
    number = tuple(row.pop('number_', ()))
    with self._lock:
      last = self._numbers.get(node, ())
      if number and number[:1] == last[:1] and number <= last:
        return
      self._log(node, kind, row)
      if not number:
        return
      # A counter killed at this point, or a machine that stops before the
      # state is on disk, has the row and not its number: it comes twice.
      self._numbers[node] = number
      now = self._clock()
      state = self._nodes.get(node, rates.NodeRecord(now))
      self._changed(node, state, {}, now, number)
    self._save()

  def finish(
    self, reason: str, result: Mapping[str, Any] | None = None
  ) -> bool:
    """Says that the run's goal is reached; nodes hear it at their next report.

    `reason` is a sentence for the user, and `result` for the summary. Returns
    whether this call ended the run; False if it was over already.
    """
    with self._lock:
      if self.finished():
        return False
      self._end.goal(reason, result or {})
    self._save(must=True)
    return True

  def hold(self, node: str, seconds: float) -> None:
    """Keeps the program up after the end, for `seconds` at most; 0 lets go."""
    with self._lock:
      now = self._clock()
      self._holds[node] = now + seconds
      state = self._nodes.get(node, rates.NodeRecord(now))
      self._changed(node, state, {}, now, float(seconds))
    self._save()

  def finished(self) -> bool:
    """Whether a goal, a budget or the wall clock has ended the run."""
    return self._end.over

  def totals(self) -> dict[str, int]:
    """Count name to total of all nodes, restarts included."""
    with self._lock:
      return dict(self._totals)

  def snapshot(self) -> dict[str, Any]:
    """All that a live view shows; safe to call at any time.

    Returns:
      totals: count name to total.
      rates: count name to increments per second over the last 5 s, or since
        the increment before the newest, if that took longer.
      nodes: node to {'metrics', 'totals', 'rates', 'age_s'}; age_s is the
        time since its last report.
      latest: kind to the newest row.
      budget, wall_clock_s: the limits.
      elapsed_s, left_s: seconds running, and until a limit at the present
        rate (None while unknown).
      finished, outcome, reason, result: of the end.
      held: node to seconds for which the end waits for it at most.
    """
    with self._lock:
      now = self._clock()
      self._check_limits(now)
      elapsed_s, per_second = self._elapsed(now), self._rates.per_second(now)
      return {
        'totals': dict(self._totals),
        'rates': per_second,
        'nodes': {
          name: node.snapshot(now) for name, node in self._nodes.items()
        },
        'latest': {kind: dict(row) for kind, row in self._files.latest.items()},
        'budget': dict(self._end.budget),
        'wall_clock_s': self._end.wall_clock_s,
        'elapsed_s': elapsed_s,
        'left_s': self._end.left_s(self._totals, per_second, elapsed_s),
        'finished': self.finished(),
        'held': self._held(now),
        **self._end.state(),
      }

  def run(self, stop: threading.Event | None = None) -> None:
    """Serves until the run is over; then writes summary.json and returns.

    After the end it goes on answering until every living node has read
    finished=True from a report, and a little longer, for at most 5 s; or for
    as long as a node holds it (`hold`).
    """
    stop = pulse.stop_event(stop)
    while not stop.wait(_TICK_S):
      with self._lock:
        self._check_limits(self._clock())
      self._save()
      with self._lock:
        if self.finished():
          break
        trouble = self._trouble()
      if trouble:
        pulse.waits(trouble)
    told, deadline = self._clock(), self._clock() + _MAX_GRACE_S
    while not stop.wait(_TICK_S):
      self._save()  # who holds the end does not tell the next counter
      now = self._clock()
      if self._untold(now):
        told = now
      with self._lock:
        held = self._held(now)
      if not held and (now - told >= _GRACE_S or now >= deadline):
        break
    self.close()

  def close(self) -> None:
    """Writes summary.json and closes the files. Safe to call twice."""
    with self._lock:
      if self._run_dir is None or self._files.closed:
        return
      now = self._clock()
      for name, node in self._nodes.items():
        if node.unlogged:  # what it said last, too soon after a row
          self._log_node(name, node, now)
      for kind, row in self._unlogged.items():
        self._files.add(kind, row)
      self._unlogged.clear()
    self._save(must=True)
    with self._lock:
      if self._files.closed:
        return
      now = self._clock()
      with pulse.survives('summary.json'):
        jsonable.write(
          self._run_dir / 'summary.json',
          {
            'finished': self.finished(),
            'outcome': self._end.outcome or 'stopped',
            'reason': self._end.reason or 'stopped before a goal or budget',
            'totals': {**_NONE, **self._totals},
            'elapsed_s': round(self._elapsed(now), 3),
            'result': self._end.result,
            'latest': self._files.latest,
          },
        )
      self._files.close()
      if self._file is not None:
        self._file.close()
        self._file = None

  def _save(self, must: bool = False) -> None:
    """Keeps what was counted; not with the lock held, as disks are slow."""
    file = self._file
    if file is not None:
      file.flush()
      file.save(self._clock(), self._state, must)

  def _trouble(self) -> str:
    """What cannot be written, in a sentence; '' if all can."""
    error = self._file.error if self._file is not None else None
    if error is None:
      return self._files.trouble()
    return (
      f'counts cannot be saved ({error}): counting on in memory, and '
      'saving again when there is room'
    )

  def _untold(self, now: float) -> bool:
    with self._lock:
      return any(
        not node.told and now - node.seen < _ALIVE_S
        for node in self._nodes.values()
      )

  # The rest is called with the lock held.

  def _add(self, node: rates.NodeRecord, counts: Mapping[str, int]) -> None:
    for name, count in counts.items():
      self._totals[name] = self._totals.get(name, 0) + int(count)
      node.totals[name] = node.totals.get(name, 0) + int(count)

  def _changed(
    self,
    name: str,
    node: rates.NodeRecord,
    counts: Mapping[str, int],
    now: float,
    *more: tuple | float,
  ) -> None:
    """Notes what `_restore` adds to the state of before.

    `more` is the number of a row, or the seconds of a hold.
    """
    self._changes += 1
    if self._file is not None:
      news = {key: int(count) for key, count in counts.items()}
      self._file.add(
        self._changes,
        [name, node.life, node.of_life, *more, news, self._elapsed(now)],
      )

  def _held(self, now: float) -> dict[str, float]:
    """Node to seconds for which the end still waits for it at most."""
    return {name: end - now for name, end in self._holds.items() if end > now}

  def _check_limits(self, now: float) -> None:
    self._end.check(self._totals, self._elapsed(now))

  def _log(self, node: str, kind: str, row: dict[str, Any]) -> None:
    row.setdefault('node', node)
    row.setdefault('actor_steps', self._step())
    now = self._clock()
    elapsed_s = self._elapsed(now)
    row.setdefault('elapsed_s', round(elapsed_s - row.pop('age_s', 0.0), 3))
    if kind in _ENDLESS:
      period_s = _METRICS_SHARE * elapsed_s
      passed_s = now - self._logged.get(kind, -math.inf)
      if _METRICS_PERIOD_S < period_s and passed_s < period_s:
        self._unlogged[kind] = row
        return
      self._logged[kind] = now
      self._unlogged.pop(kind, None)
    self._files.add(kind, row)

  def _log_node(self, name: str, node: rates.NodeRecord, now: float) -> None:
    node.logged, node.unlogged = now, False
    self._files.node(
      name,
      node.metrics,
      node.rates.per_second(now),
      node.totals,
      self._step(),
      self._elapsed(now),
    )

  def _step(self) -> int:
    totals = self._totals
    return totals.get('actor_steps') or totals.get('learner_steps', 0)

  def _elapsed(self, now: float) -> float:
    return self._elapsed_before_s + now - self._started

  def _state(self) -> tuple[int, dict[str, Any]]:
    """What a next counter goes on from; takes the lock."""
    with self._lock:
      nodes = self._nodes.items()
      state = {
        'totals': dict(self._totals),
        'node_totals': {name: dict(node.totals) for name, node in nodes},
        'lives': {
          name: [node.life, dict(node.of_life)] for name, node in nodes
        },
        'numbers': dict(self._numbers),
        'elapsed_s': self._elapsed(self._clock()),
        'start': self._start,
        'holds': self._held(self._clock()),
        'unix_time_s': time.time(),
        **self._end.state(),
        'latest': {kind: dict(row) for kind, row in self._files.latest.items()},
      }
      return self._changes, state

  def _restore(self, file: counter_file.CounterFile) -> None:
    assert self._run_dir is not None
    summary = self._run_dir / 'summary.json'
    state, entries = file.read()
    now = self._clock()
    if state is not None:
      self._changes = int(state.get('changes', 0))
      self._totals = {k: int(v) for k, v in state['totals'].items()}
      self._elapsed_before_s = float(state['elapsed_s'])
      self._files.latest = state['latest']
      for name, totals in state['node_totals'].items():
        record = self._nodes[name] = rates.NodeRecord(now, dict(totals))
        # Of an older version, there are none.
        life, record.of_life = state.get('lives', {}).get(name, (('', 0), {}))
        record.life = (life[0], life[1])
      numbers = state.get('numbers', {})  # nor these
      self._numbers = {name: tuple(number) for name, number in numbers.items()}
    held: dict[str, float] = {}
    for name, life, of_life, *more, counts, elapsed_s in entries:
      if more and isinstance(more[0], list):
        self._numbers[name] = tuple(more[0])
      elif more:
        held[name] = more[0]
      record = self._nodes.setdefault(name, rates.NodeRecord(now))
      record.life, record.of_life = (life[0], life[1]), of_life
      self._add(record, counts)
      self._elapsed_before_s = elapsed_s
      self._changes += 1
    if state is None:
      return
    if state.get('start') == self._start:
      # The others went on while no counter was there. A clock may have been
      # set meanwhile, or be another host's.
      dead_s = min(time.time() - state['unix_time_s'], _LONGEST_DEAD_S)
      self._elapsed_before_s = max(
        self._elapsed_before_s, float(state['elapsed_s']) + dead_s
      )
      # Of an older version, there are none.
      holds = {**state.get('holds', {}), **held}
      self._holds = {name: now + left_s for name, left_s in holds.items()}
    # With a summary the run had ended, and this is a resume: it is judged by
    # its new budget. Without one, or in a later life of the same start, a
    # counter died after the goal was reached, and nobody will tell it again. A
    # spent budget shows by itself.
    resumed = summary.exists() and pulse.life()[1] <= 1
    if state['outcome'] == 'goal' and not resumed:
      self._end.restore(state)
    if summary.exists():
      # The goal goes first: a next life of this start would take it for new.
      file.save(now, self._state, must=True)
      summary.unlink()
