"""Gossip's pure functions against their vectors and against slow loops."""

import numpy as np
import pytest

from murmuration.launch.services import gossip
from murmuration.launch.services import gossip_averager

GRAPHS = [
  ('ring', 1, 1),
  ('ring', 2, 1),
  ('ring', 4, 1),
  ('bidirectional_ring', 2, 1),
  ('bidirectional_ring', 4, 1),
  ('bidirectional_ring', 5, 2),
  ('exponential', 4, 1),
  ('exponential', 8, 1),
  ('exponential', 8, 2),
  ('exponential', 9, 1),
  ('full', 4, 1),
  ('full', 4, 3),
  ('full', 7, 2),
]


def _matrix(graph, iteration):
  """`W [n, n]` of an iteration: row i is what worker i takes of each."""
  weights = np.eye(graph.size)
  for worker in range(graph.size):
    weights[worker, graph.sources(worker, iteration)] = 1.0
  return weights / weights.sum(axis=1, keepdims=True)


def _mixed(weights, stacked):
  """Each worker's row of W alone, as the exchange does it."""
  rows = []
  for worker, row in enumerate(weights):
    sources = [j for j in np.flatnonzero(row) if j != worker]
    arrived = [stacked[j] for j in sources]
    rows.append(gossip.mix_row(stacked[worker], arrived, len(sources)))
  return np.stack(rows)


@pytest.mark.parametrize('dtype', ['float64', 'float32'])
@pytest.mark.vectors('gossip', kind='mix')
def test_rounds_of_mixing_are_those_of_the_vectors(vector, dtype):
  stacked = np.array(vector.inputs['X'], dtype)
  expected, tolerance = vector.expected, vector.tolerance[dtype]
  for done in range(1, max(vector.inputs['rounds']) + 1):
    stacked = _mixed(np.array(vector.inputs['W']), stacked)
    if f'after_{done}' in expected:
      np.testing.assert_allclose(
        stacked, expected[f'after_{done}'], **tolerance
      )
    if f'max_distance_to_mean_{done}' in expected:
      distance = np.linalg.norm(stacked - stacked.mean(axis=0), axis=1).max()
      np.testing.assert_allclose(
        distance, expected[f'max_distance_to_mean_{done}'], **tolerance
      )


@pytest.mark.vectors('gossip', kind='average')
def test_the_weighted_mean_is_that_of_the_vectors(vector):
  np.testing.assert_allclose(
    gossip_averager.average(
      np.array(vector.inputs['X']), vector.inputs['weights']
    ),
    vector.expected['average'],
    **vector.tolerance['float64'],
  )


def test_the_matrices_of_the_rings_are_those_that_one_would_write():
  half, third = np.eye(4) / 2, np.eye(4) / 3
  before, after = np.roll(np.eye(4), -1, 1), np.roll(np.eye(4), 1, 1)
  np.testing.assert_array_equal(
    _matrix(gossip.Graph('ring', 4), 0), half + before / 2
  )
  np.testing.assert_allclose(
    _matrix(gossip.Graph('bidirectional_ring', 4, 2), 0),
    third + (before + after) / 3,
  )
  np.testing.assert_array_equal(
    _matrix(gossip.Graph('full', 4, 3), 0), np.full((4, 4), 0.25)
  )


def test_peers_of_an_exponential_graph_come_in_turn():
  graph = gossip.Graph('exponential', 8)
  assert [graph.sources(0, k) for k in range(4)] == [[7], [6], [4], [7]]
  assert [graph.receivers(0, k) for k in range(4)] == [[1], [2], [4], [1]]
  assert graph.all_receivers(0) == [1, 2, 4]


@pytest.mark.parametrize('topology, size, peers', GRAPHS)
def test_mixing_leaves_the_mean_where_it_is(topology, size, peers):
  graph = gossip.Graph(topology, size, peers)
  rng = np.random.default_rng(size)
  for k in range(size):
    weights = _matrix(graph, k)
    np.testing.assert_allclose(weights.sum(axis=0), 1)
    np.testing.assert_allclose(weights.sum(axis=1), 1)
    stacked = rng.normal(size=(size, 50)).astype(np.float32)
    np.testing.assert_allclose(
      _mixed(weights, stacked).mean(axis=0), stacked.mean(axis=0), atol=1e-6
    )
    np.testing.assert_allclose(
      _mixed(weights, stacked), weights @ stacked, atol=1e-6
    )
    # Who hears me is whom I send to.
    for worker in range(size):
      for receiver in graph.receivers(worker, k):
        assert worker in graph.sources(receiver, k)


def test_peers_that_a_topology_has_not_are_refused():
  with pytest.raises(ValueError, match='must be from 1 to 1'):
    gossip.Graph('ring', 4, 2)
  with pytest.raises(ValueError, match='must be from 1 to 1'):
    gossip.Graph('bidirectional_ring', 2, 2)  # Both are the same worker.
