"""Gymnasium environments by name, with refusals that say what to do."""

import difflib
import functools
import importlib
import logging
import os
import re
import sys
from typing import Any
import warnings
import weakref

import gymnasium
import numpy as np

from murmuration.environment_loops import atari
from murmuration.environment_loops import faults
from murmuration.environment_loops import spaces

_SEEN = 'To be seen, it has to take render_mode, and to draw in render().'
# What gymnasium warns of, and is mended or said in a sentence here.
_MENDED = (
  '.*Casting input x to numpy array',
  '.*not in the possible render_modes',
  ".*'human' rendering for an environment",
)

_logger = logging.getLogger(__name__)
# What was built here, is held and not closed, by its own id: some environments
# cannot be hashed.
_in_use: weakref.WeakValueDictionary[int, gymnasium.Env] = (
  weakref.WeakValueDictionary()
)


def registered(name: str) -> gymnasium.envs.registration.EnvSpec:
  """What gymnasium knows of `name`.

  Raises:
    EnvironmentRefused: an id it does not know.
  """
  _check_registered(name)
  module, _, identifier = atari.split(name)[0].rpartition(':')
  if identifier in gymnasium.registry:
    return gymnasium.registry[identifier]
  found = entry = getattr(importlib.import_module(module), identifier)
  if isinstance(found, type) and issubclass(found, gymnasium.Wrapper):
    # Of a class gymnasium reads `metadata`, which only wrappers that are made
    # have; of a function it does not.
    entry = functools.partial(found)
  return gymnasium.envs.registration.EnvSpec(
    identifier,
    entry,
    max_episode_steps=getattr(found, 'max_episode_steps', None),
    vector_entry_point=getattr(found, 'vector_entry_point', None),
  )


def _with_limit(environment: gymnasium.Env) -> gymnasium.Env:
  """With the limit that its class says, if it came from a function."""
  known = environment.spec
  limit = getattr(environment.unwrapped, 'max_episode_steps', None)
  if known is None or known.max_episode_steps or not isinstance(limit, int):
    return environment
  return gymnasium.wrappers.TimeLimit(environment, limit)


def build(name: str, render_mode: str | None = None) -> gymnasium.Env:
  """Builds the gymnasium environment, time limit included.

  Atari games come preprocessed (`atari.py`); observations are flattened and
  actions numbered where agents need it (`spaces.py`).

  Raises:
    EnvironmentRefused: unknown id, or it cannot be built here.
  """
  _keep_quiet(render_mode)
  _check_registered(name)
  options: dict[str, Any] = (
    {} if render_mode is None else {'render_mode': render_mode}
  )
  try:
    if atari.is_atari(name):
      return atari.build(name, **options)
    if _module_of(name).startswith('gymnasium.envs.mujoco'):
      _log_mujoco_warnings()
    # The checker tests each step again and doubles the cost of a small one;
    # what matters of it (shape, finiteness) is checked here.
    environment = gymnasium.make(
      registered(name), disable_env_checker=True, **options
    )
    if name.rpartition(':')[2] not in gymnasium.registry:
      environment = _with_limit(environment)
    # Asked anew: a wrapper may have exchanged what it wraps.
    wrapped = [_unwrapped(known) for known in list(_in_use.values())]
    if any(known is environment.unwrapped for known in wrapped):
      raise faults.EnvironmentRefused(
        f'{name} returned an environment that it had returned before and that '
        'is in use: their episodes would mix. Let it make a new one at each '
        'call: lambda: MyEnv(size=8), not lambda: env.'
      )
    environment = spaces.adapted(name, environment)
    _in_use[id(environment)] = environment
    return environment
  except faults.EnvironmentRefused:
    raise
  except (Exception, SystemExit) as error:
    said = f'{name} could not be built: {faults.gist(error)}'
    if render_mode is not None:
      said += f' (render_mode={render_mode!r}). {_SEEN}'
    raise faults.EnvironmentRefused(said) from error


def _keep_quiet(render_mode: str | None) -> None:
  """Before pygame is imported, and before anything warns."""
  os.environ.setdefault('SDL_AUDIODRIVER', 'dummy')
  os.environ.setdefault('PYGAME_HIDE_SUPPORT_PROMPT', '1')
  # Pictures for a film need no window, and without a screen there is none.
  if render_mode == 'rgb_array' or not os.environ.get('DISPLAY'):
    os.environ.setdefault('SDL_VIDEODRIVER', 'dummy')
  _ignore_mended()


def _ignore_mended() -> None:
  for message in _MENDED:
    entry = ('ignore', re.compile(message, re.IGNORECASE), UserWarning, None, 0)
    # Each call makes Python forget which warnings it has shown already.
    if entry not in warnings.filters:
      warnings.filterwarnings('ignore', message, UserWarning)


