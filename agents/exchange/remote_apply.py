"""A server makes the update: the gradient goes there, and theta comes back."""

from __future__ import annotations

from collections.abc import Sequence
import contextlib
import math
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from murmuration.agents.exchange import base


class Message(NamedTuple):
  """What a learner sends for one update."""

  vector: np.ndarray | None  # gradient [D], clipped; None if there is none
  # Offset in theta to the value that this learner alone would put there.
  statistics: dict[int, np.ndarray]
  steps: int  # environment steps of the learner's members so far


class Answer(NamedTuple):
  """The server's state after a message."""

  theta: np.ndarray  # current parameters [D]
  version: int  # updates made so far, of all learners
  steps: int  # environment steps of all learners
  scheduled: int  # updates by which rates have fallen
  accepted: float = 1.0  # share of the parameters that took the gradient


class Server(Protocol):
  """Holds parameters and optimizer. Both methods may raise `base.Stopped`."""

  def push(self, message: Message) -> Answer:
    """Sends a message and returns the state after it."""

  def pull(self) -> Answer:
    """Returns the current state."""


class LossFilter:
  """Detects losses far above the previous ones (Nair et al. 2015).

  discard if a > mean + sigmas * std, after `warmup` losses; a = |loss|

  The statistics are those before the loss. A discarded loss is added to them
  too, so that a lasting change is eventually accepted; one that is not finite
  is discarded and never added.
  """

  def __init__(self, sigmas: float, decay: float = 0.99, warmup: int = 100):
    self._sigmas = sigmas
    self._decay = decay
    self._warmup = warmup
    # Losses seen, mean and variance: what a checkpoint needs.
    self.state: Sequence[float] = (0, 0.0, 0.0)

  def discards(self, loss: float) -> bool:
    """Whether to discard the gradient of a batch with this loss."""
    a = abs(loss)
    if not math.isfinite(a):
      return True
    seen, mean, variance = self.state
    limit = mean + self._sigmas * math.sqrt(variance)
    discarded = seen >= self._warmup and a > limit
    if not seen:
      mean = a
    difference, forgotten = a - mean, 1 - self._decay
    mean += forgotten * difference
    variance = self._decay * (variance + forgotten * difference**2)
    self.state = (seen + 1, mean, variance)
    return discarded


class RemoteApply(base.Exchange):
  """Sends the gradient of the only member to a server and gets theta back.

  The server has the optimizer, learning rate and schedules; the learner keeps
  its own target network. Three rules:

  clipping    is done here, before the gradient is sent: the norm is that of the
              whole gradient, however the server slices it.
  statistics  (parameters not learned by gradient, such as means of observations
              or a largest priority) are sent with the gradient if they changed;
              the server merges those of all learners.
  target      is updated when the server's version passes a multiple of its
              period, so it follows the updates of all learners.
  """

  on_host = True
  shared_start = True

  def __init__(
    self,
    server: Server,
    loss_filter: LossFilter | None = None,
  ):
    """Makes the exchange of one learner.

    Args:
      server: makes the updates.
      loss_filter: of this learner's losses; None discards none.
    """
    self._server = server
    self._filter = loss_filter
    self._others = 0  # environment steps of other learners
    self._scheduled = 0
    self._sent = self._discarded = 0
    self._rejected = 0.0  # gradients, counted in shares of all parameters
    self._worker: base.Worker | None = None

  def setup(self, learner, seed):
    if learner.num_members != 1:
      raise ValueError(
        f'{learner.num_members} members cannot share a parameter server: it '
        'has the parameters of one.'
      )
    self._version = tf.Variable(0, dtype=tf.int64, name='version')
    self._filtered = tf.Variable(np.zeros(3), name='loss_filter')
    layout = learner.agent.layout
    self._brought: dict[str, Any] = {
      'theta': np.zeros((1, layout.size), np.float32),
      'before': np.int64(0),
      'version': np.int64(0),
      'filter': np.zeros(3),
    }
    self._starts = {v.name: v.offset for v in layout.variables}

  def begin(self, worker):
    self._worker = worker
    self._brought['version'] = self._version.numpy()
    self._brought['filter'] = self._filtered.numpy()
    if self._filter is not None:
      self._filter.state = self._filtered.numpy().tolist()
    with contextlib.suppress(base.Stopped):
      answer = self._server.pull()
      self._others = max(answer.steps - worker.steps, 0)
      self._brought['theta'] = answer.theta[None]
      worker.learner.set_parameters(answer.theta[None])

  def meet(self, learner, gradient):
    vector = np.asarray(gradient.vector)[0]
    statistics = self._moved(gradient.statistics)
    norm = np.linalg.norm(vector)
    sound = bool(np.isfinite(norm))
    if self._filter is not None:
      if self._filter.discards(float(gradient.metrics['loss'][0])):
        self._discarded += 1
        sound = False
      self._brought['filter'] = np.asarray(self._filter.state)
    moves = sound and not bool(gradient.stopped[0])
    limit = learner.agent.max_gradient_norm
    if moves and limit is not None:
      vector = vector * (limit / max(norm, limit))
    steps = 0 if self._worker is None else self._worker.steps
    answer = self._server.push(
      Message(vector if moves else None, statistics if sound else {}, steps)
    )
    self._sent += moves
    self._rejected += moves * (1 - answer.accepted)
    self._others = answer.steps - steps
    self._scheduled = answer.scheduled
    self._brought['theta'] = answer.theta[None]
    self._brought['before'] = self._brought['version']
    self._brought['version'] = np.int64(answer.version)
    return gradient._replace(
      statistics={
        name: np.reshape(
          answer.theta[self._starts[name] :][: np.size(value)], np.shape(value)
        )
        for name, value in gradient.statistics.items()
      }
    )

  def brought(self):
    return self._brought

  def take(self, brought):
    self._version.assign(brought['version'])
    self._filtered.assign(brought['filter'])
    self._in_graph = brought

  def apply(self, learner, gradient):
    learner.theta.assign(self._in_graph['theta'])
    return tf.math.is_finite(tf.norm(gradient.vector, axis=1))

  def passed(self, updates):
    return self._in_graph['before'], self._in_graph['version']

  def actor_steps(self, own):
    return own + self._others

  def scheduled(self, updates):
    return self._scheduled

  def variables(self):
    found = {'server_version': self._version}
    if self._filter is not None:
      found['loss_filter'] = self._filtered
    return found

  def metrics(self):
    return {
      'server_version': int(self._brought['version']),
      'gradients_sent': self._sent,
      'gradients_rejected': self._rejected,
      'losses_discarded': self._discarded,
    }

  def _moved(self, statistics: dict[str, Any]) -> dict[int, np.ndarray]:
    """The changed statistics, by offset in theta."""
    found = {}
    for name, value in statistics.items():
      start, new = self._starts[name], np.ravel(value)
      if not np.array_equal(new, self._brought['theta'][0, start:][: new.size]):
        found[start] = new
    return found
