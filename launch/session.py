"""One run from the terminal: directory, engine, live view, result.

    session.run(build, settings, title) -> exit code

Shared by all run_*.py, so that every agent is started, shown, stopped and kept
in the same way.
"""

from __future__ import annotations

from collections.abc import Callable
import importlib.metadata
import json
import pathlib
import platform
import sys
from typing import Any

import launchpad as lp

from launch import command_line
from launch import engines
from run_records import metrics
from run_records import run_directory
from run_records import view

_PACKAGES = (
  'tensorflow', 'dm-reverb', 'dm-launchpad-nightly', 'dm-sonnet', 'dm-acme',
  'gymnasium', 'mujoco', 'numpy', 'murmuration',
)  # fmt: skip


def run(
  build: Callable[[str], lp.Program],
  settings: command_line.Settings,
  agent: str,
  config: dict[str, Any],
) -> int:
  """Runs a program to its end and says what came out.

  Args:
    build: run directory to program; raises ValueError for what cannot work.
    settings: of the command line.
    agent: name of the agent, for the directory's name.
    config: resolved config, kept in the run directory.

  Returns:
    Exit code: 0 finished, 1 a node failed for good, 2 usage, 130 interrupted,
      143 ended by SIGTERM.
  """
  if settings.print_config:
    print(json.dumps(metrics.to_jsonable(config), indent=2, sort_keys=True))
    return 0
  path = settings.run_dir or run_directory.default_path(
    agent, config['environment']
  )
  try:
    build(str(path))  # refuses before the directory exists
    directory = run_directory.create(
      path, config, versions(), resume=settings.resume
    )
  except (ValueError, OSError) as e:
    print(f'error: {e}', file=sys.stderr)
    return command_line.USAGE
  program = build(str(directory.path))
  title = f'{agent.upper().replace("_", "-")} · {config["environment"]}'
  live = view.LiveView(directory.path, counter_of(program), title)
  try:
    outcome = engines.run(
      program, settings.engine, run_dir=directory.path, on_tick=live
    )
  finally:
    live.close()
  # Not at the top: matplotlib takes as long to import as a node to start.
  from run_records import plots  # pylint: disable=g-import-not-at-top

  try:
    plots.learning_curve(directory.path)
  except (ValueError, OSError) as e:
    print(f'No learning curve: {e}', file=sys.stderr)
  live.final(outcome, directory.path)
  return outcome.exit_code


def counter_of(program: lp.Program) -> Callable[[], Any]:
  """Makes a client of the program's counter, once its address is bound."""
  (node,) = program.groups['counter']
  return lambda: node.create_handle().dereference()


def versions() -> dict[str, str]:
  """What a reader needs to run it again."""
  found = {'python': platform.python_version()}
  for package in _PACKAGES:
    try:
      found[package] = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
      found[package] = 'not installed'
  return found


def root() -> pathlib.Path:
  """Directory that holds the project's packages."""
  return pathlib.Path(__file__).resolve().parents[1]
