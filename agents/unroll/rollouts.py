"""Rollouts that are learned from in several epochs of minibatches.

A rollout is a whole number of blocks. Advantages and returns are estimated
once, with the parameters before its first update, over all successive blocks
of the same environments. Then the rollout is arranged
into the minibatches of all epochs, which are processed in one learner call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import dataclasses
from typing import Any, NamedTuple

import tensorflow as tf

from murmuration.agents import member_losses
from murmuration.agents import parameters
from murmuration.agents.unroll import network as unroll_network
from murmuration.agents.unroll import unrolls
from murmuration.replay import blocks

_PHILOX = 1  # TensorFlow's number for the generator


class Estimates(NamedTuple):
  """Estimates for one member's rollout, before its first update.

  S is the number of sequences in the rollout.
  """

  advantages: tf.Tensor  # float32 [T, S]
  returns: tf.Tensor  # targets of the value function, float32 [T, S]
  values: tf.Tensor  # V(x_t), float32 [T, S]
  mask: tf.Tensor  # 0 where the step is no experience, else 1, float32 [T, S]
  lag: tf.Tensor  # mean |pi / mu - 1| of the rollout, []
  statistics: dict[str, tf.Tensor]  # variable name to value after the rollout


class Minibatch(NamedTuple):
  """One update's share of one member's rollout.

  It is b sequences of L steps. If the policy has memory, each is an unroll's
  steps in order. Otherwise it is one "sequence" of steps drawn at random,
  because steps are independent; columns that then have no meaning, such as the
  final observation, contain those of arbitrary steps.
  """

  block: blocks.Block  # leading axis [b], T = L and K = 1
  advantages: tf.Tensor  # not normalised, float32 [b, L, 1]
  returns: tf.Tensor  # float32 [b, L, 1]
  values: tf.Tensor  # V(x_t) before the first update, float32 [b, L, 1]
  mask: tf.Tensor  # float32 [b, L, 1]
  lag: tf.Tensor  # of the rollout, []
  closing: tf.Tensor  # whether this is the rollout's last update, bool []
  statistics: dict[str, tf.Tensor]  # see `Estimates`; for the last update


# (a member's variables, its blocks [b, ...], U) -> Estimates. Of the blocks, U
# at a time follow one another.
Estimate = Callable[[Sequence['tf.Tensor'], blocks.Block, int], Estimates]


@dataclasses.dataclass(frozen=True)
class Rollouts:
  """A `feeds.Feed` of rollouts; the loss sees a `Minibatch` [P, ...]."""

  layout: parameters.Layout
  estimate: Estimate
  rollout_steps: int  # environment steps of one rollout and member
  unroll_length: int  # T of a block
  num_envs: int  # K of a block; P members have K / P each, in order
  batch_size: int  # environment steps of one minibatch
  epochs: int  # number of times each step is learned from
  in_order: bool = False  # whether the steps of a sequence stay together
  images: bool = False  # whether observations are images
  seed: int = 0  # of the shuffles, from 0 to 2^63 - 1
  joined: int = 1  # U, successive blocks of the same environments in a sample

  @property
  def sequences(self) -> int:
    """Number of sequences in a rollout."""
    return self.rollout_steps // self.unroll_length

  def num_blocks(self, updates: int, members: int = 1) -> int:
    """Number of blocks n in one sample, which is one rollout.

    Raises:
      ValueError: the sizes do not fit together.
    """
    del updates  # The agent fixes them, to those of one rollout.
    own = self.num_envs // members
    number, rest = divmod(self.rollout_steps, self.unroll_length * own)
    if rest:
      raise ValueError(
        f'agent.rollout_steps={self.rollout_steps} is no whole number of '
        f'blocks of {self.unroll_length} steps of {own} environments. Make it '
        f'a multiple of {self.unroll_length * own}: set '
        'actors.envs_per_actor, agent.unroll_length or agent.rollout_steps.'
      )
    return number

  def queue_size(self, batches: int) -> int:
    """Number of blocks in `batches` rollouts."""
    return batches * self.rollout_steps // (self.unroll_length * self.num_envs)

  def arrange(
    self, sample: Any, updates: int, members: int, theta: tf.Tensor
  ) -> Minibatch:
    """The minibatches of all epochs, leading axes [U, P].

    `sample` has the columns of n blocks, in queue order. Advantages and returns
    are estimated with `theta` [P, D].
    """
    sequences = self.num_blocks(updates, members) * self.num_envs // members
    own = unrolls.Unrolls(sequences, self.num_envs).arrange(sample, 1, members)
    whole = tf.nest.map_structure(lambda x: x[0], own)
    order = self._order(whole.version[0, 0], sequences)
    variables = member_losses.split(self.layout, theta)

    def minibatches(member) -> Minibatch:
      own_variables, own_blocks = member
      return self._minibatches(own_variables, own_blocks, order)

    def alone(index: int) -> Minibatch:
      return minibatches(
        tf.nest.map_structure(lambda x: x[index], (variables, whole))
      )

    if members == 1 or self.images:
      # Convolutions cannot be vectorised over filters: one member at a time.
      each = [alone(index) for index in range(members)]
      return tf.nest.map_structure(lambda *x: tf.stack(x, axis=1), *each)
    found = tf.vectorized_map(
      minibatches, (variables, whole), fallback_to_while_loop=False
    )
    return tf.nest.map_structure(
      lambda x: tf.transpose(x, (1, 0, *range(2, x.shape.rank))), found
    )

  def unpack(self, batch: Minibatch) -> Minibatch:
    return batch

  def _order(self, version: tf.Tensor, sequences: int) -> tf.Tensor:
    """Indices of each update's steps, or sequences, int32 [U, m].

    They depend only on seed and version, so a run that is resumed or repeated
    with its seed shuffles a rollout the same way.
    """
    items, share = sequences * self.unroll_length, self.batch_size
    if self.in_order:
      items, share = sequences, share // self.unroll_length
    # Of numbers that are the same where the call is compiled, as those of
    # tf.random are not. The rollout's version is the counter's upper word.
    draws = tf.raw_ops.StatelessRandomUniformFullIntV2(
      shape=(self.epochs, items),
      key=tf.constant([self.seed], tf.uint64),
      counter=tf.stack(
        [tf.constant(0, tf.uint64), tf.cast(version, tf.uint64)]
      ),
      alg=_PHILOX,
      dtype=tf.int32,
    )
    return tf.reshape(tf.argsort(draws, axis=1), (-1, share))

  def _minibatches(
    self, variables: Sequence[tf.Tensor], block: blocks.Block, order: tf.Tensor
  ) -> Minibatch:
    """The minibatches of one member, leading axis [U]."""
    estimates = self.estimate(variables, block, self.joined)
    take = self._sequences if self.in_order else self._steps
    updates = order.shape[0]

    def each(x: tf.Tensor) -> tf.Tensor:
      return tf.repeat(x[None], updates, axis=0)

    def steps(x: tf.Tensor) -> tf.Tensor:
      return take(tf.transpose(x, (1, 0, *range(2, x.shape.rank))), order)

    major = unroll_network.time_major
    columns = {
      name: steps(major(getattr(block, name)))
      for name in ('action', 'reward', 'discount', 'valid', 'behaviour')
    }
    observation = major(block.observation)
    core = unroll_network.merge(block.core)
    if self.in_order:
      columns['observation'] = steps(observation)
      columns['last'] = steps(major(block.last))
      columns['core'] = tf.gather(core, order)[:, :, None]
    else:
      # The steps are independent. The observation after the last step is a
      # placeholder.
      more = tf.concat([order, order[:, :1]], axis=1)
      rows = tf.transpose(
        observation[:-1], (1, 0, *range(2, observation.shape.rank))
      )
      columns['observation'] = self._steps(rows, more)
      columns['last'] = tf.zeros_like(columns['valid'])
      columns['core'] = each(core[:1][None])
    # A placeholder: ends count in the estimates alone.
    columns['final_observation'] = columns['observation'][:, :, -1:]
    arranged = blocks.Block(
      **columns,
      version=tf.repeat(each(block.version[:1]), _rows(columns), axis=1),
      written_at=tf.repeat(each(block.written_at[:1]), _rows(columns), axis=1),
    )
    return Minibatch(
      arranged,
      steps(estimates.advantages),
      steps(estimates.returns),
      steps(estimates.values),
      steps(estimates.mask),
      each(estimates.lag),
      tf.range(updates) == updates - 1,
      {name: each(value) for name, value in estimates.statistics.items()},
    )

  def _steps(self, x: tf.Tensor, order: tf.Tensor) -> tf.Tensor:
    """[S, T, ...] to [U, 1, m, 1, ...]."""
    flat = tf.reshape(x, (-1, *x.shape[2:]))
    return tf.gather(flat, order)[:, None, :, None]

  def _sequences(self, x: tf.Tensor, order: tf.Tensor) -> tf.Tensor:
    """[S, T, ...] to [U, m, T, 1, ...]."""
    return tf.gather(x, order)[:, :, :, None]


def joined(x: tf.Tensor, number: int, batch: blocks.Block) -> tf.Tensor:
  """[T, B] of blocks [b, ...] to [number * T, B / number], in order of time."""
  if number == 1:
    return x
  num_steps, num_envs = batch.reward.shape[1:]
  x = tf.reshape(x, (num_steps, -1, number, num_envs))
  x = tf.transpose(x, (2, 0, 1, 3))
  return tf.reshape(x, (number * num_steps, -1))


def parted(x: tf.Tensor, number: int, batch: blocks.Block) -> tf.Tensor:
  """The inverse of `joined`."""
  if number == 1:
    return x
  num_steps, num_envs = batch.reward.shape[1:]
  x = tf.reshape(x, (number, num_steps, -1, num_envs))
  x = tf.transpose(x, (1, 2, 0, 3))
  return tf.reshape(x, (num_steps, -1))


def _rows(columns: dict[str, tf.Tensor]) -> int:
  return columns['reward'].shape[1]
