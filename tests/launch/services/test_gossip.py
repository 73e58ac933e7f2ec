"""Gossip between workers that a test plays: mixing, the lock, deaths."""

import threading
import time

import numpy as np
import pytest

from murmuration.launch import rpc
from murmuration.launch.services import gossip
from tests.launch.services import gossip_workers as played

SIZE = played.SIZE
RING = gossip.Graph('ring', 2)


def test_a_message_is_mixed_with_equal_weights_and_only_once():
  (first, second), _ = played.make_workers(RING, [1.0, 5.0], tau=None)
  assert not first.iterate()  # nothing has come: its own is kept
  assert first.value == 1.0
  assert second.iterate()
  assert second.value == 3.0  # of 5 and the first's 1
  assert not second.iterate()
  assert second.value == 3.0
  assert first.iterate()
  assert first.value == 2.0  # of 1 and the second's newest, 3
  assert played.metrics(second)['mixtures'] == 1


def test_metrics_do_not_change_what_is_mixed():
  def values(asks):
    workers, _ = played.make_workers(RING, [1.0, 5.0], step=1.0, tau=None)
    for turn in (0, 1, 1, 0, 1, 0, 0, 1):
      workers[turn].iterate()
      if asks:
        for worker in workers:
          assert played.metrics(worker) == played.metrics(worker)
    return [worker.value for worker in workers]

  assert values(asks=True) == values(asks=False)


def test_what_is_sent_is_the_own_update_before_the_mixture():
  (first, second), clients = played.make_workers(
    RING, [0.0, 0.0], step=1.0, tau=None
  )
  first.iterate()
  second.iterate()
  assert clients[0].got[-1][1].theta[0, 0] == 1.0
  first.iterate()
  assert clients[1].got[-1][1].theta[0, 0] == 2.0
  assert first.value == 1.5


@pytest.mark.parametrize('tau', [0, 1, 3])
def test_the_lock_never_lets_a_worker_be_more_than_tau_and_one_ahead(tau):
  workers, _ = played.make_workers(gossip.Graph('ring', 4), tau=tau)
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
  (first, _), _ = played.make_workers(RING, tau=None)
  played.together([lambda: [first.iterate() for _ in range(20)]])
  assert played.metrics(first)['neighbours_dead'] == 0


def test_a_dead_neighbour_is_waited_for_once_and_heard_again(caplog):
  (first, _), _ = played.make_workers(RING, [0.0, 4.0], tau=0, patience_s=0.2)
  begin = time.monotonic()
  first.iterate()
  assert time.monotonic() - begin >= 0.2
  assert played.metrics(first)['neighbours_dead'] == 1
  waited_s = played.metrics(first)['gossip_waited_s']
  for _ in range(100):
    assert not first.iterate()  # alone, its row is 1
  # Not 0.2 s each.
  assert played.metrics(first)['gossip_waited_s'] < waited_s + 10.0
  first.exchange.push_message(1, 102, played.theta(4.0))
  assert first.iterate()
  assert first.value == 2.0
  assert played.metrics(first)['neighbours_dead'] == 0
  assert 'Worker 1 is heard again' in caplog.text


def test_the_row_without_a_dead_neighbour_is_renormalised():
  (first, *_), _ = played.make_workers(
    gossip.Graph('full', 3, 2), [0.0, 3.0, 6.0], tau=0, patience_s=0.2
  )
  first.exchange.push_message(1, 1, played.theta(3.0))
  first.iterate()
  assert first.value == 1.5  # halves, not thirds
  # One that lives and has sent nothing new leaves its share to the own.
  assert gossip.mix_row(np.float32([6.0]), [np.float32([3.0])], 2)[0] == 5.0


def test_parameters_that_are_not_finite_are_refused_and_not_sent(caplog):
  (first, second), clients = played.make_workers(RING, tau=None)
  second.learner.theta[:] = np.inf
  second.iterate()
  # Its number has come all the same.
  assert clients[0].got[-1] == (1, gossip.Message(1))
  first.exchange.push_message(1, 2, played.theta(np.inf))
  assert not first.iterate()
  assert first.value == 0.0
  assert played.metrics(first)['messages_refused'] == 1
  assert 'Refused parameters of worker 1' in caplog.text


