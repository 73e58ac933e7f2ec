"""Supervises the nodes of a run: restarts, silent nodes, stop and exit code.

It is independent of processes and threads: a backend starts nodes, asks them to
stop, and reports which ones have ended.
"""

from collections.abc import Callable, Sequence
import copy
import dataclasses
import pathlib
import re
import time
from typing import Protocol

from murmuration.launch.engines import prepare
from murmuration.launch.engines import signals as signals_lib
from murmuration.launch.engines import state as state_lib
from murmuration.launch.engines import watch as watch_lib

# From the request to stop to the kill; a stop takes less than 10 s in all.
STOP_GRACE_S = 8.0
KILL_GRACE_S = 1.5
# Groups are asked to stop in reverse order of the program, in which servers
# come before their clients: each once those after it have ended, or this much
# later than they, so that it can take their last reports and saves.
SERVERS_LATER_S = 2.0
_LAST_S = 2.0  # that the first group has for its stop, at least
# The pause before a restart doubles each time, up to the cap.
_FIRST_PAUSE_S = 0.2
_MOST_PAUSE_S = 5.0
_HEALTHY_S = 10.0  # after so long, earlier restarts are forgotten
_POLL_S = 0.05
_TICK_S = 0.2
_CAUSED = re.compile(
  r'^(?:The above exception was|During handling of the above)[^\n]*\n+', re.M
)
# In the stack of a thread that a debugger holds.
_DEBUGGER = re.compile(r'/(bdb|pydevd)\w*\.py')


@dataclasses.dataclass(frozen=True)
class Event:
  """A change of a node's state.

  Attributes:
    index: the node's place in the program.
    kind: 'started', 'running' or 'exited'.
    pid: its process, if it has one of its own.
    failed: for 'exited', whether it did not return normally.
    error: for 'exited', the reason.
    killed: for 'exited', whether SIGKILL or SIGTERM from outside the run ended
      it, or the loss of its host.
    host: see NodeState.host.
    oom: for 'exited', whether the kernel killed it for want of memory.
    final: for 'exited', whether a restart cannot help.
  """

  index: int
  kind: str
  pid: int | None = None
  failed: bool = False
  error: str | None = None
  killed: bool = False
  host: str = ''
  oom: bool = False
  final: bool = False


class BackendLost(RuntimeError):
  """The backend can no longer run nodes."""


class Backend(Protocol):
  """Starts and ends nodes.

  Attributes:
    kills: whether `kill` ends a node whatever it does.
  """

  kills: bool

  def start(self, index: int, again: int) -> None:
    """Starts a node, for the first time or again."""

  def poll(self, timeout_s: float) -> list[Event]:
    """Waits at most timeout_s for events; raises BackendLost."""

  def stop(self, index: int) -> None:
    """Asks a node to stop."""

  def kill(self, index: int) -> str:
    """Kills a node, which says in its last error where it was.

    Returns the stack of one that cannot be killed, in faulthandler's form.
    """


@dataclasses.dataclass
class _Record:
  """The supervisor's own state of a node, besides its public one."""

  later: int  # groups that come later in the program
  ran_at: float = 0.0  # when its own code began, after a wait for its place
  restart_at: float | None = None
  deaths: list[float] = dataclasses.field(default_factory=list)  # in a row
  silence: str = ''  # why it was just killed as silent
  asked: bool = False
  killed: bool = False


