"""Prioritized replay of several members in one process: a table for each."""

import dataclasses
import functools
import threading
import time

import numpy as np
import pytest
import reverb

from murmuration.agents import base
from murmuration.agents import dqn
from murmuration.agents import learner
from murmuration.agents import members as members_lib
from murmuration.environment_loops import environments
from murmuration.launch import cell as cell_lib
from murmuration.launch import experience
from murmuration.launch import experiment as experiment_lib
from murmuration.launch.experience import population
from murmuration.launch.rpc import directory
from murmuration.replay import priorities
from tests import counting
from tests.agents import bare

COUNTING = environments.Spec('counting', (3,), 2)
MEMBERS, BATCH, UPDATES, N_STEP, GAMMA = 2, 4, 2, 3, 0.9


def _experiment(prioritized=True):
  config = dqn.Config(
    hidden_sizes=(8,),
    prioritized=prioritized,
    gamma=GAMMA,
    n_step=N_STEP,
    batch_size=BATCH,
    min_replay_size=50,
    reward_scale=1e-6,
  )
  return experiment_lib.Experiment(
    functools.partial(dqn.DQN, config, COUNTING),
    'counting',
    num_agents=MEMBERS,
    max_replay_size=1000,
    min_replay_size=50,
    pace=experiment_lib.Pace(2.0),
    run=experiment_lib.RunConfig(steps_per_agent=400, updates_per_call=UPDATES),
  )


def _expected(rows, start):
  """The slow truth: a_tm1, r_t, d_t, o_t of what starts at row `start`."""
  reward = 0.0
  for i, row in enumerate(rows[start : start + N_STEP]):
    reward += GAMMA**i * row[2]
    discount = GAMMA**i * row[3]
    if row[5]:
      break
  return rows[start][1], reward, discount, row[4]


def test_each_member_learns_from_exactly_what_it_acted(
  recorder, run_worker, make_counter, monkeypatch
):
  seen = []
  step = learner.TFLearner.step

  def watched(self, sample, probabilities):
    result = step(self, sample, probabilities)
    seen.append((np.asarray(sample), probabilities, result))
    return result

  monkeypatch.setattr(learner.TFLearner, 'step', watched)
  # However slow the server is beside others.
  monkeypatch.setattr(priorities, 'MAX_WAITING', 10**6)
  experiment = _experiment()
  counter = make_counter(None, {'actor_steps': experiment.total_steps})
  worker = run_worker(experiment, counter)
  (environment,) = recorder
  envs = len(environment.steps) // MEMBERS
  assert envs > 1 and worker.steps == 400
  places = [
    {tuple(row[0]): start for start, row in enumerate(rows)}
    for rows in environment.steps
  ]
  layout = experiment.make_agent().transition_layout()
  assert len(seen) > 20
  for packed, probabilities, result in seen:
    shape = (UPDATES * BATCH, MEMBERS)
    assert packed.shape[:2] == probabilities.shape == shape
    assert result.priorities.shape == shape
    assert (probabilities > 0).all() and np.isfinite(result.priorities).all()
    for member in range(MEMBERS):
      for row in packed[:, member]:
        got = layout.unpack(row)
        k = int(got.o_tm1[2])
        assert k // envs == member
        rows = environment.steps[k]
        start = places[k][tuple(got.o_tm1)]
        a_tm1, r_t, d_t, o_t = _expected(rows, start)
        assert got.a_tm1 == a_tm1
        assert got.r_t == pytest.approx(r_t, rel=1e-6)
        assert got.d_t == pytest.approx(d_t, rel=1e-6)
        np.testing.assert_array_equal(got.o_t, o_t)
  metrics = counter.snapshot()['nodes']['worker/0']['metrics']
  assert metrics['priorities_dropped'] == metrics['skipped_updates'] == 0


@pytest.fixture
def filled(private_directory, tmp_path):
  """(experience, source, stored): tables that all members have written to.

  stored(member, n) are n items of its table, {observation: priority}.
  """
  del private_directory
  experiment = _experiment()
  found = experience.of_members(experiment, MEMBERS)
  server = reverb.Server(
    found.tables('replay'),
    directory.pick_port(set()),
    reverb.checkpointers.DefaultCheckpointer(str(tmp_path / 'server')),
  )
  client = server.localhost_client()
  layout = found.agent.transition_layout()
  adder, record = found.adder(
    client,
    'replay',
    found.behaviour([experiment.actor_info(i) for i in range(MEMBERS)]),
    # So that what a table holds says who wrote it.
    lambda member, packed: np.full(len(packed), 1.0 + member),
    lambda: False,
  )
  environment = counting.make_vector(MEMBERS * found.envs_per_member)
  observation = environment.reset()
  for _ in range(40):
    action = np.zeros(len(observation), np.int32)
    step = environment.step(action)
    record(observation, action, step, 0)
    observation = step.next_observation
  adder.flush()
  source = found.source([client.server_address], 'replay', lambda: False)

  def stored(member, num):
    items = {}
    for parts in client.sample(f'replay_of_{member}', num):
      # Reverb hands an item out as one part for each entry of its first axis.
      row = layout.unpack(np.stack([part.data[0] for part in parts]))
      items[tuple(row.o_tm1)] = parts[0].info.priority
    return items

  yield found, source, stored
  source.close()
  adder.close()
  server.stop()


