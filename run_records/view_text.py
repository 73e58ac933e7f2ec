"""A run in words: its numbers, a line on it, and how it ended.

Everything in a snapshot of the counter may be missing or non-finite: such a
value is shown as a dash.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
import contextlib
import math
import os
import pathlib
import shlex
from typing import Any

from murmuration.run_records import checkpoints
from murmuration.run_records import commands
from murmuration.run_records import run_directory

_NONE = '-'
_UNITS = {'actor_steps': 'env steps', 'learner_steps': 'updates'}
_TOTALS = {
  'actor_steps': 'env steps',
  'dropped_episodes': 'broken episodes, dropped',
  'learner_steps': 'updates',
  'skipped_updates': 'updates skipped: gradients not finite',
}
_TRACEBACK_LINES = 12
_KEPT = (
  'learning_curve.png',
  'summary.json',
  'config.json',
  'metrics',
  'logs',
  'checkpoints',
)


# Numbers.


def is_number(value: Any) -> bool:
  return isinstance(value, (int, float)) and math.isfinite(value)


def number(value: Any, digits: int = 1) -> str:
  """A measured value in full."""
  return f'{value:,.{digits}f}' if is_number(value) else _NONE


def short(value: Any) -> str:
  """12345 to '12.3k'."""
  if not is_number(value):
    return _NONE
  for limit, unit in ((1e9, 'G'), (1e6, 'M'), (1e3, 'k')):
    if abs(value) >= 0.9995 * limit:  # 999,960 is not 1000k
      scaled = value / limit
      digits = 0 if abs(scaled) >= 100 else 1
      return f'{scaled:.{digits}f}'.removesuffix('.0') + unit
  return f'{value:.0f}'


def clock(seconds: float) -> str:
  """75 to '1:15', 3675 to '1:01:15'."""
  minutes, second = divmod(max(0, int(seconds)), 60)
  hour, minute = divmod(minutes, 60)
  return f'{hour}:{minute:02}:{second:02}' if hour else f'{minute}:{second:02}'


def mean_metric(nodes: Iterable[Mapping[str, Any]], name: str) -> float | None:
  """Mean of a metric over the snapshots of nodes that report it."""
  found = [node.get('metrics', {}).get(name) for node in nodes]
  values = [value for value in found if is_number(value)]
  return sum(values) / len(values) if values else None


# A run that goes on.


def progress(snapshot: Mapping[str, Any]) -> list[str]:
  """For instance ['412,300 of 930,000 env steps', '44%', '0:48 left']."""
  totals, words = snapshot.get('totals', {}), []
  limits = snapshot.get('budget', {})
  if limits:  # the one that is nearest to its end
    name = max(limits, key=lambda name: totals.get(name, 0) / limits[name])
    done, limit = totals.get(name, 0), limits[name]
    words += [
      f'{done:,} of {limit:,} {_UNITS.get(name, name)}',
      f'{done / limit:.0%}',
    ]
  else:
    words.append(f'{totals.get("actor_steps", 0):,} env steps')
  if snapshot.get('finished'):
    words.append('done')
  elif snapshot.get('left_s') is not None:
    words.append(f'{clock(snapshot["left_s"])} left')
  return words


def figures(snapshot: Mapping[str, Any]) -> list[tuple[str, str]]:
  """Labels and values: speed and returns."""
  totals, rates = snapshot.get('totals', {}), snapshot.get('rates', {})
  nodes = snapshot.get('nodes', {}).values()
  return [
    ('env steps/s', short(rates.get('actor_steps'))),
    ('updates/s', short(rates.get('learner_steps'))),
    ('episodes', f'{totals.get("episodes", 0):,}'),
    ('training return', number(mean_metric(nodes, 'episode_return'))),
    ('greedy return', _greedy(snapshot.get('latest', {}))),
  ]


def swarm_figures(snapshot: Mapping[str, Any]) -> list[tuple[str, str]]:
  """Labels and values of a swarm's state; [] if there is no swarm."""
  return _star(_swarm(snapshot))


