"""Joins Ray, and runs a program on its hosts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
import contextlib
import dataclasses
import importlib.machinery
import importlib.metadata
import math
import os
import pathlib
import platform
import signal
import sys
import sysconfig
import threading
from typing import Any
import warnings

import launchpad as lp

from murmuration.launch import graph
from murmuration.launch import pulse
from murmuration.launch.engines import prepare
from murmuration.launch.engines import processes
from murmuration.launch.engines import restarts
from murmuration.launch.engines import scratch as scratch_lib
from murmuration.launch.engines import signals as signals_lib
from murmuration.launch.engines import state as state_lib
from murmuration.launch.engines import supervision
from murmuration.launch.engines import watch as watch_lib
from murmuration.launch.engines.cluster import backend as backend_lib
from murmuration.launch.engines.cluster import forkserver
from murmuration.launch.engines.cluster import options as options_lib
from murmuration.launch.rpc import hosts
from murmuration.launch.rpc import tls

_STORE_BYTES = 80 << 20  # of a local Ray's objects: no experience is in there
_EXCLUDED = ('__pycache__', '*.pyc')  # of what is sent to hosts
# Variables of nodes that are the launcher's and not the host's: Ray sets some
# for its own processes.
_OURS = ('OMP_', 'OPENBLAS_', 'MKL_', 'TF_', 'XLA_', 'MUJOCO_', 'GRPC_')


class _Stopped(Exception):
  """A signal came before a node was started."""


def run(
  program: lp.Program,
  *,
  run_dir: pathlib.Path | None = None,
  on_tick: state_lib.OnTick | None = None,
  options: options_lib.Options | None = None,
) -> state_lib.Outcome:
  """Runs a program with one process per node on Ray; see engines.run."""
  options = options or options_lib.Options()
  needs = options_lib.check_program(program, options)
  with signals_lib.Signals() as signals:
    try:
      return _run(program, run_dir, on_tick, options, needs, signals)
    except _Stopped:
      code, reason = state_lib.INTERRUPTED, 'interrupted'
      if not signals.interrupts:
        code, reason = state_lib.TERMINATED, 'terminated (SIGTERM)'
      nodes = [
        state_lib.NodeState(name, state='stopped')
        for name in graph.nodes(program)
      ]
      if on_tick is not None:
        on_tick(state_lib.RunState(nodes, stopping=True, reason=reason))
      return state_lib.Outcome(code, reason, nodes)


def _run(
  program: lp.Program,
  run_dir: pathlib.Path | None,
  on_tick: state_lib.OnTick | None,
  options: options_lib.Options,
  needs: Sequence[options_lib.Needs],
  signals: signals_lib.Signals,
) -> state_lib.Outcome:
  def go_on() -> None:
    if signals.terminated or signals.interrupts:
      raise _Stopped

  with contextlib.ExitStack() as stack:
    scratch = stack.enter_context(scratch_lib.Scratch())
    sent = modules() if options.address else {}
    stack.enter_context(_ray(options.address, needs, [*sent.values()], go_on))
    nodes = prepare.prepare(program, hosts.Directory(), hosts.ask_to_stop)
    _check_room([node.name for node in nodes], needs)
    paths = processes.log_paths(nodes, (run_dir or scratch).resolve())
    slots = pulse.Board(scratch, len(nodes)).slots
    plan = {
      'run': scratch.name,  # by which nodes know their run, on all hosts
      'family': forkserver.dumps(nodes, paths),
      'num_nodes': len(nodes),
      'logs': str(paths[0].parent),
      'versions': versions(sent) if options.address else {},
      'environment': {
        k: v for k, v in os.environ.items() if k.startswith(_OURS)
      },
      # A Ray of this machine finds modules where this process does.
      'path': [] if options.address else sys.path,
      'credentials': dataclasses.astuple(tls.make()) if options.address else (),
      'plain': options.plain_replay,
    }
    backend = backend_lib.Backend(paths, slots, plan, needs, signals.ask, go_on)
    watch = _Watch(slots, restarts.of(program))
    watch.waits = backend.waits
    kept = paths if run_dir else [None] * len(nodes)
    with backend:
      return supervision.Supervisor(
        backend, nodes, kept, signals, on_tick, watch
      ).run()


class _Watch(watch_lib.Watch):
  """For nodes of which some may have no place yet."""

  waits: Callable[[], bool]  # whether one waits for its place, and may

  def look(self, nodes: Sequence[state_lib.NodeState]) -> list[tuple[int, str]]:
    silent = super().look(nodes)
    if self.waits():
      self.excuse()
    return silent


@contextlib.contextmanager
def _ray(
  address: str,
  needs: Sequence[options_lib.Needs],
  sent: Sequence[str],
  go_on: Callable[[], None],
) -> Iterator[None]:
  """Ray, joined or started, and left again.

  Args:
    address: of a cluster; '' for a Ray of this run alone.
    needs: what nodes ask for.
    sent: files and directories to send to all hosts.
    go_on: raises _Stopped where the run is to end.
  """
  os.environ.setdefault('RAY_USAGE_STATS_ENABLED', '0')
  with contextlib.ExitStack() as stack:
    if address:
      # A user's module may be on a list of what Git leaves out.
      os.environ.setdefault('RAY_RUNTIME_ENV_IGNORE_GITIGNORE', '1')
      asked: dict[str, Any] = {
        'address': address,
        'runtime_env': {'py_modules': sent, 'excludes': list(_EXCLUDED)},
      }
    else:
      if 'ray' not in sys.modules:  # which reads it when it is imported
        os.environ.setdefault('RAY_AUTH_MODE', 'token')
        os.environ.setdefault('RAY_AUTH_TOKEN', os.urandom(32).hex())
      # Not below TMPDIR: names of Ray's sockets, in it, must be short.
      files = stack.enter_context(scratch_lib.Scratch(where='/tmp'))
      os.environ['RAY_TMPDIR'] = str(files)
      stack.callback(os.environ.pop, 'RAY_TMPDIR')
      total = sum(need.get('CPU', 0.0) for need in needs)
      asked = {
        'address': 'local',  # else RAY_ADDRESS would be it
        'num_cpus': max(math.ceil(total), os.cpu_count() or 1),
        'include_dashboard': False,
        'object_store_memory': _STORE_BYTES,
        '_node_ip_address': '127.0.0.1',  # no port is open to other machines
      }
    state_lib.say(
      f'ray: joins {address}' if address else 'ray: starts a local Ray'
    )
    import ray

    stack.callback(ray.shutdown)
    try:
      with warnings.catch_warnings(), _same_handlers():
        # Of what GPUs a node without any will see in a later version.
        warnings.simplefilter('ignore', FutureWarning)
        ray.init(log_to_driver=False, configure_logging=False, **asked)
    except SystemExit as e:  # raised by Ray's handler of SIGTERM
      raise _Stopped from e
    except Exception as e:  # Ray raises what it likes, also a bare Exception
      go_on()  # A signal to the whole group ends Ray's own processes first.
      where = f' at {address}' if address else ''
      raise options_lib.Refused(f'Ray{where}: {type(e).__name__}: {e}') from e
    go_on()
    yield


@contextlib.contextmanager
def _same_handlers() -> Iterator[None]:
  """Keeps this process's handlers of signals, of which Ray replaces some."""
  taken = (signal.SIGINT, signal.SIGTERM)
  before = [(number, signal.getsignal(number)) for number in taken]
  try:
    yield
  finally:
    # In another thread nobody could have replaced one.
    if threading.current_thread() is threading.main_thread():
      for number, handler in before:
        signal.signal(number, handler)


