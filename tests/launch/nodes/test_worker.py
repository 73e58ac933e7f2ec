"""A worker that acts itself, in this process, without a program."""

import dataclasses
import threading
import time

import numpy as np
import pytest
import reverb

from murmuration.agents import learner
from murmuration.agents.exchange import local
from murmuration.launch import experience
from murmuration.launch.nodes import saves
from murmuration.launch.rpc import directory
from murmuration.run_records import run_directory
from tests.launch.nodes import experiments

GAMMA, N_STEP = experiments.GAMMA, experiments.N_STEP


@pytest.fixture
def start():
  """start(worker) runs it in a thread; all are stopped at the end."""
  stop = threading.Event()
  threads, errors = [], []

  def start(worker):
    def run():
      try:
        worker.run(stop)
      except Exception as e:
        errors.append(e)

    threads.append(threading.Thread(target=run, daemon=True))
    threads[-1].start()

  yield start
  stop.set()
  for thread in threads:
    thread.join(timeout=60)
    assert not thread.is_alive()
  if errors:
    raise errors[0]


def _wait_until(condition):
  deadline = time.monotonic() + 150
  while not condition():
    assert time.monotonic() < deadline, 'waited in vain'
    time.sleep(0.02)


def _window(rows, start):
  """The slow truth: the transition that starts at row `start`."""
  reward, discount = 0.0, 1.0
  for i, row in enumerate(rows[start : start + N_STEP]):
    reward += GAMMA**i * row[2]
    discount = row[3] * (GAMMA**i)
    last = row
    if row[5]:
      break
  return (rows[start][0], rows[start][1], reward, discount, last[4])


def test_what_reaches_replay_is_exactly_what_was_acted(
  recorder, make_worker, start, make_counter, tmp_path
):
  members = 3
  # More than the budget: what is written must be read here, not by a learner.
  experiment = experiments.make(
    experiments.COUNTING,
    members,
    {'min_replay_size': 500},
    run={'steps_per_agent': 90},
  )
  table = reverb.Table(
    'replay_7',
    sampler=reverb.selectors.Fifo(),
    remover=reverb.selectors.Fifo(),
    max_size=1000,
    rate_limiter=reverb.rate_limiters.MinSize(1),
    max_times_sampled=1,
    signature=experiment.make_agent().transition_layout().signature(members),
  )
  checkpointer = reverb.checkpointers.DefaultCheckpointer(path=str(tmp_path))
  server = reverb.Server([table], None, checkpointer)
  try:
    client = server.localhost_client()
    counter = make_counter(None)
    worker = make_worker(
      experiment,
      counter,
      addresses=[client.server_address],
      hosts=[],
      table='replay_7',
    )
    start(worker)
    # Items go out in bursts of 8: 90 steps are 88 windows, 11 bursts.
    items = experiment.run.steps_per_agent - N_STEP + 1
    assert items % 8 == 0
    _wait_until(lambda: client.server_info()['replay_7'].current_size == items)
    _wait_until(lambda: counter.totals().get('actor_steps') == 90 * members)
    # Reverb hands an item out as one part for each entry of its first axis.
    found = [
      np.stack([part.data[0] for part in sample])
      for sample in client.sample('replay_7', items)
    ]
  finally:
    server.stop()
  layout = experiment.make_agent().transition_layout()
  (environment,) = recorder
  episodes = set()
  for member, rows in enumerate(environment.steps):
    assert len(rows) == 90
    for start in range(items):
      got = layout.unpack(found[start][member])
      o_tm1, a_tm1, r_t, d_t, o_t = _window(rows, start)
      np.testing.assert_array_equal(got.o_tm1, o_tm1)
      assert (got.a_tm1, got.weight) == (a_tm1, 1.0)
      assert got.r_t == pytest.approx(r_t, rel=1e-6)
      assert got.d_t == pytest.approx(d_t, rel=1e-6)
      np.testing.assert_array_equal(got.o_t, o_t)
      assert got.o_tm1[0] == got.o_t[0]  # never across an episode's end
      episodes.add((member, int(o_tm1[0])))
  assert len(episodes) > 3 * members
  assert counter.totals()['episodes'] == sum(
    row[5] for rows in environment.steps for row in rows
  )


