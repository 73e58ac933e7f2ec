"""Means over all gossiping workers: rounds, and who is late."""

import threading
import time

import numpy as np
import pytest

from murmuration.launch import rpc
from murmuration.launch.services import gossip
from murmuration.launch.services import gossip_averager
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

  def __init__(self, dead=False):
    self.dead, self.asked = dead, []

  def with_deadline(self, timeout_s):
    del timeout_s
    return self

  def meet(self, *worker):
    if self.dead:
      raise rpc.Unavailable('nowhere', 'meet', False, 'dead')

  leave = meet

  def average(self, worker, number, steps, theta):
    self.asked.append((number, steps))
    if self.dead:
      raise rpc.Unavailable('nowhere', 'average', False, 'dead')
    time.sleep(0.01)
    return False, None


class _Mean(_Averager):
  """One whose first mean is 8, and whose second one has been missed."""

  def average(self, worker, number, steps, theta):
    self.asked.append((number, steps))
    return True, played.theta(8.0) if number == 1 else None


def _of_two(averager, step=0.0, **options):
  """The first of two, with an averager, and the client of the other."""
  ring, clients = gossip.Graph('ring', 2), [played.Client(), played.Client()]
  clients[1].exchange = played.make_exchange(ring, 1, clients)
  exchange = played.make_exchange(
    ring, 0, clients, averager=averager, tau=None, avg_period=2, **options
  )
  exchange.push_message(1, 0)
  return played.Worker(exchange, 1.0, step), clients[1]


@pytest.mark.parametrize('dead', [True, False])
def test_without_an_averager_that_answers_gossip_goes_on(dead):
  averager = _Averager()
  worker, neighbour = _of_two(averager, step=1.0, patience_s=0.3)
  worker.begin()
  averager.dead = dead
  for _ in range(4):
    worker.iterate()
  worker.exchange.ended()
  assert worker.value == 5.0
  assert neighbour.got[-2][1].iteration == 4
  assert played.metrics(worker)['averages'] == 0
  numbers = [number for number, _ in averager.asked]
  assert numbers == [1, 2] if dead else len(numbers) > 2


def test_an_averager_that_is_never_reached_ends_the_worker():
  worker, _ = _of_two(_Averager(dead=True), first_patience_s=0.1)
  with pytest.raises(rpc.Unavailable):
    worker.begin()


def test_who_has_left_is_not_waited_for():
  averager = gossip_averager.Averager(2, timeout_s=30)
  averager.leave(1)
  assert _average(averager, [(0, 1, 10, 1.0)]) == {0: 1.0}


def test_a_worker_takes_the_mean_every_period_or_goes_on_without_it():
  averager = _Mean()
  worker, _ = _of_two(averager)
  worker.begin()
  values = []
  for _ in range(4):
    worker.iterate()
    values.append(worker.value)
  assert values == [1.0, 8.0, 8.0, 8.0]
  assert averager.asked == [(1, 20), (2, 20)]
  assert played.metrics(worker)['averages'] == 1


def test_steps_without_a_mean_count_in_the_next_one():
  class Late(_Averager):
    def average(self, worker, number, steps, theta):
      self.asked.append((number, steps))
      return True, None if number == 1 else theta

  averager = Late()
  worker, _ = _of_two(averager)
  worker.steps = 40  # of a resumed run
  worker.begin()
  for steps in (140, 340, 340, 390):  # the first mean came too late
    worker.steps = steps - 20
    worker.iterate()
    worker.iterate()
  # Of no steps at all one, not 0.
  assert averager.asked == [(1, 100), (2, 300), (3, 1), (4, 50)]
