"""Gossip between workers that a test plays: lock, deaths, means, and RPC."""

import functools
import threading
import time
import types

import numpy as np
import pytest
import tensorflow as tf

from agents import optimizers
from agents import parameters
from agents.exchange import mix
from agents.exchange import mixing
from launch import rpc
from launch.rpc import directory
from launch.services import gossip
from launch.services import gossip_averager
from launch.services import gossip_memory
from launch.services import gossip_proxy
from launch.services import gossip_rpc

SIZE = 6


class _Learner:
  """As much of a learner as an exchange of gossip asks for."""

  def __init__(self, value):
    self.theta = np.full((1, SIZE), value, np.float32)
    self.agent = types.SimpleNamespace(optimizer=optimizers.RMSProp())
    self.slots = np.zeros((1, SIZE), np.float32)

  def save(self):
    return {'theta': self.theta.copy(), 'slot_0': self.slots}

  def restore(self, arrays):
    self.theta, self.slots = arrays['theta'], arrays['slot_0']

  def parameters(self):
    return self.theta.copy()

  def set_parameters(self, theta):
    self.theta = np.array(theta)


class _Worker:
  """A worker whose update is a number that it adds."""

  def __init__(self, exchange, value=0.0, step=0.0, again=False):
    self.exchange, self._step = exchange, step
    self.learner = _Learner(value)
    self.steps = self.iterations = 0
    self.stopped = False
    self.look = lambda: None  # once an iteration has ended
    exchange.setup(self.learner, 0)
    exchange.initial(self.learner.theta, again)

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


class _Direct(gossip_rpc.Inbox):
  """A carrier without a wire: `all_of_them[i]` is the inbox of worker i."""

  def __init__(self, own, all_of_them):
    super().__init__()
    self.own, self.all, self.cut = own, all_of_them, False

  def start(self, shape):
    pass

  def send(self, receivers, message):
    for receiver in receivers:
      if not self.cut:
        self.all[receiver].receive(self.own, message)

  def close(self):
    pass


def _workers(graph, values=None, step=0.0, **options):
  carriers = []
  carriers.extend(_Direct(i, carriers) for i in range(graph.size))
  values = [0.0] * graph.size if values is None else values
  workers = [
    _Worker(mix.Mix(graph, i, carriers[i], **options), values[i], step)
    for i in range(graph.size)
  ]
  for worker in workers:
    worker.begin()
  return workers, carriers


def _metrics(worker):
  return worker.exchange.metrics()


def test_a_message_is_mixed_with_equal_weights_and_only_once():
  (first, second), _ = _workers(mixing.Graph('ring', 2), [1.0, 5.0], tau=None)
  assert not first.iterate()  # nothing has come: its own is kept
  assert first.value == 1.0
  assert second.iterate()
  assert second.value == 3.0  # of 5 and the first's 1
  assert not second.iterate()
  assert second.value == 3.0
  assert first.iterate()
  assert first.value == 2.0  # of 1 and the second's newest, 3
  assert _metrics(second)['mixtures'] == 1


def test_what_is_sent_is_the_own_update_before_the_mixture():
  (first, second), carriers = _workers(
    mixing.Graph('ring', 2), [0.0, 0.0], step=1.0, tau=None
  )
  first.iterate()
  second.iterate()
  assert carriers[0].newest(1).theta[0, 0] == 1.0
  first.iterate()
  assert carriers[1].newest(0).theta[0, 0] == 2.0
  assert first.value == 1.5


def _run(workers, iterations, pauses):
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


@pytest.mark.parametrize('tau', [0, 1, 3])
def test_the_lock_never_lets_a_worker_be_more_than_tau_and_one_ahead(tau):
  workers, _ = _workers(mixing.Graph('ring', 4), tau=tau)
  # One is five times slower than the others.
  lead = _run(workers, 40, [0.002, 0.002, 0.01, 0.002])
  assert 0 < lead <= tau + 1
  assert sum(_metrics(worker)['gossip_waited_s'] for worker in workers) > 0
  assert all(_metrics(worker)['neighbours_dead'] == 0 for worker in workers)


