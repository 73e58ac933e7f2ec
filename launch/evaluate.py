"""Plays the best policy of a run: prints its returns and writes a film.

  python launch/evaluate.py runs/NAME
  python launch/evaluate.py runs/NAME --episodes=100 --video=film.mp4

The best policy is theta_star of a swarm, the best member of a baseline, or the
newest parameters of a run with actors and a learner.
"""

from __future__ import annotations

import os
import pathlib
import sys
from typing import NamedTuple

# Run as a file, Python would look for modules in launch/ first.
if not __package__:
  sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')
# Frames are drawn without a screen and without a sound card.
os.environ.setdefault('SDL_VIDEODRIVER', 'dummy')
os.environ.setdefault('SDL_AUDIODRIVER', 'dummy')
os.environ.setdefault('PYGAME_HIDE_SUPPORT_PROMPT', '1')

import numpy as np

from agents import base
from environment_loops import atari
from environment_loops import environments
from environment_loops import evaluation
from launch import command_line
from launch import registry
from run_records import checkpoints
from run_records import film
from run_records import run_directory

_FPS = 30.0  # where the environment does not say


class Kept(NamedTuple):
  """A run's best parameters: the agent, theta [D], and where they are from."""

  agent: base.Agent
  theta: np.ndarray
  what: str

  def policy(self) -> base.Policy:
    """The greedy policy, anew: it may remember the episode it is in."""
    return self.agent.greedy(self.theta)


def main() -> int:
  sys.path.append(os.getcwd())  # for agents of the user's own
  try:
    args = _parser().parse(sys.argv[1:])
    run = run_directory.open(args.run)
    film_path = run.path / 'policy.gif' if args.video is None else args.video
    if film_path:
      film.check(film_path)
    kept = load(run)
  except (ValueError, RuntimeError, OSError) as e:
    return command_line.refuse(e)
  name = run.config()['environment']
  print(f'Playing {kept.what} on {name}, {args.episodes} episodes.')
  try:
    result = evaluation.evaluate_vector(
      kept.policy(),
      name,
      args.episodes,
      args.seed,
      epsilon=run.config()['run'].get('eval_epsilon', 0.0),
    )
  except environments.EnvironmentFault as e:
    print(f'No returns: {e}', file=sys.stderr)
    return 1
  assert result is not None
  returns = result.returns
  print('  ' + ' '.join(f'{r:.0f}' for r in returns))
  print(
    f'  mean {returns.mean():.1f}, standard deviation {returns.std():.1f}, '
    f'worst {returns.min():.1f}, best {returns.max():.1f}'
  )
  if result.broken:
    print(f'  {result.broken} more episodes broke and do not count')
  if not film_path:
    return 0
  try:
    path = record(
      kept.policy(),
      name,
      args.seed,
      film_path,
      args.film_steps,
    )
  except (RuntimeError, ValueError, OSError) as e:
    print(f'No film: {e}', file=sys.stderr)
    return 1
  print(f'A film of one episode: {path}')
  return 0


def _parser() -> command_line.Parser:
  parser = command_line.Parser(__doc__)
  parser.add_argument('run', metavar='RUN', help='directory of a run')
  parser.add_argument(
    '--episodes',
    type=command_line.at_least(1),
    default=20,
    help='greedy episodes to play; default: %(default)s',
  )
  parser.add_argument(
    '--seed',
    type=command_line.at_least(0),
    default=0,
    help='of the episodes; default: %(default)s',
  )
  parser.add_argument(
    '--video',
    help="film of one episode, .gif or .mp4; '' makes none; default: "
    'RUN/policy.gif',
  )
  parser.add_argument(
    '--film_steps',
    type=command_line.at_least(1),
    default=1500,
    help='environment steps of the film at most; default: %(default)s',
  )
  return parser


def load(run: run_directory.RunDirectory) -> Kept:
  """The run's best parameters.

  Raises:
    ValueError: the agent is not known, or the run keeps no parameters yet.
  """
  agent = registry.make(run.config())
  star = run.checkpoints / checkpoints.STAR
  saved = checkpoints.read(star)
  if saved is not None:
    what = (
      f'theta_star version {int(saved["version"])} of explorer '
      f'{int(saved["explorer"])} (R* {float(saved["r_star"]):.1f})'
    )
    return Kept(agent, saved['theta'], what)
  members = run.checkpoints / checkpoints.AGENTS
  saved = checkpoints.read(members)
  if saved is not None:
    rows = run.metrics('evaluation')
    returns = rows[-1].get('member_returns') if rows else None
    theta, steps = saved['theta'], int(saved['steps'])
    if returns is None and len(theta) == 1:
      return Kept(agent, theta[0], f'the policy after {steps:,} learner steps')
    best = 0
    # A member whose episodes broke has NaN; all of them may.
    if returns and np.isfinite(returns).any():
      best = int(np.nanargmax(returns))
    return Kept(agent, theta[best], f'agent {best} after {steps:,} steps')
  raise ValueError(
    f'{run.path} keeps no parameters yet: it has neither {star.name} nor '
    f'{members.name} in checkpoints/. Let the run go on a little.'
  )


def record(
  policy: base.Policy,
  name: str,
  seed: int,
  path: str | os.PathLike[str],
  max_steps: int | None = None,
) -> pathlib.Path:
  """Films one episode.

  Args:
    policy: greedy, at the start of an episode.
    name: of the environment.
    seed: of the episode.
    path: of the film, .gif or .mp4.
    max_steps: of the film; a longer episode is cut.

  Raises:
    ValueError, RuntimeError: the environment gives no pictures, or they
      cannot be written.
  """
  environment = environments.make(
    atari.whole_games(name), seed, render_mode='rgb_array'
  )
  frames = []

  def watch(observation):
    frames.append(environment.render())
    return policy(observation)

  try:
    evaluation.run_episode(watch, environment, max_steps)
    frames.append(environment.render())
    fps = environment.frames_per_second or _FPS
  finally:
    environment.close()
  return film.record(frames, path, fps)


if __name__ == '__main__':
  sys.exit(main())
