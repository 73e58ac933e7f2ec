"""A real run of synchronous gossip stays in the ball that GALA's abstract has.

Assran et al. 2019: agents stay within an epsilon ball of their mean. With W the
mixing matrix, n workers and U the longest step of any of them

    ||theta_i - mean|| <= D <= beta / (1 - beta) * sqrt(n) * U

where beta, the second largest singular value of W, is the share of a deviation
from the mean that mixing leaves.
"""

import numpy as np
import pytest

from murmuration.run_records import run_directory
from tests.faults import recorded_gossip

WORKERS, STEPS, ROLLOUT = 4, 6000, 20  # steps of a worker, of an iteration
RING = (np.eye(WORKERS) + np.roll(np.eye(WORKERS), -1, 1)) / 2  # W
SMALL_BALL = 0.1  # of the norm of the mean


@pytest.fixture(scope='module')
def run(start_run):
  started = start_run(
    'gala_a2c:cartpole',
    f'--topology={recorded_gossip.__name__}:RecordedGossip',
    f'--config.gossip.num_learners={WORKERS}',
    '--config.gossip.tau=0',
    f'--config.run.steps_per_agent={STEPS}',
    '--config.run.eval_episodes=2',
    '--config.run.evaluations=2',
    '--config.run.target_return=None',
  )
  assert started.wait() == 0, started.output
  started.assert_no_traceback()
  return run_directory.open(started.directory)


@pytest.fixture(scope='module')
def rows(run):
  found = run.metrics('node_worker')
  found = [row for row in found if 'distance_to_mean' in row]
  assert len({row['node'] for row in found}) == WORKERS
  assert all(row['neighbours_dead'] == 0 for row in found)
  return found


@pytest.fixture(scope='module')
def recorded(run):
  """theta [K, n, D] after each iteration, and the longest step."""
  files = []
  for worker in range(WORKERS):
    with np.load(recorded_gossip.path(run.path, worker)) as saved:
      files.append({name: saved[name] for name in saved.files})
  for file in files:
    np.testing.assert_array_equal(
      file['iteration'], np.arange(1, STEPS // ROLLOUT + 1)
    )
  theta = np.stack([file['theta'] for file in files], axis=1)
  return theta.astype(float), max(file['step'].max() for file in files)


def test_every_row_of_the_metrics_is_within_a_tenth_of_the_mean(rows):
  assert any(row['distance_to_mean'] > 0 for row in rows)
  for row in rows:
    assert row['distance_to_mean'] < SMALL_BALL * row['mean_norm'], row


def test_no_worker_ever_leaves_the_ball(recorded):
  theta, longest = recorded
  mean = theta.mean(axis=1)
  distance = np.linalg.norm(theta - mean[:, None], axis=2).max(axis=1)
  beta = np.linalg.svd(RING, compute_uv=False)[1]
  bound = beta / (1 - beta) * np.sqrt(WORKERS) * longest
  print(
    f'largest distance {distance.max():.4f}, bound {bound:.4f}, largest share '
    f'of the mean {(distance / np.linalg.norm(mean, axis=1)).max():.4f}'
  )
  assert 0 < distance.max() <= bound
  assert (distance < SMALL_BALL * np.linalg.norm(mean, axis=1)).all()
