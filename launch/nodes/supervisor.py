"""What runs inside one node of a swarm: explorers and supervisor.

Each is a class with a `run` that returns when the program stops. What it is
allowed to survive is said by the topology's restart policies.
"""

from __future__ import annotations

from collections.abc import Sequence
import logging
import threading
import time
from typing import Any

import numpy as np
import reverb

from agents import base
from agents import learner
from agents import parameters
from agents.exchange import pull as pull_exchange
from agents.swarm import explorers
from environment_loops import environments
from environment_loops import evaluation
from environment_loops import faults
from environment_loops import vector
from launch import experiment as experiment_lib
from launch import link as link_lib
from launch import rpc
from launch.nodes import evaluator
from launch.nodes import trainer as trainer_lib
from launch.services import star_client
from run_records import reporting

_logger = logging.getLogger(__name__)
_WAIT_S = 0.1


class SwarmLink(link_lib.Link):
  """What makes a trainer's members explorers: candidates out, theta_star in."""

  def __init__(
    self,
    config: explorers.Config,
    server: Any,
    layout: parameters.Layout,
    node: str,
    num_members: int,
    updates_per_rollout: int = 1,
  ):
    """Makes a link; it talks from `initial` on.

    Args:
      config: of the swarm.
      server: client of the parameter server.
      layout: of the explorers' network.
      node: name of this node.
      num_members: explorers that it hosts.
      updates_per_rollout: learner steps between two pulls, unless
        `config.pull_every` says otherwise.
    """
    period = updates_per_rollout if config.pull_every == 'rollout' else 1
    self._pull = pull_exchange.Pull(
      config.c_max, config.r_mode, config.inertia, period
    )
    self.exchange = self._pull
    self.shared_start = config.start == 'shared'
    self._config = config
    self._link = star_client.StarLink(
      server, layout, node, config.star_max_age_s
    )
    self._returns = explorers.ReturnClaims(num_members, config.claim_episodes)
    self._targets = explorers.TargetClaims(num_members)
    self._version = 0
    self._weights = np.zeros(num_members, np.float32)
    self._next_poll = 0
    self._learner_steps = 0

  def initial(self, theta):
    star = self._link.start()
    if star.theta is None:
      return theta
    _logger.info('Starting from version %d of theta_star.', star.version)
    return np.repeat(star.theta[None], len(theta), axis=0)

  def begin(self, trainer):
    self._trainer = trainer
    self._learner_steps = trainer.learner.updates

  def episode_ended(self, done):
    claim = self._returns.finished(done.index, done.episode_return)
    if self._config.claim_mode == 'return' and claim is not None:
      self._offer(done.index, claim)

  def updated(self, result: learner.StepResult):
    self._learner_steps += result.updates
    if self._config.claim_mode == 'target':
      for member, claim in self._targets.updated(result.metrics['target_max']):
        self._offer(member, claim)

  def sync(self):
    if self._trainer.steps >= self._next_poll:
      self._next_poll = self._trainer.steps + self._config.star_poll_steps
      self._link.poll()
    star = self._link.star
    weights = explorers.pull_weights(
      star.c, star.r_star, self._returns.means, self._config.pull_mode
    )
    newer = star.version != self._version
    if newer or not np.array_equal(weights, self._weights):
      self._pull.set_star(star.theta if newer else None, weights)
      self._version, self._weights = star.version, weights

  def replacement(self, member):
    return self._link.star.theta

  def metrics(self):
    theta, star = self._trainer.theta, self._link.star
    numbers = {
      'star_version': star.version,
      'star_reachable': float(star.reachable),
      'pulled_fraction': float(np.mean(self._weights > 0)),
      'spread': float(
        np.linalg.norm(theta - theta.mean(axis=0), axis=1).mean()
      ),
    }
    if star.theta is not None:
      numbers['star_distance'] = float(
        np.linalg.norm(theta - star.theta, axis=1).mean()
      )
    return numbers

  def close(self):
    self._link.close()

  def _offer(self, member: int, claim: float) -> None:
    if claim > self._link.star.bar:
      trainer = self._trainer
      index = trainer.members[member].index
      self._link.offer(trainer.theta[member], claim, index, self._learner_steps)


