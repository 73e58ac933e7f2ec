"""Settings that all presets of MuJoCo tasks share."""

from __future__ import annotations

from typing import Any

# If a simulation diverges, only its episode is lost, which is counted and
# reported, not a run of hours. Evolution strategies lose the episode's pair.
RUN: dict[str, Any] = {'on_fault': 'drop'}
