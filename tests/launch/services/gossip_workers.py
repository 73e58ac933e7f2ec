"""Workers that gossip, played by a test: no network, no process."""

import threading
import time
import types

import numpy as np

from agents import optimizers
from agents import parameters
from agents.exchange import mix
from agents.exchange import mixing
from launch.services import gossip_rpc

SIZE = 6


class Learner:
  """As much of a learner as an exchange of gossip asks for."""

  def __init__(self, value):
    self.theta = np.full((1, SIZE), value, np.float32)
    self.agent = types.SimpleNamespace(
      optimizer=optimizers.RMSProp(),
      layout=parameters.Layout([('w', (SIZE,))]),
      maxima=(),
    )
    self.slots = np.zeros((1, SIZE), np.float32)

  def save(self):
    return {'theta': self.theta.copy(), 'slot_0': self.slots}

  def restore(self, arrays):
    self.theta, self.slots = arrays['theta'], arrays['slot_0']

  def parameters(self):
    return self.theta.copy()

  def set_parameters(self, theta):
    self.theta = np.array(theta)


class Worker:
  """A worker whose update is a number that it adds."""

  def __init__(self, exchange, value=0.0, step=0.0, again=False):
    self.exchange, self._step = exchange, step
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
    self.learner.theta += self._step
    self.steps += 10
    self.iterations += 1
    self.look()
    self.exchange.updated(None)
    return self.exchange.sync()

  @property
  def value(self):
    assert np.ptp(self.learner.theta) == 0
    return float(self.learner.theta[0, 0])


class Direct(gossip_rpc.RpcCarrier):
  """A carrier without a wire: `all_of_them[i]` is the inbox of worker i."""

  def __init__(self, own, all_of_them):
    super().__init__(own, {})
    self.own, self.all, self.cut = own, all_of_them, False

  def start(self, shape):
    pass

  def send(self, receivers, message):
    for receiver in receivers:
      if not self.cut:
        self.all[receiver].receive(self.own, message)

  def close(self):
    pass


def make_workers(graph, values=None, step=0.0, **options):
  """(workers, their carriers), one of each for each node of the graph."""
  carriers = []
  carriers.extend(Direct(i, carriers) for i in range(graph.size))
  values = [0.0] * graph.size if values is None else values
  workers = [
    Worker(mix.Mix(graph, i, carriers[i], **options), values[i], step)
    for i in range(graph.size)
  ]
  for worker in workers:
    worker.begin()
  return workers, carriers


def metrics(worker):
  return worker.exchange.metrics()


def run_all(workers, iterations, pauses):
  """All at once, each with its pause; what each sees of its neighbours."""
  leads, errors = [], []

  def run(i):
    worker, graph = workers[i], mixing.Graph('ring', len(workers))
    rng = np.random.default_rng(i)

    def look():
      for j in graph.all_sources(i):
        leads.append(worker.iterations - workers[j].iterations)

    worker.look = look
    try:
      for _ in range(iterations):
        time.sleep(pauses[i] * rng.uniform())
        worker.iterate()
    except Exception as e:
      errors.append(e)
    worker.exchange.ended()

  threads = [
    threading.Thread(target=run, args=(i,)) for i in range(len(workers))
  ]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join(timeout=60)
    assert not thread.is_alive()
  assert not errors, errors
  return max(leads)