def test_without_a_bound_nobody_waits():
  workers, _ = _workers(mixing.Graph('ring', 4), tau=None)
  _run(workers, 20, [0.0, 0.0, 0.01, 0.0])
  assert all(_metrics(w)['gossip_waited_s'] < 0.05 for w in workers)


def test_workers_come_together_and_stay_within_the_bound():
  graph = mixing.Graph('ring', 4)
  workers, _ = _workers(graph, [0.0] * 4, tau=0)
  for i, worker in enumerate(workers):
    worker._step = 0.01 * i  # they pull apart
  _run(workers, 50, [0.001] * 4)
  values = np.array([worker.value for worker in workers])
  bound = max(_metrics(worker)['distance_bound'] for worker in workers)
  distance = np.abs(values - values.mean()).max() * np.sqrt(SIZE)
  assert 0 < distance <= bound
  assert _metrics(workers[0])['distance_to_mean'] <= bound


def test_a_dead_neighbour_is_waited_for_once_and_heard_again(caplog):
  (first, second), carriers = _workers(
    mixing.Graph('ring', 2), [0.0, 4.0], tau=0, lock_timeout_s=0.2
  )
  carriers[1].cut = True
  begin = time.monotonic()
  first.iterate()
  assert time.monotonic() - begin >= 0.2
  assert _metrics(first)['neighbours_dead'] == 1
  begin = time.monotonic()
  for _ in range(20):
    assert not first.iterate()  # alone, its row is 1
  assert time.monotonic() - begin < 2.0  # not 0.2 s each
  carriers[1].cut = False
  carriers[1].send([0], mix.Message(22, np.full((1, SIZE), 4, np.float32)))
  assert first.iterate()
  assert first.value == 2.0
  assert _metrics(first)['neighbours_dead'] == 0
  assert 'Worker 1 is heard again' in caplog.text


def test_the_row_without_a_dead_neighbour_is_renormalised():
  workers, carriers = _workers(
    mixing.Graph('full', 3, 2), [0.0, 3.0, 6.0], tau=0, lock_timeout_s=0.2
  )
  carriers[2].cut = True
  carriers[1].send([0], mix.Message(1, workers[1].learner.theta))
  workers[0].iterate()
  assert workers[0].value == 1.5  # halves, not thirds
  # One that lives and has sent nothing new leaves its share to the own.
  assert mixing.mix_row(np.float32([0.0]), [np.float32([3.0])], 2)[0] == 1.0


def test_parameters_that_are_not_finite_are_refused_and_not_sent(caplog):
  (first, second), carriers = _workers(mixing.Graph('ring', 2), tau=None)
  second.learner.theta[:] = np.nan
  second.iterate()
  assert carriers[0].newest(1) is None
  assert carriers[0].heard(1)[1] == 1  # its number has come all the same
  assert not carriers[0].receive(
    1, mix.Message(2, np.full((1, SIZE), np.inf, np.float32))
  )
  assert not first.iterate()
  assert first.value == 0.0
  assert _metrics(first)['messages_refused'] == 1
  assert 'Refused parameters of worker 1' in caplog.text


def test_an_older_message_is_dropped():
  (first, _), carriers = _workers(mixing.Graph('ring', 2), tau=None)
  for iteration, value in ((5, 2.0), (3, 9.0)):
    theta = np.full((1, SIZE), value, np.float32)
    carriers[0].receive(1, mix.Message(iteration, theta))
  first.iterate()
  assert first.value == 1.0
  assert _metrics(first)['staleness_from_1'] == 1 - 5


def test_a_worker_started_again_goes_on_where_a_neighbour_is():
  graph = mixing.Graph('ring', 2)
  theta = np.full((1, SIZE), 7.0, np.float32)

  def start(iteration, again=True, tau=1):
    carriers = []
    carriers.extend(_Direct(i, carriers) for i in range(2))
    exchange = mix.Mix(
      graph,
      0,
      carriers[0],
      tau=tau,
      ask=lambda: mix.Message(iteration, theta),
    )
    return _Worker(exchange, 1.0, again=again).begin()

  worker = start(30)
  assert worker.value == 7.0
  assert _metrics(worker)['gossip_iteration'] == 30
  assert worker.exchange.variables()['gossip_iteration'].numpy() == 30
  assert worker.exchange.state().iteration == 30
  # Of a first start, and of one that is not further behind than may be.
  assert start(30, again=False).value == 1.0
  assert start(2).value == 1.0
  assert start(2, tau=None).value == 7.0


