"""Ape-X DQN beside its peers: environment steps and updates per second.

CartPole-v1, 64 x 64, batch 256, 32 samples per insert: ours as a user starts it
(two actors, learner with replay, evaluator, counter), with the preset's two
transitions to an item of replay, with one and with 8, dm-acme's DQN and
Stable-Baselines3's DQN, in turns on the same machine. Then ours without a
ratio, 8 to an item. Rates are those of a window after the first update; acting,
inserting, sampling, learning, priorities and parameters are all in them.
"""

from __future__ import annotations

from collections.abc import Callable
import functools
import sys
from typing import Any

from tests.benchmarks import common
from tests.benchmarks.peers import run as peers

_COMMON = (
  'apex_dqn',
  # 32 learner steps in a TensorFlow call: an option of every run.
  '--config.run.updates_per_call=32',
  '--config.agent.batch_size=256',
  *common.NO_END,
)
# As the preset, without an end, with 32 samples per insert.
RATIO = (*_COMMON, '--config.pace.samples_per_insert=32')
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


def main() -> int:
  args = common.arguments(__doc__)
  repetitions = common.choose(args, 1, 2, 3)
  window_s = common.choose(args, 5.0, 15.0, 20.0)
  common.warn_if_busy()
  flags = {
    _OURS: RATIO,
    **{
      f'{_OURS}, {count} to an item': (
        *RATIO, f'--config.actors.transitions_per_item={count}'
      )
      for count in (1, 8)
    },
  }  # fmt: skip
  systems: dict[str, Callable[[], dict[str, Any] | None]] = {
    name: functools.partial(common.actors_and_learner, own, window_s)
    for name, own in flags.items()
  }
  systems |= {
    name: functools.partial(peers.measure, peer, seconds=window_s)
    for name, peer in (
      ('dm-acme DQN', 'acme_dqn'), ('Stable-Baselines3 DQN', 'sb3')
    )
  }  # fmt: skip
  systems[_FREELY] = functools.partial(
    common.actors_and_learner, _FREE, window_s
  )
  found = common.in_turns(systems, repetitions)
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
    common.window_note(window_s),
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
