"""One run from the terminal: directory, engine, live view, result.

    session.run(cell, engine) -> exit code

So every cell is started, shown, stopped and kept in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import contextlib
import functools
import os
import pathlib
import sys
import time
from typing import Any

import launchpad as lp

from murmuration.environment_loops import faults
from murmuration.launch import cell as cell_lib
from murmuration.launch import engines
from murmuration.launch import needs
from murmuration.launch import notes
from murmuration.launch import outcome as outcome_lib
from murmuration.replay import isolation
from murmuration.replay import tensors
from murmuration.run_records import checkpoints
from murmuration.run_records import commands
from murmuration.run_records import first
from murmuration.run_records import follow
from murmuration.run_records import later
from murmuration.run_records import launcher
from murmuration.run_records import names
from murmuration.run_records import packages
from murmuration.run_records import run_directory
from murmuration.run_records import unsaved
from murmuration.run_records import view


def placed(
  engine: str | None = None,
  ray_address: str | None = None,
  cluster: Sequence[str] | None = None,
  ray_plain_replay: bool = False,
  run: pathlib.Path | None = None,
) -> tuple[str, engines.Options | None]:
  """The engine of a run, and its options if that is Ray.

  Args:
    engine: one of `engines.NAMES`; None: that of `run`, or local_mp.
    ray_address: as the other options, of `engines.Options`. What is not given
      is that of `run`, if that was on Ray.
    cluster: what nodes ask of their hosts.
    ray_plain_replay: whether experience crosses hosts unencrypted.
    run: a run to go on with; None for a new one.

  Raises:
    ValueError: no such engine, or options for another one; there is no Ray; or
      `run` does not say where it was.
  """
  kept: dict[str, Any] = {'name': 'local_mp'}
  if run is not None:
    kept = run_directory.open(run).engine()
  if engine is None and 'name' not in kept:
    raise ValueError(
      f'{run} does not say on which engine it was: give --lp_launch_type, of '
      f'{", ".join(engines.NAMES)} (command.txt has how it was started).'
    )
  engine = engine or kept['name']
  names.require('engine', engine, engines.NAMES)
  asked: dict[str, Any] = {
    'ray_address': ray_address,
    'cluster': cluster,
    'ray_plain_replay': ray_plain_replay,
  }
  asked = {name: value for name, value in asked.items() if value}
  if engine != 'ray':
    if asked:
      raise ValueError(
        f'--{next(iter(asked))} is for --lp_launch_type=ray, and this run is '
        f'on {engine}. Leave one of them out.'
      )
    return engine, None
  if kept.get('name') == 'ray':
    before = dict(kept['options'])
    # A job belongs to the cluster of RAY_ADDRESS, wherever the run was before.
    if before['ray_address'] != 'local' and os.environ.get('RAY_ADDRESS'):
      del before['ray_address']
    asked = {**before, **asked}
  options = engines.Options(
    asked.get('ray_address', ''),
    asked.get('cluster', ()),
    asked.get('ray_plain_replay', False),
  )
  engines.check_ray()
  return engine, options


def _kept(engine: str, ray: engines.Options | None) -> dict[str, Any]:
  """What `placed` reads back."""
  if ray is None:
    return {'name': engine}
  options = {
    'ray_address': ray.address or 'local',
    'cluster': ray.resources,
    'ray_plain_replay': ray.plain_replay,
  }
  return {'name': engine, 'options': options}


def run(
  cell: cell_lib.Cell,
  engine: str,
  run_dir: pathlib.Path | None = None,
  resume: bool = False,
  isolate: str = 'auto',
  on_tick: Callable[[pathlib.Path], None] = lambda path: None,
  ray: engines.Options | None = None,
  sinks: Sequence[str] = (),
  command: str | None = None,
) -> int:
  """Runs a cell to its end and says what came out.

  Args:
    cell: agent, topology and numbers.
    engine: where its nodes run.
    run_dir: where to keep the run; None chooses a new one under runs/.
    resume: whether run_dir holds a run to go on with.
    isolate: of `isolation.MODES`; this process changes its network.
    on_tick: called by the engine now and then, with the path of the run; must
      not wait.
    ray: of the engine `ray`.
    sinks: from `sinks.parse`; where its numbers go besides.
    command: the line that says in its directory what started it; None: the
      command line of this process.

  Returns:
    Exit code: 0 finished, 1 a node failed for good, 2 usage, 130 interrupted,
      143 ended by SIGTERM.
  """
  later.load()  # before there are threads and nodes
  tensors.stop_leak()  # in nodes too, which are forked from here
  first.raise_interrupts()
  with contextlib.ExitStack() as at_end:
    at_end.enter_context(contextlib.suppress(KeyboardInterrupt))
    interrupts = at_end.enter_context(commands.Interrupts())
    # Until a node starts: the same command is to work after a refusal.
    unless_begun = at_end.enter_context(contextlib.ExitStack())
    try:
      where = commands.here()
      path = run_dir
      if path is None:
        task = cell.experiment.environment
        path = run_directory.default_path(cell.agent.name, task)
        at_end.callback(run_directory.give_back, path)
      if ray is not None:
        path = path.resolve()  # other hosts may lack this working directory
      mode = _isolation(isolate, cell, ray)
      program = _checked(cell, path, resume, ray, at_end)
      # Processes from before the private network: they may need the other one.
      followed = at_end.enter_context(contextlib.ExitStack())
      if sinks:
        followed.callback(follow.Follower(path, sinks).close)
      isolation.enter(mode)
      engines.check(engine)
      directory = run_directory.create(
        path.absolute(),
        cell.config,
        packages.versions(),
        engine=_kept(engine, ray),
        command=command,
        resume=resume,
      )
      if resume:
        unsaved.forget(path)
      else:
        unless_begun.callback(run_directory.discard, directory.path)
        at_end.enter_context(launcher.claim(path))
    except (ValueError, OSError) as e:
      return commands.refuse(e)
    except MemoryError as e:
      return commands.refuse(
        ValueError(f'this run does not fit into memory: {e}')
      )
    for note in notes.of(cell):
      with contextlib.suppress(OSError):  # a terminal that was closed
        print(f'note: {note}', flush=True)
    warn = functools.partial(_warn, directory.path)
    title = f'{cell.agent.title} · {cell.experiment.environment}'
    live = view.LiveView(path, counter_of(program), title)
    show = _guarded('The live view', live, warn)
    tell = _guarded('The on_tick callback', on_tick, warn)
    begun = False

    def tick(state: engines.RunState) -> None:
      nonlocal begun
      begun = True
      interrupts.hold()  # the engine has them, and after it nobody
      unless_begun.pop_all()
      show(state)
      tell(directory.path)

    try:
      outcome = engines.run(
        program, engine, run_dir=directory.path, on_tick=tick, ray=ray
      )
      unless_begun.pop_all()
    except (engines.Refused, OSError) as e:
      if begun:
        raise
      return commands.refuse(e)
    finally:
      with contextlib.suppress(OSError):
        os.chdir(where)  # an environment in a thread may have left it
      live.close()
    outcome = outcome_lib.checked(outcome, directory, warn)
    for what, finish in (
      (f'{",".join(sinks)} not waited for', followed.close),
      ('no learning curve', functools.partial(_plot, directory.path)),
    ):
      try:
        with interrupts.raising():
          finish()
      except KeyboardInterrupt:  # the run has ended all the same
        print(f'warning: {what}: interrupted', file=sys.stderr)
      except Exception as e:
        print(f'warning: {what}: {faults.gist(e)}', file=sys.stderr)
    live.final(outcome)
    return outcome.exit_code
  print('interrupted', file=sys.stderr)  # while no engine could take it
  return commands.INTERRUPTED


def _checked(
  cell: cell_lib.Cell,
  path: pathlib.Path,
  resume: bool,
  ray: engines.Options | None,
  at_end: contextlib.ExitStack,
) -> lp.Program:
  """The program of a run that can start. Writes nothing.

  Raises:
    ValueError, OSError: why it cannot.
  """
  run_directory.check_name(path.absolute())
  program = cell.build(str(path.absolute()))
  counter_of(program)
  if ray is not None:
    engines.check_on_ray(program, ray)
  if ray is None or not ray.address:
    # Nodes on a cluster have the memory of its hosts.
    needs.check(cell.experiment, program)
  if resume:
    run_directory.open(path)
    at_end.enter_context(launcher.claim(path))
    checkpoints.check(path, functools.partial(_warn, path))
    unsaved.check(path, functools.partial(_warn, path))
  else:
    run_directory.check_free(path)
  return program


def _guarded(
  what: str, call: Callable[[Any], Any], warn: Callable[[str], None]
) -> Callable[[Any], None]:
  """The call, whose failures do not end the run; only the first is said."""
  failed = False

  def guarded(argument: Any) -> None:
    nonlocal failed
    try:
      call(argument)
    except Exception as e:
      if not failed:
        failed = True
        warn(f'{what} failed, and the run goes on: {faults.gist(e)}.')

  return guarded


def _plot(path: pathlib.Path) -> None:
  # matplotlib takes as long to import as a node to start.
  from murmuration.run_records import plots  # pylint: disable=g-import-not-at-top

  plots.learning_curve(path)


def _isolation(
  mode: str, cell: cell_lib.Cell, ray: engines.Options | None
) -> str:
  """The mode, with what the settings say of the environment."""
  if ray is not None and ray.address:
    if mode == 'required':
      raise isolation.Refused(
        '--isolate=required: a run on a Ray cluster is in the network of its '
        'hosts. Leave --isolate out, or --ray_address for a Ray of this '
        'machine alone.'
      )
    return 'off'
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
  nodes = program.groups.get('counter', ())
  if len(nodes) != 1:
    raise ValueError(
      f"The group 'counter' of the program {program.name!r} has {len(nodes)} "
      'nodes, and needs one: launch.topologies.parts.counter adds it.'
    )
  (node,) = nodes
  return lambda: node.create_handle().dereference()


def _warn(path: pathlib.Path, sentence: str) -> None:
  """Says something of a run on screen and in its log."""
  print(f'warning: {sentence}', file=sys.stderr)
  log = path / 'logs' / 'launcher.log'
  with contextlib.suppress(OSError):  # on screen it is
    log.parent.mkdir(exist_ok=True)  # a copy of a run may lack it
    with log.open('a', encoding='utf-8') as file:
      file.write(f'{time.strftime("%Y-%m-%d %H:%M:%S")} {sentence}\n')


def root() -> pathlib.Path:
  """Directory that holds the project's packages."""
  return pathlib.Path(__file__).resolve().parents[1]
