"""The live view's words: from a counter's snapshot to text.

Everything in a snapshot may be missing, non-finite or young: such a value is
shown as a dash, never as an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import math
from typing import Any

_NONE = '-'
_UNITS = {'actor_steps': 'env steps', 'learner_steps': 'updates'}


def line(snapshot: Mapping[str, Any], nodes: Sequence[Any]) -> str:
  """One plain line on the whole run, for logs."""
  parts = [budget_text(snapshot) or 'no steps yet']
  rates = snapshot.get('rates', {})
  for key, unit in (('actor_steps', 'steps/s'), ('learner_steps', 'updates/s')):
    if rates.get(key):
      parts.append(f'{short(rates[key])} {unit}')
  training = mean_metric(snapshot, 'episode_return')
  if training is not None:
    parts.append(f'training return {number(training)}')
  evaluation = snapshot.get('latest', {}).get('evaluation')
  if evaluation:
    parts.append(f'greedy return {number(evaluation.get("return_mean"))}')
  parts += [f'{label} {value}' for label, value in swarm_numbers(snapshot)]
  left_s = snapshot.get('left_s')
  if left_s is not None and not snapshot.get('finished'):
    parts.append(f'{clock(left_s)} left')
  return ', '.join(filter(None, [*parts, last_wait(snapshot, nodes)]))


def last_wait(snapshot: Mapping[str, Any], nodes: Sequence[Any]) -> str:
  """Whom a run that is over waits for, or ''."""
  # A snapshot is older than the nodes' states, and its counter may be gone.
  over = [n.name for n in nodes if n.state in ('finished', 'stopped', 'failed')]
  held = [name for name in snapshot.get('held') or () if name not in over]
  if not (held and snapshot.get('finished')):
    return ''
  why = snapshot.get('reason') or 'the run is over'
  return f'{why}; waiting for {", ".join(held)}'


def notice(node: Any, snapshot: Mapping[str, Any] | None) -> str:
  """What is odd about a node; that it waits is not, when the run is over."""
  waits = node.notice.startswith('for ')
  return '' if waits and (snapshot or {}).get('finished') else node.notice


def clock(seconds: float) -> str:
  """75 to '1:15', 3675 to '1:01:15'."""
  minutes, second = divmod(max(0, int(seconds)), 60)
  hour, minute = divmod(minutes, 60)
  return f'{hour}:{minute:02}:{second:02}' if hour else f'{minute}:{second:02}'


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


def number(value: Any, digits: int = 1) -> str:
  """A measured value in full."""
  return f'{value:,.{digits}f}' if is_number(value) else _NONE


def greedy(evaluation: Mapping[str, Any]) -> str:
  """Mean and deviation of an evaluation, '432.1 ± 33.0'."""
  text, std = (
    number(evaluation.get('return_mean')),
    evaluation.get('return_std'),
  )
  return f'{text} ± {number(std)}' if is_number(std) else text


def is_number(value: Any) -> bool:
  return isinstance(value, (int, float)) and math.isfinite(value)


def last_line(error: str | None) -> str:
  """What went wrong: the last line of a traceback that says something."""
  lines = [part.strip() for part in (error or '').splitlines()]
  return next((part for part in reversed(lines) if part), '')


def budget(snapshot: Mapping[str, Any]) -> tuple[str, int, int] | None:
  """Name, done and limit of the budget that is nearest to its end."""
  totals = snapshot.get('totals', {})
  budgets = [
    (name, int(totals.get(name, 0)), int(limit))
    for name, limit in snapshot.get('budget', {}).items()
  ]
  return max(budgets, key=lambda b: b[1] / b[2]) if budgets else None


def budget_text(snapshot: Mapping[str, Any]) -> str:
  """For instance '412,300 of 930,000 env steps'."""
  nearest = budget(snapshot)
  if nearest is None:
    done = snapshot.get('totals', {}).get('actor_steps')
    return f'{done:,} env steps' if done else ''
  name, done, limit = nearest
  return f'{done:,} of {limit:,} {_UNITS.get(name, name.replace("_", " "))}'


def swarm(snapshot: Mapping[str, Any]) -> Mapping[str, Any]:
  """Metrics of the node that keeps theta*; empty if there is no swarm."""
  for node in snapshot.get('nodes', {}).values():
    if 'R_star' in node.get('metrics', {}):
      return node['metrics']
  return {}


def swarm_numbers(snapshot: Mapping[str, Any]) -> list[tuple[str, str]]:
  """Labels and values of the swarm's state; empty if there is no swarm."""
  metrics = swarm(snapshot)
  if not metrics:
    return []
  return [
    ('R*', number(metrics.get('R_star'))),
    ('c', number(metrics.get('c'), 4)),
    ('x', number(metrics.get('x'), 0)),
    ('version', number(metrics.get('star_version'), 0)),
    ('star learned for', learner_steps(metrics.get('star_learner_steps'))),
    ('accepted', number(metrics.get('accepted'), 0)),
    ('rejected', number(metrics.get('rejected'), 0)),
  ]


def died(node: Any) -> str:
  """How often a node was started again, and of what it died last."""
  times = f'{node.restarts} times' if node.restarts > 1 else 'once'
  why = f'; it had died last of: {node.died_of}' if node.died_of else ''
  return f'was started again {times}{why}'


def learner_steps(count: Any) -> str:
  """How many updates made some parameters."""
  return f'{number(count, 0)} learner steps' if is_number(count) else _NONE


def mean_metric(snapshot: Mapping[str, Any], name: str) -> float | None:
  """Mean of a metric over the nodes that report it."""
  values = [
    node['metrics'][name]
    for node in snapshot.get('nodes', {}).values()
    if is_number(node.get('metrics', {}).get(name))
  ]
  return sum(values) / len(values) if values else None
