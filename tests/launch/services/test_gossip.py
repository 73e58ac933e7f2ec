"""Gossip between workers that a test plays: mixing, the lock, deaths."""

import threading
import time

import numpy as np
import pytest

from agents.exchange import mix
from agents.exchange import mixing
from launch import rpc
from launch.services import gossip
from launch.services import gossip_rpc
from tests.launch.services import gossip_workers as played

SIZE = played.SIZE


def test_a_message_is_mixed_with_equal_weights_and_only_once():
  (first, second), _ = played.make_workers(
    mixing.Graph('ring', 2), [1.0, 5.0], tau=None
  )
  assert not first.iterate()  # nothing has come: its own is kept
  assert first.value == 1.0
  assert second.iterate()
  assert second.value == 3.0  # of 5 and the first's 1
  assert not second.iterate()
  assert second.value == 3.0
  assert first.iterate()
  assert first.value == 2.0  # of 1 and the second's newest, 3
  assert played.metrics(second)['mixtures'] == 1


def test_what_is_sent_is_the_own_update_before_the_mixture():
  (first, second), carriers = played.make_workers(
    mixing.Graph('ring', 2), [0.0, 0.0], step=1.0, tau=None
  )
  first.iterate()
  second.iterate()
  assert carriers[0].newest(1).theta[0, 0] == 1.0
  first.iterate()
  assert carriers[1].newest(0).theta[0, 0] == 2.0
  assert first.value == 1.5


@pytest.mark.parametrize('tau', [0, 1, 3])
def test_the_lock_never_lets_a_worker_be_more_than_tau_and_one_ahead(tau):
  workers, _ = played.make_workers(mixing.Graph('ring', 4), tau=tau)
  # One is five times slower than the others.
  lead = played.run_all(workers, 40, [0.002, 0.002, 0.01, 0.002])
  assert 0 < lead <= tau + 1
  assert (
    sum(played.metrics(worker)['gossip_waited_s'] for worker in workers) > 0
  )
  assert all(
    played.metrics(worker)['neighbours_dead'] == 0 for worker in workers
  )


def test_without_a_bound_nobody_waits():
  workers, carriers = played.make_workers(mixing.Graph('ring', 4), tau=None)
  waits = []
  for carrier in carriers:
    carrier.wait = lambda *call: waits.append(call)
  played.run_all(workers, 20, [0.0, 0.0, 0.01, 0.0])
  assert waits == []


def test_workers_come_together_and_stay_within_the_bound():
  graph = mixing.Graph('ring', 4)
  workers, _ = played.make_workers(graph, [0.0] * 4, tau=0)
  for i, worker in enumerate(workers):
    worker._step = 0.01 * i  # they pull apart
  played.run_all(workers, 50, [0.001] * 4)
  values = np.array([worker.value for worker in workers])
  bound = max(played.metrics(worker)['distance_bound'] for worker in workers)
  distance = np.abs(values - values.mean()).max() * np.sqrt(SIZE)
  assert 0 < distance <= bound
  assert played.metrics(workers[0])['distance_to_mean'] <= bound


def test_a_dead_neighbour_is_waited_for_once_and_heard_again(caplog):
  (first, second), carriers = played.make_workers(
    mixing.Graph('ring', 2), [0.0, 4.0], tau=0, lock_timeout_s=0.2
  )
  carriers[1].cut = True
  begin = time.monotonic()
  first.iterate()
  assert time.monotonic() - begin >= 0.2
  assert played.metrics(first)['neighbours_dead'] == 1
  begin = time.monotonic()
  for _ in range(100):
    assert not first.iterate()  # alone, its row is 1
  assert time.monotonic() - begin < 10.0  # not 0.2 s each
  carriers[1].cut = False
  carriers[1].send([0], mix.Message(102, np.full((1, SIZE), 4, np.float32)))
  assert first.iterate()
  assert first.value == 2.0
  assert played.metrics(first)['neighbours_dead'] == 0
  assert 'Worker 1 is heard again' in caplog.text


def test_the_row_without_a_dead_neighbour_is_renormalised():
  workers, carriers = played.make_workers(
    mixing.Graph('full', 3, 2), [0.0, 3.0, 6.0], tau=0, lock_timeout_s=0.2
  )
  carriers[2].cut = True
  carriers[1].send([0], mix.Message(1, workers[1].learner.theta))
  workers[0].iterate()
  assert workers[0].value == 1.5  # halves, not thirds
  # One that lives and has sent nothing new leaves its share to the own.
  assert mixing.mix_row(np.float32([6.0]), [np.float32([3.0])], 2)[0] == 5.0


