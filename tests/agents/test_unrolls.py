"""How blocks become batches: each sequence once, its lag counted."""

import math

import numpy as np
import pytest
import tensorflow as tf

from murmuration.agents.unroll import unrolls
from murmuration.replay import blocks
from tests.agents import unroll_cases as cases

T = cases.T


def _numbered(num_blocks, num_envs):
  """Blocks whose rewards say their block, step and environment."""
  number = np.arange(num_blocks)[:, None, None] * 10_000
  step = np.arange(T)[:, None] * 100
  reward = (number + step + np.arange(num_envs)).astype(np.float32)
  layout = cases.make_impala().block_layout(num_envs)
  sample = blocks.Block(
    *(np.stack([column] * num_blocks) for column in layout.zeros())
  )
  observation = np.zeros_like(sample.observation)
  observation[:, :T, :, 0] = reward
  return sample._replace(
    reward=reward,
    observation=observation,
    version=np.arange(num_blocks) * 10,
    final_observation=np.repeat(reward[:, :1, :, None], 2, axis=-1),
  )


@pytest.mark.parametrize(
  ('batch_size', 'num_envs', 'updates', 'members'),
  [(6, 6, 2, 1), (12, 6, 2, 1), (2, 6, 6, 1), (3, 6, 4, 2), (6, 6, 2, 2),
   (1, 6, 6, 2)],
)  # fmt: skip
def test_each_sequence_is_learned_from_once_and_in_order(
  batch_size, num_envs, updates, members
):
  feed = unrolls.Unrolls(batch_size, num_envs)
  number = feed.num_blocks(updates, members)
  assert number * num_envs == updates * batch_size * members
  # Blocks are whole: an update may use a part of its last one.
  assert feed.queue_size(updates) == math.ceil(updates * batch_size / num_envs)
  sample = _numbered(number, num_envs)
  batches = feed.arrange(
    blocks.Block(*map(tf.constant, sample)), updates, members
  )
  seen = []
  for update in range(updates):
    for member in range(members):
      batch = blocks.Block(*(column[update, member] for column in batches))
      b = batch.reward.shape[0]
      assert batch.reward.shape == (b, T, batch_size // b)
      assert batch.observation.shape == (b, T + 1, batch_size // b, 2)
      assert batch.core.shape == (b, batch_size // b, 0)
      for index in range(b):
        block = int(batch.reward[index, 0, 0]) // 10_000
        assert batch.version[index] == 10 * block
        envs = (batch.reward[index, 0].numpy() % 100).astype(int)
        np.testing.assert_array_equal(
          batch.reward[index], sample.reward[block][:, envs]
        )
        np.testing.assert_array_equal(
          batch.observation[index], sample.observation[block][:, envs]
        )
        np.testing.assert_array_equal(
          batch.final_observation[index],
          sample.final_observation[block][:, envs],
        )
        own = num_envs // members
        assert (envs // own == member).all(), "another member's"
        seen += [(update, block, env) for env in envs]
  assert sorted((block, env) for _, block, env in seen) == [
    (block, env) for block in range(number) for env in range(num_envs)
  ]
  updates_in_block_order = [update for update, block, _ in sorted(
    seen, key=lambda one: one[1])]  # fmt: skip
  if members == 1:
    assert updates_in_block_order == sorted(updates_in_block_order)


@pytest.mark.parametrize(
  ('batch_size', 'num_envs', 'updates', 'members', 'message'),
  [
    (4, 6, 1, 1, 'multiple or a divisor of the environments'),
    (2, 6, 4, 1, 'run.updates_per_call to a multiple of 3, or let actors.envs'),
    (2, 5, 1, 2, '5 environments'),
  ],
)
def test_batches_that_are_no_blocks_are_refused(
  batch_size, num_envs, updates, members, message
):
  with pytest.raises(ValueError, match=message):
    unrolls.Unrolls(batch_size, num_envs).num_blocks(updates, members)


def test_the_lag_of_a_sample_is_counted_at_the_step_that_uses_it():
  sample = _numbered(4, 6)._replace(version=np.array([0, 3, 5, 5]))
  # Blocks 0 and 1 are used at step 7, blocks 2 and 3 at step 8.
  assert list(unrolls.lags(sample, 7, updates=2)) == [7, 4, 3, 3]
  # One block for two updates.
  one = _numbered(1, 6)._replace(version=np.array([3]))
  assert list(unrolls.lags(one, 7, updates=2)) == [4]


def test_blocks_that_lag_too_far_are_no_experience():
  sample = _numbered(3, 6)._replace(version=np.array([0, 3, 5]))
  sample = blocks.Block(*map(tf.constant, sample))
  same, dropped = unrolls.without_stale(sample, 7, 1, 7)
  assert dropped == 0 and same.valid.numpy().all()
  fewer, dropped = unrolls.without_stale(sample, 8, 1, 4)
  assert dropped == 2
  np.testing.assert_array_equal(
    fewer.valid.numpy().all(axis=(1, 2)), [False, False, True]
  )
  # The last of three updates is two learner steps later.
  fewer, dropped = unrolls.without_stale(sample, 5, 3, 4)
  np.testing.assert_array_equal(
    fewer.valid.numpy().all(axis=(1, 2)), [False, True, True]
  )
  fewer, dropped = unrolls.without_stale(sample, 5, 3, 1)
  assert dropped == 3 and not fewer.valid.numpy().any()