def test_who_is_started_again_waits_no_longer_than_the_others():
  graph, theta = mixing.Graph('ring', 2), np.ones((1, SIZE), np.float32)
  carriers = []
  carriers.extend(_Direct(i, carriers) for i in range(2))
  exchange = mix.Mix(
    graph,
    0,
    carriers[0],
    tau=0,
    lock_timeout_s=0.1,
    ask=lambda: mix.Message(30, theta),
  )
  worker = _Worker(exchange, again=True).begin()
  # Its in-neighbour died too: nothing comes, and it is not a first start.
  thread = threading.Thread(target=worker.iterate, daemon=True)
  thread.start()
  thread.join(20)
  worker.stopped = True
  assert not thread.is_alive()
  assert _metrics(worker)['neighbours_dead'] == 1


def test_what_is_not_finite_is_not_gone_on_from():
  class Neighbour:
    def __init__(self, value):
      self.value = value

    def gossip_state(self):
      if self.value is None:
        raise rpc.Unavailable('nowhere', 'gossip_state', False, 'dead')
      return 9, np.full((1, SIZE), self.value, np.float32), 0.0

  broken, dead, sound = (Neighbour(x) for x in (np.nan, None, 4.0))
  found = gossip.ask({1: broken, 2: dead, 3: sound})
  assert found.iteration == 9
  assert found.theta[0, 0] == 4.0
  assert gossip.ask({1: broken, 2: dead}) is None


def test_the_slowest_never_waits_whatever_the_graph_and_the_bound():
  rng = np.random.default_rng(0)
  for topology, size in (('ring', 4), ('exponential', 8), ('full', 5)):
    graph = mixing.Graph(topology, size)
    for tau in (0, 1, 3):
      for _ in range(50):
        iterations = rng.integers(0, 6, size)
        slowest = int(iterations.argmin())
        assert all(
          mixing.may_begin(iterations[slowest], iterations[j], tau)
          for j in graph.all_sources(slowest)
        )


def test_a_member_that_broke_gets_what_a_neighbour_has_sent():
  (first, _), carriers = _workers(mixing.Graph('ring', 2), tau=None)
  assert first.exchange.replacement(0) is None
  carriers[0].receive(1, mix.Message(1, np.full((1, SIZE), 3, np.float32)))
  np.testing.assert_array_equal(first.exchange.replacement(0), [3] * SIZE)


def test_parameters_of_a_device_are_copied_to_the_host():
  message = mix.Message(3, tf.Variable(np.ones((1, SIZE), np.float32)).numpy())
  iteration, theta, _, checksum = gossip_rpc.packed(message)
  assert (iteration, theta.dtype, theta.flags.c_contiguous) == (
    3,
    np.float32,
    True,
  )
  assert checksum


# The averager.


def _average(averager, parts):
  """All parts (worker, number, steps, value) at once; what each gets."""
  found = {}

  def bring(worker, number, steps, value):
    closed = False
    while not closed:
      theta = np.full((1, SIZE), value, np.float32)
      closed, found[worker] = averager.average(worker, number, steps, theta)

  threads = [threading.Thread(target=bring, args=part) for part in parts]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join(timeout=20)
  return {k: None if v is None else float(v[0, 0]) for k, v in found.items()}


def test_a_mean_weighs_workers_by_their_steps():
  averager = gossip_averager.Averager(2, timeout_s=10)
  assert _average(averager, [(0, 1, 10, 0.0), (1, 1, 30, 4.0)]) == {
    0: 3.0,
    1: 3.0,
  }


