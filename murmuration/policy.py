"""The policy of a run, as a caller asks it: played by the helper process."""

from __future__ import annotations

import pathlib
from typing import Any

from murmuration import objects
from murmuration import process

_LOST = (
  'The process that played this policy has ended, and what the policy '
  'remembered of its episodes is lost. Call reset() where they begin anew.'
)


class Policy:
  """The greedy policy of a run, by the agent's own acting code.

  `policy(observation)` is what `env.step` takes: for one observation one
  action, for a batch [N, ...] as many. A policy that remembers (an LSTM, or
  stacked observations) follows its episodes from call to call: `reset` where
  they begin anew, `ended(last)` where some of a batch do.
  """

  def __init__(self, given: objects.Objects, path: pathlib.Path):
    self._given, self._path = given, path
    self._helper: process.Helper | None = None
    self._number, self._remembers = -1, False
    self._call('reset')

  def _call(self, operation: str, **arguments: Any) -> Any:
    while True:
      try:
        return self._ask(operation, **arguments)
      except process.MadeRoom:
        # What makes room remembers nothing; this call would have begun to.
        if self._helper is not None:
          self._helper.remembering.discard(self._number)

  def _ask(self, operation: str, **arguments: Any) -> Any:
    helper = self._helper
    within = operation != 'reset' and self._in_episode()
    if helper is None or not (within and helper.lives):
      helper = process.service(self._given)
    if helper is not self._helper:
      # Another one: that before was closed, it died, or its code is older.
      if within:
        raise RuntimeError(_LOST)
      gone = helper.gone[:]
      del helper.gone[: len(gone)]  # fails for none of two threads at once
      made = helper.call('policy', path=self._path, gone=gone)
      self._leave()
      self._number, self._remembers = made
      self._helper = helper
    if self._remembers and operation == 'act':
      helper.remembering.add(self._number)
    elif operation == 'reset':
      helper.remembering.discard(self._number)
    try:
      return helper.call(operation, number=self._number, **arguments)
    except process.MadeRoom as e:
      if within:  # it died, and was closed since
        raise RuntimeError(_LOST) from e
      raise

  def _in_episode(self) -> bool:
    return self._helper is not None and self._number in self._helper.remembering

  def __reduce__(self):
    return type(self), (self._given, self._path)  # what plays it stays here

  def __del__(self):
    self._leave()

  def _leave(self) -> None:
    # Said with the next one that is made: this may be in the middle of a call.
    if self._helper is not None:
      self._helper.remembering.discard(self._number)
      self._helper.gone.append(self._number)

  def __call__(self, observation: Any) -> Any:
    """Actions in the environment's own units.

    Raises:
      ValueError: observations of another shape than the environment's.
      RuntimeError: it remembered an episode, and its process has died.
    """
    return self._call('act', observation=observation)

  def reset(self) -> None:
    """All episodes begin anew."""
    self._call('reset')

  def ended(self, last: Any) -> None:
    """Where episodes of a batch have ended, bool [N]."""
    self._call('ended', last=last)
