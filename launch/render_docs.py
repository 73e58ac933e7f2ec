"""Writes what can be read from the code into the docs: `make docs`.

Between `<!-- NAME begins -->` and `<!-- NAME ends -->` stands what this script
wrote; a test fails when it is out of date.
"""

from __future__ import annotations

import json
import os
import pathlib
import sys

# Run as a file, Python would look for modules in launch/ first.
if not __package__:
  sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')

import launchpad as lp

from launch import catalogue
from launch import graph
from launch import session

_THROUGHPUT = (
  'bench_apex',
  'bench_impala',
  'bench_pong',
  'bench_inference',
  'bench_control',
  'bench_replay',
)


def parts() -> dict[str, str]:
  """Name of each part to its Markdown."""
  results = session.root() / 'docs' / 'results'
  tables = {
    path.parent.name: f'{path.read_text(encoding="utf-8").strip()}\n\n'
    f'![Learning curves](../results/{path.parent.name}/learning_curves.png)'
    for path in sorted(results.glob('*/table.md'))
  }
  return {
    'swarm graph': _picture(catalogue.default_swarm()),
    'actor_learner graph': _picture(catalogue.default_actor_learner()),
    'agent table': catalogue.table(),
    'throughput': _throughput(results / 'performance.json'),
    **{f'results of {name}': table for name, table in tables.items()},
  }


def _throughput(path: pathlib.Path) -> str:
  """Tables of the benchmarks that stand beside peers."""
  found = json.loads(path.read_text(encoding='utf-8'))
  names = [name for name in _THROUGHPUT if name in found]
  return '\n\n'.join(
    '\n\n'.join([f'{found[name]["title"]}:', *found[name]['tables']])
    for name in names
  )


def _picture(program: lp.Program) -> str:
  return f'```mermaid\n{graph.to_mermaid(program).strip()}\n```'


def render(text: str, found: dict[str, str]) -> str:
  """The text with each part that it has markers for replaced."""
  for name, content in found.items():
    begin, end = f'<!-- {name} begins -->', f'<!-- {name} ends -->'
    if begin in text:
      before, rest = text.split(begin, 1)
      _, after = rest.split(end, 1)
      text = f'{before}{begin}\n{content}\n{end}{after}'
  return text


def pages() -> list[pathlib.Path]:
  root = session.root()
  return [root / 'README.md', *sorted((root / 'docs').rglob('*.md'))]


def main() -> int:
  found = parts()
  for page in pages():
    old = page.read_text(encoding='utf-8')
    new = render(old, found)
    if new != old:
      page.write_text(new, encoding='utf-8')
      print(f'updated {page.relative_to(session.root())}')
  return 0


if __name__ == '__main__':
  sys.exit(main())