def test_a_worker_that_is_told_to_stop_does_not_wait_for_its_replay(
  recorder, make_worker, make_counter
):
  worker = make_worker(
    experiments.make(experiments.COUNTING),
    make_counter(None),
    addresses=['localhost:1'],
    hosts=[],
  )
  stop, ended = threading.Event(), []

  def run():
    with pytest.raises(ConnectionError, match='localhost:1'):
      worker.run(stop)
    ended.append(True)

  stop.set()
  threading.Thread(target=run, daemon=True).start()
  _wait_until(lambda: ended)


def test_acting_and_learning_stop_at_the_budget(
  recorder, run_worker, make_counter
):
  experiment = experiments.make(
    experiments.COUNTING, 2, run={'steps_per_agent': 103}
  )
  counter = make_counter(None, experiments.budget(experiment))
  worker = run_worker(experiment, counter)
  totals = counter.totals()
  assert worker.steps == 103
  assert totals['actor_steps'] == 206
  assert counter.snapshot()['outcome'] == 'budget'
  # A call of 4 updates after 28, 32, ... 100 steps: 23 windows are in replay
  # after 25 steps, and the last 3 steps are no whole call.
  assert totals['learner_steps'] == 2 * 4 * 19
  (environment,) = recorder
  assert [len(rows) for rows in environment.steps] == [103, 103]


@pytest.mark.filterwarnings('ignore:overflow')
def test_gradients_that_are_never_finite_end_the_node_with_a_reason(
  run_worker, make_counter
):
  experiment = experiments.cartpole(
    config={'reward_scale': 1e38, 'learning_rate': 1e30, 'loss': 'squared'},
    run={'steps_per_agent': 400},
  )
  counter = make_counter(None, experiments.budget(experiment))
  with pytest.raises(learner.LearnerFault, match='Lower agent.learning_rate'):
    run_worker(experiment, counter)


def test_a_worker_that_is_told_to_stop_while_it_learns_ends(
  make_worker, start, make_counter
):
  experiment = experiments.cartpole(run={'steps_per_agent': 10**6})
  counter = make_counter(None)
  start(make_worker(experiment, counter))
  _wait_until(lambda: counter.totals().get('learner_steps', 0) > 0)
  # The fixture stops it, and asserts that it ends.


def test_what_a_worker_did_before_it_was_stopped_is_counted(
  recorder, make_worker, make_counter
):
  stop, counter = threading.Event(), make_counter(None)

  class Stops(local.Local):
    def begin(self, worker):
      self.worker = worker

    def updated(self, result):
      if self.worker.learner.updates == 20:
        stop.set()

  worker = make_worker(
    experiments.make(experiments.COUNTING), counter, exchange=Stops
  )
  worker.run(stop)
  totals = counter.totals()
  assert totals['learner_steps'] == 2 * worker.learner.updates == 40
  assert totals['actor_steps'] == 2 * worker.steps


def test_a_stop_is_heard_between_two_steps_of_slow_environments(
  recorder, make_worker, make_counter, tmp_path
):
  stop = threading.Event()

  class Stops(local.Local):
    def episode_ended(self, finished):
      stop.set()

  experiment = experiments.make(
    experiments.COUNTING,
    run={'steps_per_agent': 9000, 'updates_per_call': 3000},
    run_dir=str(tmp_path),
  )
  counter = make_counter(None)
  worker = make_worker(experiment, counter, exchange=Stops)
  worker.run(stop)
  assert 0 < worker.steps < 100
  assert counter.totals()['actor_steps'] == 2 * worker.steps
  assert 'learner_steps' not in counter.totals()
  assert (tmp_path / 'checkpoints' / 'worker-0.npz').exists()


