"""The window in which a peer is measured, and the line it prints.

Standard library only: the peers run in environments of their own.

A window opens when the peer has made its first update, so that imports, the
filling of replay and the compilation of the first step are not in the rates,
and lasts a given wall time.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
import contextlib
import importlib.metadata
import json
import os
import pathlib
import platform
import tempfile
import time


def process_started() -> float:
  """When this process was started, imports and all, as `time.time()`."""
  # The name of the program stands in brackets and may hold spaces.
  after = pathlib.Path('/proc/self/stat').read_text().rpartition(')')[2]
  ticks = int(after.split()[19])
  age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf(
    'SC_CLK_TCK'
  )
  return time.time() - age_s


def parser(description: str | None) -> argparse.ArgumentParser:
  """A parser with --seconds, which every peer takes."""
  result = argparse.ArgumentParser(
    description=description,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  result.add_argument(
    '--seconds',
    type=float,
    default=20.0,
    help='wall time measured after the first update (default 20)',
  )
  return result


@contextlib.contextmanager
def scratch() -> Iterator[str]:
  """A directory for all that a peer writes, removed at the end.

  Peers save snapshots and logs in the home directory or the temporary one, and
  leave them there.
  """
  with tempfile.TemporaryDirectory(
    prefix='peer-', ignore_cleanup_errors=True
  ) as directory:
    os.environ['HOME'] = os.environ['TMPDIR'] = directory
    tempfile.tempdir = directory
    yield directory


class Window:
  """Counts at the first update and at the end.

  Attributes:
    first_update_s: from the start of the program to the first update that the
      window was told of; None before it.
  """

  def __init__(self, seconds: float, started: float | None = None):
    """Args:
    seconds: wall time of the window.
    started: `time.time()` at the start of the program, where this is one of
      its later processes; None for this process's own.
    """
    if not seconds > 0:
      raise ValueError(f'seconds={seconds} is no window; give more than 0.')
    self.first_update_s: float | None = None
    self._seconds = seconds
    self._started = process_started() if started is None else started
    self._first: tuple[float, int, int] | None = None
    self._last: tuple[float, int, int] | None = None
    self._cpu_s = 0.0  # at the start of the window

  def see(self, env_steps: int, updates: int, complete: bool = True) -> bool:
    """Takes the counts of now.

    Args:
      env_steps: environment steps since the start.
      updates: learner updates since the start.
      complete: False while parts of the program are still starting; the
        window does not open before they are there.

    Returns:
      Whether to go on: False when the window is over.
    """
    if not updates:
      return True
    if self.first_update_s is None:
      self.first_update_s = time.time() - self._started
    if not complete:
      return True
    self._last = (time.monotonic(), env_steps, updates)
    if self._first is None:
      self._first = self._last
      self._cpu_s = time.process_time()
    return self._last[0] - self._first[0] < self._seconds

  def result(
    self,
    peer: str,
    task: str,
    layout: str,
    batch_size: int,
    packages: list[str],
    unroll: int = 1,
  ) -> dict:
    """What the window saw, ready for JSON.

    Args:
      peer: name of the framework and agent.
      task: gymnasium id.
      layout: processes and environments, in words.
      batch_size: items in an update.
      packages: distributions whose versions are told.
      unroll: environment steps in an item.

    Returns:
      The arguments, the rates and `samples_per_insert`: environment steps that
      were trained on, for each one made in the window (padding of short
      sequences counted as steps). `cpu_s` is the processor time of this
      process in the window, `load` the machine's mean over the last minute:
      a peer of one process with cpu_s far below seconds was kept waiting by
      other programs, and its rates say little.

    Raises:
      RuntimeError: no update in the window: what acted without learning is no
        figure to compare with.
    """
    if (
      self._first is None
      or self._last is None
      or self._first[2] == self._last[2]
    ):
      raise RuntimeError(
        f'{peer} made no update in {self._seconds:g} s after its first, so '
        f'there is no rate of acting and learning. Give it more --seconds.'
      )
    seconds, env_steps, updates = (
      last - first for first, last in zip(self._first, self._last)
    )
    return {
      'peer': peer,
      'task': task,
      'layout': layout,
      'env_steps_per_s': round(env_steps / seconds, 1),
      'updates_per_s': round(updates / seconds, 2),
      'batch_size': batch_size,
      'unroll': unroll,
      'samples_per_insert': round(
        updates * batch_size * unroll / max(env_steps, 1), 2
      ),
      'seconds': round(seconds, 2),
      'cpu_s': round(time.process_time() - self._cpu_s, 2),
      'load': round(os.getloadavg()[0], 1),
      'first_update_s': round(self.first_update_s or 0.0, 1),
      'versions': {
        'python': platform.python_version(),
        **{name: importlib.metadata.version(name) for name in packages},
      },
    }


def report(result: dict) -> None:
  """Prints a result as the one line that run.py looks for."""
  print(json.dumps(result), flush=True)
