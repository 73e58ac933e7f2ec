"""The policy of a run, as a caller asks it: played by the helper process."""

from __future__ import annotations

import pathlib
from typing import Any

from murmuration import process


class Policy:
  """The greedy policy of a run, by the agent's own acting code.

  `policy(observation)` is what `env.step` takes: for one observation one
  action, for a batch [N, ...] as many. A policy that remembers (an LSTM, or
  stacked observations) follows its episodes from call to call: `reset` where
  they begin anew, `ended(last)` where some of a batch do.
  """

  def __init__(self, helper: process.Helper, path: pathlib.Path):
    self._helper = helper
    self._number = helper.call('policy', path=path)

  def __call__(self, observation: Any) -> Any:
    """Actions in the environment's own units.

    Raises:
      ValueError: observations of another shape than the environment's.
    """
    return self._helper.call(
      'act', number=self._number, observation=observation
    )

  def reset(self) -> None:
    """All episodes begin anew."""
    self._helper.call('reset', number=self._number)

  def ended(self, last: Any) -> None:
    """Where episodes of a batch have ended, bool [N]."""
    self._helper.call('ended', number=self._number, last=last)
