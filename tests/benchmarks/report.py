"""Renders docs/results/performance.json into docs/performance.md.

  python tests/benchmarks/report.py

What stands between the markers is replaced; the rest of the page is kept.
`make bench ARGS='--full --save'` measures and renders.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
from typing import Any

_DOCS = pathlib.Path(__file__).resolve().parents[2] / 'docs'
RESULTS = _DOCS / 'results' / 'performance.json'
PAGE = _DOCS / 'performance.md'
BEGIN = '<!-- benchmarks: begin -->'
END = '<!-- benchmarks: end -->'
_NOTHING = "Not measured yet: `make bench ARGS='--full --save'`."
# In the order of reading; others follow by name.
_ORDER = (
  'bench_swarm',
  'bench_time_to_solve',
  'bench_launch',
  'bench_memory',
  'bench_parts',
  'bench_profile',
  'bench_apex',
  'bench_replay',
  'bench_impala',
  'bench_pong',
  'bench_scaling',
  'bench_inference',
  'bench_control',
  'bench_mujoco',
  'bench_population_ddpg',
  'bench_roofline',
)


def load() -> dict[str, Any]:
  """Results of all benchmarks, by script."""
  return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def save(results: dict[str, Any]) -> None:
  RESULTS.parent.mkdir(parents=True, exist_ok=True)
  RESULTS.write_text(json.dumps(results, indent=2, sort_keys=True) + '\n')


def markdown(results: dict[str, Any]) -> str:
  """All sections, each with its command."""
  order = [name for name in _ORDER if name in results]
  order += sorted(set(results) - set(order))
  sections = []
  for name in order:
    result = results[name]
    parts = [
      f'## {result["title"]}',
      f'`{result["command"]}`, {result["date"]}, {result["machine"]}.',
      *result['tables'],
    ]
    if result['notes']:
      parts.append('\n'.join(f'- {note}' for note in result['notes']))
    sections.append('\n\n'.join(parts))
  return '\n\n'.join(sections) or _NOTHING


def render() -> None:
  """Writes the page.

  Raises:
    ValueError: the page has no markers.
  """
  page = PAGE.read_text()
  before, begin, rest = page.partition(BEGIN)
  _, end, after = rest.partition(END)
  if not (begin and end):
    raise ValueError(
      f'{PAGE} needs a line {BEGIN} and, below it, a line {END}: the results '
      'go between them.'
    )
  PAGE.write_text(f'{before}{BEGIN}\n{markdown(load())}\n{END}{after}')


def main() -> int:
  argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  ).parse_args()
  render()
  print(f'{PAGE} is up to date.')
  return 0


if __name__ == '__main__':
  sys.exit(main())
