"""The loop that acts and learns, in this process, without a program."""

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
from environment_loops import environments
from launch import experiment as experiment_lib
from launch import link as link_lib
from launch.experience import members
from launch.nodes import trainer as trainer_lib
from run_records import checkpoints
from run_records import run_directory

GAMMA = 0.9
N_STEP = 3
COUNTING = environments.Spec('counting', (3,), 2)

pytestmark = pytest.mark.usefixtures('private_directory')


def _experiment(spec, num_agents=2, config=None, **changes):
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
    pace=experiment_lib.Pace(agent_config.batch_size),
    run=experiment_lib.RunConfig(eval_episodes=2, **run),
    **changes,
  )


def _cartpole(**changes):
  return _experiment(environments.spec('CartPole-v1'), **changes)


def _trainer(experiment, counter, **kwargs):
  members = [experiment.actor_info(i) for i in range(experiment.num_agents)]
  return trainer_lib.Trainer(
    experiment, 'trainer/0', members, 'none', counter, **kwargs
  )


def _budget(experiment):
  return {'actor_steps': experiment.total_steps}


@pytest.fixture
def run_trainer():
  """run_trainer(trainer) runs it in a thread; all are stopped at the end."""
  stop = threading.Event()
  threads, errors = [], []

  def start(trainer):
    def run():
      try:
        trainer.run(stop)
      except Exception as e:
        errors.append(e)

    threads.append(threading.Thread(target=run, daemon=True))
    threads[-1].start()
    return threads[-1]

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
  recorder, run_trainer, make_counter, tmp_path
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
    signature=experiment.transitions().signature(members),
  )
  checkpointer = reverb.checkpointers.DefaultCheckpointer(path=str(tmp_path))
  server = reverb.Server([table], None, checkpointer)
  try:
    client = server.localhost_client()
    counter = make_counter(None)
    trainer = _trainer(experiment, counter, replay=client, table='replay_7')
    run_trainer(trainer)
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
  layout = experiment.transitions()
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


def test_acting_and_learning_stop_at_the_budget(recorder, make_counter):
  experiment = _experiment(COUNTING, 2, run={'steps_per_agent': 103})
  counter = make_counter(None, _budget(experiment))
  trainer = _trainer(experiment, counter)
  trainer.run(threading.Event())
  totals = counter.totals()
  assert trainer.steps == 103
  assert totals['actor_steps'] == 206
  assert counter.snapshot()['outcome'] == 'budget'
  # A call of 4 updates after 28, 32, ... 100 steps: 23 windows are in replay
  # after 25 steps, and the last 3 steps are no whole call.
  assert totals['learner_steps'] == 2 * 4 * 19
  (environment,) = recorder
  assert [len(rows) for rows in environment.steps] == [103, 103]


class _Script(link_lib.Link):
  """Breaks a member once; hands out a replacement."""

  def __init__(self, replacement=None):
    super().__init__()
    self.given = replacement
    self.results = []
    self.thetas = []
    self.calls = collections.Counter()

  def begin(self, trainer):
    self.trainer = trainer

  def updated(self, result):
    self.results.append(result)
    self.thetas.append(self.trainer.theta.copy())
    if len(self.results) == 2:
      theta = self.trainer.theta[1].copy()
      theta[0] = np.nan
      self.trainer.learner.set_member(1, theta)

  def replacement(self, member):
    self.calls[f'replacement {member}'] += 1
    return self.given

  def sync(self):
    self.calls['sync'] += 1

  def close(self):
    self.calls['close'] += 1


@pytest.mark.parametrize('has_star', [True, False])
def test_a_member_whose_parameters_are_not_finite_is_replaced(
  recorder, make_counter, has_star
):
  experiment = _experiment(COUNTING, 2)
  layout = experiment.make_agent().layout
  star = np.full(layout.size, 0.25, np.float32)
  link = _Script(star if has_star else None)
  counter = make_counter(None, _budget(experiment))
  _trainer(experiment, counter, link=link).run(threading.Event())
  broken = [result.broken.tolist() for result in link.results]
  assert broken.count([False, True]) == 1
  assert broken[2] == [False, True]
  assert link.calls['replacement 1'] == 1 and not link.calls['replacement 0']
  # The call that found it broken skipped its updates, and only its.
  assert link.results[2].skipped.tolist() == [0, 4]
  if has_star:
    np.testing.assert_array_equal(link.thetas[2][1], star)
  for theta in link.thetas[2:]:
    assert np.isfinite(theta).all()
  assert not np.array_equal(link.thetas[-1][1], link.thetas[2][1])
  metrics = counter.snapshot()['nodes']['trainer/0']['metrics']
  assert metrics['skipped_updates'] == 4
  assert link.calls['close'] == 1 and link.calls['sync'] > 5


