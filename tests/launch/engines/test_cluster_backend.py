"""Placing, losing and finding of nodes, with a Ray that the test plays."""

import signal
import sys
import types

import pytest

from launch import pulse
from launch.engines import prepare
from launch.engines import restarts
from launch.engines.cluster import actors
from launch.engines.cluster import backend as backend_lib
from launch.engines.cluster import host
from launch.rpc import hosts


class RayError(Exception):
  pass


class Ref:
  """An answer that comes when the test says so."""

  def __init__(self, method, args):
    self.method, self.args = method, args
    self.ready, self.value = False, None

  def answer(self, value):
    self.ready, self.value = True, value


class Actor:
  """Remembers what it was asked."""

  def __init__(self, *args, **options):
    self.options, self.calls, self.dead = options, [], False

  def __getattr__(self, method):
    def remote(*args):
      self.calls.append(Ref(method, args))
      return self.calls[-1]

    return types.SimpleNamespace(remote=remote)

  def last(self, method):
    return [call for call in self.calls if call.method == method][-1]

  def asked(self, method):
    return [call.args for call in self.calls if call.method == method]


class Cluster:
  """Ray, as far as the backend uses it."""

  exceptions = types.SimpleNamespace(RayError=RayError)

  def __init__(self):
    self.made = {'seat': [], 'agent': [], 'names': []}

  def actor_class(self, kind):
    def remote(*args, **options):
      self.made[kind].append(Actor(*args, **options))
      return self.made[kind][-1]

    return types.SimpleNamespace(
      remote=remote,
      options=lambda **options: types.SimpleNamespace(
        remote=lambda *args: remote(*args, **options)
      ),
    )

  def wait(self, refs, num_returns=1, timeout=None):
    ready = [ref for ref in refs if ref.ready]
    return ready, [ref for ref in refs if not ref.ready]

  def get(self, ref):
    if isinstance(ref.value, Exception):
      raise ref.value
    return ref.value

  def get_runtime_context(self):
    return types.SimpleNamespace(get_node_id=lambda: 'head')

  def kill(self, actor):
    actor.dead = True


def node(name):
  executable = types.SimpleNamespace(
    command_as_list=['python', '/there/job.pkl'], env_overrides={}
  )
  return prepare.PreparedNode(
    name, None, executable, restarts.Restart(), {}, frozenset()
  )


@pytest.fixture
def cluster(monkeypatch):
  made = Cluster()
  monkeypatch.setitem(sys.modules, 'ray', made)
  monkeypatch.setitem(
    sys.modules,
    'ray.util',
    types.SimpleNamespace(
      scheduling_strategies=types.SimpleNamespace(
        NodeAffinitySchedulingStrategy=lambda host, soft: host
      )
    ),
  )
  for kind in made.made:
    monkeypatch.setattr(actors, kind, lambda kind=kind: made.actor_class(kind))
  return made


@pytest.fixture
def backend(cluster, tmp_path):
  nodes = [node('actor/0'), node('actor/1')]
  board = pulse.Board(tmp_path, len(nodes))
  plan = host.Plan('run', 2, '/there', {}, ('', ''), '', {}, ('a', 'b', 'c'))
  made = backend_lib.Backend(
    nodes,
    [tmp_path / f'{i}.log' for i in range(2)],
    board.slots,
    plan,
    [{'CPU': 1.0}, {'CPU': 2.0, 'GPU': 1.0}],
    lambda: None,
  )
  made.board = board
  with made:
    yield made


def news(messages=(), slots=None, gone=''):
  return {
    'messages': list(messages),
    'slots': slots or {},
    'states': {},
    'asked': False,
    'gone': gone,
  }


