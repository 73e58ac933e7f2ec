"""The parts of the docs that are read from the code are up to date."""

from launch import render_docs


def test_the_docs_show_what_the_code_builds():
  found = render_docs.parts()
  for page in render_docs.pages():
    text = page.read_text(encoding='utf-8')
    assert render_docs.render(text, found) == text, f'{page}: run `make docs`'


def test_a_part_is_written_between_its_markers_and_nowhere_else():
  text = 'a\n<!-- x begins -->\nold\n<!-- x ends -->\nb'
  assert render_docs.render(text, {'x': 'new', 'y': 'never'}) == (
    'a\n<!-- x begins -->\nnew\n<!-- x ends -->\nb'
  )


def test_the_readme_has_the_graph_and_the_table():
  text = render_docs.pages()[0].read_text(encoding='utf-8')
  for name in ('swarm graph', 'agent table'):
    assert f'<!-- {name} begins -->' in text
