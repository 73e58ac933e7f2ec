"""The star server's checkpoint, and theta_star in a file of its own.

The checkpoint is one file, so that the candidates and the supervisor's state
are consistent. The file of theta_star has plain arrays, for playing it.
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
  """Writes the checkpoint and theta_star.

  `kept` is state that JSON can encode: 'machine' (the rules' fields),
  'version' of theta_star, and the server's own entries.
  """
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
  # After what a run goes on from: a full disk may take no more.
  star = kept['machine']['star']
  if star is not None:
    _, theta = parameters.decode(layout, candidates[star].theta)
    checkpoints.write(
      directory / checkpoints.STAR,
      sync=False,  # nothing goes on from it
      theta=theta,
      version=kept['version'],
      r_star=r_star,
      explorer=candidates[star].explorer,
    )


def read(
  directory: pathlib.Path, layout: parameters.Layout
) -> tuple[dict[str, Any], dict[int, Candidate]] | None:
  """Reads `kept` and `candidates`; None if there is no checkpoint."""
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
