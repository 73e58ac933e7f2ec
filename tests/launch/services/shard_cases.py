"""Shards and their learners in one process: what the tests of shards share."""

import functools
import types

import numpy as np
import tensorflow as tf

from murmuration.agents import base
from murmuration.agents import dqn
from murmuration.agents import feeds
from murmuration.agents import learner
from murmuration.environment_loops import environments
from murmuration.launch import experiment as experiment_lib
from murmuration.launch import rpc
from murmuration.launch.services import shard as shard_lib
from murmuration.launch.services import shard_exchange
from murmuration.launch.topologies import parameter_server
from murmuration.replay import packing

BATCH, UPDATES = 8, 4
SPEC = environments.spec('CartPole-v1')
LAYOUT = packing.TransitionLayout(SPEC.observation_shape)
AGENT = dqn.Config(
  hidden_sizes=(16,),
  batch_size=BATCH,
  optimizer='adagrad',
  learning_rate=0.05,
  target_update_period=10,
  max_gradient_norm=0.5,
)


def make_experiment(run_dir=None):
  return experiment_lib.Experiment(
    make_agent=functools.partial(dqn.DQN, AGENT, SPEC),
    environment='CartPole-v1',
    num_agents=1,
    max_replay_size=1000,
    min_replay_size=100,
    run_dir=run_dir,
  )


def make_config(**changes):
  return parameter_server.Config(**{'num_learners': 1, **changes})


class Direct:
  """Stands for a client of a shard; `shard` None: it is away."""

  def __init__(self, shard=None):
    self.shard = shard
    self.lose_answers = 0

  def with_deadline(self, timeout_s):
    del timeout_s
    return self

  def _call(self, method, *args):
    if self.shard is None:
      raise rpc.Unavailable('nowhere', method, False, 'nothing listens')
    answer = getattr(self.shard, method)(*args)
    if self.lose_answers:
      self.lose_answers -= 1
      raise rpc.Unavailable('nowhere', method, True, 'connection lost')
    return tuple(answer)

  def pull(self):
    return self._call('pull')

  def push(self, *args):
    return self._call('push', *args)

  def leave(self, learner):
    self.shard.leave(learner)


def make_shards(config, run_dir=None):
  return [
    Direct(shard_lib.Shard(make_experiment(run_dir), config, i))
    for i in range(config.num_shards)
  ]


def packed(seed):
  rng = np.random.default_rng(seed)
  shape = (UPDATES * BATCH,)
  return tf.constant(
    LAYOUT.pack(
      rng.normal(size=(*shape, 4)),
      rng.integers(0, 2, shape),
      rng.normal(size=shape),
      rng.integers(0, 2, shape),
      rng.normal(size=(*shape, 4)),
      np.ones(shape),
    )
  )


def make_learner(exchange, theta=None):
  agent = make_experiment().make_agent()
  if theta is None:
    seed = base.actor_seed(base.ActorInfo(0, 1, 0), 'initial from step 0')
    theta = exchange.initial(agent.initial(seed)[None], False)
  return learner.TFLearner(
    agent,
    theta,
    [agent.learning_rate],
    exchange,
    feeds.Transitions(LAYOUT, BATCH),
    updates_per_call=UPDATES,
  )


def remote(config, shards, index=0, over=lambda: False):
  places = shard_lib.places(make_experiment().make_agent(), config)
  exchange = shard_exchange.ServerExchange(config, places, index, shards)
  made = make_learner(exchange)
  worker = types.SimpleNamespace(learner=made, steps=0, over=over)
  exchange.begin(worker)
  return made, exchange
