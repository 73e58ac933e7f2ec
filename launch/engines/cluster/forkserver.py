"""The process of a host that has the nodes in memory, and that forks them.

It is nobody's child, so that it outlives an agent that is killed for as long as
it takes to end the nodes and to remove their files.
"""

from __future__ import annotations

from collections.abc import Sequence
import os
import pathlib
import pickle
import socket
import sys

from absl import flags
import cloudpickle

from launch import pulse
from launch.engines import linux
from launch.engines import prepare
from launch.engines import zygote
from launch.rpc import hosts
from run_records import later

COMMAND = f'from {__name__} import main; main()'  # of `python -c`
FILE = 'nodes.pkl'  # in the run's directory on a host
_ROOT = str(pathlib.Path(__file__).resolve().parents[3])  # of the project


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
  linux.allow_descriptors(0)
  flags.FLAGS(sys.argv[:1])
  # Not `later.SLOW`, which names a module that the user's directory may have.
  later.load(('tensorflow', 'sonnet', 'reverb', 'gymnasium'))
  family = _loads(pathlib.Path(sys.argv[2]))
  # If the agent is gone, the zygote notices, and removes the run's files.
  zygote.Channel(end).send(event='ready', index=-1, pid=os.getpid())
  zygote.Zygote(end, family, None).run()


def _loads(place: pathlib.Path) -> zygote.Family:
  # From the launcher, by way of Ray, as the code of the agent itself.
  paths, directory, pickled = pickle.loads((place / FILE).read_bytes())
  sys.path[:] = _paths(paths)
  os.chdir(directory if os.path.isdir(directory) else place)
  nodes, logs = pickle.loads(pickled)
  return zygote.Family(
    nodes,
    logs,
    pulse.slots(place / pulse.FILE),
    hosts.Directory(place),
    scratch=place,
    top=place.parent,
    place=f', on {socket.gethostname()}',
  )


def _paths(launchers: Sequence[str]) -> list[str]:
  """Where a node finds modules, if the launcher finds them there.

  First what this host's own Ray has, and nodes have most of it already: what is
  at the launcher's paths here may be another tree or other packages. Ray puts
  the launcher's before its own; where they are the same they keep their order,
  in which a user's files do not hide the project's.
  """
  own = [path for path in filter(None, sys.path) if path not in launchers]
  there = [path for path in launchers if os.path.exists(path)]
  return [*dict.fromkeys([_ROOT, *own, *there])]
