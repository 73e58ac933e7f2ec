"""Plays a policy of the zoo, or an exported one; needs no TensorFlow.

  murmuration play                        # what there is
  murmuration play impala:cartpole
  murmuration play ppo:pendulum --episodes=10 --video=film.gif

With a screen (DISPLAY) it opens a window.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
from typing import Any

import gymnasium
import numpy as np

from murmuration import portable

ZOO = pathlib.Path(__file__).with_name('zoo')
_USAGE = 2


def policies() -> dict[str, pathlib.Path]:
  """Names in the zoo to their files."""
  return {
    path.stem.replace('-', ':'): path for path in sorted(ZOO.glob('*.npz'))
  }


def load(name: str) -> portable.Policy:
  """A policy of the zoo, or of a file that `murmuration export` made.

  Raises:
    ValueError: there is none; names those that there are.
  """
  path = policies().get(name, pathlib.Path(name))
  if path.suffix != '.npz' or not path.is_file():
    raise ValueError(
      f'There is no policy {name!r}: choose from {", ".join(policies())}, or '
      'give a file that murmuration export RUN --to=FILE.npz made.'
    )
  return portable.Policy(path.read_bytes())


def play(
  policy: portable.Policy,
  episodes: int,
  seed: int,
  environment: gymnasium.Env,
) -> tuple[np.ndarray, list[Any]]:
  """Plays whole episodes.

  Returns:
    Returns [episodes], and the frames of the first, where there are some.
  """
  returns, frames = np.zeros(episodes), []
  for episode in range(episodes):
    observation, _ = environment.reset(seed=seed + episode)
    policy.reset()
    over = False
    while not over:
      if environment.render_mode == 'rgb_array' and not episode:
        frames.append(environment.render())
      observation, reward, terminated, truncated, _ = environment.step(
        policy(observation)
      )
      returns[episode] += reward
      over = terminated or truncated
  return returns, frames


def main() -> int:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('name', nargs='?', metavar='AGENT:PRESET')
  parser.add_argument('--episodes', type=int, default=3)
  parser.add_argument('--seed', type=int, default=0)
  parser.add_argument('--video', help='a film of the first episode, .gif, .mp4')
  args = parser.parse_args()
  if args.name is None:
    for name in policies():
      about = load(name).about
      print(f'{name:24s} {about["score"]:.1f} {about["interval"]}')
      print(f'{"":24s} {about["command"]}')
    return 0
  try:
    policy = load(args.name)
  except ValueError as e:
    print(f'error: {e}', file=sys.stderr)
    return _USAGE
  mode = 'human' if os.environ.get('DISPLAY') else None
  name = policy.about['environment']
  environment = gymnasium.make(
    name, render_mode='rgb_array' if args.video else mode
  )
  returns, frames = play(policy, args.episodes, args.seed, environment)
  print(f'{policy.about["agent"]} on {name}: {policy.about["what"]}')
  print(
    '  '
    + ' '.join(f'{r:.0f}' for r in returns)
    + f'  mean {returns.mean():.1f}'
  )
  if args.video:
    from run_records import film

    fps = environment.metadata.get('render_fps', 30)
    print(f'  {film.record(frames, args.video, fps)}')
  environment.close()
  return 0


if __name__ == '__main__':
  sys.exit(main())
