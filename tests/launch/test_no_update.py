"""Exit code 0 is not said of a run that learned nothing."""

import pytest

from murmuration.launch import engines
from murmuration.launch import outcome as outcome_lib
from murmuration.launch.engines import state
from murmuration.run_records import jsonable
from murmuration.run_records import metrics
from murmuration.run_records import run_directory


def _checked(run, code, *nodes):
  ended = engines.Outcome(code, 'ended', list(nodes))
  return outcome_lib.checked(ended, run, pytest.fail)


@pytest.mark.parametrize(
  'code, outcome, updates, said',
  [
    (0, 'budget', 0, 1),
    (0, 'wall_clock', 0, 1),
    (0, 'budget', 8, 0),
    (0, 'goal', 0, 0),  # what was asked for is there
    (1, 'budget', 0, 1),
    (130, 'stopped', 0, 130),
  ],
)
def test_a_run_without_an_update_has_failed(
  tmp_path, code, outcome, updates, said
):
  run = run_directory.create(tmp_path / 'run', {}, {})
  jsonable.write(
    run.path / 'summary.json',
    {
      'outcome': outcome,
      'reason': 'the budget is used',
      'totals': {'actor_steps': 1200, 'learner_steps': updates},
    },
  )
  found = _checked(run, code)
  assert found.exit_code == said
  if (code, said) == (0, 1):
    assert 'no update was made in 1,200 environment steps' in found.reason
    assert 'the budget is used' in found.reason
    assert 'Raise run.steps_per_agent' in found.reason
    died = state.NodeState('learner/0', restarts=2, died_of='E: nan')
    found = _checked(run, code, died)
    said = 'learner/0 was started again 2 times; it had died last of: E: nan. '
    assert f'{said}Raise' in found.reason
  else:
    assert found.reason == 'ended'


@pytest.mark.parametrize(
  'episodes, dropped, evaluations, failed',
  [
    (0, 7, [[], []], True),
    (1, 7, [[], []], False),
    (0, 7, [[3.0], []], False),  # there was a return once
    (0, 7, [], False),  # nobody knows
    (0, 0, [[], []], False),
  ],
)
def test_a_run_of_which_no_episode_was_whole_has_failed(
  tmp_path, episodes, dropped, evaluations, failed
):
  run = run_directory.create(tmp_path / 'run', {}, {})
  totals = {'actor_steps': 9, 'learner_steps': 4, 'episodes': episodes}
  if dropped:
    totals['dropped_episodes'] = dropped
  summary = {'outcome': 'budget', 'reason': 'the end', 'totals': totals}
  jsonable.write(run.path / 'summary.json', summary)
  writer = metrics.MetricsWriter(run.metrics_directory)
  for returns in evaluations:
    row = {'returns': returns, 'broken_episodes': 3}
    writer.row('evaluation', row)
  writer.close()
  found = _checked(run, 0)
  assert found.exit_code == failed
  assert ('no episode ended whole: 7 broke' in found.reason) == failed
