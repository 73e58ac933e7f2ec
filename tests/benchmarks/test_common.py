"""What of a benchmark may be kept, and what is kept with it."""

import json
import sys

import pytest

from murmuration.studies import runs as study_runs
from tests.benchmarks import common
from tests.benchmarks import report

SCRIPT = str(common.ROOT / 'tests' / 'benchmarks' / 'bench_ray.py')


def _arguments(monkeypatch, *words):
  def define(parser):
    parser.add_argument('--only', default='')
    parser.add_argument('--seeds', type=int, nargs='+')

  monkeypatch.setattr(sys, 'argv', [SCRIPT, *words])
  monkeypatch.setattr(common, '_busy_cores', lambda: 0.25)
  return common.arguments('', define)


@pytest.mark.parametrize(
  ('words', 'named'),
  [
    (['--only=IMPALA'], '--only'),
    (['--seeds', '0'], '--seeds'),
    (['--quick'], '--quick'),
  ],
)
def test_a_part_of_a_result_is_not_kept(monkeypatch, capsys, words, named):
  _arguments(monkeypatch, *words)
  with pytest.raises(SystemExit):
    _arguments(monkeypatch, *words, '--save')
  assert f'{named} and --save: ' in capsys.readouterr().err


@pytest.fixture
def kept(tmp_path, monkeypatch):
  """kept(results of before): what is there after one has been saved."""
  pages = {}
  for name in ('PAGE', 'README', 'RESULTS'):
    pages[name] = tmp_path / f'{name}.md'
    monkeypatch.setattr(report, name, pages[name])
  marks = report.BEGIN, report.END, report.BEGIN_SPEED, report.END_SPEED
  for name in ('PAGE', 'README'):
    pages[name].write_text('\n'.join(marks))

  def keep(before):
    pages['RESULTS'].write_text(json.dumps(before))
    commits = iter(['abc', 'abc to def'])
    monkeypatch.setattr(study_runs, 'revision', lambda since='': next(commits))
    args = _arguments(monkeypatch, '--full', '--save')
    common.publish(common.Result('Ray', ['| x |'], [], {}), args)
    return {name: path.read_text() for name, path in pages.items()}

  return keep


def test_what_is_kept_says_which_code_and_how_busy_the_machine_was(kept):
  pages = kept({})
  entry = json.loads(pages['RESULTS'])['bench_ray']
  assert (entry['code'], entry['busy_cores']) == ('abc to def', 0.25)
  command = 'python tests/benchmarks/bench_ray.py --full --save'
  where = f'{entry["date"]}, {common.machine()}'
  said = f'`{command}`, {where}, code abc to def, 0.2 cores busy before.'
  assert said in pages['PAGE']