def test_first_priorities_are_of_the_member_that_acted(filled):
  found, _, stored = filled
  for member in range(MEMBERS):
    items = stored(member, 200)
    assert {int(o[2]) // found.envs_per_member for o in items} == {member}
    assert set(items.values()) == {1.0 + member}


def test_new_priorities_go_back_to_the_items_of_the_right_table(filled):
  found, source, stored = filled
  sample = next(source)
  data = np.asarray(sample.data)
  assert data.shape == tuple(found.sample_specs().shape)
  assert sample.probabilities.shape == tuple(found.probability_specs().shape)
  addresses = found.agent.transition_layout().unpack(data).o_tm1
  # An item that is drawn twice gets the same both times.
  new = 100.0 + addresses @ [1.0, 0.1, 10.0]
  # One batch without a finite gradient: its items keep what they have.
  new[:BATCH, 1] = np.nan
  source.give_back(sample, new)
  source.flush(60.0)
  for member in range(MEMBERS):
    wanted = {
      tuple(o): priority
      for o, priority in zip(addresses[:, member], new[:, member])
      if np.isfinite(priority)
    }
    items = stored(member, 2000)
    assert wanted.keys() < items.keys()
    for o, priority in items.items():
      expected = wanted.get(o, 1.0 + member)
      assert priority == pytest.approx(expected, rel=1e-5), o


class _Adder:
  """Makes as many items as it is told."""

  def __init__(self, made):
    self._made = iter(made)

  def add(self, observation, action, step, version):
    assert len(observation) == len(action) == len(step.reward) == 4
    return next(self._made)


def test_learning_waits_for_the_member_that_has_made_least():
  adder = population._Adders([_Adder([0, 0, 2, 5]), _Adder([4, 4, 1, 0])], 4)
  environment = counting.make_vector(8)
  observation = environment.reset()
  step = environment.step(np.zeros(8, np.int32))
  action = np.zeros(8, np.int32)
  made = [adder.add(observation, action, step) for _ in range(4)]
  # Of both, as if each had made as few: 0, 0, 2 and 7.
  assert np.cumsum(made).tolist() == [0, 0, 4, 14]


@pytest.mark.long
def test_members_whose_server_is_gone_are_saved_soon_after_a_stop(
  recorder, make_worker, make_counter, monkeypatch, tmp_path
):
  experiment = dataclasses.replace(
    _experiment(), num_agents=4, run_dir=str(tmp_path)
  )
  tables = experience.of_members(experiment, 4).tables('replay')
  server = reverb.Server(tables, directory.pick_port(set()))
  stop, told = threading.Event(), []
  update = priorities.PriorityWriter.update

  def lost(writer, sample, new):
    if not told:
      server.stop()
      stop.set()
      told.append(time.time())
    update(writer, sample, new)  # which wait for it for ever

  monkeypatch.setattr(priorities.PriorityWriter, 'update', lost)
  address = f'localhost:{server.port}'
  worker = make_worker(
    experiment, make_counter(None), addresses=[address], hosts=[]
  )
  worker.run(stop)
  saved = tmp_path / 'checkpoints' / 'worker-0.npz'
  # Not 5 s for each of the four: a node is killed 8 s after it was told. It is
  # 2 s, and more on a busy machine.
  assert saved.stat().st_mtime < told[0] + 15


def test_a_server_is_waited_for_as_long_as_its_table(check_patience):
  check_patience(experience.of_members(_experiment(prioritized=False), MEMBERS))


@pytest.mark.parametrize(
  'topology', ['single_process', 'swarm', 'gossip', 'parameter_server']
)
def test_a_ladder_of_one_rung_is_refused(topology):
  def build(topology, **agent):
    values = {f'agent.{name}': value for name, value in agent.items()}
    cell_lib.resolve('dqn', topology=topology, overrides=values).build()

  with pytest.raises(ValueError, match="exploration='ladder' has one rung"):
    build(topology, exploration='ladder')
  build(topology, exploration='ladder', prioritized='True')
  build('actor_learner', exploration='ladder')


def _experience(make_agent):
  return population.Steps(
    experiment_lib.Experiment(make_agent, 'counting', MEMBERS, 100, 50), MEMBERS
  )


def test_members_act_by_what_the_agent_has():
  infos = [base.ActorInfo(i, MEMBERS, 0) for i in range(MEMBERS)]
  theta = np.stack([bare.ByActor().initial(seed) for seed in (3, 5)])
  rng = np.random.default_rng(0)
  observation = np.zeros((MEMBERS, 3), np.float32)
  for make, kind, actions in (
    (bare.Bare, members_lib.Population, [1, 1]),
    (bare.ByActor, members_lib.Ranked, [3, 5]),
  ):
    behaviour = _experience(make).behaviour(infos)
    assert isinstance(behaviour, kind)
    assert behaviour.act(theta, observation, 0, rng).tolist() == actions


@pytest.mark.parametrize(
  'setting, value, named',
  [
    ('agent.n_step', '100000', 'agent.n_step'),
    ('run.steps_per_agent', '300', 'agent.min_replay_size'),
  ],
)
def test_what_is_to_be_lowered_is_what_asks_for_most(setting, value, named):
  with pytest.raises(experience.TooFewSteps, match=f'or lower {named}\\.'):
    cell_lib.resolve('dqn', overrides={setting: value}).build()