def line(snapshot: Mapping[str, Any], nodes: Sequence[Any]) -> str:
  """One plain line on the whole run, for logs."""
  shown = figures(snapshot) + swarm_figures(snapshot)
  words = [f'{label} {value}' for label, value in shown if value != _NONE]
  waits = [last_wait(snapshot, nodes)]
  return ', '.join([*progress(snapshot), *words, *filter(None, waits)])


def last_wait(snapshot: Mapping[str, Any], nodes: Sequence[Any]) -> str:
  """Which nodes a run that is over waits for, or ''."""
  # A snapshot is older than the nodes' states.
  over = [n.name for n in nodes if n.state in ('finished', 'stopped', 'failed')]
  held = [name for name in snapshot.get('held') or () if name not in over]
  if not (held and snapshot.get('finished')):
    return ''
  why = snapshot.get('reason') or 'the run is over'
  return f'{why}; waiting for {", ".join(held)}'


def notice(node: Any, snapshot: Mapping[str, Any]) -> str:
  """What is odd about a node; once the run is over, waiting is not."""
  waits = node.notice.startswith('for ')
  return '' if waits and snapshot.get('finished') else node.notice


def last_line(error: str | None) -> str:
  """What went wrong: the last line of a traceback that says something."""
  lines = [part.strip() for part in (error or '').splitlines()]
  return next((part for part in reversed(lines) if part), '')


def died(node: Any) -> str:
  """How often a node was started again, and why the last time."""
  times = f'{node.restarts} times' if node.restarts > 1 else 'once'
  why = f'; it had died last of: {node.died_of}' if node.died_of else ''
  return f'was started again {times}{why}'


def _greedy(latest: Mapping[str, Any]) -> str:
  """Mean and deviation of the last evaluation, '432.1 ± 33.0'."""
  evaluation = latest.get('evaluation', {})
  mean, std = evaluation.get('return_mean'), evaluation.get('return_std')
  return number(mean) + (f' ± {number(std)}' if is_number(std) else '')


def _swarm(snapshot: Mapping[str, Any]) -> Mapping[str, Any]:
  """Metrics of the node that keeps theta_star; {} if there is no swarm."""
  nodes = snapshot.get('nodes', {}).values()
  found = [node.get('metrics', {}) for node in nodes]
  return next((metrics for metrics in found if 'R_star' in metrics), {})


def _star(metrics: Mapping[str, Any]) -> list[tuple[str, str]]:
  if 'R_star' not in metrics:
    return []
  learned = metrics.get('star_learner_steps')
  unit = ' learner steps' if is_number(learned) else ''
  return [
    ('R*', number(metrics['R_star'])),
    ('c', number(metrics.get('c'), 4)),
    ('x', number(metrics.get('x'), 0)),
    ('version', number(metrics.get('star_version'), 0)),
    ('star learned for', number(learned, 0) + unit),
    ('accepted', number(metrics.get('accepted'), 0)),
    ('rejected', number(metrics.get('rejected'), 0)),
  ]


# A run that has ended.


def final(
  outcome: Any, run_dir: pathlib.Path, snapshot: Mapping[str, Any]
) -> tuple[str, str, list[str]]:
  """How a run ended, its result, its files and the next commands.

  Args:
    outcome: of the engine.
    run_dir: of the run.
    snapshot: the counter's last one, or {}.

  Returns:
    'Finished', 'Interrupted' or 'Failed'; the rest of that line; more lines.
  """
  summary = _summary_of(run_dir)
  heads = dict.fromkeys(commands.BROKEN_OFF, 'Interrupted')
  heads[commands.FAILED] = 'Failed'
  head = heads.get(outcome.exit_code, 'Finished')
  reason = outcome.reason
  if head == 'Finished':  # which the counter knows, the engine does not
    reason = snapshot.get('reason') or summary.get('reason') or reason
  if reason.lower().startswith(head.lower()):
    reason = reason[len(head) :]
  else:
    reason = f': {reason}'
  lines = _failures(outcome)
  rows = _result(summary, snapshot)
  if rows:
    lines += ['', *_columns(rows)]
  kept = [name for name in _KEPT if (run_dir / name).exists()]
  if kept:
    lines += ['', f'In {run_dir}', f'  {", ".join(kept)}']
  following = _next(outcome, run_dir)
  if following:
    lines += ['', 'Next']
  for what, command in following:
    lines += [f'  # {what}', f'  {command}']
  return head, reason, lines


