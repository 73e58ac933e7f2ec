"""How parameters move besides the gradient: the one seam of a topology.

`apply` is traced into the learner's update. What talks to other nodes happens
between the learner's calls, through setters such as `Pull.set_star`, or between
gradient and update, in `meet`.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple
import zlib

import numpy as np
import tensorflow as tf

from agents import base

if TYPE_CHECKING:
  from agents import learner
  from agents import parameters

# Learner steps between two comparisons of what averaging learners have.
COMPARE_PERIOD = 50


class Exchange(abc.ABC):
  """What a topology plugs into a learner.

  Attributes:
    on_host: whether `meet` has work to do. Each update is then two TensorFlow
      calls with Python in between (updates.py): up to 1 ms more.
  """

  on_host = False

  def setup(self, learner: learner.TFLearner, seed: int) -> None:
    """Makes variables; called once, before the first update is traced."""
    del learner, seed

  def meet(
    self, learner: learner.TFLearner, gradient: base.Gradient
  ) -> base.Gradient:
    """What is applied in place of `gradient`. May wait for other nodes."""
    del learner
    return gradient

  @abc.abstractmethod
  def apply(
    self, learner: learner.TFLearner, gradient: base.Gradient
  ) -> tf.Tensor:
    """One update of the learner; returns [P] bool, False where skipped."""

  def reset_member(self, member: int) -> None:
    """Forgets what was kept of one member: its parameters were replaced."""
    del member

  def variables(self) -> dict[str, tf.Variable]:
    """What a checkpoint of the learner has to hold."""
    return {}


class Local(Exchange):
  """The gradient alone: theta <- theta - rate * u."""

  def apply(self, learner, gradient):
    return learner.apply(gradient).finite


class Share(NamedTuple):
  """What one learner brings to an update, and what all of them get back.

  Attributes:
    update: learner steps made before it.
    vector: gradient [P, D]; coming back, the mean over the learners.
    statistics: of `base.Gradient`; coming back, the master's.
    checksum: of theta before the update, now and then; else None.
  """

  update: int
  vector: np.ndarray
  statistics: dict[str, np.ndarray]
  checksum: int | None = None


class Average(Local):
  """The mean of L learners' gradients, each of its share of the batch.

  specs/impala.md, section 1: all apply the same update, so their parameters
  stay equal to the last bit. A loss that is a mean over B items is the mean
  over L shares of B / L, and so is its gradient. What is not learned by
  gradient (`statistics`) is the master's, of its share.
  """

  on_host = True

  def __init__(self, reduce: Callable[[Share], Share]):
    """Takes what finds the mean.

    Args:
      reduce: from this learner's share to the common one; waits for the other
        learners, and may raise where they cannot come together.
    """
    self._reduce = reduce

  def meet(self, learner, gradient):
    update, checksum = learner.updates, None
    if update % COMPARE_PERIOD == 0:
      checksum = zlib.crc32(learner.parameters())
    common = self._reduce(
      Share(
        update,
        gradient.vector.numpy(),
        {name: value.numpy() for name, value in gradient.statistics.items()},
        checksum,
      )
    )
    return gradient._replace(
      vector=tf.constant(common.vector),
      statistics={
        name: tf.constant(value) for name, value in common.statistics.items()
      },
    )


class Pull(Exchange):
  """The swarm's update: the gradient and a pull towards theta_star.

  Liu et al. 2018, equation 3 with its sign corrected (specs/pso.md, section 5,
  error 1):

    v <- -rate * u + min(c, c_max) * r * (theta_star - theta) + inertia * v
    theta <- theta + v

  with r a draw from U[0, 1) for each member, update and group of the layout
  (policy and critic have one each), or for each element. Both terms use theta
  before the update; the pull never enters u. Each member has a c of its own, so
  that those that are better than theta_star can be left alone.

  With `period` above 1 the pull follows every period-th update instead: it is
  added to what that update has made of theta.
  """

  def __init__(
    self,
    c_max: float | None = 0.05,
    r_mode: str = 'scalar',
    inertia: float = 0.0,
    period: int = 1,
  ):
    if r_mode not in ('scalar', 'elementwise'):
      raise ValueError(
        f"r_mode={r_mode!r} is not known. Choose 'scalar' or 'elementwise'."
      )
    self._c_max = c_max
    self._r_mode = r_mode
    self._inertia = inertia
    self.period = period

  def setup(self, learner, seed):
    shape = tuple(learner.theta.shape)
    self._star = tf.Variable(np.zeros(shape[1], np.float32), name='star')
    self._has_star = tf.Variable(False, name='has_star')
    self._c = tf.Variable(np.zeros((shape[0], 1), np.float32), name='c')
    self._part_of = _parts(learner.agent.layout)
    draws = int(self._part_of.max()) + 1
    self._r_shape = (shape[0], draws) if self._r_mode == 'scalar' else shape
    self._made = tf.Variable(0, dtype=tf.int64, name='made')
    self._generator = tf.random.Generator.from_seed(seed, alg='philox')
    self._velocity: tf.Variable | None = None
    if self._inertia:
      self._velocity = tf.Variable(np.zeros(shape, np.float32), name='velocity')

  def set_star(
    self, theta_star: np.ndarray | None, c: float | np.ndarray
  ) -> None:
    """Takes a new weight, and a new `theta_star [D]` unless it is None.

    Args:
      theta_star: [D]; None keeps the one it has.
      c: weight of the pull, [] for all members or [P].
    """
    if theta_star is not None:
      self._star.assign(theta_star)
      self._has_star.assign(True)
    weights = np.broadcast_to(
      np.reshape(np.asarray(c, np.float32), (-1, 1)), self._c.shape
    )
    # Before the first star c stays 0, so the zeros of `_star` never pull.
    self._c.assign(weights if self._has_star.numpy() else 0 * weights)

  def apply(self, learner, gradient):
    c_max, inertia, velocity = self._c_max, self._inertia, self._velocity
    afterwards = self.period > 1

    def combine(theta, step, star, c, r, *old_velocity):
      place = theta + step if afterwards else theta
      total = swarm_step(place, step, star, c, r, c_max)
      for old in old_velocity:
        total += inertia * old
      return total

    c = self._c.read_value()
    if afterwards:
      made = self._made.assign_add(1)
      c = tf.where(tf.equal(made % self.period, 0), c, tf.zeros_like(c))
    r = self._generator.uniform(self._r_shape)
    if self._r_mode == 'scalar' and self._r_shape[1] > 1:
      r = tf.gather(r, self._part_of, axis=1)
    operands = [self._star.read_value(), c, r]
    if velocity is None:
      return learner.apply(gradient, combine, operands).finite
    old = velocity.read_value()
    applied = learner.apply(gradient, combine, [*operands, old])
    # A member that skips its update keeps its velocity too.
    moved = applied.finite[:, None]
    velocity.assign(tf.where(moved, applied.displacement, old))
    return applied.finite

  def reset_member(self, member):
    if self._velocity is not None:
      row = tf.zeros_like(self._velocity[:1])
      self._velocity.assign(
        tf.tensor_scatter_nd_update(self._velocity, [[member]], row)
      )

  def variables(self):
    named = {
      'star': self._star,
      'has_star': self._has_star,
      'c': self._c,
      'pull': self._generator.state,
    }
    if self.period > 1:
      named['pull_updates'] = self._made
    if self._velocity is not None:
      named['velocity'] = self._velocity
    return named


def _parts(layout: parameters.Layout) -> np.ndarray:
  """Which group each parameter is of, int32 [D]; what has none is one more."""
  found = np.full(layout.size, -1, np.int32)
  for index, place in enumerate(layout.groups.values()):
    found[place] = index
  # From 0 on and without gaps.
  return np.unique(found, return_inverse=True)[1].astype(np.int32)


def swarm_step(theta, step, theta_star, c, r, c_max):
  """`step + min(c, c_max) * r * (theta_star - theta)`, shape of theta."""
  if c_max is not None:
    c = tf.minimum(c, tf.constant(c_max, theta.dtype))
  return step + c * r * (theta_star - theta)
