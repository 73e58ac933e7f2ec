"""The process of a host that has the nodes in memory, and that forks them.

It is nobody's child, so that it outlives an agent that is killed for as long as
it takes to end the nodes and to remove their files.
"""

from __future__ import annotations

from collections.abc import Sequence
import os
import pathlib
import pickle
import signal
import socket
import sys

from absl import flags
import cloudpickle

from murmuration.launch import pulse
from murmuration.launch.engines import linux
from murmuration.launch.engines import prepare
from murmuration.launch.engines import signals
from murmuration.launch.engines import zygote
from murmuration.launch.rpc import hosts
from murmuration.run_records import later

COMMAND = f'from {__name__} import main; main()'  # of `python -c`
FILE = 'nodes.pkl'  # in the run's directory on a host


def dumps(
  nodes: Sequence[prepare.PreparedNode], logs: Sequence[pathlib.Path]
) -> bytes:
  """The nodes for another host, with where their modules and logs are."""
  return pickle.dumps(
    (sys.path, os.getcwd(), cloudpickle.dumps((list(nodes), list(logs))))
  )


def main() -> None:
  """What `COMMAND DESCRIPTOR DIRECTORY` runs."""
  if os.fork():
    os._exit(0)
  end = socket.socket(fileno=int(sys.argv[1]))
  end.set_inheritable(False)
  linux.allow_descriptors()
  # Ray blocks SIGINT, with which an environment may end what it starts.
  signal.pthread_sigmask(signal.SIG_SETMASK, ())
  signals.default_in_forks()
  flags.FLAGS(sys.argv[:1])
  # Not `later.SLOW`, which names a module that the user's directory may have.
  later.load(('tensorflow', 'sonnet', 'reverb', 'gymnasium'))
  family = _loads(pathlib.Path(sys.argv[2]))
  # If the agent is gone, the zygote notices, and removes the run's files.
  zygote.Zygote(end, family, None).run()


def _loads(place: pathlib.Path) -> prepare.Family:
  # From the launcher, by way of Ray, as the code of the agent itself.
  paths, directory, pickled = pickle.loads((place / FILE).read_bytes())
  # What came from the launcher is first in sys.path. The launcher's directories
  # are last: here they may hold other versions, or other packages.
  there = [path for path in paths if os.path.exists(path)]
  sys.path[:] = dict.fromkeys([*filter(None, sys.path), *there])
  os.chdir(directory if os.path.isdir(directory) else place)
  nodes, logs = pickle.loads(pickled)
  return prepare.Family(
    nodes,
    logs,
    pulse.slots(place / pulse.FILE),
    hosts.Directory(place),
    scratch=place,
    top=place.parent,
    place=f', on {socket.gethostname()}',
  )
