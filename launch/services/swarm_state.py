"""What a star server keeps on disk: its state, and theta_star by itself.

The state is one file, so that candidates and the supervisor's rules go on from
the same moment. theta_star is written beside it as plain arrays, for whoever
wants to play it.
"""

from __future__ import annotations

from collections.abc import Mapping
import json
import pathlib
from typing import Any, NamedTuple

import numpy as np

from agents import parameters
from run_records import checkpoints


class Candidate(NamedTuple):
  """Parameters that an explorer offered."""

  theta: bytes  # encoded (agents/parameters.py)
  claim: float  # the return that the explorer claims for them
  explorer: int  # its index
  learner_step: int  # its learner steps when it offered them


def write(
  directory: pathlib.Path,
  layout: parameters.Layout,
  kept: Mapping[str, Any],
  candidates: Mapping[int, Candidate],
  r_star: float,
) -> None:
  """Replaces state and theta_star in the directory of checkpoints.

  Args:
    directory: of the checkpoints.
    layout: of the candidates.
    kept: the state, for JSON: 'machine' of supervision.state_of, 'version' of
      theta_star, and what else the server goes on with.
    candidates: number to what was offered.
    r_star: mean return of theta_star.
  """
  star = kept['machine']['star']
  if star is not None:
    _, theta = parameters.decode(layout, candidates[star].theta)
    checkpoints.write(
      directory / checkpoints.STAR,
      theta=theta,
      version=kept['version'],
      r_star=r_star,
      explorer=candidates[star].explorer,
    )
  offered = {str(i): candidate[1:] for i, candidate in candidates.items()}
  thetas: dict[str, Any] = {
    f'theta_{i}': np.frombuffer(candidate.theta, np.uint8)
    for i, candidate in candidates.items()
  }
  checkpoints.write(
    directory / checkpoints.STAR_SERVER,
    state=json.dumps({**kept, 'candidates': offered}),
    **thetas,
  )


def read(
  directory: pathlib.Path, layout: parameters.Layout
) -> tuple[dict[str, Any], dict[int, Candidate]] | None:
  """What `write` got as `kept` and `candidates`; None if there is none yet.

  Raises:
    parameters.LayoutMismatch: it is of another network.
  """
  saved = checkpoints.read(directory / checkpoints.STAR_SERVER, repair=True)
  if saved is None:
    return None
  kept = json.loads(str(saved['state']))
  candidates = {
    int(i): Candidate(saved[f'theta_{i}'].tobytes(), *offered)
    for i, offered in kept.pop('candidates').items()
  }
  for candidate in candidates.values():
    parameters.check_encoded(layout, candidate.theta)
  return kept, candidates
