"""The state of a run as an engine reports it: nodes, run and outcome."""

from collections.abc import Callable
import dataclasses
import pathlib

FINISHED = 0
FAILED = 1
INTERRUPTED = 130
TERMINATED = 143  # 128 + SIGTERM, as in a shell
# Exit codes of a run that the user or the system ended early.
BROKEN_OFF = (INTERRUPTED, TERMINATED)


@dataclasses.dataclass
class NodeState:
  """One node of the program.

  Attributes:
    name: group label and index, such as 'explorer/0'.
    pid: process id, None while there is no process (always in local_mt).
    host: the node's host, '' if all nodes are on one machine.
    state: 'starting', 'running', 'restarting' (died, waits for its next start),
      'finished' (returned), 'failed' (not restarted) or 'stopped' (by the
      engine).
    restarts: number of restarts.
    last_error: why the node last died, with the traceback or signal name.
    notice: a problem that lasts, such as 'silent for 12 s'; '' if none.
    log_path: file with the node's output, None if it has none.
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
  """A running program, as passed to on_tick.

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
