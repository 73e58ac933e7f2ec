"""What a study says while it runs: how far it is, and how long it takes."""

import json
import pathlib

import pytest

from murmuration.studies import plan as study_plan
from murmuration.studies import progress as study_progress


def _job(path, variant='DQN', budget=1000, study='fake', seeds=(0,)):
  return study_plan.Job(
    study, variant, seeds, path, pathlib.Path('x.py'), (), budget
  )


def test_the_time_left_comes_from_like_runs_and_else_from_their_budgets(
  tmp_path,
):
  made = _job(tmp_path / 'a')
  made.record.write_text(json.dumps({'process_s': 100.0}))
  like = _job(tmp_path / 'b')
  longer = _job(tmp_path / 'c', variant='New', budget=3000)
  progress = study_progress.Progress(
    [made, like, longer], [like, longer], {'fake': 2}
  )
  # 100 s as the like one, 300 s for three times the budget; two at a time.
  assert progress.left_s() == pytest.approx(200.0)


def test_each_run_that_ends_is_a_line(tmp_path, capsys):
  jobs = [_job(tmp_path / 'a'), _job(tmp_path / 'b', variant='New')]
  progress = study_progress.Progress(jobs, jobs, {'fake': 1})
  progress.ended(jobs[0], 0, 300.0)
  progress.ended(jobs[1], 1, 9.0)
  assert capsys.readouterr().out.splitlines() == [
    '[1/2] fake/a: done after 5 min, about 5 min left',
    f'[2/2] fake/b: crashed with exit code 1, see {tmp_path / "b.log"} after '
    '9 s, all runs are there',
  ]
