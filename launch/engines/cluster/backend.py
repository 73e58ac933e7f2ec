"""Nodes on the hosts of a Ray cluster: placed, started, heard of, ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import pathlib
import time
from typing import Any

from murmuration.launch import pulse
from murmuration.launch.engines import processes
from murmuration.launch.engines import state as state_lib
from murmuration.launch.engines import supervision
from murmuration.launch.engines.cluster import actors
from murmuration.launch.engines.cluster import options as options_lib
from murmuration.launch.rpc import hosts

# While a node waits for its place, a run in which nothing moves has not
# stalled; but not for longer than a new machine takes.
EXCUSED_S = 900.0
_HERE_S = 60.0  # for the agent of this host to start
_SLICE_S = 0.2  # between two looks at signals, of that wait
_POLL_S = 0.25  # what an agent waits for news, at most
_SAY_S = 2.0  # between two words on a node that waits
_END_S = 8.0  # for agents to end what is left


@dataclasses.dataclass
class _Host:
  """A host with an agent."""

  agent: Any  # the actor
  name: str  # for people
  call: Any  # the agent's answer that is waited for


@dataclasses.dataclass
class _Place:
  """Of a node that is to run."""

  actor: Any  # holds its resources
  call: Any  # its answer that is waited for; None once the place is known
  again: int  # how often the node was started before
  since: float  # when the node began to wait
  host: str = ''  # Ray's id of it; '' until it is known
  pid: int | None = None
  said_at: float = 0.0  # when something was last said of the wait


class Backend(processes.Backend):
  """A supervision.Backend."""

  def __init__(
    self,
    log_paths: Sequence[pathlib.Path],
    slots: Sequence[pulse.Slot],
    plan: dict[str, Any],
    needs: Sequence[options_lib.Needs],
    on_asked: Callable[[], None],
    go_on: Callable[[], None],
  ):
    """Makes a backend; `with` starts the agent of this host.

    Args:
      log_paths: their logs, which all hosts see.
      slots: agents send copies of these.
      plan: what agents are told, see host.py.
      needs: what each node asks for.
      on_asked: called when a node asks to stop the run.
      go_on: called while this host's agent starts; what it raises ends that.
    """
    super().__init__(log_paths, slots)
    self._plan, self._needs = plan, needs
    self._on_asked, self._go_on = on_asked, go_on
    self._hosts: dict[str, _Host] = {}
    self._places: dict[int, _Place] = {}
    self._events: list[supervision.Event] = []

  def __enter__(self) -> Backend:
    import ray

    self._names = actors.names()
    self._named = self._names.hold.remote()
    self._here = ray.get_runtime_context().get_node_id()
    here = self._host(self._here)
    deadline = time.monotonic() + _HERE_S
    while not ray.wait([here.call], timeout=_SLICE_S)[0]:
      self._go_on()
      if time.monotonic() > deadline:
        raise options_lib.Refused(
          f'The agent of this host did not start within {_HERE_S:g} s.'
        )
    try:
      hosts.found(pathlib.Path(ray.get(here.call)['place']))
    except ray.exceptions.RayError as e:
      raise options_lib.Refused(
        f'This host cannot run nodes: {supervision.gist(str(e))}'
      ) from e
    return self

  def __exit__(self, *unused) -> None:
    import ray

    try:
      calls = [h.agent.call.remote('end') for h in self._hosts.values()]
      ray.wait(calls, num_returns=len(calls), timeout=_END_S)
    except Exception as e:  # Ray may be gone, and the run ends all the same
      words = f'note: Ray, at the end: {supervision.gist(str(e))}'
      state_lib.say(words, error=True)

  def _host(self, ray_id: str) -> _Host:
    """A host, whose agent is started if there is none."""
    import ray

    if ray_id not in self._hosts:
      (name,) = [
        node['NodeManagerAddress']
        for node in ray.nodes()
        if node['NodeID'] == ray_id
      ]
      agent = actors.agent(ray_id, self._plan, self._names)
      call = agent.call.remote('poll', 0.0)
      self._hosts[ray_id] = _Host(agent, name, call)
    return self._hosts[ray_id]

  def waits(self) -> bool:
    """Whether a node has waited for its place for less than it may."""
    least = time.monotonic() - EXCUSED_S
    return any(p.pid is None and p.since > least for p in self._places.values())

  def start(self, index: int, again: int) -> None:
    self._logs.begins(index)
    actor = actors.place(**options_lib.asked(self._needs[index]))
    self._places[index] = _Place(
      actor, actor.where.remote(), again, time.monotonic()
    )

  def poll(self, timeout_s: float) -> list[supervision.Event]:
    import ray

    calls: dict[Any, Callable[[Any, str], None]] = {self._named: self._lost}
    for ray_id, host in self._hosts.items():
      calls[host.call] = lambda *answer, i=ray_id: self._hear(i, *answer)
    for index, place in self._places.items():
      if place.call is not None:
        calls[place.call] = lambda *answer, i=index: self._placed(i, *answer)
    # One to wait for, and then all that is there.
    ready, _ = ray.wait([*calls], timeout=timeout_s)
    if ready:
      ready, _ = ray.wait([*calls], num_returns=len(calls), timeout=0)
    for call in ready:
      try:
        answer, error = ray.get(call), ''
      except ray.exceptions.RayError as e:
        answer, error = None, supervision.gist(str(e)) or type(e).__name__
      calls[call](answer, error)
    self._say_who_waits()
    events, self._events = self._events, []
    return events

  def _lost(self, unused: Any, error: str) -> None:
    raise supervision.BackendLost(
      f'Ray lost the actor that knows where the servers of the run are '
      f'({error}): start the run again, with --resume=...'
    )

  def _placed(
    self, index: int, answer: tuple[str, dict[str, str]] | None, error: str
  ) -> None:
    """A node has its place, or its host was lost before that."""
    place = self._places[index]
    place.call = None
    if answer is None:
      self._gone(index, f'its place was lost: {error}')
      return
    place.host, env = answer
    slot = self._slots[index]
    slot.say('')
    self._host(place.host).agent.call.remote(
      'start', index, place.again, env, slot.read()
    )

  def _hear(
    self, ray_id: str, answer: Mapping[str, Any] | None, error: str
  ) -> None:
    """An agent says what is new of its nodes, or is gone."""
    host = self._hosts[ray_id]
    if answer is None or answer['gone']:
      why = answer['gone'] if answer else error
      del self._hosts[ray_id]
      if ray_id == self._here:  # this process too finds servers by it
        raise supervision.BackendLost(
          f'the agent of this host was lost ({why}): start the run again, with '
          '--resume=...'
        )
      for index in [i for i, p in self._places.items() if p.host == ray_id]:
        # A host that never comes to run the node is a failure, and counts.
        ran = self._places[index].pid is not None
        what = 'was lost' if ran else 'cannot run nodes'
        self._gone(index, f'{host.name} {what}: {why}', killed=ran)
      return
    host.call = host.agent.call.remote('poll', _POLL_S)
    if answer['asked']:
      self._on_asked()
    for index, shown in answer['slots'].items():
      if self._is_on(index, ray_id):
        self._slots[index].write(shown)
    for message in answer['messages']:
      index, pid = message['index'], message['pid']
      if not self._is_on(index, ray_id):
        continue
      if message['event'] == 'exited':
        self._events.append(self._exited(message))
        del self._places[index]
        continue
      self._places[index].pid = pid
      shown = host.name if self._plan['credentials'] else ''
      self._events.append(
        supervision.Event(index, message['event'], pid, host=shown)
      )

  def _is_on(self, index: int, ray_id: str) -> bool:
    place = self._places.get(index)
    return place is not None and place.host == ray_id

  def _gone(self, index: int, why: str, killed: bool = False) -> None:
    """A node has ended without a word of its own."""
    self._events.append(
      supervision.Event(index, 'exited', failed=True, error=why, killed=killed)
    )
    del self._places[index]

  def _say_who_waits(self) -> None:
    now = time.monotonic()
    for index, place in self._places.items():
      if place.pid is not None or now < place.said_at + _SAY_S:
        continue
      place.said_at = now
      what = options_lib.words(self._needs[index])
      if place.host in self._hosts:
        what = f'{self._hosts[place.host].name} to import the stack'
      self._slots[index].waits(f'waits for {what}')

  def stop(self, index: int) -> None:
    place = self._places.get(index)
    if place is not None and place.pid is None:
      self._gone(index, 'it had not started')  # nobody there to ask
      return
    super().stop(index)

  def _signal(self, index: int, number: int) -> None:
    place = self._places.get(index)
    if place is not None and place.host in self._hosts:
      self._hosts[place.host].agent.call.remote('signal', index, int(number))
