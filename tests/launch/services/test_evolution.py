"""The master of evolution strategies, and what it takes from workers."""

import threading
import time

import numpy as np
import pytest

from murmuration.launch.services import evolution as service
from tests.launch.services import evolution_cells


class _Clock:
  def __init__(self):
    self.now = 0.0
    self.asked = 0

  def __call__(self):
    now = self.now
    self.asked += 1
    return now


@pytest.fixture
def make_master(make_counter):
  def make(run_dir=None, clock=None, counter=None, **numbers):
    experiment, config = evolution_cells.make(run_dir, **numbers)
    counter = counter or make_counter()
    options = {} if clock is None else {'clock': clock}
    return service.Master(experiment, config, counter, **options)

  return make


def _deliver(master, worker, task, returns=None, key=None):
  count = 2  # pairs of a task
  if returns is None:
    returns = np.arange(2 * count, dtype=np.float32).reshape(-1, 2)
  return master.deliver(
    worker,
    task['key'] if key is None else key,
    task['task'],
    returns,
    np.full((count, 2), 10, np.int32),
    None,
  )


def test_each_task_is_given_to_one_worker(make_master):
  master = make_master()
  tasks = [master.next_task(worker, -1) for worker in range(4)]
  assert [task['task'] for task in tasks] == [0, 1, 2, 3]
  assert {task['generation'] for task in tasks} == {0}


def test_theta_is_sent_to_those_who_have_another(make_master):
  master = make_master()
  first = master.next_task(0, -1)
  assert first['theta'] is not None
  assert 'theta' not in master.next_task(0, first['key'])


def test_what_a_worker_had_is_given_out_again_when_it_asks_anew(make_master):
  master = make_master()
  lost = master.next_task(0, -1)
  master.next_task(1, -1)
  again = master.next_task(0, -1)
  assert again['task'] == lost['task']
  assert master._again == 1


def test_a_task_that_does_not_come_back_is_given_to_another_too(make_master):
  clock = _Clock()
  master = make_master(clock=clock)
  tasks = [master.next_task(worker, -1) for worker in range(4)]
  clock.now = 61.0  # evolution.patience_s and a second
  late = master.next_task(4, -1)
  assert late['task'] == 0
  assert _deliver(master, 4, late)
  # The first one comes after all: it is of no use any more.
  assert not _deliver(master, 0, tasks[0])


def test_a_result_of_another_theta_is_discarded(make_master):
  master = make_master()
  task = master.next_task(0, -1)
  assert not _deliver(master, 0, task, key=task['key'] + 1)
  assert _deliver(master, 0, task)


def test_results_of_no_use_are_counted_and_said_above_a_fifth(
  make_master, make_counter, caplog
):
  counter = make_counter()
  master = make_master(counter=counter)
  tasks = [master.next_task(worker, -1) for worker in range(4)]
  for late in range(9):
    _deliver(master, 0, tasks[0], key=tasks[0]['key'] + 1)
    assert master._discarded == late + 1
  master._report()
  assert 'too late or twice' not in caplog.text  # of fewer than ten
  assert _deliver(master, 0, tasks[0])
  _deliver(master, 0, tasks[0])
  _deliver(master, 0, tasks[0])
  # Clients' threads leave the reporter to the node's own: it has no lock.
  assert counter.totals()['discarded_steps'] == 9 * 40
  for _ in range(2):
    master._report()
  assert caplog.text.count('of the results came too late or twice') == 1
  # The steps of 11 results of two pairs.
  assert counter.totals()['discarded_steps'] == 11 * 40


def test_a_generation_that_takes_long_is_said_every_ten_seconds(
  make_master, caplog
):
  clock, stop = _Clock(), threading.Event()
  master = make_master(clock=clock)
  _deliver(master, 0, master.next_task(0, -1))
  master.next_task(3, -1)
  asked = clock.asked
  thread = threading.Thread(target=master.run, args=(stop,), daemon=True)
  thread.start()
  deadline = time.monotonic() + 30
  while clock.asked == asked:  # the generation begins with a look at the clock
    assert time.monotonic() < deadline
    time.sleep(0.02)
  said = 'waits for 3 of 4 tasks since {} s; workers [3] have them'
  for now in (11, 22):
    clock.now = float(now)
    deadline = time.monotonic() + 30
    while said.format(now) not in caplog.text:
      assert time.monotonic() < deadline, caplog.text
      time.sleep(0.02)
  assert caplog.text.count('waits for') == 2
  stop.set()
  thread.join(30)
  assert not thread.is_alive()


def test_a_return_that_is_not_a_number_costs_its_pair_alone(make_master):
  master = make_master()
  before = master._strategy.theta
  returns = np.float32([[np.nan, 1.0], [2.0, 3.0]])
  _deliver(master, 0, master.next_task(0, -1), returns)
  for worker in range(1, 4):
    _deliver(master, worker, master.next_task(worker, -1))
  assert master._complete()
  master._end_generation(1.0)
  assert master._metrics['dropped_pairs'] == 1
  assert master._metrics['steps'] == 8 * 2 * 10  # they were taken all the same
  totals = master._reporter._counter.totals()
  assert (totals['episodes'], totals['dropped_episodes']) == (15, 1)
  after = master._strategy.theta
  assert np.isfinite(after).all() and (after != before).any()


def test_a_worker_without_a_task_is_asked_to_come_again(
  make_master, monkeypatch
):
  monkeypatch.setattr(service, '_HOLD_S', 0.01)
  master = make_master()
  for worker in range(4):
    assert master.next_task(worker, -1)
  assert master.next_task(4, -1) is None
