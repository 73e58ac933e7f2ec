"""Numbers, table and picture of a study, against the rules written slowly."""

import json
import shlex

import numpy as np
import pytest

from murmuration.run_records import compared
from murmuration.run_records import curves
from murmuration.run_records import learning_statistics as statistics
from murmuration.studies import plan as study_plan
from murmuration.studies import results as study_command
from murmuration.studies import summaries as study_results
from murmuration.studies import tables as study_table
from tests import pictures

BUDGET = 1000
RANDOM = statistics.REFERENCES['CartPole-v1'].random


def _study(**changes):
  numbers = {
    'name': 'fake',
    'environment': 'CartPole-v1',
    'budget': BUDGET,
    'threshold': 100.0,
    'seeds': 4,
    'variants': {
      name: study_plan.Variant(('--x',), script=f'run_{name.lower()}.py')
      for name in ('DQN', 'New')
    },
    'baseline': 'DQN',
    'timed': True,
  }
  return study_plan.Study(**{**numbers, **changes})


def _curve(returns, per_second=100.0, end=BUDGET):
  steps = np.linspace(0, end, len(returns))
  return curves.Curve(steps, 1.0 + steps / per_second, np.array(returns, float))


def _system(*found):
  record = {'code': 'abc', 'machine': '2 cores', 'at_a_time': 1}
  return study_results.System(
    list(found), [4.0, 9.0, 5.0], [10.0, 80.0, 20.0], [record] * len(found)
  )


NOTHING = curves.Curve(np.zeros(0), np.zeros(0), np.zeros(0))
SYSTEMS = {
  # 11 s for the budget; 3.5 s. One crashed half-way, one before anything.
  'DQN': _system(
    _curve([0, 50, 90]), _curve([0, 50, 110]), _curve([0, 70, 80]), NOTHING
  ),
  'New': _system(
    _curve([0, 90, 300, 500], per_second=400),
    _curve([10, 80, 90, 100], per_second=400),
    _curve([0, 70, 400, 500], per_second=400),
    _curve([0, 200, 400], per_second=400, end=500),
  ),
}


def _slowly(x, returns, end, rest=None):
  """Mean over [0, end] of the curve, `rest` behind its last point."""
  grid = np.linspace(0, end, 400_001)
  values = np.interp(grid, x, returns)
  if rest is not None:
    values = np.where(grid > x[-1], rest, values)
  return values.mean()


@pytest.fixture(scope='module')
def results():
  study = _study(
    contrasts=(study_plan.Contrast('Other way', 'DQN', 'New'),),
    goals=(
      study_plan.Goal('New', 250.0, reached=2, seeds=4),
      study_plan.Goal('New', 250.0, reached=3, seeds=4),
      study_plan.Goal('New', 250.0, reached=2, seeds=10),
    ),
  )
  return study_results.collect(study, SYSTEMS, 'make it')


def test_areas_and_last_evaluations_follow_the_rules(results):
  new = results['variants']['New']
  whole, crashed = SYSTEMS['New'].curves[:3], SYSTEMS['New'].curves[3]
  slow = [_slowly(c.steps, c.returns, BUDGET) for c in whole]
  slow.append(_slowly(crashed.steps, crashed.returns, BUDGET, RANDOM))
  np.testing.assert_allclose(new['auc'], slow, rtol=1e-4)
  np.testing.assert_allclose(
    new['last_three'], [890 / 3, 90.0, 970 / 3, RANDOM]
  )
  assert new['auc_mean'] == pytest.approx(np.mean(new['auc']))
  assert (new['solved'], new['crashed']) == (2, 1)
  never = results['variants']['DQN']
  assert (never['auc'][3], never['last_three'][3]) == (RANDOM, RANDOM)


@pytest.mark.parametrize('end, whole', [(0.9, True), (0.89, False)])
def test_a_run_is_whole_from_nine_tenths_of_its_budget(end, whole):
  curve = _curve([0, 50, 90], end=end * BUDGET)
  assert curves.whole(curve, BUDGET) == whole


def test_differences_are_those_of_the_bootstrap(results):
  new, base = results['variants']['New'], results['variants']['DQN']
  assert 'auc_difference' not in base
  for what in ('auc', 'last_three'):
    difference = statistics.bootstrap_difference(new[what], base[what])
    assert new[f'{what}_difference'] == list(difference)
    # The margin is that of the study's threshold.
    reference = statistics.Reference(RANDOM, 100.0)
    said = statistics.verdict(difference, reference)
    assert new[f'{what}_verdict'] == said
  (contrast,) = results['contrasts']
  assert contrast['auc_difference'][0] == pytest.approx(
    -new['auc_difference'][0]
  )


