"""Whole runs of evolution strategies, in threads, and what goes between."""

import threading

import numpy as np
import pytest

from murmuration.agents import evolution
from murmuration.launch import rpc
from murmuration.launch.nodes import es_worker
from murmuration.launch.rpc import codec
from murmuration.launch.services import evolution as service
from murmuration.run_records import checkpoints
from murmuration.run_records import run_directory
from tests.launch.services import evolution_cells

STEPS = 4000


class _Unreliable:
  """A master that now and then is not there."""

  def __init__(self, master, every):
    self._master, self._every, self._calls = master, every, 0

  def __getattr__(self, name):
    def call(*arguments):
      self._calls += 1
      if self._calls % self._every == 0:
        raise rpc.Unavailable('here', name, False, 'test')
      return getattr(self._master, name)(*arguments)

    return call


class _Going:
  """A counter of a run that goes on."""

  def with_deadline(self, timeout_s):
    return self

  def report(self, *unused):
    return {'finished': False}


def _run(directory, counter, workers, every=0, **numbers):
  """Runs until the budget is used; the master, and a row a generation."""
  experiment, config = evolution_cells.make(
    directory, **{'run.steps_per_agent': str(STEPS), **numbers}
  )
  master = service.Master(experiment, config, counter)
  stop = threading.Event()
  seen = _Unreliable(master, every) if every else master
  players = [
    es_worker.Worker(experiment, config, i, counter, seen)
    for i in range(workers)
  ]
  threads = [
    threading.Thread(target=player.run, args=(stop,)) for player in players
  ]
  for thread in threads:
    thread.start()
  leader = threading.Thread(target=master.run, args=(stop,))
  leader.start()
  for thread in threads:
    thread.join(100)
  stop.set()
  leader.join(100)
  counter.close()
  rows = run_directory.RunDirectory(directory).metrics('generation')
  kept = ('generation', 'steps', 'return_mean', 'gradient_norm', 'parameters')
  return master, [[row[name] for name in kept] for row in rows]


@pytest.fixture
def run(tmp_path, make_counter):
  runs = []

  def start(workers, every=0, directory=None, steps=STEPS, **numbers):
    runs.append(workers)
    directory = directory or tmp_path / str(len(runs))
    counter = make_counter(directory, {'actor_steps': steps})
    return _run(directory, counter, workers, every, **numbers)

  return start


def test_four_workers_make_the_generations_that_one_makes(run):
  alone, expected = run(1)
  four, found = run(4)
  assert len(expected) > 3
  assert found == expected
  np.testing.assert_array_equal(four._strategy.theta, alone._strategy.theta)


def test_a_worker_tells_the_launcher_what_it_waits_for(monkeypatch):
  stop = threading.Event()
  told = []

  def waits(text):
    told.append(text)
    if len(told) == 2:
      stop.set()

  monkeypatch.setattr(es_worker.pulse, 'waits', waits)

  class Master:
    def next_task(self, *unused):
      raise rpc.Unavailable('here', 'next_task', False, 'no route')

  experiment, config = evolution_cells.make()
  es_worker.Worker(experiment, config, 0, _Going(), Master()).run(stop)
  assert told == ['next_task() at here: no route'] * 2


def test_a_worker_does_not_ask_a_master_that_is_over_without_a_pause(
  monkeypatch,
):
  stop, asked, pauses = threading.Event(), [], []

  class Master:
    def next_task(self, *unused):
      asked.append(len(pauses))
      if len(asked) == 3:
        stop.set()

  wait = threading.Event.wait

  def waited(event, timeout=None):
    if event is stop:
      pauses.append(timeout)
      return True
    return wait(event, timeout)

  monkeypatch.setattr(threading.Event, 'wait', waited)
  experiment, config = evolution_cells.make()
  es_worker.Worker(experiment, config, 0, _Going(), Master()).run(stop)
  assert asked == [0, 1, 2]


def test_lost_calls_change_nothing(run):
  _, expected = run(1)
  _, found = run(2, every=7)
  assert found == expected


def test_the_steps_of_all_perturbed_episodes_are_counted(run):
  master, rows = run(2)
  totals = master._reporter._counter.totals()
  assert totals['actor_steps'] == sum(row[1] for row in rows) >= STEPS
  assert totals['learner_steps'] == len(rows)
  assert totals['episodes'] == 16 * len(rows)


def test_episodes_of_a_task_without_a_limit_are_cut(run):
  _, rows = run(
    1,
    **{
      'environment': 'tests.launch.faulty_environments:Endless-v0',
      'run.eval_max_steps': '50',
    },
  )
  # Eight pairs: each generation ends, and with it the run.
  assert rows and {steps for _, steps, *_ in rows} == {16 * 50}
  # A step that its pole would not have survived pays nothing.
  assert all(0 < mean <= 50 for _, _, mean, *_ in rows)


def test_a_master_goes_on_from_its_checkpoint(run, tmp_path):
  _, expected = run(1, steps=2 * STEPS)
  directory = tmp_path / 'kept'
  first, before = run(1, directory=directory)
  path = directory / 'checkpoints' / checkpoints.AGENTS
  with np.load(path) as saved:
    np.testing.assert_array_equal(saved['theta'][0], first._strategy.theta)
    assert saved['steps'] == len(before)
  _, after = run(1, directory=directory, steps=2 * STEPS)
  assert 0 < len(before) < len(after)
  assert after == expected


def _bytes(*result):
  """Of the message that `deliver` is called with."""
  parts = codec.encode_parts(['deliver', list(result), {}])
  return sum(map(len, parts))


@pytest.mark.parametrize('observation_size', [0, 1, 4, 11, 348])
@pytest.mark.parametrize('pairs', [1, 2, 10, 100])
def test_a_result_is_small(pairs, observation_size):
  sums = evolution.no_sums(observation_size)._replace(number=1e6)
  size = _bytes(
    1000,
    2**32 - 1,
    1000,
    np.zeros((pairs, 2), np.float32),
    np.zeros((pairs, 2), np.int32),
    tuple(sums) if observation_size else None,
  )
  assert size < 200 + 20 * pairs + 16 * observation_size


@pytest.mark.parametrize('normalizes', [True, False])
def test_what_workers_send_is_as_small_as_that(run, monkeypatch, normalizes):
  sent, deliver = [], service.Master.deliver
  monkeypatch.setattr(
    service.Master,
    'deliver',
    lambda self, *result: sent.append(result) or deliver(self, *result),
  )
  run(2, **{'agent.normalize_observations': str(normalizes)})
  most = 200 + 20 * 2 + (16 * 4 if normalizes else 0)
  assert sent and max(_bytes(*result) for result in sent) < most
  counted = [result[5] is not None for result in sent]
  assert any(counted) == normalizes


def test_observations_are_counted_the_same_by_any_number_of_workers(run):
  numbers = {
    'agent.normalize_observations': 'True',
    'evolution.obs_stat_prob': '0.5',
  }
  alone, expected = run(1, **numbers)
  _, found = run(3, **numbers)
  assert found == expected
  assert alone._strategy._sums.number > 100


def test_each_step_of_a_task_shows_that_the_run_moves(run, monkeypatch):
  said = []
  monkeypatch.setattr(
    es_worker.pulse, 'worked', lambda moved=False: said.append(moved)
  )
  _, rows = run(1)
  assert sum(said) > len(rows)
