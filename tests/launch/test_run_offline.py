"""Runs from data sets: what is refused, and what a good policy's data give."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

from murmuration import play
from murmuration import playing
from murmuration.agents import dqn
from murmuration.environment_loops import evaluation
from murmuration.environment_loops import vector
from murmuration.launch import cell as cell_lib
from murmuration.launch import registry
from murmuration.launch.nodes import offline
from murmuration.launch.services import counter as counter_lib
from murmuration.replay import export
from murmuration.replay import nstep
from murmuration.replay import packing
from murmuration.replay import ring as ring_lib
from murmuration.run_records import run_directory
from tests.launch.conftest import Ends

N, GAMMA = 5, 0.99  # dqn:cartpole's
LAYOUT = packing.TransitionLayout((4,))
STEPS, ENVS = 1_000, 8


def _write(directory):
  """A data set of the zoo's policy, a third of whose actions are random."""
  policy = play.load('dqn:cartpole')
  rng = np.random.default_rng(0)
  environment = vector.make_vector('CartPole-v1', ENVS, 0)
  window = nstep.NStepWindow(ENVS, N, GAMMA, LAYOUT)
  observation, rows = environment.reset(), []
  for _ in range(STEPS):
    action = np.asarray(policy(observation), np.int32)
    action = np.where(
      rng.random(ENVS) < 1 / 3, rng.integers(0, 2, ENVS), action
    )
    step = environment.step(action.astype(np.int32))
    window.observe(observation, action, step)
    rows.append(window.finished())
    observation = step.next_observation
  environment.close()
  fields = LAYOUT.unpack(np.concatenate(rows))._asdict()
  said = {'layout': LAYOUT.name, 'n_step': N, 'gamma': GAMMA}
  said['environment'] = 'CartPole-v1'
  np.savez(
    directory / export.FILE,
    about=np.array(json.dumps(said)),
    **{name: fields[name] for name in export.FIELDS},
  )
  return directory


@pytest.fixture(scope='module')
def data(tmp_path_factory):
  return _write(tmp_path_factory.mktemp('data'))


def _random_return():
  rng = np.random.default_rng(0)
  found = evaluation.evaluate_vector(
    lambda observation: rng.integers(0, 2, len(observation)).astype(np.int32),
    'CartPole-v1',
    50,
    0,
  )
  return found.mean


def test_a_data_set_of_a_trained_policy_gives_one(start_run, data):
  run = start_run(
    'dqn',
    '--topology=offline',
    f'--config.offline.data={data}',
    '--config.run.steps_per_agent=4000',
    '--config.run.evaluations=4',
    '--config.run.target_return=None',
  )
  assert run.wait() == 0, run.output
  run.assert_nothing_is_left()
  directory = run_directory.open(run.directory)
  summary = directory.summary()
  assert summary['outcome'] == 'budget'
  # An update for each step of dqn's pace, and no step of an environment.
  assert summary['totals']['learner_steps'] == 4000
  assert not summary['totals'].get('actor_steps')
  rows = directory.metrics('evaluation')
  assert [row['actor_steps'] for row in rows] == [0, 1000, 2000, 3000, 4000]
  # What a node says is dated too, by updates.
  assert directory.metrics('node_worker')[-1]['actor_steps'] > 0
  kept = playing.load(directory)
  learned = playing.evaluate(directory, kept, 20, seed=0).mean
  assert learned > 3 * _random_return(), (learned, rows)
  # No replay is written, and the data set stays as it is.
  assert not list(directory.checkpoints.glob('replay*'))
  # A resumed run goes on from its updates, and plays nothing twice.
  again = start_run('--config.run.steps_per_agent=5000', resume=run.directory)
  assert again.wait() == 0, again.output
  rows = directory.metrics('evaluation')
  assert [row['actor_steps'] for row in rows][4:] == [4000, 5000]


def _cell(data, **overrides):
  given = {'offline.data': str(data), **overrides}
  return cell_lib.resolve('dqn', topology='offline', overrides=given)


