"""IMPALA beside its peers: environment steps per second, with learning.

CartPole-v1, 64 x 64, unrolls of 20 steps, each learned from once: ours as a
user starts it (actors, learner with its queue, evaluator, counter), dm-acme's
IMPALA in one process and as a program, and Sample Factory's APPO (with EnvPool,
batched and asynchronous, 2 x 2 x 128), in turns on the same machine. Rates are
those of a window after the first update. Then ours with one, two and three
actors: where more actors stop to help.
"""

from __future__ import annotations

from collections.abc import Callable
import sys
from typing import Any

from tests.benchmarks import common
from tests.benchmarks.peers import run as peers

_UNROLL, _BATCH = 20, 8
_NEEDED = 50_000  # environment steps/s
_ACME, _SAMPLE_FACTORY = 'dm-acme IMPALA', 'Sample Factory APPO'
# Sample Factory with EnvPool: a peer to be told, not a goal that was set.
_RATIOS = {_ACME: '; needed 100', _SAMPLE_FACTORY: ''}


def sized(actors: int, envs: int, updates: int = 8) -> tuple[str, ...]:
  """The preset, without an end, with other sizes."""
  return (
    'impala:cartpole',
    '--config.agent.anneal_env_steps=None',
    f'--config.agent.unroll_length={_UNROLL}',
    f'--config.agent.batch_size={_BATCH}',
    f'--config.actors.num_actors={actors}',
    f'--config.actors.envs_per_actor={envs}',
    # New parameters are asked for before each unroll.
    f'--config.actors.update_period={_UNROLL * envs}',
    f'--config.run.updates_per_call={updates}',
    *common.NO_END,
    common.NO_TARGET,
  )


_PRESET = sized(2, 32)
_WIDE = sized(2, 64)
_SCALING = {count: sized(count, 64) for count in (1, 2, 3)}


def measure(
  flags: tuple[str, ...], window_s: float, batch_size: int = _BATCH
) -> dict[str, float]:
  """Rates of one of our runs, and the lag of its policy.

  Args:
    flags: of run.py; unrolls must be of 20 steps.
    window_s: seconds.
    batch_size: sequences of an update, as the flags have it.

  Raises:
    RuntimeError: most of what was acted was not learned from.
  """

  def lag(run: common.Run, rates: dict[str, float]) -> dict[str, float]:
    updates, steps = rates['updates_per_s'], rates['env_steps_per_s']
    learned = updates * _UNROLL * batch_size / steps
    if not 0.8 < learned < 1.2:
      raise RuntimeError(
        f'{learned:.2f} of the steps that were acted were learned from in the '
        'window, where each should be once: take a longer one.'
      )
    row = run.rows('node_learner')[-1]
    return {name: row[name] for name in ('policy_lag', 'policy_lag_max')}

  return common.actors_and_learner(flags, window_s, lag)


def main() -> int:
  args = common.arguments(__doc__)
  repetitions = common.choose(args, 1, 2, 3)
  window_s = common.choose(args, 5.0, 15.0, 20.0)
  common.warn_if_busy()
  systems: dict[str, Callable[[], dict[str, Any] | None]] = {
    'Murmuration, preset (2 x 32)': lambda: measure(_PRESET, window_s),
    'Murmuration, wide (2 x 64)': lambda: measure(_WIDE, window_s),
    _ACME: lambda: peers.measure('acme_impala', seconds=window_s),
    f'{_ACME}, 2 actors': lambda: peers.measure(
      'acme_impala', seconds=window_s, actors=2
    ),
    _SAMPLE_FACTORY: lambda: peers.measure('sample_factory', seconds=window_s),
    'Murmuration, 1 actor x 64': lambda: measure(_SCALING[1], window_s),
    'Murmuration, 3 actors x 64': lambda: measure(_SCALING[3], window_s),
  }
  found = common.in_turns(systems, repetitions)
  common.publish(_result(found, window_s), args)
  return 0


def _result(
  found: dict[str, list[dict[str, Any]]], window_s: float
) -> common.Result:
  rates, medians = common.rates_table(
    found,
    {
      'batch': lambda runs: runs[0].get('batch_size', _BATCH),
      'largest lag': lambda runs: (
        ' '.join(f'{run["policy_lag_max"]:.0f}' for run in runs)
        if 'policy_lag_max' in runs[0]
        else '-'
      ),
    },
  )
  notes = []
  for name in ('Murmuration, preset (2 x 32)', 'Murmuration, wide (2 x 64)'):
    notes.append(
      f'{name}: median {medians[name]:,.0f} environment steps/s; needed '
      f'{_NEEDED:,}.'
    )
    notes += [
      f'{medians[name] / medians[peer]:.1f} times {peer}{needed}.'
      for peer, needed in _RATIOS.items()
      if peer in medians
    ]
  one, two, three = (
    medians[name]
    for name in (
      'Murmuration, 1 actor x 64',
      'Murmuration, wide (2 x 64)',
      'Murmuration, 3 actors x 64',
    )
  )
  notes += [
    f'Two actors are {two / one:.2f} times one, three {three / one:.2f} times.',
    common.window_note(window_s),
    'Batch: sequences of 20 steps; Sample Factory: steps. Lag: learner steps.',
  ]
  return common.Result(
    'IMPALA beside its peers, CartPole-v1, 64 x 64, T = 20',
    [rates],
    notes,
    {'runs': found},
  )


if __name__ == '__main__':
  sys.exit(main())
