"""The live view: a picture in a terminal, plain lines anywhere else.

Called by the engine between two looks at its nodes, so it must never hold it
up: it only takes the state. Asking the counter and drawing are done by threads
of its own, and a counter that does not answer leaves the last numbers standing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
import contextlib
import copy
import os
import pathlib
import sys
import threading
import time
from typing import Any

from rich import console as rich_console
from rich import live as rich_live

from murmuration.run_records import unsaved
from murmuration.run_records import view_final
from murmuration.run_records import view_panels
from murmuration.run_records import view_text

_POLL_PERIOD_S = 0.5
_DEADLINE_S = 1.0
_DRAW_PERIOD_S = 0.5
_LINE_PERIOD_S = 5.0
_JOIN_S = 0.3
_FEW_ROWS = 19  # Of the view that are not nodes.
# Of an output that takes nothing; rich makes SystemExit of a broken pipe.
_GONE = (OSError, SystemExit)


class LiveView:
  """Shows a run while it runs: pass it to the engine as on_tick.

  Threads start with the first call, when the engine has forked what it forks.
  """

  def __init__(
    self,
    run_dir: str | os.PathLike[str],
    counter_client_factory: Callable[[], Any],
    title: str,
    *,
    console: rich_console.Console | None = None,
  ):
    """Makes a view; nothing is shown before the first call.

    Args:
      run_dir: shown to the user, with checkpoints of it that fail.
      counter_client_factory: makes a client with `snapshot()`; called again
        when a call has failed. May raise while the counter is not there.
      title: agent and environment, for instance 'PSO-DQN · CartPole-v1'.
      console: where to write, standard output if None.
    """
    self._run_dir = pathlib.Path(run_dir)
    self._factory = counter_client_factory
    self._title = title
    self.console = console or rich_console.Console(file=sys.stdout)
    encoding = (self.console.encoding or '').lower().replace('-', '')
    self._picture = (
      self.console.is_terminal
      and not self.console.is_dumb_terminal
      and encoding == 'utf8'
    )
    self._lock = threading.Lock()
    # Another lock: a terminal that is held (Ctrl-S) blocks who draws, and
    # only that thread.
    self._drawing = threading.Lock()
    self._state: Any = None
    self._snapshot: Mapping[str, Any] | None = None
    self._closing = threading.Event()
    self._changed = threading.Event()
    self._threads: list[threading.Thread] = []
    self._live: rich_live.Live | None = None
    self._shown: dict[str, tuple[str, int]] = {}
    self._noticed: dict[str, str] = {}
    self._unsaved = ''  # which checkpoints fail, since when
    self._unsaved_said = False
    self._now_s = 0.0  # of the last line

  def __call__(self, state: Any) -> None:
    """Takes the engine's RunState; returns at once."""
    # The engine goes on changing its own.
    taken = copy.copy(state)
    taken.nodes = [copy.copy(node) for node in state.nodes]
    with self._lock:
      changed = self._state is None or _states(taken) != _states(self._state)
      self._state = taken
    if changed:
      self._changed.set()
    if not self._threads and not self._closing.is_set():
      for run in (self._poll, self._draw):
        thread = threading.Thread(target=run, name='view', daemon=True)
        self._threads.append(thread)
        thread.start()

  def close(self) -> None:
    """Shows the last state and gives the terminal back. Safe to call twice."""
    if self._closing.is_set():
      return
    self._closing.set()
    self._changed.set()
    for thread in self._threads:
      thread.join(_JOIN_S)
    if not self._drawing.acquire(timeout=_JOIN_S):
      return
    try:
      self._take_end()
      self._show(due=True)
      if self._live is not None:
        with contextlib.suppress(*_GONE):
          self._live.stop()
        self._live = None
    finally:
      self._drawing.release()

  def final(self, outcome: Any) -> None:
    """Closes the view and says how it ended, what is where, what comes next."""
    self.close()
    try:
      view_final.show(
        self.console, outcome, self._run_dir, self._snapshot or {}
      )
    except _GONE:
      _discard(self.console.file)

  def _take_end(self) -> None:
    """Takes what the counter wrote after its last answer, as it has gone."""
    end = view_final.summary_of(self._run_dir)
    with self._lock:
      last = self._snapshot or {}
      # Not of an earlier start.
      if last and end.get('elapsed_s', 0.0) >= last.get('elapsed_s', 0.0):
        known = ('finished', 'totals', 'elapsed_s', 'latest')
        self._snapshot = {**last, **{k: end[k] for k in known if k in end}}

  def _poll(self) -> None:
    client = None
    while not self._closing.is_set():
      with contextlib.suppress(OSError):
        self._unsaved = unsaved.now(self._run_dir)
      try:
        if client is None:
          client = self._factory()
          if hasattr(client, 'with_deadline'):
            client = client.with_deadline(_DEADLINE_S)
        snapshot = client.snapshot()
      except Exception:  # Whatever it is: the run matters, the view does not.
        client = None
      else:
        with self._lock:
          self._snapshot = snapshot
      self._closing.wait(_POLL_PERIOD_S)

  def _draw(self) -> None:
    period_s = _DRAW_PERIOD_S if self._picture else _LINE_PERIOD_S
    next_s = time.monotonic() + period_s
    while not self._closing.is_set():
      self._changed.wait(max(0.0, next_s - time.monotonic()))
      self._changed.clear()
      due = time.monotonic() >= next_s
      if due:
        next_s = time.monotonic() + period_s
      with self._drawing:
        if not self._closing.is_set():
          self._show(due)

  # With the drawing lock held.

  def _show(self, due: bool) -> None:
    with self._lock:
      state, snapshot = self._state, self._snapshot
    if state is None:
      return
    try:
      if self._picture:
        self._show_picture(state, snapshot)
      else:
        self._show_lines(state, snapshot, due)
    except _GONE:  # The terminal has gone; the run has not.
      self._closing.set()

  def _show_picture(
    self, state: Any, snapshot: Mapping[str, Any] | None
  ) -> None:
    width, height = self.console.size
    hint = '' if state.stopping else ' · Ctrl-C stops'
    picture = view_panels.render(
      self._title,
      state,
      snapshot,
      footer=f'{self._run_dir}{hint}',
      width=min(width, 110),
      max_nodes=max(6, height - _FEW_ROWS),
      unsaved=self._unsaved,
    )
    if self._live is None:
      live = rich_live.Live(picture, console=self.console, auto_refresh=False)
      live.start()  # one that cannot be started cannot be stopped either
      self._live = live
    self._live.update(picture, refresh=True)

  def _show_lines(
    self, state: Any, snapshot: Mapping[str, Any] | None, due: bool
  ) -> None:
    # The engine's clock began before the counter's.
    found_s = (snapshot or {}).get('elapsed_s', state.elapsed_s)
    self._now_s = max(self._now_s, found_s)
    now = view_text.clock(self._now_s)
    news: dict[str, list[str]] = {}
    for node in state.nodes:
      noticed = self._noticed.get(node.name, '')
      notice = view_text.notice(node, snapshot)
      if notice != noticed:
        self._noticed[node.name] = notice
        # One that was killed is said to be started again, below.
        if notice or (node.alive and not node.notice):
          self._print(f'[{now}] {node.name} {notice or "goes on"}')
      seen = (node.state, node.restarts)
      before = self._shown.get(node.name)
      if seen == before:
        continue
      self._shown[node.name] = seen
      word = node.state
      if node.restarts and node.state in ('starting', 'running'):
        word = f'{word} again ({node.restarts})'
      news.setdefault(word, []).append(node.name)
      # A quick restart may be over before it is seen.
      missed = before is not None and (
        node.restarts > before[1] and before[0] != 'restarting'
      )
      died = missed or node.state in ('restarting', 'failed')
      if died and node.last_error:
        self._print(
          f'[{now}] {node.name}: {view_text.last_line(node.last_error)}'
        )
        if node.log_path:
          self._print(f'[{now}] {node.name}: its log is {node.log_path}')
    for word, names in news.items():
      self._print(f'[{now}] {word}: {", ".join(names)}')
    if due and (self._unsaved or self._unsaved_said):
      self._unsaved_said = bool(self._unsaved)
      self._print(f'[{now}] {self._unsaved or "checkpoints are written again"}')
    if due and snapshot:
      self._print(f'[{now}] {view_text.line(snapshot, state.nodes)}')

  def _print(self, line: str) -> None:
    self.console.print(line, markup=False, highlight=False, soft_wrap=True)
    self.console.file.flush()


def _discard(stream: Any) -> None:
  """Sends what a stream still holds nowhere.

  Python would try it again at its end, and make an exit code of the failure.
  """
  with contextlib.suppress(OSError):  # not every stream is a file
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _states(state: Any) -> list[tuple[Any, ...]]:
  return [
    (node.name, node.state, node.restarts, node.pid, node.notice)
    for node in state.nodes
  ] + [('', state.stopping)]
