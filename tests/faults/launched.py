"""Starts and ends runs of launch/run.py, to watch or disturb them."""

from __future__ import annotations

import argparse
from collections.abc import Collection
import contextlib
import os
import pathlib
import signal
import subprocess
import sys

import psutil

COMMAND = pathlib.Path(__file__).resolve().parents[2] / 'launch' / 'run.py'
_END_S = 15.0  # until a run that is asked to end has done so


def chosen(
  parser: argparse.ArgumentParser, names: str, systems: Collection[str]
) -> list[str]:
  """The systems of a flag, such as 'apex,impala'; exits if one is unknown."""
  found = names.split(',')
  for name in found:
    if name not in systems:
      parser.error(f'there is no system {name!r}: {", ".join(systems)}')
  return found


def start(
  *words: str, said: pathlib.Path, **variables: str
) -> subprocess.Popen:
  """Starts a run in its own session; its output goes to the file `said`."""
  with said.open('w') as printed:
    return subprocess.Popen(
      [sys.executable, str(COMMAND), *words],
      stdout=printed,
      stderr=subprocess.STDOUT,
      stdin=subprocess.DEVNULL,
      env={**os.environ, **variables},
      start_new_session=True,
    )


def ask_to_end(process: subprocess.Popen) -> int | None:
  """Ends a run as a user would, if it has not ended, and waits a while for it.

  Returns:
    Its exit code; None if it had not ended by itself.
  """
  code = process.poll()
  if code is None:
    process.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
      process.wait(_END_S)
  return code


def last_words(said: pathlib.Path) -> str:
  """The end of what a run has printed; '' if it was not started."""
  if not said.exists():
    return ''
  return said.read_text(errors='replace')[-2000:].strip()


def node(process: psutil.Process) -> str:
  """The name of the node that a process runs; '' if it is not a node."""
  title = ''.join(process.cmdline()[:1]).rstrip('\0')
  name = title.removeprefix('murmuration: ')
  return '' if name == title else name


def living(variable: str, begins: str) -> list[psutil.Process]:
  """Live processes with an environment variable that `begins` like this."""
  found = []
  for process in psutil.process_iter():
    with contextlib.suppress(psutil.Error):
      mine = process.environ().get(variable, '').startswith(begins)
      if mine and process.status() != psutil.STATUS_ZOMBIE:
        found.append(process)
  return found