@pytest.mark.long
@pytest.mark.parametrize('prioritized', [False, True])
def test_tables_that_have_lost_their_items_are_filled_again(
  recorder, make_worker, start, make_counter, prioritized
):
  config = {
    'prioritized': prioritized,
    'reward_scale': 1e-6,
    # More than what is acted while the samples that were read ahead last.
    'min_replay_size': 400,
  }
  experiment = experiments.make(
    experiments.COUNTING, 2, config, 16.0, run={'steps_per_agent': 10**6}
  )
  updates, held = [], []

  class Loses(local.Local):
    def begin(self, worker):
      self.worker = worker

    def updated(self, result):
      updates.append(self.worker.learner.updates)
      if updates[-1] == 40:
        # As a replay node does that comes back without a checkpoint.
        client = reverb.Client(address)
        for name in client.server_info():
          client.reset(name)
        held.extend(t.current_size for t in client.server_info().values())

  address = f'localhost:{directory.pick_port(set())}'
  start(
    make_worker(
      experiment, make_counter(None), addresses=[address], exchange=Loses
    )
  )
  # Two readers ask 1,024 samples ahead at most, 4 for each update.
  _wait_until(lambda: updates and updates[-1] >= 40 + 1000)
  assert held and max(held) < 400


def test_who_has_ended_saves_the_replay_node_on_for_the_others(
  recorder, make_worker, make_counter, monkeypatch, tmp_path
):
  monkeypatch.setattr(saves, '_PERIOD_S', 0.0)
  path = run_directory.create(tmp_path / 'run', {}, {}).path
  experiment = experiments.make(
    experiments.COUNTING,
    1,
    run={'steps_per_agent': 60, 'replay_checkpoint_s': 1e-3},
    run_dir=str(path),
  )
  asked = []

  class Host:
    def save(self, meta, last):
      asked.append(last)

  class Waits(threading.Event):
    """A run that is over once the node was saved after the last save."""

    def wait(self, timeout=None):
      del timeout
      time.sleep(0.01)
      if asked[-1:] == [False] or time.monotonic() > until:
        self.set()
      return self.is_set()

  server = reverb.Server(
    experience.of_members(experiment, 1).tables('replay'),
    None,
    reverb.checkpointers.DefaultCheckpointer(path=str(tmp_path / 'replay')),
  )
  try:
    worker = make_worker(
      experiment,
      make_counter(None),
      addresses=[f'localhost:{server.port}'],
      hosts=[Host()],
    )
    until = time.monotonic() + 150
    worker.run(Waits())
  finally:
    server.stop()
  assert asked[-2:] == [True, False]


def test_settings_with_which_nothing_could_be_learned_are_refused():
  experiment = experiments.cartpole(run={'steps_per_agent': 23})
  with pytest.raises(ValueError, match='after 23 steps'):
    experience.check_members(experiment)
  run = dataclasses.replace(experiment.run, steps_per_agent=24)
  experience.check_members(dataclasses.replace(experiment, run=run))


def _paces(batch_size, ratio, updates, prioritized=False):
  config = {
    'batch_size': batch_size,
    'prioritized': prioritized,
    'min_replay_size': 8,
    'n_step': 1,
  }
  run = {'steps_per_agent': 200, 'updates_per_call': updates}
  return experiments.make(experiments.COUNTING, 2, config, ratio, run=run)


@pytest.mark.parametrize(
  ('experiment', 'per_update', 'vector_step'),
  [
    (_paces(8, 3.0, 2), 8 / 3, 1),
    (_paces(8, 16.0, 1), 1 / 2, 1),
    # Eight environments of a member: three updates for each step of them.
    (_paces(8, 3.0, 1, prioritized=True), 8 / 3, 8),
  ],
)
def test_environment_steps_per_update_are_batch_by_ratio_on_average(
  recorder, run_worker, make_counter, experiment, per_update, vector_step
):
  steps, updates = [], []

  class Watches(local.Local):
    def begin(self, worker):
      self.worker = worker

    def updated(self, result):
      steps.append(self.worker.steps)
      updates.append(self.worker.learner.updates)

  run_worker(experiment, make_counter(None), exchange=Watches)
  acted = np.array(steps) - steps[0]
  wanted = per_update * (np.array(updates) - updates[0])
  assert len(acted) > 20 and acted[-1] > 100
  # Never off by a step of all environments, however long it learns.
  assert np.abs(acted - wanted).max() < vector_step + 1e-6
