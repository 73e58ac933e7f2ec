"""Renders docs/results/performance.json into docs/performance.md and README.md.

  python tests/benchmarks/report.py

All tables go into the first, a row for each comparison into the second. What
stands between the markers is replaced; the rest of both pages is kept.
`make bench ARGS='--full --save'` measures and renders.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import sys
from typing import Any

_HERE = pathlib.Path(__file__).resolve().parent
_DOCS = _HERE.parents[1] / 'docs'
RESULTS = _DOCS / 'results' / 'performance.json'
PAGE = _DOCS / 'performance.md'
BEGIN = '<!-- benchmarks: begin -->'
END = '<!-- benchmarks: end -->'
README = _DOCS.parent / 'README.md'
BEGIN_SPEED = '<!-- speed: begin -->'
END_SPEED = '<!-- speed: end -->'
_STEPS, _UPDATES = 'env_steps_per_s', 'updates_per_s'
_EPISODES = 'episodes_per_s'
# Of several hosts, which scaling_check.py writes.
SCALING = _DOCS / 'larger_machine.md'
CHECK = _DOCS / 'results' / 'scaling.json'
BEGIN_CHECK, END_CHECK = '<!-- check: begin -->', '<!-- check: end -->'
# What is compared, script, our system, the peer, and by what.
_SPEED = (
  (
    'Ape-X DQN, CartPole-v1, 32 samples per insert: env steps/s',
    'bench_apex',
    'Murmuration Ape-X',
    'Stable-Baselines3 DQN',
    _STEPS,
  ),
  (
    'IMPALA, CartPole-v1, the preset (2 x 32): env steps/s',
    'bench_impala',
    'Murmuration, preset (2 x 32)',
    'Sample Factory APPO',
    _STEPS,
  ),
  (
    'IMPALA, CartPole-v1, 2 x 64: env steps/s',
    'bench_impala',
    'Murmuration, wide (2 x 64)',
    'Sample Factory APPO',
    _STEPS,
  ),
  (
    'IMPALA, CartPole-v1, 2 x 64: env steps/s',
    'bench_impala',
    'Murmuration, wide (2 x 64)',
    'dm-acme IMPALA, 2 actors',
    _STEPS,
  ),
  (
    'IMPALA, Pong: env steps/s',
    'bench_pong',
    'Murmuration, preset',
    'dm-acme IMPALA, 2 actors',
    _STEPS,
  ),
  (
    'A2C over gossip, CartPole-v1, 2 x 16: env steps/s',
    'bench_papers',
    'Murmuration GALA, 2 x 16',
    'Stable-Baselines3 A2C',
    _STEPS,
  ),
  (
    'Gorila DQN, CartPole-v1, batch 32: updates/s',
    'bench_papers',
    'Murmuration Gorila',
    'Stable-Baselines3 DQN',
    _UPDATES,
  ),
  (
    'Evolution strategies, CartPole-v1: env steps/s',
    'bench_papers',
    'Murmuration ES',
    'EvoTorch PGPE, 2 processes',
    _STEPS,
  ),
  (
    'Evolution strategies, CartPole-v1: episodes/s',
    'bench_papers',
    'Murmuration ES',
    'EvoTorch PGPE, 2 processes',
    _EPISODES,
  ),
  (
    'D4PG, Hopper-v5, 256 x 256: updates/s',
    'bench_control',
    'Murmuration D4PG',
    'dm-acme D4PG',
    _UPDATES,
  ),
  (
    'DDPG, Hopper-v5, 256 x 256: updates/s',
    'bench_control',
    'Murmuration DDPG',
    'SBX DDPG',
    _UPDATES,
  ),
)
_NOTHING = "Not measured yet: `make bench ARGS='--full --save'`."
# In the order of reading; others follow by name.
_ORDER = (
  'bench_swarm',
  'bench_time_to_solve',
  'bench_launch',
  'bench_memory',
  'bench_parts',
  'bench_apex',
  'bench_replay',
  'bench_impala',
  'bench_pong',
  'bench_inference',
  'bench_control',
  'bench_mujoco',
  'bench_population_ddpg',
  'bench_ray',
)


def load() -> dict[str, Any]:
  """Results of all benchmarks, by script."""
  return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def save(results: dict[str, Any]) -> None:
  RESULTS.parent.mkdir(parents=True, exist_ok=True)
  RESULTS.write_text(json.dumps(results, indent=2, sort_keys=True) + '\n')


def save_check(found: dict[str, Any]) -> None:
  """Keeps what scaling_check.py found, and shows its 'text'."""
  CHECK.write_text(json.dumps(found, indent=2, sort_keys=True) + '\n')
  replace(SCALING, BEGIN_CHECK, END_CHECK, found['text'])


def markdown(results: dict[str, Any]) -> str:
  """All sections, each with its command; none without its script."""
  there = {name for name in results if (_HERE / f'{name}.py').exists()}
  order = [name for name in _ORDER if name in there]
  order += sorted(there - set(order))
  sections = []
  for name in order:
    result = results[name]
    parts = [
      f'## {result["title"]}',
      f'{made(result)}.',
      *result['tables'],
    ]
    if result['notes']:
      parts.append('\n'.join(f'- {note}' for note in result['notes']))
    sections.append('\n\n'.join(parts))
  return '\n\n'.join(sections) or _NOTHING


def made(origin: dict[str, Any]) -> str:
  """By what, when and where something was measured."""
  said = [f'`{origin["command"]}`', origin['date'], origin['machine']]
  # The older ones have not kept these.
  if 'code' in origin:
    said.append(f'code {origin["code"]}')
  if 'busy_cores' in origin:
    said.append(f'{origin["busy_cores"]:.1f} cores busy before')
  return ', '.join(said)


def speed(results: dict[str, Any]) -> str:
  """A row for each comparison that was measured; all repetitions."""
  lines = [
    '| what | Murmuration | beside it | times |',
    '| --- | --- | --- | --- |',
  ]
  for what, script, ours, peer, key in _SPEED:
    runs = results.get(script, {}).get('numbers', {}).get('runs', {})
    if ours not in runs or peer not in runs:
      continue
    mine, theirs = ([run[key] for run in runs[name]] for name in (ours, peer))
    times = statistics.median(mine) / statistics.median(theirs)
    shown = [' '.join(f'{x:,.0f}' for x in found) for found in (mine, theirs)]
    lines.append(f'| {what} | {shown[0]} | {peer}: {shown[1]} | {times:.1f} |')
  return '\n'.join(lines)


def render() -> None:
  """Writes both pages.

  Raises:
    ValueError: a page has no markers.
  """
  results = load()
  replace(PAGE, BEGIN, END, markdown(results))
  replace(README, BEGIN_SPEED, END_SPEED, speed(results))


def replace(path: pathlib.Path, begin: str, end: str, text: str) -> None:
  """Puts a text between two lines of a page.

  Raises:
    ValueError: the page has not got them.
  """
  before, found_begin, rest = path.read_text().partition(begin)
  _, found_end, after = rest.partition(end)
  if not (found_begin and found_end):
    raise ValueError(
      f'{path} needs a line {begin} and, below it, a line {end}: the results '
      'go between them.'
    )
  path.write_text(f'{before}{begin}\n{text}\n{end}{after}')


def main() -> int:
  argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  ).parse_args()
  render()
  print(f'{PAGE} and {README} are up to date.')
  return 0


if __name__ == '__main__':
  sys.exit(main())
