"""What of a run could not be written, or never was: said on screen.

A node whose checkpoint fails goes on, and leaves a mark (durable.py) that goes
with the next whole one. The launcher reads the marks: while the run lasts, at
its end, and before it is resumed.
"""

from __future__ import annotations

from collections.abc import Callable
import os
import pathlib
import time
from typing import Any

import numpy as np

from run_records import checkpoints
from run_records import counter_file
from run_records import durable
from run_records import run_directory

_PARTS = ('checkpoints', 'metrics')
_MOST = 3  # files that a sentence names
# The array that begins with how far a checkpoint is, and what that counts.
_AGES = (
  ('updates', 'update'),  # of a learner
  ('counts', 'update'),  # of a shard
  ('numbers', 'generation'),  # of evolution strategies
  ('version', 'version'),  # of theta_star
  ('steps', 'step'),
)
# Nodes that count updates, and whose file has another name than they.
_FILES = {'master/0': 'evolution.npz'}


def now(run_dir: str | os.PathLike[str]) -> str:
  """What cannot be written at present, and since when; '' if all can."""
  found = _marked(run_dir)
  since_s = [s for s in map(_time_s, map(durable.unsaved, found)) if s]
  if not since_s:
    return ''
  names = _listed([path.name for path in found])
  return f'checkpoints fail since {_clock(min(since_s))}: {names}{_why(found)}'


def at_end(run_dir: str | os.PathLike[str]) -> str:
  """Why not all that was learned is kept, of a run that has ended; or ''."""
  found = _marked(run_dir)
  if not found:
    return ''
  then = (
    f'--resume={run_dir} then goes on with what is there, and needs a larger '
    'run.steps_per_agent where the budget is used'
  )
  if any(_time_s(path) == 0.0 for path in found):
    then = 'Then start a new run'
  return (
    f'the end of this run could not be written{_why(found)}: there is '
    f'{_listed([_newest(path) for path in found])}. Make room where {run_dir} '
    f'is. {then}'
  )


def check(run_dir: str | os.PathLike[str], say: Callable[[str], Any]) -> None:
  """Says of a run that is to go on what it has lost.

  Raises:
    durable.Broken: it came to its end, and a learner of it was never saved.
  """
  never = _never_saved(run_dir)
  if never:
    lost = _listed([f'{node} ({n:,} updates)' for node, n in never.items()])
    if _finished(run_dir):
      raise durable.Broken(
        f'{run_dir} cannot be gone on from: it came to its end without a '
        f'checkpoint of {lost}, as with a disk that is full. Start a new run.'
      )
    say(
      f'no checkpoint of {lost} was ever written, so all that was learned '
      'there is lost: it begins anew, and the counts go on. Start a new run '
      'for a whole budget.'
    )
  for path in _marked(run_dir):
    if path.name in checkpoints.PLAYED:
      continue  # no run goes on from it
    say(
      f'the last checkpoint {path.name} could not be written{_why([path])}: '
      f'the run goes on with {_newest(path)}.'
    )


def forget(run_dir: str | os.PathLike[str]) -> None:
  """Removes the marks of earlier starts; what fails again is marked again."""
  for path in _marked(run_dir):
    durable.unsaved(path).unlink(missing_ok=True)


def file_of(node: str) -> str:
  """The name of the checkpoint of a node that counts updates."""
  return _FILES.get(node, f'{node.replace("/", "-")}.npz')


def _marked(run_dir: str | os.PathLike[str]) -> list[pathlib.Path]:
  """The files whose last write failed."""
  run, ending = pathlib.Path(run_dir), durable.UNSAVED
  marks = [mark for part in _PARTS for mark in (run / part).glob(f'*{ending}')]
  return sorted(mark.with_suffix('') for mark in marks)


def _never_saved(run_dir: str | os.PathLike[str]) -> dict[str, int]:
  """Nodes that have learned and have no checkpoint, with their updates."""
  run = pathlib.Path(run_dir)
  nodes = counter_file.counted(run / 'metrics').get('node_totals', {})
  steps = {node: n.get('learner_steps', 0) for node, n in nodes.items()}
  kept = run / 'checkpoints'
  return {
    node: n
    for node, n in sorted(steps.items())
    # With none of both, a file that was written and is gone is refused before.
    if n and not (kept / file_of(node)).exists()
  }


def _finished(run_dir: str | os.PathLike[str]) -> bool:
  try:
    summary = run_directory.RunDirectory(run_dir).summary() or {}
    return bool(summary.get('finished'))
  except (OSError, ValueError, AttributeError):
    return False  # cut: nobody knows


def _newest(path: pathlib.Path) -> str:
  """What there is of a checkpoint: how far it is, and of when."""
  written_s = _time_s(path)
  if not written_s:
    return f'no {path.name}'
  of = ''
  try:
    # Not the whole file: replay may be in it.
    with np.load(path) as saved:
      name, word = next(age for age in _AGES if age[0] in saved)
      of = f' of {word} {int(saved[name].flat[0]):,}'
  except Exception:  # no arrays, or damaged ones: only for a sentence
    pass
  return f'{path.name}{of} ({_clock(written_s)})'


def _why(found: list[pathlib.Path]) -> str:
  for path in found:
    try:
      reason = durable.unsaved(path).read_text(encoding='utf-8')
    except (OSError, ValueError):
      continue
    if reason:
      return f' ({reason})'
  return ''


def _time_s(path: pathlib.Path) -> float:
  """When a file was written; 0 if it is not there."""
  try:
    return path.stat().st_mtime
  except OSError:
    return 0.0


def _clock(unix_time_s: float) -> str:
  return time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(unix_time_s))


def _listed(words: list[str]) -> str:
  more = len(words) - _MOST
  return ', '.join(words[:_MOST]) + (f' and {more} more' if more > 0 else '')
