"""Plots: drawn from run directories alone, whatever is missing in them."""

import contextlib

from matplotlib import figure
import numpy as np
import pytest

from murmuration.run_records import curves
from murmuration.run_records import metrics
from murmuration.run_records import plots
from murmuration.run_records import run_directory
from tests import pictures


def _run(
  path,
  evaluations=(),
  stars=(),
  explorers=(),
  environment='Acrobot-v1',
  topology='swarm',
  **more,
):
  config = {'environment': environment, 'topology': topology}
  run = run_directory.create(path, config, {})
  writer = metrics.MetricsWriter(run.metrics_directory)
  for row in evaluations:
    writer.row('evaluation', row)
  for row in stars:
    writer.row('star', row)
  for row in explorers:
    writer.row('node_explorer', row)
  for kind, rows in more.items():
    for row in rows:
      writer.row(kind, row)
  writer.close()
  return path


def _evaluation(per_member, mean, members=4):
  return {
    'actor_steps': per_member * members,
    'actor_steps_per_member': per_member,
    'return_mean': mean,
    'returns': [mean - 1, mean + 1],
  }


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
  assert pictures.read(path).shape[1] == 1260


def _figure(monkeypatch, run):
  """The figure of the run's curve."""
  figures = []
  canvas = plots.canvas

  @contextlib.contextmanager
  def watched(*args, **options):
    with canvas(*args, **options) as figure:
      figures.append(figure)
      yield figure

  monkeypatch.setattr(plots, 'canvas', watched)
  pictures.read(plots.learning_curve(run))
  return figures[0]


def _lines(monkeypatch, run):
  """Label of each line of the upper panel to its points; and the pull's."""
  top, *low = _figure(monkeypatch, run).axes
  lines = {line.get_label(): line for line in top.lines}
  for axes in low:
    (lines['pull'],) = axes.lines
  return {
    label: list(zip(*line.get_data(), strict=True))
    for label, line in lines.items()
  }


@pytest.mark.parametrize(
  'topology, member', [('swarm', 'explorer'), ('single_process', 'agent')]
)
def test_members_are_called_as_their_topology_calls_them(
  tmp_path, monkeypatch, topology, member
):
  run = _run(tmp_path / 'a', [_evaluation(100, 1.0)], topology=topology)
  label = _figure(monkeypatch, run).axes[0].get_xlabel()
  assert label.startswith(f'environment steps per {member} (4 {member}s, 400 ')


def test_the_record_is_what_was_confirmed_not_what_was_accepted(
  tmp_path, monkeypatch
):
  run = _run(
    tmp_path / 'a',
    [_evaluation(100, -90.0), _evaluation(200, -80.0)],
    # Accepted by a lucky trial; its confirmations say -120.
    [{'version': 1, 'R_star': -70.0, 'c': 0.0, 'actor_steps': 400}],
    node_star=[
      {'R_star': float('-inf'), 'c': 0.0, 'actor_steps': 200},
      {'R_star': -70.0, 'c': 0.0, 'actor_steps': 400},
      {'R_star': -120.0, 'c': 0.01, 'actor_steps': 800},
    ],
    supervisor=[
      {'kind': 'trial', 'episode_return': -70.0, 'actor_steps': 396},
      {'kind': 'confirmation', 'episode_return': -150.0, 'actor_steps': 440},
      {'kind': 'confirmation', 'episode_return': -140.0, 'actor_steps': 480},
    ],
  )
  lines = _lines(monkeypatch, run)
  # By the steps of each of the four members.
  assert lines['$R^*$'] == [(100.0, -70.0), (200.0, -120.0)]
  # The weight also changes between publications.
  assert lines['pull'] == [(50.0, 0.0), (100.0, 0.0), (200.0, 0.01)]
  (new,) = [points for label, points in lines.items() if 'new' in label]
  assert new == [(100.0, -70.0)]
  assert lines['supervisor, trials'] == [(99.0, -70.0)]
  confirmed = lines['supervisor, confirmations']
  assert confirmed == [(110.0, -150.0), (120.0, -140.0)]


def test_a_star_is_drawn_once_however_often_it_wins(tmp_path, monkeypatch):
  stars = [
    {'actor_steps': steps, 'R_star': 1.0, 'c': 0.0, 'version': version}
    for steps, version in ((40, 1), (80, 1), (120, 2))
  ]
  lines = _lines(
    monkeypatch, _run(tmp_path / 'a', [_evaluation(9, 1.0)], stars)
  )
  (new,) = [points for label, points in lines.items() if 'new' in label]
  assert sorted(new) == [(10, 1.0), (30, 1.0)]


def test_the_band_reaches_from_the_worst_to_the_best_episode():
  axes = figure.Figure().subplots()
  rows = [
    {'actor_steps': steps, 'return_mean': 2.0, 'returns': [1.0, 2.0, 3.5]}
    for steps in (10, 20)
  ]
  plots._draw_evaluations(axes, rows)
  (band,) = axes.collections
  height = band.get_paths()[0].vertices[:, 1]
  assert (height.min(), height.max()) == (1.0, 3.5)


