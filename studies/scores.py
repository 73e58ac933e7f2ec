"""All studies on one page: scores, comparisons and goals (docs/scores.md)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from murmuration.studies import tables

# Study to its results, as summaries.collect has them.
Results = Mapping[str, Mapping[str, Any]]


def scores(results: Results) -> str:
  """What each system reached, as Markdown.

  By task, the best first: by the mean of the last three evaluations, then by
  the area under the curve. A system of several studies has a row of each.
  """
  found = [
    (entry, label, study)
    for study in results.values()
    for label, entry in study['variants'].items()
  ]
  found.sort(
    key=lambda row: (
      _task(row[2]),
      -row[0]['last_three_mean'],
      -row[0]['auc_mean'],
    )
  )
  return _table(
    ['task', 'system', 'solved', 'bar', 'last three', 'AUC', 'steps', 'study'],
    (
      [_task(study), label, f'{entry["solved"]} of {len(entry["auc"])}']
      + [f'{study["threshold"]:g}', f'{entry["last_three_mean"]:,.1f}']
      + [f'{entry["auc_mean"]:,.1f}']
      + [f'{entry.get("budget", study["budget_per_agent"]):,}', _link(study)]
      for entry, label, study in found
    ),
  )


def comparisons(results: Results) -> str:
  """Differences of area, of baselines and contrasts, by task, as Markdown."""
  return _table(
    ['task', 'system', 'beside', 'seeds', 'AUC', 'verdict', 'study'],
    (
      [_task(study), label, beside, str(len(study['variants'][label]['auc']))]
      + [*tables.difference(entry), _link(study)]
      for study in sorted(results.values(), key=_task)
      for label, beside, entry in _differences(study)
    ),
  )


def goals(results: Results) -> str:
  """What was wanted of the last three evaluations, by task, as Markdown."""
  return _table(
    ['task', 'system', 'wanted', 'in seeds', 'found in', '', 'study'],
    (
      [_task(study), goal['variant'], f'>= {goal["last_three"]:g}']
      + [f'{goal["reached"]} of {goal["seeds"]}']
      + [f'{goal["found"]} of {goal["of"]}']
      + [tables.verdict(goal), _link(study)]
      for study in sorted(results.values(), key=_task)
      for goal in study['goals']
    ),
  )


def _differences(
  study: Mapping[str, Any],
) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
  for label, entry in study['variants'].items():
    if 'auc_difference' in entry:
      yield label, study['baseline'], entry
  for contrast in study['contrasts']:
    yield contrast['variant'], contrast['against'], contrast


def _table(names: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
  return '\n'.join([*tables.header(names), *map(tables.row, rows)])


def _task(study: Mapping[str, Any]) -> str:
  """A task of one's own is named without its module."""
  return study['environment'].rpartition(':')[2]


def _link(study: Mapping[str, Any]) -> str:
  return f'[`{study["study"]}`](results/{study["study"]}/table.md)'
