"""A star server without a program, and what explorers and supervisors call."""

import numpy as np

from agents import parameters
from agents.swarm import explorers
from launch.services import star

LAYOUT = parameters.Layout([('q/w', (2, 3)), ('q/b', (3,))])
OTHER = parameters.Layout([('q/w', (2, 4)), ('q/b', (4,))])


class Clock:
  def __init__(self):
    self.now = 100.0

  def __call__(self):
    return self.now


def make_config(**changes):
  # b + 1 = 2 episodes in a trial; k = 1 so that the pull reaches its clamp.
  settings = {'b': 1, 'k': 1.0, 'window': 4, 'idle_episodes': 2, **changes}
  return explorers.Config(**settings)


def make_server(
  run_dir=None, clock=None, target_return=None, counter=None, **c
):
  return star.StarServer(
    make_config(**c), LAYOUT, run_dir, counter, target_return, clock or Clock()
  )


def make_theta(value):
  return np.full(LAYOUT.size, value, np.float32)


def offer(server, value, claim, explorer=0):
  data = parameters.encode(LAYOUT, 0, make_theta(value))
  return server.offer(data, claim, explorer, learner_step=10)


def play(server, *returns, supervisor=0):
  """Runs one episode for each return; says of which kind they were."""
  kinds = []
  for episode_return in returns:
    job = server.next_episode(supervisor, -1)
    assert server.report_episode(job['ticket'], episode_return)
    kinds.append(job['kind'])
  return kinds


def value_of(job):
  """Which parameters an answer holds, or None."""
  if job['theta'] is None:
    return None
  return float(parameters.decode(LAYOUT, job['theta'])[1][0])
