"""The contract of an exchange: the one thing a topology plugs into a worker.

    sample -> gradient -> [apply: in the traced update] -> theta
                 ^ meet: between gradient and update     ^ sync: between calls

An exchange says what it does at each of the three places, which methods its
worker serves for it (`serves`), which other nodes it calls (its constructor
takes their clients), what a checkpoint of the learner must hold (`variables`)
and what it logs (`metrics`). It knows any agent, by its flat vectors alone, and
any number of members P.

A worker calls, in this order:

    theta = exchange.initial(theta, again)    first parameters
    exchange.setup(learner, seed)             once, before anything is traced
    exchange.begin(worker)                    the learner is built and restored
    loop:
      [acts, if it does: episode_ended(done) for each episode]
      learner.step(sample)  ->  meet and apply, for each update
      exchange.updated(result)
      exchange.sync()  ->  moved parameters act
    exchange.ended()
    exchange.close()
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from agents import base
from agents import gradient_step


class Stopped(Exception):
  """The run ended while an exchange waited for other nodes."""


class OutOfStep(RuntimeError):
  """What the learner has does not fit the others': `rejoin` comes first."""


class Learner(Protocol):
  """What an exchange sees of a learner (learner.py)."""

  agent: base.Agent
  theta: tf.Variable
  num_members: int

  @property
  def updates(self) -> int:
    """Learner steps made."""

  def apply(
    self,
    gradient: base.Gradient,
    combine: gradient_step.Combine | None = None,
    operands: Sequence[tf.Tensor] = (),
  ) -> Any:
    """One update; see `TFLearner.apply`."""

  def parameters(self) -> np.ndarray:
    """`theta [P, D]`, a copy."""

  def set_parameters(self, theta: np.ndarray) -> None:
    """Puts all members at `theta [P, D]`; optimizers go on."""

  def save(self) -> dict[str, np.ndarray]:
    """All that learning needs to go on."""

  def restore(self, arrays: dict[str, np.ndarray]) -> None:
    """Takes the arrays of `save` back."""


class Worker(Protocol):
  """What an exchange sees of the worker that it is plugged into."""

  members: list[base.ActorInfo]

  @property
  def steps(self) -> int:
    """Environment steps of each member; 0 where others act."""

  @property
  def learner(self) -> Learner:
    """The learner, built and restored."""

  @property
  def theta(self) -> np.ndarray:
    """Parameters [P, D] that act now: at most one learner call old."""

  def over(self) -> bool:
    """Whether to stop waiting: the run is over. Also reports, when due."""


class Exchange(abc.ABC):
  """What a topology plugs into a worker. Only `apply` has to be written.

  Attributes:
    on_host: whether `meet` has work to do. Each update is then a TensorFlow
      call of its own, with Python in between (updates.py).
    shared_start: whether all members of a run begin with the same parameters.
    keeps_learner: whether a worker that is started again within a run goes on
      as its learner was saved; if not, it begins from `initial`. A run that is
      resumed always goes on.
    serves: names of the methods that the worker serves to others.
    should_stop: whether the program stops, for waits before `begin`; the worker
      sets it before it asks for anything.
  """

  on_host = False
  shared_start = False
  keeps_learner = True
  serves: tuple[str, ...] = ()
  should_stop: Callable[[], bool] = staticmethod(lambda: False)

  def setup(self, learner: Learner, seed: int) -> None:
    """Makes variables; called once, before the first update is traced."""
    del learner, seed

  # In the traced update.

  @abc.abstractmethod
  def apply(self, learner: Learner, gradient: base.Gradient) -> tf.Tensor:
    """One update of the learner; returns [P] bool, False where skipped."""

  def passed(self, updates: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Updates of the parameters before and after this one, int64 [].

    What target networks follow by. Own ones, where no others are made.

    Args:
      updates: learner steps, this one included.
    """
    return updates - 1, updates

  # Between gradient and update.

  def meet(self, learner: Learner, gradient: base.Gradient) -> base.Gradient:
    """What is applied in place of `gradient`. May wait for other nodes.

    Raises:
      Stopped: the run ended meanwhile.
      OutOfStep: the learner has to `rejoin` the others.
    """
    del learner
    return gradient

  def brought(self) -> dict[str, np.ndarray]:
    """What `meet` has brought besides a gradient, of the same shapes each time.

    It goes to `take` before the update is finished.
    """
    return {}

  def take(self, brought: dict[str, tf.Tensor]) -> None:
    """In the graph: puts what was `brought` where `apply` needs it."""
    del brought

  # Between calls of the learner.

  def initial(self, theta: np.ndarray, again: bool) -> np.ndarray:
    """First parameters [P, D] of the members, given fresh ones.

    Args:
      theta: fresh ones [P, D].
      again: whether the worker has acted or learned in this run before, or is
        started again within it.
    """
    del again
    return theta

  def begin(self, worker: Worker) -> None:
    """Called once, with the learner restored and traced."""
    del worker

  def rejoin(self, learner: Learner) -> None:
    """After `OutOfStep`: takes over what the others have. May wait.

    Raises:
      Stopped: the run ended meanwhile.
    """
    del learner

  def episode_ended(self, done: Any) -> None:
    """A training episode ended: `observers.Finished`, index is the member."""
    del done

  def updated(self, result: Any) -> None:
    """The learner made a call (`learner.StepResult`)."""
    del result

  def sync(self) -> bool | None:
    """Called between the learner's calls, and while the worker waits.

    Returns:
      Whether parameters moved, so that the new ones are to act from now on.
    """

  def actor_steps(self, own: int) -> int:
    """Environment steps by which exploration falls.

    Args:
      own: of each member of this worker.
    """
    return own

  def scheduled(self, updates: int) -> int:
    """Learner steps by which learning rates fall.

    Args:
      updates: of this learner.
    """
    return updates

  def replacement(self, member: int) -> np.ndarray | None:
    """Parameters [D] for a member whose own are not finite, if there are."""
    del member
    return None

  def reset_member(self, member: int) -> None:
    """Forgets what was kept of one member: its parameters were replaced."""
    del member

  def variables(self) -> dict[str, tf.Variable]:
    """What a checkpoint of the learner has to hold."""
    return {}

  def metrics(self) -> dict[str, float]:
    """What to log."""
    return {}

  def ended(self) -> None:
    """The worker learns no more; it serves until the program stops."""

  def close(self) -> None:
    """The loop is over."""
