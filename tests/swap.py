"""Two workers that take each other's parameters now and then.

An exchange and a topology of a user's own, in one file outside the project:

  python launch/run.py dqn:cartpole --topology=swap:Swapping
"""

import contextlib
import dataclasses
import functools

import launchpad as lp

from murmuration.agents import settings
from murmuration.agents.exchange import local
from murmuration.launch import experience
from murmuration.launch import rpc
from murmuration.launch.nodes import replay_host
from murmuration.launch.nodes import worker
from murmuration.launch.topologies import parts


class Swap(local.Local):
  """The gradient alone; between calls, the other worker's parameters."""

  serves = ('swap',)

  def __init__(self, period, other=None):
    self._period, self._other = period, other
    self._worker, self._theirs, self._swaps = None, None, 0

  def begin(self, worker):
    self._worker, self._periods = worker, worker.learner.updates // self._period
    if self._other is not None:
      # Learning waits for the answer, and the other one may be dead.
      self._other = self._other.with_deadline(1.0)

  def swap(self, theta):
    """Serves the worker that asks: takes its parameters, gives these."""
    self._theirs = theta
    # It is served before `begin`, too, while this worker still starts.
    return None if self._worker is None else self._worker.theta

  def sync(self):
    periods = self._worker.learner.updates // self._period
    if self._other is not None and periods > self._periods:
      self._periods = periods  # a call of the learner may be several
      with contextlib.suppress(rpc.Unavailable):
        self._theirs = self._other.swap(self._worker.theta)
    if self._theirs is None:
      return False
    self._worker.learner.set_parameters(self._theirs)
    self._theirs, self._swaps = None, self._swaps + 1
    return True

  def metrics(self):
    return {'swaps': self._swaps}


@dataclasses.dataclass(frozen=True)
class Config:
  """Of the section `swap`."""

  # Learner steps between two swaps; at least those of a call of the learner.
  period: settings.Whole = 50

  def __post_init__(self):
    settings.check(self, 'swap')


class Swapping:
  """The topology: two workers that act, an evaluator of the first."""

  SECTION = 'swap'
  Config = Config

  @staticmethod
  def members(config):
    return 2

  @staticmethod
  def build(experiment, config):
    parts.require_own_replay(experiment, 'swap')
    experience.check_members(experiment)
    program = lp.Program('swap')
    counter = parts.counter(program, experiment)
    other = None
    for i in (1, 0):
      with program.group(f'worker_{i}'):
        other = program.add_node(
          replay_host.HostNode(
            worker.Worker,
            experiment,
            f'worker_{i}/0',
            [experiment.actor_info(i)],
            counter,
            exchange=functools.partial(Swap, config.period),
            peers={} if i else {'other': other},
            first_shard=i,
          )
        )
    parts.evaluator(program, experiment, counter, other)
    parts.let_all_come_back(program)
    return program
