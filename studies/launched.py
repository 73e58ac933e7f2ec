"""A run of launch/run.py as a process, for studies of what becomes of one."""

from __future__ import annotations

import contextlib
import os
import pathlib
import subprocess
import sys

import psutil

COMMAND = pathlib.Path(__file__).resolve().parents[1] / 'launch' / 'run.py'


def start(
  *words: str, said: pathlib.Path, **variables: str
) -> subprocess.Popen:
  """Starts a run in a session of its own; what it prints goes to `said`."""
  with said.open('w') as printed:
    return subprocess.Popen(
      [sys.executable, str(COMMAND), *words],
      stdout=printed,
      stderr=subprocess.STDOUT,
      stdin=subprocess.DEVNULL,
      env={**os.environ, **variables},
      start_new_session=True,
    )


def last_words(said: pathlib.Path) -> str:
  return said.read_text(errors='replace')[-2000:].strip()


def node(process: psutil.Process) -> str:
  """The node that a process is called after; '' if it is none."""
  title = ''.join(process.cmdline()[:1]).rstrip('\0')
  name = title.removeprefix('murmuration: ')
  return '' if name == title else name


def living(variable: str, begins: str) -> list[psutil.Process]:
  """Processes that have a run's mark in their environment."""
  found = []
  for process in psutil.process_iter():
    with contextlib.suppress(psutil.Error):
      mine = process.environ().get(variable, '').startswith(begins)
      if mine and process.status() != psutil.STATUS_ZOMBIE:
        found.append(process)
  return found