def _summary_of(run_dir: pathlib.Path) -> Mapping[str, Any]:
  """The summary; {} if it is not there or cannot be read."""
  with contextlib.suppress(OSError, ValueError):
    return run_directory.RunDirectory(run_dir).summary() or {}
  return {}


def _failures(outcome: Any) -> list[str]:
  lines = [
    f'{node.name} {died(node)}'
    for node in outcome.nodes
    if node.restarts and node.state != 'failed'
  ]
  for node in outcome.nodes:
    if node.state == 'failed' and node.last_error:
      trace = node.last_error.strip().splitlines()[-_TRACEBACK_LINES:]
      lines += ['', f'{node.name} failed:', *(f'  {line}' for line in trace)]
      if node.log_path:
        lines.append(f'  Its whole log: {node.log_path}')
  return lines


def _result(
  summary: Mapping[str, Any], snapshot: Mapping[str, Any]
) -> list[tuple[str, str]]:
  end = {**snapshot, **summary}
  totals = end.get('totals', {})
  rows = [('last evaluation', _greedy(end.get('latest', {})))]
  rows += [
    (label, f'{totals[name]:,}')
    for name, label in _TOTALS.items()
    if totals.get(name)
  ]
  if 'elapsed_s' in end:
    rows.append(('time', clock(end['elapsed_s'])))
  rows += _star({**_swarm(snapshot), **summary.get('result', {})})
  return [(label, value) for label, value in rows if value != _NONE]


def _next(outcome: Any, run_dir: pathlib.Path) -> list[tuple[str, str]]:
  """What each of the next commands is for, and the command."""
  found = []
  run, summary = run_directory.RunDirectory(run_dir), _summary_of(run_dir)
  config: Mapping[str, Any] = {}
  with contextlib.suppress(OSError, ValueError):
    config = run.config()
  quoted = _quoted(run_dir)
  go_on = f'{commands.called("run")} --resume={quoted}'
  watch = f'{commands.called("evaluate")} {quoted}'
  # No command has objects that a script defines.
  whole = bool(config) and not run_directory.given(config)
  ended = outcome.exit_code == commands.FINISHED or summary.get('finished')
  if whole and not ended:
    found.append(('go on', go_on))
  played = any((run.checkpoints / n).is_file() for n in checkpoints.PLAYED)
  if whole and played:
    found.append(('watch the policy', watch))
  if run_dir.parent.is_dir():
    # Without what TensorFlow and its packages warn of.
    tensorboard = (
      f'TF_CPP_MIN_LOG_LEVEL=1 {_quoted(commands.python())} -W ignore '
      f'-m tensorboard.main --logdir {_quoted(run_dir.parent)}'
    )
    found.append(('all curves in the browser', tensorboard))
  if outcome.exit_code == commands.FAILED and any(run.logs.glob('*.log')):
    tail = f'tail -n 20 {_quoted(run.logs)}/*.log'
    found.append(('what the nodes said last', tail))
  return found


def _quoted(path: str | os.PathLike[str]) -> str:
  return shlex.quote(os.fspath(path))


def _columns(rows: Sequence[tuple[str, str]]) -> list[str]:
  width = max(len(label) for label, _ in rows)
  return [f'  {label:{width}}   {value}' for label, value in rows]
