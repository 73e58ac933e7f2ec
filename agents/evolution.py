"""Evolution strategies: Salimans et al. 2017, arXiv:1703.03864.

    e_i = table[index_i : index_i + dim]          pairs theta + s e, theta - s e
    u   = centred ranks of all 2 P returns
    g   = 1 / (2 P s) sum_i (u_i+ - u_i-) e_i
    theta <- theta + step of (g - l2 theta)

Pure functions on flat vectors, and the policies that play; strategy.py keeps
the state between generations. All randomness follows from (seed, generation,
task), so any worker may play a task (docs/topologies/evolution.md).
"""

from __future__ import annotations

from collections.abc import Iterable
import dataclasses
import itertools
import operator
from typing import Annotated, Any, NamedTuple

import numpy as np

from murmuration.agents import base
from murmuration.agents import optimizers
from murmuration.agents import parameters
from murmuration.agents import settings

# Groups of theta that are neither learned nor perturbed.
_STATE = ('normalizer', 'priority')
_BLOCK = 256  # rows of noise in memory at once
_KEPT_SHARE = 0.75  # of policies still playing, at which ended ones are dropped
_CHUNK = 1 << 20  # numbers of the table that are drawn at once, as float64
_NO_DEVIATION = 0.1  # smallest standard deviation; starter code


