"""What each part of an explorer node costs, alone: the roofline of its loop.

P = 16 members on CartPole-v1 with the default config, in one process. Wall
time is what the loop waits for; CPU time is that of all threads of the process,
so it holds what Reverb's and TensorFlow's threads do meanwhile. The parameter
server of the RPC rows is a process of its own.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import sys
import tempfile

import numpy as np

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')

import reverb
import tensorflow as tf

from murmuration.agents import dqn
from murmuration.agents import feeds
from murmuration.agents import learner as learner_lib
from murmuration.agents import parameters
from murmuration.agents.exchange import pull as pull_exchange
from murmuration.environment_loops import environments
from murmuration.environment_loops import observers
from murmuration.environment_loops import vector
from murmuration.launch import rpc
from murmuration.launch.services import variables
from murmuration.replay import adders
from murmuration.replay import packing
from murmuration.replay import sampler as sampler_lib
from murmuration.replay import tables
from tests.benchmarks import common

_P = 16
_U = (8, 32)
_ENVIRONMENT = 'CartPole-v1'
_CORES = 2  # of the machine that the goals are stated for
Cost = dict[str, float]


def serve_star(address: str, layout: parameters.Layout, stop) -> None:
  """Serves what a star with a theta_star serves, until `stop`."""
  theta = np.zeros(layout.size, np.float32)
  published = variables.Published(layout)
  published.publish(1, theta)

  class Star:
    serves = ('get_star',)

    def get_star(self, known_version):
      numbers = {'c': 0.05, 'r_star': 100.0, 'bar': 1.0}
      return {**published.get(known_version), **numbers}

  with rpc.serve(Star(), address):
    stop.wait()


def measure_rpc(agent: dqn.DQN, seconds: float) -> dict[str, Cost]:
  """Has to come first: nothing may have started threads before the fork."""
  context = multiprocessing.get_context('fork')
  stop = context.Event()
  place = tempfile.TemporaryDirectory()
  address = f'unix:{place.name}/star'
  process = context.Process(
    target=serve_star, args=(address, agent.layout, stop), daemon=True
  )
  process.start()
  try:
    client = rpc.Client(address)
    version = rpc.retry(lambda: client.get_star(0))['version']
    return {
      'RPC get_star, nothing new': common.timed(
        lambda: client.get_star(version), seconds
      ),
      f'RPC get_star, theta* of {4 * agent.layout.size / 1000:.0f} kB': (
        common.timed(lambda: client.get_star(0), seconds)
      ),
    }
  finally:
    stop.set()
    process.join(5)
    place.cleanup()


def measure_acting(agent: dqn.DQN, theta, seconds: float) -> dict[str, Cost]:
  """Policy, environments, and the bookkeeping of episodes."""
  rng = np.random.default_rng(0)
  environment = vector.make_vector(_ENVIRONMENT, _P, 0)
  tracker = observers.EpisodeTracker(_P)
  observation = environment.reset()
  # A mean epsilon of the default schedule: half-way down.
  steps = agent.config.epsilon_steps // 2
  actions = rng.integers(0, 2, _P).astype(np.int32)
  step = environment.step(actions)
  costs = {
    'acting': common.timed(
      lambda: agent.act(theta, observation[:, None], steps, rng), seconds
    ),
    'environment': common.timed(lambda: environment.step(actions), seconds),
    'episodes': common.timed(lambda: tracker.observe(step), seconds / 4),
  }
  environment.close()
  return costs


def measure_replay(agent: dqn.DQN, layout, seconds: float):
  """Writing and reading; also a batch for each U."""
  table = tables.uniform(
    'replay',
    max_size=agent.config.max_replay_size,
    min_size=1,
    signature=layout.signature(_P),
  )
  server = reverb.Server([table])
  client = server.localhost_client()
  adder = adders.PopulationAdder(
    client, 'replay', layout, agent.n_step, agent.gamma, _P
  )
  environment = vector.make_vector(_ENVIRONMENT, _P, 0)
  observation = environment.reset()
  actions = np.zeros(_P, np.int32)
  step = environment.step(actions)
  for _ in range(1000):
    adder.add(observation, actions, step)
  adder.flush()
  costs = {
    'replay write': common.timed(
      lambda: adder.add(observation, actions, step), seconds
    )
  }
  adder.flush()
  batches = {}
  for updates in _U:
    sampler = sampler_lib.ShardedSampler(
      [client.server_address],
      'replay',
      updates * agent.batch_size,
      signature=layout.signature(_P),
    )
    next(sampler)
    costs[f'sampling, U={updates}'] = common.timed(
      functools.partial(next, sampler), seconds
    )
    batches[updates] = next(sampler).data
    sampler.close()
  adder.close()
  environment.close()
  server.stop()
  return costs, batches


def measure_learner(
  agent: dqn.DQN, theta, layout, batches, seconds: float
) -> dict[str, Cost]:
  """One call of U updates, and the copy of the parameters after it."""
  costs = {}
  for updates, batch in batches.items():
    learner = learner_lib.TFLearner(
      agent,
      theta,
      [1e-4] * _P,
      pull_exchange.Pull(),
      feeds.Transitions(layout, agent.batch_size),
      updates_per_call=updates,
    )
    costs[f'learner call, U={updates}'] = common.timed(
      functools.partial(learner.step, batch), seconds
    )
    costs['parameters() copy'] = common.timed(learner.parameters, seconds / 4)
  return costs


def roofline(costs: dict[str, Cost], updates: int) -> tuple[list, float]:
  """Rows of the loop's parts per vector step, and their sum in us."""
  parts = [
    ('acting', 1.0),
    ('environment', 1.0),
    ('episodes', 1.0),
    ('replay write', 1.0),
    (f'sampling, U={updates}', 1 / updates),
    (f'learner call, U={updates}', 1 / updates),
    ('parameters() copy', 1 / updates),
  ]
  total = sum(costs[name]['wall_us'] * share for name, share in parts)
  rows = [
    (
      name,
      f'{costs[name]["wall_us"] * share:.0f}',
      f'{costs[name]["cpu_us"] * share:.0f}',
      f'{100 * costs[name]["wall_us"] * share / total:.0f} %',
    )
    for name, share in parts
  ]
  cpu = sum(costs[name]['cpu_us'] * share for name, share in parts)
  rows.append(('sum', f'{total:.0f}', f'{cpu:.0f}', '100 %'))
  return rows, cpu


