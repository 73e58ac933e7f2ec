"""Member-updates per second: population nodes against one member per process.

Both forms are the same 31 explorers, on the same machine, in turns; acting,
replay, star and evaluator run as always. A form is measured from a few
seconds after its last node made its first update. The rate of a node is what
its learner_steps grew by between its first and its last row of
metrics/node_explorer.jsonl in that window, over the time between these rows;
the rate of the swarm is the sum over nodes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from typing import NamedTuple

from tests.benchmarks import common

EXPLORERS = 31
_PER_NODE = 16
_SETTLE_S = 4.0  # after the last first update
_WALL_CLOCK_S = 400  # of a run that nobody stops
_KINDS = dict.fromkeys(
  ('own_learner_steps', 'own_actor_steps'), 'node_explorer'
)


class Compared(NamedTuple):
  """Both forms of one swarm.

  Attributes:
    table: every run.
    many: member-updates/s of the population form, one for each repetition.
    one: of one member per process.
    window: how it was measured, in a sentence.
  """

  table: str
  many: list[float]
  one: list[float]
  window: str

  @property
  def ratios(self) -> list[float]:
    return [many / one for many, one in zip(self.many, self.one, strict=True)]


def measure(
  explorers: int, per_node: int, window_s: float, flags: tuple[str, ...] = ()
) -> dict[str, float]:
  """Rates of one run, summed over its nodes."""
  num_nodes = -(-explorers // per_node)
  with common.swarm_run(
    *flags,
    f'--config.swarm.num_explorers={explorers}',
    f'--config.swarm.explorers_per_node={per_node}',
    f'--config.run.wall_clock_s={_WALL_CLOCK_S}',
    common.NO_TARGET,
  ) as run:
    found = common.window_rates(run, _KINDS, _SETTLE_S, window_s, num_nodes)
    # The first of each node: a restarted one has another.
    ready = {
      row['node']: row['unix_time_s'] for row in reversed(run.learning())
    }
    return {
      'updates_per_s': found['own_learner_steps'],
      'steps_per_s': found['own_actor_steps'],
      'ready_s': max(ready.values()) - run.started_at,
    }


def compare(
  args: argparse.Namespace, explorers: int, flags: tuple[str, ...] = ()
) -> Compared:
  """Measures both forms in turns.

  Args:
    args: of `common.arguments`.
    explorers: members of the swarm.
    flags: of both runs.
  """
  repetitions = common.choose(args, 1, 2, 3)
  window_s = common.choose(args, 6.0, 15.0, 30.0)
  common.warn_if_busy()
  rows = []
  many: list[float] = []
  one: list[float] = []
  for repetition in range(repetitions):
    # With fewer explorers the node of the population form is not full.
    for per_node, rates in ((min(_PER_NODE, explorers), many), (1, one)):
      found = measure(explorers, per_node, window_s, flags)
      rates.append(found['updates_per_s'])
      rows.append(
        (
          repetition + 1,
          f'{-(-explorers // per_node)} x {per_node}',
          f'{found["updates_per_s"]:,.0f}',
          f'{found["steps_per_s"]:,.0f}',
          f'{found["ready_s"]:.1f}',
        )
      )
      print(f'{per_node} members per node: {rows[-1][2]} updates/s', flush=True)
  headers = (
    'repetition',
    'nodes x members (at most)',
    'member-updates/s',
    'env steps/s',
    'all learning after, s',
  )
  return Compared(
    common.table(headers, rows),
    many,
    one,
    f'Window: {window_s:g} s, from {_SETTLE_S:g} s after the last node made '
    'its first update; rates of nodes from metrics/node_explorer.jsonl, added '
    'up.',
  )


def define(parser: argparse.ArgumentParser) -> None:
  """Adds the number of explorers to a command line."""
  parser.add_argument('--explorers', type=int, help=f'default {EXPLORERS}')


def main() -> int:
  args = common.arguments(__doc__, define)
  explorers = args.explorers or common.choose(args, 4, EXPLORERS, EXPLORERS)
  found = compare(args, explorers)
  many, ratios = statistics.median(found.many), found.ratios
  common.publish(
    common.Result(
      f'{explorers} explorers: population nodes against one member per process',
      [found.table],
      [
        f'Population form: median {many:,.0f} member-updates/s; needed 6,000, '
        'aim 10,000.',
        f'Ratio in each repetition: {", ".join(f"{r:.1f}" for r in ratios)}; '
        'needed 5, aim 10.',
        found.window,
      ],
      {
        'population_updates_per_s': found.many,
        'single_updates_per_s': found.one,
        'ratios': ratios,
      },
    ),
    args,
  )
  return 0


if __name__ == '__main__':
  sys.exit(main())
