"""Learners that average their gradients: one master, and others that join it.

A round is one update. Each learner brings its share (`average.Share`) to the
master and gets the mean back; nobody goes on before all have brought theirs.

                    learner 1 .. L-1                 master: learner 0
    at the start    join()  ------------------>      state of the open round
    each update     contribute(share)  ------->      mean of all, in rank order

Who died comes back through `join`: it takes over the master's parameters,
target network and optimizer as they are in the round that waits for it, and so
rejoins at the same update. A master that was restarted from its checkpoint
knows nobody, so all join again. So does one whose parameters are found to
differ (`average.COMPARE_PERIOD`).
"""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import logging
import threading
import time
from typing import Any, NamedTuple, TypeVar

import numpy as np

from agents.exchange import average
from agents.exchange import base as exchange_base
from launch import pulse
from launch import rpc

_logger = logging.getLogger(__name__)
# How long the master holds a call before it says "not yet".
_HOLD_S = 2.0
_DEADLINE_S = 10.0
_LOOK_AROUND_S = 0.5
# A round that takes so long is said in the log; the first one of a learner,
# which traces its update before, may take longer.
_PATIENCE_S = 5.0
_FIRST_PATIENCE_S = 60.0
_PAUSE_S = 0.2  # before an unreachable master is asked again

# What an array of a learner's checkpoint is called, to the array.
State = dict[str, np.ndarray]
T = TypeVar('T')


class Answer(NamedTuple):
  """What the master says to `contribute`.

  Attributes:
    share: the common one; None where there is none.
    join: whether there will be none before the learner has joined again.
  """

  share: average.Share | None = None
  join: bool = False


class Master:
  """Learner 0's side: finds the mean, and lets others join.

  `join` and `contribute` are called over RPC, by any number of threads; the
  rest by the thread that learns.
  """

  def __init__(self, num_learners: int):
    """Makes one that nobody can join before it has begun.

    Args:
      num_learners: L, itself included.
    """
    self._count = num_learners
    self._changed = threading.Condition()
    self._next = -1  # update of the round that is open, or opens next
    self._parts: dict[int, average.Share] = {}  # of that round
    self._done: average.Share | None = None  # the last round
    self._wanting: set[int] = set()  # who waits to join
    self._state: State | None = None  # as the open round found it
    self._members: set[int] = set()
    self._seen: set[int] = set()
    self.rejoins = 0
    self.waited_s = 0.0

  def begin(
    self,
    update: int,
    snapshot: Callable[[], State],
    should_stop: Callable[[], bool],
  ) -> None:
    """Says where learning goes on from.

    Args:
      update: learner steps made so far.
      snapshot: the learner's state between two updates.
      should_stop: ends a wait.
    """
    self._snapshot = snapshot
    self._should_stop = should_stop
    with self._changed:
      self._next = update

  def __call__(self, share: average.Share) -> average.Share:
    """The common share, once all are there.

    Raises:
      Stopped: should_stop() was true before.
    """
    begin, said = time.monotonic(), False
    with self._changed:
      self._next = share.update
      self._parts[0] = share
      self._changed.notify_all()
    while True:
      with self._changed:
        self._changed.wait_for(self._something_to_do, _LOOK_AROUND_S)
        common = self._common()
        wanted = bool(self._wanting) and self._state is None
        missing = set(range(self._count)) - set(self._parts)
      waited_s = time.monotonic() - begin
      if common is not None:
        self.waited_s += waited_s
        if said:
          _logger.warning('All learners are back after %.0f s.', waited_s)
        return common
      if wanted:
        state = self._snapshot()
        with self._changed:
          self._state = state
          self._changed.notify_all()
      patience_s = _PATIENCE_S
      if missing - self._seen:
        patience_s = _FIRST_PATIENCE_S
      if waited_s > patience_s and not said:
        said = True
        _logger.warning(
          'Update %d waits for the gradient of learner %s. It goes on when '
          'that is back, or has samples again.',
          share.update,
          ', '.join(str(learner) for learner in sorted(missing)),
        )
      if self._should_stop():
        raise exchange_base.Stopped

  # Served.

  def join(self, learner: int) -> State | None:
    """Takes a learner in, for the first time or again.

    Returns:
      What to go on from; None: ask again.
    """
    with self._changed:
      self._wanting.add(learner)
      self._changed.notify_all()
      if not self._changed.wait_for(lambda: self._state is not None, _HOLD_S):
        return None
      self._wanting.discard(learner)
      self._members.add(learner)
      if learner in self._seen:
        self.rejoins += 1
        _logger.warning('Learner %d is back at update %d.', learner, self._next)
      self._seen.add(learner)
      return self._state

  def contribute(self, learner: int, share: tuple) -> Answer:
    """Takes a learner's share of a round; the same one may come again."""
    part = average.Share(*share)
    with self._changed:
      if learner not in self._members:
        return Answer(join=True)
      if part.update == self._next:
        self._parts[learner] = part
        self._changed.notify_all()
        self._changed.wait_for(
          lambda: self._is_done(part) or learner not in self._members, _HOLD_S
        )
      elif not self._is_done(part):
        return Answer(join=True)
      return Answer(
        self._done if self._is_done(part) else None,
        join=learner not in self._members,
      )

  # With the lock held.

  def _is_done(self, part: average.Share) -> bool:
    return self._done is not None and self._done.update == part.update

  def _something_to_do(self) -> bool:
    return len(self._parts) == self._count or (
      bool(self._wanting) and self._state is None
    )

  def _common(self) -> average.Share | None:
    """Ends the round if all are there, with parameters like the master's."""
    if len(self._parts) < self._count:
      return None
    own = self._parts[0]
    for learner, part in list(self._parts.items()):
      if part.checksum != own.checksum:
        _logger.warning(
          'Learner %d has other parameters than the master at update %d: it '
          'takes them over.',
          learner,
          own.update,
        )
        self._members.discard(learner)
        del self._parts[learner]
        self._changed.notify_all()
    if len(self._parts) < self._count:
      return None
    vector = mean([self._parts[i].vector for i in range(self._count)])
    self._done = average.Share(own.update, vector, own.statistics)
    self._next, self._parts, self._state = own.update + 1, {}, None
    self._changed.notify_all()
    return self._done


