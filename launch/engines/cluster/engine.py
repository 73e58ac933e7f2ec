"""Runs a program on Ray: a local one, or a cluster that is there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
import contextlib
import dataclasses
import os
import pathlib
import shutil
import sys
import time

import launchpad as lp

from launch import graph
from launch import pulse
from launch.engines import output
from launch.engines import prepare
from launch.engines import processes
from launch.engines import restarts
from launch.engines import scratch as scratch_lib
from launch.engines import signals as signals_lib
from launch.engines import state as state_lib
from launch.engines import supervision
from launch.engines import watch as watch_lib
from launch.engines.cluster import backend as backend_lib
from launch.engines.cluster import code
from launch.engines.cluster import forkserver
from launch.engines.cluster import host
from launch.engines.cluster import join
from launch.engines.cluster import reach
from launch.engines.cluster import resources
from launch.engines.cluster import store as store_lib
from launch.engines.cluster.resources import Refused
from launch.rpc import hosts
from launch.rpc import tls

_HERE_S = 60.0  # for the agent of this host to start
_SLICE_S = 0.2  # between two looks at signals, of a wait


@dataclasses.dataclass(frozen=True)
class Options:
  """How to run on Ray.

  Attributes:
    address: of a cluster, 'HOST:PORT' or 'auto' (of this host); 'local' starts
      a Ray of its own on this machine, for this run. What is not said ('') is
      what RAY_ADDRESS says, or else 'local'. Here a local one is ''.
    resources: what nodes ask for, see resources.py.
    plain_replay: whether Reverb goes from host to host unencrypted, without
      the tunnel; its clients then do not find a server that moved.
  """

  address: str = ''
  resources: Sequence[str] = ()
  plain_replay: bool = False

  def __post_init__(self):
    object.__setattr__(self, 'address', reach.resolve(self.address))
    resources.parse(self.resources)


def check(address: str = '') -> None:
  """Refuses where there is no Ray; `address` is that of `Options`."""
  if address:
    reach.complete(address)
  if not address and 'ray' not in sys.modules:
    # One that is started here takes orders from this process alone. Ray reads
    # it when it is imported.
    os.environ.setdefault('RAY_AUTH_MODE', 'token')
    os.environ.setdefault('RAY_AUTH_TOKEN', os.urandom(32).hex())
  try:
    join.load()
  except ImportError as e:
    raise Refused(
      f'--lp_launch_type=ray needs Ray, which this Python has not got ({e}): '
      'make environment installs it; or pip install ray==2.55.1.'
    ) from e


def check_program(
  program: lp.Program, options: Options
) -> list[resources.Needs]:
  """Refuses what can be seen before anything is started or written.

  Returns what each node asks for.
  """
  check(options.address)
  if options.address:
    reach.listens(options.address)
    if shutil.which('openssl') is None:
      raise Refused(
        'A run on several hosts has certificates of its own, and the command '
        'openssl, which makes them, is not here: `apt-get install openssl`, or '
        'leave --ray_address out for a Ray on this machine.'
      )
  said = resources.parse(options.resources)
  of_group = resources.of_groups(list(program.groups), said)
  return [of_group[k] for k, nodes in program.groups.items() for _ in nodes]


def run(
  program: lp.Program,
  *,
  run_dir: pathlib.Path | None = None,
  on_tick: state_lib.OnTick | None = None,
  options: Options | None = None,
) -> state_lib.Outcome:
  """Runs a program with one process per node on Ray; see engines.run."""
  options = options or Options()
  needs = check_program(program, options)
  signals = signals_lib.Signals()
  try:
    # Before anything is started: Ray takes its time.
    with signals:
      return _run(program, run_dir, on_tick, options, needs, signals)
  except join.BrokenOff:
    return _broken_off(program, signals, on_tick)


def _run(
  program: lp.Program,
  run_dir: pathlib.Path | None,
  on_tick: state_lib.OnTick | None,
  options: Options,
  needs: Sequence[resources.Needs],
  signals: signals_lib.Signals,
) -> state_lib.Outcome:
  import ray

  def go_on() -> None:
    if signals.terminated or signals.interrupts:
      raise join.BrokenOff

  with contextlib.ExitStack() as stack:
    scratch = stack.enter_context(scratch_lib.Scratch())
    stack.enter_context(join.ray_at(options.address, needs, go_on))
    go_on()
    address = ray.get_runtime_context().gcs_address
    store = stack.enter_context(store_lib.Store(address))
    nodes = prepare.prepare(program, hosts.Directory(), hosts.ask_to_stop)
    names = [node.name for node in nodes]
    there = [node['Resources'] for node in ray.nodes() if node['Alive']]
    waits = resources.check(dict(zip(names, needs)), there)
    if waits:
      output.warn(f'note: {waits}: some wait for another host.')
    # The agents' processes have another working directory.
    paths = processes.log_paths(nodes, (run_dir or scratch).resolve())
    kept = paths if run_dir else [None] * len(nodes)
    board = pulse.Board(scratch, len(nodes))
    token = stack.enter_context(_token(run_dir or scratch))
    plan = host.Plan(
      run=scratch.name,
      num_nodes=len(nodes),
      family=forkserver.dumps(nodes, paths),
      token=token,
      code=code.version(),
      environment=host.environment(),
      credentials=(
        dataclasses.astuple(tls.make()) if options.address else None
      ),
      plain=options.plain_replay,
      launcher=0 if options.address else os.getpid(),
    )
    backend = backend_lib.Backend(
      nodes, paths, board.slots, plan, needs, signals.ask, store
    )
    watch = _Watch(board.slots, restarts.of(program))
    watch.waits, watch.store = backend.waits, store
    watch.then = _then(options.address, run_dir)
    with backend:
      _check_this_host(backend, store, go_on)
      return supervision.Supervisor(
        backend, nodes, kept, signals, on_tick, watch
      ).run()


def _broken_off(
  program: lp.Program,
  signals: signals_lib.Signals,
  on_tick: state_lib.OnTick | None,
) -> state_lib.Outcome:
  """The end of a run that a signal ended before its nodes were started."""
  nodes = [
    state_lib.NodeState(name, state='stopped') for name in graph.nodes(program)
  ]
  code, reason = state_lib.INTERRUPTED, 'interrupted'
  if signals.terminated:
    code, reason = state_lib.TERMINATED, 'terminated (SIGTERM)'
  if on_tick is not None:
    on_tick(state_lib.RunState(nodes, stopping=True, reason=reason))
  return state_lib.Outcome(code, reason, nodes)


class _Watch(watch_lib.Watch):
  """For nodes of which some may have no place yet."""

  # Whether one has waited for its place for less than it may.
  waits: Callable[[], bool]
  store: store_lib.Store
  then: str  # what to do when that is lost

  def look(self, nodes: Sequence[state_lib.NodeState]) -> list[tuple[int, str]]:
    silent = super().look(nodes)
    if self._still_s and self.waits():
      self.excuse()
    return silent

  def stalled(self, nodes: Sequence[state_lib.NodeState]) -> str:
    lost = self.store.lost()
    return f'{lost}. {self.then}' if lost else super().stalled(nodes)


def _then(address: str, run_dir: pathlib.Path | None) -> str:
  """What to do after Ray was lost."""
  how = f'--resume={run_dir}' if run_dir else 'the same command'
  if address:
    return f'Start Ray again, and then the run with {how}'
  return f'Start the run again with {how}'


@contextlib.contextmanager
def _token(directory: pathlib.Path) -> Iterator[tuple[str, str]]:
  """A file by which other hosts know that they see this directory."""
  path = directory.resolve() / '.seen_by_all_hosts'
  text = os.urandom(16).hex()
  path.write_text(text, encoding='utf-8')
  try:
    yield str(path), text
  finally:
    path.unlink(missing_ok=True)


def _check_this_host(
  backend: backend_lib.Backend,
  store: store_lib.Store,
  go_on: Callable[[], None],
) -> None:
  """Waits for the agent of this host; Refused if it cannot run nodes."""
  import ray

  here = backend.host_of(ray.get_runtime_context().get_node_id())
  deadline = time.monotonic() + _HERE_S
  while not ray.wait([here.call], timeout=_SLICE_S)[0]:
    go_on()
    if store.lost():
      raise Refused(f'{store.lost()}. Try again.')
    if time.monotonic() > deadline:
      raise Refused(
        f'The agent of this host did not start within {_HERE_S:g} s: is the '
        'machine busy, or the disk of the project slow? Try again.'
      )
  try:
    described = ray.get(here.call)
  except ray.exceptions.RayError as e:
    raise Refused(
      f'The agent of this host did not start: {supervision.gist(str(e))}'
    ) from e
  if described['problem']:
    raise Refused(f'This host cannot run nodes: {described["problem"]}.')
