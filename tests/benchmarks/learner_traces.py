"""Fixed-seed traces of the learner: what a reorganisation must not change.

  python tests/benchmarks/learner_traces.py record before.npz
  python tests/benchmarks/learner_traces.py compare before.npz [--only=ppo]

A trace is theta after the first call and after 200 updates, on samples from a
seed, of each agent, P = 1 and P = 4, and each exchange. Record before a change
to the learner and compare after it, on the same machine and with the same
TensorFlow. Where the first call agrees and the end does not, a rounding has
grown; where the first differs, an equation has changed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
import pathlib
import sys
from typing import Any

import numpy as np
from scipy import stats
import tensorflow as tf

from murmuration.agents import a2c
from murmuration.agents import d4pg
from murmuration.agents import ddpg
from murmuration.agents import dqn
from murmuration.agents import feeds
from murmuration.agents import impala
from murmuration.agents import learner as learner_lib
from murmuration.agents import ppo

# One module under three names: if it is divided, only these lines change.
from murmuration.agents.exchange import average
from murmuration.agents.exchange import local
from murmuration.agents.exchange import pull
from murmuration.environment_loops import environments
from murmuration.replay import blocks
from murmuration.replay import packing

UPDATES = 200
UPDATES_PER_CALL = 4  # where the agent does not say
ENVIRONMENTS = 4  # of one member, in a block
TOLERANCE = 1e-6  # of the largest |theta|
# Of the members; for an actor-critic the critic's.
RATES = (1e-3, 5e-4, 2e-3, 7e-4)
# c of the pull, on both sides of c_max. A strong one forgets what was before.
WEIGHTS = (0.01, 0.003, 0.1, 0.05)
C_MAX = 0.05
STAR_SEED = 99
SIGMA = 0.7  # of the Gaussian policies' first actions: of ratios near 1

DISCRETE = environments.Spec('Discrete-v0', (3,), 2)
CONTINUOUS = environments.Spec(
  'Continuous-v0', (3,), None, (2,), (-1.0,) * 2, (1.0,) * 2
)
_MLP = {'hidden_sizes': (16,)}
_ACTOR_CRITIC = {'policy_sizes': (16,), 'critic_sizes': (16,), 'batch_size': 8}
_SHUFFLE_SEED = 1707  # of PPO's minibatches
# A rollout is 8 updates.
_PPO = {
  **_MLP,
  'rollout_steps': 64,
  'unroll_length': 8,
  'batch_size': 32,
  'epochs': 4,
}
# Name to module, class, environment and config. Options beyond the sizes make
# the learner use all it has: statistics, weights of prioritized samples,
# delays, schedules, members that stop.
AGENTS: dict[str, tuple[Any, str, environments.Spec, dict[str, Any]]] = {
  'dqn': (
    dqn,
    'DQN',
    DISCRETE,
    {**_MLP, 'batch_size': 8, 'double': False, 'target_update_period': 10},
  ),
  'apex_dqn': (
    dqn,
    'DQN',
    DISCRETE,
    {
      **_MLP,
      'batch_size': 8,
      'double': True,
      'prioritized': True,
      'max_gradient_norm': 40.0,
      'target_update_period': 10,
      'anneal_after': 50,
      'anneal_updates': 300,
    },
  ),
  'ddpg': (ddpg, 'DDPG', CONTINUOUS, _ACTOR_CRITIC),
  'td3': (
    ddpg,
    'DDPG',
    CONTINUOUS,
    {
      **_ACTOR_CRITIC,
      'twin_critics': True,
      'policy_delay': 2,
      'target_update_period': 2,
      'smoothing_sigma': 0.2,
      'normalize_observations': True,
    },
  ),
  'd4pg': (
    d4pg,
    'D4PG',
    CONTINUOUS,
    {
      **_ACTOR_CRITIC,
      'target_update_period': 10,
      'prioritized': True,
      # The largest priority is part of theta; it stays near the weights' size.
      'num_atoms': 21,
      'v_min': -5.0,
      'v_max': 5.0,
    },
  ),
  'impala': (
    impala,
    'IMPALA',
    DISCRETE,
    # Two blocks to an update.
    {**_MLP, 'unroll_length': 5, 'batch_size': 8, 'anneal_env_steps': 16_000},
  ),
  'impass': (
    impala,
    'IMPALA',
    CONTINUOUS,
    # Two updates to a block.
    {
      **_MLP,
      'unroll_length': 8,
      'batch_size': 2,
      'stack': 4,
      'shared_torso': False,
      'trace_lambda': 0.95,
      'max_gradient_norm': 1.0,
      'normalize_advantages': True,
    },
  ),
  'a2c': (a2c, 'A2C', DISCRETE, {**_MLP, 'batch_size': 4}),
  'ppo': (ppo, 'PPO', DISCRETE, _PPO),
  'ppo_continuous': (
    ppo,
    'PPO',
    CONTINUOUS,
    {
      **_PPO,
      'stack': 2,
      'normalize_observations': True,
      'target_kl': 0.025,
      'entropy_cost': 0.0,
    },
  ),
}
# Exchange and P.
CASES = (
  ('local', 1),
  ('local', 4),
  ('average', 1),
  ('pull', 1),
  ('pull', 4),
)
# What depends on no agent: one is enough.
MORE_CASES = (('dqn', 'pull_period', 4),)


PULLS: dict[str, dict[str, Any]] = {
  'pull': {},
  'pull_period': {'period': 3},
}


def make_exchange(name: str, size: int) -> Any:
  """An exchange by its name in CASES, for theta of this size."""
  if name == 'local':
    return local.Local()
  if name == 'average':
    # The second learner's gradient, always the same.
    other = np.random.default_rng(1).normal(0, 1e-2, (1, size))

    def reduce(share: average.Share) -> average.Share:
      mean = (share.vector + other.astype(np.float32)) / 2
      return share._replace(vector=mean)

    return average.Average(reduce)
  return pull.Pull(C_MAX, **PULLS[name])


def transitions(
  layout: packing.TransitionLayout,
  spec: environments.Spec,
  shape: tuple[int, int],
  rng: np.random.Generator,
) -> tf.Tensor:
  """Packed transitions [U * B, P, W]: some ended, some places without one."""
  action: np.ndarray
  if spec.discrete:
    action = rng.integers(0, spec.num_actions, shape)
  else:
    action = rng.uniform(-1, 1, (*shape, *spec.action_shape))
  return tf.constant(
    layout.pack(
      rng.normal(size=(*shape, *spec.observation_shape)),
      action,
      rng.normal(size=shape),
      rng.choice([0.0, 0.9, 0.99], shape),
      rng.normal(size=(*shape, *spec.observation_shape)),
      rng.random(shape) < 0.9,
    )
  )


def block(
  layout: blocks.BlockLayout,
  spec: environments.Spec,
  version: int,
  rng: np.random.Generator,
) -> blocks.Block:
  """Both kinds of end, steps that are no experience, ratios on both sides."""
  made = layout.zeros()
  for name in ('observation', 'final_observation', 'reward', 'core'):
    column = getattr(made, name)
    column[...] = rng.normal(size=column.shape)
  if spec.discrete:
    made.action[...] = rng.integers(0, spec.num_actions, made.action.shape)
    made.behaviour[...] = np.log(rng.uniform(0.2, 0.9, made.behaviour.shape))
  else:
    made.action[...] = rng.normal(0, SIGMA, made.action.shape)
    log_mu = stats.norm.logpdf(made.action, 0, SIGMA).sum(-1, keepdims=True)
    made.behaviour[...] = log_mu + rng.normal(0, 0.2, log_mu.shape)
  made.discount[...] = 1.0
  # By environment: an end of its own, a time limit, a step that was lost, none.
  kind = np.arange(layout.num_envs) % 4
  made.last[1, kind == 0] = True
  made.discount[1, kind == 0] = 0.0
  made.last[2, (kind == 1) | (kind == 2)] = True
  made.valid[2, kind == 2] = False
  made.version[...] = version
  return made


def trace(name: str, exchange_name: str, members: int) -> np.ndarray:
  """Theta after the first call and after all of them, [2, P, D]."""
  module, class_name, spec, options = AGENTS[name]
  agent = getattr(module, class_name)(module.Config(**options), spec)
  updates = agent.updates_per_call or UPDATES_PER_CALL
  exchange = make_exchange(exchange_name, agent.layout.size)
  rng = np.random.default_rng(0)
  feed: Any
  if agent.unroll_length is None:
    layout = packing.TransitionLayout(
      spec.observation_shape, spec.action_shape, spec.discrete
    )
    feed = feeds.Transitions(layout, agent.batch_size)

    def sample(made: int) -> Any:
      del made
      shape = (updates * agent.batch_size, members)
      return transitions(layout, spec, shape, rng)
  else:
    num_envs = ENVIRONMENTS * members
    feed = agent.feed(num_envs, seed=_SHUFFLE_SEED)
    block_layout = agent.block_layout(num_envs)

    def sample(made: int) -> Any:
      number = feed.num_blocks(updates, members)
      columns = zip(
        *(block(block_layout, spec, made, rng) for _ in range(number))
      )
      return blocks.Block(*(tf.constant(np.stack(c)) for c in columns))

  learner = learner_lib.TFLearner(
    agent,
    np.stack([agent.initial(seed) for seed in range(members)]),
    RATES[:members],
    exchange,
    feed,
    updates,
    seed=7,
  )
  if isinstance(exchange, pull.Pull):
    exchange.set_star(agent.initial(STAR_SEED), np.array(WEIGHTS[:members]))
  prioritized = agent.priority_exponent is not None and members == 1
  found = []
  for made in range(0, UPDATES, updates):
    probabilities = None
    if prioritized:
      draws = rng.uniform(1e-3, 1e-1, updates * agent.batch_size)
      probabilities = tf.constant(draws, tf.float32)
    learner.step(sample(made), probabilities)
    found.append(learner.parameters())
  result = np.stack([found[0], found[-1]])
  if not np.isfinite(result).all():
    raise RuntimeError(f'{name} with {exchange_name} went beyond all numbers.')
  return result


def traces(only: str) -> Iterator[tuple[str, np.ndarray]]:
  """Name and theta of each trace whose name holds `only`."""
  cases = [(agent, *case) for agent in AGENTS for case in CASES]
  for case in (*cases, *MORE_CASES):
    agent, exchange, members = case
    name = f'{agent}/{exchange}/P{members}'
    if only in name:
      yield name, trace(agent, exchange, members)


def compare(before: dict[str, np.ndarray], only: str) -> int:
  """Prints the differences of each trace; how many are too large."""
  failed, seen = 0, set()
  for name, after in traces(only):
    seen.add(name)
    if name not in before or before[name].shape != after.shape:
      print(f'{name:32} was not recorded with shape {after.shape}', flush=True)
      failed += 1
      continue
    largest = np.abs(before[name]).max()
    first, end = np.abs(after - before[name]).max(axis=(1, 2))
    bad = end > TOLERANCE * largest or first > TOLERANCE * largest
    failed += bad
    print(
      f'{name:32} after the first call {first:.1e}, at the end {end:.1e}, '
      f'relative {end / largest:.1e}{"  TOO LARGE" if bad else ""}',
      flush=True,
    )
  missing = sorted(n for n in before if only in n and n not in seen)
  for name in missing:
    print(f'{name:32} was recorded and is no trace any more')
  print(f'{len(seen) - failed} of {len(seen) + len(missing)} traces agree')
  return failed + len(missing)


def main() -> int:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('command', choices=('record', 'compare'))
  parser.add_argument('file', type=pathlib.Path, help='an .npz file')
  parser.add_argument('--only', default='', help="part of the traces' names")
  args = parser.parse_args()
  # The order of a sum must not depend on how many threads share it.
  tf.config.threading.set_intra_op_parallelism_threads(1)
  tf.config.threading.set_inter_op_parallelism_threads(1)
  if args.command == 'record':
    recorded = {}
    for name, theta in traces(args.only):
      recorded[name] = theta
      moved = np.abs(theta[1] - theta[0]).max()
      print(f'{name:32} {theta.shape} moved by {moved:.3g}', flush=True)
    np.savez(args.file, **recorded)
    return 0
  with np.load(args.file) as file:
    return int(compare(dict(file), args.only) > 0)


if __name__ == '__main__':
  sys.exit(main())