def test_of_a_long_run_a_part_of_each_nodes_rows_is_kept(tmp_path, monkeypatch):
  monkeypatch.setattr(plots, '_POINTS', 10)
  own = run_directory.RunDirectory.metrics  # would hold all rows
  monkeypatch.setattr(
    run_directory.RunDirectory,
    'metrics',
    lambda run, kind: {'evaluation': own}[kind](run, kind),
  )
  row = {'node': 'explorer/1', 'actor_steps': 7, 'episode_return': -1.0}
  many = [
    {'node': 'explorer/0', 'actor_steps': i, 'episode_return': float(i)}
    for i in range(1000)
  ]
  run = _run(
    tmp_path / 'a',
    [_evaluation(250, 1.0)],
    [{'version': 1, 'R_star': 1.0, 'c': 0.0, 'actor_steps': 40}],
    [row, *({**each, 'loss': 1.0} for each in many)],
  )
  rows = plots._rows(run_directory.open(run), 'node_explorer', 'episode_return')
  assert rows == [*many[:1], row, *many[64:1000:64]]
  assert _lines(monkeypatch, run)['explorers, while training'][-1] == (
    240.0,
    960.0,
  )


def test_a_plain_agents_run_is_drawn_without_a_swarm(tmp_path):
  rows = [{'actor_steps': 5, 'return_mean': 1.0}]
  run = _run(tmp_path / 'a', rows, environment='Unknown-v0')
  pictures.read(plots.learning_curve(run, tmp_path / 'out' / 'b.png'))


def test_a_run_that_was_never_evaluated_has_no_curve(tmp_path):
  run = _run(tmp_path / 'a', [_evaluation(1, float('nan'))])
  assert plots.learning_curve(run) is None
  assert not (run / 'learning_curve.png').exists()


def test_a_curve_is_read_by_the_steps_of_a_member(tmp_path):
  # A resumed run may have logged its last steps twice, and out of order; a
  # restarted node may have begun to count its seconds anew.
  rows = [
    {**_evaluation(200, 9.0), 'elapsed_s': 7.0},
    {**_evaluation(100, 1.0), 'elapsed_s': 5.0},
    {**_evaluation(150, float('nan')), 'elapsed_s': 6.0},
    {**_evaluation(200, 2.0), 'elapsed_s': 3.0},
  ]
  curve = curves.of_run(_run(tmp_path / 'a', rows))
  np.testing.assert_array_equal(curve.steps, [100, 200])
  np.testing.assert_array_equal(curve.returns, [1.0, 2.0])
  np.testing.assert_array_equal(curve.seconds, [5.0, 5.0])


def test_members_have_a_curve_each(tmp_path):
  rows = [
    {**_evaluation(steps, 0.0), 'member_returns': [steps, -steps]}
    for steps in (100, 200)
  ]
  first, second = curves.of_members(_run(tmp_path / 'a', rows))
  np.testing.assert_array_equal(first.steps, [100, 200])
  np.testing.assert_array_equal(first.returns, [100, 200])
  np.testing.assert_array_equal(second.returns, [-100, -200])
  with pytest.raises(ValueError, match='not its members'):
    curves.of_members(_run(tmp_path / 'b', [_evaluation(100, 1.0)]))


def test_a_member_that_broke_costs_the_others_no_point_of_their_curves(
  tmp_path,
):
  nan = float('nan')
  # Five episodes of each; the first two choose the best, three would another.
  good, better = [1.0, 1, 9, -2, -1], [3.0, 3, 3, 6, 6]
  rows = [
    {
      'member_returns': [1.6, 4.2],
      'return_mean': 2.9,
      'returns': good + better,
    },
    {'member_returns': [1.6, nan], 'return_mean': nan, 'returns': good},
    {'member_returns': [nan, nan], 'return_mean': nan, 'returns': []},
    {'member_returns': [nan, 4.2], 'return_mean': nan, 'returns': better},
  ]
  for number, row in enumerate(rows):
    row |= {'actor_steps': 200 * number, 'actor_steps_per_member': 100 * number}
  run = _run(tmp_path / 'a', rows)
  first, second = curves.of_members(run)
  np.testing.assert_array_equal(first.steps, [0, 100])
  np.testing.assert_array_equal(first.returns, [1.6, 1.6])
  np.testing.assert_array_equal(second.steps, [0, 300])
  np.testing.assert_array_equal(second.returns, [4.2, 4.2])
  best = curves.of_best_member(run)
  np.testing.assert_array_equal(best.steps, [0, 100, 300])
  np.testing.assert_array_equal(best.returns, [5.0, 2.0, 5.0])
  assert curves.given_up(run) == 4
  single = [_evaluation(100, 1.0), _evaluation(200, nan)]
  assert curves.given_up(_run(tmp_path / 'b', single)) == 1


def test_members_are_counted_where_most_steps_were_made():
  # Those of the first evaluation are of members that began at different times.
  shares = [(0, 0), (70, 10), (40_000, 10_000)]
  rows = [{'actor_steps': a, 'actor_steps_per_member': b} for a, b in shares]
  assert curves.num_members(rows) == 4


def test_a_run_without_evaluations_has_an_empty_curve(tmp_path):
  run = _run(tmp_path / 'a')
  assert [len(part) for part in curves.of_run(run)] == [0, 0, 0]
  assert curves.of_members(run) == []


def test_an_environment_that_nobody_registered_has_no_threshold():
  assert curves.threshold('CartPole-v1') == 475.0
  assert curves.threshold('Mine-v0') is curves.threshold(None) is None


def test_a_picture_is_there_whole_or_as_it_was(tmp_path, monkeypatch):
  path = tmp_path / 'pictures' / 'one.png'
  with plots.canvas(path) as figure:
    figure.subplots()
  before = path.read_bytes()

  def full(figure, file, **options):
    file.write(b'half a picture')
    raise OSError(28, 'No space left on device')

  with pytest.raises(OSError, match='No space left'):
    with plots.canvas(path) as figure:
      monkeypatch.setattr(type(figure), 'savefig', full)
  assert path.read_bytes() == before
  assert [*path.parent.iterdir()] == [path]
