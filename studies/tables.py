"""Renders the results of a study as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    *header(
      ['variant', 'seeds', 'AUC', 'last three', 'solved']
      + [f'AUC - {base}', 'verdict', 'wall s', 'env steps/s']
    ),
  ]
  for label, entry in results['variants'].items():
    count = len(entry['auc'])
    lines.append(
      row(
        [label, str(count), f'{entry["auc_mean"]:.1f}']
        + [f'{entry["last_three_mean"]:.1f}', f'{entry["solved"]} of {count}']
        + [*difference(entry), _median(entry['seconds'], 1)]
        + [_median(entry['steps_per_s'], 0)]
      )
    )
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


def header(names: Sequence[str]) -> list[str]:
  """The first two lines of a Markdown table."""
  return [row(names), row(['---'] * len(names))]


def row(cells: Sequence[str]) -> str:
  """A line of a Markdown table."""
  return f'| {" | ".join(cells)} |'


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
    whole = results['budget_per_agent']
    # Results of older versions have no budget for each variant.
    if entry.get('budget', whole) < whole:
      notes.append(
        f'{label}: {entry["budget"]:,} steps, as more would take too long; '
        'differences from it are over these.'
      )
    if 'best_of' in entry:
      notes.append(
        f'{label}: each seed is {entry["best_of"]} independent agents. At each '
        'evaluation the best of them on two fifths of the episodes is scored '
        'on the others.'
      )
    if 'shared_by' in entry:
      notes.append(
        f'{label}: {entry["shared_by"]} agents share the steps of one; curves '
        'are by the steps of all.'
      )
    if 'counted' in entry:
      notes.append(
        f'{label}: curves count {entry["counted"]:.0%} of the steps; the '
        'others teach nothing.'
      )
    if entry['crashed']:
      notes.append(
        f'{label}: {entry["crashed"]} of {len(entry["auc"])} crashed and '
        'count as random for the rest of their budget.'
      )
    if 'given_up' in entry:
      notes.append(
        f'{label}: {entry["given_up"]} evaluations were given up, as episode '
        'after episode broke. They are in no number above, and the last three '
        'are those that were not.'
      )
    if 'sparse' in entry:
      notes.append(
        f'{label}: curves of {entry["sparse"]} of {len(entry["auc"])} have '
        'fewer than 0.8 of the evaluations that were asked for, with straight '
        'lines between them.'
      )
    if entry['processes'] < len(entry['auc']):
      notes.append(
        f'{label}: its {len(entry["auc"])} seeds share one process, which '
        'the seconds and steps/s are of.'
      )
    if 'supervisor_steps' in entry:
      notes.append(
        f"{label}: steps are the explorers'. In each process supervisors made "
        f'{_median(entry["supervisor_steps"], 0)} more (median), which are not '
        'counted above.'
      )
  return [line for note in notes for line in ('', note)]


def _by_seconds(results: Mapping[str, Any]) -> list[str]:
  found, base = results['by_seconds'], results['baseline']
  lines = [
    '',
    f'At equal wall-clock, the first {found["seconds"]:.1f} s, start and '
    'evaluations included: when the quickest system has used its budget.',
    '',
    *header(
      ['variant', 'AUC over time', 'last three by then']
      + ['env steps by then', f'AUC - {base}', 'verdict']
    ),
  ]
  for label, entry in found['variants'].items():
    lines.append(
      row(
        [label, f'{entry["auc_mean"]:.1f}', f'{entry["last_three_mean"]:.1f}']
        + [_median(entry['steps'], 0), *difference(entry)]
      )
    )
  return lines


def _each_seed(results: Mapping[str, Any]) -> list[str]:
  lines = []
  for title, name in (
    ('AUC', 'auc'),
    ('Mean of the last three evaluations', 'last_three'),
  ):
    lines += ['', f'{title} of each seed:', '']
    for label, entry in results['variants'].items():
      values = ' '.join(f'{value:.1f}' for value in entry[name])
      lines.append(f'- {label}: {values}')
  return lines


def _median(values: Sequence[float], digits: int) -> str:
  return f'{np.median(values):,.{digits}f}' if values else '-'


def _times(count: int) -> str:
  return 'one run at a time' if count == 1 else f'{count} runs at a time'
