"""What an engine tells about a run: nodes, the run, and how it ended."""

from collections.abc import Callable
import dataclasses
import pathlib

FINISHED = 0
FAILED = 1
INTERRUPTED = 130
TERMINATED = 143  # 128 + SIGTERM, as a shell says it
# How a run ended that somebody broke off.
BROKEN_OFF = (INTERRUPTED, TERMINATED)


@dataclasses.dataclass
class NodeState:
  """One node of the program.

  Attributes:
    name: group label and index, such as 'explorer/0'.
    pid: process id, None while there is no process (always in local_mt).
    host: where it is, '' if all nodes are on one machine.
    state: 'starting', 'running', 'restarting' (died, waits for its next start),
      'finished' (returned), 'failed' (for good) or 'stopped' (by the engine).
    restarts: how often it was started again.
    last_error: why it died last, with the traceback or the signal's name.
    notice: what is odd about it now, such as 'silent for 12 s'; '' if nothing.
    log_path: file with its output, None where it has none.
  """

  name: str
  pid: int | None = None
  host: str = ''
  state: str = 'starting'
  restarts: int = 0
  last_error: str | None = None
  notice: str = ''
  log_path: pathlib.Path | None = None

  @property
  def alive(self) -> bool:
    return self.state in ('starting', 'running')


@dataclasses.dataclass
class RunState:
  """A running program, as handed to on_tick.

  Attributes:
    nodes: the nodes in program order.
    elapsed_s: seconds since the nodes were started.
    stopping: whether the nodes have been asked to stop.
    reason: why the run is stopping, '' before.
  """

  nodes: list[NodeState]
  elapsed_s: float = 0.0
  stopping: bool = False
  reason: str = ''


@dataclasses.dataclass(frozen=True)
class Outcome:
  """How a run ended.

  Attributes:
    exit_code: 0 finished, 1 a node failed for good, 130 interrupted, 143
      ended by SIGTERM.
    reason: one sentence.
    nodes: the nodes in program order.
  """

  exit_code: int
  reason: str
  nodes: list[NodeState]


OnTick = Callable[[RunState], None]
