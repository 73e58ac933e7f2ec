"""Atari games, preprocessed as the field does.

A name is an id of ale_py, alone or with options:

  'ALE/Pong-v5'
  'ALE/Breakout-v5?life_loss=1'
  'ALE/Breakout-v5?sticky=0.25&noop_max=0'

Fixed: each action is held for 4 frames; an observation is the maximum of the
last two, gray, 84 x 84, and the latest of 4 such, oldest first on the last
axis, black before the first: uint8 [84, 84, 4]. The actions are the game's own
minimal set. A game is truncated after 108,000 frames, that is 27,000 steps.
Rewards are the game's points: clipping them is for the agent.

Sticky actions are off, although the ids of ale_py with -v5 have 0.25. Chance
comes from up to 30 no-ops at the start instead: the protocol of DQN (Mnih et
al. 2015), Ape-X and IMPALA, so that results compare with theirs.
'?sticky=0.25&noop_max=0' is that of Machado et al. 2018.
"""

import dataclasses
from typing import Any

import gymnasium
import numpy as np

from murmuration.environment_loops import faults

FRAME_SKIP = 4
STACK = 4
SIZE = 84
MAX_FRAMES = 108_000


@dataclasses.dataclass(frozen=True)
class Options:
  """What can be chosen about a game.

  Attributes:
    sticky: probability that a frame repeats the action of the frame before.
    noop_max: each game starts with up to so many no-ops; a single game with at
      least 1, one of a batch perhaps with none. None at all if 0.
    life_loss: whether losing a life ends the episode by termination. The game
      itself goes on: only its end starts a new one. Training only; returns
      are then per life.
    threads: that step the games of one vector environment.
  """

  sticky: float = 0.0
  noop_max: int = 30
  life_loss: bool = False
  threads: int = 1

  def __post_init__(self):
    if not 0.0 <= self.sticky < 1.0:
      raise ValueError(f'sticky={self.sticky}; give a probability below 1.')
    if self.noop_max < 0 or self.threads < 1:
      raise ValueError(
        f'noop_max={self.noop_max} and threads={self.threads}; give at least '
        f'0 no-ops and 1 thread.'
      )


def is_atari(name: Any) -> bool:
  """Whether `name` is that of a game to be preprocessed."""
  return isinstance(name, str) and (name.rpartition(':')[2].startswith('ALE/'))


def split(name: str) -> tuple[str, Options]:
  """Splits a name into gymnasium's id and the options.

  Raises:
    EnvironmentRefused: unknown options or impossible values.
  """
  identifier, mark, query = name.partition('?')
  if not mark or not is_atari(name):
    return name, Options()
  chosen: dict[str, Any] = {}
  try:
    for part in query.split('&'):
      key, _, value = part.partition('=')
      chosen[key] = _PARSERS[key](value)
    return identifier, Options(**chosen)
  except (KeyError, ValueError) as error:
    raise faults.EnvironmentRefused(
      f'{name} has options that cannot be read ({error}). After {identifier!r} '
      f'give ?key=value&key=value with sticky (probability), noop_max, threads '
      f'(whole numbers) or life_loss (0 or 1).'
    ) from error


def whole_games(name: str) -> str:
  """A name without its `life_loss`: what a return is measured on.

  A life is an episode for learning only; the papers' returns are of games.
  """
  identifier, mark, query = name.partition('?')
  if not mark or not is_atari(name):
    return name
  kept = [
    part for part in query.split('&') if part.split('=')[0] != 'life_loss'
  ]
  return '?'.join([identifier, '&'.join(kept)]) if kept else identifier


def same_task(one: Any, other: Any) -> bool:
  """Whether two names are of one task: `threads` make no other.

  Raises:
    EnvironmentRefused: as `split`.
  """
  if not (isinstance(one, str) and isinstance(other, str)):
    return one == other  # of no environment, or of a config that is broken
  (game, options), (other_game, others) = split(one), split(other)
  options = dataclasses.replace(options, threads=others.threads)
  return (game, options) == (other_game, others)


_PARSERS: dict[str, Any] = {
  'sticky': float,
  'noop_max': int,
  'life_loss': {'0': False, '1': True}.__getitem__,
  'threads': int,
}


def rom_of(name: str) -> str:
  """The game's name in ale_py, such as 'ms_pacman', once its ROM is found.

  Raises:
    EnvironmentRefused: this game's ROM is missing.
  """
  from ale_py import roms

  identifier = split(name)[0].rpartition(':')[2]
  game = str(gymnasium.registry[identifier].kwargs['game'])
  try:
    path = roms.get_rom_path(game)
  except Exception as error:
    raise _no_rom(name, game) from error
  if path is None or not path.exists():
    raise _no_rom(name, game)
  return game


def _no_rom(name: str, game: str) -> faults.EnvironmentRefused:
  return faults.EnvironmentRefused(
    f'{name} needs the ROM {game}.bin, which is missing from the installed '
    f'ale-py. Version 0.12.1 brings all ROMs: install it again.'
  )


def build(name: str, render_mode: str | None = None) -> gymnasium.Env:
  """Builds one preprocessed game; ale_py must have been imported."""
  rom_of(name)
  identifier, options = split(name)
  game = gymnasium.make(
    identifier,
    frameskip=1,
    repeat_action_probability=options.sticky,
    max_num_frames_per_episode=MAX_FRAMES,
    full_action_space=False,
    render_mode=render_mode,
    disable_env_checker=True,
  )
  game = gymnasium.wrappers.AtariPreprocessing(
    game,
    noop_max=options.noop_max,
    frame_skip=FRAME_SKIP,
    screen_size=SIZE,
  )
  # The game's own limit comes first; this one puts it into the spec.
  return gymnasium.wrappers.TimeLimit(
    _Stacked(game, options.life_loss), MAX_FRAMES // FRAME_SKIP
  )


class _Stacked(gymnasium.Wrapper):
  """Stacks frames on the last axis; ends episodes where lives are lost."""

  def __init__(self, environment: gymnasium.Env, life_loss: bool):
    super().__init__(environment)
    self._life_loss = life_loss
    self._lives = 0
    # Between two lives of one game: the next episode begins without a reset.
    self._goes_on = False
    self._stack = np.zeros((SIZE, SIZE, STACK), np.uint8)
    self.observation_space = gymnasium.spaces.Box(
      0, 255, self._stack.shape, np.uint8
    )

  def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
    if self._goes_on and seed is None:
      self._goes_on = False
      return self._stack.copy(), {}
    self._goes_on = False
    frame, info = self.env.reset(seed=seed, options=options)
    self._lives = self._count_lives()
    self._stack[:] = 0
    self._stack[..., -1] = frame
    return self._stack.copy(), info

  def step(self, action: Any) -> Any:
    frame, reward, terminated, truncated, info = self.env.step(action)
    self._stack[..., :-1] = self._stack[..., 1:]
    self._stack[..., -1] = frame
    lives = self._count_lives()
    lost = lives < self._lives
    self._lives = lives
    if self._life_loss and lost and not (terminated or truncated):
      terminated = self._goes_on = True
    else:
      self._goes_on = False
    return self._stack.copy(), reward, terminated, truncated, info

  def _count_lives(self) -> int:
    unwrapped: Any = self.env.unwrapped
    return int(unwrapped.ale.lives())
