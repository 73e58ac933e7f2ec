"""The state of a run as an engine reports it: nodes, run and outcome."""

from collections.abc import Callable
import contextlib
import dataclasses
import pathlib
import sys

from murmuration.run_records import commands

FINISHED = commands.FINISHED
FAILED = commands.FAILED
INTERRUPTED = commands.INTERRUPTED
TERMINATED = commands.TERMINATED
BROKEN_OFF = commands.BROKEN_OFF


@dataclasses.dataclass
class NodeState:
  """One node of the program."""

  name: str  # group label and index, such as 'explorer/0'
  pid: int | None = None  # of its process; always None in local_mt
  host: str = ''  # the node's host, '' if all nodes are on one machine
  # 'starting', 'running', 'restarting' (died, waits for its next start),
  # 'finished' (returned), 'failed' (not restarted), 'stopped' (by the engine).
  state: str = 'starting'
  restarts: int = 0
  last_error: str | None = None  # of its last death: traceback or signal name
  died_of: str = ''  # before it was started again, the last time, in one line
  notice: str = ''  # a problem that lasts, such as 'silent for 12 s'
  log_path: pathlib.Path | None = None  # file with its output, if it has one

  @property
  def alive(self) -> bool:
    return self.state in ('starting', 'running')


@dataclasses.dataclass
class RunState:
  """A running program, as passed to on_tick."""

  nodes: list[NodeState]  # in program order
  elapsed_s: float = 0.0  # since the nodes were started
  stopping: bool = False  # whether the nodes have been asked to stop
  reason: str = ''  # why they have


@dataclasses.dataclass(frozen=True)
class Outcome:
  """How a run ended."""

  exit_code: int  # FINISHED, FAILED (a node, for good), ...
  reason: str  # one sentence
  nodes: list[NodeState]  # in program order


OnTick = Callable[[RunState], None]


def say(words: str, error: bool = False) -> None:
  """Prints a line; a run goes on if its terminal is closed."""
  where = sys.stderr if error else sys.stdout
  with contextlib.suppress(OSError, ValueError):  # ValueError: it was closed
    print(words, file=where, flush=True)
