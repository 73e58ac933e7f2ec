"""Nodes on the hosts of a Ray cluster: placed, started, heard of, ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import pathlib
import time
from typing import Any

from launch import pulse
from launch.engines import output
from launch.engines import prepare
from launch.engines import processes
from launch.engines import supervision
from launch.engines.cluster import actors
from launch.engines.cluster import host as host_lib
from launch.engines.cluster import resources
from launch.engines.cluster import seats as seats_lib
from launch.engines.cluster import store as store_lib
from launch.rpc import hosts

_POLL_S = 0.25  # what an agent waits for news, at most
_SAY_S = 2.0  # between two words on a node that waits for its place
_END_S = 8.0  # for agents to end what is left
# An agent that ended before it could start nodes may have had bad luck.
_MOST_BEGINS = 2
_GIST = 200  # characters of an error of Ray


@dataclasses.dataclass
class _Host:
  """A host with an agent."""

  agent: Any  # the actor
  call: Any  # its answer that is waited for: of describe, then of poll
  name: str  # for people
  described: bool = False  # whether it has described itself
  shown: str = ''  # its name, where there may be several
  ready: bool = False  # whether nodes can be forked there


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
    store: store_lib.Store,
  ):
    """Makes a backend; `with` asks the cluster for agents.

    All hosts see `log_paths`, and agents send copies of `slots`. `on_asked` is
    called when a node asks to stop the run.
    """
    super().__init__(log_paths, slots)
    self._nodes = nodes
    self._plan, self._store = plan, store
    self._on_asked = on_asked
    self._hosts: dict[str, _Host] = {}
    self._ips: dict[str, str] = {}  # of all hosts, by Ray's id
    self._begins: dict[str, int] = {}  # that ended too soon, in a row
    self._again: dict[int, int] = {}  # index -> restarts
    self._events: list[supervision.Event] = []
    self._seats = seats_lib.Seats(needs, store)

  def __enter__(self) -> Backend:
    import ray
    from ray.util import scheduling_strategies

    self._here = ray.get_runtime_context().get_node_id()
    # Beside the launcher, without which the run is over anyway.
    here = scheduling_strategies.NodeAffinitySchedulingStrategy(
      self._here, False
    )
    self._names = actors.names().options(scheduling_strategy=here).remote()
    self._named = self._names.hold.remote()
    self._agent_class = actors.agent()
    return self

  def __exit__(self, *unused) -> None:
    import ray

    # Ray itself may be gone: how the run ended is to be heard of all the same.
    with _said_at_most():
      calls = [host.agent.end.remote() for host in self._hosts.values()]
      if calls:
        ray.wait(calls, num_returns=len(calls), timeout=_END_S)
    self._seats.close()
    for actor in [host.agent for host in self._hosts.values()] + [self._names]:
      with _said_at_most():
        self._store.kill(actor)

  def host_of(self, ray_id: str) -> _Host:
    """A host, whose agent is started if there is none."""
    from ray.util import scheduling_strategies

    if ray_id not in self._hosts:
      here = scheduling_strategies.NodeAffinitySchedulingStrategy(ray_id, False)
      agent = self._agent_class.options(scheduling_strategy=here).remote(
        self._plan, self._names
      )
      if ray_id not in self._ips:
        with contextlib.suppress(TimeoutError):
          self._ips |= {
            node['NodeID']: node['NodeManagerAddress']
            for node in self._store.nodes()
          }
      name = self._ips.get(ray_id, 'a host that is gone')
      self._hosts[ray_id] = _Host(agent, agent.describe.remote(), name)
    return self._hosts[ray_id]

  def waits(self) -> bool:
    """Whether a node waits for its place, and may."""
    return self._seats.waits()

  def start(self, index: int, again: int) -> None:
    self._logs.begins(index)
    self._again[index] = again
    self._sit(index)

  def _sit(self, index: int) -> None:
    """Asks for a place, in the stead of one that is there."""
    why = self._seats.impossible(index)
    if why:
      self._gone(index, f'no host is left for it: {why}')
    else:
      self._seats.ask(index)

  def poll(self, timeout_s: float) -> list[supervision.Event]:
    import ray

    calls = {host.call: name for name, host in self._hosts.items()}
    calls[self._named] = ''
    # One to wait for, and then all that is there.
    ready, _ = ray.wait([*calls], timeout=timeout_s)
    if ready:
      ready, _ = ray.wait([*calls], num_returns=len(calls), timeout=0)
    for call in ready:
      answer, lost = _answer(call)
      if call == self._named:
        also = "Ray's control store is away, and " * self._store.away
        raise supervision.BackendLost(
          f'{also}the actor that knows where the servers of the run are is '
          f'gone ({_gist(lost)}): start the run again, with --resume=...'
        )
      self._hear(calls[call], answer, lost)
    # After what agents say of nodes: the seats may have gone with them.
    answered = self._seats.look()
    if answered is not None:
      for index, call in answered:
        self._answered(index, call)
      self._say_who_waits()
    events, self._events = self._events, []
    return events

  # --- Hosts ------------------------------------------------------------------

  def _hear(self, ray_id: str, answer: Any, lost: Exception | None) -> None:
    """An agent has answered, or is gone."""
    host = self._hosts[ray_id]
    if lost is not None:
      self._without(ray_id, _gist(lost))
    elif host.described:
      self._take(ray_id, host, answer)
    else:
      self._describe(ray_id, host, answer)
    if self._hosts.get(ray_id) is host:  # it may be given up by now
      host.call = host.agent.poll.remote(_POLL_S)

  def _describe(
    self, ray_id: str, host: _Host, answer: Mapping[str, Any]
  ) -> None:
    """An agent says what its host is, and whether nodes can run there."""
    host.described = True
    if self._plan.credentials is not None:
      host.name = host.shown = answer['ip']  # several may have one name
    else:
      host.name = answer['name']
    if answer['problem']:
      self._avoid(ray_id, f'{host.name} cannot run nodes: {answer["problem"]}')
    if not answer['place']:  # it has not begun: there is nothing to end
      self._forget(ray_id)
    elif ray_id == self._here:
      # The launcher asks it too, and the one before it may be gone.
      hosts.found(pathlib.Path(answer['place']))

  def _take(self, ray_id: str, host: _Host, answer: Mapping[str, Any]) -> None:
    """Takes in what an agent says of its nodes."""
    mine = set(self._seats.on(ray_id))
    for index, shown in answer['slots'].items():
      if index in mine:
        self._slots[index].write(shown)
    if answer['asked']:
      self._on_asked()
    if answer['problem'] and self._seats.avoids(ray_id):
      self._seats.avoid(ray_id, answer['problem'])  # it lasts
    for message in answer['messages']:
      index, pid = message['index'], message['pid']
      if message['event'] == 'ready':
        host.ready = True
        self._begins.pop(ray_id, None)
        for i in self._seats.on(ray_id):
          self._fork(i)
      elif index not in mine:
        continue
      elif message['event'] == 'exited':
        self._events.append(self._exited(message))
        self._seats.leave(index)
      else:
        seat = self._seat(index)
        if seat.lost and seat.pid is None:
          host.agent.signal.remote(index, 9)
        seat.pid = pid
        self._events.append(
          supervision.Event(index, message['event'], pid, host=host.shown)
        )
    if answer['gone']:
      self._without(ray_id, answer['gone'], f', where {answer["gone"]}')

  def _without(self, ray_id: str, why: str, where: str = '') -> None:
    """The agent of a host is gone."""
    host = self._forget(ray_id)
    if host.ready:
      for index in self._seats.on(ray_id):
        self._gone(index, f'its host was lost: {host.name}{where}', killed=True)
      if ray_id == self._here:
        self.host_of(ray_id)  # the launcher needs one, nodes there or not
      return
    self._begins[ray_id] = self._begins.get(ray_id, 0) + 1
    if self._begins[ray_id] >= _MOST_BEGINS:
      self._avoid(ray_id, f'{host.name} could not start the agent: {why}')
    else:
      for index in self._seats.on(ray_id):
        self._sit(index)

  def _forget(self, ray_id: str) -> _Host:
    host = self._hosts.pop(ray_id)
    # It may only be out of reach. Then its lease ends its nodes.
    with _said_at_most():
      self._store.kill(host.agent)
    return host

  def _avoid(self, ray_id: str, why: str) -> None:
    """A host can run no node. That is no failure of those placed there."""
    if self._seats.avoid(ray_id, why):
      output.warn(f'note: {why}. Nodes go to other hosts.')
    for index in self._seats.on(ray_id):
      self._sit(index)

  # --- Seats ------------------------------------------------------------------

  def _answered(self, index: int, call: Any) -> None:
    """A node has its place, or has lost it, or was started, or was not."""
    import ray

    seat = self._seats.get(index)
    if seat is None or call not in (seat.call, seat.begins):
      return  # of a place before this one
    answer, lost = _answer(call)
    if call == seat.begins:
      seat.begins = None
      # Of an agent that is gone, its own call says more.
      if lost and not isinstance(lost, ray.exceptions.RayActorError):
        name = self._hosts[seat.host].name
        self._gone(index, f'{name} could not start it: {_gist(lost)}')
    elif lost is None:
      self._seats.take(index, *answer)
      if self._seats.avoids(seat.host):
        self._sit(index)
      elif self.host_of(seat.host).ready:
        self._fork(index)
    elif not seat.host:
      # Nothing has run yet: it is no failure of the node, unless it is always
      # so.
      if not self._seats.lose(index, _gist(lost)):
        often = f'its places were lost {seat.tries} times in a row'
        self._gone(index, f'{often}: {seat.why}')
    elif seat.begun and seat.host in self._hosts:
      # Its exit will be heard of. Until its process is there, there is
      # nothing to kill; elsewhere it would be a second life beside this one.
      seat.call, seat.lost = None, True
      if seat.pid is not None:
        self._signal(index, 9)
    else:
      self._gone(index, 'its place was lost', killed=True)

  def _seat(self, index: int) -> seats_lib.Seat:
    seat = self._seats.get(index)
    assert seat is not None, index
    return seat

  def _fork(self, index: int) -> None:
    seat = self._seat(index)
    if seat.begun:
      return
    seat.begun = True
    self._slots[index].say('')
    seat.begins = self._hosts[seat.host].agent.start.remote(
      index, self._again[index], seat.env, self._slots[index].read()
    )

  def _gone(self, index: int, why: str, killed: bool = False) -> None:
    """A node has ended without a word of its own."""
    self._events.append(
      supervision.Event(index, 'exited', failed=True, error=why, killed=killed)
    )
    self._seats.leave(index)

  def _say_who_waits(self) -> None:
    now = time.monotonic()
    for index, seat in self._seats.items():
      lost = seat.again_at is not None and now >= seat.again_at
      if lost or self._seats.late(index):
        self._sit(index)
        continue
      if seat.pid is not None or now < seat.said_at + _SAY_S:
        continue
      seat.said_at = now
      if not seat.host:
        self._slots[index].waits(self._seats.words(index))
      elif seat.host in self._hosts and not self._hosts[seat.host].ready:
        name = self._hosts[seat.host].name
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


def _answer(call: Any) -> tuple[Any, Exception | None]:
  """What a call that has ended returned, or its error."""
  import ray

  try:
    return ray.get(call), None
  except ray.exceptions.RayError as e:
    return None, e


def _gist(error: Exception | None) -> str:
  """Without the traceback that Ray has in it."""
  said = supervision.gist(str(error)).rstrip('.')
  return said if len(said) <= _GIST else f'{said[:_GIST]} ...'


@contextlib.contextmanager
def _said_at_most() -> Iterator[None]:
  """What goes wrong in here is said; the run has an end of its own."""
  try:
    yield
  except Exception as e:
    output.warn(f'note: Ray says, as the run ends: {_gist(e)}')
