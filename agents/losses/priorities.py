"""Priorities of prioritized replay, the same for actors and learner."""

from __future__ import annotations

from typing import Any

# Added so that an item without error can be drawn again: Reverb never samples
# priority 0 while others are positive.
MINIMUM = 1e-6


def proportional(td_error: Any) -> Any:
  """Raw priorities, Schaul et al. 2016, section 3.3: p = |delta| + 1e-6.

  `td_error` is a NumPy array or a tensor, of any shape. The exponent alpha is
  not applied here, because the sampler `Prioritized(alpha)` does it.
  """
  return abs(td_error) + MINIMUM
