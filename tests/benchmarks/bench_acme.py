"""Acme's own agents in our actor_learner, beside Acme's own programs.

The same stock learner and networks, batch 256, 32 samples per insert, n = 5, in
turns on one machine: DQN on CartPole-v1 (64 x 64, prioritized) and D4PG on
Hopper-v5 (256 x 256, 51 atoms). Ours is a run as a user starts it: two actors,
learner with replay, evaluator, counter. Acme's is its one-process agent. Rates
are those of a window after the first update; acting, inserting, sampling and
learning are all in them.
"""

from __future__ import annotations

from collections.abc import Callable
import functools
import statistics
import sys
from typing import Any, NamedTuple

from tests.benchmarks import common
from tests.benchmarks.peers import run as peers

_BATCH, _RATIO = 256, 32
_COMMON = (
  f'--config.agent.batch_size={_BATCH}',
  '--config.agent.n_step=5',
  '--config.agent.min_replay_size=1000',
  f'--config.pace.samples_per_insert={_RATIO}',
  *common.NO_END,
)


class _Agent(NamedTuple):
  """A stock agent: the peer, and what run.py is given for the same."""

  task: str
  peer: str
  flags: tuple[str, ...]


_AGENTS = {
  'DQN': _Agent('CartPole-v1', 'acme_dqn', ('acme_dqn:cartpole',)),
  'D4PG': _Agent(
    'Hopper-v5',
    'acme_d4pg',
    (
      'acme_d4pg:hopper',
      '--config.agent.policy_sizes=(256,256)',
      '--config.agent.critic_sizes=(256,256)',
      '--config.agent.v_min=0.0',
      '--config.agent.v_max=400.0',
      '--config.agent.critic_learning_rate=1e-4',
    ),
  ),
}


def main() -> int:
  args = common.arguments(__doc__)
  repetitions = common.choose(args, 1, 2, 3)
  window_s = common.choose(args, 5.0, 15.0, 20.0)
  common.warn_if_busy()
  systems: dict[str, Callable[[], dict[str, Any] | None]] = {}
  for name, agent in _AGENTS.items():
    systems[f'{name}, our actor_learner'] = functools.partial(
      common.actors_and_learner, (*agent.flags, *_COMMON), window_s
    )
    systems[f"{name}, Acme's program"] = functools.partial(
      peers.measure,
      agent.peer,
      task=agent.task,
      batch_size=_BATCH,
      samples_per_insert=_RATIO,
      seconds=window_s,
    )
  found = common.in_turns(systems, repetitions, 'updates_per_s')
  rates, _ = common.rates_table(found)
  medians = {
    name: statistics.median(run['updates_per_s'] for run in runs)
    for name, runs in found.items()
  }
  notes = []
  for name in _AGENTS:
    ours = medians[f'{name}, our actor_learner']
    theirs = medians.get(f"{name}, Acme's program")
    if theirs is None:
      continue
    notes.append(
      f"Acme's {name}: {ours / theirs:.2f} times the updates of its own "
      'program.'
    )
  notes.append(
    f'{common.window_note(window_s)} '
    "Ours has one thread of TensorFlow in each node, Acme's as many as it "
    'takes.'
  )
  common.publish(
    common.Result(
      "Acme's own agents here and at home, 32 samples per insert",
      [rates],
      notes,
      {'runs': found},
    ),
    args,
  )
  return 0


if __name__ == '__main__':
  sys.exit(main())