class Leads(average.Average):
  """The exchange of learner 0: it serves the others."""

  serves = ('join_learners', 'contribute')

  def __init__(self, num_learners: int):
    """Takes how many learners there are, itself included."""
    self._master = master = Master(num_learners)
    self.join_learners, self.contribute = master.join, master.contribute
    super().__init__(master)

  def begin(self, worker):
    learner = worker.learner
    self._master.begin(learner.updates, learner.save, worker.over)

  def metrics(self):
    return {
      'gradients_waited_s': self._master.waited_s,
      'learner_rejoins': self._master.rejoins,
    }


class Follows(average.Average):
  """The exchange of the other learners: learner 0 finds the mean."""

  def __init__(self, rank: int, master: Any):
    """Takes its rank, and a client of learner 0, which is a `Leads`."""
    super().__init__(self._bring)
    self._rank = rank
    self._master = master.with_deadline(_DEADLINE_S)
    self._waited_s = 0.0

  def begin(self, worker):
    self._over = worker.over
    with contextlib.suppress(exchange_base.Stopped):
      self.rejoin(worker.learner)

  def rejoin(self, learner):
    learner.restore(self._ask(lambda: self._master.join_learners(self._rank)))
    _logger.info('Learning with the others from step %d.', learner.updates)

  def metrics(self):
    return {'gradients_waited_s': self._waited_s}

  def _bring(self, share: average.Share) -> average.Share:
    """The common share, once all are there.

    Raises:
      OutOfStep: `rejoin` has to come first.
      Stopped: the run ended before.
    """

    def contribute() -> Answer | None:
      answer = self._master.contribute(self._rank, tuple(share))
      # Of a NamedTuple's name and fields, not of its class.
      return Answer(*answer) if answer.join or answer.share else None

    begin = time.monotonic()
    answer = self._ask(contribute)
    self._waited_s += time.monotonic() - begin
    if answer.share is None:
      raise exchange_base.OutOfStep(
        f'Learner {self._rank} at update {share.update}.'
      )
    return average.Share(*answer.share)

  def _ask(self, call: Callable[[], T | None]) -> T:
    """Calls until there is an answer; a master that died is waited for."""
    away = False
    while not self._over():
      try:
        answer = call()
      except rpc.Unavailable as e:
        if not away:
          _logger.warning('Waiting for learner 0: %s', e)
        away = True
        pulse.waits(f'learner 0 is away: {e}')
        time.sleep(_PAUSE_S)
        continue
      if answer is not None:
        return answer
    raise exchange_base.Stopped


def mean(vectors: list[np.ndarray]) -> np.ndarray:
  """The mean of arrays of one shape, summed in their order."""
  # A gradient that is not finite is noticed where it would be applied.
  with np.errstate(all='ignore'):
    total = vectors[0].copy()
    for vector in vectors[1:]:
      total += vector
    return total / np.float32(len(vectors))
