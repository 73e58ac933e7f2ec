"""What `make site` does beside MkDocs: pages from the root, and pictures.

README, CONTRIBUTING and CHANGELOG become pages. Mermaid's graphs, which a
browser would load a program for from the network, become SVG.
"""

from __future__ import annotations

import html
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[1]
# What stands outside of docs/, and the page that it becomes.
PAGES = {
  'README.md': 'index.md',
  'CONTRIBUTING.md': 'contributing.md',
  'CHANGELOG.md': 'changelog.md',
}
_GRAPH = re.compile(r'```mermaid\n(.*?)```', re.S)
_NODE = re.compile(r'^\s*(\w+)\["(.*?)"\]', re.M)
_EDGE = re.compile(r'^\s*(\w+) -\.?-> ?(?:\|.*?\| ?)?(\w+)', re.M)
# Links to code, which is no part of the site.
_CODE = re.compile(r'\[([^\]]+)\]\((?:\.\./)+(?!docs/)[\w/.]+\.py\)')
# Marks such as [R] in a table, which would be taken for names of the API; code
# stays as it is.
_MARK = re.compile(r'(```.*?```|`[^`\n]*`)|\[([A-Z])\](?![(\[])', re.S)
_WIDE, _HIGH, _ACROSS, _DOWN = 150, 34, 230, 58  # pixels


def on_files(files, config):
  from mkdocs.structure import files as mkdocs_files  # of .venv-site

  for name, page in PAGES.items():
    text = (ROOT / name).read_text(encoding='utf-8')
    text = text.replace('](docs/', '](')
    for other, its_page in PAGES.items():
      text = text.replace(f']({other}', f']({its_page}')
    files.append(mkdocs_files.File.generated(config, page, content=text))
  return files


def on_page_markdown(markdown, page, config, files):
  markdown = _CODE.sub(r'`\1`', markdown)
  markdown = _MARK.sub(lambda m: m[1] or f'\\[{m[2]}\\]', markdown)
  return _GRAPH.sub(lambda found: svg(found.group(1)), markdown)


def svg(graph: str) -> str:
  """A flowchart from left to right, its nodes in columns."""
  labels = dict(_NODE.findall(graph))
  edges = [e for e in _EDGE.findall(graph) if set(e) <= set(labels)]
  column = dict.fromkeys(labels, 0)
  for _ in labels:  # longest ways; more rounds would follow a circle for ever
    for a, b in edges:
      if a == b:
        continue
      column[b] = min(max(column[b], column[a] + 1), len(labels) - 1)
  used = sorted(set(column.values()))
  rows: dict[int, int] = {}
  place = {}
  for name in labels:
    x = used.index(column[name])
    rows[x] = rows.get(x, 0) + 1
    # Between the rows of the column before, as some edges go past.
    y = 20 + (rows[x] - 1) * _DOWN + x % 2 * _DOWN // 2
    place[name] = (10 + x * _ACROSS, y)
  width = max(x for x, _ in place.values()) + _WIDE + 10
  height = max(y for _, y in place.values()) + _HIGH + 10
  parts = [
    f'<svg class="graph" viewBox="0 0 {width} {height}" width="{width}" '
    'role="img" xmlns="http://www.w3.org/2000/svg"><defs><marker id="tip" '
    'viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" '
    'orient="auto"><path d="M0,0 L8,4 L0,8 z"/></marker></defs>'
  ]
  for a, b in edges:
    (ax, ay), (bx, by) = place[a], place[b]
    if a == b:  # each other
      top = ax + _WIDE / 2
      parts.append(
        f'<path class="edge" d="M{top - 20},{ay} C{top - 20},{ay - 22} '
        f'{top + 20},{ay - 22} {top + 20},{ay}" marker-end="url(#tip)"/>'
      )
      continue
    ahead = bx > ax
    x1, x2 = ax + _WIDE * ahead, bx + _WIDE * (not ahead)
    y1, y2 = ay + _HIGH / 2, by + _HIGH / 2
    bend = 60 if ahead else -60
    parts.append(
      f'<path class="edge" d="M{x1},{y1} C{x1 + bend},{y1} {x2 - bend},{y2} '
      f'{x2},{y2}" marker-end="url(#tip)"/>'
    )
  for name, (x, y) in place.items():
    parts.append(
      f'<rect x="{x}" y="{y}" width="{_WIDE}" height="{_HIGH}" rx="5"/>'
      f'<text x="{x + _WIDE / 2}" y="{y + _HIGH / 2 + 4}">'
      f'{html.escape(labels[name])}</text>'
    )
  return ''.join([*parts, '</svg>'])