def test_an_older_message_is_dropped():
  (first, _), _ = played.make_workers(RING, tau=None)
  for iteration, value in ((5, 2.0), (3, 9.0)):
    first.exchange.push_message(1, iteration, played.theta(value))
  first.iterate()
  assert first.value == 1.0
  assert played.metrics(first)['staleness_from_1'] == 1 - 5


def test_each_message_of_one_that_is_behind_is_mixed():
  (first, _), _ = played.make_workers(RING, tau=None)
  for iteration, value in ((1, 2.0), (2, 3.0)):
    assert not first.iterate()
    first.exchange.push_message(1, iteration, played.theta(4.0))
    assert first.iterate()
    assert first.value == value


def test_what_comes_after_its_turn_is_mixed_when_the_turn_comes_again():
  workers, _ = played.make_workers(gossip.Graph('full', 3), tau=1)
  for _ in range(3):
    for worker in workers:  # the first is ahead of both others
      worker.iterate()
  # Of iteration 1, as the one of 3 is not there yet: two turns are a cycle.
  assert played.metrics(workers[0])['staleness_from_1'] == 2


def test_the_slowest_never_waits_whatever_the_graph_and_the_bound():
  rng = np.random.default_rng(0)
  for topology, size in (('ring', 4), ('exponential', 8), ('full', 5)):
    graph = gossip.Graph(topology, size)
    for tau in (0, 1, 3):
      (slowest, *_), _ = played.make_workers(graph, tau=tau)
      for j in graph.all_sources(0):
        slowest.exchange.push_message(j, int(rng.integers(1, 6)))
      slowest.iterate()
      assert played.metrics(slowest)['neighbours_dead'] == 0


# The start.


def _restarted(value, iteration, state, again=True, tau=1):
  """One of two whose neighbour is at `state`, and has a checkpoint or none."""
  client = played.Client(state=state)
  exchange = played.make_exchange(RING, 0, {1: client}, tau=tau)
  exchange.push_message(1, iteration)
  worker = played.Worker(exchange, value, again=again)
  worker.learner.theta[:] = value  # its checkpoint
  return worker.begin()


def test_a_worker_started_again_goes_on_where_a_neighbour_is():
  def start(iteration, **options):
    state = gossip.Message(iteration, played.theta(7.0))
    return _restarted(1.0, iteration, state, **options)

  worker = start(30)
  assert worker.value == 7.0
  assert played.metrics(worker)['gossip_iteration'] == 30
  assert worker.exchange.variables()['gossip_iteration'].numpy() == 30
  assert worker.exchange.gossip_state(1).iteration == 30
  # Of a first start, and of one that is not further behind than may be.
  assert start(30, again=False).value == 1.0
  assert start(2).value == 1.0
  assert start(2, tau=None).value == 7.0


@pytest.mark.parametrize('again, answers', [(1, 1), (1, 0), (0, 1)])
def test_without_a_checkpoint_a_worker_goes_on_from_what_a_neighbour_has(
  again, answers
):
  # Not further ahead than the lock allows: `begin` leaves it as it is.
  state = gossip.Message(2, played.theta(7.0)) if answers else None
  exchange = played.make_exchange(RING, 0, {1: played.Client(state=state)})
  exchange.push_message(1, 2)
  worker = played.Worker(exchange, 1.0, again=bool(again)).begin()
  assert worker.value == (7.0 if again and answers else 1.0)


def test_a_neighbour_that_died_meanwhile_is_gone_on_from_all_the_same():
  client = played.Client(state=gossip.Message(30, played.theta(7.0)))
  exchange = played.make_exchange(RING, 0, {1: client})
  worker = played.Worker(exchange, 1.0, again=True)
  client.state = None
  exchange.push_message(1, 30)
  worker.begin()
  assert worker.value == 7.0
  assert played.metrics(worker)['gossip_iteration'] == 30


