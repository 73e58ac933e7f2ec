"""Nodes on the hosts of a Ray cluster: placed, started, heard of, ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import pathlib
import time
from typing import Any

from launch import pulse
from launch.engines import prepare
from launch.engines import processes
from launch.engines import state as state_lib
from launch.engines import supervision
from launch.engines.cluster import actors
from launch.engines.cluster import host as host_lib
from launch.engines.cluster import resources
from launch.rpc import hosts

_POLL_S = 0.25  # what an agent waits for news, at most
_SAY_S = 2.0  # between two words on a node that waits for its place
_END_S = 8.0  # for agents to end what is left
_PAUSE_S = 1.0  # before a place is asked for again


@dataclasses.dataclass
class _Host:
  """A host with an agent.

  Attributes:
    agent: the actor.
    call: its answer that is waited for: of describe, then of poll.
    name: for people; '' until it has described itself.
    shown: the same, where there may be several.
    ready: whether nodes can be forked there.
    waiting: nodes to start when it is.
    problem: why no node can run there.
  """

  agent: Any
  call: Any
  name: str = ''
  shown: str = ''
  ready: bool = False
  waiting: list[int] = dataclasses.field(default_factory=list)
  problem: str = ''


@dataclasses.dataclass
class _Seat:
  """A node's place.

  Attributes:
    actor: holds its resources.
    call: waited for: where it is, then whether it still is.
    host: Ray's id of it; '' until it is known.
    env: what the node may use there.
    begun: whether the agent was asked to start the node.
    lost: whether the place is gone, and the node to be killed.
    pid: of the node's process.
    process_state: the kernel's letter for that.
    said_at: when something was last said of the wait.
    again_at: when to ask anew for a place that got lost.
  """

  actor: Any
  call: Any
  host: str = ''
  env: Mapping[str, str] = dataclasses.field(default_factory=dict)
  begun: bool = False
  lost: bool = False
  pid: int | None = None
  process_state: str = ''
  said_at: float = 0.0
  again_at: float | None = None


class Backend(processes.Backend):
  """A supervision.Backend."""

  def __init__(
    self,
    nodes: Sequence[prepare.PreparedNode],
    log_paths: Sequence[pathlib.Path],
    slots: Sequence[pulse.Slot],
    plan: host_lib.Plan,
    needs: Sequence[resources.Needs],
    on_asked: Callable[[], None],
  ):
    """Makes a backend; `with` asks the cluster for agents.

    Args:
      nodes: of the program.
      log_paths: likewise; all hosts see them.
      slots: the nodes' signs of life, of which agents send copies.
      plan: for agents.
      needs: what each node asks for.
      on_asked: called when a node asks to stop the run.
    """
    super().__init__(nodes, log_paths, slots)
    self._plan = plan
    self._needs = needs
    self._on_asked = on_asked
    self._hosts: dict[str, _Host] = {}
    self._seats: dict[int, _Seat] = {}
    self._requests: dict[int, dict[str, Any]] = {}
    self._events: list[supervision.Event] = []

  def __enter__(self) -> Backend:
    import ray
    from ray.util import scheduling_strategies

    self._here = ray.get_runtime_context().get_node_id()
    # Beside the launcher, without which the run is over anyway.
    here = scheduling_strategies.NodeAffinitySchedulingStrategy(
      self._here, False
    )
    self._names = actors.names().options(scheduling_strategy=here).remote()
    self._seat_class, self._agent_class = actors.seat(), actors.agent()
    return self

  def __exit__(self, *unused) -> None:
    import ray

    calls = [host.agent.end.remote() for host in self._hosts.values()]
    if calls:
      ray.wait(calls, num_returns=len(calls), timeout=_END_S)
    for seat in self._seats.values():
      ray.kill(seat.actor)
    for host in self._hosts.values():
      ray.kill(host.agent)
    ray.kill(self._names)

  def host_of(self, ray_id: str) -> _Host:
    """A host, whose agent is started if there is none."""
    from ray.util import scheduling_strategies

    if ray_id not in self._hosts:
      here = scheduling_strategies.NodeAffinitySchedulingStrategy(ray_id, False)
      agent = self._agent_class.options(scheduling_strategy=here).remote(
        self._plan, self._names
      )
      self._hosts[ray_id] = _Host(agent, agent.describe.remote())
    return self._hosts[ray_id]

  def process_state(self, node: state_lib.NodeState) -> str:
    """For the watch, see there."""
    for index, seat in self._seats.items():
      if self._nodes[index].name == node.name:
        return seat.process_state
    return ''

  def start(self, index: int, again: int) -> None:
    self._requests[index] = self._request(index, again)
    self._sit(index)

  def _sit(self, index: int) -> None:
    """Asks Ray for a place."""
    actor = self._seat_class.options(
      scheduling_strategy='SPREAD', **resources.options(self._needs[index])
    ).remote()
    self._seats[index] = _Seat(actor, actor.where.remote())

  def poll(self, timeout_s: float) -> list[supervision.Event]:
    import ray

    calls = {seat.call: (None, i) for i, seat in self._seats.items()}
    calls |= {host.call: (name, None) for name, host in self._hosts.items()}
    calls = {call: whose for call, whose in calls.items() if call is not None}
    # One to wait for, and then all that is there.
    ready, _ = ray.wait([*calls], timeout=timeout_s) if calls else ([], [])
    if ready:
      ready, _ = ray.wait([*calls], num_returns=len(calls), timeout=0)
    # What agents say of nodes comes before the seats that went with them.
    for call in sorted(ready, key=lambda call: calls[call][0] is None):
      ray_id, index = calls[call]
      try:
        answer, lost = ray.get(call), None
      except ray.exceptions.RayError as e:
        answer, lost = None, e
      if ray_id is not None:
        self._hear(ray_id, answer, lost)
      elif index in self._seats and self._seats[index].call == call:
        self._seated(index, answer, lost)
    self._say_who_waits()
    events, self._events = self._events, []
    return events

  # --- Hosts ------------------------------------------------------------------

  def _hear(self, ray_id: str, answer: Any, lost: Exception | None) -> None:
    """An agent has answered, or is gone."""
    import ray

    host = self._hosts[ray_id]
    if lost is not None:
      del self._hosts[ray_id]
      # It may only be out of reach. Then its lease ends its nodes.
      ray.kill(host.agent)
      why = f'its host was lost: {host.name}'
      if not host.name:  # such as one without room for a file
        why = (
          f'its host could not start the agent: {supervision.gist(str(lost))}'
        )
      for index in self._on(ray_id):
        # Killed nodes are started again without end; those of a host on which
        # none could begin may never run.
        self._gone(index, why, killed=host.ready)
      if ray_id == self._here and host.ready:
        self.host_of(ray_id)  # the launcher needs one, nodes there or not
      return
    if not host.name:
      host.name = answer['name']
      if ray_id == self._here:
        # The launcher asks it too, and the one before it may be gone.
        hosts.found(pathlib.Path(answer['place']))
      if self._plan.credentials is not None:
        host.name = host.shown = answer['ip']  # several may have one name
      host.problem = answer['problem']
      if host.problem:
        host.problem = f'{host.name} cannot run nodes: {host.problem}'
    else:
      self._take(ray_id, host, answer)
    host.call = host.agent.poll.remote(_POLL_S)

  def _take(self, ray_id: str, host: _Host, answer: Mapping[str, Any]) -> None:
    """Takes in what an agent says of its nodes."""
    mine = self._on(ray_id)
    for index, shown in answer['slots'].items():
      if index in mine:
        self._slots[index].write(shown)
    for index, letter in answer['states'].items():
      if index in mine:
        self._seats[index].process_state = letter
    if answer['asked']:
      self._on_asked()
    for message in answer['messages']:
      index, pid = message['index'], message['pid']
      if message['event'] == 'ready':
        host.ready = True
        waiting, host.waiting = host.waiting, []
        for i in waiting:
          self._fork(i)
      elif index not in mine:
        continue
      elif message['event'] == 'exited':
        event = self._exited(index, pid, message['code'])
        self._events.append(event)
        self._leave(index)
      else:
        seat = self._seats[index]
        if seat.lost and seat.pid is None:
          host.agent.signal.remote(index, 9)
        seat.pid = pid
        self._events.append(
          supervision.Event(index, message['event'], pid, host=host.shown)
        )
    if answer['gone']:
      host.name += f', where {answer["gone"]}'
      self._hear(ray_id, None, RuntimeError(host.name))

  def _on(self, ray_id: str) -> list[int]:
    """The nodes of a host."""
    return [i for i, seat in self._seats.items() if seat.host == ray_id]

  # --- Seats ------------------------------------------------------------------

  def _seated(self, index: int, answer: Any, lost: Exception | None) -> None:
    """A node has its place, or has lost it."""
    seat = self._seats[index]
    if lost is not None and not seat.host:
      # Nothing has run yet: it is no failure of the node.
      seat.call, seat.again_at = None, time.monotonic() + _PAUSE_S
      return
    if lost is not None:
      host = self._hosts.get(seat.host)
      if host is not None and seat.begun:
        # Its exit will be heard of. Until its process is there, there is
        # nothing to kill; elsewhere it would be a second life beside this one.
        seat.call, seat.lost = None, True
        if seat.pid is not None:
          host.agent.signal.remote(index, 9)
      else:
        self._gone(index, 'its place was lost', killed=True)
      return
    seat.host, seat.env = answer
    seat.call = seat.actor.hold.remote()
    host = self.host_of(seat.host)
    if host.ready:
      self._fork(index)
    else:
      host.waiting.append(index)

  def _fork(self, index: int) -> None:
    seat = self._seats.get(index)
    if seat is None or not seat.host:
      return
    host = self._hosts[seat.host]
    if host.problem:
      self._gone(index, host.problem)
      return
    seat.begun = True
    self._slots[index].say('')
    host.agent.start.remote(
      self._requests[index],
      {**seat.env, **self._nodes[index].executable.env_overrides},
      self._slots[index].read(),
    )

  def _gone(self, index: int, why: str, killed: bool = False) -> None:
    """A node has ended without a word of its own."""
    self._events.append(
      supervision.Event(index, 'exited', failed=True, error=why, killed=killed)
    )
    self._leave(index)

  def _leave(self, index: int) -> None:
    import ray

    seat = self._seats.pop(index)
    host = self._hosts.get(seat.host)
    if host is not None and index in host.waiting:
      host.waiting.remove(index)
    ray.kill(seat.actor)

  def _say_who_waits(self) -> None:
    now = time.monotonic()
    for index, seat in list(self._seats.items()):
      if seat.again_at is not None and now >= seat.again_at:
        self._leave(index)
        self._sit(index)
        continue
      if seat.pid is not None or now < seat.said_at + _SAY_S:
        continue
      seat.said_at = now
      if not seat.host:
        self._slots[index].waits(
          f'waits for {resources.words(self._needs[index])}'
        )
      elif not self._hosts[seat.host].ready:
        name = self._hosts[seat.host].name or 'its host'
        self._slots[index].waits(f'waits for {name} to import the stack')

  # --- What the supervisor wants ----------------------------------------------

  def stop(self, index: int) -> None:
    seat = self._seats.get(index)
    if seat is not None and seat.pid is None:
      self._gone(index, 'it had not started')  # nobody there to ask
      return
    super().stop(index)

  def _signal(self, index: int, number: int) -> None:
    seat = self._seats.get(index)
    if seat is not None and seat.host in self._hosts:
      self._hosts[seat.host].agent.signal.remote(index, int(number))
