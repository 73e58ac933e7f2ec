"""Means over all gossiping workers: rounds, who is late, second moments."""

import threading
import time

import numpy as np
import pytest

from agents import optimizers
from agents import parameters
from agents.exchange import mix
from agents.exchange import mixing
from launch import rpc
from launch.services import gossip_averager
from launch.services import gossip_rpc
from tests.launch.services import gossip_workers as played

SIZE = played.SIZE


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
    thread.join(timeout=60)
    assert not thread.is_alive()
  return {k: None if v is None else float(v[0, 0]) for k, v in found.items()}


def test_a_mean_weighs_workers_by_their_steps():
  averager = gossip_averager.Averager(2, timeout_s=10)
  assert _average(averager, [(0, 1, 10, 0.0), (1, 1, 30, 4.0)]) == {
    0: 3.0,
    1: 3.0,
  }


def test_a_mean_waits_once_for_who_is_late_and_no_more(caplog):
  averager = gossip_averager.Averager(3, timeout_s=2.0)
  two = [(0, 1, 10, 0.0), (1, 1, 10, 4.0)]
  begin = time.monotonic()
  assert _average(averager, two) == {0: 2.0, 1: 2.0}
  assert time.monotonic() - begin >= 2.0
  again = [(worker, 2, *rest) for worker, _, *rest in two]
  assert _average(averager, again) == {0: 2.0, 1: 2.0}
  assert caplog.text.count('A mean without the workers') == 1
  # Too late for that round, in time for the next.
  assert _average(averager, [(2, 2, 10, 9.0)]) == {2: None}
  third = [(worker, 3, 10, 3.0 * worker) for worker in range(3)]
  assert _average(averager, third) == {0: 3.0, 1: 3.0, 2: 3.0}


@pytest.mark.parametrize('old', [1, 2, 3])  # forgotten, kept, the newest
def test_who_is_a_round_behind_holds_up_no_later_one(old, caplog):
  averager = gossip_averager.Averager(3, timeout_s=2.0)
  for number in (1, 2, 3):  # only the first waits for worker 2
    _average(averager, [(0, number, 10, 0.0), (1, number, 10, 4.0)])
  assert _average(averager, [(2, old, 10, 9.0)]) == {2: None}
  caplog.clear()
  fourth = [(0, 4, 10, 0.0), (1, 4, 10, 4.0)]
  assert _average(averager, fourth) == {0: 2.0, 1: 2.0}
  # Who came for the newest, though late, may be in time for the next.
  assert ('A mean without the workers' in caplog.text) == (old == 3)


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


def _of_two(average):
  """The exchange of the first of two, and what reaches the other."""
  carriers = [None, gossip_rpc.RpcCarrier(1, {})]
  carriers[0] = played.Direct(0, carriers)
  ring = mixing.Graph('ring', 2)
  exchange = mix.Mix(
    ring, 0, carriers[0], tau=None, avg_period=2, average=average
  )
  return exchange, carriers[1]


@pytest.mark.parametrize('dead', [True, False])
def test_without_an_averager_that_answers_gossip_goes_on(dead):
  averager = _Averager(dead)
  exchange, neighbour = _of_two(
    gossip_averager.Averaging(0, averager, timeout_s=0.3)
  )
  worker = played.Worker(exchange, 1.0, step=1.0).begin()
  for _ in range(4):
    worker.iterate()
  worker.exchange.ended()
  assert worker.value == 5.0
  assert neighbour.newest(0).iteration == 4
  assert played.metrics(worker)['averages'] == 0
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

  exchange, _ = _of_two(Average())
  worker = played.Worker(exchange, 1.0).begin()
  values = []
  for _ in range(4):
    worker.iterate()
    values.append(worker.value)
  assert values == [1.0, 8.0, 8.0, 8.0]
  assert Average.asked == [(1, 20), (2, 20)]
  assert played.metrics(worker)['averages'] == 1


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
  carriers.extend(played.Direct(i, carriers) for i in range(2))
  workers = [
    played.Worker(
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
  played.run_all(workers, 1, [0.0, 0.0])
  for worker in workers:
    assert worker.learner.slots.tolist() == [[5.0] * SIZE]


def test_an_optimizer_without_second_moments_is_refused():
  learner = played.Learner(0.0)
  learner.agent.optimizer = optimizers.Momentum(0.9)
  exchange = mix.Mix(
    mixing.Graph('ring', 2), 0, played.Direct(0, []), average_moments=True
  )
  with pytest.raises(ValueError, match='Momentum has no second moments'):
    exchange.setup(learner, 0)


def test_the_mean_of_workers_is_of_those_that_answer():
  layout = parameters.Layout([('w', (SIZE,))])

  class Client:
    def __init__(self, value):
      self.value, self.last = value, True

    def get_parameters(self, have_version):
      assert have_version == -1
      if self.value is None:
        raise rpc.Unavailable('nowhere', 'get_parameters', False, 'dead')
      theta = np.full(SIZE, self.value, np.float32)
      encoded = parameters.encode(layout, int(self.value), theta)
      return {'version': int(self.value), 'theta': encoded, 'last': self.last}

  clients = [Client(1.0), Client(None), Client(4.0)]
  clients[2].last = False
  mean = gossip_averager.Mean(clients, layout)
  found = mean.get_parameters(-1)
  assert found['version'] == 1
  theta = parameters.decode(layout, found['theta'])[1]
  assert theta.tolist() == [2.5] * SIZE
  assert not found['last']
  assert mean.get_parameters(1)['theta'] is None
  clients[2].last = True
  assert mean.get_parameters(1)['last']
  with pytest.raises(rpc.Unavailable):
    gossip_averager.Mean(clients[1:2], layout).get_parameters(-1)