def test_a_mean_waits_once_for_who_is_late_and_no_more():
  averager = gossip_averager.Averager(3, timeout_s=2.0)
  two = [(0, 1, 10, 0.0), (1, 1, 10, 4.0)]
  begin = time.monotonic()
  assert _average(averager, two) == {0: 2.0, 1: 2.0}
  assert time.monotonic() - begin >= 2.0
  begin = time.monotonic()
  again = [(worker, 2, *rest) for worker, _, *rest in two]
  assert _average(averager, again) == {0: 2.0, 1: 2.0}
  assert time.monotonic() - begin < 1.8
  # Too late for that round, in time for the next.
  assert _average(averager, [(2, 2, 10, 9.0)]) == {2: None}
  third = [(worker, 3, 10, 3.0 * worker) for worker in range(3)]
  assert _average(averager, third) == {0: 3.0, 1: 3.0, 2: 3.0}


def test_a_mean_has_nothing_that_is_not_finite():
  averager = gossip_averager.Averager(2, timeout_s=0.2)
  parts = [(0, 1, 10, 1.0), (1, 1, 10, float('nan'))]
  assert _average(averager, parts) == {0: 1.0, 1: None}


def test_who_is_refused_a_mean_is_not_waited_for():
  averager = gossip_averager.Averager(2, timeout_s=30)
  parts = [(0, 1, 10, 1.0), (1, 1, 10, float('nan'))]
  begin = time.monotonic()
  assert _average(averager, parts) == {0: 1.0, 1: None}
  # In the next one it is again.
  parts = [(0, 2, 10, 1.0), (1, 2, 10, 3.0)]
  assert _average(averager, parts) == {0: 2.0, 1: 2.0}
  assert time.monotonic() - begin < 20


class _Averager:
  """Stands for the client of an averager that is dead, or never has a mean."""

  def __init__(self, dead):
    self.dead, self.asked = dead, 0

  def with_deadline(self, timeout_s):
    del timeout_s
    return self

  def average(self, *part):
    del part
    self.asked += 1
    if self.dead:
      raise rpc.Unavailable('nowhere', 'average', False, 'dead')
    time.sleep(0.01)
    return False, None

  leave = average


@pytest.mark.parametrize('dead', [True, False])
def test_without_an_averager_that_answers_gossip_goes_on(dead):
  averager = _Averager(dead)
  carriers = [None, gossip_rpc.Inbox()]
  carriers[0] = _Direct(0, carriers)
  exchange = mix.Mix(
    mixing.Graph('ring', 2),
    0,
    carriers[0],
    tau=None,
    avg_period=2,
    average=gossip_averager.Averaging(0, averager, timeout_s=0.1),
  )
  worker = _Worker(exchange, 1.0, step=1.0).begin()
  for _ in range(4):
    worker.iterate()
  worker.exchange.ended()
  assert worker.value == 5.0
  assert carriers[1].newest(0).iteration == 4
  assert _metrics(worker)['averages'] == 0
  assert averager.asked == 3 if dead else averager.asked > 3


def test_who_has_left_is_not_waited_for():
  averager = gossip_averager.Averager(2, timeout_s=30)
  averager.leave(1)
  assert _average(averager, [(0, 1, 10, 1.0)]) == {0: 1.0}


def test_a_worker_takes_the_mean_every_period_or_goes_on_without_it():
  answers = [np.full((1, SIZE), 8.0, np.float32), None]

  class Average:
    asked = []

    def __call__(self, number, steps, theta, over):
      self.asked.append((number, steps))
      return answers[number - 1]

    def leave(self):
      pass

  carriers = [None, gossip_rpc.Inbox()]
  carriers[0] = _Direct(0, carriers)
  exchange = mix.Mix(
    mixing.Graph('ring', 2),
    0,
    carriers[0],
    tau=None,
    avg_period=2,
    average=Average(),
  )
  worker = _Worker(exchange, 1.0).begin()
  values = []
  for _ in range(4):
    worker.iterate()
    values.append(worker.value)
  assert values == [1.0, 8.0, 8.0, 8.0]
  assert Average.asked == [(1, 20), (2, 20)]
  assert _metrics(worker)['averages'] == 1


