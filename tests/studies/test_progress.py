"""What a study says while it runs: how far it is, and how long it takes."""

import io
import json
import pathlib
import re
import time

import pytest

from studies import plan as study_plan
from studies import progress as study_progress


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
    [made, like, longer], [like, longer], {'fake': 2}, io.StringIO()
  )
  # 100 s as the like one, 300 s for three times the budget; two at a time.
  assert progress.left_s() == pytest.approx(200.0)


def test_a_run_says_itself_how_far_it_is(tmp_path):
  job = _job(tmp_path / 'a')
  stream = io.StringIO()
  progress = study_progress.Progress([job], [job], {'fake': 1}, stream)
  assert progress.left_s() is None
  assert 'not known yet' in progress.line()
  progress.started(job)
  (tmp_path / 'a' / 'metrics').mkdir(parents=True)
  state = {'latest': {'evaluation': {'actor_steps_per_member': 250}}}
  (tmp_path / 'a' / 'metrics' / 'counter.json').write_text(json.dumps(state))
  time.sleep(0.2)
  # A quarter took at least 0.2 s, so three more take at least 0.6 s.
  assert 0.6 <= progress.left_s() < 30
  assert re.match(
    r'\[0/1\] fake/a 25% in 0 s; about \d+ s left', progress.line()
  )
  progress.ended(job, 0)
  assert stream.getvalue().startswith('[1/1] fake/a: done after 0 s, all runs')


def test_a_terminal_has_one_line_that_is_wiped(tmp_path):
  class Terminal(io.StringIO):
    def isatty(self):
      return True

  stream, job = Terminal(), _job(tmp_path / 'a')
  progress = study_progress.Progress([job], [job], {'fake': 1}, stream)
  progress.started(job)
  progress.tick()
  progress.tick()  # too soon to draw again
  drawn = stream.getvalue()
  assert drawn.startswith('[0/1] fake/a 0% in 0 s') and '\n' not in drawn
  progress.close()
  assert stream.getvalue() == f'{drawn}\r{" " * len(drawn)}\r'
