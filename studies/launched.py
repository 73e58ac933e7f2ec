"""Starts runs of launch/run.py, for studies that watch or disturb them."""

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


def last_words(said: pathlib.Path) -> str:
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
