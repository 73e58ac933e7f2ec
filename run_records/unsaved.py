"""What of a run could not be written, or never was: said on screen.

A node whose checkpoint fails goes on, and leaves a mark (durable.py) that goes
with the next whole one. The launcher reads the marks: while the run lasts, at
its end, and before it is resumed. Marks of replay, and of what is only played,
are said too, and are no failure of the run.
"""

from __future__ import annotations

from collections.abc import Callable
import errno
import os
import pathlib
import time
from typing import Any, NamedTuple

from murmuration.run_records import checkpoints
from murmuration.run_records import counter_file
from murmuration.run_records import durable
from murmuration.run_records import run_directory

RING = 'ring-{}.npz'  # replay in a worker's own process
_PARTS = ('checkpoints', 'metrics')
_MOST = 3  # files that a sentence names
# Nodes that count updates, and whose file has another name than they.
_FILES = {'master/0': 'evolution.npz'}
# The summary.json that a resumed run had of its earlier starts, by run.
_earlier: dict[str, tuple[int, int] | None] = {}


class _Marked(NamedTuple):
  """The files whose last write failed."""

  state: list[pathlib.Path]  # that a run goes on from
  replay: list[pathlib.Path]  # it goes on without, too
  played: list[pathlib.Path]


def now(run_dir: str | os.PathLike[str]) -> str:
  """What cannot be written at present, and since when; '' if all can."""
  marked = _marked(run_dir)
  found = [*marked.state, *marked.replay, *marked.played]
  since_s = [s for s in map(_time_s, map(durable.unsaved, found)) if s]
  if not since_s:
    return ''
  what = 'checkpoints fail' if marked.state else 'not written'
  names = _listed([path.name for path in found])
  return f'{what} since {_clock(min(since_s))}: {names}{_why(found)}'


def at_end(run_dir: str | os.PathLike[str]) -> str:
  """Why not all that was learned is kept, of a run that has ended; or ''."""
  found = _marked(run_dir).state
  if not found:
    return ''
  try:
    learners = {*map(file_of, _updates(run_dir))}
  except (OSError, ValueError):  # as of a counter that was cut
    learners = set()
  gone = {path.name for path in found if not _time_s(path)}
  then = (
    f'--resume={run_dir} then goes on with what is there, and needs a larger '
    'run.steps_per_agent where the budget is used'
  )
  if gone & (learners or gone):
    then = 'Then start a new run'
  return (
    f'the end of this run could not be written{_why(found)}: there is '
    f'{_listed([_newest(path) for path in found])}. Make room where {run_dir} '
    f'is. {then}'
  )


def besides(run_dir: str | os.PathLike[str]) -> list[str]:
  """What else could not be written at the end; no failure of the run."""
  marked = _marked(run_dir)
  said = _of_replay(marked.replay)
  if marked.played:
    names = _listed([path.name for path in marked.played])
    there = _listed([_newest(path) for path in marked.played])
    said.append(
      f'the newest {names} could not be written{_why(marked.played)}: to be '
      f'played, there is {there}. No run begins with it'
    )
  return said


def ended(run_dir: str | os.PathLike[str]) -> bool:
  """Whether there is a summary.json, and not of a start before `forget`.

  Where a disk takes no new file at all there is no mark either, and the
  counter's file is as old as the checkpoints.
  """
  found = _summary(run_dir)
  return found is not None and found != _earlier.get(os.path.abspath(run_dir))


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
  marked = _marked(run_dir)
  for path in marked.state:
    say(
      f'the last checkpoint {path.name} could not be written{_why([path])}: '
      f'the run goes on with {_newest(path)}.'
    )
  for sentence in _of_replay(marked.replay):
    say(f'{sentence}.')


def forget(run_dir: str | os.PathLike[str]) -> None:
  """Has a run judged by what it writes from here on, not by earlier starts.

  What fails again is marked again.
  """
  for found in _marked(run_dir):
    for path in found:
      durable.unsaved(path).unlink(missing_ok=True)
  _earlier[os.path.abspath(run_dir)] = _summary(run_dir)


def file_of(node: str) -> str:
  """The name of the checkpoint of a node that counts updates."""
  return _FILES.get(node, f'{node.replace("/", "-")}.npz')


def _marked(run_dir: str | os.PathLike[str]) -> _Marked:
  run, ending = pathlib.Path(run_dir), durable.UNSAVED
  found = _Marked([], [], [])
  for part in _PARTS:
    for mark in sorted((run / part).glob(f'*{ending}')):
      if not _is_there(mark):
        continue
      path = mark.with_suffix('')
      if path.name in checkpoints.PLAYED:
        found.played.append(path)
      elif path.match(RING.format('*')):
        found.replay.append(path)
      else:
        found.state.append(path)
  return found


def _is_there(mark: pathlib.Path) -> bool:
  """Opens it: on NFS a listing may show what another host has just removed."""
  try:
    os.close(os.open(mark, os.O_RDONLY))
  except OSError as e:
    return e.errno not in (errno.ENOENT, errno.ESTALE)
  return True


def _of_replay(found: list[pathlib.Path]) -> list[str]:
  """A sentence on rings that were not saved; none without one."""
  if not found:
    return []
  begins = _listed(
    [
      f'what {path.name} has ({_clock(written_s)})'
      if (written_s := _time_s(path))
      else f'an empty replay (no {path.name})'
      for path in found
    ]
  )
  return [f'replay was not kept{_why(found)}: a resume begins with {begins}']


def _updates(run_dir: str | os.PathLike[str]) -> dict[str, int]:
  """Nodes that have learned, with their updates."""
  metrics = pathlib.Path(run_dir) / 'metrics'
  nodes = counter_file.counted(metrics).get('node_totals', {})
  steps = {node: n.get('learner_steps', 0) for node, n in nodes.items()}
  return {node: n for node, n in sorted(steps.items()) if n}


def _never_saved(run_dir: str | os.PathLike[str]) -> dict[str, int]:
  """Nodes that have learned and have no checkpoint, with their updates."""
  kept = pathlib.Path(run_dir) / 'checkpoints'
  return {
    node: n
    for node, n in _updates(run_dir).items()
    # With none of both, a file that was written and is gone is refused before.
    if not (kept / file_of(node)).exists()
  }


def _summary(run_dir: str | os.PathLike[str]) -> tuple[int, int] | None:
  """Tells one summary.json from another: each is a new file."""
  try:
    with open(pathlib.Path(run_dir) / 'summary.json', 'rb') as file:
      found = os.fstat(file.fileno())
  except OSError:
    return None
  return found.st_ino, found.st_mtime_ns


def _finished(run_dir: str | os.PathLike[str]) -> bool:
  try:
    summary = run_directory.RunDirectory(run_dir).summary() or {}
    return bool(summary.get('finished'))
  except (OSError, ValueError, AttributeError):
    return False  # cut: nobody knows


def _newest(path: pathlib.Path) -> str:
  """What there is of a checkpoint, and of when."""
  written_s = _time_s(path)
  if not written_s:
    return f'no {path.name}'
  return f'{path.name} ({_clock(written_s)})'


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
