"""What a kind of experience has to say for actor and learner to use it."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

import numpy as np
import reverb

from agents import base
from agents import feeds
from launch import actors
from launch import experiment as experiment_lib
from replay import deadlock
from replay import sampler as sampler_lib

# How long an actor waits for a table that takes nothing. Its learner may have
# died: it is started again with back-off, and traces its update anew.
WRITE_TIMEOUT_S = 600.0

# (observation, action, step, version): one step of an actor's environments.
Record = Callable[[np.ndarray, np.ndarray, Any, int], Any]


class Kind(abc.ABC):
  """One kind of experience of one run."""

  prioritized = False

  def __init__(
    self, experiment: experiment_lib.Experiment, config: actors.Config
  ):
    self.experiment = experiment
    self.config = config
    self.agent: Any = experiment.make_agent()
    # Learner steps in one call of the learner.
    self.updates_per_call = (
      self.agent.updates_per_call or experiment.run.updates_per_call
    )
    # Of one update and learner: its share of the agent's.
    self.batch_size = actors.share(self.agent, config.num_learners)

  @property
  @abc.abstractmethod
  def first_steps(self) -> int:
    """Environment steps before the first update, of all actors."""

  @property
  def acting_steps(self) -> int:
    """Environment steps of an actor between two looks for parameters."""
    return self.config.update_period

  @property
  @abc.abstractmethod
  def plan(self) -> deadlock.Plan:
    """What actors, tables and learner intend, for the static check."""

  @abc.abstractmethod
  def tables(self, name: str) -> list[reverb.Table]:
    """The tables of one shard: it holds its part of everything."""

  @abc.abstractmethod
  def adder(
    self,
    client: reverb.Client,
    table: str,
    behaviour: base.Actor,
    priorities: Callable[[np.ndarray], np.ndarray],
    should_stop: Callable[[], bool],
  ) -> tuple[Any, Record]:
    """What an actor writes with, and its way to write a step."""

  @property
  @abc.abstractmethod
  def feed(self) -> feeds.Feed:
    """How a sample becomes the batches of the updates."""

  @abc.abstractmethod
  def sampler(
    self, addresses: list[str], table: str, should_stop: Callable[[], bool]
  ) -> sampler_lib.ShardedSampler:
    """What the learner samples with: one call's updates at a time."""

  @abc.abstractmethod
  def sample_specs(self) -> Any:
    """Nest of tf.TensorSpec of `Sample.data`."""

  @abc.abstractmethod
  def numbers(
    self, sample: sampler_lib.Sample, updates: int
  ) -> dict[str, float]:
    """For the log: how old the sample of the last call was."""

  def prepare(
    self, sample: sampler_lib.Sample, updates: int
  ) -> sampler_lib.Sample:
    """What the learner learns from, of what was sampled."""
    del updates
    return sample

  def item_priorities(self, priorities: np.ndarray) -> np.ndarray:
    """Of the items of a sample, from those of what was learned from."""
    return priorities
