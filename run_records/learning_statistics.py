"""Statistics to compare two systems: areas, bootstrap intervals and verdicts.

The unit is the seed: each run gives one number, and intervals come from
resampling runs, not the evaluations within a run. All seeds count; a crashed
run counts as a random policy for the rest of its budget.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy import typing as npt

_PERCENTILES = (2.5, 97.5)  # an interval has 95% of the mass


class Reference(NamedTuple):
  """Mean returns to which the returns of a task are compared.

  Attributes:
    random: mean return of the random policy, measured.
    threshold: mean return at which the task counts as solved.
  """

  random: float
  threshold: float


# Random policies were measured with gymnasium 1.3. The thresholds of CartPole,
# Acrobot, MountainCar, LunarLander and the inverted pendulums are those that
# gymnasium registers. The others were chosen here, for small runs: gymnasium's
# are higher for Reacher, Pusher, Hopper, Swimmer and HalfCheetah, and missing
# for Pendulum, Walker2d and HumanoidStandup. A study may have its own.
REFERENCES = {
  'CartPole-v1': Reference(26.0, 475.0),
  'examples.position_cartpole:PositionCartPole': Reference(26.0, 475.0),
  'Acrobot-v1': Reference(-500.0, -100.0),
  'MountainCar-v0': Reference(-200.0, -110.0),
  'LunarLander-v3': Reference(-184.0, 200.0),
  'Pendulum-v1': Reference(-1225.0, -200.0),
  'InvertedPendulum-v5': Reference(4.5, 950.0),
  'InvertedDoublePendulum-v5': Reference(52.0, 9100.0),
  'Reacher-v5': Reference(-44.0, -7.0),
  'Pusher-v5': Reference(-149.0, -50.0),
  'Hopper-v5': Reference(25.0, 1000.0),
  'Swimmer-v5': Reference(4.0, 30.0),
  'HalfCheetah-v5': Reference(-281.0, 3000.0),
  'Walker2d-v5': Reference(1.9, 2000.0),
  'HumanoidStandup-v5': Reference(32_500.0, 60_000.0),
}


class Difference(NamedTuple):
  """Difference of two means with its bootstrap interval."""

  difference: float
  low: float
  high: float


class Band(NamedTuple):
  """Mean of several curves with its interval, each [N]."""

  mean: np.ndarray
  low: np.ndarray
  high: np.ndarray


def learning_curve_auc(
  steps: npt.ArrayLike,
  returns: npt.ArrayLike,
  budget: float,
  crashed_return: float | None = None,
) -> float:
  """Area under the evaluation curve, divided by the budget.

  The curve is piecewise linear. The first value holds from step 0 on, the last
  one up to the budget, at which the curve ends.

  Args:
    steps: environment steps at each evaluation, increasing, [N].
    returns: mean evaluation returns, [N].
    budget: steps over which the area is taken, positive.
    crashed_return: for a run that crashed after the last evaluation, the return
      that counts for the rest, by convention the random policy's. Such a run
      may have no evaluation at all.

  Returns:
    The area over the budget, in units of return.

  Raises:
    ValueError: no points, decreasing steps, or non-finite numbers.
  """
  steps, returns = _curve(
    steps, returns, allow_empty=crashed_return is not None
  )
  if not budget > 0:
    raise ValueError(f'budget={budget} has no area over it; it must be > 0.')
  if crashed_return is not None:
    # The run counts as crashed at its last evaluation.
    end = float(min(steps[-1], budget)) if len(steps) else 0.0
    reached = learning_curve_auc(steps, returns, end) * end if end > 0 else 0.0
    return float((reached + crashed_return * (budget - end)) / budget)
  inside = (steps > 0) & (steps < budget)
  # np.interp extends the first and the last value. It is not used for the inner
  # points, as there may be two at one step.
  first, last = np.interp([0.0, budget], steps, returns)
  x = np.concatenate([[0.0], steps[inside], [float(budget)]])
  y = np.concatenate([[first], returns[inside], [last]])
  # The trapezoidal rule, which NumPy 1 and 2 have under different names.
  return float((np.diff(x) * (y[1:] + y[:-1]) / 2).sum() / budget)


def on_grid(
  steps: npt.ArrayLike, returns: npt.ArrayLike, grid: npt.ArrayLike
) -> np.ndarray:
  """The piecewise linear curve of `learning_curve_auc` at `grid` [G]; [G]."""
  steps, returns = _curve(steps, returns)
  return np.interp(np.asarray(grid, float), steps, returns)


def last_evaluations(returns: npt.ArrayLike, count: int = 3) -> float:
  """Mean of the last `count` evaluations of a run, or of all if fewer.

  Raises:
    ValueError: there is no evaluation.
  """
  values = np.asarray(returns, np.float64)
  if not values.size:
    raise ValueError('there is no evaluation.')
  return float(values[-count:].mean())


def bootstrap_difference(
  a: npt.ArrayLike, b: npt.ArrayLike, resamples: int = 10_000, seed: int = 0
) -> Difference:
  """mean(a) - mean(b) with a percentile bootstrap interval over seeds.

  Args:
    a: one number per run of the system, [K].
    b: one number per run of the baseline, [L]. Runs are not paired.
    resamples: number of resamples of both.
    seed: of the resampling; with it the result is reproducible.

  Raises:
    ValueError: no numbers, or non-finite ones.
  """
  a, b = _sample(a), _sample(b)
  rng = np.random.default_rng(seed)
  differences = _resampled_means(a, resamples, rng) - _resampled_means(
    b, resamples, rng
  )
  low, high = np.percentile(differences, _PERCENTILES)
  return Difference(float(a.mean() - b.mean()), float(low), float(high))


def bootstrap_band(
  curves: npt.ArrayLike, resamples: int = 2_000, seed: int = 0
) -> Band:
  """Mean of K curves on one grid and its interval at each point.

  Args:
    curves: [K, N], one row per seed; whole rows are resampled.
    resamples: number of resamples.
    seed: of the resampling.

  Raises:
    ValueError: `curves` has another number of axes, or no rows.
  """
  curves = np.asarray(curves, np.float64)
  if curves.ndim != 2 or not curves.shape[0]:
    raise ValueError(f'{curves.shape} given; [K, N] with K > 0 is needed.')
  rng = np.random.default_rng(seed)
  count = curves.shape[0]
  # The number of times each curve is drawn, instead of copies of curves.
  weights = rng.multinomial(count, np.full(count, 1 / count), resamples) / count
  low, high = np.percentile(weights @ curves, _PERCENTILES, axis=0)
  return Band(curves.mean(axis=0), low, high)


def verdict(difference: Difference, reference: Reference) -> str:
  """The conclusion from an interval, in words.

  'superior': the lower bound is above 0. Else, if it is above the margin of
  -0.1 (threshold - random): 'worse, within the margin' if the upper bound is
  below 0, or 'not inferior'. Else 'inferior' if the upper bound is below 0, or
  'not shown'.
  """
  if difference.low > 0:
    return 'superior'
  if difference.low > -0.1 * (reference.threshold - reference.random):
    return 'worse, within the margin' if difference.high < 0 else 'not inferior'
  return 'inferior' if difference.high < 0 else 'not shown'


def _curve(
  steps: npt.ArrayLike, returns: npt.ArrayLike, allow_empty: bool = False
) -> tuple[np.ndarray, np.ndarray]:
  steps = np.asarray(steps, np.float64)
  returns = np.asarray(returns, np.float64)
  if steps.ndim != 1 or steps.shape != returns.shape:
    raise ValueError(f'{steps.shape} and {returns.shape} are no curve, [N].')
  if not len(steps) and not allow_empty:
    raise ValueError('a curve needs a point; count a crashed run as crashed.')
  if not (np.isfinite(steps).all() and np.isfinite(returns).all()):
    raise ValueError(f'non-finite numbers in the curve: {steps}, {returns}.')
  if (np.diff(steps) < 0).any():
    raise ValueError(f'steps must increase, got {steps}.')
  return steps, returns


def _sample(values: npt.ArrayLike) -> np.ndarray:
  values = np.asarray(values, np.float64)
  if values.ndim != 1 or not values.size or not np.isfinite(values).all():
    raise ValueError(f'{values}: one finite number per run is needed.')
  return values


def _resampled_means(
  values: np.ndarray, resamples: int, rng: np.random.Generator
) -> np.ndarray:
  chosen = rng.integers(len(values), size=(resamples, len(values)))
  return values[chosen].mean(axis=1)
