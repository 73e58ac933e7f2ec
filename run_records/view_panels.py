"""The live view's picture: from the run's state and a snapshot to text.

The state comes from the engine (which nodes run), the snapshot from the counter
(what they do). Either may be missing: a run that starts, stops or has lost its
counter is still shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
from typing import Any

from rich import box
from rich import console as rich_console
from rich import panel
from rich import table
from rich import text

from murmuration.run_records import view_text

_DIM = 'grey58'
_STYLES = {
  'starting': 'cyan',
  'running': 'green',
  'restarting': 'yellow',
  'finished': 'green',
  'stopped': _DIM,
  'failed': 'bold red',
}
# From good to bad.
_ORDER = ('finished', 'stopped', 'running', 'starting', 'restarting', 'failed')
_MAX_ERRORS = 3
_WIDE = 96  # Columns from which on there is room for everything.


def render(
  title: str,
  state: Any,
  snapshot: Mapping[str, Any] | None,
  footer: str = '',
  width: int = 100,
  max_nodes: int = 14,
  unsaved: str = '',
) -> rich_console.RenderableType:
  """The whole view.

  Args:
    title: agent and environment.
    state: the engine's RunState.
    snapshot: the counter's, or None while it does not answer.
    footer: where the run is kept.
    width: columns of the terminal.
    max_nodes: with more nodes, each group becomes one line.
    unsaved: which checkpoints fail; '' if none does.
  """
  elapsed_s = (snapshot or {}).get('elapsed_s', state.elapsed_s)
  nodes = [
    dataclasses.replace(node, notice=view_text.notice(node, snapshot))
    for node in state.nodes
  ]
  inner = width - 6
  parts: list[rich_console.RenderableType] = []
  if not snapshot:
    parts.append(text.Text('waiting for the first report …', _DIM))
  else:
    parts += [_progress(snapshot), '', _figures(snapshot)]
  parts += ['', _nodes(nodes, snapshot or {}, max_nodes, width >= _WIDE)]
  parts += _errors(nodes, inner)
  for words in (unsaved, view_text.last_wait(snapshot or {}, nodes)):
    if words:
      line = text.Text(words, 'yellow')
      line.truncate(inner, overflow='ellipsis')
      parts += ['', line]
  if state.stopping:
    parts += ['', text.Text(f'stopping: {state.reason}', 'yellow')]
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


def _progress(snapshot: Mapping[str, Any]) -> text.Text:
  """How much of the budget is used, and the time left."""
  words = [view_text.budget_text(snapshot) or 'no steps yet']
  budget = view_text.budget(snapshot)
  if budget is not None:
    words.append(f'{budget[1] / budget[2]:.0%}')
  if snapshot.get('finished'):
    words.append('done')
  elif snapshot.get('left_s') is not None:
    words.append(f'{view_text.clock(snapshot["left_s"])} left')
  return text.Text(' · '.join(words), 'bold')


def _figures(snapshot: Mapping[str, Any]) -> rich_console.RenderableType:
  """Speed and returns on the left, the swarm on the right."""
  totals, rates = snapshot.get('totals', {}), snapshot.get('rates', {})
  evaluation = snapshot.get('latest', {}).get('evaluation', {})
  training = view_text.mean_metric(snapshot, 'episode_return')
  left = [
    ('env steps/s', view_text.short(rates.get('actor_steps'))),
    ('updates/s', view_text.short(rates.get('learner_steps'))),
    ('episodes', f'{totals.get("episodes", 0):,}'),
    ('training return', view_text.number(training)),
    ('greedy return', view_text.greedy(evaluation)),
  ]
  grid = table.Table.grid(padding=(0, 5, 0, 0))
  grid.add_row(_pairs(left), _pairs(view_text.swarm_numbers(snapshot)))
  return grid


def _pairs(rows: Iterable[tuple[str, str]]) -> table.Table:
  grid = table.Table.grid(padding=(0, 2, 0, 0))
  for label, value in rows:
    grid.add_row(text.Text(label, _DIM), text.Text(value, 'bold', no_wrap=True))
  return grid


def _nodes(
  nodes: Sequence[Any], snapshot: Mapping[str, Any], max_nodes: int, wide: bool
) -> table.Table:
  view = table.Table(
    box=None, padding=(0, 2, 0, 0), header_style=_DIM, pad_edge=False
  )
  view.add_column('node', no_wrap=True)
  view.add_column('state', no_wrap=True, min_width=10)
  if wide:
    view.add_column('pid', justify='right', no_wrap=True, min_width=7)
  for name in ('steps/s', 'updates/s', 'return'):
    view.add_column(
      name, justify='right', no_wrap=True, min_width=max(len(name), 7)
    )
  view.add_column('replay', no_wrap=True, min_width=9)
  groups: dict[str, list[Any]] = {}
  for node in nodes:
    # One line per node, or per group if that would not fit.
    single = len(nodes) <= max_nodes
    label = node.name if single else node.name.partition('/')[0]
    groups.setdefault(label, []).append(node)
  for label, members in groups.items():
    view.add_row(*_node_row(label, members, snapshot.get('nodes', {}), wide))
  return view


def _node_row(
  label: str, members: Sequence[Any], reported: Mapping[str, Any], wide: bool
) -> list[text.Text]:
  counters = [reported[node.name] for node in members if node.name in reported]
  own = {'nodes': dict(enumerate(counters))}
  style, word = _group_state(members)
  if len(members) > 1:
    label = f'{label} x {len(members)}'
  place = ''
  if len(members) == 1 and members[0].pid is not None:
    place = f'{members[0].host} {members[0].pid}'.strip()
  restarts = sum(node.restarts for node in members)
  cells = [
    text.Text(label),
    text.Text.assemble(
      (word, style), (f', {restarts} restarts' if restarts else '', 'yellow')
    ),
    text.Text(place, _DIM),
    text.Text(_sum_rate(counters, 'actor_steps')),
    text.Text(_sum_rate(counters, 'learner_steps')),
    text.Text(_or_blank(view_text.mean_metric(own, 'episode_return'))),
    text.Text(_fill(own)),
  ]
  return cells if wide else cells[:2] + cells[3:]


def _group_state(members: Sequence[Any]) -> tuple[str, str]:
  """Style and word for nodes shown in one line: the worst of them."""
  states = [node.state for node in members]
  worst = max(states, key=lambda s: _ORDER.index(s) if s in _ORDER else -1)
  style = _STYLES.get(worst, '')
  same = states.count(worst)
  word = worst if same == len(members) else f'{same} {worst}'
  odd = [node.notice.split()[0] for node in members if node.notice]
  if worst == 'running' and odd:
    # Of a notice 'for 12 s now: ...', which stands below, what it is about.
    return 'yellow', 'waiting' if odd[0] == 'for' else odd[0]
  return style, word


def _sum_rate(counters: Sequence[Mapping[str, Any]], name: str) -> str:
  rates = [c['rates'][name] for c in counters if name in c.get('rates', {})]
  return view_text.short(sum(rates)) if rates else ''


def _or_blank(value: float | None) -> str:
  return '' if value is None else view_text.number(value)


def _fill(own: Mapping[str, Any]) -> str:
  """How full a node's table is."""
  size = view_text.mean_metric(own, 'replay_size')
  limit = view_text.mean_metric(own, 'replay_max_size')
  if size is None or not limit:
    return ''
  return f'{view_text.short(size)}/{view_text.short(limit)}'


def _errors(
  nodes: Sequence[Any], width: int
) -> list[rich_console.RenderableType]:
  """What went wrong, the nodes that are down first."""
  lines: list[rich_console.RenderableType] = []
  for node in [node for node in nodes if node.notice][:_MAX_ERRORS]:
    line = text.Text(f'{node.name} {node.notice}', 'yellow')
    line.truncate(width, overflow='ellipsis')
    lines.append(line)
  broken = [node for node in nodes if node.last_error]
  broken.sort(key=lambda node: node.state in ('running', 'finished', 'stopped'))
  for node in broken[:_MAX_ERRORS]:
    style = 'red' if node.state == 'failed' else 'yellow'
    line = text.Text.assemble(
      (f'{node.name}: ', style), view_text.last_line(node.last_error)
    )
    line.truncate(width, overflow='ellipsis')
    lines.append(line)
  more = len(broken) - _MAX_ERRORS
  if more > 0:
    lines.append(
      text.Text(f'and {more} more node{"s"[: more != 1]} with errors', 'yellow')
    )
  return ['', *lines] if lines else []