def test_all_of_the_data_is_sampled_whatever_replay_would_hold(data):
  experiment = _cell(data).experiment
  found = offline.of_data(experiment, data)
  (ring,) = found.rings
  rows, *_ = export.load(data)
  assert len(ring) == len(rows) > 7_000
  sample = next(found.source((), 'replay', lambda: False))
  assert tuple(sample.data.shape) == found.sample_specs().shape
  there = {row.tobytes() for row in rows}
  assert all(row.tobytes() in there for row in sample.data.numpy()[:, 0])


def test_prioritized_replay_of_data_begins_with_its_priorities(data):
  experiment = _cell(data, **{'agent.prioritized': 'True'}).experiment
  found = offline.of_data(experiment, data)
  sample = next(found.source((), 'replay', lambda: False))
  assert sample.probabilities.shape == found.probability_specs().shape
  size = len(export.load(data)[0])
  np.testing.assert_allclose(sample.probabilities, 1 / size, rtol=1e-5)


@pytest.fixture
def run(data, tmp_path, make_counter):
  """run(directory, calls): of the learner, in all; the worker and counter."""

  def run(directory, calls, resume=False):
    path = tmp_path / directory
    run_directory.create(path, {}, {}, resume=resume)
    cell = _cell(data, **{'run.steps_per_agent': str(8 * calls)})
    experiment = dataclasses.replace(cell.experiment, run_dir=str(path))
    counter = make_counter(path, {'learner_steps': 8 * calls})
    worker = offline.Worker(experiment, 'worker/0', counter, str(data))
    worker.run(Ends())
    counter.close()
    return worker, counter

  return run


@pytest.mark.parametrize('lost', ['metrics', 'checkpoints'])
def test_a_killed_run_makes_all_updates_of_its_budget(run, tmp_path, lost):
  run('a', 3)
  (tmp_path / 'a' / 'summary.json').unlink()
  shutil.rmtree(tmp_path / 'a' / lost)
  # Now the checkpoint is ahead of the counter, or behind it.
  worker, counter = run('a', 6, resume=True)
  assert worker.learner.updates == 48
  assert counter.finished() and counter.totals()['learner_steps'] == 48


def test_what_is_learned_is_kept_before_the_counter_has_all_of_it(
  run, tmp_path, monkeypatch
):
  kept = []
  report = counter_lib.Counter.report

  def noted(counter, node, counts, *more):
    if counts.get('learner_steps') == 24:
      files = (tmp_path / 'a' / 'checkpoints').glob('worker-0.npz')
      kept.extend(int(np.load(file)['updates']) for file in files)
    return report(counter, node, counts, *more)

  monkeypatch.setattr(counter_lib.Counter, 'report', noted)
  run('a', 3)
  assert kept and kept[0] == 24


@pytest.mark.long
def test_a_resumed_run_draws_no_minibatch_again(run, monkeypatch):
  drawn = []
  draw = ring_lib.Ring.__next__

  def noted(self):
    sample = draw(self)
    drawn[-1].append(sample.keys)
    return sample

  monkeypatch.setattr(ring_lib.Ring, '__next__', noted)

  def parameters(*given, **options):
    drawn.append([])
    return run(*given, **options)[0].learner.parameters()

  first, same = parameters('a', 3), parameters('b', 3)
  # The same seed learns the same, bit for bit: also where it goes on.
  np.testing.assert_array_equal(first, same)
  first, same = (parameters(name, 6, resume=True) for name in 'ab')
  np.testing.assert_array_equal(first, same)
  assert [len(calls) for calls in drawn] == [3, 3, 3, 3]
  for before, after in zip(drawn[0], drawn[2], strict=True):
    assert (before != after).any()


@pytest.mark.parametrize(
  ('overrides', 'said'),
  [
    ({'offline.data': ''}, 'offline.data names no data set'),
    ({'offline.data': '/nowhere'}, 'no data set of transitions'),
    ({'agent.n_step': '3'}, r'n_step=5, but .* needs 3.*agent.n_step=5'),
    ({'agent.gamma': '0.9'}, r'gamma=0.99, but .*agent.gamma=0.99'),
    ({'environment': 'Acrobot-v1'}, 'Choose the agent and environment'),
    ({'environment': 'CartPole-v0'}, 'is of environment=CartPole-v1, not '),
    ({'offline.environment': 'Any-v0'}, 'is of environment=CartPole-v1, not '),
    ({'run.replay': 'node'}, 'run.replay'),
    ({'pace.samples_per_insert': 'None'}, 'one loop does both'),
  ],
)
def test_what_cannot_be_learned_from_is_refused(data, overrides, said):
  with pytest.raises(ValueError, match=said):
    _cell(data, **overrides).build()