@pytest.mark.parametrize('shared', [True, False])
def test_members_start_alike_where_their_link_says_so(
  recorder, make_counter, shared
):
  first = []

  class Starts(link_lib.Link):
    shared_start = shared

    def initial(self, theta):
      first.append(theta)
      return theta

  experiment = _experiment(COUNTING, 3, run={'steps_per_agent': 20})
  infos = [experiment.actor_info(i) for i in range(3)]
  for hosted in (infos[:2], infos[2:]):  # two nodes
    counter = make_counter(None, {'actor_steps': 20 * len(hosted)})
    trainer_lib.Trainer(
      experiment, 'trainer/0', hosted, 'none', counter, link=Starts()
    ).run(threading.Event())
  thetas = np.concatenate(first)
  assert len(thetas) == 3
  assert len(np.unique(thetas, axis=0)) == (1 if shared else 3)


def test_a_restarted_node_goes_on_where_its_reports_ended(
  recorder, make_counter, tmp_path
):
  experiment = _experiment(COUNTING, 2, run={'steps_per_agent': 120})

  class StopsMidway(link_lib.Link):
    def sync(self):
      self.trainer.reporter.report()
      if self.trainer.steps >= 60:
        raise KeyboardInterrupt('killed')

    def begin(self, trainer):
      self.trainer = trainer

  counter = make_counter(tmp_path, _budget(experiment))
  with pytest.raises(KeyboardInterrupt):
    _trainer(experiment, counter, link=StopsMidway()).run(threading.Event())
  assert counter.totals()['actor_steps'] == 120
  again = _trainer(experiment, counter)
  again.run(threading.Event())
  assert again.steps == 120
  assert counter.totals()['actor_steps'] == 240
  assert counter.snapshot()['outcome'] == 'budget'
  first, second = recorder
  assert [len(first.steps[0]), len(second.steps[0])] == [60, 60]
  counter.close()


def test_a_restarted_node_draws_other_random_numbers(recorder, make_counter):
  def actions(steps_before):
    experiment = _experiment(COUNTING, 2, {'min_replay_size': 500})
    counter = make_counter(None, _budget(experiment))
    if steps_before:
      counter.report('trainer/0', {'actor_steps': steps_before})
    _trainer(experiment, counter).run(threading.Event())
    return [row[1] for row in recorder[-1].steps[0]][:40]

  assert actions(0) == actions(0)
  assert actions(0) != actions(100)


def test_a_lone_agent_evaluates_itself_and_keeps_its_parameters(
  make_counter, tmp_path
):
  directory = run_directory.create(tmp_path / 'run', {}, {}).path
  experiment = _cartpole(run_dir=str(directory))
  counter = make_counter(directory, _budget(experiment))
  trainer = _trainer(experiment, counter, evaluate=True)
  trainer.run(threading.Event())
  counter.close()
  rows = run_directory.open(directory).metrics('evaluation')
  assert [row['actor_steps_per_member'] for row in rows] == [0, 52, 100]
  for row in rows:
    assert len(row['returns']) == 4 and len(row['member_returns']) == 2
    assert row['return_mean'] == pytest.approx(np.mean(row['returns']))
    assert row['broken_episodes'] == 0
  path = directory / 'checkpoints' / checkpoints.AGENTS
  with np.load(path) as saved:
    np.testing.assert_array_equal(saved['theta'], trainer.theta)
    assert saved['steps'] == 100


@pytest.mark.parametrize('serve', [False, True])
def test_the_target_network_acts_where_it_is_to(make_counter, tmp_path, serve):
  directory = run_directory.create(tmp_path / 'run', {}, {}).path
  config = {'serve_target': serve, 'target_update_tau': 0.01}
  experiment = _cartpole(num_agents=1, config=config, run_dir=str(directory))
  counter = make_counter(directory, _budget(experiment))
  trainer = _trainer(experiment, counter, evaluate=True)
  trainer.run(threading.Event())
  counter.close()
  with np.load(directory / 'checkpoints' / checkpoints.AGENTS) as saved:
    kept = saved['theta']
  for served in (kept, trainer.theta):
    online, target = trainer.learner.theta, trainer.learner.target
    chosen, other = (target, online) if serve else (online, target)
    np.testing.assert_array_equal(served, chosen.numpy())
    assert not np.array_equal(served, other.numpy())


@pytest.mark.filterwarnings('ignore:overflow')
def test_gradients_that_are_never_finite_end_the_node_with_a_reason(
  make_counter,
):
  experiment = _cartpole(
    config={'reward_scale': 1e38, 'learning_rate': 1e30, 'loss': 'squared'},
    run={'steps_per_agent': 400},
  )
  counter = make_counter(None, _budget(experiment))
  with pytest.raises(learner.LearnerFault, match='Lower agent.learning_rate'):
    _trainer(experiment, counter).run(threading.Event())


def test_a_stop_request_is_heard_while_replay_has_nothing_to_sample(
  run_trainer, make_counter
):
  experiment = _cartpole(run={'steps_per_agent': 10**6})
  counter = make_counter(None)
  trainer = _trainer(experiment, counter)
  run_trainer(trainer)
  _wait_until(lambda: counter.totals().get('learner_steps', 0) > 0)
  # The fixture stops it, and asserts that it ends.


def test_settings_with_which_nothing_could_be_learned_are_refused():
  experiment = _cartpole(run={'steps_per_agent': 23})
  with pytest.raises(ValueError, match='after 23 steps'):
    members.check(experiment)
  run = dataclasses.replace(experiment.run, steps_per_agent=24)
  members.check(dataclasses.replace(experiment, run=run))
