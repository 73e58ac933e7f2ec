"""A plot of several systems: bands over seeds, by steps and by seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import os
import pathlib

from matplotlib import axes as mpl_axes
from matplotlib import ticker
import numpy as np

from murmuration.run_records import curves
from murmuration.run_records import learning_statistics as statistics
from murmuration.run_records import plots

_GRID_POINTS = 240
_LINES = ('-', '--', '-.', ':')


def compare_curves(
  groups: Mapping[str, Sequence[curves.Curve]],
  path: str | os.PathLike[str],
  *,
  budget: float,
  seconds: float | None = None,
  title: str = '',
  threshold: float | None = None,
  random: float | None = None,
  budgets: Mapping[str, float] | None = None,
) -> pathlib.Path:
  """Plots systems as the mean over seeds with a 95% bootstrap interval.

  Args:
    groups: curves of each seed, by label. The legend counts crashed seeds and
      those without an evaluation. A label without any evaluation is not drawn,
      unless a crashed seed counts as `random`.
    budget: end of the axis of steps.
    seconds: end of the axis of seconds, in a second panel; None draws none.
    threshold: return that counts as solved.
    random: return of a crashed seed after its last evaluation, as in the table;
      None continues that evaluation.
    budgets: steps of the labels whose budget is not `budget`.

  Raises:
    ValueError: nothing to draw.
  """
  groups = {label: list(found) for label, found in groups.items()}
  if not any(len(c.steps) for found in groups.values() for c in found):
    raise ValueError(
      f'no run of {list(groups)} has an evaluation to draw. Let one get as far '
      'as its first evaluation.'
    )
  budgets = {**dict.fromkeys(groups, budget), **(budgets or {})}
  panels = [('steps', budget, 'environment steps per agent')]
  if seconds is not None:
    panels.append(('seconds', seconds, 'seconds since the start of the run'))
  with plots.canvas(path, width=8.4 if len(panels) == 1 else 12.6) as figure:
    drawn = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (name, end, label) in zip(drawn, panels, strict=True):
      _draw(axes, groups, name, end, random, budgets)
      plots.draw_threshold(axes, threshold)
      axes.set_xlim(0, end)
      axes.set_xlabel(label)
      axes.xaxis.set_major_formatter(ticker.FuncFormatter(plots.short))
    drawn[0].set_ylabel('greedy return, mean over seeds')
    drawn[0].set_title(title)
    handles, labels = drawn[0].get_legend_handles_labels()
    figure.legend(
      handles, labels, loc='outside lower center', ncols=3, fontsize=9.5
    )
    figure.text(
      0.995,
      0.985,
      'shaded: 95% bootstrap interval over seeds',
      ha='right',
      va='top',
      fontsize=8.5,
      color=plots.MUTED,
    )
  return pathlib.Path(path)


def _draw(
  axes: mpl_axes.Axes,
  groups: Mapping[str, Sequence[curves.Curve]],
  name: str,
  end: float,
  random: float | None,
  budgets: Mapping[str, float],
) -> None:
  grid = np.linspace(0.0, end, _GRID_POINTS)
  for number, (label, found) in enumerate(groups.items()):
    crashed = [
      random is not None and not curves.whole(curve, budgets[label])
      for curve in found
    ]
    # A system with fewer steps has no line beyond them.
    ends = [getattr(curve, name)[-1] for curve in found if len(curve.steps)]
    if any(crashed) and all(crashed):
      ends.append(budgets[label] if name == 'steps' else end)
    own = grid[grid <= max(ends, default=0.0)]
    values = [
      _on_grid(
        getattr(curve, name), curve.returns, own, random if over else None
      )
      for curve, over in zip(found, crashed, strict=True)
      if over or len(curve.steps)
    ]
    seeds = f'{len(values)} seed{"s" if len(values) != 1 else ""}'
    if any(crashed):
      seeds += f', {sum(crashed)} crashed'
    if len(values) < len(found):
      seeds += f', {len(found) - len(values)} without evaluation'
    if values:
      _draw_band(axes, own, np.stack(values), f'{label} ({seeds})', number)


def _on_grid(
  x: np.ndarray, returns: np.ndarray, grid: np.ndarray, rest: float | None
) -> np.ndarray:
  """A curve at the points of a grid, `rest` after its last evaluation."""
  if rest is None:
    return statistics.on_grid(x, returns, grid)
  if not len(x):
    return np.full(len(grid), rest)
  return np.where(grid > x[-1], rest, statistics.on_grid(x, returns, grid))


def _draw_band(
  axes: mpl_axes.Axes,
  grid: np.ndarray,
  values: np.ndarray,
  label: str,
  number: int,
) -> None:
  colour = plots.COLOURS[number % len(plots.COLOURS)]
  band = statistics.bootstrap_band(values)
  axes.plot(grid, values.T, color=colour, linewidth=0.6, alpha=0.22)
  if len(values) > 1:
    axes.fill_between(
      grid, band.low, band.high, color=colour, alpha=0.2, linewidth=0
    )
  axes.plot(
    grid,
    band.mean,
    color=colour,
    linewidth=2.4,
    label=label,
    linestyle=_LINES[number % len(_LINES)],
    zorder=4,
  )
