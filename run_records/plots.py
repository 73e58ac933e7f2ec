"""The plot of one run, and the style that all plots share.

It reads only the run directory, so it can be made again at any time.
studies/plots.py draws several systems.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator, Mapping, Sequence
import contextlib
import logging
import os
import pathlib
from typing import Any

import matplotlib
from matplotlib import axes as mpl_axes
from matplotlib import figure as mpl_figure
from matplotlib import layout_engine
from matplotlib import ticker
from matplotlib.backends import backend_agg

from murmuration.run_records import curves
from murmuration.run_records import durable
from murmuration.run_records import run_directory

# If another version of matplotlib made the user's list of fonts, this one logs
# twenty lines about fonts that no plot here needs.
logging.getLogger('matplotlib.font_manager').setLevel(logging.ERROR)

_INK = '#22313f'
MUTED = '#7b8a97'
_PAPER = '#fbfaf7'
_STAR = '#e0892b'
_FLOCK = '#8fb8b3'
# Distinguishable in grey, and with colour blindness.
COLOURS = ('#1b7f79', '#c2503f', '#4a5fa8', '#b08a1e', '#8a4f8e', '#5b6770')

# What is drawn of the rows of nodes, of which a long run has GBs.
_COLUMNS = (
  'node',
  'kind',
  'version',
  'actor_steps',
  'episode_return',
  'R_star',
  'c',
)
_POINTS = 2000  # of a node, if it has more; at most twice as many

_STYLE = {
  'figure.facecolor': _PAPER,
  'axes.facecolor': _PAPER,
  'axes.edgecolor': MUTED,
  'axes.labelcolor': _INK,
  'axes.titlecolor': _INK,
  'axes.titlesize': 14,
  'axes.titleweight': 'bold',
  'axes.titlelocation': 'left',
  'axes.titlepad': 12,
  'axes.spines.top': False,
  'axes.spines.right': False,
  'axes.grid': True,
  'axes.axisbelow': True,
  'grid.color': '#e4e1d9',
  'grid.linewidth': 0.8,
  'xtick.color': MUTED,
  'ytick.color': MUTED,
  'xtick.labelcolor': _INK,
  'ytick.labelcolor': _INK,
  'text.color': _INK,
  'font.size': 10.5,
  'legend.frameon': False,
  'lines.solid_capstyle': 'round',
}


def learning_curve(
  run_dir: str | os.PathLike[str],
  path: str | os.PathLike[str] | None = None,
) -> pathlib.Path | None:
  """Draws a run's greedy returns and, for a swarm, its supervisors' episodes.

  A swarm's plot also has the record R* and, below, the weight c of the pull.
  The run may be unfinished. `path` None is RUN/learning_curve.png.

  Returns:
    The path of the PNG, or None if the run has no evaluation to draw.
  """
  run = run_directory.open(run_dir)
  path = pathlib.Path(path or run.path / 'learning_curve.png')
  evaluations = curves.in_order(run.metrics('evaluation'), 'return_mean')
  if not evaluations:
    return None
  stars, config = _rows(run, 'star', 'R_star'), run.config()
  members = curves.num_members(evaluations)
  with canvas(path) as figure:
    heights = {'height_ratios': [4, 1] if stars else [1]}
    panels = figure.subplots(
      len(heights['height_ratios']),
      squeeze=False,
      sharex=True,
      gridspec_kw=heights,
    )
    top, bottom = panels[0, 0], panels[-1, 0]
    if stars:
      _draw_swarm(top, bottom, run, stars, members)
    _draw_evaluations(top, evaluations)
    draw_threshold(top, curves.threshold(config.get('environment')))
    label = 'environment steps'
    if members > 1:
      member = 'explorer' if config.get('topology') == 'swarm' else 'agent'
      total = evaluations[-1]['actor_steps']
      label += f' per {member} ({members} {member}s, {total:,.0f} steps in all)'
    bottom.set_xlabel(label)
    bottom.xaxis.set_major_formatter(ticker.FuncFormatter(short))
    top.set_title(_title(run.name, config))
    top.set_ylabel('episode return')
    top.set_xlim(left=0)
    handles, labels = top.get_legend_handles_labels()
    figure.legend(
      handles, labels, loc='outside lower center', ncols=3, fontsize=9.5
    )
  return path


@contextlib.contextmanager
def canvas(
  path: str | os.PathLike[str], width: float = 8.4
) -> Iterator[mpl_figure.Figure]:
  """Yields a figure and then saves it; does not use pyplot's global state.

  Makes the directory of the PNG. `width` is in inches of 150 pixels.
  """
  with matplotlib.rc_context(_STYLE):
    margins = layout_engine.ConstrainedLayoutEngine(w_pad=0.14, h_pad=0.12)
    figure = mpl_figure.Figure(figsize=(width, 5.4), layout=margins)
    backend_agg.FigureCanvasAgg(figure)
    yield figure
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Whole or not at all: on a full disk half a picture would be left.
    durable.replace(
      path, lambda file: figure.savefig(file, dpi=150, format='png'), sync=False
    )


class _Thinned:
  """Every n-th of the rows that are added; n doubles as they become many."""

  def __init__(self):
    self.rows: list[dict[str, Any]] = []
    self._seen, self._every = 0, 1

  def add(self, row: dict[str, Any]) -> None:
    if self._seen % self._every == 0:
      self.rows.append(row)
    self._seen += 1
    if len(self.rows) == 2 * _POINTS:
      del self.rows[1::2]
      self._every *= 2


def _rows(
  run: run_directory.RunDirectory, kind: str, needed: str
) -> list[dict[str, Any]]:
  """Rows of a kind with a finite `needed`, in order and thinned."""
  thinned: dict[Any, _Thinned] = collections.defaultdict(_Thinned)
  for row in run.rows(kind):
    if row.get(needed) is not None:
      kept = {name: row[name] for name in _COLUMNS if name in row}
      thinned[row.get('node'), row.get('kind')].add(kept)
  rows = [row for each in thinned.values() for row in each.rows]
  return curves.in_order(rows, needed)


def _title(name: str, config: Mapping[str, Any]) -> str:
  if 'agent_name' not in config:
    return name
  return (
    f'{config["agent_name"]} on {config.get("environment")}, '
    f'{config.get("topology")}, seed {config.get("seed")}'
  )


def _draw_evaluations(
  axes: mpl_axes.Axes, rows: Sequence[Mapping[str, Any]]
) -> None:
  x = [curves.steps_per_member(row) for row in rows]
  mean = [row['return_mean'] for row in rows]
  episodes = [curves.finite(row.get('returns') or ()) for row in rows]
  if any(episodes):
    low = [min([m, *e]) for m, e in zip(mean, episodes, strict=True)]
    high = [max([m, *e]) for m, e in zip(mean, episodes, strict=True)]
    axes.fill_between(
      x,
      low,
      high,
      color=COLOURS[0],
      alpha=0.13,
      linewidth=0,
      label='worst to best episode',
    )
  axes.plot(
    x,
    mean,
    color=COLOURS[0],
    linewidth=2.2,
    marker='o',
    markersize=4,
    markeredgecolor=_PAPER,
    label='evaluation, greedy',
    zorder=4,
  )


def _draw_swarm(
  axes: mpl_axes.Axes,
  low: mpl_axes.Axes,
  run: run_directory.RunDirectory,
  stars: Sequence[Mapping[str, Any]],
  members: int,
) -> None:
  """Draws explorers, supervised episodes and R*; and the pull, in `low`."""

  def draw(panel, rows, column, **style):
    x = [row['actor_steps'] / members for row in rows]
    panel.plot(x, [row[column] for row in rows], **style)

  explorers = collections.defaultdict(list)
  for row in _rows(run, 'node_explorer', 'episode_return'):
    explorers[row['node']].append(row)
  label: str | None = 'explorers, while training'
  for _, rows in sorted(explorers.items()):
    draw(axes, rows, 'episode_return', color=_FLOCK, lw=1, label=label)
    label = None
  dots: dict[str, Any] = {'linestyle': 'none', 'markeredgecolor': _PAPER}
  supervised = _rows(run, 'supervisor', 'episode_return')
  for kind, colour in (('trial', MUTED), ('confirmation', _STAR)):
    own = [row for row in supervised if row.get('kind') == kind]
    look = {**dots, 'marker': '.', 'markeredgewidth': 0, 'color': colour}
    if own:
      draw(axes, own, 'episode_return', label=f'supervisor, {kind}s', **look)
  # By the server's reports: c and R* change between publications too.
  look = {'drawstyle': 'steps-post', 'color': _STAR, 'lw': 1.3}
  record = _rows(run, 'node_star', 'R_star') or stars
  draw(axes, record, 'R_star', label='$R^*$', **look)
  # A row is also written for every further win of the same theta_star.
  new = {row.get('version'): row for row in reversed(stars)}.values()
  look_new = {**dots, 'marker': '*', 'markersize': 11, 'color': _STAR}
  label = r'new $\theta^*$, mean of its trial'
  draw(axes, new, 'R_star', label=label, zorder=5, **look_new)
  draw(low, _rows(run, 'node_star', 'c') or stars, 'c', **look)
  low.set_ylim(bottom=0)
  low.set_ylabel('pull c')
  low.yaxis.set_major_locator(ticker.MaxNLocator(2))


def draw_threshold(axes: mpl_axes.Axes, threshold: float | None) -> None:
  """Draws a line at the return that counts as solved, if there is one."""
  if threshold is None:
    return
  axes.axhline(
    threshold, color=MUTED, linewidth=1.1, linestyle=(0, (5, 4)), zorder=1
  )
  axes.annotate(
    f'solved at {threshold:g}',
    (0, threshold),
    (6, 4),
    fontsize=9,
    xycoords=('axes fraction', 'data'),
    textcoords='offset points',
    color=MUTED,
  )


def short(value: float, _: int | None = None) -> str:
  """Formats 2000 as '2 k', for the labels of an axis."""
  if abs(value) >= 1e6:
    return f'{value / 1e6:g} M'
  return f'{value / 1e3:g} k' if abs(value) >= 1e3 else f'{value:g}'
