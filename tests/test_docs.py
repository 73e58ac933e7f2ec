"""Links of the docs lead somewhere, and the site has every page."""

import ast
import html
import importlib.util
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGES = [
  ROOT / 'README.md',
  ROOT / 'CONTRIBUTING.md',
  ROOT / 'CHANGELOG.md',
  *sorted((ROOT / 'docs').rglob('*.md')),
]
# That docs/hooks.py makes of files outside of docs/.
MADE = {'index.md', 'contributing.md', 'changelog.md'}
_LINK = re.compile(r'\]\(\s*([^)\s]+)(?:\s+"[^"]*")?\)|(?:src|href)="([^"]+)"')


def prose(text):
  """A page without its code, in which brackets are no links."""
  text = re.sub(r'^( *)```.*?^\1```', '', text, flags=re.M | re.S)
  text = re.sub(r'^(?: {4,}|\t).*$', '', text, flags=re.M)
  return re.sub(r'`[^`\n]*`', '', text)


def anchors(page):
  """What GitHub and the site call the headings of a page."""
  text = re.sub(r'^```.*?^```', '', page.read_text('utf-8'), flags=re.M | re.S)
  found = set(re.findall(r'<a (?:id|name)="([^"]+)"', text))
  for heading in re.findall(r'^#{1,6} (.*)$', text, re.M):
    heading = re.sub(r'\[([^\]]*)\]\([^)]*\)', r'\1', heading)
    words = re.sub(r'[^\w\- ]', '', heading.strip().lower())
    name, number = words.replace(' ', '-'), 0
    while name in found:
      number += 1
      name = f'{words.replace(" ", "-")}-{number}'
    found.add(name)
  return found


def broken(page):
  for link in _LINK.findall(prose(page.read_text('utf-8'))):
    target = ''.join(link)
    if re.match(r'[a-z]+:', target):
      continue
    path, _, anchor = target.partition('#')
    there = (page.parent / path).resolve() if path else page
    if not there.exists():
      yield f'{target}: no such file'
    elif anchor and there.suffix == '.md' and anchor not in anchors(there):
      yield f'{target}: no such heading; there are {sorted(anchors(there))}'


def hooks():
  path = ROOT / 'docs' / 'hooks.py'
  spec = importlib.util.spec_from_file_location('hooks', path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


def test_every_graph_of_the_docs_becomes_a_picture_with_all_its_nodes():
  found = [
    graph
    for page in PAGES
    for graph in re.findall(r'```mermaid\n(.*?)```', page.read_text(), re.S)
  ]
  assert len(found) >= 5
  for graph in found:
    picture = hooks().svg(graph)
    shown = re.findall(r'<text [^>]*>(.*?)</text>', picture)
    assert shown == [html.escape(n) for n in re.findall(r'\["(.*?)"\]', graph)]
    assert picture.count('class="edge"') == graph.count('-->')
    places = re.findall(r'<rect x="(\d+)" y="(\d+)"', picture)
    assert len(set(places)) == len(shown)


def test_marks_are_no_links_and_code_stays_as_it_is():
  text = 'a [R] `[T]` [C](x.md) [code](../../agents/base.py)\n```\n[B]\n```'
  assert hooks().on_page_markdown(text, None, None, None) == (
    'a \\[R\\] `[T]` [C](x.md) `code`\n```\n[B]\n```'
  )


@pytest.mark.parametrize('page', PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_link_of_a_page_leads_somewhere(page):
  assert list(broken(page)) == []


def test_a_broken_link_is_found(tmp_path):
  page = tmp_path / 'page.md'
  page.write_text(
    '# One & two\n[a](#one--two) [b](none.md) [c](page.md#none)\n'
    '`[d](code.md)`\n\n    [e](code.md)\n\n```\n[f](code.md)\n```\n'
    '![g](picture.png) [h](https://example.org/x) [i](page.md)\n'
  )
  assert [found.partition(':')[0] for found in broken(page)] == [
    'none.md', 'page.md#none', 'picture.png',
  ]  # fmt: skip


def test_every_page_is_in_the_navigation_of_the_site_once():
  nav = (ROOT / 'mkdocs.yml').read_text('utf-8').partition('\nnav:\n')[2]
  named = re.findall(r': (\S+\.md)$', nav, re.M)
  docs = ROOT / 'docs'
  pages = {p.relative_to(docs).as_posix() for p in docs.rglob('*.md')}
  assert sorted(named) == sorted(pages | MADE)


def _described(function):
  """Names that the docstring of a function has under `Args:`."""
  text = ast.get_docstring(function) or ''
  section = re.search(r'^Args:\n((?:[ ]{2}.*\n?|\n)+)', text, re.M)
  if section is None:
    return []
  return re.findall(r'^  ([^ :][^:]*):', section[1], re.M)


def test_what_the_site_shows_describes_arguments_that_are_there():
  # The site is not built if one is not.
  found = 0
  for page in sorted((ROOT / 'docs' / 'api').glob('*.md')):
    for name in re.findall(r'^::: (\S+)', page.read_text('utf-8'), re.M):
      path = ROOT.joinpath(*name.split('.'))
      while not path.is_dir() and not path.with_suffix('.py').exists():
        path = path.parent  # the name was of what a module has
      path = path / '__init__.py' if path.is_dir() else path.with_suffix('.py')
      for node in ast.walk(ast.parse(path.read_text('utf-8'))):
        if isinstance(node, ast.FunctionDef):
          args = node.args
          every = [*args.posonlyargs, *args.args, *args.kwonlyargs]
          every += [arg for arg in (args.vararg, args.kwarg) if arg]
          described = _described(node)
          assert set(described) <= {arg.arg for arg in every}, (path, node.name)
          found += len(described)
  assert found > 50
