"""An inference server in a thread, over real RPC.

Its parameters stand still unless a test publishes others, so that acting
locally is the truth.
"""

import functools
import tempfile
import threading
from typing import Any

import numpy as np

from murmuration.agents import base
from murmuration.agents import d4pg
from murmuration.agents import dqn
from murmuration.agents import impala
from murmuration.environment_loops import environments
from murmuration.launch import actor_settings
from murmuration.launch import experiment as experiment_lib
from murmuration.launch import rpc
from murmuration.launch.services import inference
from murmuration.launch.services import variables

COUNT, ENVS, SEED = 3, 4, 7
UNROLL = 5
_SMALL: dict[str, Any] = {'hidden_sizes': (16,)}
AGENTS = {
  'impala': (
    impala.IMPALA,
    impala.Config(
      lstm_size=8, stack=2, unroll_length=UNROLL, batch_size=ENVS, **_SMALL
    ),
    'CartPole-v1',
  ),
  'dqn': (
    dqn.DQN,
    dqn.Config(prioritized=True, exploration='ladder', **_SMALL),
    'CartPole-v1',
  ),
  'd4pg': (d4pg.D4PG, d4pg.Config(prioritized=True), 'Pendulum-v1'),
}


class _Quiet:
  """A counter; and a client of it."""

  def with_deadline(self, timeout_s):
    del timeout_s
    return self

  def report(self, *unused):
    return {'finished': False}

  def begin(self, *unused):
    return {}

  def totals(self):
    return {}


class _Learner(_Quiet):
  """Serves what a test publishes."""

  address = 'localhost:1'

  def __init__(self, agent):
    self.published = variables.Published(agent.layout)
    self.theta = 3 * agent.initial(0)
    self.published.publish(0, self.theta)

  def get_parameters(self, have_version):
    return self.published.get(have_version)


class World:
  """A server in a thread, and what it talks to."""

  def __init__(self, agent, **options):
    agent_class, agent_config, environment = AGENTS[agent]
    self.experiment = experiment_lib.Experiment(
      functools.partial(
        agent_class, agent_config, environments.spec(environment)
      ),
      environment,
      num_agents=1,
      max_replay_size=1000,
      min_replay_size=100,
      seed=SEED,
      run=experiment_lib.RunConfig(
        steps_per_agent=1_000_000, updates_per_call=1
      ),
    )
    self.config = actor_settings.Config(
      **{
        'inference': 'central',
        'num_actors': COUNT,
        'envs_per_actor': ENVS,
        **options,
      }
    )
    self.agent = self.experiment.make_agent()
    self.learner, self.counter = _Learner(self.agent), _Quiet()
    self._place = tempfile.TemporaryDirectory()
    self.address = f'unix:{self._place.name}/inference'
    self.client = rpc.Client(self.address, timeout_s=30.0)
    self.over = threading.Event()
    self.start()

  def start(self):
    """Starts a server where the last one was."""
    self.stop = threading.Event()
    self.server = inference.Server(
      self.experiment, self.config, self.counter, self.learner
    )
    self.serving = rpc.serve(self.server, self.address)
    self.serving.__enter__()
    self.error = None
    self.thread = threading.Thread(target=self._run, daemon=True)
    self.thread.start()

  def _run(self):
    try:
      self.server.run(self.stop)
    except BaseException as e:
      self.error = e

  def end(self):
    self.stop.set()
    self.thread.join(60)
    self.serving.__exit__(None, None, None)
    assert not self.thread.is_alive() and self.error is None, self.error

  def policy(self, index, **options):
    """An actor's policy, connected."""
    policy = inference.RemotePolicy(
      self.client, index, 100 + index, self.over.is_set, **options
    )
    policy.start()
    return policy

  def local(self, index):
    """What acts alike, without a server."""
    info = base.ActorInfo(index, self.config.num_actors, SEED)
    return self.agent.actor(info, ENVS), np.random.default_rng(100 + index)

  def observation(self, rng):
    shape = (ENVS, *self.agent.spec.observation_shape)
    return rng.standard_normal(shape, np.float32)

  def close(self):
    self.over.set()
    self.end()
    self._place.cleanup()