def test_second_moments_are_averaged_with_the_parameters():
  averager = gossip_averager.Averager(2, timeout_s=10)

  class Average:
    def __init__(self, worker):
      self.worker = worker

    def __call__(self, number, steps, theta, over):
      assert theta.shape == (1, 2 * SIZE)
      closed, mean = False, None
      while not closed:
        closed, mean = averager.average(self.worker, number, steps, theta)
      return mean

    def leave(self):
      pass

  graph, carriers = mixing.Graph('ring', 2), []
  carriers.extend(_Direct(i, carriers) for i in range(2))
  workers = [
    _Worker(
      mix.Mix(
        graph,
        i,
        carriers[i],
        tau=None,
        avg_period=1,
        average=Average(i),
        average_moments=True,
      ),
      2.0 * i,
    ).begin()
    for i in range(2)
  ]
  for i, worker in enumerate(workers):
    worker.learner.slots = np.full((1, SIZE), 10.0 * i, np.float32)
  _run(workers, 1, [0.0, 0.0])
  for worker in workers:
    assert worker.learner.slots.tolist() == [[5.0] * SIZE]


def test_an_optimizer_without_second_moments_is_refused():
  learner = _Learner(0.0)
  learner.agent = types.SimpleNamespace(optimizer=optimizers.Momentum(0.9))
  exchange = mix.Mix(
    mixing.Graph('ring', 2), 0, _Direct(0, []), average_moments=True
  )
  with pytest.raises(ValueError, match='Momentum has no second moments'):
    exchange.setup(learner, 0)


def test_the_mean_of_workers_is_of_those_that_answer():
  layout = parameters.Layout([('w', (SIZE,))])

  class Client:
    def __init__(self, value):
      self.value = value

    def get_parameters(self, have_version):
      assert have_version == -1
      if self.value is None:
        raise rpc.Unavailable('nowhere', 'get_parameters', False, 'dead')
      theta = np.full(SIZE, self.value, np.float32)
      encoded = parameters.encode(layout, int(self.value), theta)
      return {'version': int(self.value), 'theta': encoded}

  clients = [Client(1.0), Client(None), Client(4.0)]
  mean = gossip_averager.Mean(clients, layout)
  found = mean.get_parameters(-1)
  assert found['version'] == 1
  theta = parameters.decode(layout, found['theta'])[1]
  assert theta.tolist() == [2.5] * SIZE
  assert mean.get_parameters(1)['theta'] is None
  with pytest.raises(rpc.Unavailable):
    gossip_averager.Mean(clients[1:2], layout).get_parameters(-1)


# Over real RPC.


@pytest.fixture
def served():
  """served(graph, ...): an exchange for each worker, served at an address."""
  exchanges, contexts, all_clients = [], [], {}

  def start(served, address):
    contexts.append(rpc.serve(served, address))
    contexts[-1].__enter__()

  def serve(graph, **options):
    names = directory.of_this_node()
    addresses, of_proxies = (
      [names.claim(f'{label}/{i}') for i in range(graph.size)]
      for label in ('worker', 'proxy')
    )
    if options.get('carrier') == 'proxy':
      for i, address in enumerate(of_proxies):
        near = {j: rpc.Client(of_proxies[j]) for j in graph.neighbours(i)}
        start(gossip_proxy.Proxy(i, near), address)
    for i, address in enumerate(addresses):
      clients = {
        j: rpc.Client(address, timeout_s=1.0)
        for j, address in enumerate(addresses)
        if j != i
      }
      all_clients.update(clients)
      proxy = rpc.Client(of_proxies[i])
      exchanges.append(gossip.Gossip(graph, i, clients, proxy=proxy, **options))
      start(exchanges[-1], address)
    return exchanges, all_clients

  yield serve
  for exchange in exchanges:
    exchange.close()
  for context in contexts:
    context.__exit__(None, None, None)


@pytest.mark.parametrize('carrier', ['rpc', 'shared_memory', 'proxy'])
def test_workers_mix_and_one_that_comes_back_takes_over(served, carrier):
  exchanges, clients = served(mixing.Graph('ring', 3), tau=1, carrier=carrier)
  workers = [_Worker(x, float(i)).begin() for i, x in enumerate(exchanges)]
  assert _run(workers, 60, [0.002] * 3) <= 2
  values = [worker.value for worker in workers]
  assert np.ptp(values) < 0.2
  assert all(0 <= value <= 2 for value in values)
  assert all(_metrics(worker)['mixtures'] > 20 for worker in workers)
  iteration, theta, _ = gossip.ask({1: clients[1]})
  assert iteration == 60
  np.testing.assert_array_equal(theta, workers[1].learner.theta)


