"""Tables of `actor_learner`, and the proof that its parts cannot lock.

One place knows who holds back how many items, so that limiter and check agree.
"""

from __future__ import annotations

import reverb

from launch import actors
from launch import experiment as experiment_lib
from replay import admission
from replay import tables as tables_lib


def plan(
  experiment: experiment_lib.Experiment, config: actors.Config
) -> admission.Plan:
  """What actors, replay and learner intend, for the static check."""
  agent = experiment.make_agent()
  return admission.Plan(
    min_size=experiment.min_replay_size,
    max_size=experiment.max_replay_size,
    batch_size=experiment.run.updates_per_call * agent.batch_size,
    samples_per_insert=config.samples_per_insert,
    error_buffer=config.error_buffer,
    writers=config.num_actors,
    burst=actors.BURST,
    shards=config.shards,
  )


def tables(
  experiment: experiment_lib.Experiment,
  config: actors.Config,
  name: str = 'replay',
) -> list[reverb.Table]:
  """The tables of one shard: it holds its part of everything."""
  agent = experiment.make_agent()
  intended = plan(experiment, config)
  limiter = admission.limiter(intended)
  min_size, max_size = intended.shard_min_size, intended.shard_max_size
  signature = experiment.transitions().signature()
  if agent.priority_exponent is None:
    table = tables_lib.uniform(
      name, max_size, min_size, signature, rate_limiter=limiter
    )
  else:
    table = tables_lib.prioritized(
      name,
      max_size,
      min_size,
      signature,
      priority_exponent=agent.priority_exponent,
      rate_limiter=limiter,
    )
  return [table]


def check(experiment: experiment_lib.Experiment, config: actors.Config) -> None:
  """Refuses numbers with which the run could never learn or would lock.

  Raises:
    ValueError: with the arithmetic.
  """
  total = experiment.total_steps
  if experiment.num_agents != 1:
    raise ValueError(
      f'num_agents={experiment.num_agents}: actor_learner trains one agent, '
      'whatever the number of its actors. Set actors.num_actors.'
    )
  admission.check(plan(experiment, config))
  # Each environment's window is open for n - 1 steps before it is an item.
  agent = experiment.make_agent()
  environments = config.num_actors * config.envs_per_actor
  needed = experiment.min_replay_size + environments * agent.n_step
  if needed >= total:
    raise ValueError(
      f'run.steps_per_agent={total} leaves nothing to learn from: learning '
      f'begins after about {needed} steps (min_replay_size='
      f'{experiment.min_replay_size}, and an n_step of {agent.n_step} in '
      f'{environments} environments). Raise run.steps_per_agent or lower '
      'agent.min_replay_size.'
    )
