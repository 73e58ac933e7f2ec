"""A Ray that the test plays, and a backend of the engine `ray` on it."""

import contextlib
import importlib.machinery
import sys
import types

from murmuration.launch import pulse
from murmuration.launch.engines.cluster import actors
from murmuration.launch.engines.cluster import backend as backend_lib


class RayError(Exception):
  pass


class Ref:
  """An answer that comes when the test says so."""

  def __init__(self, args):
    self.args, self.ready, self.value = args, False, None

  def answer(self, value):
    self.ready, self.value = True, value


class Actor:
  """Remembers what it was asked."""

  def __init__(self, options):
    self.options, self.calls = options, []

  def __getattr__(self, method):
    def remote(*args):
      args = args if method == 'call' else (method, *args)
      self.calls.append(Ref(args))
      return self.calls[-1]

    return types.SimpleNamespace(remote=remote)

  def last(self, method):
    return [call for call in self.calls if call.args[0] == method][-1]

  def asked(self, method):
    return [call.args[1:] for call in self.calls if call.args[0] == method]


class Cluster:
  """Ray, as far as the engine uses it.

  Attributes:
    places, agents: the actors that were made, in their order.
    names: the actor of names.
    hosts: Ray's ids to what each has.
    on_init: called by `init`.
  """

  __spec__ = importlib.machinery.ModuleSpec('ray', None)
  exceptions = types.SimpleNamespace(RayError=RayError)

  def __init__(self):
    self.places, self.agents = [], []
    self.names = Actor({})
    self.hosts = {'head': {'CPU': 8.0}, 'one': {'CPU': 8.0}}
    self.on_init = lambda: None
    self.on_wait = lambda: None

  def init(self, **unused):
    self.on_init()

  def shutdown(self):
    pass

  def place(self, **options):
    self.places.append(Actor(options))
    return self.places[-1]

  def agent(self, host, plan, names):
    self.agents.append(Actor({'host': host}))
    return self.agents[-1]

  def wait(self, refs, num_returns=1, timeout=None):
    self.on_wait()
    return [ref for ref in refs if ref.ready], []

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
    return types.SimpleNamespace(get_node_id=lambda: 'head')


def play(monkeypatch):
  """Puts a cluster in Ray's place."""
  made = Cluster()
  monkeypatch.setitem(sys.modules, 'ray', made)
  monkeypatch.setattr(actors, 'place', made.place)
  monkeypatch.setattr(actors, 'names', lambda: made.names)
  monkeypatch.setattr(actors, 'agent', made.agent)
  return made


def news(messages=(), slots=None, gone='', asked=False):
  return {
    'place': '/p',
    'messages': list(messages),
    'slots': slots or {},
    'asked': asked,
    'gone': gone,
  }


@contextlib.contextmanager
def backend_on(cluster, directory, needs, asked=lambda: None):
  """A backend with a node for each of those needs."""
  slots = pulse.Board(directory, len(needs)).slots
  logs = [directory / f'{index}.log' for index in range(len(needs))]
  made = backend_lib.Backend(
    logs, slots, {'credentials': 'c'}, needs, asked, lambda: None
  )

  def answered():  # the agent of this host, for which the backend waits
    cluster.agents[0].last('poll').answer(news())

  cluster.on_wait = answered
  with made:
    cluster.on_wait = lambda: None
    made.poll(0.0)
    made.slots = slots
    yield made


def placed(cluster, backend, host='one', number=2):
  """Gives so many nodes a place on a host, where they run; its agent."""
  for index in range(number):
    backend.start(index, 0)
  for place in cluster.places[-number:]:
    place.last('where').answer((host, {'CUDA_VISIBLE_DEVICES': '3'}))
  assert backend.poll(0.0) == []
  agent = cluster.agents[-1]
  agent.last('poll').answer(
    news({'event': 'running', 'index': i, 'pid': 50 + i} for i in range(number))
  )
  events = backend.poll(0.0)
  assert [(e.index, e.kind, e.pid, e.host) for e in events] == [
    (i, 'running', 50 + i, '10.0.0.7') for i in range(number)
  ]
  return agent
