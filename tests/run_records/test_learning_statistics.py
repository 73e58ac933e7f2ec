"""Areas, intervals and verdicts, against slow transcriptions of the rules."""

import json
import pathlib

import numpy as np
import pytest

from murmuration.run_records import learning_statistics as statistics

_VECTORS = json.loads(
  (
    pathlib.Path(__file__).parents[1] / 'vectors' / 'learning_curve_auc.json'
  ).read_text()
)


@pytest.mark.parametrize('case', _VECTORS['cases'], ids=lambda c: c['name'])
def test_learning_curve_auc_vectors(case):
  auc = statistics.learning_curve_auc(**case['inputs'])
  expected = case['expected']['auc']
  assert auc == pytest.approx(expected, **_tolerance('float64'))


def _tolerance(dtype):
  tolerance = _VECTORS['tolerance'][dtype]
  return {'rel': tolerance['rtol'], 'abs': tolerance['atol']}


def test_the_area_is_the_mean_of_the_curve_read_at_every_step():
  # Crosses all rules: a late start, a point past the budget, two at a step.
  steps, returns, budget = [3, 7, 7, 20], [1.0, 5.0, 4.0, -2.0], 12
  fine = np.linspace(0, budget, 1_200_001)
  curve = statistics.on_grid(steps, returns, fine)
  area = statistics.learning_curve_auc(steps, returns, budget)
  assert area == pytest.approx(curve.mean(), abs=1e-4)


def test_a_crashed_run_counts_as_random_for_the_rest():
  # 100 up to step 40, then 20 over the other 60.
  area = statistics.learning_curve_auc([0, 40], [100, 100], 100, 20.0)
  assert area == pytest.approx(0.4 * 100 + 0.6 * 20)
  assert statistics.learning_curve_auc([], [], 100, 20.0) == 20.0
  assert statistics.learning_curve_auc([0], [100], 100, 20.0) == 20.0
  # Crashed after the budget was used: nothing is left to be random.
  late = statistics.learning_curve_auc([0, 200], [100, 100], 100, 20.0)
  assert late == pytest.approx(100.0)


@pytest.mark.parametrize(
  'steps, returns, budget, message',
  [
    ([], [], 10, 'a point'),
    ([0, 5], [1.0], 10, 'no curve'),
    ([5, 0], [1.0, 2.0], 10, 'must increase'),
    ([0, 5], [1.0, float('nan')], 10, 'non-finite'),
    ([0, 5], [1.0, 2.0], 0, 'budget=0'),
  ],
)
def test_a_curve_without_an_area_is_refused(steps, returns, budget, message):
  with pytest.raises(ValueError, match=message):
    statistics.learning_curve_auc(steps, returns, budget)


def test_the_bootstrap_interval_is_the_percentiles_of_resampled_means():
  a, b = [5.0, 7.0, 9.0, 4.0], [1.0, 2.0, 6.0]
  found = statistics.bootstrap_difference(a, b, resamples=4000, seed=1)
  rng = np.random.default_rng(2)  # Another stream: equal up to its noise.
  slow = [
    np.mean(rng.choice(a, len(a))) - np.mean(rng.choice(b, len(b)))
    for _ in range(4000)
  ]
  assert found.difference == pytest.approx(6.25 - 3.0)
  assert found.low == pytest.approx(np.percentile(slow, 2.5), abs=0.3)
  assert found.high == pytest.approx(np.percentile(slow, 97.5), abs=0.3)


def test_the_same_numbers_give_the_same_interval():
  a, b = [1.0, 2.0, 3.0], [1.0, 1.5]
  first = statistics.bootstrap_difference(a, b)
  assert first == statistics.bootstrap_difference(a, b)
  assert first != statistics.bootstrap_difference(a, b, seed=1)


def test_the_interval_covers_the_true_difference_about_as_often_as_it_says():
  rng = np.random.default_rng(0)
  covered = 0
  for _ in range(200):
    a, b = rng.normal(1.0, 1.0, 20), rng.normal(0.0, 2.0, 20)
    found = statistics.bootstrap_difference(a, b, resamples=500)
    covered += found.low <= 1.0 <= found.high
  # The percentile interval of 20 samples is a little too short.
  assert 175 <= covered <= 200


def test_a_band_is_the_bootstrap_at_each_point():
  curves = np.array([[0.0, 1.0, 5.0], [0.0, 3.0, 5.0], [0.0, 8.0, 5.0]])
  band = statistics.bootstrap_band(curves, resamples=4000)
  np.testing.assert_allclose(band.mean, [0.0, 4.0, 5.0])
  assert band.low[0] == band.high[0] == 0.0
  assert band.low[1] == pytest.approx(1.0) and band.high[1] > 6.0
  with pytest.raises(ValueError, match='K, N'):
    statistics.bootstrap_band(np.zeros(3))


@pytest.mark.parametrize(
  'low, high, expected',
  [
    (0.1, 20.0, 'superior'),
    (0.0, 20.0, 'not inferior'),
    (-44.8, 0.0, 'not inferior'),
    (-44.8, -0.1, 'worse, within the margin'),
    (-45.0, 0.0, 'not shown'),
    (-45.0, -0.1, 'inferior'),
  ],
)
def test_verdicts_follow_the_bounds(low, high, expected):
  # 0.1 * (475 - 26) = 44.9
  reference = statistics.REFERENCES['CartPole-v1']
  difference = statistics.Difference(10.0, low, high)
  assert statistics.verdict(difference, reference) == expected


def test_last_evaluations_are_the_last_three():
  assert statistics.last_evaluations([0, 1, 2, 3]) == 2.0
  assert statistics.last_evaluations([4.0]) == 4.0
  with pytest.raises(ValueError, match='no evaluation'):
    statistics.last_evaluations([])


@pytest.mark.parametrize('a', [[], [1.0, float('inf')], [[1.0]]])
def test_a_sample_that_is_none_is_refused(a):
  with pytest.raises(ValueError, match='one finite number per run'):
    statistics.bootstrap_difference(a, [1.0])


def test_an_area_needs_nothing_that_numpy_2_has_not(monkeypatch):
  monkeypatch.delattr(np, 'trapz', raising=False)
  area = statistics.learning_curve_auc([0.0, 1.0, 4.0], [0.0, 2.0, 2.0], 4.0)
  assert area == (1.0 + 6.0) / 4.0
