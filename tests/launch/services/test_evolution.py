"""The master of evolution strategies, its workers, and what goes between."""

import dataclasses
import threading
import time

import numpy as np
import pytest

from agents import base
from agents import evolution
from agents import strategy as strategy_lib
from environment_loops import vector
from launch import cell as cell_lib
from launch import rpc
from launch.nodes import es_worker
from launch.rpc import codec
from launch.services import evolution as service
from run_records import checkpoints
from run_records import run_directory

SMALL = {
  'agent.hidden_sizes': '(8,)',
  'evolution.population': '8',
  'evolution.pairs_per_task': '2',
  'evolution.envs_per_worker': '3',
  'evolution.table_size': '50_000',
  'run.target_return': 'None',
}
STEPS = 4000


class _Clock:
  def __init__(self):
    self.now = 0.0
    self.asked = 0

  def __call__(self):
    now = self.now
    self.asked += 1
    return now


def _cell(run_dir=None, preset='', **numbers):
  found = cell_lib.resolve(
    'es_mlp', preset, overrides={**SMALL, **numbers}, seed=7
  )
  experiment = found.experiment
  if run_dir is not None:
    experiment = found.experiment.__class__(
      **{**vars(experiment), 'run_dir': str(run_dir)}
    )
  return experiment, found.sections['evolution']


@pytest.fixture
def make_master(make_counter):
  def make(run_dir=None, clock=None, counter=None, **numbers):
    experiment, config = _cell(run_dir, **numbers)
    counter = counter or make_counter()
    options = {} if clock is None else {'clock': clock}
    return service.Master(experiment, config, counter, **options)

  return make


def _deliver(master, worker, task, returns=None, key=None):
  count = len(task['indices'])
  if returns is None:
    returns = np.arange(2 * count, dtype=np.float32).reshape(-1, 2)
  return master.deliver(
    worker,
    task['key'] if key is None else key,
    task['task'],
    task['indices'],
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
  np.testing.assert_array_equal(again['indices'], lost['indices'])


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


def test_a_result_of_another_theta_or_noise_is_discarded(make_master):
  master = make_master()
  task = master.next_task(0, -1)
  assert not _deliver(master, 0, task, key=task['key'] + 1)
  assert not _deliver(master, 0, {**task, 'indices': task['indices'] + 1})
  assert _deliver(master, 0, task)


def test_results_of_no_use_are_counted_and_said_above_a_fifth(
  make_master, caplog
):
  master = make_master()
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
  assert 'discarded_steps' not in master._reporter._pending
  for _ in range(2):
    master._report()
  assert caplog.text.count('of the results came too late or twice') == 1
  # The steps of 11 results of two pairs.
  assert master._reporter._counted['discarded_steps'] == 11 * 40


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
  assert master._reporter._counter.totals()['dropped_episodes'] == 1
  after = master._strategy.theta
  assert np.isfinite(after).all() and (after != before).any()


def test_an_evaluation_whose_environment_broke_is_left_out(make_master):
  master = make_master()
  found = []
  for evaluated in ([np.nan, 4.0], [np.nan]):
    for worker in range(4):
      task = master.next_task(worker, -1)
      count = len(task['indices'])
      assert master.deliver(
        worker,
        task['key'],
        task['task'],
        task['indices'],
        np.arange(2 * count, dtype=np.float32).reshape(-1, 2),
        np.full((count, 2), 10, np.int32),
        None,
        evaluated,
      )
    master._end_generation(1.0)
    found.append(master._metrics)
  assert (found[0]['eval_return_mean'], found[0]['eval_episodes']) == (4.0, 4)
  assert 'eval_return_mean' not in found[1]


def test_a_worker_without_a_task_is_asked_to_come_again(
  make_master, monkeypatch
):
  monkeypatch.setattr(service, '_HOLD_S', 0.01)
  master = make_master()
  for worker in range(4):
    assert master.next_task(worker, -1)
  assert master.next_task(4, -1) is None


def test_a_worker_with_another_network_or_table_is_refused(make_master):
  master = make_master()
  print_, sum_ = master._layout.fingerprint, master._checksum
  assert master.register('worker/0', print_, 'same', sum_) == ''
  assert 'same config' in master.register('worker/0', b'x', 'other', sum_)
  assert 'noise table' in master.register('worker/0', print_, 'same', sum_ + 1)


def test_a_population_follows_where_steps_are_missing(make_master):
  master = make_master(**{'evolution.min_steps': '400'})
  for worker in range(4):
    _deliver(master, worker, master.next_task(worker, -1))
  # 8 pairs of 2 x 10 steps are 160; three populations are enough.
  numbers = []
  for _ in range(8):
    task = master.next_task(0, -1)
    numbers.append(task['task'])
    _deliver(master, 0, task)
  assert numbers == list(range(4, 12))
  assert master._complete()


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
    np.zeros(pairs, np.int32),
    np.zeros((pairs, 2), np.float32),
    np.zeros((pairs, 2), np.int32),
    tuple(sums) if observation_size else None,
    [1.0],
  )
  assert size < 200 + 24 * pairs + 16 * observation_size


