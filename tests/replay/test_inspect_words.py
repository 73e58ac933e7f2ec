"""The inspector's sentences, and the arithmetic behind them."""

import dataclasses

import numpy as np
import pytest
import reverb

from murmuration.replay import table_checks
from murmuration.replay import tables
from murmuration.replay.inspect import draw
from murmuration.replay.inspect import read as reading
from murmuration.replay.inspect import words

HUGE = 1.7e308


def table(size, limiter, max_size=5000, **others):
  values = {
    'name': 'replay',
    'size': size,
    'max_size': max_size,
    'max_times_sampled': 0,
    'sampler': None,
    'remover': None,
    'limiter': limiter,
    'episodes': 3,
    'unique_samples': 0,
    'signature': None,
    'worker_ms': {},
  }
  return reading.Table(**{**values, **others})


def ratio(inserts, samples):
  """8 samples per insert +- 1,200, from 1,000 items on."""
  return table_checks.Limiter(
    8.0, 1000, 8000 - 1200, 8000 + 1200, inserts, samples
  )


@pytest.mark.parametrize(
  'size, limiter, sentence',
  [
    (300, ratio(300, 0), 'samples wait: 300 of 1,000 items'),
    # The cursor is 9,200 of at most 9,200.
    (2000, ratio(2000, 6800), 'inserts wait: 1,200 samples behind'),
    # One insert more would fit.
    (2000, ratio(2000, 6808), 'neither waits: 1,192 samples behind'),
    (2000, ratio(2000, 9200), 'samples wait: 1,200 samples ahead'),
    (2000, ratio(2000, 9199), 'neither waits: 1,199 samples ahead'),
    (7, table_checks.Limiter(1, 5, -HUGE, HUGE, 7, 999), 'neither waits'),
    (
      4,
      table_checks.Limiter(1, 5, -HUGE, HUGE, 4, 0),
      'samples wait: 4 of 5 items',
    ),
    (
      9,
      table_checks.Limiter(1, 1, 0, 9, 20, 11),
      'inserts wait: the queue is full',
    ),
    (8, table_checks.Limiter(1, 1, 0, 9, 20, 12), 'neither waits'),
    (
      20,
      table_checks.Limiter(8, 1, 5, 10, 21, 163),
      'both wait: inserts and samples block each other',
    ),
  ],
)
def test_the_state_of_a_limiter_in_words(size, limiter, sentence):
  assert words.limiter_state(table(size, limiter)) == sentence


def test_the_words_agree_with_what_a_table_itself_lets_through(serve):
  limiter = reverb.rate_limiters.SampleToInsertRatio(2.0, 5, error_buffer=12)
  real = tables.uniform('replay', 100, 5, None, limiter)
  server = serve(real)
  client = server.localhost_client()

  def seen():
    shard = reading.read_server(f'localhost:{server.port}', 5)
    return shard.tables['replay']

  def agrees():
    now = seen()
    assert now.limiter.inserts_wait(now.size) != real.can_insert(1)
    assert now.limiter.samples_wait(now.size) != real.can_sample(1)

  agrees()
  while real.can_insert(1):
    client.insert(np.zeros(1, np.float32), {'replay': 1.0})
    agrees()
  assert words.limiter_state(seen()) == 'inserts wait: 12 samples behind'
  while real.can_sample(1):
    list(client.sample('replay', 1))
    agrees()
  assert words.limiter_state(seen()) == 'samples wait: 12 samples ahead'


@pytest.mark.parametrize(
  'make, sentence',
  [
    (reverb.selectors.Uniform, 'uniform'),
    (reverb.selectors.Fifo, 'oldest first'),
    (reverb.selectors.Lifo, 'newest first'),
    (reverb.selectors.MinHeap, 'lowest priority first'),
    (reverb.selectors.MaxHeap, 'highest priority first'),
    (lambda: reverb.selectors.Prioritized(0.6), 'by priority^0.6'),
  ],
)
def test_every_sampler_has_words(make, sentence):
  made = reverb.Table('t', make(), make(), 9, reverb.rate_limiters.MinSize(1))
  assert words.selector(made.info.sampler_options) == sentence
  assert words.selector(made.info.remover_options) == sentence


def shard(time, **others):
  one = table(2000, **others)
  return reading.Shard('replay', 'here', False, time, {'replay': one})


def test_rates_and_waits_are_those_of_the_interval():
  before = shard(
    10.0,
    limiter=ratio(1000, 100),
    worker_ms={'waiting_for_sampling': 500, 'sleeping': 9000},
  )
  after = shard(
    12.0,
    limiter=ratio(1040, 420),
    worker_ms={'waiting_for_sampling': 1760, 'sleeping': 9600},
  )
  found = words.rates(before, after, 'replay')
  assert (found.inserts, found.samples) == (20.0, 160.0)
  assert words.speed(found) == (
    '20 inserts/s, 160 samples/s (8.00 samples per insert)'
  )
  assert words.waiting(found) == (
    'writers waited for samplers 63% of the time, idle 30%'
  )
  # A server that was started again counts from 0.
  assert words.rates(after, before, 'replay') is None
  restarted = dataclasses.replace(before, time=14.0)
  assert words.rates(after, restarted, 'replay') is None


def test_bins_hold_every_value_and_those_of_a_wide_spread_grow():
  values = np.array([1.0, 2.0, 3.0, 900.0])
  edges, parts = draw.bins(values, np.array([1.0, 1.0, 1.0, 5.0]))
  assert np.diff(edges)[-1] > 100 * np.diff(edges)[0]
  assert (edges[0], edges[-1]) == (1.0, 900.0)
  assert parts.sum() == pytest.approx(1)
  assert parts[-1] == pytest.approx(5 / 8)
  edges, parts = draw.bins(np.array([-1.0, 100.0]), np.ones(2))
  np.testing.assert_allclose(np.diff(edges), 101 / 16)
  assert parts.tolist() == [0.5] + [0.0] * 14 + [0.5]
  edges, parts = draw.bins(np.array([4.0, 4.0]), np.ones(2))
  assert parts.tolist() == [1.0] and edges.tolist() == [3.5, 4.5]
