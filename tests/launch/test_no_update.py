"""Exit code 0 is not said of a run that learned nothing."""

import pytest

from launch import engines
from launch import session
from run_records import metrics
from run_records import run_directory


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
  metrics.write_json(
    run.path / 'summary.json',
    {
      'outcome': outcome,
      'reason': 'the budget is used',
      'totals': {'actor_steps': 1200, 'learner_steps': updates},
    },
  )
  found = session._honest(engines.Outcome(code, 'ended', []), run)
  assert found.exit_code == said
  if (code, said) == (0, 1):
    assert 'no update was made in 1,200 environment steps' in found.reason
    assert 'the budget is used' in found.reason
  else:
    assert found.reason == 'ended'


@pytest.mark.parametrize(
  'episodes, dropped, returns, said',
  [(0, 7, [], 1), (1, 7, [], 0), (0, 7, [3.0], 0), (0, 0, [], 0)],
)
def test_a_run_of_which_every_episode_broke_has_failed(
  tmp_path, episodes, dropped, returns, said
):
  run = run_directory.create(tmp_path / 'run', {}, {})
  totals = {'actor_steps': 9, 'learner_steps': 4, 'episodes': episodes}
  if dropped:
    totals['dropped_episodes'] = dropped
  summary = {
    'outcome': 'budget',
    'reason': 'the budget is used',
    'totals': totals,
    'latest': {'evaluation': {'returns': returns}},
  }
  metrics.write_json(run.path / 'summary.json', summary)
  found = session._honest(engines.Outcome(0, 'ended', []), run)
  assert found.exit_code == said
  assert ('all 7 episodes broke' in found.reason) == bool(said)
