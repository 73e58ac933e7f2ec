"""The policy of a run, from what it keeps: loaded, asked, and evaluated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from murmuration import episodes as episodes_lib
from murmuration import portable
from murmuration.agents import base
from murmuration.environment_loops import environments
from murmuration.environment_loops import evaluation
from murmuration.environment_loops import spaces
from murmuration.launch import experiment
from murmuration.launch import registry
from murmuration.run_records import checkpoints
from murmuration.run_records import run_directory


class Kept(NamedTuple):
  """A run's best parameters: the agent, theta [D], and where they are from."""

  agent: base.Agent
  theta: np.ndarray
  what: str

  def policy(self) -> base.Policy:
    """The greedy policy by the agent's own code, with its own actions."""
    return self.agent.greedy(self.theta)

  def to_native(self) -> list[list[Any]]:
    """Operations from the agent's actions to the environment's own."""
    spec = self.agent.spec
    space: Any = environments.spaces(spec.name)[1]
    if isinstance(space, gymnasium.spaces.Discrete):
      return [['offset', int(space.start)]]
    if spec.num_actions is not None:
      return [['table', spaces.native(space, np.arange(spec.num_actions))]]
    low, high = (x.astype(np.float64) for x in (space.low, space.high))
    bound = ['bound', low, high, space.dtype.name]
    return [['reshape', spec.action_shape], bound]


class OfParts:
  """A policy that flattens observations as the environment itself has them."""

  def __init__(self, policy: portable.Policy, name: str, space: Any):
    self._policy = policy
    self._name = name
    self._space = space

  def __call__(self, observation: Any) -> Any:
    if self._has_parts(observation):
      try:
        observation = spaces.flatten(self._name, self._space, observation)
      except environments.EnvironmentFault as e:
        raise ValueError(str(e)) from e
    return self._policy(observation)

  def _has_parts(self, observation: Any) -> bool:
    if self._space.shape is None:  # of a Dict or a Tuple
      return isinstance(observation, (dict, tuple))
    return np.shape(observation) == self._space.shape

  def __getattr__(self, name: str) -> Any:
    return getattr(self._policy, name)


class Live(portable.Policy):
  """The policy of an agent that does not say its operations: its own code."""

  def __init__(self, kept: Kept):
    spec = kept.agent.spec
    self._shape = tuple(spec.observation_shape)
    self.about = {'observation_dtype': spec.observation_dtype}
    self._dtype = spec.observation_dtype
    self._policy: Any = kept.policy()
    self._to_native = kept.to_native()

  def _act(self, x: np.ndarray) -> np.ndarray:
    found = np.asarray(self._policy(x.astype(self._dtype, copy=False)))
    return portable.apply(np, self._to_native, found, None, None)[0]

  def reset(self) -> None:
    if hasattr(self._policy, 'reset'):
      self._policy.reset()

  def ended(self, last: np.ndarray) -> None:
    if hasattr(self._policy, 'ended'):
      self._policy.ended(np.asarray(last))


def load(
  run: run_directory.RunDirectory, config: Mapping[str, Any] | None = None
) -> Kept:
  """The run's best parameters.

  Args:
    run: where they are.
    config: of the run; None: its config.json.

  Raises:
    ValueError: the agent is not known, or the run keeps no parameters yet.
  """
  try:
    agent = registry.make(run.config() if config is None else config)
  except ValueError as e:
    raise ValueError(f'{run.path}: {e}') from e
  for name in checkpoints.PLAYED:
    saved = checkpoints.read(run.checkpoints / name)
    if saved is not None:
      return Kept(agent, *_chosen(run, name, saved))
  raise ValueError(
    f'{run.path} keeps no parameters yet: it has none of '
    f'{", ".join(checkpoints.PLAYED)} in checkpoints/. Let the run go on a '
    'little.'
  )


def _chosen(
  run: run_directory.RunDirectory, name: str, saved: dict[str, np.ndarray]
) -> tuple[np.ndarray, str]:
  """The parameters of a file that are played, and what they are."""
  theta = saved['theta']
  if name == checkpoints.STAR:
    return theta, (
      f'theta_star version {int(saved["version"])} of explorer '
      f'{int(saved["explorer"])} (R* {float(saved["r_star"]):.1f})'
    )
  steps = int(saved['steps'])
  if name == checkpoints.BEST:
    return theta, (
      f'the best that was evaluated: return {float(saved["return_mean"]):.1f}'
      f' after {steps:,} steps'
    )
  rows = run.metrics('evaluation')
  returns = rows[-1].get('member_returns') if rows else None
  if returns is None and len(theta) == 1:
    return theta[0], f'the policy after {steps:,} learner steps'
  best = 0
  # A member whose episodes broke has NaN; all of them may.
  if returns and np.isfinite(returns).any():
    best = int(np.nanargmax(returns))
  return theta[best], f'agent {best} after {steps:,} steps'


def evaluate(
  run: run_directory.RunDirectory,
  kept: Kept,
  episodes: int,
  seed: int,
  policy: base.Policy | None = None,
  on_step: Callable[[], Any] = lambda: None,
) -> evaluation.VectorResult:
  """Plays whole episodes, as the run's own evaluations do.

  Args:
    run: of the parameters.
    kept: agent and parameters.
    episodes: how many, side by side.
    seed: of the episodes.
    policy: gives actions as the agent has them; None: the agent's own.
    on_step: called before each step.

  Raises:
    environments.EnvironmentFault: hardly anything but broken episodes, or
      something was raised in one.
  """
  name, settings = kept.agent.spec.name, run.config().get('run', {})
  # Runs of earlier versions have no such setting.
  limit = settings.get('eval_max_steps', experiment.RunConfig.eval_max_steps)
  with episodes_lib.in_a_sentence(name):
    limited = environments.spec(name).max_episode_steps is not None
    result = evaluation.evaluate_vector(
      policy or kept.policy(),
      name,
      episodes,
      seed,
      None if limited else limit,
      lambda: bool(on_step()),
      epsilon=settings.get('eval_epsilon', 0.0),
    )
  assert result is not None  # nothing stops it
  return result
