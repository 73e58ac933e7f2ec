"""What carries messages of gossip: RPC, shared memory, a proxy."""

import os
import threading
import time

import numpy as np
import pytest

from agents.exchange import mix
from agents.exchange import mixing
from launch import rpc
from launch.services import gossip
from launch.services import gossip_memory
from launch.services import gossip_proxy
from launch.services import gossip_rpc
from tests.launch.services import gossip_workers as played

SIZE = played.SIZE


@pytest.fixture
def served(tmp_path):
  """served(graph, ...): an exchange for each worker, served at an address."""
  exchanges, contexts, all_clients = [], [], {}

  def start(served, address):
    contexts.append(rpc.serve(served, address))
    contexts[-1].__enter__()

  def serve(graph, **options):
    addresses, of_proxies = (
      [f'unix:{tmp_path}/{label}{i}' for i in range(graph.size)]
      for label in ('worker', 'proxy')
    )
    if options.get('carrier') == 'proxy':
      for i, address in enumerate(of_proxies):
        near = {j: rpc.Client(of_proxies[j]) for j in graph.neighbours(i)}
        start(gossip_proxy.Proxy(i, near), address)
    for i, address in enumerate(addresses):
      clients = {
        j: rpc.Client(address, timeout_s=20.0)
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
  workers = [
    played.Worker(x, float(i)).begin() for i, x in enumerate(exchanges)
  ]
  assert played.run_all(workers, 60, [0.002] * 3) <= 2
  values = [worker.value for worker in workers]
  assert np.ptp(values) < 0.2
  assert all(0 <= value <= 2 for value in values)
  assert all(played.metrics(worker)['mixtures'] > 20 for worker in workers)
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
  deadline = time.monotonic() + 60
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


def test_another_file_at_the_number_of_the_memory_is_left_alone(tmp_path):
  """As where the receiver closes its memory between answer and opening."""
  kept = bytes(100_000)
  (tmp_path / 'file').write_bytes(kept)
  host, pid = gossip_memory._host(), os.getpid()
  with open(tmp_path / 'file', 'r+b') as file:
    answers = []

    class Node:
      def gossip_memory(self):
        answers.append((host, pid, file.fileno()))
        return answers[-1]

    carrier = gossip_memory.SharedMemoryCarrier(0, 2, {1: Node()})
    carrier.start((1, SIZE))
    carrier.send([1], _message(1, 1.0))
    _until(lambda: len(answers) > 1)  # It asks again.
    carrier.close()
  assert (tmp_path / 'file').read_bytes() == kept


def test_memory_of_another_process_id_namespace_is_not_looked_for(
  monkeypatch, caplog
):
  # There, the same process id is another process, or none.
  carriers = []

  class Node:
    def gossip_memory(self):
      with monkeypatch.context() as inside:
        inside.setattr(os, 'readlink', lambda path: 'pid:[1]')
        return carriers[1].memory()

  carriers += [
    gossip_memory.SharedMemoryCarrier(0, 2, {1: Node()}),
    gossip_memory.SharedMemoryCarrier(1, 2, {}),
  ]
  carriers[1].start((1, SIZE))
  carriers[0].start((1, SIZE))
  carriers[0].send([1], _message(1, 1.0))
  _until(lambda: caplog.text or carriers[1].received)
  assert carriers[1].received == 0
  assert 'in another container' in caplog.text
  for carrier in carriers:
    carrier.close()


# The receiver.


def test_a_message_that_is_not_finite_is_refused(served):
  _, clients = served(mixing.Graph('ring', 2))
  assert not clients[0].push_message(1, *_message(1, np.nan))
  assert clients[0].push_message(1, *_message(1, 1.0))


def test_a_receiver_that_hangs_does_not_stop_learning():
  release = threading.Event()

  class Hangs:
    taken = []

    def with_deadline(self, seconds):
      del seconds
      return self

    def push_message(self, sender, iteration, *rest):
      self.taken.append(iteration)
      release.wait(60)

  graph, client = mixing.Graph('ring', 2), Hangs()
  exchange = gossip.Gossip(graph, 0, {1: client}, tau=None)
  worker = played.Worker(exchange, 1.0).begin()
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


def test_who_is_killed_after_a_neighbour_has_ended_hears_of_it_again(
  monkeypatch,
):
  monkeypatch.setattr(gossip_rpc, '_LEFT_PERIOD_S', 0.01)
  lives = [gossip_rpc.RpcCarrier(0, {})]

  class Client:
    def push_message(self, sender, *message):
      return lives[-1].receive(sender, mix.Message(*message))

  ended = gossip_rpc.RpcCarrier(1, {0: Client()})
  ended.start((1, SIZE))
  ended.send([0], _message(5, 1.0))
  ended.send([0], mix.Message(mix.LEFT))
  for _ in range(2):
    _until(lambda: lives[-1].heard(1)[1] == mix.LEFT)
    lives.append(gossip_rpc.RpcCarrier(0, {}))
  ended.close()
