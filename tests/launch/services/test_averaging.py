"""Learners that average their gradients, as threads that share no variable."""

import logging
import threading
import types

import numpy as np
import pytest
import tensorflow as tf

from murmuration.agents import dqn
from murmuration.agents import feeds
from murmuration.agents import learner
from murmuration.agents.exchange import average as average_exchange
from murmuration.agents.exchange import base as exchange_base
from murmuration.agents.exchange import local as local_exchange
from murmuration.environment_loops import environments
from murmuration.launch import rpc
from murmuration.launch.services import averaging
from murmuration.replay import packing

BATCH, UPDATES, CALLS = 8, 3, 4
SPEC = environments.Spec('Test-v0', observation_shape=(3,), num_actions=2)
LAYOUT = packing.TransitionLayout(SPEC.observation_shape)
TIMEOUT_S = 100


def _agent():
  return dqn.DQN(
    dqn.Config(hidden_sizes=(6,), batch_size=BATCH, target_update_period=2),
    SPEC,
  )


def _packed(seed):
  """[U, B, W], the transitions of one call."""
  rng = np.random.default_rng(seed)
  shape = (UPDATES, BATCH)
  return LAYOUT.pack(
    rng.normal(size=(*shape, 3)),
    rng.integers(0, 2, shape),
    rng.normal(size=shape),
    rng.integers(0, 2, shape),
    rng.normal(size=(*shape, 3)),
    np.ones(shape),
  )


def _learner(exchange_used, batch_size, seed=0):
  agent = _agent()
  return learner.TFLearner(
    agent,
    agent.initial(seed)[None],
    [0.05],
    exchange_used,
    feeds.Transitions(LAYOUT, batch_size),
    updates_per_call=UPDATES,
  )


class Direct:
  """Stands for a client of learner 0; `master` None: it is away."""

  def __init__(self, master=None):
    self.master = master

  def with_deadline(self, timeout_s):
    del timeout_s
    return self

  def _get(self):
    if self.master is None:
      raise rpc.Unavailable('nowhere', 'contribute', False, 'nothing listens')
    return self.master

  def join_learners(self, learner):
    return self._get().join_learners(learner)

  def contribute(self, learner, share):
    return self._get().contribute(learner, share)


