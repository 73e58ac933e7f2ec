"""Our actors in Acme's own loop, and what they write."""

import types

from absl import flags
import acme
from acme import core
import numpy as np
import pytest
import reverb

from murmuration.agents import base
from murmuration.agents import d4pg
from murmuration.agents import dqn
from murmuration.agents import impala
from murmuration.agents.acme import actor as acme_actor
from murmuration.environment_loops import environments
from murmuration.environment_loops import stepping
from murmuration.replay import adders
from murmuration.replay import blocks
from murmuration.replay import packing
from murmuration.replay import tables
from tests import counting

N_STEP, GAMMA, UNROLL, EPISODES = 3, 0.9, 4, 40
DISCRETE = environments.Spec('counting', (3,), 2)
CONTINUOUS = environments.Spec(
  'counting', (3,), None, (2,), (-1.0,) * 2, (1.0,) * 2
)


class Silent:
  """A logger for a loop that says nothing."""

  def write(self, data):
    pass

  def close(self):
    pass


@pytest.fixture(autouse=True)
def parsed_flags():
  """Acme's loop asks Launchpad to stop it, and that asks its flags."""
  if flags.FLAGS.is_parsed():
    yield
    return
  flags.FLAGS.mark_as_parsed()
  yield
  flags.FLAGS.unparse_flags()


class Source:
  """Parameters with a new version at every look."""

  def __init__(self, theta):
    self.theta = theta
    self.version = 0
    self.waits = []

  def fetch(self):
    self.theta, self.version = self.theta.copy(), self.version + 1
    return True

  def fetch_newer(self, timeout_s):
    self.waits.append(timeout_s)
    return self.fetch()


class Moving(counting.CountingEnvironment):
  """The counting environment with continuous actions."""

  def action_spec(self):
    return acme.specs.BoundedArray((2,), np.float32, -1.0, 1.0)


def make_agent(name):
  if name == 'dqn':
    config = dqn.Config(hidden_sizes=(8,), n_step=N_STEP, gamma=GAMMA)
    return dqn.DQN(config, DISCRETE)
  if name == 'd4pg':
    config = d4pg.Config(
      policy_sizes=(8,), critic_sizes=(8,), n_step=N_STEP, gamma=GAMMA
    )
    return d4pg.D4PG(config, CONTINUOUS)
  config = impala.Config(
    hidden_sizes=(8,), unroll_length=UNROLL, batch_size=1, lstm_size=4
  )
  return impala.IMPALA(config, DISCRETE)


def make_table(agent):
  """The table of an agent's items, and how an actor writes to it."""
  if agent.unroll_length:
    layout = agent.block_layout(1)
    table = tables.queue('replay', 1000, layout.signature())
  else:
    spec = agent.spec
    layout = packing.TransitionLayout(
      spec.observation_shape, spec.action_shape, spec.discrete
    )
    table = reverb.Table(
      'replay',
      reverb.selectors.Fifo(),
      reverb.selectors.Fifo(),
      1000,
      reverb.rate_limiters.MinSize(1),
      max_times_sampled=1,
      signature=layout.signature(),
    )
  return table, layout


@pytest.fixture
def written(tmp_path):
  """written(agent, run) gives what `run(write, adder, behaviour)` wrote."""
  servers = []

  def collect(agent, run):
    table, layout = make_table(agent)
    checkpointer = reverb.checkpointers.DefaultCheckpointer(str(tmp_path))
    server = reverb.Server([table], None, checkpointer)
    servers.append(server)
    client = reverb.Client(f'localhost:{server.port}')
    behaviour = agent.actor(base.ActorInfo(0, 1, 0), 1)
    if agent.unroll_length:
      adder = adders.BlockAdder(client, 'replay', layout)

      def write(observation, action, step, version):
        adder.add(
          observation,
          action,
          step,
          behaviour.behaviour,
          behaviour.core,
          version,
        )
    else:
      adder = adders.TransitionAdder(
        client, 'replay', layout, N_STEP, GAMMA, 1, burst=1
      )
      write = adder.add
    run(write, adder, behaviour)
    adder.flush()
    size = client.server_info()['replay'].current_size
    samples = (
      client.sample('replay', size, emit_timesteps=False) if size else ()
    )
    items = [
      blocks.Block(*sample.data)
      if agent.unroll_length
      else layout.unpack(np.asarray(sample.data[0]))
      for sample in samples
    ]
    adder.close()
    return items

  yield collect
  for server in servers:
    server.stop()


def make_actor(agent, write, adder, behaviour, **options):
  return acme_actor.Actor(
    behaviour,
    Source(agent.initial(1)),
    write,
    np.random.default_rng(2),
    **{'abandon': adder.reset, 'update_period': 5, **options},
  )


def drive(agent):
  """Acme's loop."""

  def run(write, adder, behaviour):
    actor = make_actor(agent, write, adder, behaviour)
    assert isinstance(actor, core.Actor)
    kind = counting.CountingEnvironment if agent.spec.discrete else Moving
    loop = acme.EnvironmentLoop(
      kind(counting.Plan()), actor, logger=Silent(), should_update=True
    )
    loop.run(num_episodes=EPISODES)
    actor.finish()

  return run


def step_together(agent):
  """The vector loop of actor_learner, with one environment."""

  def run(write, adder, behaviour):
    actor = make_actor(agent, write, adder, behaviour)
    environment = counting.make_vector(1)
    observation, episodes = environment.reset(), 0
    while episodes < EPISODES:
      action = actor.act(observation)
      step = environment.step(
        action if agent.spec.discrete else np.zeros(1, np.int32)
      )
      if episodes == EPISODES - 1 and step.last[0]:
        # The loop of Acme begins no other episode either.
        step = step._replace(next_observation=step.observation)
      actor.record(observation, action, step)
      actor.update()
      episodes += int(step.last[0])
      observation = step.next_observation

  return run


