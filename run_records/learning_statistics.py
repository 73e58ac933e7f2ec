"""How two systems are compared: areas, bootstrap intervals and verdicts.

The unit is the seed: one run gives one number, and intervals come from
resampling runs, never from resampling the evaluations within one. All seeds
count; a crashed run counts as a random policy for the rest of its budget.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy import typing as npt

_PERCENTILES = (2.5, 97.5)  # an interval has 95% of the mass


class Reference(NamedTuple):
  """Mean returns that give a return its meaning.

  Attributes:
    random: of the random policy, measured.
    threshold: at which the task counts as solved.
  """

  random: float
  threshold: float


# Random: measured with gymnasium 1.3. Thresholds: of CartPole, Acrobot,
# MountainCar, LunarLander and the inverted pendulums those that gymnasium
# registers. The others are ours, for small runs: registered ones of Reacher,
# Pusher, Hopper, Swimmer and HalfCheetah are higher, Pendulum, Walker2d and
# HumanoidStandup have none.
# A study may have its own.
REFERENCES = {
  'CartPole-v1': Reference(26.0, 475.0),
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

  The curve is piecewise linear. Its first value is held back to step 0, its
  last value is held to the budget, and it is cut there.

  Args:
    steps: environment steps at each evaluation, increasing, [N].
    returns: mean evaluation returns, [N].
    budget: steps over which the area is taken, positive.
    crashed_return: for a run that crashed after the last evaluation: the
      return that counts for the rest, by convention the random policy's. The
      run may then have no evaluation at all.

  Returns:
    The area, in units of return.

  Raises:
    ValueError: no points, points that do not increase, non-finite numbers.
  """
  steps, returns = _curve(
    steps, returns, allow_empty=crashed_return is not None
  )
  if not budget > 0:
    raise ValueError(f'budget={budget} has no area over it; it must be > 0.')
  if crashed_return is not None:
    # What was reached is held up to the crash: the last evaluation.
    end = float(min(steps[-1], budget)) if len(steps) else 0.0
    reached = learning_curve_auc(steps, returns, end) * end if end > 0 else 0.0
    return float((reached + crashed_return * (budget - end)) / budget)
  inside = (steps > 0) & (steps < budget)
  # np.interp holds the first and the last value outside of the points. The
  # points themselves are kept, as there may be two at one step.
  first, last = np.interp([0.0, budget], steps, returns)
  x = np.concatenate([[0.0], steps[inside], [float(budget)]])
  y = np.concatenate([[first], returns[inside], [last]])
  return float(np.trapz(y, x) / budget)


def on_grid(
  steps: npt.ArrayLike, returns: npt.ArrayLike, grid: npt.ArrayLike
) -> np.ndarray:
  """The same piecewise linear curve read at the grid's steps, [G]."""
  steps, returns = _curve(steps, returns)
  return np.interp(np.asarray(grid, float), steps, returns)


def last_evaluations(returns: npt.ArrayLike, count: int = 3) -> float:
  """Mean of the last `count` evaluations of one run (of all, if fewer)."""
  values = np.asarray(returns, np.float64)
  if not values.size:
    raise ValueError(
      'a run without evaluations has no last ones; count it as crashed.'
    )
  return float(values[-count:].mean())


def bootstrap_difference(
  a: npt.ArrayLike, b: npt.ArrayLike, resamples: int = 10_000, seed: int = 0
) -> Difference:
  """mean(a) - mean(b) with a percentile bootstrap interval over seeds.

  Args:
    a: one number per run of the system, [K].
    b: one number per run of the baseline, [L]. Runs are not paired.
    resamples: how often both are resampled.
    seed: of the resampling: the same numbers give the same interval.

  Raises:
    ValueError: nothing to resample, or non-finite numbers.
  """
  a, b = _sample('a', a), _sample('b', b)
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
    curves: [K, N], one row per seed.
    resamples: how often whole curves are resampled.
    seed: of the resampling.
  """
  curves = np.asarray(curves, np.float64)
  if curves.ndim != 2 or not curves.shape[0]:
    raise ValueError(
      f'curves of shape {curves.shape} given; [K, N] with K > 0 is needed.'
    )
  rng = np.random.default_rng(seed)
  count = curves.shape[0]
  # How often each curve is drawn, instead of the drawn curves themselves.
  weights = rng.multinomial(count, np.full(count, 1 / count), resamples) / count
  low, high = np.percentile(weights @ curves, _PERCENTILES, axis=0)
  return Band(curves.mean(axis=0), low, high)


def verdict(difference: Difference, reference: Reference | None = None) -> str:
  """What an interval says, in words.

  Superior: the lower bound is above 0. Not inferior: it is above the margin,
  -0.1 of the way from the random policy to the threshold; this needs the
  reference. Where the upper bound is then below 0 too, the difference is
  certain and small: worse, within the margin. Inferior: else, where the upper
  bound is below 0.
  """
  if difference.low > 0:
    return 'superior'
  if reference is not None:
    margin = 0.1 * (reference.threshold - reference.random)
    if difference.low > -margin:
      within = difference.high < 0
      return 'worse, within the margin' if within else 'not inferior'
  return 'inferior' if difference.high < 0 else 'not shown'


def _curve(
  steps: npt.ArrayLike, returns: npt.ArrayLike, allow_empty: bool = False
) -> tuple[np.ndarray, np.ndarray]:
  steps = np.asarray(steps, np.float64)
  returns = np.asarray(returns, np.float64)
  if steps.ndim != 1 or steps.shape != returns.shape:
    raise ValueError(
      f'steps of shape {steps.shape} and returns of shape {returns.shape} '
      'given; a curve needs as many returns as steps, both [N].'
    )
  if not len(steps) and not allow_empty:
    raise ValueError(
      'a curve without points has no area. Evaluate at least once, or count '
      'the run as crashed.'
    )
  if not (np.isfinite(steps).all() and np.isfinite(returns).all()):
    raise ValueError(f'non-finite numbers in the curve: {steps}, {returns}.')
  if (np.diff(steps) < 0).any():
    raise ValueError(f'steps must increase, got {steps}. Sort the evaluations.')
  return steps, returns


def _sample(name: str, values: npt.ArrayLike) -> np.ndarray:
  values = np.asarray(values, np.float64)
  if values.ndim != 1 or not values.size or not np.isfinite(values).all():
    raise ValueError(
      f'{name}={values} given; one finite number per run is needed, at least '
      'one. Count a crashed run as the random policy.'
    )
  return values


def _resampled_means(
  values: np.ndarray, resamples: int, rng: np.random.Generator
) -> np.ndarray:
  chosen = rng.integers(len(values), size=(resamples, len(values)))
  return values[chosen].mean(axis=1)
