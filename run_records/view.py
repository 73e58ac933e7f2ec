"""The live view: a picture in a terminal, plain lines anywhere else.

The engine calls it between two looks at its nodes, so it only takes the state.
A thread asks the counter and draws; while the counter does not answer, its last
numbers are shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
import contextlib
import copy
import os
import pathlib
import sys
import threading
import time
from typing import Any

from rich import box
from rich import console as rich_console
from rich import live as rich_live
from rich import panel
from rich import table
from rich import text

from murmuration.run_records import unsaved
from murmuration.run_records import view_text

_PERIOD_S = 0.5
_LINE_PERIOD_S = 5.0
_DEADLINE_S = 1.0  # of the counter's answer
_JOIN_S = 2.0
# Of an output that takes nothing; rich makes SystemExit of a broken pipe.
_GONE = (OSError, SystemExit)
_DIM = 'grey58'
# From good to bad.
_STYLES = {
  'finished': 'green',
  'stopped': _DIM,
  'running': 'green',
  'starting': 'cyan',
  'restarting': 'yellow',
  'failed': 'bold red',
}
_HEADS = {'Finished': 'green', 'Interrupted': 'yellow', 'Failed': 'bold red'}
_FEW_ROWS = 19  # of the picture that are not nodes
_MAX_ERRORS = 3


class LiveView:
  """Shows a run while it runs: pass it to the engine as on_tick.

  The thread starts with the first call, when the engine has forked its nodes.
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
    self._state: Any = None
    self._client: Any = None
    self._snapshot: Mapping[str, Any] = {}
    self._closing = threading.Event()
    self._thread: threading.Thread | None = None
    self._live: rich_live.Live | None = None
    # What was last printed of each node.
    self._seen: dict[str, tuple[str, int]] = {}
    self._noticed: dict[str, str] = {}
    self._now_s = 0.0

  def __call__(self, state: Any) -> None:
    """Takes the engine's RunState; returns at once."""
    # The engine goes on changing its own.
    taken = copy.copy(state)
    taken.nodes = [copy.copy(node) for node in state.nodes]
    self._state = taken
    if self._thread is None and not self._closing.is_set():
      self._thread = threading.Thread(
        target=self._run, name='view', daemon=True
      )
      self._thread.start()

  def close(self) -> None:
    """Shows the last state and gives the terminal back. Safe to call twice."""
    if self._closing.is_set():
      return
    self._closing.set()
    if self._thread is not None:
      self._thread.join(_JOIN_S)
      if self._thread.is_alive():  # the terminal is held, as by Ctrl-S
        return
    self._show(due=True)
    if self._live is not None:
      with contextlib.suppress(*_GONE):
        self._live.stop()

  def final(self, outcome: Any) -> None:
    """Closes the view and says how it ended, what is where, what comes next."""
    self.close()
    head, rest, lines = view_text.final(outcome, self._run_dir, self._snapshot)
    try:
      self._print(text.Text.assemble((head, _HEADS[head]), rest))
      for line in lines:
        self._print(line)
    except _GONE:
      # Python would write what the stream still holds at its end, and make an
      # exit code of the failure. Not every stream is a file.
      with contextlib.suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.console.file.fileno())

  def _run(self) -> None:
    next_s = time.monotonic() + _LINE_PERIOD_S
    while not self._closing.wait(_PERIOD_S):
      try:
        if self._client is None:
          self._client = self._factory()
          if hasattr(self._client, 'with_deadline'):
            self._client = self._client.with_deadline(_DEADLINE_S)
        self._snapshot = self._client.snapshot() or {}
      except Exception:  # whatever it is: the run matters, the view does not
        self._client = None
      if due := time.monotonic() >= next_s:
        next_s = time.monotonic() + _LINE_PERIOD_S
      self._show(due)

  def _show(self, due: bool) -> None:
    """Draws the picture, or prints what is new and, if `due`, a line."""
    if self._state is None:
      return
    try:
      failing = unsaved.now(self._run_dir)
      if self._picture:
        self._draw(failing)
      else:
        self._print_lines(failing, due)
    except _GONE:  # the terminal has gone; the run has not
      self._closing.set()

  def _draw(self, failing: str) -> None:
    width, height = self.console.size
    hint = '' if self._state.stopping else ' · Ctrl-C stops'
    shown = picture(
      self._title,
      self._state,
      self._snapshot,
      footer=f'{self._run_dir}{hint}',
      width=min(width, 110),
      max_nodes=max(6, height - _FEW_ROWS),
      unsaved=failing,
    )
    if self._live is None:
      live = rich_live.Live(shown, console=self.console, auto_refresh=False)
      live.start()  # one that cannot be started cannot be stopped either
      self._live = live
    self._live.update(shown, refresh=True)

  def _print_lines(self, failing: str, due: bool) -> None:
    state, snapshot = self._state, self._snapshot
    # The engine's clock began before the counter's.
    self._now_s = max(self._now_s, snapshot.get('elapsed_s', state.elapsed_s))
    lines: list[str] = []
    news: dict[str, list[str]] = {}
    for node in state.nodes:
      notice = view_text.notice(node, snapshot)
      if notice != self._noticed.get(node.name, ''):
        self._noticed[node.name] = notice
        # One that was killed is said to be started again, below.
        if notice or (node.alive and not node.notice):
          lines.append(f'{node.name} {notice or "goes on"}')
      seen, before = (node.state, node.restarts), self._seen.get(node.name)
      if seen == before:
        continue
      self._seen[node.name] = seen
      again = node.restarts and node.state in ('starting', 'running')
      word = node.state + (f' again ({node.restarts})' if again else '')
      news.setdefault(word, []).append(node.name)
      # A quick restart may be over before it is seen.
      missed = before is not None and (
        node.restarts > before[1] and before[0] != 'restarting'
      )
      died = missed or node.state in ('restarting', 'failed')
      if died and node.last_error:
        lines.append(f'{node.name}: {view_text.last_line(node.last_error)}')
        if node.log_path:
          lines.append(f'{node.name}: its log is {node.log_path}')
    lines += [f'{word}: {", ".join(names)}' for word, names in news.items()]
    if due and failing:
      lines.append(failing)
    if due and snapshot:
      lines.append(view_text.line(snapshot, state.nodes))
    for line in lines:
      self._print(f'[{view_text.clock(self._now_s)}] {line}')

  def _print(self, line: str | text.Text) -> None:
    self.console.print(line, markup=False, highlight=False, soft_wrap=True)
    self.console.file.flush()


