"""Central inference beside local acting: environment steps/s, with learning.

IMPALA on CartPole-v1, 64 x 64, two actors with 32 environments each, unrolls of
20 steps. The same run with a policy in each actor and with one on a server, in
turns on the same machine. Rates are those of a window after the first update.
"""

from __future__ import annotations

import functools
import statistics
import sys

from tests.benchmarks import common

_UNROLL, _BATCH, _ACTORS, _ENVS = 20, 8, 2, 32
_SERVED = ('mean_batch', 'pass_ms', 'wait_ms')
_PRESET = (
  'impala:cartpole',
  '--config.agent.anneal_env_steps=None',
  f'--config.agent.unroll_length={_UNROLL}',
  f'--config.agent.batch_size={_BATCH}',
  f'--config.actors.num_actors={_ACTORS}',
  f'--config.actors.envs_per_actor={_ENVS}',
  f'--config.actors.update_period={_UNROLL * _ENVS}',
  *common.NO_END,
  common.NO_TARGET,
)
_LOCAL, _CENTRAL = 'local', 'central'
_SYSTEMS = {_LOCAL: (), _CENTRAL: ('--config.actors.inference=central',)}


def measure(flags: tuple[str, ...], window_s: float) -> dict[str, float]:
  """Rates of one run, and what its server says of itself if it has one."""

  def served(run: common.Run, rates: dict[str, float]) -> dict[str, float]:
    del rates
    found = {'policy_lag': run.rows('node_learner')[-1]['policy_lag']}
    rows = [row for row in run.rows('node_inference') if 'mean_batch' in row]
    for name in _SERVED if rows else ():
      found[name] = statistics.median(row[name] for row in rows)
    return found

  return common.actors_and_learner((*_PRESET, *flags), window_s, served)


def main() -> int:
  args = common.arguments(__doc__)
  repetitions = common.choose(args, 1, 2, 3)
  window_s = common.choose(args, 5.0, 15.0, 20.0)
  common.warn_if_busy()
  found = common.in_turns(
    {
      name: functools.partial(measure, flags, window_s)
      for name, flags in _SYSTEMS.items()
    },
    repetitions,
  )
  common.publish(_result(found, window_s), args)
  return 0


def _result(
  found: dict[str, list[dict[str, float]]], window_s: float
) -> common.Result:
  def median(name: str, key: str) -> float:
    return statistics.median(run[key] for run in found[name])

  rows = [
    (
      name,
      ' '.join(f'{run["env_steps_per_s"]:,.0f}' for run in runs),
      ' '.join(f'{run["updates_per_s"]:,.1f}' for run in runs),
      f'{median(name, "policy_lag"):.1f}',
      *(
        f'{median(name, key):.{digits}f}' if key in runs[0] else '-'
        for key, digits in zip(_SERVED, (1, 2, 2))
      ),
    )
    for name, runs in found.items()
  ]
  # Of runs that followed one another: the machine is the same for both.
  share = statistics.median(
    central['env_steps_per_s'] / local['env_steps_per_s']
    for central, local in zip(found[_CENTRAL], found[_LOCAL])
  )
  notes = [
    f'{_CENTRAL}: {share:.0%} of local acting.',
    'Batch: environments in one forward pass. Pass, and mean time from request '
    'to reply: milliseconds, on the server.',
    common.window_note(window_s),
  ]
  return common.Result(
    'Central inference beside local acting, IMPALA on CartPole-v1, 2 x 32',
    [
      common.table(
        (
          'acting', 'env steps/s', 'updates/s', 'mean lag', 'batch',
          'pass, ms', 'request, ms',
        ),
        rows,
      )
    ],
    notes,
    {'runs': found, 'share': share},
  )  # fmt: skip


if __name__ == '__main__':
  sys.exit(main())