class Team:
  """L learners; each takes its part of every batch."""

  def __init__(self, count):
    self.count = count
    self.client = Direct()
    self.stop = threading.Event()
    self.learners = {}
    self.joined = []  # (rank, update)
    self._threads = {}

  def start(self, rank, calls, saved=None, spoil=None):
    """Has a learner make its calls, from `saved` if it is the master."""
    thread = threading.Thread(
      target=self._run, args=(rank, calls, saved, spoil), daemon=True
    )
    self._threads[rank] = thread
    thread.start()

  def wait(self, *ranks):
    for rank in ranks:
      self._threads[rank].join(TIMEOUT_S)
      assert not self._threads[rank].is_alive(), rank

  def _run(self, rank, calls, saved, spoil):
    stopped = self.stop.is_set
    if rank:
      exchange = averaging.Follows(rank, self.client)
    else:
      exchange = averaging.Leads(self.count)
    # Others than the master begin with something else, and take its.
    learner = _learner(exchange, BATCH // self.count, rank)
    if saved is not None:
      learner.restore(saved)
    worker = types.SimpleNamespace(learner=learner, over=stopped)
    try:
      exchange.begin(worker)
      if not rank:
        self.client.master = exchange
      elif not stopped():
        self.joined.append((rank, learner.updates))
      self.learners[rank] = learner
      for seed in calls:
        own = np.split(_packed(seed), self.count, axis=1)[rank]
        own = tf.constant(own.reshape(-1, own.shape[-1]))
        if spoil is not None:
          own = spoil(learner, seed, own)
        try:
          learner.step(own)
        except exchange_base.OutOfStep:
          exchange.rejoin(learner)
          self.joined.append((rank, learner.updates))
    except exchange_base.Stopped:
      pass


@pytest.fixture
def team():
  teams = []

  def make(count):
    teams.append(Team(count))
    return teams[-1]

  yield make
  for one in teams:
    one.stop.set()
    one.wait(*one._threads)


def _assert_equal(*learners):
  """To the last bit, and of the same age."""
  first, *others = [learner.save() for learner in learners]
  for other in others:
    for name, array in first.items():
      np.testing.assert_array_equal(array, other[name], err_msg=name)


@pytest.mark.parametrize('count', [2, pytest.param(4, marks=pytest.mark.long)])
def test_learners_with_a_share_each_are_one_with_the_whole_batch(team, count):
  together = team(count)
  for rank in range(count):
    together.start(rank, range(CALLS))
  alone = _learner(local_exchange.Local(), BATCH)
  before = alone.parameters()
  for seed in range(CALLS):
    packed = _packed(seed)
    alone.step(tf.constant(packed.reshape(-1, packed.shape[-1])))
  together.wait(*range(count))
  _assert_equal(*together.learners.values())
  for name, array in alone.save().items():
    np.testing.assert_allclose(
      together.learners[0].save()[name], array, rtol=1e-5, atol=1e-5
    )
  assert np.abs(alone.parameters() - before).max() > 0.05
  assert sorted(together.joined) == [(rank, 0) for rank in range(1, count)]


def test_the_mean_is_of_equal_shares_in_the_order_of_ranks():
  vectors = [np.float32([[i + 1.0, 1e8 * (-1) ** i]]) for i in range(2)]
  np.testing.assert_array_equal(averaging.mean(vectors), [[1.5, 0.0]])
  assert averaging.mean(vectors).dtype == np.float32
  np.testing.assert_array_equal(vectors[0], [[1.0, 1e8]])


def test_a_share_that_is_not_finite_is_skipped_by_all(team):
  def spoil(learner, seed, own):
    return own * np.float32(np.nan) if seed == 1 else own

  together = team(2)
  together.start(0, [0, 1])
  together.start(1, [0, 1], spoil=spoil)
  together.wait(0, 1)
  _assert_equal(*together.learners.values())
  saved = together.learners[0].save()
  assert saved['updates'] == 2 * UPDATES and saved['steps'] == UPDATES
  assert np.isfinite(saved['theta']).all()


def test_what_is_not_learned_by_gradient_is_the_masters():
  class Kept:
    updates = 1

  own = {'scale': np.float32([[3.0]])}

  def reduce(share):
    assert share.statistics['scale'] == 7.0
    return average_exchange.Share(share.update, 2 * share.vector, own)

  class Found:
    vector = tf.constant([[1.0]])
    statistics = {'scale': tf.constant([[7.0]])}

    def _replace(self, **new):
      return new

  new = average_exchange.Average(reduce).meet(Kept(), Found())
  assert new['vector'] == [[2.0]]
  assert new['statistics']['scale'] == 3.0


def test_a_learner_that_died_comes_back_at_the_same_update(team, caplog):
  together = team(2)
  together.start(0, range(4))
  together.start(1, range(2))
  together.wait(1)  # dead, after two calls
  together.start(1, [2, 3])
  together.wait(0, 1)
  assert together.joined == [(1, 0), (1, 2 * UPDATES)]
  _assert_equal(*together.learners.values())
  assert 'Learner 1 is back at update 6.' in caplog.text


@pytest.mark.long
def test_others_follow_a_master_that_went_back_to_its_checkpoint(team):
  together = team(2)
  together.start(0, [0])
  together.start(1, range(10))
  together.wait(0)
  saved = together.learners[0].save()
  # It dies one call later, which the checkpoint does not know of.
  together.start(0, [1], saved)
  together.wait(0)
  together.client.master = None
  together.start(0, [2, 3], saved)
  together.wait(0)
  together.stop.set()
  together.wait(1)
  # Thrown back from 6 to 3, with all that it had.
  assert (1, UPDATES) in together.joined[2:]
  _assert_equal(*together.learners.values())
  assert together.learners[0].updates == 3 * UPDATES


def test_parameters_that_differ_are_noticed_and_replaced(
  team, caplog, monkeypatch
):
  monkeypatch.setattr(average_exchange, 'COMPARE_PERIOD', 2 * UPDATES)

  def spoil(learner, seed, own):
    if seed == 1:
      learner.theta.assign_add(tf.ones_like(learner.theta) * 1e-6)
    return own

  together = team(2)
  together.start(0, range(4))
  # One call more: it loses the one in which it is told to join again.
  together.start(1, range(5), spoil=spoil)
  together.wait(0, 1)
  assert together.joined == [(1, 0), (1, 2 * UPDATES)]
  _assert_equal(*together.learners.values())
  assert 'Learner 1 has other parameters than the master' in caplog.text


def test_a_wait_is_said_once_and_ends_with_the_run(team, caplog, monkeypatch):
  monkeypatch.setattr(averaging, '_PATIENCE_S', 0.1)
  monkeypatch.setattr(averaging, '_LOOK_AROUND_S', 0.05)
  told = []  # to the launcher
  monkeypatch.setattr(averaging.pulse, 'waits', told.append)
  caplog.set_level(logging.WARNING)
  together = team(2)
  together.start(0, range(2))
  together.start(1, range(1))
  together.wait(1)
  # On a busy machine earlier updates wait as long, and say so too.
  said = f'Update {UPDATES} waits for the gradient of learner 1'
  for _ in range(int(TIMEOUT_S / 0.1)):
    if said in caplog.text:
      break
    threading.Event().wait(0.1)
  threading.Event().wait(0.3)
  together.stop.set()
  together.wait(0)
  assert caplog.text.count(said) == 1
  assert 'the gradient of learner 1 is not there' in told
  # Between two updates, so that it can be kept.
  assert together.learners[0].updates == UPDATES


def test_a_member_says_that_the_master_is_away(team, caplog):
  together = team(2)
  together.start(1, range(1))
  for _ in range(int(TIMEOUT_S / 0.1)):
    if 'trying again' in caplog.text:
      break
    threading.Event().wait(0.1)
  assert together.joined == []
  together.start(0, range(1))
  together.wait(0, 1)
  _assert_equal(*together.learners.values())
  assert caplog.text.count('trying again') == 1
