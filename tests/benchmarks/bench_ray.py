"""Our engine `ray` beside local_mp, and our systems beside RLlib on a Ray.

CartPole-v1, 64 x 64, with learning. IMPALA and Ape-X (32 samples per insert,
batch 256) run by local_mp, by `ray` with a Ray of the run's own (one host), and
by `ray` at the address of a Ray that is there, as in a cluster (TLS, tunnel);
RLlib's IMPALA and DQN at such an address too. That Ray is started anew for each
of them, by the same command. In turns on the same machine; rates are those of a
window after the first update. Memory: the largest sum of proportional set sizes
of all processes of a system, Ray's own among them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
import functools
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

import psutil

from murmuration.launch.engines.cluster import tunnel
from murmuration.launch.rpc import directory
from tests.benchmarks import bench_apex
from tests.benchmarks import bench_impala
from tests.benchmarks import bench_memory
from tests.benchmarks import common
from tests.benchmarks.peers import run as peers

_CPUS = 16  # that this Ray has to give; they place, and limit nothing
_STORE_BYTES = 200 << 20  # of Ray's objects, in which RLlib's experience is
_START_S = 120.0
_SAMPLE_S = 5.0  # a look at 21 processes takes 60 ms of the CPU
_ON_RAY = '--lp_launch_type=ray'
# System to our flags, RLlib's name and how many times its speed is needed.
_SYSTEMS = {
  'IMPALA': (bench_impala.sized(2, 64), 'IMPALA', 20),
  'Ape-X': ((*bench_apex.RATIO, common.NO_TARGET), 'DQN', 10),
}
_ENGINE = 0.9  # of the speed of local_mp, that one host's Ray needs
Numbers = dict[str, Any]


@contextlib.contextmanager
def _marked() -> Iterator[pathlib.Path]:
  """A temporary directory by which all that is started in it is known."""
  before = os.environ.get('TMPDIR')
  # Short: Ray has sockets in it.
  path = pathlib.Path(tempfile.mkdtemp(prefix='b-', dir='/tmp'))
  os.environ['TMPDIR'] = tempfile.tempdir = str(path)
  try:
    yield path
  finally:
    tempfile.tempdir = None
    if before is None:
      del os.environ['TMPDIR']
    else:
      os.environ['TMPDIR'] = before
    shutil.rmtree(path, ignore_errors=True)


def _processes(mark: pathlib.Path) -> list[psutil.Process]:
  """All that were started with that temporary directory, or below it."""
  found = []
  for process in psutil.process_iter():
    with contextlib.suppress(psutil.Error):
      if process.environ().get('TMPDIR', '').startswith(str(mark)):
        found.append(process)
  return found


class _Memory(threading.Thread):
  """Looks at the memory of all marked processes until it is stopped."""

  def __init__(self, mark: pathlib.Path):
    super().__init__(daemon=True)
    self._mark, self._over = mark, threading.Event()
    self.peak = 0

  def run(self) -> None:
    while not self._over.wait(_SAMPLE_S):
      now = sum(bench_memory.pss(p) for p in _processes(self._mark))
      self.peak = max(self.peak, now)

  def stop(self) -> int:
    self._over.set()
    self.join()
    return self.peak


@contextlib.contextmanager
def _ray(files: pathlib.Path) -> Iterator[str]:
  """A Ray of one host at a loopback address; gives the address.

  Raises:
    RuntimeError: it did not start.
  """
  taken = {*tunnel.RAYS_PORTS}
  port, for_clients = (directory.pick_port(taken) for _ in range(2))
  # Nobody else on this machine may give it work.
  secret = {'RAY_AUTH_MODE': 'token', 'RAY_AUTH_TOKEN': os.urandom(32).hex()}
  os.environ.update(secret)
  log = files / 'ray.txt'
  with log.open('w') as output:
    process = subprocess.Popen(
      [
        str(pathlib.Path(sys.executable).with_name('ray')),
        *('start', '--head', '--block', f'--num-cpus={_CPUS}'),
        '--node-ip-address=127.0.0.1',
        f'--port={port}',
        f'--ray-client-server-port={for_clients}',
        '--dashboard-agent-listen-port=0',
        f'--temp-dir={files}/ray',
        f'--object-store-memory={_STORE_BYTES}',
        *('--include-dashboard=false', '--disable-usage-stats'),
      ],
      stdin=subprocess.DEVNULL,
      stdout=output,
      stderr=subprocess.STDOUT,
      start_new_session=True,
    )
  try:
    deadline = time.monotonic() + _START_S
    while 'Ray runtime started' not in log.read_text():
      if process.poll() is not None or time.monotonic() > deadline:
        raise RuntimeError(f'Ray did not start:\n{log.read_text()[-2000:]}')
      time.sleep(0.2)
    yield f'127.0.0.1:{port}'
  finally:
    with contextlib.suppress(psutil.Error):
      family = psutil.Process(process.pid).children(recursive=True)
      for one in [psutil.Process(process.pid), *family]:
        with contextlib.suppress(psutil.Error):
          one.kill()
    process.wait()
    for name in secret:
      del os.environ[name]


def _measure(
  run: Callable[[str], Numbers | None], on_ray: bool
) -> Numbers | None:
  """Numbers of one system, with its memory.

  Args:
    run: of the address of a Ray that is there, '' if there is none.
    on_ray: whether to start that.
  """
  with contextlib.ExitStack() as stack:
    files = stack.enter_context(_marked())
    address = stack.enter_context(_ray(files)) if on_ray else ''
    memory = _Memory(files)
    memory.start()
    # This process is marked by nothing: the variable is not in its start.
    try:
      found = run(address)
    finally:
      peak = memory.stop()
  return None if found is None else {**found, 'memory_gb': peak / 1e9}


def _ours(
  flags: tuple[str, ...], window_s: float, more: tuple[str, ...], address: str
) -> Numbers:
  at = (f'--ray_address={address}',) if address else ()
  return common.actors_and_learner((*flags, *more, *at), window_s)


def _rllib(
  algorithm: str, envs: int, window_s: float, address: str
) -> Numbers | None:
  return peers.measure(
    'rllib',
    seconds=window_s,
    algorithm=algorithm,
    envs=envs,
    address=address,
  )


def _arms(args: Any, window_s: float) -> dict[str, Callable[[], Any]]:
  arms: dict[str, Callable[[], Any]] = {}
  for name, (flags, theirs, _) in _SYSTEMS.items():
    if args.only and name not in args.only.split(','):
      continue
    mine = f'Murmuration {name}'
    for how, more, on_ray in (
      ('local_mp', (), False),
      ('ray, one host', (_ON_RAY,), False),
      ('ray, at an address', (_ON_RAY,), True),
    ):
      run = functools.partial(_ours, flags, window_s, more)
      arms[f'{mine}, {how}'] = functools.partial(_measure, run, on_ray)
    for envs in args.rllib_envs.split(','):
      peer = functools.partial(_rllib, theirs.lower(), int(envs), window_s)
      arms[f'RLlib {theirs}, 2 x {envs}'] = functools.partial(
        _measure, peer, True
      )
  return arms


def _best(medians: dict[str, float], theirs: str) -> str:
  """The fastest of RLlib's sizes, '' if none was measured."""
  sizes = [name for name in medians if name.startswith(f'RLlib {theirs},')]
  return max(sizes, key=lambda name: medians[name], default='')


