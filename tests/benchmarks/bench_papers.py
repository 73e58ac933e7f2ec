"""Gossip, A3C, Gorila and evolution strategies beside their peers, CartPole-v1.

64 x 64 throughout. Ours as a user starts it, and the peers, in turns on one
machine; rates are those of a window after the first update, with learning:
- GALA-A2C, 5 steps of 16 environments for each worker: 1, 2 and 4 workers,
  PALA-A2C with 2, and A3C with 4 workers, of 4 environments as its preset has,
  of 16 and of 64; beside them Stable-Baselines3's A2C with 16 and with 64, and
  GALA's own agent, 2 learners x 16, if its repository is in .peers/gala
  (see peers/gala_a2c.py).
- Gorila DQN, 4 bundles and 4 shards, batch 32, as many gradients as it can make
  (a gradient for each step of a bundle); beside it Stable-Baselines3's DQN,
  batch 32 and an update for each step.
- Evolution strategies, 64 episodes to a generation, two workers; beside them
  EvoTorch's PGPE, in one process and with two of Ray.
"""

from __future__ import annotations

from collections.abc import Callable
import statistics
import sys
from typing import Any

from tests.benchmarks import common
from tests.benchmarks.peers import run as peers

# Environment steps/s, all compiled, on another machine with two cores.
_EVOSAX = 1_830_000.0
_STEPS, _UPDATES, _EPISODES = (
  'own_actor_steps',
  'own_learner_steps',
  'own_episodes',
)
_SB3_A2C, _SB3_DQN = 'Stable-Baselines3 A2C', 'Stable-Baselines3 DQN'
_SB3_MANY = 'Stable-Baselines3 A2C, 64'
_GALA = "GALA's own agent, 2 x 16"
_EVOTORCH, _RAY = 'EvoTorch PGPE', 'EvoTorch PGPE, 2 processes'
_GORILA, _ES = 'Murmuration Gorila', 'Murmuration ES'
_PALA = 'Murmuration PALA, 2 x 16'
_A3C, _WIDE = 'Murmuration A3C, 4 x 4', 'Murmuration A3C, 4 x 16'
_WIDEST = 'Murmuration A3C, 4 x 64'
Numbers = dict[str, Any]


def gossip(workers: int) -> str:
  return f'Murmuration GALA, {workers} x 16'


def measure(kind: str, num_nodes: int, window_s: float, *flags: str) -> Numbers:
  """Rates of one of our runs.

  Args:
    kind: of the rows of the nodes that count steps and updates.
    num_nodes: of these.
    window_s: seconds of the window.
    *flags: of run.py.
  """
  kinds = {_STEPS: kind, _UPDATES: kind, _EPISODES: kind}
  with common.swarm_run(
    *flags, *common.NO_END, common.NO_TARGET, script='run.py'
  ) as run:
    found = common.window_rates(
      run, kinds, common.SETTLE_S, window_s, num_nodes
    )
    first = run.learning()[0]['unix_time_s'] - run.started_at
    row = run.rows(kind)[-1]
  more = {}
  if 'gradients_sent' in row:
    more['rejected'] = row['gradients_rejected'] / row['gradients_sent']
  return {
    'env_steps_per_s': found[_STEPS],
    'updates_per_s': found[_UPDATES],
    'episodes_per_s': found[_EPISODES],
    'first_update_s': first,
    **more,
  }


def measure_gossip(
  workers: int, window_s: float, agent: str = 'gala_a2c'
) -> Numbers:
  return measure(
    'node_worker',
    workers,
    window_s,
    f'{agent}:cartpole',
    f'--config.gossip.num_learners={workers}',
    '--config.agent.batch_size=16',
  )


def measure_a3c(envs: int, window_s: float) -> Numbers:
  return measure(
    'node_learner',
    4,
    window_s,
    'a3c:cartpole',
    '--config.agent.anneal_env_steps=None',
    f'--config.agent.batch_size={envs}',
  )


def measure_gorila(window_s: float) -> Numbers:
  return measure(
    'node_learner',
    4,
    window_s,
    'gorila_dqn:cartpole',
    '--config.pace.samples_per_insert=32',
  )


def measure_es(window_s: float) -> Numbers:
  return measure(
    'node_master',
    1,
    window_s,
    'es_mlp:cartpole',
    '--config.agent.hidden_sizes=(64, 64)',
    '--config.evolution.population=32',
    '--config.evolution.pairs_per_task=16',
    '--config.evolution.envs_per_worker=32',
  )