def main() -> int:
  args = common.arguments(__doc__)
  seconds = common.choose(args, 0.3, 2.0, 4.0)
  common.warn_if_busy()
  spec = environments.spec(_ENVIRONMENT)
  agent = dqn.DQN(dqn.Config(), spec)
  costs = measure_rpc(agent, seconds / 2)
  # As in an explorer node.
  tf.config.threading.set_intra_op_parallelism_threads(1)
  tf.config.threading.set_inter_op_parallelism_threads(1)
  theta = np.stack([agent.initial(seed) for seed in range(_P)])
  layout = packing.TransitionLayout(
    spec.observation_shape, spec.action_shape, spec.discrete
  )
  costs.update(measure_acting(agent, theta, seconds))
  replay_costs, batches = measure_replay(agent, layout, seconds)
  costs.update(replay_costs)
  costs.update(measure_learner(agent, theta, layout, batches, seconds))
  rows = []
  for name, cost in costs.items():
    updates = next((u for u in _U if name.endswith(f'U={u}')), None)
    per_member = cost['wall_us'] / ((updates or 1) * _P)
    rows.append(
      (
        name,
        f'{cost["wall_us"]:,.0f}',
        f'{cost["cpu_us"]:,.0f}',
        '-' if name.startswith('RPC') else f'{per_member:,.1f}',
      )
    )
  found = [
    common.table(
      (
        'one call of',
        'wall, us',
        'CPU, us',
        'wall per member and update, us',
      ),
      rows,
    )
  ]
  notes = []
  for updates in _U:
    parts, cpu = roofline(costs, updates)
    found.append(
      common.table(
        (
          f'per vector step, {updates} updates in a call',
          'wall, us',
          'CPU, us',
          'share of wall',
        ),
        parts,
      )
    )
    learner = costs[f'learner call, U={updates}']['wall_us'] / updates
    notes.append(
      f'U={updates}: {_CORES} cores have CPU for at most '
      f'{_CORES * _P * 1e6 / cpu:,.0f} member-updates/s with everything, and '
      f'{_CORES * _P * 1e6 / learner:,.0f} if they did nothing but learner '
      'calls.'
    )
  common.publish(
    common.Result(
      f'What the parts cost (P = {_P}, batch {agent.batch_size}, U updates in '
      'a call)',
      found,
      notes,
      {'costs_us': costs},
    ),
    args,
  )
  return 0


if __name__ == '__main__':
  sys.exit(main())