def _result(
  found: dict[str, list[Numbers]], args: Any, window_s: float
) -> common.Result:
  rates, medians = common.rates_table(
    found,
    {
      'memory, GB': lambda runs: ' '.join(
        f'{run["memory_gb"]:.2f}' for run in runs
      )
    },
  )
  notes, best = [], {}
  for name, (_, theirs, needed) in _SYSTEMS.items():
    mine, peer = f'Murmuration {name}', _best(medians, theirs)
    if peer:
      best[f'RLlib {theirs}'] = found[peer]
    local = medians.get(f'{mine}, local_mp')
    for how in ('one host', 'at an address'):
      ours = medians.get(f'{mine}, ray, {how}')
      if ours is None:
        continue
      if local:
        want = f'; needed {_ENGINE:.0%}' if how == 'one host' else ''
        notes.append(
          f'{mine}, ray, {how}: {ours / local:.0%} of the environment steps/s '
          f'of local_mp{want}.'
        )
      if peer in medians and how == 'at an address':
        notes.append(
          f'{mine}, ray, {how}: {ours / medians[peer]:.1f} times the '
          f'environment steps/s of {peer}; needed {needed}.'
        )
  notes.append(common.window_note(window_s))
  if best:
    notes.append(
      'RLlib 2.55.1, new API stack, 2 env runners of so many environments; its '
      'fastest is compared with. It has no Ape-X any more: DQN with several '
      'env runners and prioritized replay, at the same 32 samples per insert '
      'and batch 256, stands in.'
    )
  notes.append(
    'First update: from the start of the command, with a Ray at an address '
    'already running.'
  )
  rllib = ', and beside RLlib' if best else ''
  return common.Result(
    f'On Ray: beside local_mp{rllib}, CartPole-v1, 64 x 64',
    [rates],
    notes,
    {'runs': {**found, **best}},
  )


def main() -> int:
  args = common.arguments(__doc__, _define)
  repetitions = common.choose(args, 1, 2, 3)
  window_s = common.choose(args, 5.0, 15.0, 20.0)
  common.warn_if_busy()
  found = common.in_turns(_arms(args, window_s), repetitions)
  common.publish(_result(found, args, window_s), args)
  return 0


def _define(parser: Any) -> None:
  parser.add_argument(
    '--only', default='', help=f'of {", ".join(_SYSTEMS)}; default: all'
  )
  parser.add_argument(
    '--rllib_envs',
    default='64,512',
    help='environments of an env runner of RLlib: sizes to try',
  )


if __name__ == '__main__':
  sys.exit(main())
