"""One run from the terminal: directory, engine, live view, result.

    session.run(cell, engine) -> exit code

So every cell is started, shown, stopped and kept in the same way.
"""

from __future__ import annotations

from collections.abc import Callable
import importlib.metadata
import pathlib
import platform
import sys
from typing import Any

import launchpad as lp

from launch import cell as cell_lib
from launch import engines
from replay import isolation
from replay.inspect import launcher
from run_records import metrics
from run_records import run_directory
from run_records import view

USAGE = 2  # exit code of a command that cannot work
_PACKAGES = (
  'tensorflow', 'dm-reverb', 'dm-launchpad-nightly', 'dm-sonnet', 'dm-acme',
  'gymnasium', 'mujoco', 'numpy', 'murmuration',
)  # fmt: skip


def run(
  cell: cell_lib.Cell,
  engine: str,
  run_dir: pathlib.Path | None = None,
  resume: bool = False,
  isolate: str = 'auto',
) -> int:
  """Runs a cell to its end and says what came out.

  Args:
    cell: agent, topology and numbers.
    engine: where its nodes run.
    run_dir: where to keep the run; None chooses a new one under runs/.
    resume: whether run_dir holds a run to go on with.
    isolate: of `isolation.MODES`; this process changes its network.

  Returns:
    Exit code: 0 finished, 1 a node failed for good, 2 usage, 130 interrupted,
      143 ended by SIGTERM.
  """
  environment = cell.experiment.environment
  path = run_dir or run_directory.default_path(cell.agent.name, environment)
  try:
    # What refuses comes before the directory exists.
    cell.build(str(path))
    isolation.enter(_isolation(isolate, cell))
    directory = run_directory.create(
      path, cell.config, versions(), resume=resume
    )
    # By this the inspector finds the network of a run.
    launched = directory.path / launcher.FILE
    metrics.write_json(launched, launcher.record())
  except (ValueError, OSError) as e:
    print(f'error: {e}', file=sys.stderr)
    return USAGE
  program = cell.build(str(directory.path))
  title = f'{cell.agent.title} · {environment}'
  live = view.LiveView(directory.path, counter_of(program), title)
  try:
    outcome = engines.run(program, engine, run_dir=directory.path, on_tick=live)
  finally:
    live.close()
    launched.unlink(missing_ok=True)
  # Not at the top: matplotlib takes as long to import as a node to start.
  from run_records import plots  # pylint: disable=g-import-not-at-top

  try:
    plots.learning_curve(directory.path)
  except (ValueError, OSError) as e:
    print(f'No learning curve: {e}', file=sys.stderr)
  live.final(outcome, directory.path)
  return outcome.exit_code


def _isolation(mode: str, cell: cell_lib.Cell) -> str:
  """The mode, with what the settings say of the environment.

  Raises:
    isolation.Refused: the two contradict each other.
  """
  if not cell.experiment.run.needs_network:
    return mode
  if mode == 'required':
    raise isolation.Refused(
      '--isolate=required: run.needs_network says that the environment needs '
      'the network. Set --config.run.needs_network=False, or leave --isolate '
      'out.'
    )
  return 'off'


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
