"""PALA-A2C: GALA-A2C's presets (configs/gala_a2c.py) and means of all workers.

  python launch/run.py pala_a2c:acrobot

Only the abstract of PALA is public, and it has no numbers. The period of the
mean was chosen here.
"""

from __future__ import annotations

import dataclasses

from murmuration.configs import gala_a2c
from murmuration.launch import registry

_AVG_PERIOD = 50  # iterations

AGENT: registry.Agent = dataclasses.replace(
  gala_a2c.AGENT,
  name='pala_a2c',
  title='PALA-A2C',
  presets={
    name: {
      **preset,
      'gossip': {**preset['gossip'], 'avg_period': _AVG_PERIOD},
    }
    for name, preset in gala_a2c.PRESETS.items()
  },
)
