"""What the three Acme peers share: Reverb of today, a counter, a loop."""

from __future__ import annotations

from acme.utils import loggers
import dm_env
import reverb

from tests.benchmarks.peers import window

PACKAGES = [
  'dm-acme',
  'tensorflow-cpu',
  'dm-reverb',
  'dm-sonnet',
  'gymnasium',
]


class Client(reverb.Client):
  """A Reverb client that takes what Acme's adders pass."""

  def trajectory_writer(self, *args, **kwargs):
    # Reverb 0.11 has no such argument; Acme 0.4.0 always gives it.
    kwargs.pop('get_signature_timeout_ms', None)
    return super().trajectory_writer(*args, **kwargs)


def use_this_reverb() -> None:
  """Makes Acme's agents, which make their own clients, make ours."""
  reverb.Client = Client


class UpdateCounter(loggers.Logger):
  """Every Acme learner writes to its logger once per update: counts that."""

  def __init__(self):
    self.updates = 0

  def write(self, data) -> None:
    self.updates += 1

  def close(self) -> None:
    """Nothing is held."""


def run(
  agent,
  environment: dm_env.Environment,
  counter: UpdateCounter,
  view: window.Window,
) -> None:
  """Acme's environment loop, without its logging, until the window is over."""
  env_steps = 0
  going = True
  while going:
    timestep = environment.reset()
    agent.observe_first(timestep)
    while going and not timestep.last():
      action = agent.select_action(timestep.observation)
      timestep = environment.step(action)
      agent.observe(action, next_timestep=timestep)
      agent.update()
      env_steps += 1
      going = view.see(env_steps, counter.updates)
  if not timestep.last():
    # A writer with an open episode would wait for a server that has gone.
    action = agent.select_action(timestep.observation)
    last = environment.step(action)._replace(step_type=dm_env.StepType.LAST)
    agent.observe(action, next_timestep=last)
