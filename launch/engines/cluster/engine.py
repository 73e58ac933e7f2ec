"""Runs a program on Ray: a local one, or a cluster that is there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import contextlib
import dataclasses
import math
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
from typing import Any
import warnings

import launchpad as lp

from launch import pulse
from launch.engines import prepare
from launch.engines import processes
from launch.engines import restarts
from launch.engines import signals as signals_lib
from launch.engines import state as state_lib
from launch.engines import supervision
from launch.engines import watch as watch_lib
from launch.engines.cluster import backend as backend_lib
from launch.engines.cluster import code
from launch.engines.cluster import host
from launch.engines.cluster import resources
from launch.engines.cluster.resources import Refused
from launch.rpc import hosts
from launch.rpc import tls

_PORT = 6379  # Ray's own default
_REACH_S = 5.0
_HERE_S = 60.0  # for the agent of this host to start
_STORE_BYTES = 80 << 20  # of a local Ray's objects: no experience is in there
# Removes Ray's files when the launcher is gone, which holds the other end.
_JANITOR = (
  'cat >/dev/null; for i in 1 2 3 4 5 6 7 8 9; do '
  'rm -rf -- "$1"; [ -e "$1" ] || exit; sleep 1; done'
)


@dataclasses.dataclass(frozen=True)
class Options:
  """How to run on Ray.

  Attributes:
    address: of a cluster, 'HOST:PORT' or 'auto' (of this host); '' starts a Ray
      of its own on this machine, for this run.
    resources: what nodes ask for, see resources.py.
    plain_replay: whether Reverb goes from host to host unencrypted, without
      the tunnel; its clients then do not find a server that moved.
  """

  address: str = ''
  resources: Sequence[str] = ()
  plain_replay: bool = False

  def __post_init__(self):
    resources.parse(self.resources)


def check(address: str = '') -> None:
  """Refuses where there is no Ray.

  Args:
    address: of a cluster; '' for a Ray of our own.

  Raises:
    Refused: with what to do.
  """
  if not address and 'ray' not in sys.modules:
    # One that is started here takes orders from this process alone. Ray reads
    # it when it is imported.
    os.environ.setdefault('RAY_AUTH_MODE', 'token')
    os.environ.setdefault('RAY_AUTH_TOKEN', os.urandom(32).hex())
  try:
    import ray  # noqa: F401
  except ImportError as e:
    raise Refused(
      f'--lp_launch_type=ray needs Ray, which this Python has not got ({e}): '
      'make environment installs it; or pip install ray==2.55.1.'
    ) from e


def check_program(
  program: lp.Program, options: Options
) -> list[resources.Needs]:
  """Refuses what can be seen before anything is started or written.

  Returns:
    What each node asks for.

  Raises:
    Refused: there is no Ray, nobody listens there, certificates cannot be made,
      or a group that resources are said of is not one of the program's.
  """
  check(options.address)
  if options.address:
    _reach(options.address)
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
  tick_s: float = 0.2,
  options: Options | None = None,
) -> state_lib.Outcome:
  """Runs a program with one process per node, on the hosts of a Ray cluster.

  Raises:
    Refused: there is no Ray, or the program cannot run on it.
  """
  options = options or Options()
  needs = check_program(program, options)
  import ray

  with contextlib.ExitStack() as stack:
    scratch = stack.enter_context(prepare.scratch())
    stack.enter_context(_ray(options.address, needs))
    signals = stack.enter_context(signals_lib.Signals())
    with prepare.temporary_files_in(scratch):
      nodes = prepare.prepare(
        program,
        lp.LaunchType.LOCAL_MULTI_PROCESSING,
        hosts.Directory(),
        hosts.ask_to_stop,
      )
    names = [node.name for node in nodes]
    there = [node['Resources'] for node in ray.nodes() if node['Alive']]
    waits = resources.check(dict(zip(names, needs)), there)
    if waits:
      print(f'note: {waits}: some wait for another host.', file=sys.stderr)
    files = {
      str(path.relative_to(scratch)): path.read_bytes()
      for path in scratch.rglob('*')
      if path.is_file()
    }
    # The agents' processes have another working directory.
    paths = processes.log_paths(nodes, (run_dir or scratch).resolve())
    kept = paths if run_dir else [None] * len(nodes)
    board = pulse.Board(scratch, len(nodes))
    token = stack.enter_context(_token(run_dir or scratch))
    plan = host.Plan(
      run=scratch.name,
      num_nodes=len(nodes),
      where=str(scratch),
      files=files,
      token=token,
      code=code.version(),
      environment=host.environment(),
      credentials=(
        dataclasses.astuple(tls.make()) if options.address else None
      ),
      plain=options.plain_replay,
    )
    backend = backend_lib.Backend(
      nodes, paths, board.slots, plan, needs, signals.ask
    )
    watch = watch_lib.Watch(
      board.slots,
      restarts.limits_of(program),
      process_state=backend.process_state,
    )
    with backend:
      _check_this_host(backend)
      return supervision.Supervisor(
        backend, nodes, kept, signals, on_tick, tick_s, watch
      ).run()


@contextlib.contextmanager
def _ray(address: str, needs: Sequence[resources.Needs]) -> Iterator[None]:
  """Ray, joined or started, and left again.

  Raises:
    Refused: it cannot be reached, or does not start.
  """
  os.environ.setdefault('RAY_USAGE_STATS_ENABLED', '0')
  import ray

  common: dict[str, Any] = {
    'log_to_driver': False,
    'configure_logging': False,
  }
  with contextlib.ExitStack() as stack:
    if address:
      common['address'] = address
    else:
      directory = stack.enter_context(_directory())
      asked = resources.total(needs)
      cpus = max(math.ceil(asked.get('CPU', 0.0)), os.cpu_count() or 1)
      # It has its nodes share this machine's cores, as local_mp does.
      common |= {
        'num_cpus': cpus,
        'include_dashboard': False,
        '_node_ip_address': '127.0.0.1',
        '_temp_dir': directory,
        'object_store_memory': _STORE_BYTES,
        '_system_config': {'memory_monitor_refresh_ms': 0},
      }
      print('ray: no --ray_address, so a local Ray is started', flush=True)
    try:
      with warnings.catch_warnings():
        # Of what GPUs a node without any will see in a later version.
        warnings.simplefilter('ignore', FutureWarning)
        ray.init(**common)
    except (RuntimeError, OSError, TimeoutError, ValueError) as e:
      where = f'at {address} ' if address else ''
      raise Refused(
        f'Ray {where}cannot be used: {" ".join(str(e).split())[:600]}'
      ) from e
    stack.callback(ray.shutdown)
    found = [node for node in ray.nodes() if node['Alive']]
    print(
      f'ray: {len(found)} host{"s" * (len(found) != 1)}, '
      f'{resources.total(n["Resources"] for n in found).get("CPU", 0):g} CPUs',
      flush=True,
    )
    yield


@contextlib.contextmanager
def _directory() -> Iterator[str]:
  """A directory for Ray's files, removed also if this process is killed.

  Not below TMPDIR: Ray's sockets are in it, and their names must be short.
  """
  path = tempfile.mkdtemp(prefix='murmuration-ray-', dir='/tmp')
  janitor = subprocess.Popen(
    ['sh', '-c', _JANITOR, 'sh', path],
    stdin=subprocess.PIPE,
    start_new_session=True,
  )
  try:
    yield path
  finally:
    assert janitor.stdin is not None
    janitor.stdin.close()
    janitor.wait()


def _reach(address: str) -> None:
  """Refuses an address at which nobody listens; Ray would try for long.

  Raises:
    Refused: with the reason.
  """
  if address == 'auto':
    return
  name, _, port = address.rpartition(':')
  if not name:
    name, port = address, str(_PORT)
  if not port.isdigit():
    raise Refused(
      f'--ray_address={address} is no address: it is HOST:PORT, or auto.'
    )
  try:
    socket.create_connection((name, int(port)), _REACH_S).close()
  except OSError as e:
    raise Refused(
      f'No Ray at {address} ({e}): start one there with `ray start --head '
      f'--port={port}`, open that port to this host, or leave --ray_address '
      'out for a Ray on this machine.'
    ) from e


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


def _check_this_host(backend: backend_lib.Backend) -> None:
  """Waits for the agent of this host.

  Raises:
    Refused: this host cannot run nodes.
  """
  import ray

  here = backend.host_of(ray.get_runtime_context().get_node_id())
  try:
    described = ray.get(here.call, timeout=_HERE_S)
  except (ray.exceptions.RayError, TimeoutError) as e:
    raise Refused(f'The agent of this host did not start: {e}') from e
  if described['problem']:
    raise Refused(f'This host cannot run nodes: {described["problem"]}.')