def systems(window_s: float) -> dict[str, Callable[[], Numbers | None]]:
  """Label to what measures it, in the order in which they take turns."""
  dqn = {'algorithm': 'dqn', 'batch_size': 32, 'train_freq': 1}
  return {
    gossip(1): lambda: measure_gossip(1, window_s),
    gossip(2): lambda: measure_gossip(2, window_s),
    gossip(4): lambda: measure_gossip(4, window_s),
    _PALA: lambda: measure_gossip(2, window_s, 'pala_a2c'),
    _A3C: lambda: measure_a3c(4, window_s),
    _WIDE: lambda: measure_a3c(16, window_s),
    _WIDEST: lambda: measure_a3c(64, window_s),
    _SB3_A2C: lambda: peers.measure('sb3', algorithm='a2c', seconds=window_s),
    _SB3_MANY: lambda: peers.measure(
      'sb3', algorithm='a2c', envs=64, seconds=window_s
    ),
    _GALA: lambda: peers.measure('gala', seconds=window_s),
    _GORILA: lambda: measure_gorila(window_s),
    _SB3_DQN: lambda: peers.measure('sb3', seconds=window_s, **dqn),
    _ES: lambda: measure_es(window_s),
    _EVOTORCH: lambda: peers.measure('evotorch', seconds=window_s),
    _RAY: lambda: peers.measure('evotorch', actors=2, seconds=window_s),
  }


def main() -> int:
  args = common.arguments(
    __doc__,
    lambda parser: parser.add_argument(
      '--only', default='', help='systems whose label contains this'
    ),
  )
  repetitions = common.choose(args, 1, 2, 3)
  window_s = common.choose(args, 5.0, 12.0, 20.0)
  common.warn_if_busy()
  chosen = {
    name: measure
    for name, measure in systems(window_s).items()
    if args.only in name
  }
  found = common.in_turns(chosen, repetitions)
  common.publish(_result(found, window_s), args)
  return 0


def _compared(
  found: dict[str, list[Numbers]], key: str
) -> Callable[[str, str, float], list[str]]:
  """Sentences with the ratio of medians; none where one was left out."""

  def compare(ours: str, peer: str, needed: float) -> list[str]:
    if not (ours in found and peer in found):
      return []
    mine, theirs = (
      statistics.median(run[key] for run in found[name])
      for name in (ours, peer)
    )
    what = key.removesuffix('_per_s').replace('_', ' ')
    return [
      f'{ours}: {mine / theirs:.1f} times the {what} of {peer}; needed '
      f'{needed:g}.'
    ]

  return compare


def _result(found: dict[str, list[Numbers]], window_s: float) -> common.Result:
  table, medians = common.rates_table(
    found,
    {
      'episodes/s': lambda runs: (
        ' '.join(f'{run["episodes_per_s"]:,.0f}' for run in runs)
        if 'episodes_per_s' in runs[0]
        else '-'
      ),
    },
  )
  steps, updates = (
    _compared(found, key) for key in ('env_steps_per_s', 'updates_per_s')
  )
  episodes = _compared(found, 'episodes_per_s')
  notes = [
    *steps(gossip(2), gossip(1), 1.6),
    *steps(gossip(2), _GALA, 10),
    *steps(gossip(4), _GALA, 10),
    *steps(gossip(2), _SB3_A2C, 10),
    *steps(gossip(4), _SB3_A2C, 10),
    *steps(_PALA, gossip(1), 1.6),
    *steps(_PALA, _SB3_A2C, 10),
    *steps(_A3C, _SB3_A2C, 10),
    *steps(_WIDE, _SB3_A2C, 10),
    *steps(_WIDEST, _SB3_MANY, 10),
    *updates(_GORILA, _SB3_DQN, 5),
    *steps(_ES, _EVOTORCH, 50),
    *episodes(_ES, _EVOTORCH, 50),
    *steps(_ES, _RAY, 50),
    *episodes(_ES, _RAY, 50),
  ]
  for workers in (2, 4):
    if gossip(workers) in medians:
      median = medians[gossip(workers)]
      notes.append(f'{gossip(workers)}: {median:,.0f} steps/s; aim 100,000.')
  if _ES in medians:
    notes.append(
      f'{_ES}: {medians[_ES] / _EVOSAX:.2f} of evosax (measured elsewhere, all '
      'compiled); aim 0.25.'
    )
  if _GORILA in found:
    rejected = statistics.median(run['rejected'] for run in found[_GORILA])
    notes.append(
      f'{_GORILA}: updates are gradients of all bundles, of which '
      f'{100 * rejected:.1f} % (one bundle) came too late and were rejected.'
    )
  notes.append(
    f'{common.window_note(window_s)} Episodes of evolution strategies grow '
    'while they learn, for ours and for EvoTorch alike.'
  )
  return common.Result(
    'Gossip, A3C, Gorila and evolution strategies beside their peers',
    [table],
    notes,
    {'runs': found},
  )


if __name__ == '__main__':
  sys.exit(main())