def test_whoever_begins_further_on_than_a_neighbour_does_not_wait_for_it():
  # All start equal, whatever the iteration number.
  state = gossip.Message(30, played.theta(7.0))
  worker = _restarted(1.0, 28, state)
  worker.iterate()
  assert played.metrics(worker)['gossip_iteration'] == 31
  assert played.metrics(worker)['neighbours_dead'] == 0


@pytest.mark.parametrize('ends', [True, False])
def test_one_that_was_never_heard_may_be_tracing_and_is_waited_for(ends):
  exchange = played.make_exchange(
    RING, 0, {1: played.Client()}, tau=0, patience_s=0.05
  )
  worker = played.Worker(exchange)
  thread = threading.Thread(target=worker.begin, daemon=True)
  thread.start()
  thread.join(0.5)
  assert thread.is_alive()
  if ends:
    worker.stopped = True
  else:
    exchange.push_message(1, 0)
  thread.join(60)
  assert not thread.is_alive()
  assert played.metrics(worker)['neighbours_dead'] == 0


@pytest.mark.parametrize('tau', [0, None])
@pytest.mark.parametrize('again', [False, True])
def test_a_neighbour_that_is_never_heard_ends_the_worker(again, tau):
  # The others are heard, and this one answers who asks it.
  graph, state = gossip.Graph('full', 3), gossip.Message(5, played.theta(1.0))
  clients = {j: played.Client(state=state) for j in (1, 2)}
  exchange = played.make_exchange(
    graph, 0, clients, tau=tau, first_patience_s=0.1
  )
  exchange.push_message(1, 5)
  worker = played.Worker(exchange, again=again)
  with pytest.raises(RuntimeError, match='worker/2'):
    worker.begin()


def test_a_worker_that_gets_no_parameters_of_a_neighbour_ends():
  exchange = played.make_exchange(
    RING, 0, {1: played.Client()}, tau=None, first_patience_s=0.05
  )
  exchange.push_message(1, 0)
  worker = played.Worker(exchange).begin()
  time.sleep(0.1)
  with pytest.raises(gossip.NothingMixed):
    worker.iterate()


def test_who_asks_for_the_state_of_a_worker_is_also_heard_by_it():
  # Else it would wait for a neighbour that waits for it.
  (first, second), clients = played.make_workers(RING, tau=None)
  first.iterate()
  second.iterate()
  clients[0].exchange = played.make_exchange(
    RING, 0, clients, first_patience_s=20.0
  )
  played.together([played.Worker(clients[0].exchange, again=True).begin])


class _Neighbour(played.Client):
  """Stands for the client of one that is at an iteration; None: it is dead."""

  def __init__(self, iteration, value):
    state = (iteration, None if value is None else played.theta(value))
    super().__init__(state=None if value is None else state)


@pytest.mark.parametrize(
  'states, iteration, value',
  [
    ([(9, np.nan), (9, None), (9, 4.0)], 9, 4.0),
    ([(3, 1.0), (8, 2.0), (9, np.nan), (9, None), (5, 3.0)], 8, 2.0),
    ([(9, np.nan), (9, None)], 0, 1.0),
  ],
)
def test_of_all_neighbours_the_one_that_is_furthest_is_gone_on_from(
  states, iteration, value
):
  clients = {i: _Neighbour(*state) for i, state in enumerate(states, 1)}
  graph = gossip.Graph('full', len(clients) + 1)
  exchange = played.make_exchange(graph, 0, clients, tau=None)
  for j in clients:
    exchange.push_message(j, 0)
  worker = played.Worker(exchange, 1.0, again=True).begin()
  assert played.metrics(worker)['gossip_iteration'] == iteration
  assert worker.value == value


def test_a_member_that_broke_gets_what_a_neighbour_has_sent():
  (first, *_), _ = played.make_workers(gossip.Graph('ring', 3), tau=None)
  assert first.exchange.replacement(0) is None
  first.exchange.push_message(2, 1, played.theta(3.0))
  np.testing.assert_array_equal(first.exchange.replacement(0), [3] * SIZE)
  # Of several members it is the same one's.
  both = np.repeat(np.float32([[3.0], [5.0]]), SIZE, axis=1)
  first.exchange.push_message(2, 2, both)
  np.testing.assert_array_equal(first.exchange.replacement(1), [5] * SIZE)


