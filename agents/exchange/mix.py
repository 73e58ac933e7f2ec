"""Gossip: each worker mixes its parameters with those of a few neighbours.

Assran et al. 2019 (GALA, arXiv:1906.04585). With X [n, D] the parameters of n
workers, one local step each followed by one mixing is

    X <- W (X - rate * G)

Worker i computes its row of W alone: its own update, then a message to its
out-neighbours, then the mixture with what its in-neighbours have sent. An
iteration is one call of the learner. There is no server and no barrier: a
worker waits only while an in-neighbour is more than `tau` iterations behind.

mixing.py has graphs and arithmetic; a `Carrier` transports the messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
import logging
import math
import time
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from agents import optimizers
from agents.exchange import local
from agents.exchange import mixing

_logger = logging.getLogger(__name__)

# The iteration announced by a worker that has ended, so that none waits for it.
LEFT = 2**62
_LOOK_AROUND_S = 0.5
# For a worker that has not been heard yet: it may still be tracing its update.
_FIRST_PATIENCE_S = 120.0


class Message(NamedTuple):
  """What a worker sends after an iteration."""

  iteration: int  # that it has completed
  theta: np.ndarray | None = None  # [P, D] after its own update, if sent
  largest_step: float = 0.0  # norm of the longest known update of any worker


class Carrier(Protocol):
  """Transports messages; see launch/services/gossip_rpc.py and its siblings."""

  @property
  def received(self) -> int:
    """Messages received so far, from all senders."""

  @property
  def refused(self) -> int:
    """Messages refused because they were not finite."""

  def start(self, shape: tuple[int, ...]) -> None:
    """Prepares for parameters of this shape."""

  def send(self, receivers: Iterable[int], message: Message) -> None:
    """Sends without waiting; a newer message replaces an unsent one."""

  def newest(self, sender: int) -> Message | None:
    """The newest message with parameters, or None if there is none yet."""

  def heard(self, sender: int) -> tuple[int, int]:
    """Number of messages from a sender, and the newest iteration in them."""

  def wait(self, received: int, timeout_s: float) -> None:
    """Waits until more than `received` messages have arrived."""

  def close(self) -> None:
    """Stops sending."""


class Average(Protocol):
  """The mean of all workers; see launch/services/gossip_averager.py."""

  def __call__(
    self, number: int, steps: int, theta: np.ndarray, over: Callable[[], bool]
  ) -> np.ndarray | None:
    """The mean of round `number`; None if there is none."""

  def leave(self) -> None:
    """Withdraws this worker from later rounds."""


class Mix(local.Local):
  """The gradient; between calls, the mixture with in-neighbours.

  The order is: own update, own message, wait by the lock, mixture, and every
  `avg_period` iterations the mean of all workers. Mixing happens only between
  rollouts, so the parameters that act are those that learn. A neighbour that
  blocks the lock for `lock_timeout_s` is considered dead: mixing continues
  without it until a message from it arrives.
  """

  shared_start = True

  def __init__(
    self,
    graph: mixing.Graph,
    index: int,
    carrier: Carrier,
    tau: int | None = 1,
    lock_timeout_s: float = 10.0,
    avg_period: int = 0,
    average: Average | None = None,
    average_moments: bool = False,
    ask: Callable[[], Message | None] = lambda: None,
  ):
    """Makes the exchange of one worker.

    Args:
      graph: of all workers.
      index: this worker.
      carrier: transports its messages.
      tau: iterations that an in-neighbour may be behind; None: any number.
      lock_timeout_s: how long to wait for one that is further behind, seconds.
      avg_period: iterations between two means of all workers; 0: no means.
      average: computes these means; None: no means.
      average_moments: whether to average the optimizer's second moments too.
      ask: returns the newest state of the live neighbours, or None.
    """
    self._ask = ask
    self._graph = graph
    self._index = index
    self._carrier = carrier
    self._tau = tau
    self._timeout_s = lock_timeout_s
    self._period = avg_period if average is not None else 0
    self._average = average
    self._average_moments = average_moments
    self._sources = graph.all_sources(index)
    self._bound_factor = mixing.bound_factor(graph)
    self._again = self._due = False
    self._found: Message | None = None  # a neighbour's state at the start
    self._begun: Message | None = None  # this worker's present state
    self._last: np.ndarray | None = None  # parameters after the last mixture
    self._first = self._iteration = 0
    self._averaged_at = 0  # environment steps
    self._mixed = dict.fromkeys(self._sources, -1)  # newest iteration mixed
    self._staleness: dict[int, int] = {}
    self._dead: dict[int, int] = {}  # worker to messages heard before its death
    self._largest_step = 0.0
    self._mixtures = self._averages = 0
    self._waited_s = 0.0
    self._first_patience_s = _FIRST_PATIENCE_S

  def setup(self, learner, seed):
    self._moments = None
    if self._average_moments:
      self._moments = second_moments(learner.agent.optimizer)
    self._kept = tf.Variable(0, dtype=tf.int64, name='gossip_iteration')
    agent = learner.agent
    self._maxima = [
      v.slice for v in agent.layout.variables if v.name in agent.maxima
    ]

  def variables(self):
    if self._begun is not None:
      self._kept.assign(self._iteration)  # only needed when saving
    return {'gossip_iteration': self._kept}

  def initial(self, theta, again):
    # The target network starts from these parameters too. A checkpoint is
    # restored later and overrides both.
    self._again, self._found = again, self._ask() if again else None
    if self._found is None or self._found.theta is None:
      return theta
    return self._found.theta

  def begin(self, worker):
    self._worker = worker
    self._iteration = int(self._kept.numpy())
    # The neighbours have gone on while the update was traced.
    found = (self._ask() or self._found) if self._again else None
    if found is not None:
      self._first_patience_s = self._timeout_s  # the others are running
    behind = 0 if found is None else found.iteration - self._iteration
    # A resumed run may start with any difference that the lock allows.
    if behind > (0 if self._tau is None else self._tau + 1):
      assert found is not None and found.theta is not None
      _logger.info(
        'Going on from iteration %d of a neighbour, not from %d.',
        found.iteration,
        self._iteration,
      )
      self._iteration = found.iteration
      worker.learner.set_parameters(found.theta)
    self._first = self._iteration
    self._averaged_at = worker.steps
    theta = worker.learner.parameters()
    self._keep(theta)
    self._carrier.start(theta.shape)
    self._carrier.send(
      self._graph.all_receivers(self._index), Message(self._iteration)
    )

  def state(self) -> Message | None:
    """This worker's present state; None before it has begun."""
    return self._begun

  def updated(self, result):
    self._iteration += 1
    self._due = True

  def sync(self):
    if not self._due:
      return False
    self._due = False
    iteration, own = self._iteration, self._worker.learner.parameters()
    self._measure(own)
    self._send(iteration, own)
    self._wait(iteration)
    theta = self._mixture(iteration, own)
    if self._period and iteration % self._period == 0:
      theta = self._mean(iteration // self._period, theta)
    moved = theta is not own
    if moved:
      self._worker.learner.set_parameters(theta)
    self._keep(theta)
    return moved

  def ended(self):
    self._carrier.send(self._graph.all_receivers(self._index), Message(LEFT))
    if self._average is not None:
      self._average.leave()

  def replacement(self, member):
    for source in self._sources:
      newest = self._carrier.newest(source)
      if newest is not None and newest.theta is not None:
        return newest.theta[member]
    return None

  def reset_member(self, member):
    self._last = None  # the next change is not a step of the learner

  def metrics(self):
    found = {
      'gossip_iteration': self._iteration,
      'gossip_waited_s': self._waited_s,
      'mixtures': self._mixtures,
      'averages': self._averages,
      'neighbours_dead': len(self._dead),
      'messages_refused': self._carrier.refused,
      'distance_bound': self._bound_factor
      * math.sqrt(self._graph.size)
      * self._largest_step,
      **{
        f'staleness_from_{source}': late
        for source, late in self._staleness.items()
      },
    }
    if self._begun is not None and self._begun.theta is not None:
      newest = [self._carrier.newest(source) for source in self._sources]
      own = self._begun.theta
      known = [m.theta for m in newest if m is not None and m.theta is not None]
      mean = np.mean([own, *known], axis=0)
      found['distance_to_mean'] = float(np.linalg.norm(own - mean))
      found['mean_norm'] = float(np.linalg.norm(mean))
    return found

  def close(self):
    self._carrier.close()

  # The parts of an iteration.

  def _keep(self, theta: np.ndarray) -> None:
    self._last = theta
    self._begun = Message(self._iteration, theta)

  def _measure(self, own: np.ndarray) -> None:
    if self._last is not None:
      step = float(np.linalg.norm(own - self._last))
      if math.isfinite(step):
        self._largest_step = max(self._largest_step, step)

  def _send(self, iteration: int, own: np.ndarray) -> None:
    number = Message(iteration, None, self._largest_step)
    full = number._replace(theta=own) if np.isfinite(own).all() else number
    now = self._graph.receivers(self._index, iteration)
    self._carrier.send(now, full)
    # The other neighbours only need to know this worker's iteration.
    others = set(self._graph.all_receivers(self._index)) - set(now)
    self._carrier.send(others, number)

  def _wait(self, iteration: int) -> None:
    """Waits until no living in-neighbour is more than tau behind."""
    self._readmit()
    begin = time.monotonic()
    while True:
      received = self._carrier.received
      late = [j for j in self._sources if self._holds(j, iteration)]
      waited_s = time.monotonic() - begin
      if not late or self._worker.over():
        break
      for source in late:
        count, _ = self._carrier.heard(source)
        if waited_s > (self._timeout_s if count else self._first_patience_s):
          self._dead[source] = count
          _logger.warning(
            'Waited %.1f s%s for worker %d, gone or more than gossip.tau '
            'iterations behind: going on without it.',
            waited_s,
            ' (gossip.lock_timeout_s)' if count else '',
            source,
          )
      self._carrier.wait(received, min(_LOOK_AROUND_S, self._timeout_s))
    self._waited_s += waited_s

  def _holds(self, source: int, iteration: int) -> bool:
    if source in self._dead:
      return False
    _, heard = self._carrier.heard(source)
    # All start equal, whatever the iteration number.
    heard = max(heard, self._first)
    return not mixing.may_begin(iteration, heard, self._tau)

  def _readmit(self) -> None:
    for source, before in list(self._dead.items()):
      if self._carrier.heard(source)[0] != before:
        del self._dead[source]
        _logger.warning('Worker %d is heard again.', source)

  def _mixture(self, iteration: int, own: np.ndarray) -> np.ndarray:
    """The parameters to continue from; `own` itself if nothing has arrived."""
    living = [
      j
      for j in self._graph.sources(self._index, iteration)
      if j not in self._dead
    ]
    arrived = []
    for source in living:
      message = self._carrier.newest(source)
      # Each message is mixed once.
      if message is None or message.iteration <= self._mixed[source]:
        continue
      assert message.theta is not None
      self._mixed[source] = message.iteration
      self._staleness[source] = iteration - message.iteration
      self._largest_step = max(self._largest_step, message.largest_step)
      arrived.append(message.theta)
    if not arrived:
      return own
    self._mixtures += 1
    return self._with_maxima(
      mixing.mix_row(own, arrived, len(living)), own, *arrived
    )

  def _with_maxima(self, mixed: np.ndarray, *known: np.ndarray) -> np.ndarray:
    """`mixed` with running maxima as maxima are: a mean would forget them."""
    for place in self._maxima:
      mixed[:, place] = np.maximum.reduce([theta[:, place] for theta in known])
    return mixed

  def _mean(self, number: int, theta: np.ndarray) -> np.ndarray:
    assert self._average is not None
    steps = self._worker.steps
    begin = time.monotonic()
    learner, slot = self._worker.learner, self._moments
    brought = theta
    if slot is not None:
      brought = np.concatenate([theta, learner.save()[slot]], axis=1)
    found = self._average(
      number, max(1, steps - self._averaged_at), brought, self._worker.over
    )
    self._waited_s += time.monotonic() - begin
    if found is None:
      return theta  # Its steps since the last mean count in the next one.
    self._averaged_at = steps
    self._averages += 1
    if slot is not None:
      found, moments = np.split(found, 2, axis=1)
      learner.restore({**learner.save(), slot: moments})
    # What has come is read-only.
    return (
      self._with_maxima(found.copy(), theta, found) if self._maxima else found
    )


def second_moments(optimizer: Any) -> str:
  """The name under which a learner saves its moments of squared gradients.

  Raises:
    ValueError: the optimizer keeps none.
  """
  if isinstance(optimizer, (optimizers.SGD, optimizers.Momentum)):
    raise ValueError(
      f'{type(optimizer).__name__} has no second moments to average. Leave '
      'gossip.average_moments out, or choose another agent.optimizer.'
    )
  return f'slot_{optimizer.slots - 1}'  # the last one, in optimizers.py