# Whole runs, in threads.


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


def _run(directory, counter, workers, every=0, **numbers):
  """Runs until the budget is used; the master, and a row a generation."""
  experiment, config = _cell(
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


def test_workers_that_update_for_themselves_have_what_the_master_has(
  run, monkeypatch
):
  _, expected = run(1)
  sent = []
  news = service.Master._news
  monkeypatch.setattr(
    service.Master,
    '_news',
    lambda self, has: sent.append(news(self, has)) or sent[-1],
  )
  _, found = run(2, **{'evolution.broadcast': 'returns'})
  assert found == expected
  # All parameters once for each worker that was there from the beginning.
  assert sum('state' in one for one in sent) <= 4
  assert sum('update' in one for one in sent) >= len(expected) - 1
  assert not any('theta' in one for one in sent)


def test_a_worker_whose_update_came_out_different_takes_all_over(run):
  experiment, config = _cell(**{'evolution.broadcast': 'returns'})

  class Master:
    asked = []

    def register(self, *unused):
      return ''

    def next_task(self, worker, has):
      self.asked.append(has)
      if len(self.asked) == 1:
        return {'generation': 1, 'key': 5, 'state': strategy.save()}
      stop.set()

  agent = experiment.make_agent()
  table = evolution.noise_table(config.table_seed, config.table_size)
  strategy = strategy_lib.Strategy(
    config, agent.layout, agent.initial(0), table
  )
  stop = threading.Event()

  class Counter:
    def with_deadline(self, timeout_s):
      return self

    def report(self, *unused):
      return {'finished': False}

  es_worker.Worker(experiment, config, 0, Counter(), Master()).run(stop)
  assert Master.asked == [-1, -1]


def test_lost_calls_change_nothing(run):
  _, expected = run(1)
  _, found = run(2, every=7)
  assert found == expected


@pytest.mark.parametrize('preset', ['cartpole', 'inverted_pendulum'])
def test_evaluations_beside_the_episodes_change_no_generation(run, preset):
  found = []
  for share in ('0', '0.5'):
    _, rows = run(
      2, preset=preset, steps=1000, **{'evolution.eval_prob': share}
    )
    found.append(rows)
  assert found[0] == found[1] and len(found[0]) > 1


def test_what_is_evaluated_is_theta_without_noise(run, tmp_path):
  run(1, directory=tmp_path / 'run', **{'evolution.eval_prob': '1'})
  directory = run_directory.RunDirectory(tmp_path / 'run')
  rows = directory.metrics('generation')
  assert {row['eval_episodes'] for row in rows} == {4}  # one of each task
  experiment, config = _cell()
  agent = experiment.make_agent()
  theta = agent.initial(base.actor_seed(experiment.actor_info(0), 'initial'))
  config = dataclasses.replace(config, eval_prob=1.0)
  place = evolution.perturbed(agent.layout)
  returns = []
  for task in range(4):
    drawn = evolution.draws(config, 7, 0, task, place.stop - place.start)
    environment = vector.make_vector('CartPole-v1', 1, 0)
    environment.reseed(0, drawn.seeds[-1])
    observation, last, total = environment.reset(), False, 0.0
    policy = agent.greedy(theta)
    while not last:
      step = environment.step(policy(observation))
      observation, last = step.next_observation, step.last[0]
      total += step.reward[0]
    environment.close()
    returns.append(total)
  assert rows[0]['eval_return_mean'] == pytest.approx(np.mean(returns))


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


@pytest.mark.parametrize('normalizes', [True, False])
def test_what_workers_send_is_as_small_as_that(run, monkeypatch, normalizes):
  sent, deliver = [], service.Master.deliver
  monkeypatch.setattr(
    service.Master,
    'deliver',
    lambda self, *result: sent.append(result) or deliver(self, *result),
  )
  run(2, **{'agent.normalize_observations': str(normalizes)})
  most = 200 + 24 * 2 + (16 * 4 if normalizes else 0)
  assert sent and max(_bytes(*result) for result in sent) < most
  counted = [result[6] is not None for result in sent]
  assert any(counted) == normalizes


def test_observations_are_counted_the_same_by_any_number_of_workers(run):
  numbers = {
    'agent.normalize_observations': 'True',
    'evolution.obs_stat_prob': '0.5',
  }
  alone, expected = run(1, **numbers)
  _, found = run(3, **numbers)
  assert found == expected
  size = evolution.observation_size(alone._layout)
  assert size == 4
  assert alone._strategy._sums.number > 100


def test_each_step_of_a_task_shows_that_the_run_moves(run, monkeypatch):
  said = []
  monkeypatch.setattr(
    es_worker.pulse, 'worked', lambda moved=False: said.append(moved)
  )
  _, rows = run(1)
  assert sum(said) > len(rows)
