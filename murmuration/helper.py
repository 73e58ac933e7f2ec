"""What a helper process does: it trains one run, or serves many policies.

  python -m murmuration.helper FILE_DESCRIPTOR

Started by process.py, of which it is the other end.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
import contextlib
import functools
import itertools
import math
import multiprocessing.connection
import os
import pathlib
import pickle
import select
import signal
import sys
import time
from typing import Any

from murmuration.replay import isolation
from murmuration.run_records import commands
from murmuration.run_records import first
from murmuration.run_records import later

_TICK_S = 0.4
_asked: list[int] = []  # SIGTERM, if it came while no engine could take it


class _Interrupt:
  """SIGINT ends the operation that is under way, and never the process."""

  def __init__(self):
    self.busy = False

  def __call__(self, number: int, frame: Any) -> None:
    if not self.busy:
      return
    while frame is not None:
      if frame.f_code.co_filename.startswith('<frozen importlib'):
        # Half a module is of no use, and cannot be imported again: the caller
        # starts another process.
        os._exit(commands.INTERRUPTED)
      frame = frame.f_back
    raise KeyboardInterrupt


_interrupt = _Interrupt()


class Ticks:
  """Tells the caller how far a run is. Never waits: ticks may be left out."""

  def __init__(self, connection: Any, path: pathlib.Path, cell: Any):
    from murmuration import choices
    from murmuration.run_records import metrics
    from murmuration.run_records import run_directory

    self._connection = connection
    self._run = run_directory.RunDirectory(path)
    self._steps_made = functools.partial(choices.steps_made, cell)
    self._budget = cell.experiment.total_steps
    self._next = 0.0
    self._evaluations = self._run.metrics_directory / 'evaluation.jsonl'
    self._told = metrics.end_of_rows(self._evaluations)  # bytes
    self._warned: set[Callable[[], None]] = set()

  def __call__(self, last: bool = False) -> None:
    if _asked and not last:
      # Of before the engine began; it has this one, and saves.
      _asked.clear()
      os.kill(os.getpid(), signal.SIGTERM)
    if not last and time.monotonic() < self._next:
      return
    self._next = time.monotonic() + _TICK_S
    if not last and not select.select([], [self._connection], [], 0)[1]:
      return
    for tell in (self._tell_steps, self._tell_evaluations):
      try:
        tell()
      except OSError:
        pass  # what cannot be read now is left out, or told the next time
      except ValueError as e:  # a file that is broken, and remains so
        if tell not in self._warned:
          self._warned.add(tell)
          print(f'warning: callbacks miss it: {e}', file=sys.stderr)

  def _send(self, message: tuple[str, Any]) -> None:
    if math.isinf(self._next):
      return
    try:
      self._connection.send(message)
    except OSError:
      # The caller is gone, and its runs with it.
      self._next = math.inf
      os.kill(os.getpid(), signal.SIGTERM)

  def _tell_steps(self) -> None:
    from murmuration.run_records import counter_file

    found = counter_file.counted(self._run.metrics_directory)
    if found:
      self._send(
        (
          'tick',
          {
            'steps': self._steps_made(found['totals']),
            'budget': self._budget,
            'elapsed_s': found['elapsed_s'],
            'totals': found['totals'],
          },
        )
      )

  def _tell_evaluations(self) -> None:
    from murmuration.run_records import metrics

    for row, end in metrics.rows(self._evaluations, self._told):
      self._send(('evaluation', row))
      self._told = end


def train(
  connection: Any,
  path: pathlib.Path,
  settings: dict[str, Any],
  engine: str | None,
  steps: int | None,
  agent: str = '',
  environment: str | None = None,
  topology: str | None = None,
  seed: int = 0,
  chosen: bool = True,
  resume: bool = False,
  sinks: str = '',
  ray_address: str = '',
  cluster: str | Sequence[str] = (),
) -> tuple[int, dict[str, Any] | None]:
  """Trains; returns the exit code of the run, and its summary."""
  from murmuration import arguments
  from murmuration import choices
  from murmuration.launch import session
  from murmuration.launch.engines import linux
  from murmuration.launch.engines import state
  from murmuration.run_records import counter_file
  from murmuration.run_records import run_directory
  from murmuration.run_records import sinks as sinks_lib

  # A run does not outlive its caller, not even a killed one. What comes after
  # (isolation) may take this away: then the next tick finds nobody.
  linux.die_with_parent(os.getppid(), signal.SIGTERM)
  followers = sinks_lib.parse(sinks)
  more = {
    'steps': steps,
    'engine': engine,
    'sinks': sinks,
    'ray_address': ray_address,
    'cluster': cluster,
  }
  if resume:
    there = f'load({str(path.absolute())!r})'
    line = arguments.written(f'{there}.resume', (), settings, **more)
    run = run_directory.open(path)
    made = counter_file.counted(run.metrics_directory).get('totals', {})
    cell = choices.resumed(run.config(), settings, steps, made)
  else:
    more |= {'topology': topology, 'seed': seed}
    more['run_dir'] = str(path) if chosen else ''
    named = (agent, environment)
    if engine == 'local_mp':
      del more['engine']
    line = arguments.written('train', named, settings, **more)
    cell = choices.cell(agent, environment, topology, settings, steps, seed)
  place, ray = session.placed(
    engine,
    ray_address,
    [cluster] if isinstance(cluster, str) and cluster else cluster,
    run=path if resume else None,
  )
  if _asked:
    return state.TERMINATED, None
  if not chosen:
    path = run_directory.default_path(
      cell.agent.name, cell.experiment.environment
    )
  path = path.absolute()
  connection.send(('path', path))
  ticks = Ticks(connection, path, cell)
  code = session.run(
    cell,
    place,
    path,
    resume,
    on_tick=ticks,
    ray=ray,
    sinks=followers,
    command=line,
  )
  if code == commands.USAGE:
    if not chosen:
      run_directory.give_back(path)
    return code, None
  ticks(last=True)
  return code, run_directory.RunDirectory(path).summary()


def given_by(pickled: bytes) -> dict[str, Any]:
  """What `service.take` takes, of `objects.Objects.pickled`."""
  found = pickle.loads(pickled)
  for name, spec in found.pop('others').items():
    with contextlib.suppress(Exception):  # of a module that is not found here
      found['ids'][name] = pickle.loads(spec)
  return found


def main(connection: Any) -> None:
  """Serves operations until the caller closes its end."""
  first.streams('utf-8')  # as process.py reads it
  hello = connection.recv()
  if hello['trains']:
    isolation.prepare()  # the imports below may start threads
    signal.signal(signal.SIGTERM, lambda number, _: _asked.append(number))
  else:
    signal.signal(signal.SIGINT, _interrupt)
  signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
  later.put_off()  # what is refused needs none of it
  sys.path += [path for path in hello['path'] if path not in sys.path]
  from murmuration import service

  if hello['given'] is not None:
    service.take(given_by(hello['given']))
  operations = {'train': train, **service.OPERATIONS}
  for number in itertools.count(1):
    try:
      operation, arguments = connection.recv()
    except EOFError:
      return
    if operation == 'train':
      arguments['connection'] = connection
    try:
      _interrupt.busy = not hello['trains']
      answer = 'done', operations[operation](**arguments), number
      _interrupt.busy = False
    except KeyboardInterrupt:
      answer = 'error', ('RuntimeError', 'interrupted'), number
    except Exception as e:
      _interrupt.busy = False
      kind = next(
        kind.__name__
        for kind in (ValueError, OSError, RuntimeError, TypeError, Exception)
        if isinstance(e, kind)
      )
      text = f'{type(e).__name__}: {e}' if kind == 'Exception' else str(e)
      answer = 'error', (kind, text), number
    _interrupt.busy = False
    sys.stdout.flush()
    connection.send(answer)


if __name__ == '__main__':
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('descriptor', type=int, help='of a pipe to the caller')
  args = parser.parse_args()
  main(multiprocessing.connection.Connection(args.descriptor))
