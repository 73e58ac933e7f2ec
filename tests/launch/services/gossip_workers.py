"""Workers that gossip, played by a test: no network, no process."""

import threading
import time
import types
from unittest import mock

import numpy as np

from murmuration.agents import parameters
from murmuration.launch import rpc
from murmuration.launch.services import gossip

SIZE = 6


class Learner:
  """As much of a learner as an exchange of gossip asks for."""

  def __init__(self, value):
    self.theta = np.full((1, SIZE), value, np.float32)
    self.agent = types.SimpleNamespace(
      layout=parameters.Layout([('w', (SIZE,))]), maxima=()
    )

  def parameters(self):
    return self.theta.copy()

  def set_parameters(self, theta):
    self.theta = np.array(theta)


class Worker:
  """A worker whose update is a number that it adds."""

  def __init__(self, exchange, value=0.0, step=0.0, again=False):
    self.exchange, self.step = exchange, step
    self.learner = Learner(value)
    self.steps = self.iterations = 0
    self.stopped = False
    self.look = lambda: None  # once an iteration has ended
    self.learner.theta = np.array(exchange.initial(self.learner.theta, again))
    exchange.setup(self.learner, 0)

  def begin(self):
    self.exchange.begin(self)
    return self

  def over(self):
    return self.stopped

  def iterate(self):
    self.learner.theta += self.step
    self.steps += 10
    self.iterations += 1
    self.look()
    self.exchange.updated(None)
    return self.exchange.sync()

  @property
  def value(self):
    assert np.ptp(self.learner.theta) == 0
    return float(self.learner.theta[0, 0])


def theta(value):
  return np.full((1, SIZE), value, np.float32)


class Client:
  """Stands for the client of a worker.

  Attributes:
    exchange: of the worker; None: it is away.
    got: (sender, message) of each call that it answered.
    state: what it answers to who asks for it; None: what its exchange says.
  """

  def __init__(self, exchange=None, state=None):
    self.exchange, self.state = exchange, state
    self.got = []

  def with_deadline(self, timeout_s):
    del timeout_s
    return self

  def push_message(self, sender, *message):
    if self.exchange is None:
      raise rpc.Unavailable('nowhere', 'push_message', False, 'away')
    self.got.append((sender, gossip.Message(*message)))
    self.exchange.push_message(sender, *message)

  def gossip_state(self, asker):
    if self.state is not None:
      return self.state
    if self.exchange is None:
      raise rpc.Unavailable('nowhere', 'gossip_state', False, 'away')
    return self.exchange.gossip_state(asker)


class Direct:
  """A `gossip.Sender` without a thread: what is sent arrives at once."""

  fault = None

  def __init__(self, own, client):
    self._own, self._client = own, client

  def put(self, message):
    try:
      self._client.push_message(self._own, *message)
    except rpc.Unavailable:
      pass

  def start(self):
    pass

  def close(self):
    pass


def make_exchange(graph, index, clients, **options):
  """An exchange whose messages arrive at once."""
  with mock.patch.object(gossip, 'Sender', Direct):
    return gossip.Gossip(
      graph, index, {j: clients[j] for j in graph.neighbours(index)}, **options
    )


def make_workers(graph, values=None, step=0.0, **options):
  """(workers that have begun, their clients), for each node of the graph."""
  clients = [Client() for _ in range(graph.size)]
  for i, client in enumerate(clients):
    client.exchange = make_exchange(graph, i, clients, **options)
  values = [0.0] * graph.size if values is None else values
  workers = [
    Worker(client.exchange, value, step)
    for client, value in zip(clients, values)
  ]
  together([worker.begin for worker in workers])
  return workers, clients


def metrics(worker):
  return worker.exchange.metrics()


def together(calls):
  """Makes calls in threads of their own, and waits for all."""
  errors = []

  def run(call):
    try:
      call()
    except Exception as e:
      errors.append(e)

  threads = [
    threading.Thread(target=run, args=(call,), daemon=True) for call in calls
  ]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join(timeout=60)
    assert not thread.is_alive()
  assert not errors, errors


def run_all(workers, iterations, pauses):
  """All at once, each with its pause; what each sees of its neighbours."""
  leads, graph = [], gossip.Graph('ring', len(workers))

  def run(i):
    worker, rng = workers[i], np.random.default_rng(i)

    def look():
      for j in graph.all_sources(i):
        leads.append(worker.iterations - workers[j].iterations)

    worker.look = look
    for _ in range(iterations):
      time.sleep(pauses[i] * rng.uniform())
      worker.iterate()
    worker.exchange.ended()

  together([lambda i=i: run(i) for i in range(len(workers))])
  return max(leads)
