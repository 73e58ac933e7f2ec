"""A Ray that the test plays, and a backend of the engine `ray` on it."""

import contextlib
import signal
import sys
import types

from launch import pulse
from launch.engines import prepare
from launch.engines.cluster import actors
from launch.engines.cluster import backend as backend_lib
from launch.engines.cluster import host
from launch.engines.cluster import seats
from launch.engines.cluster import store


class RayError(Exception):
  pass


class RayActorError(RayError):
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
  """Ray, as far as the backend uses it.

  Attributes:
    made: the actors, by kind.
    waited: how many answers each `wait` was about.
    hosts: of the cluster, Ray's id to what each has.
    asked: the options of each `init`.
    on_init: called by it.
    store_away: why its control store takes no connection; '' if it does.
  """

  exceptions = types.SimpleNamespace(
    RayError=RayError, RayActorError=RayActorError
  )

  def __init__(self):
    self.made = {'seat': [], 'agent': [], 'names': []}
    self.waited, self.asked = [], []
    self.on_init = lambda: None
    self.store_away = ''
    self.hosts = dict.fromkeys(('head', 'one', 'two'), {'CPU': 8.0, 'GPU': 1.0})

  def init(self, **options):
    self.asked.append(options)
    sys.modules['ray._private'].utils.set_sigterm_handler(
      lambda number, frame: sys.exit(number)
    )
    self.on_init()

  def get_node(self, *unused):
    return {}

  def shutdown(self):
    pass

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
    self.waited.append(len(refs))
    ready = [ref for ref in refs if ref.ready]
    return ready, [ref for ref in refs if not ref.ready]

  def get(self, ref):
    if isinstance(ref.value, Exception):
      raise ref.value
    return ref.value

  def nodes(self):
    return [
      {
        'NodeID': name,
        'NodeManagerAddress': f'10.0.0.{number}',
        'Alive': True,
        'Resources': resources,
      }
      for number, (name, resources) in enumerate(self.hosts.items(), 6)
    ]

  def get_runtime_context(self):
    return types.SimpleNamespace(
      get_node_id=lambda: 'head', gcs_address='10.0.0.6:6379'
    )

  def kill(self, actor):
    actor.dead = True


def play(monkeypatch):
  """Puts a cluster in Ray's place; looks at seats are not put off."""
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
  utils = types.SimpleNamespace(
    set_sigterm_handler=lambda handler: signal.signal(signal.SIGTERM, handler)
  )
  monkeypatch.setitem(
    sys.modules,
    'ray._private',
    types.SimpleNamespace(
      utils=utils, services=types.SimpleNamespace(get_node=made.get_node)
    ),
  )
  for kind in made.made:
    monkeypatch.setattr(actors, kind, lambda kind=kind: made.actor_class(kind))
  monkeypatch.setattr(store, '_why_away', lambda address: made.store_away)
  monkeypatch.setattr(seats, '_FRESH_S', 0.0)
  monkeypatch.setattr(seats, '_HELD_S', 0.0)
  monkeypatch.setattr(seats, '_ALIVE_S', 0.0)
  return made


def node(name):
  return prepare.PreparedNode(name, None, lambda: None, {})


@contextlib.contextmanager
def backend_on(directory, needs):
  """A backend with a node for each of those needs: actor/0, actor/1, ..."""
  nodes = [node(f'actor/{index}') for index in range(len(needs))]
  board = pulse.Board(directory, len(nodes))
  plan = host.Plan('run', len(nodes), b'', ('', ''), '', {}, ('a', 'b', 'c'))
  logs = [directory / f'{index}.log' for index in range(len(nodes))]
  watched = store.Store('10.0.0.6:6379')
  with backend_lib.Backend(
    nodes, logs, board.slots, plan, needs, lambda: None, watched
  ) as made:
    made.board, made.store = board, watched
    yield made


def news(messages=(), slots=None, gone='', problem=''):
  return {
    'messages': list(messages),
    'slots': slots or {},
    'asked': False,
    'gone': gone,
    'problem': problem,
  }


READY = [{'event': 'ready', 'index': -1, 'pid': 1}]


def described(ip='10.0.0.7', problem='', place='/p'):
  """What an agent says of its host."""
  return {'name': 'h', 'ip': ip, 'place': place, 'problem': problem}


def place(cluster, backend, ray_id='one', number=2):
  """Gives so many nodes a place on a host, where they run.

  Returns:
    The agent of that host, and the nodes' seats.
  """
  for index in range(number):
    backend.start(index, 0)
  seats = cluster.made['seat'][-number:]
  for seat in seats:
    seat.last('where').answer((ray_id, {}))
  assert backend.poll(0.0) == []
  agent = cluster.made['agent'][-1]
  agent.last('describe').answer(described())
  backend.poll(0.0)
  assert agent.asked('start') == []  # not before it can fork
  agent.last('poll').answer(news(READY))
  backend.poll(0.0)
  assert [args[0] for args in agent.asked('start')] == [*range(number)]
  agent.last('poll').answer(
    news({'event': 'running', 'index': i, 'pid': 50 + i} for i in range(number))
  )
  events = backend.poll(0.0)
  assert [(e.index, e.kind, e.pid, e.host) for e in events] == [
    (i, 'running', 50 + i, '10.0.0.7') for i in range(number)
  ]
  return agent, seats