def test_a_task_may_have_two_names_and_a_data_set_none(data, tmp_path):
  task = {'environment': 'CartPole-v0'}
  _cell(data, **task, **{'offline.environment': 'CartPole-v1'}).build()

  _cell(_changed(data, tmp_path, _said(environment=None)), **task).build()


@pytest.mark.parametrize('name', ['n_step', 'gamma'])
def test_a_data_set_that_does_not_say_its_sums_is_asked_to(
  data, tmp_path, name
):
  def forget(arrays):
    said = json.loads(str(arrays['about']))
    del said[name]
    arrays['about'] = np.array(json.dumps(said))

  with pytest.raises(ValueError, match=f'does not say {name}: add it there'):
    _cell(_changed(data, tmp_path, forget)).build()


def _said(**about):
  """Changes what a data set says of itself."""

  def change(arrays):
    said = {**json.loads(str(arrays['about'])), **about}
    arrays['about'] = np.array(json.dumps(said))

  return change


@pytest.mark.parametrize(
  ('own', 'theirs', 'n_step', 'refused'),
  [
    ('None', 1.0, 5, 'reward_clip=1.0, but .* needs None'),
    ('1.0', None, 5, 'reward_clip=None, but .* set --config.agent.reward_clip'),
    ('1.0', 0.5, 1, 'reward_clip=0.5, but .* needs 1.0'),
    ('1.0', 1.0, 5, None),
    ('None', None, 1, None),
    ('0.25', None, 1, None),
  ],
)
def test_rewards_are_clipped_as_the_agent_s_or_refused(
  data, tmp_path, own, theirs, n_step, refused
):
  path = _changed(data, tmp_path, _said(reward_clip=theirs, n_step=n_step))
  overrides = {'agent.reward_clip': own, 'agent.n_step': str(n_step)}
  cell = _cell(path, **overrides)
  if refused is not None:
    with pytest.raises(ValueError, match=refused):
      cell.build()
    return
  cell.build()
  found = offline.of_data(cell.experiment, path)
  sample = next(found.source((), 'replay', lambda: False)).data.numpy()
  given = export.load(path)[0]
  if own == '0.25':
    assert np.abs(LAYOUT.unpack(given).r_t).min() > 0.25
    assert set(LAYOUT.unpack(sample).r_t.flat) == {0.25}
  else:
    assert {row.tobytes() for row in sample[:, 0]} < {
      row.tobytes() for row in given
    }


def _changed(data, directory, change):
  """The data set after `change(arrays)`."""
  with np.load(data / export.FILE) as file:
    arrays = dict(file)
  change(arrays)
  np.savez(directory / export.FILE, **arrays)
  return directory


def _put(name, value):
  def change(arrays):
    given = arrays.get(name, np.ones(len(arrays['r_t'])))
    arrays[name] = given.astype(np.result_type(given, type(value)))
    arrays[name][3] = value

  return change


def _priorities(make):
  def change(arrays):
    arrays['priority'] = make(len(arrays['r_t']))

  return change


def _empty(arrays):
  arrays.update({name: arrays[name][:0] for name in export.FIELDS})


@pytest.mark.parametrize(
  ('change', 'said'),
  [
    (_empty, 'holds no transition'),
    (_put('r_t', np.nan), r'has nan in r_t of row 3 \(1 such'),
    (_put('o_t', np.inf), r'has inf in o_t of row 3 \(4 such'),
    (_put('priority', np.nan), 'has nan in priority of row 3'),
    (_put('priority', -1.0), 'has -1 in priority of row 3'),
    (_priorities(lambda rows: np.zeros(rows)), '0 priorities above 0'),
    (_priorities(lambda rows: np.ones(rows - 1)), 'Give one for each row'),
    (_put('a_tm1', 2), 'has 2 in a_tm1 .* whole numbers from 0 to 1'),
    (_put('a_tm1', -1), 'has -1 in a_tm1'),
    (_put('d_t', 1.5), r'has 1.5 in d_t .* a discount lies in \[0, 1\]'),
    (_put('d_t', -0.5), 'has -0.5 in d_t'),
    (_put('a_tm1', 0.5), 'has 0.5 in a_tm1'),
  ],
)
def test_numbers_that_nothing_can_be_learned_from_are_refused(
  data, tmp_path, change, said
):
  path = _changed(data, tmp_path, change)
  with pytest.raises(ValueError, match=said):
    offline.of_data(_cell(path).experiment, path)