def test_parameters_that_are_not_finite_are_refused_and_not_sent(caplog):
  (first, second), carriers = played.make_workers(
    mixing.Graph('ring', 2), tau=None
  )
  second.learner.theta[:] = np.inf
  second.iterate()
  with np.errstate(invalid='ignore'):
    assert played.metrics(second)['distance_bound'] == 0.0
  assert carriers[0].newest(1) is None
  assert carriers[0].heard(1)[1] == 1  # its number has come all the same
  assert not carriers[0].receive(
    1, mix.Message(2, np.full((1, SIZE), np.inf, np.float32))
  )
  assert not first.iterate()
  assert first.value == 0.0
  assert played.metrics(first)['messages_refused'] == 1
  assert 'Refused parameters of worker 1' in caplog.text


def test_an_older_message_is_dropped():
  (first, _), carriers = played.make_workers(mixing.Graph('ring', 2), tau=None)
  for iteration, value in ((5, 2.0), (3, 9.0)):
    theta = np.full((1, SIZE), value, np.float32)
    carriers[0].receive(1, mix.Message(iteration, theta))
  first.iterate()
  assert first.value == 1.0
  assert played.metrics(first)['staleness_from_1'] == 1 - 5


def test_each_message_of_one_that_is_behind_is_mixed():
  (first, _), carriers = played.make_workers(mixing.Graph('ring', 2), tau=None)
  theta = np.full((1, SIZE), 4.0, np.float32)
  for iteration, value in ((1, 2.0), (2, 3.0)):
    assert not first.iterate()
    carriers[0].receive(1, mix.Message(iteration, theta))
    assert first.iterate()
    assert first.value == value


def test_what_comes_after_its_turn_is_mixed_when_the_turn_comes_again():
  workers, _ = played.make_workers(mixing.Graph('full', 3), tau=1)
  for _ in range(3):
    for worker in workers:  # the first is ahead of both others
      worker.iterate()
  # Of iteration 1, as the one of 3 is not there yet: two turns are a cycle.
  assert played.metrics(workers[0])['staleness_from_1'] == 2


def test_a_worker_started_again_goes_on_where_a_neighbour_is():
  graph = mixing.Graph('ring', 2)
  theta = np.full((1, SIZE), 7.0, np.float32)

  def start(iteration, again=True, tau=1):
    carriers = []
    carriers.extend(played.Direct(i, carriers) for i in range(2))
    exchange = mix.Mix(
      graph,
      0,
      carriers[0],
      tau=tau,
      ask=lambda: mix.Message(iteration, theta),
    )
    worker = played.Worker(exchange, again=again)
    worker.learner.theta[:] = 1.0  # its checkpoint
    return worker.begin()

  worker = start(30)
  assert worker.value == 7.0
  assert played.metrics(worker)['gossip_iteration'] == 30
  assert worker.exchange.variables()['gossip_iteration'].numpy() == 30
  assert worker.exchange.state().iteration == 30
  # Of a first start, and of one that is not further behind than may be.
  assert start(30, again=False).value == 1.0
  assert start(2).value == 1.0
  assert start(2, tau=None).value == 7.0


@pytest.mark.parametrize('again, answers', [(1, 1), (1, 0), (0, 1)])
def test_without_a_checkpoint_a_worker_goes_on_from_what_a_neighbour_has(
  again, answers
):
  # Not further ahead than the lock allows: `begin` leaves it as it is.
  message = mix.Message(2, np.full((1, SIZE), 7.0, np.float32))
  exchange = mix.Mix(
    mixing.Graph('ring', 2),
    0,
    played.Direct(0, [None, gossip_rpc.RpcCarrier(1, {})]),
    ask=lambda: message if answers else None,
  )
  worker = played.Worker(exchange, 1.0, again=bool(again)).begin()
  assert worker.value == (7.0 if again and answers else 1.0)


def test_a_neighbour_that_died_meanwhile_is_gone_on_from_all_the_same():
  answers = [mix.Message(30, np.full((1, SIZE), 7.0, np.float32)), None]
  exchange = mix.Mix(
    mixing.Graph('ring', 2),
    0,
    played.Direct(0, [None, gossip_rpc.RpcCarrier(1, {})]),
    ask=lambda: answers.pop(0),
  )
  worker = played.Worker(exchange, 1.0, again=True).begin()
  assert worker.value == 7.0
  assert played.metrics(worker)['gossip_iteration'] == 30