def test_a_variant_with_less_steps_is_compared_over_those():
  variants = {
    'DQN': study_plan.Variant((), script='run_dqn.py'),
    'New': study_plan.Variant(('--a=(8, 8)',), budget=400, script='run_new.py'),
  }
  systems = {
    'DQN': SYSTEMS['DQN'],
    'New': _system(
      *(_curve([0, a, 2 * a, 3 * a, 4 * a], end=400) for a in (10, 20, 30, 40))
    ),
  }
  study = _study(variants=variants, seeds=4)
  found = study_results.collect(study, systems, 'make it')
  new, base = found['variants']['New'], found['variants']['DQN']
  assert (new['crashed'], new['budget'], base['budget']) == (0, 400, BUDGET)
  assert shlex.split(new['command'])[:3] == [
    'run_new.py', '--a=(8, 8)', '--config.run.steps_per_agent=400',
  ]  # fmt: skip
  np.testing.assert_allclose(new['auc'], [20.0, 40.0, 60.0, 80.0])
  # Each seed of the other over its first 400 steps; the one that left nothing
  # and no other is random. Over all of them they would come to 56 and less.
  short = [_slowly(c.steps, c.returns, 400) for c in SYSTEMS['DQN'].curves[:3]]
  assert new['auc_difference'][0] == pytest.approx(
    50.0 - np.mean([*short, RANDOM]), rel=1e-4
  )
  assert base['auc'][0] == pytest.approx(47.5)
  assert new['difference_steps'] == 400
  # Evaluations by then: 0 only of the other's, 20 to 40 times 3 of its own.
  assert new['last_three_difference'][0] == pytest.approx(
    75.0 - np.mean([0.0, 0.0, 0.0, RANDOM])
  )
  assert 'New: 400 steps, as more' in study_table.render(found)


@pytest.mark.parametrize('end, last', [(400, 200.0), (500, 100.0)])
def test_a_crash_behind_the_steps_that_are_compared_is_none_yet(end, last):
  late = _curve([0, 200, 400], end=end)
  area, found = study_results.score(_study(), late, BUDGET, 400)
  assert found == last
  assert area == pytest.approx(_slowly(late.steps, late.returns, 400), rel=1e-4)
  # Over more than it has come to it is one.
  assert study_results.score(_study(), late, BUDGET, 501)[1] == RANDOM


@pytest.mark.parametrize('seeds', [(1, 1), (1, 3), (3, 1), (2, 2)])
def test_a_single_seed_shows_nothing(seeds):
  new, base = ([_curve([low, low])] * n for low, n in zip((400, 0), seeds))
  systems = {'DQN': _system(*base), 'New': _system(*new)}
  found = study_results.collect(_study(seeds=max(seeds)), systems, 'make it')
  said = 'not shown' if 1 in seeds else 'superior'
  for entry in (found, found['by_seconds']):
    for what in ('auc', 'last_three'):
      assert entry['variants']['New'][f'{what}_verdict'] == said


def test_goals_are_counted_and_judged_with_their_own_number_of_seeds(results):
  found = [(g['found'], g['of'], g['met']) for g in results['goals']]
  assert found == [(2, 4, True), (2, 4, False), (2, 4, None)]


def test_equal_wall_clock_ends_when_the_quickest_system_is_done(results):
  found = results['by_seconds']
  assert found['seconds'] == pytest.approx(1.0 + BUDGET / 400)
  # In 3.5 s the slower one has come to 250 steps: its first evaluation only.
  base = found['variants']['DQN']
  np.testing.assert_allclose(base['steps'], [250, 250, 250, 0])
  np.testing.assert_allclose(base['last_three'], [0, 0, 0, RANDOM])
  slow = [_slowly(c.seconds, c.returns, 3.5) for c in SYSTEMS['DQN'].curves[:3]]
  np.testing.assert_allclose(base['auc'][:3], slow, rtol=1e-4)
  new, crashed = found['variants']['New'], SYSTEMS['New'].curves[3]
  assert new['last_three'][3] == RANDOM  # it had crashed by then
  assert new['auc'][3] == pytest.approx(
    _slowly(crashed.seconds, crashed.returns, 3.5, RANDOM), rel=1e-4
  )
  assert new['auc_difference'][0] == pytest.approx(
    np.mean(new['auc']) - np.mean(base['auc'])
  )