def picture(
  title: str,
  state: Any,
  snapshot: Mapping[str, Any],
  footer: str = '',
  width: int = 100,
  max_nodes: int = 14,
  unsaved: str = '',
) -> rich_console.RenderableType:
  """The whole picture.

  Args:
    title: agent and environment.
    state: the engine's RunState.
    snapshot: the counter's, or {} before its first answer.
    footer: where the run is kept.
    width: columns of the terminal.
    max_nodes: with more nodes, each group becomes one line.
    unsaved: which checkpoints fail; '' if none does.
  """
  elapsed_s = snapshot.get('elapsed_s', state.elapsed_s)
  parts: list[rich_console.RenderableType] = []
  if snapshot:
    grid = table.Table.grid(padding=(0, 5, 0, 0))
    grid.add_row(
      _pairs(view_text.figures(snapshot)),
      _pairs(view_text.swarm_figures(snapshot)),
    )
    progress = ' · '.join(view_text.progress(snapshot))
    parts += [text.Text(progress, 'bold'), '', grid]
  else:
    parts.append(text.Text('waiting for the first report …', _DIM))
  parts += ['', _nodes(state.nodes, snapshot, max_nodes)]
  said = _errors(state.nodes, snapshot)
  said += [unsaved, view_text.last_wait(snapshot, state.nodes)]
  if state.stopping:
    said.append(f'stopping: {state.reason}')
  for words in filter(None, said):
    line = text.Text(words, 'yellow')
    line.truncate(width - 6, overflow='ellipsis')
    parts += ['', line]
  return panel.Panel(
    rich_console.Group(*parts),
    title=text.Text.assemble(
      (title, 'bold'), (' · ', _DIM), view_text.clock(elapsed_s)
    ),
    title_align='left',
    subtitle=text.Text(footer, _DIM),
    subtitle_align='left',
    border_style='dark_cyan',
    box=box.ROUNDED,
    padding=(1, 2, 0, 2),
    width=width,
  )