# Messages over RPC, in threads.


def _until(condition):
  deadline = time.monotonic() + 60
  while not condition():
    assert time.monotonic() < deadline
    time.sleep(0.01)


@pytest.fixture
def served(tmp_path):
  """served(graph, ...): an exchange for each worker, served at an address."""
  exchanges, contexts = [], []

  def serve(graph, **options):
    addresses = [f'unix:{tmp_path}/worker{i}' for i in range(graph.size)]
    for i, address in enumerate(addresses):
      clients = {j: rpc.Client(addresses[j]) for j in graph.neighbours(i)}
      exchanges.append(gossip.Gossip(graph, i, clients, **options))
      contexts.append(rpc.serve(exchanges[-1], address))
      contexts[-1].__enter__()
    return exchanges, clients

  yield serve
  for exchange in exchanges:
    exchange.close()
  for context in contexts:
    context.__exit__(None, None, None)


def test_workers_mix_over_rpc_and_one_that_comes_back_takes_over(served):
  graph = gossip.Graph('ring', 3)
  exchanges, clients = served(graph, tau=1)
  workers = [played.Worker(x, float(i)) for i, x in enumerate(exchanges)]
  played.together([worker.begin for worker in workers])
  assert played.run_all(workers, 60, [0.002] * 3) <= 2
  values = [worker.value for worker in workers]
  assert np.ptp(values) < 0.2
  assert all(0 <= value <= 2 for value in values)
  assert all(played.metrics(worker)['mixtures'] > 20 for worker in workers)
  iteration, theta = clients[1].gossip_state(2)
  assert iteration == 60
  np.testing.assert_array_equal(theta, workers[1].learner.theta)


class _Receiver(played.Client):
  """A neighbour's client that calls `taken(iteration)` for each message."""

  def __init__(self, taken):
    super().__init__()
    self._taken = taken

  def push_message(self, sender, iteration, *rest):
    self._taken(iteration)


def _alone(client, **options):
  """One of two that has heard the other, and sends to `client`."""
  exchange = gossip.Gossip(RING, 0, {1: client}, tau=None, **options)
  exchange.push_message(1, 0)
  return played.Worker(exchange, 1.0).begin()


def test_a_receiver_that_hangs_does_not_stop_learning():
  release, taken = threading.Event(), []

  def hang(iteration):
    taken.append(iteration)
    release.wait(60)

  worker = _alone(_Receiver(hang))
  _until(lambda: taken)
  played.together([lambda: [worker.iterate() for _ in range(100)]])
  release.set()
  _until(lambda: 100 in taken)
  worker.exchange.close()
  # The newest only, of a hundred that waited.
  assert taken == [0, 100]


def test_an_error_in_the_thread_of_a_sender_ends_the_worker():
  def fail(iteration):
    if iteration:
      raise ValueError('This is a mistake in the code.')

  worker = _alone(_Receiver(fail))
  with pytest.raises(ValueError, match='mistake'):
    _until(lambda: worker.iterate() and False)
  worker.exchange.close()


def test_an_error_in_the_thread_of_a_sender_ends_a_wait_for_a_neighbour():
  def fail(iteration):
    raise ValueError('This is a mistake in the code.')

  exchange = gossip.Gossip(RING, 0, {1: _Receiver(fail)})
  with pytest.raises(ValueError, match='mistake'):
    played.Worker(exchange).begin()
  exchange.close()


def test_who_is_killed_after_a_neighbour_has_ended_hears_of_it_again(
  monkeypatch,
):
  monkeypatch.setattr(gossip, '_LEFT_PERIOD_S', 0.01)
  client = played.Client(gossip.Gossip(RING, 1, {}))
  worker = _alone(client)
  worker.iterate()
  worker.exchange.ended()
  for _ in range(2):
    _until(lambda: (0, gossip.Message(gossip.LEFT)) in client.got[-1:])
    client.got.clear()
    client.exchange = gossip.Gossip(RING, 1, {})
    worker.exchange.gossip_state(1)  # as it asks
  worker.exchange.close()
