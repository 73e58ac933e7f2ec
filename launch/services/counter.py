"""The counter: one place that adds up, logs, and says when a run is over.

A node counts for itself and reports how much it has done in all its lives; of
each count the counter keeps the largest. So a report may be lost, repeated or
late, and a counter that was killed learns from the next reports what it had not
saved. A node that dies before it reports does that work again.

The counter is measurement only: a run would learn the same without it, and a
node that cannot reach it goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import math
import os
import pathlib
import threading
import time
from typing import Any

from murmuration.launch import pulse
from murmuration.launch.services import counter_log
from murmuration.launch.services import counter_parts
from murmuration.run_records import checkpoints
from murmuration.run_records import jsonable

_GRACE_S = 1.5  # After all nodes know: for what they still have to log.
_MAX_GRACE_S = 5.0
_ALIVE_S = 3.0  # A node that is silent for longer is not waited for.
_TICK_S = 0.1
_SAVE_PERIOD_S = 0.5
_SYNC_PERIOD_S = 5.0  # A sync takes milliseconds.
_LONGEST_DEAD_S = 60.0  # that a counter is taken to have been away
# Of a run that ends before anything is counted.
_NONE = {'actor_steps': 0, 'episodes': 0, 'learner_steps': 0}


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
    self._end = counter_parts.RunEnd(budget, wall_clock_s)
    self._over = False  # The end is saved: nodes may hear of it.
    self._run_dir = None if run_dir is None else pathlib.Path(run_dir)
    self._clock = clock
    self._lock = threading.RLock()
    self._nodes: dict[str, counter_parts.NodeRecord] = {}
    self._rates = counter_parts.Rates()
    self._totals: dict[str, int] = {}
    self._elapsed_before_s = 0.0
    self._holds: dict[str, float] = {}  # node to when its hold ends
    self._files = counter_log.RunLog(self._run_dir)
    self._started = clock()
    self._start = pulse.life()[0]  # of the run, or its resumption
    self._saving = threading.Lock()
    self._saved = self._synced = -math.inf
    self._error: OSError | None = None  # of the last save
    self._path: pathlib.Path | None = None  # of what is saved
    if self._run_dir is not None:
      self._path = self._run_dir / 'metrics' / checkpoints.COUNTER
      self._restore(self._run_dir / 'summary.json')

  def begin(self, node: str, life: Sequence[Any]) -> dict[str, int]:
    """A node begins a life. Returns the counts of its earlier ones.

    `life` is its `pulse.life()`. Reports of earlier lives no longer count, as
    the node makes again what it was not told.
    """
    with self._lock:
      record = self._node(node)
      record.lives(life)
      return dict(record.totals)

  def report(
    self,
    node: str,
    counts: Mapping[str, int],
    metrics: Mapping[str, Any] | None = None,
    life: Sequence[Any] | None = None,
  ) -> dict[str, bool]:
    """Takes what a node has done so far.

    Args:
      node: label and index, for instance 'explorer/0'.
      counts: count name to how much the node has done in all of its lives.
      metrics: the node's present numbers; merged over its earlier ones.
      life: the node's `pulse.life()`; of an earlier one nothing is taken.

    Returns:
      {'finished': bool}. A node that reads finished=True leaves its loop.
    """
    with self._lock:
      now = self._clock()
      record = self._node(node)
      record.seen = now
      if life is None or record.lives(life):
        self._add(record, counts, now)
        record.metrics.update(metrics or {})
        record.unlogged |= bool(metrics)
      period_s = counter_log.period_s(self._elapsed(now))
      if record.unlogged and now - record.logged >= period_s:
        self._log_node(node, record, now)
    record.told = self._check_end()
    return {'finished': record.told}

  def log(self, node: str, kind: str, row: Mapping[str, Any]) -> None:
    """Appends a row to metrics/<kind>.jsonl and its numbers to TensorBoard.

    `node`, `actor_steps` (the total; of updates, where nobody acts) and
    `elapsed_s` are added where the row does not give them; `age_s` in the row
    is how long ago it was true. By its `unix_time_s` a row that a node sends
    again is known. Of kinds that never stop, rows are left out in a run of
    hours, but never the last, unless the counter is killed.
    """
    with self._lock:
      elapsed_s = self._elapsed(self._clock())
      self._files.add(node, kind, row, self._step(), elapsed_s)

  def finish(
    self, reason: str, result: Mapping[str, Any] | None = None
  ) -> bool:
    """Says that the run's goal is reached; nodes hear it at their next report.

    `reason` is a sentence for the user, and `result` for the summary. Returns
    whether this call ended the run; False if it was over already.
    """
    with self._lock:
      if self._end.over:
        return False
      self._end.goal(reason, result or {})
    return self._check_end()

  def hold(self, node: str, seconds: float) -> None:
    """Has the end wait for a node, `seconds` from now at most; 0 lets go."""
    with self._lock:
      if seconds:
        self._holds[node] = self._clock() + seconds
      else:
        self._holds.pop(node, None)
    self._save()

  def finished(self) -> bool:
    """Whether a goal, a budget or the wall clock has ended the run."""
    return self._over

  def totals(self) -> dict[str, int]:
    """Count name to total of all nodes, restarts included."""
    with self._lock:
      return dict(self._totals)

  def snapshot(self) -> dict[str, Any]:
    """All that a live view shows; safe to call at any time.

    Returns:
      totals: count name to total. They never fall, not even if the counter is
        killed.
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
    self._check_end()
    with self._lock:
      now = self._clock()
      elapsed_s, per_second = self._elapsed(now), self._rates.per_second(now)
      shown = {
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
        'finished': self._over,
        'held': self._held(now),
        **self._end.state(),
      }
    # A next counter must not show less.
    self._save()
    return shown

  def run(self, stop: threading.Event | None = None) -> None:
    """Serves until the run is over; then writes summary.json and returns.

    After the end it goes on answering until every living node has read
    finished=True from a report, and a little longer, for at most 5 s; or for
    as long as a node holds it (`hold`).
    """
    stop = pulse.stop_event(stop)
    while not stop.wait(_TICK_S) and not self._check_end():
      self._save_if_due()
      with self._lock:
        trouble = self._trouble()
      if trouble:
        pulse.waits(trouble)
    told, deadline = self._clock(), self._clock() + _MAX_GRACE_S
    while not stop.wait(_TICK_S):
      self._save_if_due()
      with self._lock:
        now = self._clock()
        if self._untold(now):
          told = now
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
    self._save(sync=True)
    with self._lock:
      self._path = None
      self._files.close()
      with pulse.survives('summary.json'):
        jsonable.write(
          self._run_dir / 'summary.json',
          {
            'finished': self._over,
            'outcome': self._end.outcome or 'stopped',
            'reason': self._end.reason or 'stopped before a goal or budget',
            'totals': {**_NONE, **self._totals},
            'elapsed_s': round(self._elapsed(self._clock()), 3),
            'result': self._end.result,
            'latest': self._files.latest,
            'rows_left_out': dict(self._files.left_out),
            # Nodes that the end has waited for in vain.
            'unfinished': sorted(self._holds) if self._over else [],
          },
        )

  def _check_end(self) -> bool:
    """Ends the run at a limit. Returns whether it is over."""
    with self._lock:
      self._end.check(self._totals, self._elapsed(self._clock()))
    if self._end.over and not self._over:
      # First: a node that has heard of it leaves, and does not report again to
      # a next counter.
      self._save(sync=True)
      self._over = True
    return self._over

  def _save_if_due(self) -> None:
    now = self._clock()
    if now - self._saved >= _SAVE_PERIOD_S:
      self._save(sync=now - self._synced >= _SYNC_PERIOD_S)

  def _save(self, sync: bool = False) -> None:
    """Keeps the state; not with the lock held, as disks are slow.

    It survives this process, and with `sync` the machine.
    """
    with self._saving:
      path = self._path
      if path is None:
        return
      state, self._saved = self._state(), self._clock()
      try:
        checkpoints.write_state(path, state, sync)
        self._error = None
      except OSError as e:
        self._error = e
      if sync:
        self._synced = self._saved

  def _trouble(self) -> str:
    """What cannot be written, in a sentence; '' if all can."""
    if self._error is None:
      return self._files.trouble()
    return (
      f'counts cannot be saved ({self._error}): counting on in memory, and '
      'saving again when there is room'
    )

  def _state(self) -> dict[str, Any]:
    """What a next counter goes on from."""
    with self._lock:
      now, nodes = self._clock(), self._nodes.items()
      return {
        'totals': dict(self._totals),
        'node_totals': {name: dict(node.totals) for name, node in nodes},
        'node_lives': {name: node.life for name, node in nodes},
        'elapsed_s': self._elapsed(now),
        'start': self._start,
        'holds': self._held(now),
        'unix_time_s': time.time(),
        **self._end.state(),
      }

  def _restore(self, summary: pathlib.Path) -> None:
    assert self._path is not None
    state = checkpoints.read_state(self._path, repair=True)
    if state is None:
      return
    now = self._clock()
    self._totals = {k: int(v) for k, v in state['totals'].items()}
    self._elapsed_before_s = float(state['elapsed_s'])
    for name, totals in state['node_totals'].items():
      record = self._nodes[name] = counter_parts.NodeRecord(now, dict(totals))
      # Older versions saved none; they matter within one start only.
      record.lives(state.get('node_lives', {}).get(name, ('', 0)))
    if state.get('start') == self._start:
      # The others went on while no counter was there. A clock may have been
      # set meanwhile, or be another host's.
      dead_s = min(time.time() - state['unix_time_s'], _LONGEST_DEAD_S)
      self._elapsed_before_s += max(dead_s, 0.0)
      self._holds = {k: now + left_s for k, left_s in state['holds'].items()}
    # With a summary the run had ended, and this is a resume: it is judged by
    # its new budget. Without one, or in a later life of the same start, a
    # counter died after the goal was reached, and nobody will tell it again. A
    # spent budget shows by itself.
    resumed = summary.exists() and pulse.life()[1] <= 1
    if state['outcome'] == 'goal' and not resumed:
      self._end.restore(state)
      self._over = True
    if summary.exists():
      # The goal goes first: a next life of this start would take it for new.
      self._save(sync=True)
      summary.unlink()

  # The rest is called with the lock held.

  def _node(self, name: str) -> counter_parts.NodeRecord:
    if name not in self._nodes:
      self._nodes[name] = counter_parts.NodeRecord(self._clock())
    return self._nodes[name]

  def _add(
    self, node: counter_parts.NodeRecord, counts: Mapping[str, int], now: float
  ) -> None:
    for name, count in counts.items():
      known = node.totals.get(name, 0)
      more = max(int(count) - known, 0)
      node.totals[name] = known + more
      self._totals[name] = self._totals.get(name, 0) + more
      self._rates.add(name, more, now)
      node.rates.add(name, more, now)

  def _log_node(
    self, name: str, node: counter_parts.NodeRecord, now: float
  ) -> None:
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

  def _held(self, now: float) -> dict[str, float]:
    """Node to seconds for which the end still waits for it at most."""
    return {name: end - now for name, end in self._holds.items() if end > now}

  def _untold(self, now: float) -> bool:
    return any(
      not node.told and now - node.seen < _ALIVE_S
      for node in self._nodes.values()
    )