def _pairs(rows: Iterable[tuple[str, str]]) -> table.Table:
  grid = table.Table.grid(padding=(0, 2, 0, 0))
  for label, value in rows:
    grid.add_row(text.Text(label, _DIM), text.Text(value, 'bold', no_wrap=True))
  return grid


def _nodes(
  nodes: Sequence[Any], snapshot: Mapping[str, Any], max_nodes: int
) -> table.Table:
  """A line per node, or per group if that would not fit."""
  view = table.Table(
    box=None, padding=(0, 2, 0, 0), header_style=_DIM, pad_edge=False
  )
  view.add_column('node', no_wrap=True)
  view.add_column('state', no_wrap=True, min_width=10)
  for name in ('pid', 'steps/s', 'updates/s', 'return'):
    view.add_column(name, justify='right', no_wrap=True)
  groups: dict[str, list[Any]] = {}
  for node in nodes:
    label = node.name
    if len(nodes) > max_nodes:
      label = node.name.partition('/')[0]
    groups.setdefault(label, []).append(node)
  reported = snapshot.get('nodes', {})
  for label, members in groups.items():
    own = [reported[node.name] for node in members if node.name in reported]
    mean = view_text.mean_metric(own, 'episode_return')
    several = f' x {len(members)}' if len(members) > 1 else ''
    view.add_row(
      text.Text(label + several),
      _state(members),
      text.Text('' if several else _place(members[0]), _DIM),
      _rate(own, 'actor_steps'),
      _rate(own, 'learner_steps'),
      '' if mean is None else view_text.number(mean),
    )
  return view


def _place(node: Any) -> str:
  return '' if node.pid is None else f'{node.host} {node.pid}'.strip()


def _state(members: Sequence[Any]) -> text.Text:
  """The worst state of nodes that are shown in one line."""
  states, order = [node.state for node in members], [*_STYLES]
  worst = max(states, key=order.index)
  same, restarts = states.count(worst), sum(node.restarts for node in members)
  return text.Text.assemble(
    (worst if same == len(states) else f'{same} {worst}', _STYLES[worst]),
    (f', {restarts} restarts' if restarts else '', 'yellow'),
  )


def _rate(own: Sequence[Mapping[str, Any]], name: str) -> str:
  rates = [n['rates'][name] for n in own if name in n.get('rates', {})]
  return view_text.short(sum(rates)) if rates else ''


def _errors(nodes: Sequence[Any], snapshot: Mapping[str, Any]) -> list[str]:
  """What went wrong, the nodes that are down first."""
  broken = [node for node in nodes if node.last_error]
  broken.sort(key=lambda node: node.state in ('running', 'finished', 'stopped'))
  odd = [(n.name, view_text.notice(n, snapshot)) for n in nodes]
  lines = [f'{name} {notice}' for name, notice in odd if notice][:_MAX_ERRORS]
  lines += [
    f'{node.name}: {view_text.last_line(node.last_error)}'
    for node in broken[:_MAX_ERRORS]
  ]
  if len(broken) > _MAX_ERRORS:
    lines.append(f'and {len(broken) - _MAX_ERRORS} more nodes with errors')
  return lines
