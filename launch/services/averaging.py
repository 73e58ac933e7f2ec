"""Learners that average their gradients: one master, and others that join it.

A round is one update. Each learner sends its gradient (`average.Share`) to the
master and gets the mean back once all learners have sent theirs.

                    learner 1 .. L-1                 master: learner 0
    at the start    join_learners()  --------->      state of the open round
    each update     contribute(share)  ------->      mean of all, in rank order

A restarted learner calls `join_learners`: it gets the master's parameters,
target network and optimizer state of the round that waits for it, and so
rejoins at the same update. A learner whose parameters are found to differ
(`average.COMPARE_PERIOD`) joins again too. After a restart of the master, all
do.
"""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import logging
import math
import threading
import time
from typing import Any, NamedTuple, TypeVar

import numpy as np

from murmuration.agents.exchange import average
from murmuration.agents.exchange import base as exchange_base
from murmuration.launch import pulse
from murmuration.launch import rpc

_logger = logging.getLogger(__name__)
_HOLD_S = 2.0  # the master blocks a call before it answers "not yet", at most
_DEADLINE_S = 10.0
_LOOK_AROUND_S = 0.5
# A round that takes longer is logged. The first one of each learner may take
# more time, because the learner traces its update.
_PATIENCE_S = 5.0
_FIRST_PATIENCE_S = 60.0

State = dict[str, np.ndarray]  # the arrays of a learner's checkpoint
T = TypeVar('T')


class Answer(NamedTuple):
  """The master's answer to `contribute`."""

  share: average.Share | None = None  # the mean; None before the round's end
  join: bool = False  # whether the learner has to join again first


class Leads(average.Average):
  """The exchange of learner 0: computes the mean and lets other learners join.

  RPC threads call `join_learners` and `contribute`; the learning thread calls
  the rest. `num_learners` counts all learners, this one included.
  """

  serves = ('join_learners', 'contribute')

  def __init__(self, num_learners: int):
    super().__init__(self._meet_others)
    self._count = num_learners
    self._changed = threading.Condition()
    self._next = -1  # update of the round that is open or opens next
    self._parts: dict[int, average.Share] = {}  # of that round
    self._done: average.Share | None = None  # the last round's mean
    self._wanting: set[int] = set()  # learners waiting to join
    self._state: State | None = None  # at the start of the open round
    self._members: set[int] = set()
    self._seen: set[int] = set()  # learners that have ever joined
    self._rejoins = 0
    self._waited_s = 0.0

  def begin(self, worker):
    self._snapshot, self._should_stop = worker.learner.save, worker.over
    with self._changed:
      self._next = worker.learner.updates  # the first round opens

  def metrics(self):
    return {
      'gradients_waited_s': self._waited_s,
      'learner_rejoins': self._rejoins,
    }

  def _meet_others(self, share: average.Share) -> average.Share:
    """Adds the own share, waits for all others and returns the mean."""
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
        self._waited_s += waited_s
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
      if said:
        pulse.waits(f'the gradient of learner {min(missing)} is not there')
      if self._should_stop():
        raise exchange_base.Stopped

  # Served over RPC.

  def join_learners(self, learner: int) -> State | None:
    """Admits a learner. Returns the state to start from; None: call again."""
    with self._changed:
      self._wanting.add(learner)
      self._changed.notify_all()
      if not self._changed.wait_for(lambda: self._state is not None, _HOLD_S):
        return None
      self._wanting.discard(learner)
      self._members.add(learner)
      if learner in self._seen:
        self._rejoins += 1
        _logger.warning('Learner %d is back at update %d.', learner, self._next)
      self._seen.add(learner)
      return self._state

  def contribute(self, learner: int, share: tuple) -> Answer:
    """Adds a learner's share to the round; the call may be repeated."""
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
    """Ends the round if all shares are there and all parameters are equal."""
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


class Follows(average.Average):
  """The exchange of the other learners; `master` is a client of a `Leads`."""

  def __init__(self, rank: int, master: Any):
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
    """Sends this learner's share and waits for the mean.

    Raises OutOfStep if the learner has to `rejoin` first.
    """

    def contribute() -> Answer | None:
      answer = self._master.contribute(self._rank, tuple(share))
      # RPC returns a NamedTuple of the same fields, but of another class.
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
    """Repeats a call until there is an answer, even if the master is away."""
    answer = None
    while answer is None and not self._over():
      with contextlib.suppress(rpc.Unavailable):  # the run is over
        answer = rpc.retry(call, math.inf, should_stop=self._over)
    if answer is None:
      raise exchange_base.Stopped
    return answer


def mean(vectors: list[np.ndarray]) -> np.ndarray:
  """The mean of arrays of one shape, summed in their order."""
  # Gradients that are not finite are detected when they are applied.
  with np.errstate(all='ignore'):
    total = vectors[0].copy()
    for vector in vectors[1:]:
      total += vector
    return total / np.float32(len(vectors))
