"""The server's state of one run of one actor.

A restarted actor begins a new run, with new state.
"""

from __future__ import annotations

from concurrent import futures
import dataclasses
from typing import Any

import numpy as np

from agents import base
from agents import batched_acting
from launch.services.inference import frames
from launch.services.inference import transport


@dataclasses.dataclass(frozen=True)
class Hello:
  """An actor's first message."""

  index: int  # rank of the actor
  run_id: int  # a new identifier of this run
  seed: int | list[int]  # of exploration, for `np.random.default_rng`
  fingerprint: str  # of its frames


class Session:
  """One run of one actor."""

  def __init__(
    self,
    hello: Hello,
    actor: base.Actor,
    frame: frames.Frame,
    connection: transport.Connection | None = None,
  ):
    self.index = hello.index
    self.run_id = hello.run_id
    self.frame = frame
    self.connection = connection  # None over RPC
    self.since: float | None = None  # when the pending request arrived
    self._actor: Any = actor
    self._rng = np.random.default_rng(hello.seed)
    self._answered = -1
    self._calls: list[futures.Future] = []

  def ask(self, now: float) -> bool:
    """Takes the request in the frame. Returns whether it is a new one.

    A repeated request for an answered step gets the same answer again.
    """
    step = self.frame.asked_step
    if self.since is not None:
      return False  # A repeated request while the first is pending.
    if step == self._answered:
      self._reply(step)
      return False
    self.since = now
    return True

  def ask_by(self, call: futures.Future, request: bytes, now: float) -> bool:
    """The same as `ask`, for a request over RPC; `call` gets the reply."""
    frame = self.frame
    step = int.from_bytes(request[:8], 'little')
    if step < frame.asked_step or (
      self.since is not None and step > frame.asked_step
    ):
      # Calls may overtake each other; the actor no longer waits for this one.
      call.set_exception(transport.Late(f'request {step} was overtaken'))
      return False
    frame.request_bytes[:] = request
    self._calls.append(call)
    return self.ask(now)

  def request(self) -> batched_acting.Request:
    """The pending request, for the policy."""
    frame = self.frame
    if frame.any_ended:
      self._actor.ended(frame.ended)
    return batched_acting.Request(
      self._actor, frame.observation, frame.actor_steps, self._rng
    )

  def answer(self, actions: np.ndarray, version: int, age_s: float) -> None:
    """Answers the pending request with `actions [K, ...]`."""
    step, actor = self.frame.asked_step, self._actor
    self.frame.answer(
      step,
      version,
      age_s,
      actions,
      getattr(actor, 'behaviour', None),
      getattr(actor, 'core', None),
    )
    self._reply(step)

  def refuse(self, reason: str) -> None:
    """Answers the request with a reason instead of actions."""
    step = self.frame.asked_step
    self.frame.refuse(step, reason)
    self._reply(step)

  def close(self) -> None:
    """Ends the run and fails its pending calls."""
    calls, self._calls = self._calls, []
    for call in calls:
      call.set_exception(transport.UnknownRun(self.run_id))

  def _reply(self, step: int) -> None:
    self._answered, self.since = step, None
    calls, self._calls = self._calls, []
    for call in calls:
      call.set_result(bytes(self.frame.reply_bytes))
    if self.connection is not None:
      self.connection.answered(step)
