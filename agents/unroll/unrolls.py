"""Agents that learn from unrolls: their actors, and how blocks become batches.

An unroll agent is a `base.Agent` whose `loss` takes a batch of
`replay.blocks.Block`, whose `batch_size` counts sequences, and which defines
the layout of its blocks. Its actors are `UnrollActor`s.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from murmuration.agents import base
from murmuration.agents import feeds
from murmuration.replay import blocks


class UnrollActor(base.Actor, Protocol):
  """A `base.Actor` that also provides what is stored with each step.

  The order at each step:

    actions = actor.act(theta, observation, actor_steps, rng)
    step = environment.step(actions)
    adder.add(observation, actions, step, actor.behaviour, actor.core, version)
    actor.ended(step.last)

  Attributes:
    behaviour: the policy's numbers for the last actions, such as their
      log-probability, float32 [K, A'].
    core: recurrent state with which the last actions were chosen, float32
      [K, S]; at the first step of an episode, its initial state.
  """

  behaviour: np.ndarray
  core: np.ndarray


class BlockFeed(feeds.Feed, Protocol):
  """A feed of blocks."""

  @property
  def sequences(self) -> int:
    """Sequences that a member learns from at once, per update or rollout."""

  def num_blocks(self, updates: int, members: int = 1) -> int:
    """Blocks in one sample; raises ValueError if the sizes do not fit."""

  def queue_size(self, batches: int) -> int:
    """Blocks that may wait in a queue if `batches` batches may."""


@dataclasses.dataclass(frozen=True)
class Unrolls:
  """A `feeds.Feed` of blocks.

  The sample is a nest of the columns of n blocks, leading axis [n], in queue
  order; the loss sees a `blocks.Block` with leading axes [P, b] that holds B
  sequences. Either an update takes b = B / K whole blocks, without copying, or
  K / B updates share a block. With P members, each member owns K / P of a
  block's environments, in order.
  """

  batch_size: int  # B, sequences per update and member
  num_envs: int  # K, of one block
  fixed: bool = False  # whether the agent fixes the number of updates per call

  @property
  def sequences(self) -> int:
    """Number of sequences in an update."""
    return self.batch_size

  def num_blocks(self, updates: int, members: int = 1) -> int:
    """Number of blocks n in one sample.

    Raises:
      ValueError: B and K do not fit together.
    """
    own, rest = divmod(self.num_envs, members)
    batch = self.batch_size
    if rest or max(batch, own) % min(batch, own):
      raise ValueError(
        f"{batch} sequences (agent.batch_size, or a learner's share of it) for "
        f'each of {members} members cannot be made of blocks of '
        f'{self.num_envs} environments. Make them a multiple or a divisor of '
        'the environments of one actor.'
      )
    found, rest = divmod(updates * batch, own)
    if rest:
      call = f'set run.updates_per_call to a multiple of {own // batch}, or '
      raise ValueError(
        f'{updates} updates of agent.batch_size={batch} sequences are no whole '
        f'number of blocks of {own} environments: '
        f'{"" if self.fixed else call}let actors.envs_per_actor divide '
        'agent.batch_size.'
      )
    return found

  def queue_size(self, batches: int) -> int:
    """Number of blocks with the sequences of `batches` updates."""
    return -(-batches * self.batch_size // self.num_envs)

  def arrange(self, sample, updates, members, theta=None):
    self.num_blocks(updates, members)
    share = min(self.batch_size, self.num_envs // members)
    columns = blocks.Block(*sample)._asdict()
    for name, column in columns.items():
      axis = blocks.ENVIRONMENT_AXIS.get(name)
      columns[name] = self._arranged(column, axis, updates, members, share)
    return blocks.Block(**columns)

  def unpack(self, batch):
    return batch

  def _arranged(self, column, axis, updates, members, share):
    """[n, ..., K, ...] to [U, P, b, ..., share, ...]."""
    parts = self.num_envs // (members * share)  # updates that share a block
    number = column.shape[0]
    if axis is None:
      # One value for the whole block, repeated for each update and member.
      column = tf.repeat(column[:, None], members * parts, axis=1)
      inner = ()
    else:
      before = column.shape[1 : axis + 1]
      after = column.shape[axis + 2 :]
      inner = (*before, share, *after)
      if members * parts > 1:
        column = tf.reshape(
          column, (number, *before, members, parts, share, *after)
        )
        axes = list(range(column.shape.rank))
        spread = axes.pop(axis + 2), axes.pop(axis + 1)
        # [n, parts, P, ...]: the updates of a block are consecutive.
        column = tf.transpose(column, [0, *spread, *axes[1:]])
    per_update = number * parts // updates
    column = tf.reshape(column, (updates, per_update, members, *inner))
    if members == 1:
      return tf.reshape(column, (updates, 1, per_update, *inner))
    return tf.transpose(column, [0, 2, 1, *range(3, column.shape.rank)])


def lags(sample: Any, learner_steps: int, updates: int) -> np.ndarray:
  """Lag of each of the n blocks of a sample, in learner steps, int [n].

  The lag of a block is the learner step of the update that uses it, less the
  version of the parameters that acted. `updates` updates, which follow
  `learner_steps` earlier ones, use the blocks in order.
  """
  versions = np.asarray(blocks.Block(*sample).version)
  used_at = learner_steps + np.arange(len(versions)) * updates // len(versions)
  return used_at - versions


def without_stale(
  sample: Any, learner_steps: int, updates: int, max_lag: int
) -> tuple[Any, int]:
  """Marks blocks that lag more than `max_lag` learner steps as no experience.

  An update whose blocks are all stale moves nothing (gradient_step.py).

  Returns the sample, with unchanged shapes so that the learner is not traced
  again, and the number of dropped blocks.
  """
  sample = blocks.Block(*sample)
  stale = lags(sample, learner_steps, updates) > max_lag
  if not stale.any():
    return sample, 0
  keep = tf.constant(~stale)[:, None, None]
  return sample._replace(valid=sample.valid & keep), int(stale.sum())
