"""actor_learner before it starts: its wiring, its tables, what it refuses."""

import contextlib
import dataclasses
import functools
import threading
import types

import numpy as np
import pytest
import reverb

from murmuration.agents import dqn
from murmuration.environment_loops import environments
from murmuration.launch import actor_settings
from murmuration.launch import cell as cell_lib
from murmuration.launch import experience
from murmuration.launch import experiment as experiment_lib
from murmuration.launch import graph
from murmuration.launch import pulse
from murmuration.launch import rpc
from murmuration.launch.engines import restarts
from murmuration.launch.nodes import actor
from murmuration.launch.topologies import actor_learner
from murmuration.replay import deadlock


def _experiment(agent=None, **run):
  config = dqn.Config(
    **{'hidden_sizes': (8,), 'min_replay_size': 100, **(agent or {})}
  )
  spec = environments.spec('CartPole-v1')
  return experiment_lib.Experiment(
    make_agent=functools.partial(dqn.DQN, config, spec),
    environment='CartPole-v1',
    num_agents=1,
    max_replay_size=config.max_replay_size,
    min_replay_size=config.min_replay_size,
    run=experiment_lib.RunConfig(**{'steps_per_agent': 5000, **run}),
  )


def _tables(experiment, config):
  return experience.of_actors(experiment, config).tables('replay')


ACTORS = [f'actor/{i}' for i in range(3)]


def test_a_colocated_learner_is_all_that_actors_talk_to():
  program = actor_learner.build(
    _experiment(), actor_settings.Config(num_actors=3)
  )
  asking = [*ACTORS, 'evaluator/0']
  assert graph.edges(program) == {
    ('learner/0', 'counter/0'),
    *((node, 'counter/0') for node in asking),
    *((node, 'learner/0') for node in asking),
  }
  graph.check(program)


def test_actor_i_writes_to_shard_i_mod_the_number_of_shards():
  program = actor_learner.build(
    _experiment(replay='node'), actor_settings.Config(num_actors=3, shards=2)
  )
  writes = {e for e in graph.edges(program) if e[1].startswith('replay')}
  assert writes == {
    ('learner/0', 'replay/0'),
    ('learner/0', 'replay/1'),
    ('actor/0', 'replay/0'),
    ('actor/1', 'replay/1'),
    ('actor/2', 'replay/0'),
  }
  graph.check(program)


def test_a_colocated_learner_has_an_address_for_each_shard():
  program = actor_learner.build(
    _experiment(), actor_settings.Config(num_actors=3, shards=2)
  )
  (learner,) = program.groups['learner']
  # One for its parameters, and one for each shard.
  assert len(learner.addresses) == 3


def test_all_but_the_counter_come_back():
  program = actor_learner.build(
    _experiment(replay='node'), actor_settings.Config(num_actors=1)
  )
  rules = restarts.of(program)
  assert rules.come_back and rules.ends_run == 'counter'


def test_each_shard_holds_its_part():
  config = actor_settings.Config(num_actors=2, shards=2)
  free = dataclasses.replace(
    _experiment({'max_replay_size': 1001}), pace=experiment_lib.Pace(None)
  )
  (table,) = _tables(free, config)
  assert table.info.max_size == 501
  assert table.info.rate_limiter_info.min_size_to_sample == 50


@pytest.mark.parametrize(
  'agent, kind', [({}, 'uniform'), ({'prioritized': True}, 'prioritized')]
)
def test_the_agent_says_how_its_replay_is_sampled(agent, kind):
  (table,) = _tables(_experiment(agent), actor_settings.Config())
  options = table.info.sampler_options
  assert options.uniform == (kind == 'uniform')
  if kind == 'prioritized':
    assert options.prioritized.priority_exponent == pytest.approx(0.6)


def test_the_limiter_keeps_the_ratio():
  paced = dataclasses.replace(_experiment(), pace=experiment_lib.Pace(4.0))
  (table,) = _tables(paced, actor_settings.Config())
  limiter = table.info.rate_limiter_info
  assert limiter.samples_per_insert == 4.0
  assert limiter.min_size_to_sample == 100


