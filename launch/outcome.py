"""Decides whether a run that ended has succeeded.

It has if its engine ended well, its files were saved and it learned.
"""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import dataclasses
from typing import Any

from murmuration.launch import engines
from murmuration.run_records import commands
from murmuration.run_records import counter_file
from murmuration.run_records import jsonable
from murmuration.run_records import metrics
from murmuration.run_records import run_directory
from murmuration.run_records import unsaved
from murmuration.run_records import view_text


def checked(
  outcome: engines.Outcome,
  directory: run_directory.RunDirectory,
  warn: Callable[[str], Any],
) -> engines.Outcome:
  """The outcome, or a failure if the run learned nothing or was not saved.

  A failure is written to summary.json.
  """
  lost = unsaved.at_end(directory.path)
  reason = ''
  if outcome.exit_code == commands.FINISHED:
    reason = lost or _not_kept(directory) or _not_learned(outcome, directory)
  if lost and reason != lost:
    warn(f'{lost}.')
  if played := unsaved.at_end(directory.path, needed=False):
    warn(f'{played}.')
  if reason:
    outcome = dataclasses.replace(
      outcome, exit_code=commands.FAILED, reason=reason
    )
  if outcome.exit_code == commands.FAILED:
    try:
      _keep_reason(directory, outcome.reason)
    except (OSError, ValueError) as e:
      warn(f'summary.json does not say why the run failed: {e}')
  elif outcome.exit_code == commands.FINISHED:
    if late := (directory.summary() or {}).get('unfinished'):
      warn(
        f'{", ".join(late)} did not end in time, and may lack the last '
        'evaluation or save; see logs/.'
      )
  return outcome


def _not_kept(directory: run_directory.RunDirectory) -> str:
  if not (directory.path / 'config.json').exists():
    return f'{directory.path} was moved or removed during the run'
  if directory.summary() is None:
    return (
      f'{directory.path} took no summary.json: is its disk full (`df`, '
      '`df -i`) or read-only, or a quota used up?'
    )
  return ''


def _not_learned(
  outcome: engines.Outcome, directory: run_directory.RunDirectory
) -> str:
  summary: Any = directory.summary()
  totals = summary['totals']
  if summary['outcome'] == 'goal':
    return ''  # Reached without an update, it is reached all the same.
  if directory.all_broke():
    return (
      f'no episode ended whole: {totals["dropped_episodes"]:,} broke and were '
      'dropped, and the logs say how. With --config.run.on_fault=raise a run '
      'ends at the first'
    )
  if totals.get('learner_steps'):
    return ''
  died = ''.join(
    f'{node.name} {view_text.died(node)}. '
    for node in outcome.nodes
    if node.restarts
  )
  if skipped := totals.get('skipped_updates'):
    return (
      f'nothing was learned: all {skipped:,} updates were skipped, because '
      f'their gradients were not finite. {died}Scale rewards to about 1 '
      '(agent.reward_scale), or lower the learning rates'
    )
  return (
    f'no update was made in {totals.get("actor_steps", 0):,} environment steps '
    f'({summary["reason"]}). {died}Raise run.steps_per_agent or '
    'run.wall_clock_s, or lower agent.min_replay_size, unroll_length or '
    'run.updates_per_call'
  )


def _keep_reason(directory: run_directory.RunDirectory, reason: str) -> None:
  """Writes to summary.json that the run failed, unless it met its target.

  A counter that failed has left no summary; then the totals are those that it
  saved last.
  """
  counted: dict[str, Any] = {}
  with contextlib.suppress(OSError, ValueError):
    counted = counter_file.counted(directory.metrics_directory)
  summary = {
    'finished': False,
    'totals': counted.get('totals', {}),
    'result': counted.get('result', {}),
    'latest': metrics.newest_rows(directory.metrics_directory),
    **(directory.summary() or {}),
  }
  whole = (directory.path / 'config.json').exists()
  if whole and summary.get('outcome') != 'goal':
    summary.update(outcome='failed', reason=reason)
    jsonable.write(directory.path / 'summary.json', summary)
