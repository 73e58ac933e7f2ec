"""Where a Ray cluster is, and whether it answers there."""

from __future__ import annotations

from collections.abc import Callable
import os
import select
import socket
import subprocess
import sys
import time

from launch.engines.cluster.resources import Refused

# A head that takes connections has so long for its first answer. Ray itself
# tries for ten minutes and more, and hears of no signal meanwhile.
ANSWER_S = 30.0
AUTO = 'auto'  # the cluster of this host, as Ray finds it
_LOCAL = 'local'  # Ray's word for one of our own
_VARIABLE = 'RAY_ADDRESS'
_PORT = 6379  # Ray's own default
_CONNECT_S = 5.0
_SLICE_S = 0.1
# In a process of its own, which can be ended whatever Ray does in it. A word
# for each step; the time counts from the first, as an import may take long.
_PROBE = """
import os, sys
import ray
from ray import _raylet
from ray._private import services
try:
  address = services.canonicalize_bootstrap_address(sys.argv[1])
  print('asks', address, flush=True)
  _raylet.GcsClient(address=address)
  print('answers', address, flush=True)
except Exception as e:
  words = ' '.join(str(e).split())
  print('refuses', f'{type(e).__name__}: {words}', flush=True)
os._exit(0)
"""


def resolve(address: str) -> str:
  """The cluster that is meant: its address, AUTO, or '' for a Ray of our own.

  RAY_ADDRESS stands for what was not said, as it does in Ray: a job that was
  submitted to a cluster has it, and belongs there.
  """
  if address in ('', AUTO):
    address = os.environ.get(_VARIABLE, '') or address
  return '' if address == _LOCAL else address


def shown(address: str) -> str:
  """An address, and that it is not from a flag."""
  given = os.environ.get(_VARIABLE)
  return f'{address} ({_VARIABLE})' if address == given else address


def complete(address: str) -> str:
  """HOST:PORT or AUTO, with Ray's own port where none was said."""
  if address == AUTO:
    return address
  if '://' in address:
    raise Refused(
      f'{shown(address)} is the address of a dashboard or of a client, and '
      'nodes need that of the cluster itself: --ray_address=HOST:PORT, with '
      f'the port of `ray start --head` ({_PORT} if it was given none), or '
      '--ray_address=local for a Ray on this machine.'
    )
  if address.count(':') > 1 and '[' not in address:
    raise Refused(
      f'--ray_address={address}: give an IPv6 address in brackets, as '
      f'[fd00::1] or [fd00::1]:{_PORT}.'
    )
  name, _, port = address.rpartition(':')
  if not name or address.endswith(']'):
    name, port = address, str(_PORT)
  if not port.isdigit():
    raise Refused(
      f'--ray_address={address} is no address: it is HOST:PORT, or auto.'
    )
  return f'{name}:{port}'


def listens(address: str) -> None:
  """Raises Refused if nobody listens at an address."""
  full = complete(address)
  if full == AUTO:
    return
  try:
    connect(full, _CONNECT_S)
  except OSError as e:
    port = full.rpartition(':')[2]
    raise Refused(
      f'No Ray at {shown(address)} ({e}): start one there with `ray start '
      f'--head --port={port}`, open that port to this host, or say '
      '--ray_address=local for a Ray on this machine.'
    ) from e


def connect(address: str, timeout_s: float) -> None:
  """Connects to HOST:PORT, and leaves again.

  Raises:
    OSError: nobody listens there, or it took too long.
  """
  name, _, port = address.rpartition(':')
  socket.create_connection((name.strip('[]'), int(port)), timeout_s).close()


def answers(address: str, go_on: Callable[[], None]) -> str:
  """Waits for the first answer of a cluster's head; Refused if none comes.

  `go_on` is called again and again meanwhile; what it raises ends the wait.

  Returns where the cluster is, HOST:PORT; `address` itself if that cannot be
  told, and Ray is to say why.
  """
  probe = subprocess.Popen(
    [sys.executable, '-c', _PROBE, address],
    stdin=subprocess.DEVNULL,
    stdout=subprocess.PIPE,
    stderr=subprocess.DEVNULL,  # what it says is in our sentence
    start_new_session=True,  # Ctrl-C is for this process
  )
  with probe:
    try:
      words = _words(probe, address, go_on)
    finally:
      probe.kill()
  word, _, rest = words.partition(' ')
  if word == 'refuses':
    raise Refused(_refusal(address, rest))
  return rest if word == 'answers' else address


def _words(
  probe: subprocess.Popen, address: str, go_on: Callable[[], None]
) -> str:
  """The last line of a probe that has ended."""
  assert probe.stdout is not None
  said, deadline = b'', float('inf')
  while True:
    go_on()
    if select.select([probe.stdout], [], [], _SLICE_S)[0]:
      more = os.read(probe.stdout.fileno(), 1 << 16)
      if not more:
        return said.decode(errors='replace').strip().rpartition('\n')[2]
      said += more
      if deadline == float('inf'):
        deadline = time.monotonic() + ANSWER_S
    elif time.monotonic() >= deadline:
      raise Refused(
        f'Ray at {shown(address)} does not answer: somebody took the '
        f'connection, and said nothing for {ANSWER_S:g} s. Is that the port '
        'of `ray start --head`, and is its host well (`ray status` there)?'
      )


def refused(address: str, error: BaseException) -> Refused:
  """What to say of an error with which Ray did not start or connect."""
  words = f'{type(error).__name__}: {" ".join(str(error).split())}'
  return Refused(_refusal(address, words))


def _refusal(address: str, words: str) -> str:
  where = f'at {shown(address)} ' if address else ''
  if words.startswith('AuthenticationError') or 'AuthToken' in words:
    return (
      f'Ray {where}wants a token, and this process has none or another: set '
      'RAY_AUTH_MODE=token and RAY_AUTH_TOKEN (or RAY_AUTH_TOKEN_PATH) to what '
      f'the cluster was started with. Ray says: {words.partition(". ")[0]}.'
    )
  if 'Could not find any running Ray' in words:
    return (
      'No Ray runs on this host, so --ray_address=auto finds none: start one '
      'with `ray start`, say --ray_address=HOST:PORT, or --ray_address=local '
      'for one of the run alone.'
    )
  return f'Ray {where}cannot be used: {words[:600]}'
