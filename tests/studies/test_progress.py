"""What a study says while it runs: how far it is, and how long it takes."""

import pathlib

from murmuration.studies import plan as study_plan
from murmuration.studies import runs


def _job(name, budget=1000, variant='DQN'):
  return study_plan.Job(
    study='fake',
    variant=variant,
    seeds=(0,),
    path=pathlib.Path('runs') / name,
    arguments=(),
    budget=budget,
  )


def test_each_run_that_ends_is_a_line_with_the_time_left_by_its_steps(capsys):
  jobs = [_job('a'), _job('b', budget=3000), _job('c', variant='New')]
  progress = runs.Progress(jobs, {'fake': 2})
  progress.ended(jobs[0], 0, 300.0)
  progress.ended(jobs[2], 1, 100.0)
  # 300 s for 1,000 steps: 1,200 s for 4,000, two runs at a time. Then 400 s for
  # 2,000: 600 s for 3,000.
  assert capsys.readouterr().out.splitlines() == [
    '[1/3] fake/a: done after 5 min, about 10 min left',
    '[2/3] fake/c: crashed with exit code 1, see runs/c.log after 2 min, about '
    '5 min left',
  ]