def test_a_crash_after_the_time_is_no_crash_yet():
  late = _curve([0, 200, 400], per_second=100, end=500)  # crashed at 6 s
  area, last, steps = study_results.score_by_seconds(
    _study(), late, BUDGET, 3.5
  )
  assert (last, steps) == (100.0, 250.0)
  assert area == pytest.approx(
    _slowly(late.seconds, late.returns, 3.5), rel=1e-4
  )


@pytest.mark.parametrize('end', [BUDGET, 500])
def test_an_evaluation_after_the_time_is_not_one_by_then(end):
  steps = np.array([400.0, end])
  late = curves.Curve(steps, np.array([4.0, 6.0]), np.array([300.0, 400.0]))
  found = study_results.score_by_seconds(_study(), late, BUDGET, 3.5)
  assert found == (RANDOM, RANDOM, 0.0)
  by_then = study_results.score_by_seconds(_study(), late, BUDGET, 4.0)
  assert by_then == (300.0, 300.0, 400.0)


def test_without_seconds_or_whole_runs_there_is_no_equal_wall_clock():
  steps = _study(timed=False)
  assert study_results.equal_seconds(steps, SYSTEMS) is None
  broken = {'DQN': _system(NOTHING), 'New': _system(NOTHING)}
  assert study_results.equal_seconds(_study(), broken) is None


def test_results_are_plain_json(results):
  assert json.loads(json.dumps(results)) == results


def test_the_table_says_what_was_found_and_how(results):
  text = study_table.render(results)
  rows = {
    line.split(' | ')[0].strip('| '): [c.strip(' |') for c in line.split(' | ')]
    for line in text.partition('At equal wall-clock')[0].splitlines()
    if line.startswith('| ')
  }
  new, base = results['variants']['New'], results['variants']['DQN']
  d, low, high = new['auc_difference']
  assert rows['New'][1:] == [
    '4',
    f'{new["auc_mean"]:.1f}',
    f'{new["last_three_mean"]:.1f}',
    '2 of 4',
    f'{d:+.1f} [{low:+.1f}, {high:+.1f}]',
    new['auc_verdict'],
    '5.0',  # medians
    '20',
  ]
  assert rows['DQN'][5:7] == ['-', '-']
  assert 'Made by `make it`, one run at a time, on 2 cores; code abc.' in text
  assert 'Other way (DQN minus New): ' in text
  assert 'in 2 of 4 seeds. Found: 2 of 4, met.' in text
  assert 'in 3 of 4 seeds. Found: 2 of 4, missed.' in text
  assert 'Found: 2 of 4, not judged, as that needs 10 seeds.' in text
  assert 'New: 1 of 4 crashed' in text
  assert 'the first 3.5 s' in text
  for entry, name in ((new, 'New'), (base, 'DQN')):
    for values in (entry['auc'], entry['last_three']):
      assert f'- {name}: ' + ' '.join(f'{v:.1f}' for v in values) in text
  assert '- New: `run_new.py --x --config.run.steps_per_agent=1000' in text


@pytest.mark.parametrize(
  'environment, threshold, said',
  [
    ('CartPole-v1', 475.0, '475, as gymnasium registers'),
    ('CartPole-v1', 450.0, '450, a bar of ours; gymnasium registers 475'),
    ('Reacher-v5', -5.0, '-5, a bar of ours; gymnasium registers -3.75'),
    ('Pendulum-v1', -200.0, '-200, a bar of ours; gymnasium registers none'),
  ],
)
def test_the_table_names_the_bar_and_whose_it_is(
  results, environment, threshold, said
):
  found = {**results, 'environment': environment, 'threshold': threshold}
  lines = study_table.render(found).splitlines()
  solved = f'*Solved*: mean of the last three evaluations >= {said}.'
  assert solved in lines


def test_results_of_before_there_were_budgets_of_one_system_have_a_table(
  results,
):
  variants = {
    label: {k: v for k, v in entry.items() if k != 'budget'}
    for label, entry in results['variants'].items()
  }
  text = study_table.render({**results, 'variants': variants})
  assert text == study_table.render(results)


