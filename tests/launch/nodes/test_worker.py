"""A worker that acts itself, in this process, without a program."""

import collections
import dataclasses
import functools
import threading
import time

import numpy as np
import pytest
import reverb

from agents import dqn
from agents import learner
from agents.exchange import base as exchange_base
from agents.exchange import local
from environment_loops import environments
from launch import experience
from launch import experiment as experiment_lib
from launch import pulse
from launch import rpc
from launch.rpc import directory
from run_records import checkpoints
from run_records import reporting
from run_records import run_directory

GAMMA = 0.9
N_STEP = 3
COUNTING = environments.Spec('counting', (3,), 2)


def _experiment(spec, num_agents=2, config=None, ratio=None, **changes):
  settings = {
    'hidden_sizes': (8,),
    'gamma': GAMMA,
    'n_step': N_STEP,
    'batch_size': 4,
    'min_replay_size': 20,
    'max_replay_size': 1000,
    **(config or {}),
  }
  agent_config = dqn.Config(**settings)
  run = {'steps_per_agent': 100, 'updates_per_call': 4, 'evaluations': 2}
  run.update(changes.pop('run', {}))
  return experiment_lib.Experiment(
    make_agent=functools.partial(dqn.DQN, agent_config, spec),
    environment=spec.name,
    num_agents=num_agents,
    max_replay_size=agent_config.max_replay_size,
    min_replay_size=agent_config.min_replay_size,
    pace=experiment_lib.Pace(ratio or agent_config.batch_size),
    run=experiment_lib.RunConfig(eval_episodes=2, **run),
    **changes,
  )


def _cartpole(**changes):
  return _experiment(environments.spec('CartPole-v1'), **changes)


def _budget(experiment):
  return {'actor_steps': experiment.total_steps}


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
    thread.join(timeout=20)
    assert not thread.is_alive()
  if errors:
    raise errors[0]


