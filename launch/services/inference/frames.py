"""A request and its reply as two flat records.

The same bytes are in shared memory or go over RPC. A frame holds the request of
one actor for its K environments, followed by the reply. A step allocates
nothing.
"""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any

import numpy as np

from environment_loops import environments
from launch import actor_settings
from launch import experiment as experiment_lib

OK, ERROR = 0, 1
_MESSAGE_BYTES = 512


@dataclasses.dataclass(frozen=True)
class FrameLayout:
  """Shapes of the frames of one run."""

  num_envs: int  # K, environments of one actor
  observation_shape: tuple[int, ...]  # of one observation
  observation_dtype: str = 'float32'  # or 'uint8'
  action_shape: tuple[int, ...] = ()  # of one action
  discrete: bool = True  # whether actions are int32, not float32
  behaviour_size: int = 0  # A', policy outputs stored with each step; 0: none
  core_size: int = 0  # S, size of the recurrent state; 0: none

  @property
  def request(self) -> np.dtype:
    """The record that an actor sends.

    `step` counts its requests from 0. If `any_ended`, `ended` [K] tells which
    episodes ended with the previous step; else it is out of date. Exploration
    schedules follow `actor_steps`.
    """
    count = self.num_envs
    return np.dtype(
      [
        ('step', np.int64),
        ('actor_steps', np.int64),
        ('any_ended', np.int64),
        ('ended', np.bool_, (count,)),
        (
          'observation',
          self.observation_dtype,
          (count, *self.observation_shape),
        ),
      ],
      align=True,
    )

  @property
  def reply(self) -> np.dtype:
    """The record that it gets: for `step`, by the parameters of `version`.

    `age_ms` is the time since the server last heard from the learner.
    """
    count = self.num_envs
    actions = np.int32 if self.discrete else np.float32
    return np.dtype(
      [
        ('step', np.int64),
        ('status', np.int64),
        ('version', np.int64),
        ('age_ms', np.int64),
        ('message', f'S{_MESSAGE_BYTES}'),
        ('action', actions, (count, *self.action_shape)),
        ('behaviour', np.float32, (count, self.behaviour_size)),
        ('core', np.float32, (count, self.core_size)),
      ],
      align=True,
    )

  @property
  def fingerprint(self) -> str:
    """A hash of the shapes and types."""
    text = f'{self.request.descr} {self.reply.descr}'
    return hashlib.sha256(text.encode()).hexdigest()[:16]

  @property
  def nbytes(self) -> int:
    return self.request.itemsize + self.reply.itemsize


def layout(
  experiment: experiment_lib.Experiment, config: actor_settings.Config
) -> FrameLayout:
  """The frames of an experiment's actors."""
  agent = experiment.make_agent()
  spec = environments.spec(experiment.environment)
  sizes = {}
  if agent.experience == 'unrolls':
    block = agent.block_layout(config.envs_per_actor)
    sizes = {
      'behaviour_size': block.behaviour_size,
      'core_size': block.core_size,
    }
  return FrameLayout(
    config.envs_per_actor,
    tuple(spec.observation_shape),
    spec.observation_dtype,
    tuple(spec.action_shape),
    spec.discrete,
    **sizes,
  )


class Frame:
  """One frame in a writable buffer.

  Attributes:
    ended, observation: fields of the request.
    action, behaviour, core: fields of the reply.
    request_bytes, reply_bytes: the whole records.
  """

  def __init__(self, shapes: FrameLayout, buffer: Any = None):
    """Uses `buffer`, of at least `shapes.nbytes` bytes, or makes one."""
    if buffer is None:
      buffer = bytearray(shapes.nbytes)
    request, reply = shapes.request, shapes.reply
    end = request.itemsize
    asked: Any = np.frombuffer(buffer, request, 1)[0]
    answered: Any = np.frombuffer(buffer, reply, 1, end)[0]
    self.ended: np.ndarray = asked['ended']
    self.observation: np.ndarray = asked['observation']
    self.action: np.ndarray = answered['action']
    self.behaviour: np.ndarray = answered['behaviour']
    self.core: np.ndarray = answered['core']
    view = memoryview(buffer).cast('B')
    self.request_bytes = view[:end]
    self.reply_bytes = view[end : end + reply.itemsize]
    # The integers at the start of each record. Writing them as fields of the
    # record takes 50 times as long.
    self._asked = self.request_bytes[:24].cast('q')
    self._answered = self.reply_bytes[:32].cast('q')
    self._answer: Any = answered

  # The request.

  @property
  def asked_step(self) -> int:
    return self._asked[0]

  @property
  def actor_steps(self) -> int:
    return self._asked[1]

  @property
  def any_ended(self) -> bool:
    return bool(self._asked[2])

  def ask(
    self,
    step: int,
    actor_steps: int,
    ended: np.ndarray | None,
    observation: Any,
  ) -> None:
    """Writes a request; `ended` is None if no episode has ended."""
    wanted = self.observation
    if observation.shape != wanted.shape or observation.dtype != wanted.dtype:
      raise ValueError(
        f'Got observations {observation.dtype} {list(observation.shape)}, but '
        f'the inference server was told {wanted.dtype} {list(wanted.shape)}. '
        'The environment does not keep to its spec: mend it, or wrap it.'
      )
    wanted[...] = observation
    if ended is not None:
      self.ended[...] = ended
    asked = self._asked
    asked[0], asked[1], asked[2] = step, actor_steps, ended is not None

  # The reply.

  @property
  def answered_step(self) -> int:
    return self._answered[0]

  @property
  def version(self) -> int:
    return self._answered[2]

  @property
  def age_s(self) -> float:
    return self._answered[3] / 1000

  @property
  def refusal(self) -> str | None:
    """The reason why there are no actions; None if there are."""
    if self._answered[1] == OK:
      return None
    return bytes(self._answer['message']).decode(errors='replace')

  def answer(
    self,
    step: int,
    version: int,
    age_s: float,
    action: np.ndarray,
    behaviour: np.ndarray | None,
    core: np.ndarray | None,
  ) -> None:
    """Writes the reply to request `step`."""
    self.action[...] = action
    if behaviour is not None:
      self.behaviour[...] = behaviour
    if core is not None and core.size:
      self.core[...] = core
    answered = self._answered
    answered[1], answered[2], answered[3] = OK, version, int(1000 * age_s)
    answered[0] = step

  def refuse(self, step: int, message: str) -> None:
    """Writes the reason why request `step` has no actions."""
    self._answer['message'] = message.encode()[:_MESSAGE_BYTES]
    self._answered[1] = ERROR
    self._answered[0] = step
