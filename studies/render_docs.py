"""Writes the parts of the docs that follow from the code: `make docs`.

These are the text between `<!-- NAME begins -->` and `<!-- NAME ends -->`, and
the tables of studies, from their numbers. A test fails if one is out of date.
"""

from __future__ import annotations

import os
import pathlib
import sys
from typing import Any

from murmuration.run_records import first

if __name__ == '__main__':
  first.begin()

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')

from murmuration import play
from murmuration.launch import cell as cell_lib
from murmuration.launch import graph
from murmuration.launch import registry
from murmuration.launch import session
from murmuration.run_records import commands
from murmuration.run_records import curves
from murmuration.run_records import jsonable
from murmuration.studies import tables as tables_lib

_RESULTS = session.root() / 'docs' / 'results'


def parts() -> dict[str, str]:
  """Maps the name of each part to its Markdown."""
  studies = {
    path.parent.name: f'{text.strip()}\n\n'
    f'![Learning curves](../results/{path.parent.name}/learning_curves.png)'
    for path, text in tables().items()
  }
  return {
    'swarm graph': _picture('pso_dqn'),
    'evolution graph': _picture('es_mlp'),
    'gossip graph': _picture('pala_a2c'),
    # Two replay shards on nodes of their own.
    'actor_learner graph': _picture(
      'apex_dqn', {'run.replay': 'node', 'actors.shards': '2'}
    ),
    'parameter_server graph': _picture('gorila_dqn'),
    'agent table': table(),
    'zoo': zoo(),
    'scores': tables_lib.scores(results()),
    'comparisons': tables_lib.comparisons(results()),
    'goals': tables_lib.goals(results()),
    **{f'results of {name}': table for name, table in studies.items()},
  }


def results() -> dict[str, Any]:
  """Maps each study of docs/results to its numbers."""
  return {
    path.parent.name: jsonable.read(path)
    for path in sorted(_RESULTS.glob('*/results.json'))
  }


def tables() -> dict[pathlib.Path, str]:
  """Maps each table of docs/results to its text, made from its numbers."""
  return {
    _RESULTS / study / 'table.md': tables_lib.render(found)
    for study, found in results().items()
  }


def written() -> dict[pathlib.Path, str]:
  """Maps each page and table to its up-to-date text."""
  found = parts()
  texts = {
    page: render(page.read_text(encoding='utf-8'), found) for page in pages()
  }
  return {**texts, **tables()}


def _picture(agent: str, overrides: dict[str, str] | None = None) -> str:
  """The program of an agent's default preset and topology."""
  program = cell_lib.resolve(agent, overrides=overrides).build()
  return f'```mermaid\n{graph.to_mermaid(program).strip()}\n```'


def zoo() -> str:
  """The zoo's policies as Markdown."""
  lines = ['| policy | environment | score | bar | command |']
  lines.append('|' + ' --- |' * 5)
  for name in play.policies():
    about = play.load(name).about
    low, high = about['interval']
    lines.append(
      f'| `{name}` | {about["environment"]} | {about["score"]:.1f} '
      f'[{low:.1f}, {high:.1f}] | {_bar(name, about["environment"])} | '
      f'`{about["command"]}` |'
    )
  return '\n'.join(lines)


def _bar(cell: str, environment: str) -> str:
  """The return that AGENT:PRESET has to reach.

  Its target, or else the return that counts as solved.
  """
  agent, preset = registry.split(cell)
  run = registry.agent(agent).presets[preset].get('run', {})
  needed = run.get('target_return')
  if needed is None:
    needed = curves.threshold(environment)
  return tables_lib.bar(environment, needed)


def table() -> str:
  """Agents by topologies, as Markdown.

  A cell has its number of nodes, in bold for the agent's default topology, or
  the number of the reason why the combination is refused.
  """
  names = tuple(registry.TOPOLOGIES)
  reasons: list[str] = []
  lines = [
    '| agent | ' + ' | '.join(f'`{name}`' for name in names) + ' |',
    '| --- |' + ' --- |' * len(names),
  ]
  for agent in registry.agents():
    if registry.is_alias(agent):
      continue  # another name of an agent in this table
    found = registry.agent(agent)
    cells = []
    for name in names:
      try:
        program = cell_lib.resolve(agent, topology=name).build()
      except ValueError as e:
        # The first sentence is the reason; the next says what to do instead.
        reason = str(e).partition('. ')[0].replace(agent, 'It', 1)
        if reason not in reasons:
          reasons.append(reason)
        cells.append(f'no ({reasons.index(reason) + 1})')
        continue
      count = sum(len(nodes) for nodes in program.groups.values())
      cell = f'{count} nodes'
      cells.append(f'**{cell}**' if name == found.topology else cell)
    lines.append(f'| {found.title}, `{agent}` | ' + ' | '.join(cells) + ' |')
  notes = [f'({i}) {reason}.' for i, reason in enumerate(reasons, 1)]
  return '\n'.join([*lines, '', ' '.join(notes)])


def render(text: str, found: dict[str, str]) -> str:
  """Replaces each part of the text that has markers."""
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
  try:
    commands.Parser(__doc__).parse(sys.argv[1:])
  except ValueError as e:
    return commands.refuse(e)
  for page, new in written().items():
    if page.read_text(encoding='utf-8') != new:
      page.write_text(new, encoding='utf-8')
      print(f'updated {page.relative_to(session.root())}')
  return 0


if __name__ == '__main__':
  sys.exit(main())
