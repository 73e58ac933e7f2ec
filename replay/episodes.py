"""Reconstructs episodes, step by step, from the transitions in replay.

A transition of an n-step window (nstep.py) holds sums instead of rewards, and
transitions of several environments are interleaved. But windows overlap: a
window before the episode's end is followed by the one that starts n steps
later, as its o_t is the other's o_tm1. From the end backwards,

  r_t = R_t - gamma R_{t+1} + gamma^n r_{t+n}

with zeros beyond the end, where windows were cut short.
"""

from __future__ import annotations

from collections.abc import Iterator
import dataclasses

import numpy as np

from murmuration.replay import packing


@dataclasses.dataclass(frozen=True)
class Episode:
  """What is left of one episode: replay may have lost its first steps.

  Attributes:
    observations: [T + 1, *observation_shape].
    actions: canonical, [T, ...].
    rewards: float32 [T], as learned from.
    terminated: whether its last step ended the task; otherwise it was cut.
  """

  observations: np.ndarray
  actions: np.ndarray
  rewards: np.ndarray
  terminated: bool


def episodes(
  found: packing.Transition, n: int, gamma: float
) -> Iterator[Episode]:
  """The episodes of transitions, in the order in which they were written.

  The last n windows of an episode determine its rewards. With n > 1, episodes
  that have not ended, or have fewer than n steps, are left out, because their
  rewards may not all be known. With n = 1, unfinished episodes count as cut.

  Args:
    found: transitions [N].
    n: steps of a full window.
    gamma: discount per step.

  Raises:
    ValueError: observations recur, so that it is unknown which windows belong
      together: several begin where one ends, or one begins where several end.
      With n > 1, also if two episodes end in the same observation.
  """
  before = np.full(len(found.r_t), -1)  # the window that starts n steps earlier
  keys = [row.tobytes() for row in found.o_t]
  starts: dict[bytes, list[int]] = {}
  for index, start in enumerate(found.o_tm1):
    starts.setdefault(start.tobytes(), []).append(index)
  continued: dict[bytes, list[int]] = {}
  for index, key in enumerate(keys):
    if found.d_t[index] > 0 and key in starts:
      continued.setdefault(key, []).append(index)
  for key, earlier in continued.items():
    later = starts[key]
    if len(earlier) > 1 or len(later) > 1:
      raise _ambiguous()
    if earlier < later:
      before[later[0]] = earlier[0]
  ends: dict[bytes, list[int]] = {}
  for index in np.setdiff1d(np.arange(len(before)), before):
    ends.setdefault(keys[index], []).append(int(index))
  for group in ends.values():
    if n > 1 and len(group) > n:
      raise _ambiguous()
    for first in range(0, len(group), n):
      # The windows that end together, the longest first.
      steps = group[first : first + n]
      if len(steps) < n:
        continue
      steps.reverse()
      while len(steps) >= n and before[steps[-n]] >= 0:
        steps.append(int(before[steps[-n]]))
      yield _episode(found, steps[::-1], n, gamma)


def _episode(
  found: packing.Transition, steps: list[int], n: int, gamma: float
) -> Episode:
  rewards = np.zeros(len(steps) + n)
  sums = np.append(found.r_t[steps].astype(float), 0.0)
  for t in reversed(range(len(steps))):
    rewards[t] = sums[t] - gamma * sums[t + 1] + gamma**n * rewards[t + n]
  return Episode(
    np.concatenate([found.o_tm1[steps], found.o_t[steps[-1:]]]),
    found.a_tm1[steps],
    rewards[: len(steps)].astype(np.float32),
    bool(found.d_t[steps[-1]] == 0),
  )


def _ambiguous() -> ValueError:
  return ValueError(
    'observations recur, so which steps are of one episode is not known. '
    'Export only arrays: --format=arrays.'
  )