@pytest.mark.parametrize(
  'experiment, config, message',
  [
    ({'steps_per_agent': 120}, {}, 'leaves nothing to learn from'),
    ({}, {'error_buffer': 1.0}, 'error_buffer'),
    # In transitions, as it is said, not in items.
    (
      {},
      {'error_buffer': 12.0, 'transitions_per_item': 4},
      'error_buffer=12 is too small: .* to at least 32',
    ),
    ({}, {'num_actors': 1, 'shards': 2}, 'shards=2 are more than'),
    ({}, {'envs_per_actor': 0}, 'envs_per_actor'),
    # 64 transitions of an update are 4 items; that a call takes 32 is no help.
    (
      {'agent': {'batch_size': 64}},
      {'transitions_per_item': 16, 'num_actors': 8, 'shards': 8},
      'samples 4 items at once, for an update .* at most 4 shards',
    ),
    (
      {'agent': {'batch_size': 64}},
      {'num_learners': 16, 'num_actors': 8, 'shards': 8},
      'samples 4 items at once, for an update .* at most 4 shards',
    ),
  ],
)
def test_numbers_that_cannot_work_are_refused(experiment, config, message):
  with pytest.raises(ValueError, match=message):
    actor_learner.build(
      _experiment(**experiment), actor_settings.Config(**config)
    )


def test_on_policy_each_shard_needs_as_many_actors():
  experiment = cell_lib.resolve('a2c').experiment
  sizes = {'num_actors': 4, 'envs_per_actor': 4}
  experience.check_actors(experiment, actor_settings.Config(**sizes, shards=2))
  with pytest.raises(ValueError, match='num_actors a multiple of shards'):
    experience.check_actors(
      experiment, actor_settings.Config(**sizes, shards=3)
    )


def test_the_plan_that_is_checked_is_the_one_that_runs():
  config = actor_settings.Config(num_actors=3)
  plan = experience.of_actors(_experiment({'batch_size': 16}), config).plan
  assert (plan.writers, plan.burst) == (3, 64)
  assert plan.batch_size == 16 * experiment_lib.RunConfig().updates_per_call
  deadlock.check(plan)


@pytest.mark.parametrize('replay', ('colocated', 'node'))
def test_building_makes_no_reverb_object(monkeypatch, replay):
  # It would seed Reverb's keys before the fork, alike for all actors.
  for name in ('Table', 'Server', 'Client'):
    monkeypatch.setattr(reverb, name, None)
  for module in ('selectors', 'rate_limiters'):
    monkeypatch.setattr(reverb, module, None)
  actor_learner.build(_experiment(replay=replay), actor_settings.Config())


@pytest.mark.parametrize(
  'sizes, wanted',
  [
    ({'num_actors': 4}, [1251, 1251, 1251, 1250]),
    # One actor has as much of shard 1 as two have of shard 0.
    ({'num_actors': 3, 'shards': 2}, [1251, 2501, 1251]),
  ],
)
def test_shares_of_the_budget_add_up(sizes, wanted):
  experiment = _experiment(steps_per_agent=5003)
  config = actor_settings.Config(**sizes)
  nodes = actor_learner.build(experiment, config).groups['actor']
  shares = [node._kwargs['share'] for node in nodes]
  assert shares == wanted and sum(shares) == 5003


def test_on_policy_one_that_waited_too_little_waits_longer(monkeypatch):
  cell = cell_lib.resolve('a2c')
  node = actor.Actor(
    cell.experiment, cell.sections['actors'], 0, _Silent(), None, '', share=9
  )
  now = [0.0]

  def nothing_newer(seconds):
    now[0] += seconds
    return False

  monkeypatch.setattr(
    actor, 'time', types.SimpleNamespace(monotonic=lambda: now[0])
  )
  node._adder = types.SimpleNamespace(flush=lambda: None)
  node._follower = types.SimpleNamespace(fetch_newer=nothing_newer)
  node._over = lambda: False
  node._acted = True
  waited = []
  for _ in range(4):
    begin = now[0]
    node._fetch()
    waited.append(now[0] - begin)
  assert waited == [30, 60, 90, 90]
  assert waited[-1] <= cell.experiment.run.stall_s / 2