@dataclasses.dataclass(frozen=True)
class Config:
  """Evolution strategies. 'Starter code' is the authors', for Humanoid.

  Unmarked defaults are small-scale values, of which those for CartPole-v1 were
  tried (configs/es_mlp.py).
  """

  # Processes that play episodes; starter code: 1440, a core each.
  num_workers: settings.Nodes = 2
  # P, pairs of perturbed policies in a generation; starter code: 5,000. A run
  # ends with a whole one, nearly all of which may lie beyond its budget.
  population: settings.Whole = 20
  pairs_per_task: settings.Whole = 10  # pairs in a task of one worker
  # Environments of a worker, stepped together. One that ends an episode begins
  # the next one of the task.
  envs_per_worker: settings.Whole = 20
  # Standard deviation of the perturbations of theta; starter code: 0.02.
  sigma: settings.Positive = 0.05
  learning_rate: settings.Positive = 0.02  # per generation; starter code: 0.01
  weight_decay: settings.NotNegative = 0.005  # l2; starter code: 0.005
  optimizer: optimizers.Name = 'adam'  # update rule; starter code: 'adam'
  # Whether g is divided by sigma. Starter code: False; weight decay, which is
  # not divided, then weighs 1/sigma times as much.
  divide_by_sigma: bool = True
  # Whether a generation of equal returns changes nothing; else theta decays.
  skip_flat: bool = True
  # Whether the episodes of a pair have the same seed; starter code: False.
  common_episode_seed: bool = False
  # Standard deviation, in units of [-1, 1], of the noise on continuous actions
  # in perturbed episodes; starter code: 0.01.
  action_noise: settings.NotNegative = 0.01
  # Share of episodes whose observations enter the normalizer's statistics;
  # starter code: 0.01, of 10,000 episodes.
  obs_stat_prob: settings.Fraction = 0.25
  # Numbers in the table of noise, float32; starter code: 250,000,000.
  table_size: Annotated[int, settings.whole(1, 2**31 - 1)] = 2_000_000
  # Of the table of noise; starter code: 123.
  table_seed: Annotated[int, settings.whole(0, 2**32 - 1)] = 123
  # Seconds after which an unfinished task is given to another worker too.
  patience_s: settings.Seconds = 60.0

  def __post_init__(self):
    settings.check(self, 'evolution')

  @property
  def tasks(self) -> int:
    """Number of tasks in a generation."""
    return -(-self.population // self.pairs_per_task)

  def pairs(self, task: int) -> int:
    """Number of pairs in a task."""
    before = task * self.pairs_per_task
    return min(self.pairs_per_task, self.population - before)


# Noise.


def noise_table(seed: int, size: int) -> np.ndarray:
  """Standard normal numbers, float32 [size], the same in every process."""
  rng, table = np.random.RandomState(seed), np.empty(size, np.float32)
  for start in range(0, size, _CHUNK):
    part = table[start : start + _CHUNK]
    part[:] = rng.randn(len(part))
  return table


def perturbed(layout: parameters.Layout) -> slice:
  """The slice of theta that is perturbed and learned.

  This is the group `policy` if there is one. For other agents (Q-networks, or a
  torso shared by policy and value) it is everything but the normalizer and the
  largest priority, which no gradient moves.

  Raises:
    ValueError: what is learned is not contiguous.
  """
  if 'policy' in layout.groups:
    return layout.groups['policy']
  learned = np.ones(layout.size, bool)
  for name in _STATE:
    if name in layout.groups:
      learned[layout.groups[name]] = False
  places = np.flatnonzero(learned)
  start, stop = int(places[0]), int(places[-1]) + 1
  if stop - start != len(places):
    raise ValueError(
      f'What is learned of {layout!r} is not in one piece. Order its variables '
      'so, or give it a group `policy`.'
    )
  return slice(start, stop)


class Draws(NamedTuple):
  """All random draws of a task of n pairs; episode 2 i is pair i's +."""

  indices: np.ndarray  # into the table, int32 [n]
  seeds: list[int]  # of the episodes, [2 n]
  observed: np.ndarray  # whether an episode's observations count, bool [2 n]
  rng: np.random.Generator  # of the noise on actions


def draws(
  config: Config, seed: int, generation: int, task: int, dim: int
) -> Draws:
  """The draws of a task, a function of the arguments alone."""
  rng = np.random.default_rng([seed, generation, task])
  pairs = config.pairs(task)
  indices = rng.integers(
    0, config.table_size - dim, size=pairs, endpoint=True, dtype=np.int32
  )
  seeds = rng.integers(0, 2**31, size=2 * pairs)
  if config.common_episode_seed:
    seeds[1::2] = seeds[::2]
  observed = rng.random(2 * pairs) < config.obs_stat_prob
  return Draws(indices, [int(seed) for seed in seeds], observed, rng)


# The estimate.


def centred_ranks(returns: np.ndarray) -> np.ndarray:
  """Ranks from -0.5 (the lowest) to 0.5, of the same shape; ties share one.

  The starter code breaks ties by an unstable sort: if many returns are equal,
  their signs are then random. Here a pair of equal returns contributes 0.
  """
  flat = np.asarray(returns).ravel()
  _, place, counts = np.unique(flat, return_inverse=True, return_counts=True)
  last = np.cumsum(counts)
  ranks = (last - (counts + 1) / 2)[place.reshape(-1)]
  return (ranks / (len(flat) - 1) - 0.5).reshape(np.shape(returns))


def gradient(
  shaped: np.ndarray, noise: Iterable[np.ndarray], scale: float
) -> np.ndarray:
  """`1 / (2 P scale) sum_i (u_i+ - u_i-) e_i`, [dim].

  `shaped` is u, [P, 2], `noise` has e_i [dim], and `scale` is sigma, or 1.
  """
  weights, noise = shaped[:, 0] - shaped[:, 1], iter(noise)
  total: Any = 0.0
  used = 0
  while rows := list(itertools.islice(noise, _BLOCK)):
    total = total + weights[used : used + len(rows)] @ np.stack(rows)
    used += len(rows)
  return total / (2 * len(shaped) * scale)


def ascent(g: np.ndarray, theta: np.ndarray, weight_decay: float) -> np.ndarray:
  """The ascent direction `g - l2 theta`, [dim]."""
  return g - weight_decay * theta


# The statistics of observations.


class Sums(NamedTuple):
  """Sums of raw observations per entry, float64."""

  number: float  # of observations
  first: np.ndarray  # sum, [O]
  second: np.ndarray  # sum of squares, [O]

  def plus(self, other: Sums) -> Sums:
    return Sums(*map(operator.add, self, other))

  def moments(self) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance, [O] each; the variance is at least 0.1^2."""
    mean = self.first / self.number
    variance = self.second / self.number - np.square(mean)
    return mean, np.maximum(variance, _NO_DEVIATION**2)


def no_sums(size: int) -> Sums:
  return Sums(0.0, np.zeros(size), np.zeros(size))


def observation_size(layout: parameters.Layout) -> int:
  """Size of the observations that are normalised; 0 without a normalizer.

  That is one of agents/networks/normalization.py, by its variables' names.
  """
  sizes = {v.name: v.size for v in layout.variables}
  parts = [sizes.get(f'normalizer/{x}') for x in ('mean', 'variance', 'memory')]
  return 0 if None in parts else sizes['normalizer/mean']


class Perturbed:
  """The policies of a task's episodes, for K environments side by side.

  It is the policy that `environment_loops.episodes.play` needs, and adds up the
  observations that are counted.
  """

  def __init__(
    self,
    config: Config,
    agent: base.Agent,
    table: np.ndarray,
    theta: np.ndarray,
    drawn: Draws,
    num_envs: int,
  ):
    """Makes policies for `num_envs` (K) environments, near `theta [D]`."""
    self._sigma = np.float32(config.sigma)
    self._table, self._theta, self._drawn = table, theta, drawn
    self._place = perturbed(agent.layout)
    self._policy = agent.greedy_each(np.tile(theta, (num_envs, 1)))
    self._noise = 0.0 if agent.spec.discrete else config.action_noise
    self._counted = np.zeros(num_envs, bool)
    self._playing = np.ones(num_envs, bool)
    self._rows = np.arange(num_envs)  # environments that still have a policy
    self.sums = no_sums(observation_size(agent.layout))

  def begin(self, member: int, episode: int) -> None:
    place, theta = self._place, self._theta.copy()
    index = self._drawn.indices[episode // 2]
    noise = self._table[index : index + place.stop - place.start]
    theta[place] += (-self._sigma if episode % 2 else self._sigma) * noise
    self._policy.begin(int(np.searchsorted(self._rows, member)), theta)
    self._counted[member] = self._drawn.observed[episode]

  def end(self, member: int) -> None:
    self._counted[member] = self._playing[member] = False
    kept = np.flatnonzero(self._playing[self._rows])
    # This copies parameters, so it pays only if many policies are dropped.
    if 0 < len(kept) <= _KEPT_SHARE * len(self._rows):
      self._policy.keep(kept)
      self._rows = self._rows[kept]

  def __call__(self, observation: np.ndarray) -> np.ndarray:
    if len(self.sums.first) and self._counted.any():
      seen = observation[self._counted].reshape(-1, len(self.sums.first))
      seen = seen.astype(np.float64)
      self.sums = self.sums.plus(
        Sums(len(seen), seen.sum(axis=0), np.square(seen).sum(axis=0))
      )
    if len(self._rows) == len(observation):
      actions = self._policy(observation)
    else:
      found = self._policy(observation[self._rows])
      actions = np.zeros((len(observation), *found.shape[1:]), found.dtype)
      actions[self._rows] = found
    if self._noise:
      noise = self._drawn.rng.standard_normal(actions.shape)
      actions = actions + self._noise * noise
    return actions
