"""The notebooks of the docs run as they stand there."""

import pathlib
import re

import nbclient
import nbformat
import pytest

NOTEBOOKS = sorted(
  (pathlib.Path(__file__).parents[2] / 'docs' / 'notebooks').glob('*.ipynb')
)
# Last lines of cells with what they must show.
SHOWN = {
  'first_run': {'round(again.evaluate(10).mean) == round(found.mean)': 'True'},
  'own_environment': {
    'run.evaluate(10).mean': '1.0',
    "run.config()['agent']['hidden_sizes']": '[32]',
    'print(error)': 'learning_rate',
  },
}
assert [path.stem for path in NOTEBOOKS] == sorted(SHOWN), NOTEBOOKS


@pytest.mark.parametrize('path', NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_what_it_says(path, tmp_path):
  notebook = nbformat.read(path, as_version=4)
  nbclient.NotebookClient(
    notebook, timeout=200, resources={'metadata': {'path': str(tmp_path)}}
  ).execute()
  left = dict(SHOWN[path.stem])
  for cell in notebook.cells:
    last = cell.source.strip().splitlines()[-1].strip()
    if cell.cell_type == 'code' and last in left:
      shown = ''.join(
        output.get('text') or output['data']['text/plain']
        for output in cell.outputs
      )
      assert left.pop(last) in shown
  assert left == {}


@pytest.mark.parametrize('path', NOTEBOOKS, ids=lambda path: path.stem)
def test_what_is_kept_of_a_notebook_is_small_and_of_no_machine(path):
  text = path.read_text(encoding='utf-8')
  assert len(text) < 20_000
  assert not re.search(r'"[^"]*/(home|root|tmp|Users)/', text)
