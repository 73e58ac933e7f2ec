"""Files of a run whose last save failed, as on a full disk.

A node whose save fails goes on, and `durable.write` leaves a mark beside the
file until a save succeeds. The launcher reads the marks while the run lasts, at
its end, and before a resume.
"""

from __future__ import annotations

from collections.abc import Callable
import os
import pathlib
from typing import Any

from murmuration.run_records import checkpoints
from murmuration.run_records import counter_file
from murmuration.run_records import durable

# Of nodes whose checkpoint has another name than they.
_FILES = {'master/0': 'evolution.npz'}


def now(run_dir: str | os.PathLike[str]) -> str:
  """Which files cannot be written at present; '' if all can."""
  found = _failed(run_dir)
  return f'not saved: {_listed(found)}' if found else ''


def at_end(run_dir: str | os.PathLike[str], needed: bool = True) -> str:
  """Says of a run that has ended which last saves failed; '' if none did.

  `needed` chooses files without which a run cannot go on, or the others.
  """
  found = {
    name: why
    for name, why in _failed(run_dir).items()
    if checkpoints.needed(name) == needed
  }
  if not found:
    return ''
  return (
    f'the last save failed: {_listed(found)}. --resume={run_dir} goes on from '
    'what was saved before'
  )


def check(run_dir: str | os.PathLike[str], say: Callable[[str], Any]) -> None:
  """Says of a run that is resumed what it has lost."""
  for needed in (True, False):
    if said := at_end(run_dir, needed):
      say(f'{said}.')
  kept = pathlib.Path(run_dir) / 'checkpoints'
  counted = counter_file.counted(pathlib.Path(run_dir) / 'metrics')
  if not counted and any(kept.glob('*.npz')):
    say(f'there is no {checkpoints.COUNTER}: the run counts from 0 again.')
  for node, totals in sorted(counted.get('node_totals', {}).items()):
    updates = totals.get('learner_steps', 0)
    if updates and not (kept / file_of(node)).exists():
      say(
        f'there is no checkpoint of {node}, so its {updates:,} updates are '
        'lost: it begins anew, and the counts go on.'
      )


def forget(run_dir: str | os.PathLike[str]) -> None:
  """Removes the marks: a resumed run is judged by its own saves."""
  for mark in _marks(run_dir):
    mark.unlink(missing_ok=True)


def file_of(node: str) -> str:
  """The name of the checkpoint of a node that counts updates."""
  return _FILES.get(node, f'{node.replace("/", "-")}.npz')


def _marks(run_dir: str | os.PathLike[str]) -> list[pathlib.Path]:
  try:
    return sorted(pathlib.Path(run_dir).glob(f'*/*{durable.UNSAVED}'))
  except OSError:  # as of a file server that is away
    return []


def _failed(run_dir: str | os.PathLike[str]) -> dict[str, str]:
  """Name of each file whose last save failed, and why."""
  found = {}
  for mark in _marks(run_dir):
    try:
      found[mark.stem] = mark.read_text(encoding='utf-8')
    except OSError:  # a save has just succeeded
      continue
  return found


def _listed(found: dict[str, str]) -> str:
  """For instance 'a.npz, b.npz (No space left on device)'."""
  why = next(filter(None, found.values()), '')
  return ', '.join(found) + (f' ({why})' if why else '')