class Supervisor:
  """Runs the nodes of one program until the run ends."""

  def __init__(
    self,
    backend: Backend,
    nodes: Sequence[prepare.PreparedNode],
    log_paths: Sequence[pathlib.Path | None],
    signals: signals_lib.Signals,
    on_tick: state_lib.OnTick | None,
    watch: watch_lib.Watch,
    clock: Callable[[], float] = time.monotonic,
  ):
    self._backend = backend
    self._watch = watch
    self._rules = watch.rules
    self._clock = clock
    self._nodes = [
      state_lib.NodeState(node.name, log_path=log_path)
      for node, log_path in zip(nodes, log_paths, strict=True)
    ]
    self._groups = [node.group for node in nodes]
    order = [*dict.fromkeys(reversed(self._groups))]
    self._records = [_Record(order.index(group)) for group in self._groups]
    most_s = (STOP_GRACE_S - _LAST_S) / max(len(order) - 1, 1)
    self._later_s = min(SERVERS_LATER_S, most_s)
    self._signals = signals
    self._on_tick = on_tick
    self._exit_code: int | None = None
    self._reason = ''
    self._kill_at = self._killed_at = float('inf')
    self._begin = self._clock()
    self._next_tick = 0.0

  def run(self) -> state_lib.Outcome:
    """Starts all nodes and returns when none is left."""
    try:
      for index in range(len(self._nodes)):
        self._start(index)
      while True:
        events = self._backend.poll(_POLL_S)
        # Before the events: a SIGTERM to the whole job also ends the nodes.
        # Ctrl-C does not reach nodes: one that ends then ended by itself.
        self._check_stops()
        self._handle(events)
        self._check_finished()
        if self._exit_code is None:
          self._restart_due()
          self._look()
        self._tick()
        if self._exit_code is not None and self._ended():
          break
    except BackendLost as e:
      self._end(state_lib.FAILED, str(e))
      for node in self._nodes:
        if node.alive or node.state == 'restarting':
          node.state, node.last_error = 'failed', node.last_error or str(e)
    self._tick(force=True)
    assert self._exit_code is not None
    return state_lib.Outcome(self._exit_code, self._reason, self._nodes)

  def _start(self, index: int) -> None:
    record = self._records[index]
    record.restart_at, record.silence = None, ''
    self._nodes[index].state = 'starting'
    self._watch.started(index)
    self._backend.start(index, self._nodes[index].restarts)

  def _handle(self, events: list[Event]) -> None:
    # Nodes that returned come before those that failed, which may have failed
    # because the node that ends the run has ended.
    for event in sorted(events, key=lambda e: (e.kind == 'exited', e.failed)):
      node = self._nodes[event.index]
      if event.kind == 'exited':
        self._handle_exit(event, node, self._records[event.index])
      else:
        node.pid, node.host = event.pid, event.host
        if event.kind == 'running' and node.state == 'starting':
          node.state = 'running'
          self._records[event.index].ran_at = self._clock()

  def _handle_exit(
    self, event: Event, node: state_lib.NodeState, record: _Record
  ) -> None:
    ran = node.state == 'running'
    node.pid = None
    if self._exit_code is not None:
      node.state = 'stopped' if event.failed or record.asked else 'finished'
      if record.killed:
        node.last_error = _here(event.error) + (node.last_error or '')
      return
    if not event.failed:
      node.state = 'finished'
      if self._groups[event.index] == self._rules.ends_run:
        self._end(state_lib.FINISHED, f'{node.name} finished')
      return
    error = event.error
    if record.silence:
      error = _here(error) + record.silence + innermost(error or '')
    node.last_error, node.died_of = error, gist(error)
    failed = '' if self._rules.come_back and not event.final else 'failed'
    if not failed:
      self._forget(event, record, ran)
      if len(record.deaths) >= self._rules.max_restarts:
        failed = f'failed after {len(record.deaths)} restarts in a row'
    if failed:
      node.state = 'failed'
      self._end(state_lib.FAILED, f'{node.name} {failed}: {node.died_of}')
      return
    node.state = 'restarting'
    pause_s = _FIRST_PAUSE_S * 2.0 ** min(len(record.deaths), 60)
    record.restart_at = self._clock() + min(_MOST_PAUSE_S, pause_s)
    record.deaths.append(self._clock())

  def _forget(self, event: Event, record: _Record, ran: bool) -> None:
    """Forgets earlier deaths of a node, if this start was a healthy one."""
    # A start that did no work is not healthy, however long it lasted.
    worked = self._watch.worked(event.index)
    # Waiting for a place and imports do not count.
    now = self._clock()
    lived_s = now - record.ran_at if ran else 0.0
    healthy = event.killed or lived_s >= _HEALTHY_S
    if worked and healthy and not record.silence and not event.oom:
      record.deaths = []
    # A user's own loop may send heartbeats without counting work.
    window_s = self._rules.restart_window_s
    if worked or lived_s >= window_s:
      record.deaths = [
        death for death in record.deaths if now - death < window_s
      ]

  def _restart_due(self) -> None:
    now = self._clock()
    for index, record in enumerate(self._records):
      if record.restart_at is not None and record.restart_at <= now:
        self._nodes[index].restarts += 1
        self._start(index)

  def _look(self) -> None:
    """Kills silent nodes; ends a run that has stalled."""
    for index, why in self._watch.look(self._nodes):
      node, record = self._nodes[index], self._records[index]
      if record.silence:
        continue
      where = self._backend.kill(index)
      if self._backend.kills:
        record.silence = why
        continue
      if _DEBUGGER.search(where):
        self._watch.excuse()
        continue
      why += innermost(where)
      node.last_error = _here(where) + why
      self._end(
        state_lib.FAILED,
        f'{node.name} failed: {why}. A thread cannot be killed and started '
        'again; with --lp_launch_type=local_mp it would be.',
      )
      return
    stalled = self._watch.stalled(self._nodes)
    if stalled:
      self._end(state_lib.FAILED, stalled)

  def _check_stops(self) -> None:
    # Before interrupts: a service manager may also send SIGHUP.
    if self._signals.terminated:
      self._end(state_lib.TERMINATED, 'terminated (SIGTERM)')
    if self._signals.asked:
      self._end(state_lib.FINISHED, 'a node asked to stop (lp.stop())')

  def _check_finished(self) -> None:
    if all(node.state == 'finished' for node in self._nodes):
      self._end(state_lib.FINISHED, 'all nodes finished')
    interrupts = self._signals.interrupts
    if interrupts:
      self._end(state_lib.INTERRUPTED, 'interrupted')
    if interrupts > 1:
      self._kill_at = min(self._kill_at, self._clock())

  def _end(self, exit_code: int, reason: str) -> None:
    """Begins the stop of the run, unless it has begun for another reason."""
    if self._exit_code is not None:
      return
    self._exit_code, self._reason = exit_code, reason
    self._kill_at = self._clock() + STOP_GRACE_S
    for node in self._nodes:
      if node.state == 'restarting':
        node.state = 'stopped'

  def _ended(self) -> bool:
    """Stops the nodes step by step. Returns whether all have ended."""
    alive = [i for i, node in enumerate(self._nodes) if node.alive]
    now = self._clock()
    since_s = now - (self._kill_at - STOP_GRACE_S)
    last = min((self._records[i].later for i in alive), default=0)
    # The last first, even if this call comes so late that all are due.
    for index in reversed(alive):
      record = self._records[index]
      late = since_s >= record.later * self._later_s
      if not record.asked and (late or record.later == last):
        record.asked = True
        self._backend.stop(index)
    if now >= self._kill_at:
      living = [i for i in alive if not self._records[i].killed]
      if living:
        self._kill(living)
        self._killed_at = now
      if now >= self._killed_at + KILL_GRACE_S:
        # Only threads can be left: they cannot be killed.
        names = ', '.join(self._nodes[i].name for i in alive)
        self._reason += f'; still there: {names}'
        return True
    return not alive

  def _kill(self, indices: list[int]) -> None:
    why = f'did not stop within {STOP_GRACE_S:.0f} s'
    if self._signals.interrupts > 1:
      why = 'killed at the second Ctrl-C'
      if self._exit_code == state_lib.FINISHED:  # but not to its end
        self._exit_code, self._reason = state_lib.INTERRUPTED, 'interrupted'
    for index in indices:
      where = self._backend.kill(index)
      self._records[index].killed = True
      self._nodes[index].last_error = _here(where) + why

  def _tick(self, force: bool = False) -> None:
    now = self._clock()
    if self._on_tick is None or (now < self._next_tick and not force):
      return
    self._next_tick = now + _TICK_S
    run_state = state_lib.RunState(
      nodes=[copy.copy(node) for node in self._nodes],
      elapsed_s=now - self._begin,
      stopping=self._exit_code is not None,
      reason=self._reason,
    )
    self._on_tick(run_state)


def _here(where: str | None) -> str:
  """The beginning of an error that says where a node was."""
  return f'it was here:\n{where}\n' if where else ''


def innermost(where: str) -> str:
  """Where a node was, from a stack whose innermost frame comes first."""
  frame = re.search(r'File "([^"]+)", line (\d+) in (\w+)', where)
  if frame is None:
    return ''
  path, line, function = frame.groups()
  return f', in {function} ({pathlib.Path(path).name}, line {line})'


def gist(error: str | None) -> str:
  """The line of an error's text that says what it is."""
  # The last of a chain of errors is the one that was raised.
  raised = _CAUSED.split(error or '')[-1]
  lines = [line for line in raised.splitlines() if line.strip()]
  if not lines:
    return 'no reason known'
  if lines[0].startswith('Traceback'):
    for line in lines[1:]:
      if not line.startswith(' '):
        return line
  return lines[-1].strip()
