"""What presets of MuJoCo's tasks have in common."""

from __future__ import annotations

from typing import Any

# A simulation that diverges costs its episode, which is counted and reported,
# and not a run of hours. Of evolution strategies it costs its pair.
RUN: dict[str, Any] = {'on_fault': 'drop'}
