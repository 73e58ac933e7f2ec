"""What a star server keeps on disk: its state, and theta_star by itself.

The state is one file, so that candidates and the supervisor's rules go on from
the same moment. theta_star is written beside it as plain arrays, for whoever
wants to play it.
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import json
import pathlib
from typing import Any

import numpy as np

from agents import parameters
from run_records import checkpoints

_COUNTS = ('version', 'next_candidate', 'episodes', 'offers')  # of State


@dataclasses.dataclass(frozen=True)
class Candidate:
  """Parameters that an explorer offered.

  Attributes:
    theta: encoded (agents/parameters.py).
    claim: the return that the explorer claims for them.
    explorer: its index.
    learner_step: its learner steps when it offered them.
  """

  theta: bytes
  claim: float
  explorer: int
  learner_step: int


@dataclasses.dataclass(frozen=True)
class State:
  """All that a star server goes on with.

  Attributes:
    machine: the supervisor's rules, from supervision.state_of.
    version: of theta_star, 0 before the first.
    next_candidate: number of the next one.
    episodes: that supervisors have reported.
    offers: that explorers have made.
    candidates: number to what was offered.
  """

  machine: Mapping[str, Any]
  version: int
  next_candidate: int
  episodes: int
  offers: int
  candidates: Mapping[int, Candidate]


def write(
  directory: pathlib.Path,
  layout: parameters.Layout,
  state: State,
  r_star: float,
) -> None:
  """Replaces state and theta_star in the directory of checkpoints.

  Args:
    directory: of the checkpoints.
    layout: of the candidates.
    state: to keep.
    r_star: mean return of theta_star.
  """
  star = state.machine['star']
  if star is not None:
    _, theta = parameters.decode(layout, state.candidates[star].theta)
    checkpoints.write(
      directory / checkpoints.STAR,
      theta=theta,
      version=state.version,
      r_star=r_star,
      explorer=state.candidates[star].explorer,
    )
  kept = {
    'machine': state.machine,
    **{name: getattr(state, name) for name in _COUNTS},
    'candidates': {
      str(i): [c.claim, c.explorer, c.learner_step]
      for i, c in state.candidates.items()
    },
  }
  thetas: dict[str, Any] = {
    f'theta_{i}': np.frombuffer(c.theta, np.uint8)
    for i, c in state.candidates.items()
  }
  checkpoints.write(
    directory / checkpoints.STAR_SERVER,
    state=json.dumps(kept),
    **thetas,
  )


def read(directory: pathlib.Path, layout: parameters.Layout) -> State | None:
  """The state in the directory of checkpoints, None if there is none yet.

  Raises:
    parameters.LayoutMismatch: it is of another network.
  """
  saved = checkpoints.read(directory / checkpoints.STAR_SERVER, repair=True)
  if saved is None:
    return None
  kept = json.loads(str(saved['state']))
  candidates = {
    int(i): Candidate(saved[f'theta_{i}'].tobytes(), claim, explorer, step)
    for i, (claim, explorer, step) in kept['candidates'].items()
  }
  for candidate in candidates.values():
    parameters.check_encoded(layout, candidate.theta)
  counts = {name: kept[name] for name in _COUNTS}
  return State(machine=kept['machine'], candidates=candidates, **counts)
