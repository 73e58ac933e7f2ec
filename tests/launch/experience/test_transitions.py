"""What travels to the learner: items of several transitions, on real replay."""

import functools
import time

import numpy as np
import pytest
import reverb

from murmuration.agents import base
from murmuration.agents import dqn
from murmuration.environment_loops import environments
from murmuration.environment_loops import vector
from murmuration.launch import actor_settings
from murmuration.launch import experience
from murmuration.launch import experiment as experiment_lib
from murmuration.launch.rpc import directory
from murmuration.replay import packing
from murmuration.replay import writer

ENVS, SIZE, BATCH, EXPONENT = 8, 8, 32, 0.6


def _experience(agent=None, **config):
  agent_config = dqn.Config(
    **{
      'hidden_sizes': (8,),
      'min_replay_size': 100,
      'batch_size': BATCH,
      'prioritized': True,
      **(agent or {}),
    }
  )
  experiment = experiment_lib.Experiment(
    make_agent=functools.partial(
      dqn.DQN, agent_config, environments.spec('CartPole-v1')
    ),
    environment='CartPole-v1',
    num_agents=1,
    max_replay_size=agent_config.max_replay_size,
    min_replay_size=agent_config.min_replay_size,
    pace=experiment_lib.Pace(config.pop('samples_per_insert', None)),
    run=experiment_lib.RunConfig(steps_per_agent=5000, updates_per_call=2),
  )
  config = actor_settings.Config(
    **{
      'num_actors': 1,
      'envs_per_actor': ENVS,
      'transitions_per_item': SIZE,
      **config,
    }
  )
  return experience.of_actors(experiment, config)


@pytest.fixture
def serve(tmp_path):
  """serve(experience) starts its table's server and returns its address."""
  servers = []

  def start(found):
    port = directory.pick_port(set())
    servers.append(
      reverb.Server(
        found.tables('replay'),
        port,
        reverb.checkpointers.DefaultCheckpointer(str(tmp_path)),
      )
    )
    return f'localhost:{port}'

  yield start
  for server in servers:
    server.stop()


def _fill(found, address, steps, first_version=0):
  """Acts `steps` steps; returns the packed transitions, in their order."""
  written = []

  def priority(member, packed):
    assert member == 0
    written.append(packed.copy())
    return np.arange(1.0, 1.0 + len(packed))

  adder, record = found.adder(
    reverb.Client(address),
    'replay',
    found.agent.actor(base.ActorInfo(0, 1, 0), ENVS),
    priority,
    lambda: False,
  )
  environment = vector.make_vector('CartPole-v1', ENVS, seed=0)
  rng, observation = np.random.default_rng(0), environment.reset()
  for version in range(first_version, first_version + steps):
    action = rng.integers(2, size=ENVS).astype(np.int32)
    step = environment.step(action)
    record(observation, action, step, version)
    observation = step.next_observation
  adder.flush()
  adder.close()
  return np.concatenate(written)


