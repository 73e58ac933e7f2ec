"""What goes to shards beside gradients: statistics of all learners."""

import dataclasses
import functools
import threading

import numpy as np
import pytest

from murmuration.agents.exchange import remote_apply
from murmuration.launch.services import shard as shard_lib
from murmuration.launch.services import shard_exchange
from tests.launch.services import shard_cases as cases

NAN = float('nan')


def test_statistics_go_to_their_shard():
  size = cases.make_experiment().make_agent().layout.size
  half = -(-size // 2)
  config = cases.make_config(num_shards=2)
  shards = cases.make_shards(config)
  places = shard_lib.places(cases.make_experiment().make_agent(), config)
  client = shard_exchange.Shards(shards, places)
  client.start()
  # Across the border of two shards.
  message = remote_apply.Message(
    np.zeros(size, np.float32), {half - 1: np.float32([7, 8, 9])}, 0
  )
  theta = client.push(message).theta
  np.testing.assert_array_equal(theta[half - 1 : half + 2], [7, 8, 9])


def _push_statistics(shard, index, ticket, start, values):
  """Sends them without a gradient; what stands there afterwards."""
  statistics = ((start, np.float32(values)),)
  reply = shard.push(index, f'{ticket}-1', 0, None, statistics, 0)
  return reply.theta[start : start + len(values)].tolist()


def test_statistics_of_all_learners_become_one():
  agent = cases.make_experiment().make_agent()
  largest = agent.layout.variables[1]
  agent.maxima = (largest.name,)
  experiment = dataclasses.replace(
    cases.make_experiment(), make_agent=lambda: agent
  )
  shard = shard_lib.Shard(experiment, cases.make_config(num_learners=2), 0)
  push = functools.partial(_push_statistics, shard)
  assert push(0, 'a', 0, [1.0, 2.0]) == [1.0, 2.0]
  assert push(1, 'b', 0, [3.0, 6.0]) == [2.0, 4.0]
  assert push(0, 'c', 0, [5.0, 2.0]) == [4.0, 4.0]
  assert push(1, 'd', 0, [NAN, 1.0]) == [4.0, 4.0]
  assert push(0, 'e', largest.offset, [1.0, 9.0]) == [1.0, 9.0]
  assert push(1, 'f', largest.offset, [5.0, 2.0]) == [5.0, 9.0]


def test_a_largest_value_across_the_border_of_two_shards_is_one():
  agent = cases.make_experiment().make_agent()
  config = cases.make_config(num_learners=2, num_shards=2)
  border = shard_lib.places(agent, config)[1].start
  (across,) = (
    v for v in agent.layout.variables if v.slice.start < border < v.slice.stop
  )
  agent.maxima = (across.name,)
  experiment = dataclasses.replace(
    cases.make_experiment(), make_agent=lambda: agent
  )
  second = shard_lib.Shard(experiment, config, 1)
  assert _push_statistics(second, 0, 'a', 0, [5.0, 1.0]) == [5.0, 1.0]
  assert _push_statistics(second, 1, 'b', 0, [3.0, 2.0]) == [5.0, 2.0]


def test_a_largest_priority_that_a_learner_has_not_seen_is_kept(tmp_path):
  agent = cases.make_experiment().make_agent()
  largest = agent.layout.variables[1]
  agent.maxima = (largest.name,)
  make = functools.partial(
    shard_lib.Shard,
    dataclasses.replace(
      cases.make_experiment(str(tmp_path)), make_agent=lambda: agent
    ),
    cases.make_config(num_learners=2),
    0,
  )
  old = make()
  assert _push_statistics(old, 0, 'a', largest.offset, [9.0]) == [9.0]
  ended = threading.Event()
  ended.set()
  old.run(ended)  # which saves
  # Of what was pulled before the 9.
  assert _push_statistics(make(), 1, 'b', largest.offset, [6.0]) == [9.0]


def test_one_that_is_gone_does_not_hold_the_mean_of_the_others():
  config = cases.make_config(num_learners=2)
  (client,) = cases.make_shards(config)
  _, exchange = cases.remote(config, [client], 1)
  push = functools.partial(_push_statistics, client.shard)
  assert push(0, 'a', 0, [2.0]) == [2.0]
  assert push(1, 'b', 0, [4.0]) == [3.0]
  exchange.ended()
  assert push(0, 'c', 0, [5.0]) == [5.0]


def test_a_running_mean_is_of_what_all_learners_have_seen():
  (client,) = cases.make_shards(cases.make_config(num_learners=2))
  known = dict.fromkeys((0, 1), float(client.shard.pull().theta[0]))
  for count in range(1, 200):
    for index, seen in enumerate((0.0, 10.0)):
      mean = known[index] + (seen - known[index]) / count
      (known[index],) = _push_statistics(
        client.shard, index, f'{index}-{count}', 0, [mean]
      )
  assert known[0] == pytest.approx(5.0, abs=0.1)
  assert known[1] == pytest.approx(5.0, abs=0.1)
