"""Prepares the nodes of a Launchpad program to be started by an engine."""

from collections.abc import Callable, Sequence
import dataclasses
import os
import pathlib
import signal
import sys
import threading
import traceback
from typing import Any

from absl import flags
import launchpad as lp
from launchpad.launch import worker_manager
from launchpad.nodes.courier import node as courier_node

from murmuration.launch import graph
from murmuration.launch import pulse
from murmuration.launch import rpc
from murmuration.launch.rpc import directory as directory_lib


@dataclasses.dataclass(frozen=True)
class PreparedNode:
  """A node that can be started."""

  name: str  # group label and index, such as 'explorer/0'
  node: Any  # Launchpad's
  run: Callable[[], Any]  # the node's code
  # Of its servers, which it claims when it starts, to their kinds.
  names: dict[str, directory_lib.Kind]

  @property
  def group(self) -> str:
    return self.name.rsplit('/', 1)[0]


@dataclasses.dataclass(frozen=True)
class Family:
  """What starts the nodes of a program on one host.

  Attributes:
    nodes: in program order, as their logs and slots.
    logs: files for their output.
    slots: for their heartbeats.
    directory: where their servers claim addresses.
    scratch: for temporary files.
    top: directory that is removed when all have ended.
    place: the host, for the first lines of logs; '' on one machine.
  """

  nodes: Sequence[PreparedNode]
  logs: Sequence[pathlib.Path]
  slots: Sequence[pulse.Slot]
  directory: directory_lib.Directory
  scratch: pathlib.Path
  top: pathlib.Path
  place: str = ''


def prepare(
  program: lp.Program,
  directory: directory_lib.Directory,
  stopper: Callable[..., None],
) -> list[PreparedNode]:
  """Sets contexts, connects handles and names addresses.

  `stopper` implements lp.stop() in a node. Launchpad's own would send the
  launcher SIGTERM, indistinguishable from one sent from outside.

  Raises:
    ValueError: the program has no nodes, or a handle inside a dataclass.
  """
  if not flags.FLAGS.is_parsed():
    flags.FLAGS(sys.argv[:1])
  graph.check(program)
  for _, node in graph.named(program):
    # Of all engines: to Launchpad, a node is then a function to call.
    node._initialize_context(
      lp.LaunchType.LOCAL_MULTI_THREADING, launch_config=None
    )
    node.launch_context._program_stopper = stopper
  for label, nodes in program.groups.items():
    for node in nodes:
      for handle in node.input_handles:
        handle.connect(node, label)
  prepared = []
  for label, nodes in program.groups.items():
    functions = nodes[0].to_executables(nodes, label, nodes[0].launch_context)
    for i, (node, function) in enumerate(zip(nodes, functions, strict=True)):
      name = f'{label}/{i}'
      names = _name_addresses(name, node, directory)
      prepared.append(PreparedNode(name, node, function, names))
  return prepared


def _name_addresses(
  owner: str, node: Any, directory: directory_lib.Directory
) -> dict[str, directory_lib.Kind]:
  """Binds a name to each address of a node. Returns the names."""
  names: dict[str, directory_lib.Kind] = {}
  for address in node.addresses:
    # The address of the node's own server has the name of the node.
    own = address.name in (None, courier_node.COURIER_PORT_NAME)
    name = owner if own else f'{owner}/{address.name}'
    address.bind(directory_lib.Name(name, directory))
    names[name] = 'rpc' if own and isinstance(node, rpc.Node) else 'port'
  return names


class Manager:
  """Tells a node whether to stop: lp.stop_event() and lp.wait_for_stop()."""

  def __init__(self) -> None:
    self._stop = threading.Event()

  def use(self) -> None:
    """Makes this the manager of the current thread."""
    worker_manager._WORKER_MANAGERS.manager = self

  def stop_event(self) -> threading.Event:
    return self._stop

  def wait_for_stop(self, timeout_secs: float | None = None) -> bool:
    return self._stop.wait(timeout_secs)


def take_stop_handlers() -> None:
  """Keeps lp.register_stop_handler() from setting signal handlers."""
  worker_manager._SIGNAL_HANDLERS = {signal.SIGUSR1: set()}


def call_stop_handlers() -> None:
  """Calls the handlers that nodes have registered, once each."""
  worker_manager._signal_dispatcher(signal.SIGUSR1)


def format_error(error: BaseException) -> str:
  """Formats an exception without the frames that led to the node's code."""
  ours = (os.path.dirname(__file__), os.path.dirname(lp.__file__))
  frames = error.__traceback__
  while frames and frames.tb_frame.f_code.co_filename.startswith(ours):
    frames = frames.tb_next
  frames = frames or error.__traceback__
  return ''.join(traceback.format_exception(type(error), error, frames))