@pytest.mark.parametrize(('largest', 'refused'), [(1.0, False), (2.0, True)])
def test_continuous_actions_in_the_environment_s_units_are_refused(
  tmp_path, largest, refused
):
  experiment = cell_lib.resolve(
    'sac',
    'pendulum',
    topology='offline',
    overrides={'offline.data': str(tmp_path)},
  ).experiment
  agent = experiment.make_agent()
  said = {'n_step': agent.n_step, 'gamma': agent.gamma}
  said['layout'] = agent.transition_layout().name
  o, one = np.zeros((9, 3), np.float32), np.ones(9, np.float32)
  a = np.linspace(-largest, largest, 9, dtype=np.float32)[:, None]
  arrays = {'o_tm1': o, 'a_tm1': a, 'r_t': one, 'd_t': one, 'o_t': o}
  np.savez(tmp_path / export.FILE, about=np.array(json.dumps(said)), **arrays)
  if not refused:
    assert len(offline.of_data(experiment, tmp_path).rings[0]) == 9
    return
  with pytest.raises(ValueError, match=r'has -2 in a_tm1 .* lie in \[-1, 1\]'):
    offline.of_data(experiment, tmp_path)


@pytest.mark.parametrize('agent', ['ppo', 'acme_dqn'])
def test_agents_without_such_a_learner_are_refused(data, agent):
  cell = cell_lib.resolve(
    agent, topology='offline', overrides={'offline.data': str(data)}
  )
  with pytest.raises(ValueError, match='does not learn from transitions'):
    cell.build()


def test_a_budget_need_not_fill_a_replay_that_is_not_filled(data):
  cell = _cell(data, **{'run.steps_per_agent': '400'})
  assert cell.experiment.min_replay_size >= 400
  cell.build()


def test_settings_of_a_replay_that_is_not_there_are_refused(data):
  with pytest.raises(ValueError, match='all of the data set is kept'):
    _cell(data, **{'agent.max_replay_size': '5000'})


@pytest.mark.parametrize(
  ('agent', 'setting', 'value'),
  [
    ('dqn', 'epsilon_steps', '1'),
    ('dqn', 'exploration', 'ladder'),
    ('ddpg', 'sigma', '0.1'),
    ('ddpg', 'noise', 'ornstein_uhlenbeck'),
    ('sac', 'random_steps', '5'),
  ],
)
def test_settings_of_acting_are_refused_where_nobody_acts(
  agent, setting, value
):
  given = {f'agent.{setting}': value}
  cell_lib.resolve(agent, overrides=given)
  with pytest.raises(ValueError, match=f'{setting} would .* nobody acts'):
    cell_lib.resolve(agent, topology='offline', overrides=given)


def test_an_agent_of_one_s_own_may_learn_with_such_a_name(monkeypatch):
  class Own(dqn.DQN):
    pass

  registered = registry.agent('dqn')
  own = dataclasses.replace(registered, agent=Own)
  monkeypatch.setattr(registry, 'agent', lambda name: own)
  given = {'agent.epsilon_steps': '1'}
  cell_lib.resolve('dqn', topology='offline', overrides=given)


def test_the_budget_is_the_updates_of_a_run_of_as_many_steps(data):
  experiment = _cell(data, **{'run.steps_per_agent': '4003'}).experiment
  assert offline.updates(experiment) == 4000  # whole calls of 8
  half = _cell(data, **{'pace.samples_per_insert': '32'}).experiment
  assert offline.updates(half) == 15_000


def test_it_is_named_where_a_name_is_near():
  with pytest.raises(ValueError, match="Did you mean 'offline'"):
    registry.topology('ofline')