def place(cluster, backend, ray_id='one'):
  """Gives both nodes a place on a host, where they run."""
  for index in range(2):
    backend.start(index, 0)
  seats = cluster.made['seat'][-2:]
  for seat in seats:
    seat.last('where').answer((ray_id, {}))
  assert backend.poll(0.0) == []
  agent = cluster.made['agent'][-1]
  agent.last('describe').answer(
    {'name': 'h', 'ip': '10.0.0.7', 'place': '/p', 'problem': ''}
  )
  backend.poll(0.0)
  assert agent.asked('start') == []  # not before it can fork
  agent.last('poll').answer(news([{'event': 'ready', 'index': -1, 'pid': 1}]))
  backend.poll(0.0)
  assert [args[0]['name'] for args in agent.asked('start')] == [
    'actor/0',
    'actor/1',
  ]
  agent.last('poll').answer(
    news({'event': 'running', 'index': i, 'pid': 50 + i} for i in range(2))
  )
  events = backend.poll(0.0)
  assert [(e.index, e.kind, e.pid, e.host) for e in events] == [
    (0, 'running', 50, '10.0.0.7'),
    (1, 'running', 51, '10.0.0.7'),
  ]
  return agent, seats


def test_a_node_asks_for_its_resources_and_says_what_it_waits_for(
  cluster, backend
):
  backend.start(1, 0)
  backend.poll(0.0)
  (seat,) = cluster.made['seat']
  assert seat.options['num_cpus'] == 2.0 and seat.options['num_gpus'] == 1.0
  assert backend.board.slots[1].text == 'waits for 2 CPU and 1 GPU'


def test_the_names_are_on_the_host_of_the_launcher(cluster, backend):
  (names,) = cluster.made['names']
  assert names.options == {'scheduling_strategy': 'head'}


def test_nodes_start_where_they_were_placed_and_their_signs_are_seen(
  cluster, backend
):
  agent, _ = place(cluster, backend)
  shown = pulse.Board(backend._logs.paths[0].parent, 1).slots[0]
  shown.add(0)
  agent.last('poll').answer(news(slots={0: shown.read()}))
  backend.poll(0.0)
  assert backend.board.slots[0].beats == 1
  backend.stop(0)
  assert (0, int(signal.SIGTERM)) in agent.asked('signal')


def test_a_lost_host_is_the_end_of_its_nodes_which_then_start_elsewhere(
  cluster, backend
):
  agent, seats = place(cluster, backend)
  # Ray says it of all of them at one time.
  for actor, method in [(agent, 'poll'), *((seat, 'hold') for seat in seats)]:
    actor.last(method).answer(RayError('The actor died.'))
  events = backend.poll(0.0)
  assert [(e.index, e.kind, e.failed, e.killed) for e in events] == [
    (0, 'exited', True, True),
    (1, 'exited', True, True),
  ]
  assert events[0].error == 'its host was lost: 10.0.0.7'
  assert agent.dead and all(seat.dead for seat in seats)
  other, _ = place(cluster, backend, 'two')
  assert other is not agent


def test_the_launcher_asks_the_newest_agent_of_its_own_host(
  cluster, backend, monkeypatch
):
  monkeypatch.setattr(hosts, '_agent', None)
  place(cluster, backend, 'two')
  assert hosts._agent is None
  agent, _ = place(cluster, backend, 'head')
  assert hosts._agent.address == 'unix:/p/agent'
  agent.last('poll').answer(RayError('The actor died.'))
  backend.poll(0.0)
  other = cluster.made['agent'][-1]
  assert other is not agent  # though no node is there by now
  other.last('describe').answer(
    {'name': 'h', 'ip': '10.0.0.7', 'place': '/q', 'problem': ''}
  )
  backend.poll(0.0)
  assert hosts._agent.address == 'unix:/q/agent'


def test_a_node_whose_place_was_taken_is_killed_by_its_agent(cluster, backend):
  agent, seats = place(cluster, backend)
  seats[0].last('hold').answer(RayError('The actor died.'))
  assert backend.poll(0.0) == []
  assert agent.asked('signal') == [(0, int(signal.SIGKILL))]
  agent.last('poll').answer(
    news([{'event': 'exited', 'index': 0, 'pid': 50, 'code': -9}])
  )
  (event,) = backend.poll(0.0)
  assert (event.index, event.kind, event.killed) == (0, 'exited', True)