def test_a_learner_gets_whole_items_and_their_new_priorities_return(serve):
  found = _experience()
  address = serve(found)
  written = _fill(found, address, 60)
  place = {row.tobytes(): i for i, row in enumerate(written)}
  source = found.source([address], 'replay', lambda: False)
  raw = next(source)
  sample = found.prepare(raw, 0)
  spec = found.sample_specs()
  assert sample.data.shape == spec.shape == (2 * BATCH, written.shape[1])
  assert sample.probabilities.shape == (2 * BATCH,)
  rows = [place[row.tobytes()] for row in np.asarray(sample.data)]
  for item in range(2 * BATCH // SIZE):
    own = rows[item * SIZE : (item + 1) * SIZE]
    # The steps of one item were acted after each other.
    assert own == list(range(own[0], own[0] + SIZE)) and own[0] % SIZE == 0
    chance = sample.probabilities[item * SIZE : (item + 1) * SIZE]
    assert set(chance) == {raw.probabilities[item]}
  assert found.numbers(sample, 60)['replay_size'] == len(written)

  assert found.numbers(sample, 60)['priorities_not_finite'] == 0
  # An item is counted once, whatever its transitions.
  broken = np.ones(2 * BATCH)
  broken[[0, 1, SIZE]] = np.nan, np.inf, np.inf
  assert not np.isfinite(found.item_priorities(broken)[:2]).any()
  assert found.numbers(sample, 60)['priorities_not_finite'] == 2

  # One new priority for each key: that of its own transitions.
  new = np.random.default_rng(1).gamma(1.0, size=2 * BATCH)
  source.give_back(sample, new)
  source.flush(60.0)
  wanted = {}
  for item, key in enumerate(sample.keys):
    own = new[item * SIZE : (item + 1) * SIZE]
    wanted[int(key)] = np.mean(own**EXPONENT) ** (1 / EXPONENT)
  stored = {}
  deadline = time.monotonic() + 60
  while not set(wanted) <= set(stored):
    assert time.monotonic() < deadline
    for one in reverb.Client(address).sample(
      'replay', 50, emit_timesteps=False
    ):
      stored[one.info.key] = one.info.priority
  for key, priority in wanted.items():
    assert stored[key] == pytest.approx(priority, rel=1e-5)
  source.close()


def test_what_is_logged_of_a_sample_is_of_all_its_shards(serve):
  found = _experience(num_actors=2, shards=2)
  addresses = [serve(found) for _ in range(2)]
  written = [
    _fill(found, addresses[0], 60),
    _fill(found, addresses[1], 30, first_version=1000),
  ]
  source = found.source(addresses, 'replay', lambda: False)
  sample = found.prepare(next(source), 0)
  source.close()
  place = found.agent.transition_layout().slices
  rows = np.asarray(sample.data)
  lags = [1500 - float(row[place.version][0]) for row in rows]
  # Both shards, and neither a few rows nor the first of each update tell.
  assert min(lags) < 500 and max(lags) > 1400

  def ages():
    return [packing.age_s(row[place.written_at][0]) for row in rows]

  before, numbers, after = ages(), found.numbers(sample, 1500), ages()
  assert numbers['policy_lag'] == pytest.approx(np.mean(lags))
  assert numbers['policy_lag_max'] == max(lags)
  assert np.mean(before) <= numbers['sample_age_s'] <= np.mean(after)
  assert np.max(before) <= numbers['sample_age_max_s'] <= np.max(after)
  # Not twice the larger one.
  assert numbers['replay_size'] == sum(map(len, written))

  # A shard that is filled anew: the newest that it says counts.
  sizes = np.where(sample.shards == 1, 7, 100)
  sizes[np.flatnonzero(sample.shards == 1)[0]] = 400
  refilled = found.numbers(sample._replace(table_sizes=sizes), 1500)
  assert refilled['replay_size'] == (100 + 7) * SIZE

  # A learner that was restored is behind what its actors have written.
  numbers = found.numbers(sample, 500)
  lags = [max(lag - 1000, 0) for lag in lags]
  assert numbers['policy_lag'] == pytest.approx(np.mean(lags))


def test_the_plan_counts_items():
  whole = _experience(samples_per_insert=16.0, transitions_per_item=1).plan
  shared = _experience(samples_per_insert=16.0).plan
  assert shared.samples_per_insert == whole.samples_per_insert == 16.0
  assert (shared.min_size, shared.max_size) == (13, whole.max_size // SIZE)
  assert shared.batch_size == whole.batch_size // SIZE
  assert shared.burst == whole.burst // SIZE
  assert shared.max_in_flight == whole.max_in_flight // SIZE
  buffer = _experience(
    samples_per_insert=16.0, error_buffer=800.0
  ).plan.error_buffer
  assert buffer == 100.0


def test_a_batch_that_is_no_whole_number_of_items_is_refused():
  with pytest.raises(ValueError, match='transitions_per_item=8 must divide'):
    _experience({'batch_size': 12})
  with pytest.raises(ValueError, match='transitions_per_item=3 must divide'):
    _experience({'batch_size': 12}, transitions_per_item=3)


def test_a_signature_says_what_an_item_holds():
  (table,) = _experience().tables('replay')
  layout = packing.from_signature(table.info.signature)
  assert table.info.signature.shape == (SIZE, layout.width)


def test_an_item_that_is_not_finite_is_removed_and_counted(serve, caplog):
  found = _experience()
  address = serve(found)
  written = _fill(found, address, 60)
  client = reverb.Client(address)
  # By somebody who checks nothing, with a priority to be drawn by.
  broken = np.full((SIZE, written.shape[1]), np.nan, np.float32)
  own = writer.ItemWriter(client, 'replay', found._layout.signature(SIZE))
  own.append([broken], 1e4)
  own.flush()
  own.close()
  size = client.server_info()['replay'].current_size
  source = found.source([address], 'replay', lambda: False)
  deadline = time.monotonic() + 60
  while not source.not_finite:
    assert time.monotonic() < deadline
    sample = next(source)
    assert np.isfinite(np.asarray(sample.data)).all()
    assert len(sample.keys) == len(sample.data) == 2 * BATCH // SIZE
  assert 'items_not_finite in the metrics' in caplog.text
  while client.server_info()['replay'].current_size >= size:
    assert time.monotonic() < deadline  # it is drawn no more
    time.sleep(0.05)
  source.close()


def test_a_server_is_waited_for_as_long_as_its_table(check_patience):
  check_patience(_experience({'prioritized': False}))