def _check_room(
  names: Sequence[str], needs: Sequence[options_lib.Needs]
) -> None:
  """Refuses a node that no host could ever hold: Ray would wait for ever."""
  import ray

  there = [node['Resources'] for node in ray.nodes() if node['Alive']]
  for name, need in zip(names, needs, strict=True):
    if not any(all(h.get(k, 0) >= v for k, v in need.items()) for h in there):
      raise options_lib.Refused(
        f'No host of this Ray has what {name} asks for: '
        f'{options_lib.words(need)}. See `ray status`, or ask for less '
        '(--cluster).'
      )


def modules() -> dict[str, str]:
  """The modules that this process has imported and that no package installed.

  They are the project's and the user's: name to file or directory.
  """
  stdlib = sysconfig.get_path('stdlib')
  found = {}
  for name, module in list(sys.modules.items()):
    spec = getattr(module, '__spec__', None)
    if '.' in name or not isinstance(spec, importlib.machinery.ModuleSpec):
      continue
    where = [*(spec.submodule_search_locations or [spec.origin or ''])]
    path = pathlib.Path(where[0]).absolute()
    parts = {*path.parts}
    installed = path.is_relative_to(stdlib) or 'dist-packages' in parts
    installed = installed or 'site-packages' in parts
    if path.stem == name and path.exists() and not installed:
      found[name] = str(path)
  return found


def versions(sent: dict[str, str]) -> dict[str, str]:
  """Of Python and the installed packages that this process has imported."""
  found = {'Python': platform.python_version()}
  for module, names in importlib.metadata.packages_distributions().items():
    if module in sys.modules and module not in sent:
      found |= {name: importlib.metadata.version(name) for name in names}
  return found
