"""From a Launchpad program to nodes with addresses, for every engine."""

from collections.abc import Callable
import contextlib
import dataclasses
import os
import pathlib
import random
import signal
import socket
import sys
import traceback
from typing import Any

from absl import flags
import launchpad as lp
from launchpad import address as lp_address

from launch import graph
from launch.engines import restarts

# By which a node in another process asks the launcher to stop.
STOP_SIGNAL = signal.SIGUSR1


@dataclasses.dataclass(frozen=True)
class PreparedNode:
  """A node that can be started.

  Attributes:
    name: group label and index, such as 'explorer/0'.
    node: the Launchpad node.
    executable: what Launchpad made of it for this launch type.
    policy: what to do when it dies.
    ports: ports that it will listen on.
    clients: names of the nodes that hold a handle of it.
  """

  name: str
  node: Any
  executable: Any
  policy: restarts.Policy
  ports: list[int]
  clients: frozenset[str]


def prepare(
  program: lp.Program,
  launch_type: lp.LaunchType,
  stopper: Callable[..., None] | None = None,
) -> list[PreparedNode]:
  """Sets contexts, connects handles, binds addresses, makes executables.

  Args:
    program: a Launchpad program.
    launch_type: of its nodes.
    stopper: what lp.stop() does in a node. None: Launchpad's, which sends the
      launcher SIGTERM; nobody can tell that from somebody else's.
  """
  if not flags.FLAGS.is_parsed():
    flags.FLAGS(sys.argv[:1])
  if not program.groups:
    raise ValueError(f'The program {program.name!r} has no nodes: add some.')
  graph.check(program)
  for nodes in program.groups.values():
    for node in nodes:
      node._initialize_context(launch_type, launch_config=None)
      if stopper is not None:
        node.launch_context._program_stopper = stopper
  for label, nodes in program.groups.items():
    for node in nodes:
      for handle in node.input_handles:
        handle.connect(node, label)
  taken: set[int] = set()
  for node in program.get_all_nodes():
    for address in node.addresses:
      address.bind(_LocalAddress(pick_port(taken)))

  group_policies = restarts.of(program)
  clients = graph.clients(program)
  prepared = []
  for label, nodes in program.groups.items():
    executables = nodes[0].to_executables(nodes, label, nodes[0].launch_context)
    for i, (node, executable) in enumerate(
      zip(nodes, executables, strict=True)
    ):
      ports = [
        lp_address.get_port_from_address(a.resolve()) for a in node.addresses
      ]
      name, policy = f'{label}/{i}', group_policies[label]
      prepared.append(
        PreparedNode(
          name,
          node,
          executable,
          policy,
          ports,
          frozenset(clients.get(name, ())),
        )
      )
  return prepared


def ask_to_stop(launcher_pid: int, mark_as_completed: bool = False) -> None:
  """What lp.stop() does in a process of its own."""
  del mark_as_completed
  os.kill(launcher_pid, STOP_SIGNAL)


class _LocalAddress(lp_address.AbstractAddressBuilder):
  def __init__(self, port: int):
    self._port = port

  def build(self) -> str:
    return f'localhost:{self._port}'


def pick_port(taken: set[int]) -> int:
  """Picks a free port that no outgoing connection can occupy; adds it to taken.

  Launchpad picks from the ephemeral range. A server that is restarted on such a
  port can find it used by some connection, even one of its own clients.
  """
  low, high = _ports_below_the_ephemeral_range()
  for _ in range(1000):
    port = random.SystemRandom().randint(low, high)
    if port not in taken and is_free(port):
      taken.add(port)
      return port
  raise OSError(
    f'Found no free port between {low} and {high} in 1000 tries. Close what '
    'listens there (`ss -ltn`), or lower net.ipv4.ip_local_port_range.'
  )


def _ports_below_the_ephemeral_range() -> tuple[int, int]:
  first_ephemeral = 32768
  with contextlib.suppress(OSError, ValueError):
    path = pathlib.Path('/proc/sys/net/ipv4/ip_local_port_range')
    first_ephemeral = int(path.read_text().split()[0])
  # With hardly any room below, the whole range has to do.
  return (
    (10_000, first_ephemeral - 1)
    if first_ephemeral > 12_000
    else (
      10_000,
      60_000,
    )
  )


def is_free(port: int) -> bool:
  """Whether a server could listen on the port, on all interfaces."""
  for family, host in ((socket.AF_INET, ''), (socket.AF_INET6, '::')):
    try:
      with socket.socket(family, socket.SOCK_STREAM) as probe:
        # Connections of a server that just died do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
          probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        probe.bind((host, port))
    except OSError as e:
      # A machine without IPv6 is fine.
      if family == socket.AF_INET or e.errno == 98:
        return False
  return True


def format_error(error: BaseException) -> str:
  """Formats an exception; leaves out how the engine came to the node's code."""
  ours = (os.path.dirname(__file__), os.path.dirname(lp.__file__))
  frames = error.__traceback__
  while frames and frames.tb_frame.f_code.co_filename.startswith(ours):
    frames = frames.tb_next
  frames = frames or error.__traceback__
  return ''.join(traceback.format_exception(type(error), error, frames))


def check_ports(name: str, ports: list[int]) -> None:
  """Raises OSError if a port of a node is in use."""
  for port in ports:
    if not is_free(port):
      raise OSError(
        f'{name} cannot listen on port {port}: another process uses it. Look '
        f'which with `ss -ltnp sport = :{port}`, end it, and start again.'
      )
