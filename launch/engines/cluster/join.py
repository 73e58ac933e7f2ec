"""Ray in the launcher: a cluster that is joined, or one that is started."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterator, Sequence
import contextlib
import math
import os
import signal
import subprocess
import threading
import time
from typing import Any
import warnings

import psutil

from launch.engines import output
from launch.engines import scratch
from launch.engines.cluster import reach
from launch.engines.cluster import resources
from launch.engines.cluster import store

_STORE_BYTES = 80 << 20  # of a local Ray's objects: no experience is in there
# Removes Ray's files when the launcher is gone, which holds the other end.
_JANITOR = (
  'cat >/dev/null; for i in 1 2 3 4 5 6 7 8 9; do '
  'rm -rf -- "$1"; [ -e "$1" ] || exit; sleep 1; done'
)
_START_S = 120.0  # for the first host of a Ray to be known to its control store
_SLOW_S = 10.0  # that is said
_GIVE_UP_S = 20.0  # for Ray to start, after a signal
_AGAIN_S = 5.0  # where that was lost, see _own_handlers
_LEAVE_S = 10.0  # for Ray to be left
_RAYLET = 'RAY_RAYLET_PID'
_WAITS = (
  f'interrupted: Ray is still starting, and has {_GIVE_UP_S:.0f} s; another '
  'signal does not wait\n'
).encode()


class BrokenOff(Exception):
  """A signal came before there was anything to stop."""


def load() -> None:
  """Imports Ray, such that it does not end this process with its raylet.

  Once that is gone, Ray's next call would, without a word, in a process that
  has its number in _RAYLET or whose parent is process 1 (a service, or one
  whose shell has ended). Ray reads this once, as it is imported; with our own
  number it takes the raylet for alive, and says what is wrong in exceptions.
  """
  before = os.environ.get(_RAYLET)
  os.environ[_RAYLET] = str(os.getpid())
  try:
    import ray  # noqa: F401
  finally:
    del os.environ[_RAYLET]  # processes of Ray read it too
    if before is not None:
      os.environ[_RAYLET] = before


@contextlib.contextmanager
def ray_at(
  address: str, needs: Sequence[resources.Needs], go_on: Callable[[], None]
) -> Iterator[None]:
  """Ray, joined or started, and left again.

  Args:
    address: of a cluster; '' for a Ray of our own.
    needs: what nodes ask for.
    go_on: raises BrokenOff where the run is to end.

  Raises:
    Refused: it cannot be reached, or does not start.
  """
  os.environ.setdefault('RAY_USAGE_STATS_ENABLED', '0')
  import ray

  common: dict[str, Any] = {
    'log_to_driver': False,
    'configure_logging': False,
  }
  directory = ''
  with contextlib.ExitStack() as stack:
    if address:
      if reach.shown(address) != address:
        output.say(
          f'ray: on the cluster at {reach.shown(address)}; --ray_address=local '
          'is a Ray of the run alone'
        )
      common['address'] = reach.answers(reach.complete(address), go_on)
    else:
      directory = stack.enter_context(_directory())
      asked = resources.total(needs)
      cpus = max(math.ceil(asked.get('CPU', 0.0)), os.cpu_count() or 1)
      # It has its nodes share this machine's cores, as local_mp does.
      common |= {
        'address': 'local',  # else RAY_ADDRESS would be it
        'num_cpus': cpus,
        'include_dashboard': False,
        '_node_ip_address': '127.0.0.1',
        '_temp_dir': directory,
        'object_store_memory': _STORE_BYTES,
        '_system_config': {'memory_monitor_refresh_ms': 0},
      }
      output.say('ray: a local Ray is started')
    try:
      # A cluster that is joined has answered already.
      start = contextlib.nullcontext() if address else longer_start()
      with warnings.catch_warnings(), _own_handlers(), start:
        # Of what GPUs a node without any will see in a later version.
        warnings.simplefilter('ignore', FutureWarning)
        ray.init(**common)
    except BrokenOff:
      raise
    except KeyboardInterrupt:
      go_on()  # It is _own_handlers', raised as these were put back.
      raise
    except Exception as e:  # Ray raises what it likes, also a bare Exception
      go_on()  # A signal to the whole group ends Ray's own processes first.
      raise reach.refused(address, e) from e
    stack.callback(_leave, directory)
    found = [node for node in ray.nodes() if node['Alive']]
    output.say(
      f'ray: {len(found)} host{"s" * (len(found) != 1)}, '
      f'{resources.total(n["Resources"] for n in found).get("CPU", 0):g} CPUs'
    )
    yield


@contextlib.contextmanager
def _own_handlers() -> Iterator[None]:
  """Keeps the handlers that our signals have; a second signal ends this.

  Ray would end the process at a SIGTERM, and what a handler raises in the
  middle of Ray's start may be lost, or leave a lock behind. So the first signal
  is heard of when Ray has started, and after _GIVE_UP_S at the latest.

  Raises:
    BrokenOff: at the second signal, or so long after the first.
  """
  from ray._private import utils

  rays = utils.set_sigterm_handler
  taken = signal.SIGINT, signal.SIGTERM
  ours: dict[int, Any] = {
    n: signal.getsignal(n) for n in (*taken, signal.SIGALRM)
  }
  came = []
  over = False
  alarm: list[tuple[float, float]] = []

  def interrupt(number: int, frame: Any) -> None:
    came.append(number)
    handler = ours[number]
    if number != signal.SIGALRM and callable(handler):
      handler(number, frame)
    if over:
      return
    if len(came) > 1:
      raise KeyboardInterrupt
    # In place of the second signal. No thread: Ray may be starting one.
    signal.signal(signal.SIGALRM, interrupt)
    alarm.append(signal.setitimer(signal.ITIMER_REAL, _GIVE_UP_S, _AGAIN_S))
    with contextlib.suppress(OSError):  # of a closed output
      os.write(2, _WAITS)  # not print: this may be in the middle of one

  here = threading.current_thread() is threading.main_thread()
  utils.set_sigterm_handler = lambda handler: None
  try:
    if here:
      for one in taken:
        signal.signal(one, interrupt)
    yield
  except KeyboardInterrupt as e:
    raise BrokenOff from e
  finally:
    over = True  # The alarm comes again and again; what follows must be done.
    utils.set_sigterm_handler = rays
    if here:
      # Also SIGTERM's: beside Python's, Ray puts one that prints a stack first.
      for one in taken:
        signal.signal(one, ours[one])
    if alarm:  # no more of these now
      signal.setitimer(signal.ITIMER_REAL, *alarm[0])  # as it was
    if here:
      signal.signal(signal.SIGALRM, ours[signal.SIGALRM])


@contextlib.contextmanager
def longer_start() -> Iterator[None]:
  """Lets a Ray that is started here take _START_S, and says what it waits for.

  Ray gives up if its first question finds no answer in 30 s, as on a machine
  with much else to do.
  """
  from ray._private import services

  rays, start, said = services.get_node, time.monotonic(), False

  def get_node(*args: Any) -> Any:
    nonlocal said
    while True:
      try:
        return rays(*args)
      except RuntimeError as e:
        passed_s = time.monotonic() - start
        if passed_s >= _START_S:
          raise
        if passed_s >= _SLOW_S and not said:
          said = True
          output.warn(
            f'note: Ray is slow to start ({passed_s:.0f} s): {e}. It has '
            f'{_START_S:.0f} s'
          )
        time.sleep(0.5)

  services.get_node = get_node
  try:
    yield
  finally:
    services.get_node = rays


def _leave(directory: str) -> None:
  """Leaves Ray; if that is gone itself, the run has its end all the same.

  A Ray of our own, with its files in `directory`, leaves no process: one that
  has lost its control store ends without its own, which live a minute longer.
  """
  import ray

  family = _family(directory) if directory else []
  try:
    store.within(_LEAVE_S, ray.shutdown)
  except Exception as e:
    if not family:
      # It would be called again as Python ends, and wait for this call; of a
      # Ray of our own that ends with its processes.
      atexit.unregister(ray.shutdown)
    output.warn(f'note: Ray was left with an error: {e}')
  finally:
    for process in family:
      with contextlib.suppress(psutil.Error):
        process.kill()


def _family(directory: str) -> list[psutil.Process]:
  """The processes of our own Ray: of its children no parent is known later."""
  found = []
  for process in psutil.Process().children():
    with contextlib.suppress(psutil.Error):
      if any(f'{directory}/' in word for word in process.cmdline()):
        found += [process, *process.children(recursive=True)]
  return found


@contextlib.contextmanager
def _directory() -> Iterator[str]:
  """A directory for Ray's files, removed also if this process is killed.

  Not below TMPDIR: Ray's sockets are in it, and their names must be short.
  """
  with scratch.Scratch('murmuration-ray-', '/tmp') as path:
    janitor = subprocess.Popen(
      ['sh', '-c', _JANITOR, 'sh', str(path)],
      stdin=subprocess.PIPE,
      start_new_session=True,
    )
    try:
      yield str(path)
    finally:
      assert janitor.stdin is not None
      janitor.stdin.close()
      janitor.wait()