AGENTS = ['dqn', 'd4pg', 'impala']


@pytest.mark.parametrize('name', AGENTS)
def test_acme_s_loop_writes_what_our_vector_loop_writes(written, name):
  agent = make_agent(name)
  one, other = (
    written(agent, drive(agent)),
    written(agent, step_together(agent)),
  )
  assert len(one) == len(other) > EPISODES / 2
  for got, expected in zip(one, other):
    for field, value in got._asdict().items():
      if field != 'written_at':
        np.testing.assert_array_equal(value, getattr(expected, field), field)
  assert {float(np.ravel(item.version)[0]) for item in one} > {0.0, 1.0, 2.0}


def every_step():
  """(episode, t) of all observations acted on."""
  plan = counting.Plan()
  return [
    (episode, t)
    for episode in range(EPISODES)
    for t in range(plan.length(0, episode))
  ]


@pytest.mark.parametrize('name', ['dqn', 'd4pg'])
def test_no_transition_is_lost_repeated_or_reordered(written, name):
  agent, plan = make_agent(name), counting.Plan()
  items = written(agent, drive(agent))
  assert [tuple(item.o_tm1[:2]) for item in items] == every_step()
  for item in items:
    episode, t = map(int, item.o_tm1[:2])
    end = min(t + N_STEP, plan.length(0, episode))
    rewards = [plan.reward(0, episode, k) for k in range(t + 1, end + 1)]
    total = sum(GAMMA**k * reward for k, reward in enumerate(rewards))
    assert tuple(item.o_t[:2]) == (episode, end)
    np.testing.assert_allclose(item.r_t, total, rtol=1e-6)
    over = end == plan.length(0, episode) and plan.terminates(0, episode)
    wanted = 0.0 if over else GAMMA ** (len(rewards) - 1)
    np.testing.assert_allclose(item.d_t, wanted, rtol=1e-6)


def test_rewards_are_clipped_as_the_agent_says_when_they_are_written():
  agent = impala.IMPALA(impala.Config(reward_clip=0.5), DISCRETE)
  written = []
  actor = acme_actor.Actor(
    agent.actor(base.ActorInfo(0, 1, 0), 3),
    Source(agent.initial(0)),
    lambda observation, action, step, version: written.append(step.reward),
    np.random.default_rng(0),
    reward_clip=agent.reward_clip,
  )
  observation, none = np.zeros((3, 3), np.float32), np.zeros(3, np.bool_)
  rewards = np.array([-2.0, 0.3, 9.0], np.float32)
  step = stepping.StepBatch(
    observation, rewards, np.ones(3, np.float32), none, observation
  )
  actor.record(observation, actor.act(observation), step)
  np.testing.assert_allclose(written, [[-0.5, 0.3, 0.5]])


def test_no_step_of_a_block_is_lost_repeated_or_reordered(written):
  agent = make_agent('impala')
  items = written(agent, drive(agent))
  seen = [tuple(row[0, :2]) for item in items for row in item.observation[:-1]]
  steps = every_step()
  assert seen == steps[: len(steps) // UNROLL * UNROLL]
  following = [tuple(item.observation[-1, 0, :2]) for item in items]
  assert following[:-1] == steps[UNROLL : len(seen) : UNROLL]


def test_an_episode_that_is_abandoned_is_not_joined_to_the_next(written):
  agent = make_agent('dqn')

  def run(write, adder, behaviour):
    actor = make_actor(agent, write, adder, behaviour)
    environment = counting.make(lengths=(5,), endings=(counting.TRUNCATION,))
    for _ in range(2):
      timestep = environment.reset()
      actor.observe_first(timestep)
      for _ in range(2):  # and no further
        action = actor.select_action(timestep.observation)
        timestep = environment.step(action)
        actor.observe(action, timestep)

  assert written(agent, run) == []


def test_update_looks_every_period_and_waits_when_told(written):
  agent = make_agent('dqn')

  def run(write, adder, behaviour):
    actor = make_actor(agent, write, adder, behaviour, wait_s=7.0)
    for _ in range(12):
      actor.update()
    assert actor.source.version == 2
    actor.update(wait=True)
    assert actor.source.version == 3
    assert actor.source.waits == [7.0]

  written(agent, run)


def test_observe_before_an_episode_has_begun_is_refused(written):
  agent = make_agent('dqn')

  def run(write, adder, behaviour):
    actor = make_actor(agent, write, adder, behaviour)
    with pytest.raises(ValueError, match='observe_first'):
      actor.observe(0, counting.make().reset())

  written(agent, run)


@pytest.mark.parametrize(
  'steps, total, expected',
  [
    (30, 0, [120, 128]),
    (30, 110, [110, 118]),  # others are behind, or some actors are new
    (0, 5000, [5000, 5008]),  # one more, in a run that is resumed
    (30, 5000, [5000, 5008]),
  ],
)
def test_schedules_go_by_the_steps_of_all_actors(steps, total, expected):
  asked = []

  class Behaviour:
    def act(self, theta, observation, actor_steps, rng):
      asked.append(actor_steps)
      return np.zeros(2, np.int32)

  actor = acme_actor.Actor(
    Behaviour(),
    Source(np.zeros(1)),
    lambda *written: None,
    np.random.default_rng(0),
    steps=steps,
    count=4,
    total=total,
  )
  observation = np.zeros((2, 3))
  step = types.SimpleNamespace(last=np.zeros(2, bool))
  for _ in range(2):
    actor.record(observation, actor.act(observation), step)
  assert asked == expected