def test_a_node_whose_place_is_taken_while_it_is_forked_has_one_life(
  cluster, backend
):
  backend.start(0, 0)
  (seat,) = cluster.made['seat']
  seat.last('where').answer(('one', {}))
  backend.poll(0.0)
  (agent,) = cluster.made['agent']
  agent.last('describe').answer(
    {'name': 'h', 'ip': '10.0.0.7', 'place': '/p', 'problem': ''}
  )
  backend.poll(0.0)
  agent.last('poll').answer(news([{'event': 'ready', 'index': -1, 'pid': 1}]))
  backend.poll(0.0)
  assert len(agent.asked('start')) == 1
  seat.last('hold').answer(RayError('The actor died.'))
  # Not yet: the process is on its way, and would go on beside the next.
  assert backend.poll(0.0) == []
  assert agent.asked('signal') == []
  for kind in ('started', 'running'):
    agent.last('poll').answer(news([{'event': kind, 'index': 0, 'pid': 50}]))
    assert [event.kind for event in backend.poll(0.0)] == [kind]
  assert agent.asked('signal') == [(0, int(signal.SIGKILL))]
  agent.last('poll').answer(
    news([{'event': 'exited', 'index': 0, 'pid': 50, 'code': -9}])
  )
  (event,) = backend.poll(0.0)
  assert (event.kind, event.failed, event.killed) == ('exited', True, True)
  assert seat.dead


def test_a_node_whose_place_is_taken_before_it_is_forked_is_placed_again(
  cluster, backend
):
  backend.start(0, 0)
  (seat,) = cluster.made['seat']
  seat.last('where').answer(('one', {}))
  backend.poll(0.0)
  seat.last('hold').answer(RayError('The actor died.'))
  (event,) = backend.poll(0.0)
  assert (event.kind, event.killed) == ('exited', True)
  assert event.error == 'its place was lost'


def described(cluster, backend, problem=''):
  """The agent of a host that has said what it is, and is not ready yet."""
  backend.start(0, 0)
  cluster.made['seat'][0].last('where').answer(('one', {}))
  backend.poll(0.0)
  (agent,) = cluster.made['agent']
  agent.last('describe').answer(
    {'name': 'h', 'ip': '10.0.0.7', 'place': '/p', 'problem': problem}
  )
  backend.poll(0.0)
  return agent


def test_a_host_whose_starter_ends_before_it_is_ready_is_a_nodes_failure(
  cluster, backend
):
  agent = described(cluster, backend)
  agent.last('poll').answer(news(gone='something ended: no memory'))
  (event,) = backend.poll(0.0)
  assert event.error == (
    'its host was lost: 10.0.0.7, where something ended: no memory'
  )
  # Of which there may be only so many.
  assert event.failed and not event.killed and agent.dead


def test_a_host_that_can_no_longer_run_nodes_is_given_up(cluster, backend):
  agent, _ = place(cluster, backend)
  agent.last('poll').answer(news(gone='the tunnel ended'))
  events = backend.poll(0.0)
  assert [(e.index, e.kind, e.killed) for e in events] == [
    (0, 'exited', True),
    (1, 'exited', True),
  ]
  assert events[0].error == (
    'its host was lost: 10.0.0.7, where the tunnel ended'
  )
  assert agent.dead


def test_a_host_that_cannot_run_nodes_is_why_a_node_fails(cluster, backend):
  agent = described(cluster, backend, problem='no directory')
  agent.last('poll').answer(news([{'event': 'ready', 'index': -1, 'pid': 1}]))
  (event,) = backend.poll(0.0)
  assert event.error == '10.0.0.7 cannot run nodes: no directory'
  assert event.failed and not event.killed


def test_a_host_without_room_for_its_agent_is_why_a_node_fails(
  cluster, backend
):
  backend.start(0, 0)
  cluster.made['seat'][0].last('where').answer(('one', {}))
  backend.poll(0.0)
  (agent,) = cluster.made['agent']
  agent.last('describe').answer(
    RayError('The actor died.\nOSError: [Errno 28] No space left on device')
  )
  (event,) = backend.poll(0.0)
  assert event.error == (
    'its host could not start the agent: '
    'OSError: [Errno 28] No space left on device'
  )
  # A failure, of which there may be only so many.
  assert event.failed and not event.killed and agent.dead


def test_a_node_that_waits_for_its_place_stops_at_once(cluster, backend):
  backend.start(0, 0)
  backend.stop(0)
  (event,) = backend.poll(0.0)
  assert (event.index, event.kind) == (0, 'exited')
