"""Gossip that keeps what each worker's parameters were after each iteration.

A topology for a command line, with the settings of gossip:

  python launch/run.py gala_a2c \\
    --topology=tests.faults.recorded_gossip:RecordedGossip

A worker's metrics compare it with the neighbours that it hears, once a second.
From these files a test has the mean of all workers, in each iteration.
"""

import functools
import pathlib

import numpy as np

from murmuration.launch.services import gossip as service
from murmuration.launch.topologies import gossip


def path(run_dir, worker):
  """File of a worker: iteration [K], theta [K, D], step [K]."""
  return pathlib.Path(run_dir) / f'parameters-{worker}.npz'


class Recorder(service.Gossip):
  """Writes, when it has ended, theta after each mixture and the steps' norms.

  A step is what the learner changed in an iteration, before the mixture.
  """

  def __init__(self, graph, index, *args, run_dir, **options):
    # A busy machine must not let a worker pass for dead.
    super().__init__(graph, index, *args, patience_s=100.0, **options)
    self._path = path(run_dir, index)
    self._recorded = []

  def begin(self, worker):
    super().begin(worker)
    self._learner = worker.learner

  def sync(self):
    before, own = self.gossip_state(-1), self._learner.parameters()
    moved = super().sync()
    after = self.gossip_state(-1)
    if after.iteration > before.iteration:
      step = np.linalg.norm(own - before.theta)
      self._recorded.append((after.iteration, after.theta[0], step))
    return moved

  def ended(self):
    super().ended()
    iteration, theta, step = map(np.array, zip(*self._recorded))
    np.savez(self._path, iteration=iteration, theta=theta, step=step)


class RecordedGossip:
  """gossip, with a recorder in each worker."""

  SECTION = gossip.SECTION
  Config = gossip.Config
  members = staticmethod(gossip.members)
  exchange: type = Recorder

  @classmethod
  def build(cls, experiment, config):
    program = gossip.build(experiment, config)
    for node in program.groups['worker']:
      made = node._kwargs['exchange']
      node._kwargs['exchange'] = functools.partial(
        cls.exchange, *made.args, run_dir=experiment.run_dir, **made.keywords
      )
    return program
