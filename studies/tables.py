"""Renders results as Markdown: a table of a study, and pages of all studies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from murmuration.environment_loops import building


def render(results: Mapping[str, Any]) -> str:
  """The tables of a study, then the numbers of every seed.

  `results` comes from summaries.collect.
  """
  base = results['baseline']
  lines = [
    f'{results["environment"]}, {results["budget_per_agent"]:,} steps for each '
    f'agent; differences from {base} with a 95% bootstrap interval over seeds.',
    f'Made by `{results["command"]}`, {_times(results["at_a_time"])}, on '
    f'{"; ".join(results["machine"])}; code {", ".join(results["code"])}.',
    '',
    table(
      ['variant', 'seeds', 'AUC', 'last three', 'solved']
      + [f'AUC - {base}', 'verdict', 'wall s', 'env steps/s'],
      (
        [label, str(len(entry['auc'])), f'{entry["auc_mean"]:.1f}']
        + [f'{entry["last_three_mean"]:.1f}', _solved(entry)]
        + [*difference(entry), _median(entry['seconds'], 1)]
        + [_median(entry['steps_per_s'], 0)]
        for label, entry in results['variants'].items()
      ),
    ),
  ]
  solved = bar(results['environment'], results['threshold'])
  lines += ['', f'*Solved*: mean of the last three evaluations >= {solved}.']
  lines += _notes(results)
  if 'by_seconds' in results:
    lines += _by_seconds(results)
  lines += _each_seed(results)
  lines += ['', 'Runs, each with `--seed` and `--run_dir`:', '']
  lines += [f'- {k}: `{v["command"]}`' for k, v in results['variants'].items()]
  return '\n'.join(lines) + '\n'


def bar(environment: str, threshold: float) -> str:
  """The return that counts as solved, and what gymnasium registers for it."""
  registered = building.registered(environment).reward_threshold
  if registered == threshold:
    return f'{threshold:g}, as gymnasium registers'
  other = 'none' if registered is None else f'{registered:g}'
  return f'{threshold:g}, a bar of ours; gymnasium registers {other}'


def table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
  """A table with a heading for each column."""
  lines = (names, ['---'] * len(names), *rows)
  return '\n'.join(f'| {" | ".join(cells)} |' for cells in lines)


def difference(entry: Mapping[str, Any]) -> tuple[str, str]:
  """The difference of area with its interval, and the verdict."""
  if 'auc_difference' not in entry:
    return '-', '-'
  d, low, high = entry['auc_difference']
  return f'{d:+.1f} [{low:+.1f}, {high:+.1f}]', entry['auc_verdict']


def verdict(goal: Mapping[str, Any]) -> str:
  """Whether a goal was met."""
  if goal['met'] is None:
    return f'not judged, as that needs {goal["seeds"]} seeds'
  return 'met' if goal['met'] else 'missed'


def _notes(results: Mapping[str, Any]) -> list[str]:
  """Notes on what has no column in the table."""
  notes = []
  for contrast in results['contrasts']:
    found, judged = difference(contrast)
    notes.append(
      f'{contrast["name"]} ({contrast["variant"]} minus '
      f'{contrast["against"]}): {found}, {judged}.'
    )
  for goal in results['goals']:
    notes.append(
      f'Wanted of {goal["variant"]}: last three evaluations >= '
      f'{goal["last_three"]:g} in {goal["reached"]} of {goal["seeds"]} seeds. '
      f'Found: {goal["found"]} of {goal["of"]}, {verdict(goal)}.'
    )
  for label, entry in results['variants'].items():
    notes += [f'{label}: {note}' for note in _of_variant(results, entry)]
  return [line for note in notes for line in ('', note)]


def _of_variant(
  results: Mapping[str, Any], entry: Mapping[str, Any]
) -> Iterator[str]:
  seeds, whole = len(entry['auc']), results['budget_per_agent']
  # Results of older versions have no budget for each variant.
  if entry.get('budget', whole) < whole:
    yield (
      f'{entry["budget"]:,} steps, as more would take too long; differences '
      'from it are over these.'
    )
  if 'best_of' in entry:
    yield (
      f'each seed is {entry["best_of"]} independent agents. At each evaluation '
      'the best of them on two fifths of the episodes is scored on the others.'
    )
  if 'shared_by' in entry:
    yield (
      f'{entry["shared_by"]} agents share the steps of one; curves are by the '
      'steps of all.'
    )
  if 'counted' in entry:
    yield (
      f'curves count {entry["counted"]:.0%} of the steps; the others teach '
      'nothing.'
    )
  if entry['crashed']:
    yield (
      f'{entry["crashed"]} of {seeds} crashed and count as random for the rest '
      'of their budget.'
    )
  if 'given_up' in entry:
    yield (
      f'{entry["given_up"]} evaluations were given up, as episode after '
      'episode broke. They are in no number above, and the last three are '
      'those that were not.'
    )
  if 'sparse' in entry:
    yield (
      f'curves of {entry["sparse"]} of {seeds} have fewer than 0.8 of the '
      'evaluations that were asked for, with straight lines between them.'
    )
  if entry['processes'] < seeds:
    yield (
      f'its {seeds} seeds share one process, which the seconds and steps/s are '
      'of.'
    )
  if 'supervisor_steps' in entry:
    yield (
      "steps are the explorers'. In each process supervisors made "
      f'{_median(entry["supervisor_steps"], 0)} more (median), which are not '
      'counted above.'
    )


def _by_seconds(results: Mapping[str, Any]) -> list[str]:
  found = results['by_seconds']
  return [
    '',
    f'At equal wall-clock, the first {found["seconds"]:.1f} s, start and '
    'evaluations included: when the quickest system has used its budget.',
    '',
    table(
      ['variant', 'AUC over time', 'last three by then', 'env steps by then']
      + [f'AUC - {results["baseline"]}', 'verdict'],
      (
        [label, f'{entry["auc_mean"]:.1f}', f'{entry["last_three_mean"]:.1f}']
        + [_median(entry['steps'], 0), *difference(entry)]
        for label, entry in found['variants'].items()
      ),
    ),
  ]


def _each_seed(results: Mapping[str, Any]) -> list[str]:
  lines = []
  titles = {'auc': 'AUC', 'last_three': 'Mean of the last three evaluations'}
  for name, title in titles.items():
    lines += ['', f'{title} of each seed:', '']
    for label, entry in results['variants'].items():
      values = ' '.join(f'{value:.1f}' for value in entry[name])
      lines.append(f'- {label}: {values}')
  return lines


def _solved(entry: Mapping[str, Any]) -> str:
  return f'{entry["solved"]} of {len(entry["auc"])}'


def _median(values: Sequence[float], digits: int) -> str:
  return f'{np.median(values):,.{digits}f}' if values else '-'


def _times(count: int) -> str:
  return 'one run at a time' if count == 1 else f'{count} runs at a time'


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
  return table(
    ['task', 'system', 'solved', 'bar', 'last three', 'AUC', 'steps', 'study'],
    (
      [_task(study), label, _solved(entry)]
      + [f'{study["threshold"]:g}', f'{entry["last_three_mean"]:,.1f}']
      + [f'{entry["auc_mean"]:,.1f}']
      + [f'{entry.get("budget", study["budget_per_agent"]):,}', _link(study)]
      for entry, label, study in found
    ),
  )


def comparisons(results: Results) -> str:
  """Differences of area, of baselines and contrasts, by task, as Markdown."""
  return table(
    ['task', 'system', 'beside', 'seeds', 'AUC', 'verdict', 'study'],
    (
      [_task(study), label, beside, str(len(study['variants'][label]['auc']))]
      + [*difference(entry), _link(study)]
      for study in sorted(results.values(), key=_task)
      for label, beside, entry in _differences(study)
    ),
  )


def goals(results: Results) -> str:
  """What was wanted of the last three evaluations, by task, as Markdown."""
  return table(
    ['task', 'system', 'wanted', 'in seeds', 'found in', '', 'study'],
    (
      [_task(study), goal['variant'], f'>= {goal["last_three"]:g}']
      + [f'{goal["reached"]} of {goal["seeds"]}']
      + [f'{goal["found"]} of {goal["of"]}']
      + [verdict(goal), _link(study)]
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


def _task(study: Mapping[str, Any]) -> str:
  """A task of one's own is named without its module."""
  return study['environment'].rpartition(':')[2]


def _link(study: Mapping[str, Any]) -> str:
  return f'[`{study["study"]}`](results/{study["study"]}/table.md)'
