"""Hosts of a little cluster on this machine: network namespaces on a bridge.

Each host has an address, a name and processes of its own. The bridge is in a
network namespace too, so that no packet leaves the machine. Needs Linux, the
commands of iproute2 and util-linux, and root or user namespaces.
"""

from __future__ import annotations

from collections.abc import Mapping
import contextlib
import functools
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
from typing import NoReturn

from murmuration.launch.engines import linux
from murmuration.run_records import commands
from tests.faults import slow_link

_ENTERED = 'MURMURATION_NAMESPACE'
_NETWORK = '10.77.0'
_START_S = 10.0
_WAIT = 'hostname "$1"; ip link set lo up; echo ready; exec sleep infinity'


def enter() -> None:
  """Starts this command again in a network namespace of its own.

  Raises:
    SystemExit: this machine cannot make one, which is said; the code is 2.
  """
  if os.environ.get(_ENTERED):
    _run('ip', 'link', 'set', 'lo', 'up')
    _run('ip', 'link', 'add', 'bridge', 'type', 'bridge')
    _run('ip', 'link', 'set', 'bridge', 'up')
    return
  for command in ('ip', 'unshare', 'nsenter'):
    if shutil.which(command) is None:
      _refuse(
        f'The command {command} is missing: install iproute2 and util-linux.'
      )
  user = [] if os.geteuid() == 0 else ['-r']
  if subprocess.run(['unshare', *user, '-n', 'true'], check=False).returncode:
    _refuse(
      'This machine gives no network namespaces (unshare -n): run as root.'
    )
  os.environ[_ENTERED] = '1'
  os.execvp('unshare', ['unshare', *user, '-n', sys.executable, *sys.argv])


def _refuse(why: str) -> NoReturn:
  print(f'error: {why}', file=sys.stderr)
  sys.exit(commands.USAGE)


class Host:
  """A namespace of processes and network, with files of its own."""

  def __init__(self, number: int, weather: slow_link.Weather | None = None):
    """Makes the host and plugs it in.

    Args:
      number: 1 to 250; the last part of its address.
      weather: of its link; None: as good as the machine.
    """
    self.name, self.address = f'host{number}', f'{_NETWORK}.{number}'
    self._link = f'port{number}'
    # Short: Ray has sockets in it.
    self.files = pathlib.Path(tempfile.mkdtemp(prefix='m-', dir='/tmp'))
    flags = ['-n', '-u', '-i', '-p', '--fork', '--kill-child', '--mount-proc']
    self._process = subprocess.Popen(
      ['unshare', *flags, 'sh', '-c', _WAIT, 'sh', self.name],
      stdout=subprocess.PIPE,
      stderr=subprocess.DEVNULL,  # it complains of its own killing
      text=True,
      preexec_fn=functools.partial(linux.die_with_parent, os.getpid()),
    )
    assert self._process.stdout is not None
    if self._process.stdout.readline() != 'ready\n':
      raise RuntimeError(f'{self.name} did not start.')
    self._pid = self._init()
    inside = f'eth{number}'
    self._carrier = None
    if weather is not None:
      self._carrier = slow_link.start(inside, self._link, weather)
    else:
      _run(
        *('ip', 'link', 'add', self._link, 'type', 'veth', 'peer'),
        *('name', inside),
      )
    _run('ip', 'link', 'set', self._link, 'master', 'bridge', 'up')
    _run('ip', 'link', 'set', inside, 'netns', str(self._pid))
    self.run('ip', 'address', 'add', f'{self.address}/24', 'dev', inside)
    self.run('ip', 'link', 'set', inside, 'up')

  def _init(self) -> int:
    """The process that all others of the host go with, seen from here."""
    path = pathlib.Path(f'/proc/{self._process.pid}/task')
    children = path / str(self._process.pid) / 'children'
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
      if words := children.read_text().split():
        return int(words[0])
      time.sleep(0.01)
    raise RuntimeError(f'{self.name} has no process.')

  def command(self, *words: str) -> list[str]:
    """A command line that runs another one on this host."""
    kinds = ['-n', '-u', '-i', '-p', '-m']
    return ['nsenter', '-t', str(self._pid), *kinds, '--', *words]

  def start(
    self,
    *words: str,
    environment: Mapping[str, str] | None = None,
    output: pathlib.Path | None = None,
  ) -> subprocess.Popen:
    """Starts a command on this host."""
    with contextlib.ExitStack() as stack:
      log = stack.enter_context((output or self.files / 'log').open('ab'))
      return subprocess.Popen(
        self.command(*words),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env={**os.environ, 'TMPDIR': str(self.files), **(environment or {})},
      )

  def run(self, *words: str, environment: Mapping[str, str] | None = None):
    """Runs a command on this host to its end.

    Raises:
      RuntimeError: it failed.
    """
    code = self.start(*words, environment=environment).wait()
    if code:
      log = (self.files / 'log').read_text(errors='replace')
      raise RuntimeError(
        f'{" ".join(words)} on {self.name}: code {code}\n{log[-2000:]}'
      )

  def traffic(self) -> tuple[int, int]:
    """Bytes of the frames that it has sent, and that came to it.

    Raises:
      RuntimeError: it is no longer plugged in.
    """
    # Not /sys/class/net: that is still the one outside of our namespace.
    for line in pathlib.Path('/proc/self/net/dev').read_text().splitlines():
      name, _, counts = line.strip().partition(':')
      if name == self._link:
        numbers = [int(word) for word in counts.split()]
        return numbers[0], numbers[8]  # of the bridge's end
    raise RuntimeError(f'{self.name} has no link {self._link}.')

  def pull_the_plug(self) -> None:
    """Its link goes down, and then all its processes are killed at once."""
    _run('ip', 'link', 'set', self._link, 'down')
    self.close()

  def close(self) -> None:
    """Ends the host with all that runs there."""
    if self._process.poll() is None:
      with contextlib.suppress(ProcessLookupError):
        os.kill(self._pid, 9)  # the first of its processes takes all along
    self._process.wait()
    if self._carrier is not None:
      self._carrier.kill()
      self._carrier.wait()
    # It goes with the other end, but some time later.
    words = ['ip', 'link', 'delete', self._link]
    subprocess.run(words, stderr=subprocess.DEVNULL, check=False)
    shutil.rmtree(self.files, ignore_errors=True)


def _run(*words: str) -> None:
  subprocess.run(words, check=True)