class _Following:
  """Stands for a line to the learner."""

  version, age_s = 0, 0.0

  def __init__(self, learner, layout, *given, **options):
    self.theta = np.zeros(layout.size, np.float32)

  def start(self):
    pass


@pytest.fixture
def build_actor(monkeypatch):
  """build_actor(experiment, config, write): the first, linked to nobody."""

  def build(experiment, config, write=print, steps=0):
    counter = _Silent(steps)
    node = actor.Actor(
      experiment, config, 0, counter, None, 'localhost:1', share=2500
    )
    monkeypatch.setattr(actor.variables, 'Follower', _Following)
    adder = types.SimpleNamespace(lost=0, close=lambda: None)
    monkeypatch.setattr(
      type(node._experience), 'adder', lambda self, *given: (adder, write)
    )
    node._stop = threading.Event()
    node._build(contextlib.ExitStack())
    return node

  return build


def test_exploration_falls_with_the_steps_of_all_actors(build_actor):
  experiment = _experiment({'epsilon_steps': 1000})
  node = build_actor(experiment, actor_settings.Config(num_actors=4))
  node._actor.steps = 125
  epsilon = node._numbers()['epsilon']
  node._environment.close()
  assert epsilon == experiment.make_agent().exploration(500)
  # One that joins a run in its middle, as it is resumed with more of them.
  node = build_actor(experiment, actor_settings.Config(num_actors=4), steps=700)
  epsilon = node._numbers()['epsilon']
  node._environment.close()
  assert epsilon == experiment.make_agent().exploration(700)


def test_an_actor_that_died_before_its_first_report_sees_other_episodes(
  build_actor, tmp_path
):
  (slot,) = pulse.Board(tmp_path, 1).slots
  pulse.use(slot)
  seen = []
  try:
    for _ in range(2):
      slot.clear()  # as the launcher does before each life
      node = build_actor(_experiment(), actor_settings.Config(num_actors=1))
      seen.append(node._reset())
      node._environment.close()
  finally:
    pulse.use(None)
  assert (seen[0] != seen[1]).any()


def test_a_stop_is_heard_between_two_steps_of_slow_environments(build_actor):
  written = []

  def write(*step):
    written.append(step)
    if len(written) == 3:
      node._stop.set()

  config = actor_settings.Config(num_actors=1, update_period=1000)
  node = build_actor(_experiment({}), config, write)
  node._act(node._reset(), 1000)
  node._environment.close()
  assert len(written) == 3


def test_environments_are_closed_where_the_learner_is_not_there(monkeypatch):
  class Away(_Following):
    def start(self):
      raise rpc.Unavailable('learner/0', 'get_parameters', False, 'away')

  closed, make = [], actor.vector.make_vector

  def made(*given, **options):
    environment = make(*given, **options)
    close = environment.close
    environment.close = lambda: closed.append(1) or close()
    return environment

  monkeypatch.setattr(actor.variables, 'Follower', Away)
  monkeypatch.setattr(actor.vector, 'make_vector', made)
  config = actor_settings.Config(num_actors=1)
  node = actor.Actor(
    _experiment(), config, 0, _Silent(), None, 'localhost:1', share=2500
  )
  with pytest.raises(rpc.Unavailable):
    node.run(threading.Event())
  assert closed == [1]


def test_an_actor_that_helps_reports_its_share_once(build_actor, monkeypatch):
  node = build_actor(_experiment(), actor_settings.Config(num_actors=1))
  told = []
  monkeypatch.setattr(node._reporter, 'due', lambda: False)
  monkeypatch.setattr(node._reporter, 'report', told.append)
  for steps in (1, node.share, node.share + 1, node.share + 2):
    node._actor.steps = steps
    node._told_evaluation = 10**6
    node._over()
  node._environment.close()
  assert len(told) == 1


class _Silent:
  def __init__(self, steps=0):
    self._steps = steps

  def totals(self):
    return {'actor_steps': self._steps}

  def begin(self, node, life):
    return {}

  def with_deadline(self, timeout_s):
    del timeout_s
    return self
