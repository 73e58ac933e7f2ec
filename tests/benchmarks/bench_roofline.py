"""The CPU of an environment step, part by part, and what two cores allow.

Ape-X DQN at 32 samples per insert and batch 256, and IMPALA with unrolls of 20
steps; CartPole-v1, 64 x 64. Each part runs alone, in one process, made of the
same objects as in a run (launch/experience). Its CPU is that of all threads
of the process: so writing holds what Reverb's server does for it. Evaluator,
counter and the copies of parameters are not in the sum; contention neither.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from typing import Any

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')
import numpy as np
import reverb
import tensorflow as tf

from murmuration.agents import base
from murmuration.agents import dqn
from murmuration.agents import impala
from murmuration.agents import learner as learner_lib
from murmuration.agents.exchange import local as local_exchange
from murmuration.environment_loops import environments
from murmuration.environment_loops import observers
from murmuration.environment_loops import vector
from murmuration.launch import actor_settings
from murmuration.launch import experience
from murmuration.launch import experiment as experiment_lib
from murmuration.launch.experience import kind
from tests.benchmarks import common

_CORES = 2  # of the machine that the goals are stated for
_ENVIRONMENT = 'CartPole-v1'
_RATIO = 32  # samples per insert of Ape-X
_SPEC = environments.spec(_ENVIRONMENT)
Costs = dict[str, float]  # part -> us of CPU for each environment step


def _experiment(agent_class: Any, config: Any, updates: int):
  return experiment_lib.Experiment(
    functools.partial(agent_class, config, _SPEC),
    _ENVIRONMENT,
    1,
    getattr(config, 'max_replay_size', 1),
    getattr(config, 'min_replay_size', 1),
    experiment_lib.Pace(None),
    run=experiment_lib.RunConfig(updates_per_call=updates),
  )


class _Actor:
  """Acts as launch/nodes/actor.py does, with `write` or without."""

  def __init__(self, found: kind.Kind, client: Any, stop: threading.Event):
    config, agent = found.config, found.agent
    info = base.ActorInfo(0, config.num_actors, 0)
    self._environment = vector.make_vector(
      _ENVIRONMENT, config.envs_per_actor, 0
    )
    self._tracker = observers.EpisodeTracker(config.envs_per_actor)
    self._behaviour = agent.actor(info, config.envs_per_actor)
    self._theta = agent.initial(0)
    self._rng = np.random.default_rng(0)
    self._observation = self._environment.reset()
    self.adder, self._record = found.adder(
      client, 'replay', self._behaviour, self._priorities, stop.is_set
    )

  def _priorities(self, member: int, packed: np.ndarray) -> np.ndarray:
    del member
    return self._behaviour.priorities(self._theta, packed)

  def step(self, write: bool) -> None:
    observation = self._observation
    action = self._behaviour.act(self._theta, observation, 0, self._rng)
    step = self._environment.step(action)
    if write:
      self._record(observation, action, step, 0)
    self._tracker.observe(step)
    if step.last.any():
      self._behaviour.ended(step.last)
    self._observation = step.next_observation


def _learner(found: kind.Kind) -> learner_lib.TFLearner:
  agent = found.agent
  learner = learner_lib.TFLearner(
    agent,
    agent.initial(0)[None],
    [agent.learning_rate],
    local_exchange.Local(),
    found.feed,
    updates_per_call=found.updates_per_call,
  )
  return learner


def measure_apex(seconds: float) -> Costs:
  """Ape-X: transitions, prioritized replay."""
  config = dqn.Config(
    prioritized=True, exploration='ladder', batch_size=256, min_replay_size=1000
  )
  found = experience.of_actors(
    _experiment(dqn.DQN, config, updates=32),
    actor_settings.Config(),
  )
  server = reverb.Server(found.tables('replay'))
  client = server.localhost_client()
  actor = _Actor(found, client, threading.Event())
  envs = found.config.envs_per_actor
  act = common.timed(lambda: actor.step(False), seconds)['cpu_us'] / envs
  both = common.timed(lambda: actor.step(True), seconds)['cpu_us'] / envs
  actor.adder.flush()
  source = found.source([client.server_address], 'replay', lambda: False)
  items = found.updates_per_call * found.batch_size
  back = np.full(items, 0.5)

  def sample():
    source.give_back(next(source), back)

  sampling = common.timed(sample, seconds)['cpu_us'] / items
  last = next(source)
  learner = _learner(found)
  call = common.timed(
    lambda: learner.step(last.data, last.probabilities), seconds
  )
  source.close()
  actor.adder.close()
  server.stop()
  return {
    'acting: policy, environment, episodes': act,
    'writing one item, its priority computed': both - act,
    f'{_RATIO} samples, priorities written back': _RATIO * sampling,
    f'{_RATIO}/256 of an update': _RATIO * call['cpu_us'] / items,
  }


def measure_impala(seconds: float) -> Costs:
  """IMPALA: blocks through a queue, each learned from once."""
  config = impala.Config(unroll_length=20, batch_size=8, reward_scale=0.1)
  found = experience.of_actors(
    _experiment(impala.IMPALA, config, updates=8),
    actor_settings.Config(envs_per_actor=32, update_period=640),
  )
  server = reverb.Server(found.tables('replay'))
  client = server.localhost_client()
  stop = threading.Event()
  actor = _Actor(found, client, stop)
  envs = found.config.envs_per_actor
  act = common.timed(lambda: actor.step(False), seconds)['cpu_us'] / envs
  source = found.source([client.server_address], 'replay', lambda: False)

  def write():
    while not stop.is_set():
      actor.step(True)

  writing = threading.Thread(target=write, daemon=True)
  writing.start()
  sample = found.prepare(next(source), 0)
  steps = found.updates_per_call * config.unroll_length * config.batch_size
  cpu, until, count = time.process_time(), time.monotonic() + seconds, 0
  while time.monotonic() < until:
    sample = found.prepare(next(source), 0)
    count += steps
  queue = 1e6 * (time.process_time() - cpu) / count - act
  stop.set()
  writing.join(10.0)
  learner = _learner(found)
  call = common.timed(lambda: learner.step(sample.data), seconds)
  source.close()
  actor.adder.close()
  server.stop()
  return {
    'acting: policy, environment, episodes': act,
    'the queue: blocks written and sampled': queue,
    '1/160 of an update': call['cpu_us'] / steps,
  }


def _table(title: str, costs: Costs) -> str:
  total = sum(costs.values())
  rows = [
    (part, f'{cost:.1f}', f'{100 * cost / total:.0f} %')
    for part, cost in costs.items()
  ]
  rows.append(('sum', f'{total:.1f}', '100 %'))
  return common.table((title, 'CPU, us', 'share'), rows)


def _note(name: str, costs: Costs) -> str:
  total, (part, most) = (
    sum(costs.values()),
    max(costs.items(), key=lambda item: item[1]),
  )
  return (
    f'{name}: at the sum of its parts {_CORES} cores would make '
    f'{_CORES * 1e6 / total:,.0f} environment steps/s, an estimate from parts '
    f'measured alone and no bound; what binds: {part} '
    f'({100 * most / total:.0f} %).'
  )


def main() -> int:
  args = common.arguments(__doc__)
  seconds = common.choose(args, 0.5, 3.0, 6.0)
  common.warn_if_busy()
  # As in a node.
  tf.config.threading.set_intra_op_parallelism_threads(1)
  tf.config.threading.set_inter_op_parallelism_threads(1)
  apex, queue = measure_apex(seconds), measure_impala(seconds)
  common.publish(
    common.Result(
      'Rooflines: what an environment step costs, part by part',
      [
        _table('Ape-X DQN, an environment step', apex),
        _table('IMPALA, an environment step', queue),
      ],
      [_note('Ape-X DQN', apex), _note('IMPALA', queue)],
      {'apex': apex, 'impala': queue},
    ),
    args,
  )
  return 0


if __name__ == '__main__':
  sys.exit(main())
