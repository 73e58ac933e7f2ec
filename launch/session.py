"""One run from the terminal: directory, engine, live view, result.

    session.run(cell, engine) -> exit code

So every cell is started, shown, stopped and kept in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import contextlib
import dataclasses
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
from murmuration.launch.nodes import offline
from murmuration.replay import isolation
from murmuration.replay import tensors
from murmuration.run_records import checkpoints
from murmuration.run_records import commands
from murmuration.run_records import counter_file
from murmuration.run_records import first
from murmuration.run_records import follow
from murmuration.run_records import jsonable
from murmuration.run_records import later
from murmuration.run_records import launcher
from murmuration.run_records import metrics
from murmuration.run_records import names
from murmuration.run_records import packages
from murmuration.run_records import run_directory
from murmuration.run_records import unsaved
from murmuration.run_records import view
from murmuration.run_records import view_text

_SPENT = (
  'the budget of this run is used, so nothing is left to be done. Raise '
  '--config.run.steps_per_agent'
)
_TIMED_OUT = (
  'the wall clock of this run is used up over all of its starts, so nothing is '
  'left to be done. Raise --config.run.wall_clock_s'
)
_MET = (
  'this run has met its target, and learns on until it meets it again. '
  '--config.run.target_return=None lets it use its whole budget'
)


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
  environment = cell.experiment.environment
  with contextlib.ExitStack() as at_end:
    at_end.enter_context(contextlib.suppress(KeyboardInterrupt))
    interrupts = at_end.enter_context(commands.Interrupts())
    unless_run = at_end.enter_context(contextlib.ExitStack())
    try:
      where = commands.here()
      path = run_dir
      if path is None:
        path = run_directory.default_path(cell.agent.name, environment)
        at_end.callback(run_directory.give_back, path)
      run_directory.check_name(path.absolute())
      if ray is not None:
        path = path.resolve()  # other hosts may lack this working directory
      # What refuses comes before anything is in the directory.
      # Nodes may leave the working directory, as some environments do.
      program = cell.build(str(path.absolute()))
      counter = counter_of(program)
      if ray is not None:
        engines.check_on_ray(program, ray)
      if ray is None or not ray.address:
        # Nodes on a cluster have the memory of its hosts.
        needs.check(cell.experiment, program, cell.own_bytes)
      mode = _isolation(isolate, cell, ray)
      # Before sinks are followed: they would send the numbers of any run there.
      if resume:
        run_directory.open(path)
        at_end.enter_context(launcher.claim(path))
        checkpoints.check(path, functools.partial(_warn, path))
        unsaved.check(path, functools.partial(_warn, path))
      else:
        run_directory.check_free(path)
    except (ValueError, OSError) as e:
      return commands.refuse(e)
    except MemoryError as e:
      return commands.refuse(
        ValueError(
          f'this run does not fit into memory: {e}. Lower the number of '
          'environments, or what is learned from at a time.'
        )
      )
    # A process from before the private network: it may need the other one.
    followed = at_end.enter_context(contextlib.ExitStack())
    if sinks:
      followed.callback(follow.Follower(path, sinks).close)
    try:
      isolation.enter(mode)
      engines.check(engine)
      config, ended = cell.config, ''
      if resume:
        found = run_directory.open(path)
        ended = _ended(found, cell)
        if ended in (_SPENT, _TIMED_OUT):
          config = found.config()  # nothing will be trained with another
      directory = run_directory.create(
        path.absolute(),
        config,
        packages.versions(),
        engine=_kept(engine, ray),
        command=command,
        resume=resume,
      )
      if resume:
        unsaved.forget(path)
      else:
        # The same command is to work once the reason is gone.
        unless_run.callback(run_directory.discard, directory.path)
        at_end.enter_context(launcher.claim(path))
    except (ValueError, OSError) as e:
      return commands.refuse(e)
    for note in notes.of(cell):
      _note(note)
    if ended:
      _note(ended)
    title = f'{cell.agent.title} · {environment}'
    live = view.LiveView(path, counter, title)
    failed: set[str] = set()
    begun = False

    def tick(state: engines.RunState) -> None:
      nonlocal begun
      begun = True
      interrupts.hold()  # the engine has them, and after it nobody
      unless_run.pop_all()
      # One that fails is no reason to leave out the other, nor the next tick.
      for what, call in (
        ('The live view', functools.partial(live, state)),
        ('What tells the caller of it', lambda: on_tick(directory.path)),
      ):
        try:
          call()
        except Exception as e:
          if what not in failed:
            failed.add(what)
            said = f'{what} failed, and the run goes on: {faults.gist(e)}.'
            with contextlib.suppress(OSError):
              _warn(directory.path, said)

    refusal: ValueError | OSError | None = None
    try:
      outcome = engines.run(
        program, engine, run_dir=directory.path, on_tick=tick, ray=ray
      )
      unless_run.pop_all()
    except engines.Refused as e:
      refusal = e
    except OSError as e:  # no room for what an engine needs
      if begun:
        with interrupts.raising():
          followed.close()
        raise
      refusal = e
    finally:
      with contextlib.suppress(OSError):
        os.chdir(where)  # for nodes that were threads, see above
      live.close()
    if refusal is not None:
      return commands.refuse(refusal)
    outcome = _honest(outcome, directory)
    if outcome.exit_code == engines.FAILED:
      _keep_reason(directory, outcome.reason)
    try:
      with interrupts.raising():
        followed.close()  # its sinks hear of the outcome too
    except KeyboardInterrupt:  # they end by themselves
      said = f'note: {",".join(sinks)} not waited for: interrupted'
      print(said, file=sys.stderr)
    try:
      # Not at the top: matplotlib takes as long to import as a node to start.
      from murmuration.run_records import plots  # pylint: disable=g-import-not-at-top

      with interrupts.raising():  # not in half an import
        plots.learning_curve(directory.path)
    except KeyboardInterrupt:  # the run has ended, whatever becomes of its plot
      print('warning: no learning curve: interrupted', file=sys.stderr)
    except Exception as e:
      print(f'warning: no learning curve: {faults.gist(e)}', file=sys.stderr)
    live.final(outcome)
    return outcome.exit_code
  print('interrupted', file=sys.stderr)  # while no engine could take it
  return commands.INTERRUPTED


def _ended(directory: run_directory.RunDirectory, cell: cell_lib.Cell) -> str:
  """What is said of a run that came to its end and is resumed; or ''."""
  try:
    summary = directory.summary() or {'outcome': '', 'totals': {}}
    unit, budget = 'actor_steps', cell.experiment.total_steps
    if cell.topology.SECTION == 'offline':  # nobody steps
      unit, budget = 'learner_steps', offline.updates(cell.experiment)
    done = summary['totals'].get(unit, 0)
    if unit == 'learner_steps':  # as the counter does
      done += summary['totals'].get('skipped_updates', 0)
    if done >= budget:
      return _SPENT
    limit_s = cell.experiment.run.wall_clock_s
    if limit_s is not None and summary.get('elapsed_s', 0) >= limit_s:
      return _TIMED_OUT
    target = cell.experiment.run.target_return
    return _MET if summary['outcome'] == 'goal' and target is not None else ''
  except (OSError, ValueError, LookupError, TypeError, AttributeError):
    return ''  # only for a note


def _honest(
  outcome: engines.Outcome, directory: run_directory.RunDirectory
) -> engines.Outcome:
  """The outcome; a failure of a run that learned nothing, or lost its end."""
  failed = outcome.exit_code != 0
  lost = unsaved.at_end(directory.path)
  if lost and not failed:
    return dataclasses.replace(outcome, exit_code=1, reason=lost)
  for sentence in (lost, unsaved.at_end(directory.path, needed=False)):
    if sentence:
      with contextlib.suppress(OSError):
        _warn(directory.path, f'{sentence}.')
  if failed:
    return outcome
  summary, config = directory.summary(), directory.path / 'config.json'
  if summary is None or not config.exists():
    gone = 'was moved or removed meanwhile'
    if config.exists():
      gone = (
        'took no summary.json: is its disk full (`df`, `df -i`) or read-only, '
        'or a quota used up?'
      )
    return dataclasses.replace(
      outcome,
      exit_code=1,
      reason=f'what was learned is not kept: {directory.path} {gone}',
    )
  if unfinished := summary.get('unfinished'):
    _warn(
      directory.path,
      f'{", ".join(unfinished)} did not end in time: what was learned last may '
      'not be evaluated, or not be saved; see logs/.',
    )
  totals = summary['totals']
  steps = totals.get('actor_steps', 0)
  if summary['outcome'] == 'goal':
    return outcome  # Reached without an update, it is reached all the same.
  if not totals.get('learner_steps'):
    died = [
      f'{node.name} {view_text.died(node)}. '
      for node in outcome.nodes
      if node.restarts
    ]
    skipped = totals.get('skipped_updates')
    reason = (
      f'nothing was learned: all {skipped:,} updates were skipped, because '
      'their gradients were not finite. Are the rewards of the environment '
      f'finite, and near 1? agent.reward_scale scales them. {"".join(died)}'
      'Or lower the learning rates'
      if skipped
      else f'no update was made in {steps:,} environment steps '
      f'({summary["reason"]}). {"".join(died)}Raise run.steps_per_agent or '
      'run.wall_clock_s, or lower run.updates_per_call and what comes before '
      'the first update (agent.min_replay_size, unroll_length)'
    )
  elif directory.all_broke():
    reason = (
      f'no episode ended whole, and {totals["dropped_episodes"]:,} broke and '
      'were dropped: no return is known. The logs say how the first ones '
      'broke; with --config.run.on_fault=raise a run ends at the first'
    )
  else:
    return outcome
  return dataclasses.replace(outcome, exit_code=1, reason=reason)


def _keep_reason(directory: run_directory.RunDirectory, reason: str) -> None:
  """Says in summary.json that a run failed, and why.

  Its counter has written what it counted, and whether that was all that was
  asked for ('finished'). There is no summary if the counter failed too, or was
  killed: then there is what its next start would go on from.
  """
  try:
    counted: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):  # not there, or cut
      counted = counter_file.counted(directory.metrics_directory)
    found = {
      'finished': False,
      'totals': counted.get('totals', {}),
      'result': counted.get('result', {}),
      'latest': metrics.newest_rows(directory.metrics_directory),
      **(directory.summary() or {}),
    }
    whole = (directory.path / 'config.json').exists()
    if found.get('outcome') != 'goal' and whole:
      said = {'outcome': 'failed', 'reason': reason}
      jsonable.write(directory.path / 'summary.json', {**found, **said})
  except (OSError, ValueError) as e:
    with contextlib.suppress(OSError):
      _warn(directory.path, f'summary.json lacks why the run failed: {e}')


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


def _note(sentence: str) -> None:
  with contextlib.suppress(OSError):  # as the view's
    print(f'note: {sentence}', flush=True)


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
