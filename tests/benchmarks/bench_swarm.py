"""Member-updates per second: population nodes against one member per process.

Both forms are the same 31 explorers, on the same machine, in turns; acting,
replay, supervisor and evaluator run as always. A form is measured from a few
seconds after its last node made its first update. The rate of a node is what
its learner_steps grew by between its first and its last row of
metrics/node_explorer.jsonl in that window, over the time between these rows;
the rate of the swarm is the sum over nodes.
"""

from __future__ import annotations

import argparse
import collections
import pathlib
import statistics
import sys
import time

sys.path[0] = str(pathlib.Path(__file__).resolve().parents[2])

from tests.benchmarks import common  # noqa: E402

_EXPLORERS = 31
_READY_LIMIT_S = 240.0
_SETTLE_S = 4.0  # after the last first update
_WALL_CLOCK_S = 400  # of a run that nobody stops


def measure(explorers: int, per_node: int, window_s: float) -> dict[str, float]:
  """Rates of one run, summed over its nodes."""
  num_nodes = -(-explorers // per_node)
  with common.swarm_run(
    f'--config.swarm.num_explorers={explorers}',
    f'--config.swarm.explorers_per_node={per_node}',
    f'--config.run.wall_clock_s={_WALL_CLOCK_S}',
    common.NO_TARGET,
  ) as run:
    run.wait_for(
      f'{num_nodes} learning nodes',
      lambda: len({row['node'] for row in run.learning()}) == num_nodes,
      _READY_LIMIT_S,
    )
    ready_s = run.elapsed_s()
    time.sleep(_SETTLE_S)
    skip = len(run.rows('node_explorer'))
    # A row is up to a second older than the file: one more to lose none.
    time.sleep(window_s + 1.0)
    rows = run.rows('node_explorer')[skip:]
    if run.process.poll() is not None:
      raise RuntimeError('The run ended in the window: take a shorter one.')
  by_node = collections.defaultdict(list)
  for row in rows:
    by_node[row['node']].append(row)
  if len(by_node) < num_nodes or min(map(len, by_node.values())) < 2:
    raise RuntimeError(
      f'{len(by_node)} of {num_nodes} nodes reported, or one only once, in '
      f'{window_s:g} s: the machine is too busy for this window.'
    )
  return {
    'updates_per_s': _rate(by_node, 'own_learner_steps'),
    'steps_per_s': _rate(by_node, 'own_actor_steps'),
    'ready_s': ready_s,
  }


def _rate(by_node, name: str) -> float:
  return sum(
    (rows[-1][name] - rows[0][name])
    / (rows[-1]['elapsed_s'] - rows[0]['elapsed_s'])
    for rows in by_node.values()
  )


def main() -> int:
  args = common.arguments(__doc__, _define)
  explorers = args.explorers or common.choose(args, 4, _EXPLORERS, _EXPLORERS)
  repetitions = common.choose(args, 1, 2, 3)
  window_s = common.choose(args, 6.0, 15.0, 30.0)
  common.warn_if_busy()
  rows, ratios = [], []
  rates = collections.defaultdict(list)
  for repetition in range(repetitions):
    pair = {}
    for per_node in (min(16, explorers), 1):
      found = measure(explorers, per_node, window_s)
      pair[per_node] = found['updates_per_s']
      rates[per_node].append(found['updates_per_s'])
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
    many, one = pair.values()
    ratios.append(many / one)
  many, one = (statistics.median(r) for r in rates.values())
  common.publish(
    common.Result(
      f'{explorers} explorers: population nodes against one member per process',
      [
        common.table(
          (
            'repetition',
            'nodes x members (at most)',
            'member-updates/s',
            'env steps/s',
            'all learning after, s',
          ),
          rows,
        )
      ],
      [
        f'Population form: median {many:,.0f} member-updates/s; needed 6,000, '
        'aim 10,000.',
        f'Ratio in each repetition: {", ".join(f"{r:.1f}" for r in ratios)}; '
        'needed 5, aim 10.',
        f'Window: {window_s:g} s, from {_SETTLE_S:g} s after the last node '
        'made its first update; rates of nodes from metrics/'
        'node_explorer.jsonl, added up.',
      ],
      {
        'population_updates_per_s': rates[min(16, explorers)],
        'single_updates_per_s': rates[1],
        'ratios': ratios,
      },
    ),
    args,
  )
  return 0


def _define(parser: argparse.ArgumentParser) -> None:
  parser.add_argument('--explorers', type=int, help='default 31')


if __name__ == '__main__':
  sys.exit(main())