# Over shared memory.


def _memories(count):
  """Carriers of `count` workers, and what stands for their nodes."""

  class Node:
    carrier = None

    def gossip_memory(self):
      return None if self.carrier is None else self.carrier.memory()

  nodes = [Node() for _ in range(count)]

  def make(i):
    others = {j: node for j, node in enumerate(nodes) if j != i}
    nodes[i].carrier = gossip_memory.SharedMemoryCarrier(i, count, others)
    nodes[i].carrier.start((1, SIZE))
    return nodes[i].carrier

  return [make(i) for i in range(count)], make


def _until(condition):
  deadline = time.monotonic() + 20
  while not condition():
    assert time.monotonic() < deadline
    time.sleep(0.01)


def _message(iteration, value):
  return mix.Message(iteration, np.full((1, SIZE), value, np.float32), 0.5)


def test_shared_parameters_that_were_not_read_are_not_overwritten():
  (first, second), _ = _memories(2)
  first.send([1], _message(1, 1.0))
  _until(lambda: second.heard(0) == (1, 1))  # also of before it was mapped
  first.send([1], _message(2, 2.0))
  assert second.heard(0) == (2, 2)
  found = second.newest(0)
  assert (found.iteration, found.theta[0, 0], found.largest_step) == (1, 1, 0.5)
  first.send([1], _message(3, 3.0))
  assert second.newest(0).iteration == 3
  assert second.received == 3
  second.wait(2, 5.0)  # there are more: at once
  for carrier in (first, second):
    carrier.close()


def test_shared_parameters_are_refused_where_not_finite_or_not_whole():
  (first, second), _ = _memories(2)
  first.send([1], _message(1, np.nan))
  _until(lambda: second.heard(0) == (1, 1))
  assert second.newest(0) is None and second.refused == 1
  first.send([1], _message(2, 2.0))
  second._slots.thetas[0, 0, 0] = 9.0
  assert second.newest(0) is None
  second._slots.thetas[0, 0, 0] = 2.0
  assert second.newest(0).iteration == 2
  for carrier in (first, second):
    carrier.close()


def test_the_memory_of_a_receiver_that_came_back_is_found():
  (first, second), make = _memories(2)
  first.send([1], _message(1, 1.0))
  _until(lambda: second.heard(0) == (1, 1))
  second.close()
  assert second.memory() is None
  again = make(1)
  _until(lambda: again.heard(0) == (1, 1))
  first.send([1], _message(2, 2.0))
  assert again.heard(0) == (2, 2)
  for carrier in (first, again):
    carrier.close()


def test_a_damaged_message_is_refused(served):
  (exchange, _), _ = served(mixing.Graph('ring', 2))
  theta = np.ones((1, SIZE), np.float32)
  push = functools.partial(exchange.push_message, 1, 1, theta, 0.0)
  assert not push(12345)
  assert push(gossip_rpc.packed(mix.Message(1, theta))[-1])


def test_a_receiver_that_hangs_does_not_stop_learning():
  release = threading.Event()

  class Hangs:
    taken = []

    def with_deadline(self, seconds):
      del seconds
      return self

    def push_message(self, sender, iteration, *rest):
      self.taken.append(iteration)
      release.wait(20)

  graph, client = mixing.Graph('ring', 2), Hangs()
  exchange = gossip.Gossip(graph, 0, {1: client}, tau=None)
  worker = _Worker(exchange, 1.0).begin()
  while not client.taken:
    time.sleep(0.01)
  begin = time.monotonic()
  for _ in range(100):
    worker.iterate()
  assert time.monotonic() - begin < 5
  release.set()
  while 100 not in client.taken:
    time.sleep(0.01)
  exchange.close()
  # The newest only, of a hundred that waited.
  assert client.taken == [0, 100]
