"""Copies of runs."""

from __future__ import annotations

import os
import pathlib
import shutil

# Of a run that trains: files that are being written (.NAME.PID.THREAD, see
# run_records/durable.py), and the record of the process that trains it.
_NOT_COPIED = shutil.ignore_patterns('.*.[0-9]*.*', 'launcher.json')


def copy(
  run: pathlib.Path, path: pathlib.Path, overwrite: bool
) -> pathlib.Path:
  """Copies a run, which may be training; what was there goes at the end.

  Args:
    run: its directory.
    path: of the copy.
    overwrite: whether another run that is there makes room.

  Returns:
    The path.

  Raises:
    ValueError: one of the two directories is inside the other.
    FileExistsError: there is something at `path`.
    OSError: a file cannot be copied; what is at `path` stays.
  """
  place, source = path.resolve(), run.resolve()
  if source in place.parents or place in source.parents:
    raise ValueError(
      f'{path} and the run {run} lie one inside the other. Give a path '
      'outside the run.'
    )
  if path.exists():
    if place == source:
      return path
    if not (overwrite and (path / 'config.json').is_file()):
      raise FileExistsError(
        f'{path} is there already'
        + (
          ', and is no run. Give another name.'
          if overwrite
          else '. Give another name, or overwrite=True.'
        )
      )
  new = place.with_name(f'.{place.name}.{os.getpid()}')
  old = place.with_name(f'{new.name}.old')
  try:
    _copy(run, new)
    if place.exists():
      place.rename(old)
    new.rename(place)
  except BaseException:
    if old.exists() and not place.exists():
      old.rename(place)
    raise
  finally:
    shutil.rmtree(new, ignore_errors=True)
    if place.exists():
      shutil.rmtree(old, ignore_errors=True)
  return path


def _copy(run: pathlib.Path, to: pathlib.Path) -> None:
  try:
    shutil.copytree(run, to, ignore=_NOT_COPIED)
  except shutil.Error as e:
    # What has gone since it was listed was replaced by something newer, as the
    # checkpoints of replay are.
    if any(os.path.exists(source) for source, *_ in e.args[0]):
      raise