@pytest.mark.long
def test_the_picture_has_a_panel_by_steps_and_one_by_seconds(tmp_path):
  groups = {label: system.curves for label, system in SYSTEMS.items()}
  one = compared.compare_curves(groups, tmp_path / 'one.png', budget=BUDGET)
  two = compared.compare_curves(
    groups, tmp_path / 'two.png', budget=BUDGET, seconds=3.5, threshold=100.0
  )
  assert (
    pictures.read(one).shape[1] == 1260 and pictures.read(two).shape[1] == 1890
  )


def test_a_curve_ends_where_its_system_did(tmp_path, monkeypatch):
  drawn = {}

  def band(axes, grid, values, label, number):
    drawn[label.split()[0]] = grid[-1], values.shape

  monkeypatch.setattr(compared, '_draw_band', band)
  groups = {'Long': [_curve([0, 1])], 'Short': [_curve([0, 1], end=400)] * 2}
  compared.compare_curves(groups, tmp_path / 'a.png', budget=BUDGET)
  assert drawn['Long'][0] == BUDGET
  assert 395 < drawn['Short'][0] <= 400 and drawn['Short'][1][0] == 2


@pytest.mark.parametrize('name, per_second', [('steps', 1), ('seconds', 100)])
def test_the_picture_counts_crashes_as_the_table_does(
  tmp_path, monkeypatch, name, per_second
):
  drawn = {}

  def band(axes, grid, values, label, number):
    drawn.setdefault(label, []).append((grid, values))

  monkeypatch.setattr(compared, '_draw_band', band)
  groups = {
    'One': [_curve([0, 90]), _curve([50, 50], end=500), NOTHING],
    'All': [_curve([50, 50], end=500), NOTHING],
    'Short': [_curve([50, 50], end=200), _curve([50, 50], end=400)],
    'Never': [NOTHING],
  }
  compared.compare_curves(
    groups,
    tmp_path / 'a.png',
    budget=BUDGET,
    seconds=11.0,
    random=RANDOM,
    budgets={'Short': 400},
  )
  labels = ['One (3 seeds, 2 crashed)', 'All (2 seeds, 2 crashed)']
  labels += ['Short (2 seeds, 1 crashed)', 'Never (1 seed, 1 crashed)']
  assert list(drawn) == labels
  ends = []
  for label, own in groups.items():
    panels = next(
      found for key, found in drawn.items() if key.startswith(label)
    )
    grid, values = panels[name == 'seconds']
    ends.append(grid[-1])
    assert len(values) == len(own)
    for row, curve in zip(values, own, strict=True):
      if not len(curve.steps):
        np.testing.assert_array_equal(row, RANDOM)
        continue
      at = getattr(curve, name)
      behind = grid > at[-1]
      assert behind.any() == (curve.steps[-1] not in (BUDGET, 400))
      np.testing.assert_array_equal(row[behind], RANDOM)
      np.testing.assert_allclose(
        row[~behind], np.interp(grid, at, curve.returns)[~behind]
      )
  if name == 'steps':
    assert ends == [BUDGET, BUDGET, pytest.approx(400, abs=5), BUDGET]
  else:
    assert ends == [11.0, 11.0, pytest.approx(5.0, abs=0.1), 11.0]


def test_a_study_s_own_random_policy_and_budgets_are_drawn(
  tmp_path, monkeypatch
):
  variants = {
    'DQN': study_plan.Variant((), script='run_dqn.py'),
    'New': study_plan.Variant((), budget=500, script='run_new.py'),
  }
  asked, draw = [], compared.compare_curves

  def compare_curves(*args, **options):
    asked.append(options)
    return draw(*args, **options)

  monkeypatch.setattr(study_results, 'read', lambda *unused: SYSTEMS)
  monkeypatch.setattr(compared, 'compare_curves', compare_curves)
  study_command.write(_study(variants=variants), [], tmp_path, 'make it')
  (options,) = asked
  assert options['random'] == RANDOM
  assert options['budgets'] == {'DQN': BUDGET, 'New': 500}
  pictures.read(tmp_path / 'learning_curves.png')


def test_nothing_to_draw_is_said(tmp_path):
  with pytest.raises(ValueError, match="'DQN'.* has an evaluation"):
    compared.compare_curves(
      {'DQN': [NOTHING]}, tmp_path / 'a.png', budget=BUDGET
    )
