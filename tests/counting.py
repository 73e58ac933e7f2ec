"""An environment that counts, to see whether experience arrives as it left.

Its observation is its own address: [episode, t, index], float32 [3]. Reward,
length and ending follow from the address, so that each transition, wherever it
turns up, can be checked against the functions below: nothing lost, repeated,
reordered, or joined across an episode's end.
"""

from collections.abc import Sequence
from typing import Any

import dm_env
from dm_env import specs
import numpy as np

from murmuration.environment_loops import actions as actions_lib
from murmuration.environment_loops import environments
from murmuration.environment_loops import stepping

TERMINATION = 'termination'
TRUNCATION = 'truncation'

# Lengths in steps: one longer than usual n, one shorter, one of a single step.
LENGTHS = (5, 2, 1, 7)
ENDINGS = (TERMINATION, TRUNCATION, TRUNCATION)


class Plan:
  """When episodes of environment `index` end, how, and what they pay.

  Environment i runs episode e as entry (e + i) of `lengths` and of `endings`,
  each taken round and round.
  """

  def __init__(
    self,
    lengths: Sequence[int] = LENGTHS,
    endings: Sequence[str] = ENDINGS,
  ):
    """Creates the plan.

    Args:
      lengths: episode lengths, in steps, from 1 up.
      endings: `TERMINATION` or `TRUNCATION` each.

    Raises:
      ValueError: an empty or impossible entry.
    """
    if not lengths or min(lengths) < 1:
      raise ValueError(f'lengths={lengths!r}; give integers from 1 up.')
    if not endings or set(endings) - {TERMINATION, TRUNCATION}:
      raise ValueError(
        f'endings={endings!r}; give {TERMINATION!r} or {TRUNCATION!r} for each.'
      )
    self._lengths = tuple(lengths)
    self._endings = tuple(endings)

  def length(self, index: int, episode: int) -> int:
    """Steps in the episode."""
    return self._lengths[(episode + index) % len(self._lengths)]

  def terminates(self, index: int, episode: int) -> bool:
    """Whether the episode ends by termination, not by truncation."""
    ending = self._endings[(episode + index) % len(self._endings)]
    return ending == TERMINATION

  def reward(self, index: int, episode: int, t: int) -> float:
    """Reward of the step that arrives at `t`; the digits show what it was.

    Exact in float32 up to index 99, episode 999, t 99.
    """
    return t + 100.0 * (episode % 1000) + 100_000.0 * index

  def observation(self, index: int, episode: int, t: int) -> np.ndarray:
    """Observation at `t`, 0 after a reset: [episode, t, index], float32 [3]."""
    return np.array([episode, t, index], np.float32)


class CountingEnvironment(dm_env.Environment):
  """The counting environment as dm_env; actions do not matter."""

  def __init__(self, plan: Plan, index: int = 0, num_actions: int = 2):
    self._plan = plan
    self._index = index
    self._num_actions = num_actions
    self._episode = -1
    self._t = 0
    self._needs_reset = True

  def reset(self) -> dm_env.TimeStep:
    self._episode += 1
    self._t = 0
    self._needs_reset = False
    return dm_env.restart(self._observation())

  def step(self, action: Any) -> dm_env.TimeStep:
    del action
    if self._needs_reset:
      return self.reset()
    self._t += 1
    address = (self._index, self._episode)
    reward = np.float32(self._plan.reward(*address, self._t))
    last = self._t == self._plan.length(*address)
    self._needs_reset = last
    terminated = last and self._plan.terminates(*address)
    return environments.arrival(reward, self._observation(), terminated, last)

  def observation_spec(self) -> specs.Array:
    return specs.Array((3,), np.float32, name='observation')

  def action_spec(self) -> specs.DiscreteArray:
    return specs.DiscreteArray(self._num_actions, name='action')

  def reward_spec(self) -> specs.Array:
    return specs.Array((), np.float32, name='reward')

  def discount_spec(self) -> specs.BoundedArray:
    return specs.BoundedArray((), np.float32, 0.0, 1.0, name='discount')

  def _observation(self) -> np.ndarray:
    return self._plan.observation(self._index, self._episode, self._t)


class CountingVectorEnvironment(stepping.VectorEnvironment):
  """K counting environments stepped together; index k is the k-th of them."""

  def __init__(self, num: int, plan: Plan, num_actions: int = 2):
    super().__init__(
      environments.Spec(
        name='counting', observation_shape=(3,), num_actions=num_actions
      ),
      num,
    )
    self._copies = [
      CountingEnvironment(plan, index, num_actions) for index in range(num)
    ]
    self._num_actions = num_actions
    self._started = False

  def close(self) -> None:
    """Holds nothing."""

  def reset(self) -> np.ndarray:
    self._started = True
    return np.stack([copy.reset().observation for copy in self._copies])

  def step(self, actions: np.ndarray) -> stepping.StepBatch:
    stepping.check_started(self._started)
    actions_lib.to_discrete(
      self._spec.name, self._num_actions, np.asarray(actions), (self._num,)
    )
    arrivals = [copy.step(None) for copy in self._copies]
    following = [
      copy.reset() if arrival.last() else arrival
      for copy, arrival in zip(self._copies, arrivals, strict=True)
    ]
    return stepping.StepBatch(
      observation=np.stack([arrival.observation for arrival in arrivals]),
      reward=np.array([arrival.reward for arrival in arrivals], np.float32),
      discount=np.array([arrival.discount for arrival in arrivals], np.float32),
      last=np.array([arrival.last() for arrival in arrivals], np.bool_),
      next_observation=np.stack([first.observation for first in following]),
    )


def make(
  index: int = 0,
  lengths: Sequence[int] = LENGTHS,
  endings: Sequence[str] = ENDINGS,
  num_actions: int = 2,
) -> CountingEnvironment:
  """Makes one counting environment.

  Args:
    index: its third observation, and where in the cycles it starts.
    lengths: episode lengths in steps, taken round and round.
    endings: `TERMINATION` or `TRUNCATION`, taken round and round.
    num_actions: discrete actions it accepts.
  """
  return CountingEnvironment(Plan(lengths, endings), index, num_actions)


def make_vector(
  num: int,
  lengths: Sequence[int] = LENGTHS,
  endings: Sequence[str] = ENDINGS,
  num_actions: int = 2,
) -> CountingVectorEnvironment:
  """Makes `num` counting environments stepped together; see `make`."""
  return CountingVectorEnvironment(num, Plan(lengths, endings), num_actions)