def explorer_link(
  config: explorers.Config,
  server: Any,
  experiment: experiment_lib.Experiment,
  node: str,
  num_members: int,
) -> SwarmLink:
  """The link of a node with so many explorers of the experiment's agent."""
  agent = experiment.make_agent()
  updates = agent.updates_per_call or 1
  return SwarmLink(config, server, agent.layout, node, num_members, updates)


class Explorer:
  """A node that hosts P explorers of a swarm."""

  def __init__(
    self,
    experiment: experiment_lib.Experiment,
    config: explorers.Config,
    node: str,
    members: Sequence[int],
    counter: Any,
    server: Any,
    replay: reverb.Client | None = None,
    table: str = 'replay',
    shard: int = 0,
  ):
    infos = [experiment.actor_info(i) for i in members]
    self._trainer = trainer_lib.Trainer(
      experiment,
      node,
      infos,
      config.lr_spread,
      counter,
      link=explorer_link(config, server, experiment, node, len(infos)),
      replay=replay,
      table=table,
      shard=shard,
    )

  def run(self, stop: threading.Event | None = None) -> None:
    self._trainer.run(stop)


class Supervisor:
  """Runs greedy episodes as the parameter server asks for them."""

  def __init__(
    self,
    experiment: experiment_lib.Experiment,
    config: explorers.Config,
    index: int,
    counter: Any,
    server: Any,
  ):
    self._experiment = experiment
    self._config = config
    self._index = index
    self._server = server
    self._reporter = reporting.Reporter(f'supervisor/{index}', counter)
    self._agent = experiment.make_agent()
    self._policy: base.Policy | None = None
    self._holding = -1

  def run(self, stop: threading.Event | None = None) -> None:
    """Plays until the program stops."""
    if stop is None:
      import launchpad as lp  # pylint: disable=g-import-not-at-top

      stop = lp.stop_event()
    evaluator.be_nice(self._experiment)
    # A restarted supervisor plays other episodes than the one that died.
    seed = np.random.SeedSequence(
      [self._experiment.seed, self._index, time.time_ns()]
    )
    environment = environments.make(
      self._experiment.environment, int(seed.generate_state(1)[0] >> 1)
    )
    try:
      while not stop.is_set():
        rpc.retry(
          lambda: self._episode(environment, stop), should_stop=stop.is_set
        )
        if self._reporter.due():
          self._reporter.report()
    except rpc.Unavailable:
      if not stop.is_set():
        raise
    finally:
      environment.close()

  def _episode(self, environment: Any, stop: threading.Event) -> None:
    job = self._server.next_episode(self._index, self._holding)
    if job['ticket'] < 0:
      stop.wait(_WAIT_S)
      return
    if job['theta'] is not None:
      _, theta = parameters.decode(self._agent.layout, job['theta'])
      self._policy = self._agent.greedy(theta)
      self._holding = job['candidate']
    assert self._policy is not None
    try:
      result = evaluation.run_episode(
        self._policy, environment, should_stop=stop.is_set
      )
    except faults.EnvironmentFault as e:
      if self._experiment.run.on_fault == vector.RAISE:
        raise
      # Part of an episode says nothing of its return: it is asked for again.
      _logger.warning('An episode is dropped: %s', e)
      self._reporter.count(supervisor_faults=1)
      return
    if result is None:
      return
    self._server.report_episode(job['ticket'], result.episode_return)
    self._reporter.count(supervisor_steps=result.length, supervisor_episodes=1)
    if job['kind'] == 'confirmation':
      # Confirmations have no end; without a pause they would take a core.
      stop.wait(self._config.confirmation_period_s)
