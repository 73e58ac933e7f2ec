"""Ape-X DQN beside its peers: environment steps and updates per second.

CartPole-v1, 64 x 64, batch 256, 32 samples per insert: ours as a user starts it
(two actors, learner with replay, evaluator, counter), with the preset's two
transitions to an item of replay, with one and with 8, dm-acme's DQN and
Stable-Baselines3's DQN, in turns on the same machine. Then ours without a
ratio, 8 to an item. Rates are those of a window after the first update; acting,
inserting, sampling, learning, priorities and parameters are all in them.
"""

from __future__ import annotations

import pathlib
import sys
from typing import Any

sys.path[0] = str(pathlib.Path(__file__).resolve().parents[2])

from tests.benchmarks import common  # noqa: E402
from tests.benchmarks.peers import run as peers  # noqa: E402

_SETTLE_S = 3.0
_KINDS = {'own_actor_steps': 'node_actor', 'own_learner_steps': 'node_learner'}
_COMMON = (
  # 32 learner steps in a TensorFlow call: an option of every run.
  '--config.run.updates_per_call=32',
  '--config.agent.batch_size=256',
  '--config.run.steps_per_agent=1000000000',
  '--config.run.wall_clock_s=600',
)
_RATIO = (*_COMMON, '--config.pace.samples_per_insert=32')
_FREE = (
  *_COMMON,
  '--config.pace.samples_per_insert=None',
  '--config.actors.envs_per_actor=64',
  '--config.actors.update_period=4096',
  '--config.actors.transitions_per_item=8',
)
_OURS = 'Murmuration Ape-X'
_SHARED = f'{_OURS}, 8 to an item'
_FREELY = f'{_OURS}, 8 to an item, free-running'


def measure(flags: tuple[str, ...], window_s: float) -> dict[str, float]:
  """Rates of one of our runs."""
  with common.swarm_run('apex_dqn', *flags, script='run.py') as run:
    found = common.window_rates(run, _KINDS, _SETTLE_S, window_s)
    first = run.learning()[0]['unix_time_s'] - run.started_at
  return {
    'env_steps_per_s': found['own_actor_steps'],
    'updates_per_s': found['own_learner_steps'],
    'first_update_s': first,
  }


def main() -> int:
  args = common.arguments(__doc__)
  repetitions = common.choose(args, 1, 2, 3)
  window_s = common.choose(args, 5.0, 15.0, 20.0)
  common.warn_if_busy()
  found: dict[str, list[dict[str, Any]]] = {}

  def note(name: str, numbers: dict[str, Any] | None) -> None:
    if numbers is not None:
      found.setdefault(name, []).append(numbers)
      print(f'{name}: {numbers["env_steps_per_s"]:,.0f} steps/s', flush=True)

  for _ in range(repetitions):
    note(_OURS, measure(_RATIO, window_s))
    for count in (1, 8):
      flag = f'--config.actors.transitions_per_item={count}'
      name = f'{_OURS}, {count} to an item'
      note(name, measure((*_RATIO, flag), window_s))
    note('dm-acme DQN', peers.measure('acme_dqn', seconds=window_s))
    note('Stable-Baselines3 DQN', peers.measure('sb3', seconds=window_s))
    note(_FREELY, measure(_FREE, window_s))
  rates, medians = common.rates_table(found)
  notes = [
    f'{name}: {medians[name] / medians[peer]:.1f} times the environment steps '
    f'of {peer}; needed {needed}.'
    for name in (_OURS, _SHARED)
    for peer, needed in (('dm-acme DQN', 10), ('Stable-Baselines3 DQN', 1.5))
    if peer in medians
  ]
  free = medians[_FREELY]
  notes += [
    f'Free-running: median {free:,.0f} environment steps/s; needed 30,000.',
    f'Window: {window_s:g} s, from {_SETTLE_S:g} s after the first update.',
    'SB3: one torch thread, train_freq 8, one gradient step of 256.',
  ]
  common.publish(
    common.Result(
      'Ape-X DQN beside its peers, CartPole-v1, 32 samples per insert',
      [rates],
      notes,
      {'runs': found},
    ),
    args,
  )
  return 0


if __name__ == '__main__':
  sys.exit(main())
