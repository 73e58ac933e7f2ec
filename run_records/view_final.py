"""The final report of a run: result, files and next commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import contextlib
import os
import pathlib
import shlex
from typing import Any

from rich import console as rich_console
from rich import table
from rich import text

from murmuration.run_records import checkpoints
from murmuration.run_records import commands as commands_lib
from murmuration.run_records import run_directory
from murmuration.run_records import view_text

_TRACEBACK_LINES = 12
_KEPT = (
  ('learning_curve.png', 'the learning curve'),
  ('summary.json', 'reason, totals and result'),
  ('config.json', 'the resolved config'),
  ('metrics', 'JSON lines and TensorBoard events'),
  ('logs', 'one log per node'),
  ('checkpoints', 'what --resume goes on from'),
)


def show(
  console: rich_console.Console,
  outcome: Any,
  run_dir: pathlib.Path,
  snapshot: Mapping[str, Any],
) -> None:
  """Prints how a run ended.

  `outcome` is the engine's Outcome. `snapshot` is the counter's last one, and
  may be empty.
  """
  summary = summary_of(run_dir)
  interrupted = outcome.exit_code in commands_lib.BROKEN_OFF
  failed = outcome.exit_code == commands_lib.FAILED
  head, style = 'Finished', 'green'
  if interrupted:
    head, style = 'Interrupted', 'yellow'
  elif failed:
    head, style = 'Failed', 'bold red'
  # The counter knows why a run finished, the engine why it ended early.
  reason = outcome.reason
  if not interrupted and not failed:
    reason = snapshot.get('reason') or summary.get('reason') or reason
  if reason.lower().startswith(head.lower()):
    reason = reason[len(head) :]
  else:
    head += ': '
  parts: list[rich_console.RenderableType] = [
    text.Text.assemble((head, style), reason)
  ]
  parts += _failures(outcome)
  rows = _result(summary, snapshot)
  if rows:
    parts += ['', _grid(rows)]
  kept = _places(run_dir)
  if kept:
    intro = 'Kept in' if interrupted or failed else 'In'
    parts += ['', text.Text(f'{intro} {run_dir}'), _grid(kept)]
  commands = _commands(outcome, run_dir)
  if commands:
    parts += ['', text.Text('Next')]
  # Commands are not wrapped, so that they can be copied.
  parts += [text.Text(f'  # {what}\n  {line}') for what, line in commands]
  console.print(rich_console.Group(*parts), highlight=False, soft_wrap=True)


def _commands(outcome: Any, run_dir: pathlib.Path) -> list[tuple[str, str]]:
  commands = []
  run = run_directory.RunDirectory(run_dir)
  quoted = _quoted(run_dir)
  whole = (run_dir / 'config.json').exists()
  go_on = f'{commands_lib.called("run")} --resume={quoted}'
  evaluate = f'{commands_lib.called("evaluate")} {quoted}'
  more = where = ''
  config = _config(run)
  own = run_directory.given(config)
  if own:  # which no command has
    where = f', in Python where {" and ".join(own.values())} is defined'
    load = run_directory.loading(run_dir, config)
    go_on, evaluate = f'{load}.resume()', f"{load}.film('film.gif')"
  if whole and outcome.exit_code == commands_lib.FINISHED:
    more = '' if own else _larger(run)
  elif whole and not summary_of(run_dir).get('finished'):
    commands.append((f'go on{where}', go_on))
  played = _played(run_dir)
  if whole and played and not run.all_broke():
    best = '' if played == checkpoints.AGENTS else 'best '
    commands.append((f'watch the {best}policy{where}', evaluate))
  if more:
    commands.append(('go on with a larger limit', f'{go_on} {more}'))
  if run_dir.parent.is_dir():
    commands.append(
      (
        'all curves in the browser',
        # Without what TensorFlow and its packages warn of.
        f'TF_CPP_MIN_LOG_LEVEL=1 {_quoted(commands_lib.python())} -W ignore '
        '-m tensorboard.main '
        f'--logdir {_quoted(run_dir.parent)}',
      )
    )
  if outcome.exit_code == commands_lib.FAILED and any(run.logs.glob('*.log')):
    tail = f'tail -n 20 {_quoted(run.logs)}/*.log'
    commands.append(('what the nodes said last', tail))
  return commands


def _larger(run: run_directory.RunDirectory) -> str:
  """The flag without which a run that came to its end would end at once."""
  try:
    limits = _config(run)['run']
    outcome = summary_of(run.path).get('outcome')
    if outcome == 'goal':
      return '--config.run.target_return=None'
    if outcome == 'wall_clock':
      return f'--config.run.wall_clock_s={2 * limits["wall_clock_s"]:g}'
    return f'--config.run.steps_per_agent={2 * limits["steps_per_agent"]}'
  except (LookupError, TypeError):
    return ''


def _config(run: run_directory.RunDirectory) -> Mapping[str, Any]:
  with contextlib.suppress(OSError, ValueError):
    return run.config()
  return {}


def _played(run_dir: pathlib.Path) -> str:
  """The file whose parameters are played; '' if there is none."""
  kept = run_dir / 'checkpoints'
  found = (name for name in checkpoints.PLAYED if (kept / name).is_file())
  return next(found, '')


def _quoted(path: str | os.PathLike[str]) -> str:
  return shlex.quote(os.fspath(path))


def summary_of(run_dir: pathlib.Path) -> Mapping[str, Any]:
  """The summary; {} of a run without a directory, or with half of one."""
  with contextlib.suppress(OSError, ValueError):
    return run_directory.RunDirectory(run_dir).summary() or {}
  return {}


def _failures(outcome: Any) -> list[rich_console.RenderableType]:
  parts: list[rich_console.RenderableType] = [
    text.Text(f'{node.name} {view_text.died(node)}', 'yellow')
    for node in outcome.nodes
    if node.restarts and node.state != 'failed'
  ]
  for node in outcome.nodes:
    if node.state != 'failed' or not node.last_error:
      continue
    lines = node.last_error.strip().splitlines()
    parts += ['', text.Text(f'{node.name} failed:', 'bold red')]
    if len(lines) > _TRACEBACK_LINES:
      parts.append(text.Text('  …', 'bright_black'))
    parts += [text.Text(f'  {line}') for line in lines[-_TRACEBACK_LINES:]]
    if node.log_path:
      parts.append(text.Text(f'  Its whole log: {node.log_path}'))
  return parts


def _result(
  summary: Mapping[str, Any], snapshot: Mapping[str, Any]
) -> list[tuple[str, str]]:
  rows = []
  totals = summary.get('totals') or snapshot.get('totals') or {}
  latest = summary.get('latest') or snapshot.get('latest') or {}
  swarm = view_text.swarm(snapshot)
  result = summary.get('result') or {}
  record = result.get('R_star', swarm.get('R_star'))
  if view_text.is_number(record):
    notes = []
    if 'star_version' in swarm:
      notes.append(f'version {view_text.number(swarm["star_version"], 0)}')
    if 'accepted' in swarm:
      share = swarm.get('rejected_fraction')
      notes += [
        f'{swarm["accepted"]:.0f} candidates accepted',
        f'{swarm["rejected"]:.0f} rejected'
        + (f' ({share:.0%})' if view_text.is_number(share) else ''),
      ]
    rows.append(('R*', f'{record:,.1f}   {", ".join(notes)}'.rstrip()))
    learned = result.get('star_learner_steps', swarm.get('star_learner_steps'))
    if view_text.is_number(learned):
      lucky = '' if learned else ': a random network, nothing was learned'
      rows.append(
        ('theta_star after', f'{view_text.learner_steps(learned)}{lucky}')
      )
  evaluation = latest.get('evaluation', {})
  if view_text.is_number(evaluation.get('return_mean')):
    value = view_text.greedy(evaluation)
    episodes = len(evaluation.get('returns') or ())
    value += f'   mean of {episodes}' if episodes > 1 else ''
    rows.append(('last evaluation', value))
  skipped = totals.get('skipped_updates', 0)
  all_ = skipped + totals.get('learner_steps', 0)
  for name, label, after in (
    ('actor_steps', 'env steps', ''),
    ('dropped_episodes', 'broken', ' episodes, dropped'),
    ('learner_steps', 'updates', ''),
    (
      'skipped_updates',
      'skipped',
      f' of {all_:,} updates: their gradients were not finite',
    ),
  ):
    if totals.get(name):
      rows.append((label, f'{totals[name]:,}{after}'))
  elapsed_s = summary.get('elapsed_s', snapshot.get('elapsed_s'))
  if elapsed_s is not None:
    rows.append(('time', view_text.clock(elapsed_s)))
  return rows


def _places(run_dir: pathlib.Path) -> list[tuple[str, str]]:
  found = []
  for name, what in _KEPT:
    path = run_dir / name
    if path.is_file():
      found.append((name, what))
    elif path.is_dir() and any(path.iterdir()):
      played = _played(run_dir) if name == 'checkpoints' else ''
      if played:
        # Before the first evaluation nobody knows which are best.
        which = 'newest' if played == checkpoints.AGENTS else 'best'
        what = f'the {which} parameters, and {what}'
      found.append((f'{name}/', what))
  return found


def _grid(rows: Sequence[tuple[str, str]]) -> table.Table:
  grid = table.Table.grid(padding=(0, 3, 0, 0))
  for label, value in rows:
    grid.add_row(text.Text(f'  {label}'), text.Text(value, 'bold'))
  return grid