def test_who_is_started_again_waits_no_longer_than_the_others():
  graph, theta = mixing.Graph('ring', 2), np.ones((1, SIZE), np.float32)
  carriers = []
  carriers.extend(played.Direct(i, carriers) for i in range(2))
  exchange = mix.Mix(
    graph,
    0,
    carriers[0],
    tau=0,
    lock_timeout_s=0.1,
    ask=lambda: mix.Message(30, theta),
  )
  worker = played.Worker(exchange, again=True).begin()
  # Its in-neighbour died too: nothing comes, and it is not a first start.
  thread = threading.Thread(target=worker.iterate, daemon=True)
  thread.start()
  thread.join(60)
  worker.stopped = True
  assert not thread.is_alive()
  assert played.metrics(worker)['neighbours_dead'] == 1


def test_whoever_begins_further_on_than_a_neighbour_does_not_wait_for_it():
  # All start equal, whatever the iteration number.
  theta = np.full((1, SIZE), 7.0, np.float32)
  carriers = []
  carriers.extend(played.Direct(i, carriers) for i in range(2))
  exchange = mix.Mix(
    mixing.Graph('ring', 2),
    0,
    carriers[0],
    tau=1,
    ask=lambda: mix.Message(30, theta),
  )
  worker = played.Worker(exchange, again=True).begin()
  carriers[0].receive(1, mix.Message(28))
  carriers[0].wait = lambda *call: pytest.fail('It waits.')
  worker.iterate()
  assert played.metrics(worker)['gossip_iteration'] == 31


@pytest.mark.parametrize('ends', [True, False])
def test_one_that_was_never_heard_may_be_tracing_and_is_waited_for(ends):
  carriers = []
  carriers.extend(played.Direct(i, carriers) for i in range(2))
  exchange = mix.Mix(
    mixing.Graph('ring', 2), 0, carriers[0], tau=0, lock_timeout_s=0.05
  )
  worker = played.Worker(exchange).begin()
  thread = threading.Thread(target=worker.iterate, daemon=True)
  thread.start()
  thread.join(0.5)
  assert thread.is_alive()
  if ends:
    worker.stopped = True
  else:
    carriers[0].receive(1, mix.Message(1))
  thread.join(60)
  assert not thread.is_alive()
  assert played.metrics(worker)['neighbours_dead'] == 0


def test_the_bound_is_by_the_longest_step_so_far():
  (first, *_), _ = played.make_workers(
    mixing.Graph('ring', 3), step=2.0, tau=None
  )
  first.iterate()
  bound = played.metrics(first)['distance_bound']
  first._step = 1.0
  first.iterate()
  assert played.metrics(first)['distance_bound'] == bound > 0


class _Neighbour:
  """Stands for the client of one that is at an iteration; None: it is dead."""

  def __init__(self, iteration, value):
    self.iteration, self.value = iteration, value

  def gossip_state(self):
    if self.value is None:
      raise rpc.Unavailable('nowhere', 'gossip_state', False, 'dead')
    return self.iteration, np.full((1, SIZE), self.value, np.float32), 0.0


def test_what_is_not_finite_is_not_gone_on_from():
  broken, dead, sound = (_Neighbour(9, x) for x in (np.nan, None, 4.0))
  found = gossip.ask({1: broken, 2: dead, 3: sound})
  assert found.iteration == 9
  assert found.theta[0, 0] == 4.0
  assert gossip.ask({1: broken, 2: dead}) is None


def test_of_all_neighbours_the_one_that_is_furthest_is_gone_on_from():
  states = [(3, 1.0), (8, 2.0), (9, np.nan), (9, None), (5, 3.0)]
  found = gossip.ask({i: _Neighbour(*state) for i, state in enumerate(states)})
  assert (found.iteration, found.theta[0, 0]) == (8, 2.0)

  # One that has not begun has nothing.
  class New:
    def gossip_state(self):
      return None

  assert gossip.ask({0: New()}) is None
  assert gossip.ask({0: New(), 1: _Neighbour(3, 1.0)}).iteration == 3


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
  (first, *_), carriers = played.make_workers(mixing.Graph('ring', 3), tau=None)
  assert first.exchange.replacement(0) is None
  carriers[0].receive(2, mix.Message(1, np.full((1, SIZE), 3, np.float32)))
  np.testing.assert_array_equal(first.exchange.replacement(0), [3] * SIZE)
  # The change is not a step, so the bound does not rise by it.
  first.learner.theta[:] = first.exchange.replacement(0)
  first.exchange.reset_member(0)
  first.iterate()
  assert played.metrics(first)['distance_bound'] == 0.0
  # Of several members it is the same one's.
  both = np.repeat(np.float32([[3.0], [5.0]]), SIZE, axis=1)
  carriers[0].receive(2, mix.Message(2, both))
  np.testing.assert_array_equal(first.exchange.replacement(1), [5] * SIZE)