def _wait_until(condition):
  deadline = time.monotonic() + 60
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
  experiment = _experiment(
    COUNTING, members, {'min_replay_size': 500}, run={'steps_per_agent': 90}
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


def test_acting_and_learning_stop_at_the_budget(
  recorder, run_worker, make_counter
):
  experiment = _experiment(COUNTING, 2, run={'steps_per_agent': 103})
  counter = make_counter(None, _budget(experiment))
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


class _Script(local.Local):
  """Breaks a member once; hands out a replacement."""

  def __init__(self, replacement=None):
    self.given = replacement
    self.results = []
    self.thetas = []
    self.calls = collections.Counter()

  def begin(self, worker):
    self.worker = worker

  def updated(self, result):
    self.results.append(result)
    self.thetas.append(self.worker.theta.copy())
    if len(self.results) == 2:
      theta = self.worker.theta[1].copy()
      theta[0] = np.nan
      self.worker.learner.set_member(1, theta)

  def replacement(self, member):
    self.calls[f'replacement {member}'] += 1
    return self.given

  def sync(self):
    self.calls['sync'] += 1

  def close(self):
    self.calls['close'] += 1


@pytest.mark.parametrize('has_star', [True, False])
def test_a_member_whose_parameters_are_not_finite_is_replaced(
  recorder, run_worker, make_counter, has_star
):
  experiment = _experiment(COUNTING, 2)
  layout = experiment.make_agent().layout
  star = np.full(layout.size, 0.25, np.float32)
  script = _Script(star if has_star else None)
  counter = make_counter(None, _budget(experiment))
  run_worker(experiment, counter, exchange=lambda: script)
  broken = [result.broken.tolist() for result in script.results]
  assert broken.count([False, True]) == 1
  assert broken[2] == [False, True]
  assert (
    script.calls['replacement 1'] == 1 and not script.calls['replacement 0']
  )
  # The call that found it broken skipped its updates, and only its.
  assert script.results[2].skipped.tolist() == [0, 4]
  if has_star:
    np.testing.assert_array_equal(script.thetas[2][1], star)
  for theta in script.thetas[2:]:
    assert np.isfinite(theta).all()
  assert not np.array_equal(script.thetas[-1][1], script.thetas[2][1])
  metrics = counter.snapshot()['nodes']['worker/0']['metrics']
  assert metrics['skipped_updates'] == 4
  assert script.calls['close'] == 1 and script.calls['sync'] > 5


@pytest.mark.parametrize('shared', [True, False])
def test_members_start_alike_where_their_exchange_says_so(
  recorder, run_worker, make_counter, shared
):
  first = []

  class Starts(local.Local):
    shared_start = shared

    def initial(self, theta, again):
      assert not again
      first.append(theta)
      return theta

  experiment = _experiment(COUNTING, 3, run={'steps_per_agent': 20})
  for hosted in ([0, 1], [2]):  # two nodes
    counter = make_counter(None, {'actor_steps': 20 * len(hosted)})
    run_worker(experiment, counter, hosted, exchange=Starts)
  thetas = np.concatenate(first)
  assert len(thetas) == 3
  assert len(np.unique(thetas, axis=0)) == (1 if shared else 3)


@pytest.mark.parametrize('lives', [1, 2])
def test_who_died_before_its_first_report_is_started_again_all_the_same(
  lives, recorder, run_worker, make_counter, tmp_path
):
  told = []

  class Told(local.Local):
    def initial(self, theta, again):
      told.append(again)
      return theta

  (slot,) = pulse.Board(tmp_path, 1).slots
  for _ in range(lives):
    slot.clear()  # as the launcher does before each life
  experiment = _experiment(COUNTING, 1, run={'steps_per_agent': 20})
  pulse.use(slot)
  try:
    counter = make_counter(None, {'actor_steps': 20})  # has heard of nobody
    run_worker(experiment, counter, exchange=Told)
  finally:
    pulse.use(None)
  assert told == [lives > 1]


def test_what_an_exchange_moved_between_calls_acts_at_once(
  run_worker, make_counter
):
  class Moves(local.Local):
    def __init__(self):
      self.acted, self.made, self.over = [], 0, 0

    def begin(self, worker):
      self.worker = worker

    def updated(self, result):
      self.made += 1

    def sync(self):
      theta = self.worker.learner.parameters()
      self.worker.learner.set_parameters(np.full_like(theta, self.made))
      return True

    def episode_ended(self, done):
      if self.made:
        self.acted.append((self.worker.theta[0, 0], self.made))

    def ended(self):
      self.over += 1

  moves = Moves()
  experiment = _cartpole(num_agents=1, run={'steps_per_agent': 400})
  counter = make_counter(None, _budget(experiment))
  run_worker(experiment, counter, exchange=lambda: moves)
  assert len(moves.acted) > 5
  assert all(theta == made for theta, made in moves.acted)
  assert moves.over == 1


def test_a_restarted_node_goes_on_where_its_reports_ended(
  recorder, run_worker, make_counter, tmp_path, monkeypatch
):
  experiment = _experiment(COUNTING, 2, run={'steps_per_agent': 120})

  monkeypatch.setattr(reporting, '_PERIOD_S', 0.0)

  class StopsMidway(local.Local):
    def sync(self):
      assert not self.worker.over()  # which also reports
      if self.worker.steps >= 60:
        raise KeyboardInterrupt('killed')

    def begin(self, worker):
      self.worker = worker

  counter = make_counter(tmp_path, _budget(experiment))
  with pytest.raises(KeyboardInterrupt):
    run_worker(experiment, counter, exchange=StopsMidway)
  assert counter.totals()['actor_steps'] == 120
  again = run_worker(experiment, counter)
  assert again.steps == 120
  assert counter.totals()['actor_steps'] == 240
  assert counter.snapshot()['outcome'] == 'budget'
  first, second = recorder
  assert [len(first.steps[0]), len(second.steps[0])] == [60, 60]
  counter.close()


def test_a_restarted_node_draws_other_random_numbers(
  recorder, run_worker, make_counter
):
  def actions(steps_before):
    experiment = _experiment(COUNTING, 2, {'min_replay_size': 500})
    counter = make_counter(None, _budget(experiment))
    if steps_before:
      counter.report('worker/0', {'actor_steps': steps_before})
    run_worker(experiment, counter)
    return [row[1] for row in recorder[-1].steps[0]][:40]

  assert actions(0) == actions(0)
  assert actions(0) != actions(100)


def test_a_lone_agent_evaluates_itself_and_keeps_its_parameters(
  run_worker, make_counter, tmp_path
):
  directory = run_directory.create(tmp_path / 'run', {}, {}).path
  experiment = _cartpole(run_dir=str(directory))
  counter = make_counter(directory, _budget(experiment))
  worker = run_worker(experiment, counter, evaluates=True)
  counter.close()
  rows = run_directory.open(directory).metrics('evaluation')
  assert [row['actor_steps_per_member'] for row in rows] == [0, 52, 100]
  for row in rows:
    assert len(row['returns']) == 4 and len(row['member_returns']) == 2
    assert row['return_mean'] == pytest.approx(np.mean(row['returns']))
    assert row['broken_episodes'] == 0
  path = directory / 'checkpoints' / checkpoints.AGENTS
  with np.load(path) as saved:
    np.testing.assert_array_equal(saved['theta'], worker.theta)
    assert saved['steps'] == 100


@pytest.mark.parametrize('target, ends', [(5.0, True), (500.0, False)])
def test_a_lone_agent_that_holds_its_target_ends_the_run(
  run_worker, make_counter, target, ends
):
  experiment = _cartpole(run={'target_return': target})
  counter = make_counter(None, _budget(experiment))
  run_worker(experiment, counter, evaluates=True)
  found = counter.snapshot()
  # Two members that learn nothing make about 9 steps an episode.
  assert (found['totals'].get('actor_steps', 0) < 200) == ends
  assert ('episodes, 5 was asked for' in found['reason']) == ends


@pytest.mark.parametrize('serve', [False, True])
def test_the_target_network_acts_where_it_is_to(
  run_worker, make_counter, tmp_path, serve
):
  directory = run_directory.create(tmp_path / 'run', {}, {}).path
  config = {'serve_target': serve, 'target_update_tau': 0.01}
  experiment = _cartpole(num_agents=1, config=config, run_dir=str(directory))
  counter = make_counter(directory, _budget(experiment))
  worker = run_worker(experiment, counter, evaluates=True)
  counter.close()
  with np.load(directory / 'checkpoints' / checkpoints.AGENTS) as saved:
    kept = saved['theta']
  for served in (kept, worker.theta):
    online, target = worker.learner.theta, worker.learner.target
    chosen, other = (target, online) if serve else (online, target)
    np.testing.assert_array_equal(served, chosen.numpy())
    assert not np.array_equal(served, other.numpy())


@pytest.mark.filterwarnings('ignore:overflow')
def test_gradients_that_are_never_finite_end_the_node_with_a_reason(
  run_worker, make_counter
):
  experiment = _cartpole(
    config={'reward_scale': 1e38, 'learning_rate': 1e30, 'loss': 'squared'},
    run={'steps_per_agent': 400},
  )
  counter = make_counter(None, _budget(experiment))
  with pytest.raises(learner.LearnerFault, match='Lower agent.learning_rate'):
    run_worker(experiment, counter)


def test_a_stop_request_is_heard_while_replay_has_nothing_to_sample(
  make_worker, start, make_counter
):
  experiment = _cartpole(run={'steps_per_agent': 10**6})
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

  worker = make_worker(_experiment(COUNTING), counter, exchange=Stops)
  worker.run(stop)
  totals = counter.totals()
  assert totals['learner_steps'] == 2 * worker.learner.updates == 40
  assert totals['actor_steps'] == 2 * worker.steps


def test_settings_with_which_nothing_could_be_learned_are_refused():
  experiment = _cartpole(run={'steps_per_agent': 23})
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
  return _experiment(COUNTING, 2, config, ratio, run=run)


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


class _Serves(local.Local):
  serves = ('hello',)

  def hello(self, name):
    return f'hello {name}'

  def goodbye(self):
    raise AssertionError


def test_what_an_exchange_serves_is_served_by_its_worker_and_no_more(
  make_worker, make_counter
):
  worker = make_worker(_cartpole(), make_counter(None), exchange=_Serves)
  address = directory.of_this_node().claim('worker/0')
  with rpc.serve(worker, address):
    client = rpc.Client(address, timeout_s=10.0)
    assert client.hello('you') == 'hello you'
    for name in ('goodbye', 'meet', 'sync'):
      with pytest.raises(rpc.RemoteError, match=f'serve a method {name!r}'):
        getattr(client, name)()
  assert not hasattr(worker, 'goodbye')


class _Strays(local.Local):
  """Is out of step at its third call, and then goes on as it began."""

  on_host = True

  def __init__(self, stopped=False):
    self.calls = []
    self._stopped = stopped

  def begin(self, worker):
    self._state = worker.learner.save()

  def meet(self, learner, gradient):
    if learner.updates == 9 and 'rejoin' not in self.calls:
      raise exchange_base.OutOfStep
    return gradient

  def rejoin(self, learner):
    self.calls.append('rejoin')
    if self._stopped:
      raise exchange_base.Stopped
    learner.restore(self._state)

  def updated(self, result):
    self.calls.append('updated')


def test_a_learner_that_is_out_of_step_rejoins_and_goes_on(
  recorder, run_worker, make_counter
):
  strays, counter = _Strays(), make_counter(None)
  worker = run_worker(_experiment(COUNTING), counter, exchange=lambda: strays)
  # 19 calls; see the test of the budget.
  assert strays.calls == ['updated'] * 2 + ['rejoin'] + ['updated'] * 16
  assert worker.learner.updates == 4 * 16
  assert worker.get_parameters(-1)['version'] == 4 * 16
  # Only what was made in whole calls is counted, of two members.
  assert counter.totals()['learner_steps'] == 2 * 4 * 18


def test_a_run_that_ends_while_a_learner_rejoins_is_over(
  recorder, run_worker, make_counter
):
  strays = _Strays(stopped=True)
  worker = run_worker(
    _experiment(COUNTING), make_counter(None), exchange=lambda: strays
  )
  assert strays.calls == ['updated'] * 2 + ['rejoin']
  assert worker.steps < 100