def close(name: str, environment: gymnasium.Env) -> None:
  """Closes an environment; one that fails at that has done its work."""
  try:
    environment.close()
  except (Exception, SystemExit) as error:
    _logger.warning(
      'close() of %s failed, which costs nothing here: %s',
      name,
      faults.gist(error),
    )
  finally:
    _in_use.pop(id(environment), None)


def _unwrapped(environment: gymnasium.Env) -> Any:
  try:
    return environment.unwrapped
  except Exception:  # A user's wrapper may have let go of what it wraps.
    return None


def _check_registered(name: str) -> None:
  """Refuses a name that gymnasium does not know, with the nearest ones."""
  if not isinstance(name, str) or not name:
    raise faults.EnvironmentRefused(
      f'{name!r} is not an environment name; give a gymnasium id such as '
      f"'CartPole-v1'."
    )
  module, _, identifier = atari.split(name)[0].rpartition(':')
  if not module and atari.is_atari(name):
    module = 'ale_py'  # importing it registers the games
  if module:
    try:
      importlib.import_module(module)
    except (Exception, SystemExit) as error:
      missing = isinstance(error, ImportError)
      raise faults.EnvironmentRefused(
        f'{name} needs the module {module!r}, which cannot be imported: '
        f'{error if missing else faults.gist(error)}. One of your own has the '
        'form package.module, seen from the working directory or PYTHONPATH.'
      ) from error
  if identifier in gymnasium.registry:
    return
  of_module = sys.modules[module] if module else None
  if callable(getattr(of_module, identifier, None)):
    return  # a class or a function that makes one
  known = [*gymnasium.registry, *(dir(of_module) if module else ())]
  by_lower = {one.lower(): one for one in known}
  near = difflib.get_close_matches(identifier.lower(), by_lower, n=3)
  advice = 'gymnasium.pprint_registry() lists the known ones'
  if near:
    advice = f'The nearest are {", ".join(by_lower[key] for key in near)}'
  raise faults.EnvironmentRefused(
    f'Unknown environment {name!r}. {advice}; one of your own is named '
    'module:Name, after the class, the function that makes it or its id.'
  )


def seed_spaces(environment: gymnasium.Env, seed: int) -> None:
  """Seeds the spaces of an environment and of all that it wraps.

  Some environments draw from them.
  """
  while True:
    for name in ('action_space', 'observation_space'):
      space = getattr(environment, name, None)  # a wrapper may bring its own
      if space is not None:
        space.seed(seed)
    if not isinstance(environment, gymnasium.Wrapper):
      return
    environment = environment.env


def _module_of(name: str) -> str:
  """Where the class of an environment is."""
  return str(registered(name).entry_point).partition(':')[0]


def _log_mujoco_warnings() -> None:
  """MuJoCo writes MUJOCO_LOG.TXT where the program runs, unless told not to."""
  import mujoco

  mujoco.set_mju_user_warning(_logger.warning)


class SimulationClock:
  """Tells when MuJoCo gave up: its clock starts over from 0.

  A diverged state is not an error in MuJoCo. It goes back to its initial state
  by itself, and gymnasium's environments return that as if it were an arrival.
  """

  def __init__(self, environment: gymnasium.Env):
    self._environment: Any = environment.unwrapped
    self._data: Any = None  # MuJoCo's; None where there is no such clock
    self._time = 0.0
    # How often each cause made it start over: MuJoCo's own memory.
    self._causes = np.zeros(0, np.int32)

  def restart(self) -> None:
    """Call it after a reset, which may have made new data."""
    data: Any = getattr(self._environment, 'data', None)
    if not (hasattr(data, 'time') and hasattr(data, 'warning')):
      self._data = None
      return
    if data is not self._data:
      import mujoco

      first = int(mujoco.mjtWarning.mjWARN_BADQPOS)
      last = int(mujoco.mjtWarning.mjWARN_BADQACC)
      self._data, self._causes = data, data.warning.number[first : last + 1]
    self._time = 0.0
    self._causes[:] = 0

  def went_back(self) -> bool:
    """Whether it went back in the step just taken."""
    if self._data is None:
      return False
    before, self._time = self._time, self._data.time
    # In the first step of an episode a reset leaves the clock where a normal
    # step would: only MuJoCo's counters show it.
    return not self._time > before or bool(self._causes.any())


def picture(environment: gymnasium.Env) -> Any:
  """What a built environment looks like now, uint8 [height, width, 3].

  Raises:
    EnvironmentRefused: it draws nothing, or has no graphics driver.
  """
  try:
    return environment.render()
  except Exception as e:
    # Each driver of MuJoCo fails in its own way.
    how = _SEEN
    if hasattr(environment.unwrapped, 'model'):
      how = (
        'MUJOCO_GL=egl draws without a display, MUJOCO_GL=osmesa without a '
        'graphics driver.'
      )
    raise faults.EnvironmentRefused(
      f'It cannot be drawn here: {faults.gist(e)}. {how}'
    ) from e
