"""An inference server in a thread, with real sockets, real memory, real RPC.

Its parameters stand still unless a test publishes others, so that acting
locally is the truth.
"""

import contextlib
import functools
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
from typing import Any

import numpy as np
import pytest

from agents import base
from agents import d4pg
from agents import dqn
from agents import impala
from environment_loops import environments
from launch import actor_settings
from launch import experiment as experiment_lib
from launch import rpc
from launch.services import variables
from launch.services.inference import frames
from launch.services.inference import remote
from launch.services.inference import server as inference
from launch.services.inference import transport as transport_lib

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

  def report(self, node, counts, metrics, life):
    del counts, life
    self.node, self.metrics = node, metrics
    return {'finished': False}

  def begin(self, node, life):
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


_APART = pathlib.Path(__file__).with_name('served_apart.py')


class World:
  """A server in a thread, and what it talks to."""

  def __init__(self, agent, config):
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
    self.config = config
    self.agent = self.experiment.make_agent()
    self.shapes = frames.layout(self.experiment, config)
    self.learner, self.counter = _Learner(self.agent), _Quiet()
    self._place = tempfile.TemporaryDirectory()
    self.address = f'unix:{self._place.name}/inference'
    self.client = rpc.Client(self.address, timeout_s=30.0)
    self.policies = []
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

  def policy(self, index, transport, seed=None):
    """An actor's policy, connected."""
    seed = 100 + index if seed is None else seed
    policy = remote.RemotePolicy(
      self.client, self.shapes, index, seed, transport, self.over.is_set
    )
    policy.start()
    over_rpc = isinstance(policy._link, transport_lib.RpcLink)
    assert over_rpc == (transport == 'rpc')
    self.policies.append(policy)
    return policy

  def local(self, index):
    """What acts alike, without a server."""
    info = base.ActorInfo(index, self.config.num_actors, SEED)
    return self.agent.actor(info, ENVS), np.random.default_rng(100 + index)

  def observe_batches(self, tell):
    """Calls tell(number of requests) at each batch from now on."""
    assert self.server._ready.wait(60)
    policy = self.server._policy
    act = policy.act

    def observed(newest, requests):
      tell(len(requests))
      return act(newest, requests)

    policy.act = observed

  def observation(self, rng):
    shape = (ENVS, *self.agent.spec.observation_shape)
    return rng.standard_normal(shape, np.float32)

  def close(self):
    self.over.set()
    for policy in self.policies:
      policy.close()
    self.end()


@pytest.fixture
def world():
  """world(agent, **config) starts a server."""
  with contextlib.ExitStack() as stack:

    def make(agent='impala', **options):
      options = {
        'num_actors': COUNT, 'envs_per_actor': ENVS, **options
      }  # fmt: skip
      made = World(agent, actor_settings.Config(inference='central', **options))
      stack.callback(made.close)
      return made

    yield make


class _Apart:
  """A server in a process of its own, for one actor, that can be stopped."""

  def __init__(self):
    self.process = subprocess.Popen(
      [sys.executable, _APART],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
    )
    self.address = self.process.stdout.readline().strip()
    self.policies = []

  def policy(self, transport, patience_s):
    """An actor's policy, not connected."""
    agent_class, agent_config, environment = AGENTS['impala']
    agent = agent_class(agent_config, environments.spec(environment))
    layout = agent.block_layout(ENVS)
    policy = remote.RemotePolicy(
      rpc.Client(self.address, timeout_s=1.0),
      frames.FrameLayout(
        ENVS,
        agent.spec.observation_shape,
        behaviour_size=layout.behaviour_size,
        core_size=layout.core_size,
      ),
      0,
      SEED,
      transport,
      patience_s=patience_s,
    )
    self.policies.append(policy)
    return policy

  def stop(self):
    """Returns when no thread of it runs any more."""
    self.process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

  def go_on(self):
    self.process.send_signal(signal.SIGCONT)

  def leave(self):
    """Ends the runs of all policies so far."""
    self.go_on()
    while self.policies:
      self.policies.pop().close()

  def close(self):
    self.process.stdin.close()
    self.process.wait(120)
    self.process.stdout.close()


@pytest.fixture(scope='module')
def _served_apart():
  with contextlib.closing(_Apart()) as made:
    yield made


@pytest.fixture
def apart(_served_apart):
  """A server in a process of its own, which goes on after the test."""
  yield _served_apart
  _served_apart.leave()
