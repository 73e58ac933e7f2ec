"""The contract of an exchange: the one thing a topology plugs into a worker.

    sample -> gradient -> [apply: in the traced update] -> theta
                 ^ meet: between gradient and update     ^ sync: between calls

An exchange defines what it does at each of these three places, which methods
its worker serves for it (`serves`), which other nodes it calls (its constructor
takes their clients), what a checkpoint of the learner must contain
(`variables`) and what it logs (`metrics`). It works with any agent, because it
uses flat vectors alone, and with any number of members P.

A worker calls, in this order:

    theta = exchange.initial(theta, again)    initial parameters
    exchange.setup(learner, seed)             once, before tracing
    exchange.begin(worker)                    the learner is built and restored
    loop:
      [if it acts: episode_ended(done) for each episode]
      learner.step(sample)  ->  meet and apply, for each update
      exchange.updated(result)
      exchange.sync()  ->  changed parameters act
    exchange.ended()
    exchange.close()
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from murmuration.agents import base
from murmuration.agents import gradient_step


class Stopped(Exception):
  """The run ended while an exchange was waiting for other nodes."""


class OutOfStep(RuntimeError):
  """The learner's state differs from the others': it must `rejoin` first."""


class Learner(Protocol):
  """An exchange's view of a learner (learner.py)."""

  agent: base.Agent
  theta: tf.Variable
  num_members: int

  @property
  def updates(self) -> int:
    """Learner steps made so far."""

  def apply(
    self,
    gradient: base.Gradient,
    combine: gradient_step.Combine | None = None,
    operands: Sequence[tf.Tensor] = (),
  ) -> Any:
    """One update; see `TFLearner.apply`."""

  def parameters(self) -> np.ndarray:
    """`theta [P, D]`. Callers must not modify the array."""

  def set_parameters(self, theta: np.ndarray) -> None:
    """Sets `theta [P, D]`; target networks and optimizer state stay."""

  def save(self) -> dict[str, np.ndarray]:
    """The state that learning resumes from."""

  def restore(self, arrays: dict[str, np.ndarray]) -> None:
    """Restores the arrays of `save`."""


class Worker(Protocol):
  """An exchange's view of the worker that it is plugged into."""

  members: list[base.ActorInfo]

  @property
  def steps(self) -> int:
    """Environment steps of each member; 0 if other nodes act."""

  @property
  def learner(self) -> Learner:
    """The learner, built and restored."""

  @property
  def theta(self) -> np.ndarray:
    """The parameters that act now [P, D], at most one learner call old."""

  def over(self) -> bool:
    """Whether to stop waiting because the run is over. Sends due reports."""


class Exchange(abc.ABC):
  """What a topology plugs into a worker. Only `apply` is abstract.

  Attributes:
    on_host: whether `meet` has work to do. Each update is then a TensorFlow
      call of its own, with Python in between (updates.py).
    shared_start: whether all members of a run begin with the same parameters.
    keeps_learner: whether a worker that restarts within a run restores its
      saved learner; if not, it begins from `initial`. A resumed run always
      restores it. Asked after `initial`.
    serves: names of the methods that the worker serves to other nodes. None may
      be a name of the worker itself, such as `get_parameters`.
    should_stop: whether the program stops, for waits before `begin`. The worker
      sets it before its first call.
  """

  on_host = False
  shared_start = False
  keeps_learner = True
  serves: tuple[str, ...] = ()
  should_stop: Callable[[], bool] = staticmethod(lambda: False)

  def setup(self, learner: Learner, seed: int) -> None:
    """Creates variables; called once, before the first update is traced."""

  # In the traced update.

  @abc.abstractmethod
  def apply(self, learner: Learner, gradient: base.Gradient) -> tf.Tensor:
    """Makes one update of the learner; bool [P], False where skipped."""

  def passed(self, updates: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Updates of the parameters before and after this one, int64 [] each.

    Target networks follow these counts. By default only the learner's own
    updates count: `updates`, with this one included.
    """
    return updates - 1, updates

  # Between gradient and update.

  def meet(self, learner: Learner, gradient: base.Gradient) -> base.Gradient:
    """Returns what to apply in place of `gradient`. May wait for other nodes.

    The gradient has arrays here, not tensors. Of what is returned, `vector`,
    `stopped` and `statistics` count; priorities and metrics stay the learner's.

    Raises:
      Stopped: the run ended meanwhile.
      OutOfStep: the learner must `rejoin` the others.
    """
    return gradient

  def brought(self) -> dict[str, np.ndarray]:
    """What `meet` brought besides a gradient, with the same shapes each time.

    It is passed to `take` before the update is finished. Also asked for while
    the update is traced, before `begin` and the first `meet`: create it in
    `setup`.
    """
    return {}

  def take(self, brought: dict[str, tf.Tensor]) -> None:
    """Stores what `meet` brought where `apply` reads it. In the graph."""

  # Between calls of the learner.

  def initial(self, theta: np.ndarray, again: bool) -> np.ndarray:
    """Returns the initial parameters [P, D] of the members, given fresh ones.

    `again` says whether the worker has acted or learned in this run before, or
    restarts within it.
    """
    return theta

  def begin(self, worker: Worker) -> None:
    """Called once, after the learner is restored and traced."""

  def rejoin(self, learner: Learner) -> None:
    """Takes over the others' state after `OutOfStep`. May wait.

    Raises:
      Stopped: the run ended meanwhile.
    """

  def episode_ended(self, done: Any) -> None:
    """Member `done.index` ended a training episode (`observers.Finished`)."""

  def updated(self, result: Any) -> None:
    """The learner completed a call, with this `learner.StepResult`."""

  def sync(self) -> bool | None:
    """Called between the learner's calls, and while the worker waits.

    Returns whether parameters changed, so that the new ones have to act.
    """

  def actor_steps(self, own: int) -> int:
    """Environment steps by which exploration falls; `own` is per member."""
    return own

  def scheduled(self, updates: int) -> int:
    """Learner steps by which learning rates fall; `updates` are its own."""
    return updates

  def replacement(self, member: int) -> np.ndarray | None:
    """Parameters [D] for a member whose own are not finite, or None."""
    return None

  def reset_member(self, member: int) -> None:
    """Resets the state of a member whose parameters were replaced."""

  def variables(self) -> dict[str, tf.Variable]:
    """Variables that a checkpoint of the learner must contain, by name."""
    return {}

  def metrics(self) -> dict[str, float]:
    """Numbers to log."""
    return {}

  def ended(self) -> None:
    """Learning has ended; the worker serves until the program stops."""

  def close(self) -> None:
    """Called last, also if the worker fails."""
