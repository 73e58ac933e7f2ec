"""The swarm's exchange."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from murmuration.agents import parameters
from murmuration.agents.exchange import base


class Pull(base.Exchange):
  """The swarm's update: the gradient and a pull towards theta_star.

  Liu et al. 2018, equation 3 with its sign corrected (docs/agents/pso_dqn.md,
  "Departures"):

    theta <- theta - rate * u + min(c, c_max) * r * (theta_star - theta)

  r is drawn from U[0, 1) for each member, update and group of the layout (one
  each for policy and critic). Both terms use theta before the update, and the
  pull never enters u. Each member has its own c, so that members better than
  theta_star can be left alone.

  With `period` above 1, only every period-th update has a pull, which is then
  computed after that update's gradient step.
  """

  def __init__(self, c_max: float | None = 0.05, period: int = 1):
    self._c_max = c_max
    self.period = period

  def setup(self, learner, seed):
    shape = tuple(learner.theta.shape)
    self._star = tf.Variable(np.zeros(shape[1], np.float32), name='star')
    self._has_star = tf.Variable(False, name='has_star')
    self._c = tf.Variable(np.zeros((shape[0], 1), np.float32), name='c')
    self._part_of = _parts(learner.agent.layout)
    self._r_shape = (shape[0], int(self._part_of.max()) + 1)
    # Not saved: calls, between which checkpoints are made, are whole periods,
    # and a resumed run may have another period.
    self._made = tf.Variable(0, dtype=tf.int64, name='made')
    self._generator = tf.random.Generator.from_seed(seed, alg='philox')

  def set_star(
    self, theta_star: np.ndarray | None, c: float | np.ndarray
  ) -> None:
    """Sets c, [] or [P], the weight of the pull; theta_star [D] unless None."""
    if theta_star is not None:
      self._star.assign(theta_star)
      self._has_star.assign(True)
    weights = np.broadcast_to(
      np.reshape(np.asarray(c, np.float32), (-1, 1)), self._c.shape
    )
    # Until there is a star, c stays 0, so the zeros of `_star` never pull.
    self._c.assign(weights if self._has_star.numpy() else 0 * weights)

  def apply(self, learner, gradient):
    afterwards = self.period > 1

    def combine(theta, step, star, c, r):
      place = theta + step if afterwards else theta
      return swarm_step(place, step, star, c, r, self._c_max)

    c = self._c.read_value()
    if afterwards:
      made = self._made.assign_add(1)
      c = tf.where(tf.equal(made % self.period, 0), c, tf.zeros_like(c))
    r = self._generator.uniform(self._r_shape)
    if self._r_shape[1] > 1:
      r = tf.gather(r, self._part_of, axis=1)
    operands = [self._star.read_value(), c, r]
    return learner.apply(gradient, combine, operands).finite

  def variables(self):
    return {
      'star': self._star,
      'has_star': self._has_star,
      'c': self._c,
      'pull': self._generator.state,
    }


def _parts(layout: parameters.Layout) -> np.ndarray:
  """Group index of each parameter, int32 [D]; those without share another."""
  found = np.full(layout.size, -1, np.int32)
  for index, place in enumerate(layout.groups.values()):
    found[place] = index
  # Renumbered from 0 without gaps.
  return np.unique(found, return_inverse=True)[1].astype(np.int32)


def swarm_step(theta, step, theta_star, c, r, c_max):
  """`step + min(c, c_max) * r * (theta_star - theta)`, shaped like theta."""
  if c_max is not None:
    c = tf.minimum(c, tf.constant(c_max, theta.dtype))
  return step + c * r * (theta_star - theta)
