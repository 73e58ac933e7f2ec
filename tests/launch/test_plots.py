"""Plots: drawn from run directories alone, whatever is missing in them."""

import matplotlib.image
import numpy as np
import pytest

from launch import curves
from launch import metrics
from launch import plots
from launch import run_directory


def _run(
  path, evaluations=(), stars=(), explorers=(), environment='Acrobot-v1'
):
  run = run_directory.create(path, {'environment': environment}, {})
  writer = metrics.MetricsWriter(run.metrics_directory)
  for row in evaluations:
    writer.row('evaluation', row)
  for row in stars:
    writer.row('star', row)
  for row in explorers:
    writer.row('node_explorer', row)
  writer.close()
  return path


def _evaluation(per_member, mean, members=4):
  return {
    'actor_steps': per_member * members,
    'actor_steps_per_member': per_member,
    'return_mean': mean,
    'returns': [mean - 1, mean + 1],
  }


def _picture(path):
  """The PNG's pixels [H, W, 4]; fails if it is blank."""
  pixels = matplotlib.image.imread(path)
  assert len(np.unique(pixels.reshape(-1, pixels.shape[-1]), axis=0)) > 20
  return pixels


def test_a_swarms_run_is_drawn_with_its_record_and_pull(tmp_path):
  run = _run(
    tmp_path / 'a',
    [_evaluation(100, -500.0), _evaluation(200, -80.0)],
    [
      {'version': 1, 'R_star': -90.0, 'c': 0.0, 'actor_steps': 300},
      {'version': 1, 'R_star': -88.0, 'c': 0.02, 'actor_steps': 600},
    ],
    [{'node': 'explorer/0', 'actor_steps': 9, 'episode_return': -400.0}],
  )
  path = plots.learning_curve(run)
  assert path == run / 'learning_curve.png'
  assert _picture(path).shape[1] == 1260


def test_a_plain_agents_run_is_drawn_without_a_swarm(tmp_path):
  rows = [{'actor_steps': 5, 'return_mean': 1.0}]
  run = _run(tmp_path / 'a', rows, environment='Unknown-v0')
  _picture(plots.learning_curve(run, tmp_path / 'out' / 'b.png'))


def test_a_run_that_was_never_evaluated_has_no_curve(tmp_path):
  run = _run(tmp_path / 'a', [_evaluation(1, float('nan'))])
  assert plots.learning_curve(run) is None
  assert not (run / 'learning_curve.png').exists()


def test_systems_are_compared_per_member_with_seeds_of_any_length(tmp_path):
  swarm = [
    _run(tmp_path / f's{i}', [_evaluation(100, -90.0), _evaluation(200, i)])
    for i in range(3)
  ]
  swarm.append(_run(tmp_path / 'crashed'))
  plain = [_run(tmp_path / 'p', [_evaluation(150, -400.0, members=1)])]
  path = plots.compare_curves(
    {'PSO-DQN': swarm, 'DQN': plain}, tmp_path / 'out.png', title='Acrobot'
  )
  _picture(path)


def test_a_system_without_any_evaluation_is_named(tmp_path):
  run = _run(tmp_path / 'a')
  with pytest.raises(ValueError, match="'DQN' has an evaluation"):
    plots.compare_curves({'DQN': [run]}, tmp_path / 'out.png')


def test_a_curve_counts_steps_per_member_or_of_all(tmp_path):
  # A resumed run may have logged its last steps twice, and out of order.
  rows = [_evaluation(200, 2.0), _evaluation(100, 1.0)]
  run = _run(tmp_path / 'a', rows)
  steps, returns = curves.evaluation_curve(run)
  np.testing.assert_array_equal(steps, [100, 200])
  np.testing.assert_array_equal(returns, [1.0, 2.0])
  steps, _ = curves.evaluation_curve(run, total_steps=True)
  np.testing.assert_array_equal(steps, [400, 800])


def test_the_threshold_is_found_wherever_the_config_names_the_environment():
  config = {'agent': {'n': 3}, 'run': [{'environment': 'CartPole-v1'}]}
  assert curves.threshold(config) == 475.0
  assert curves.threshold({'environment': 'Mine-v0'}) is None
