"""Priorities of prioritized replay, the same for actors and learner."""

from __future__ import annotations

from typing import Any

# Added, so that an item without error can be drawn again: Reverb does not
# sample priority 0 while others are positive.
MINIMUM = 1e-6


def proportional(td_error: Any) -> Any:
  """Raw priorities, Schaul et al. 2016, section 3.3: p = |delta| + 1e-6.

  The exponent alpha belongs to the sampler, `Prioritized(alpha)`: raised here
  too, it would count twice.

  Args:
    td_error: delta, any shape; NumPy array or TensorFlow tensor.

  Returns:
    Of the same kind and shape.
  """
  return abs(td_error) + MINIMUM
