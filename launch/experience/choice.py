"""What travels from actors to the learner of `actor_learner`, and at what pace.

Agents that learn off-policy send transitions through replay, uniform or
prioritized; agents that learn from unrolls send blocks through a queue. Table,
adder, feed and sampler of one kind stand in one file of launch/experiences, so
that the static check, the limiter and what really runs are made of the same
numbers.
"""

from __future__ import annotations

from launch import actors
from launch import experiment as experiment_lib
from launch.experience import kind
from launch.experience import transitions
from launch.experience import unrolls
from replay import deadlock


def of(
  experiment: experiment_lib.Experiment, config: actors.Config
) -> kind.Kind:
  """The kind of experience that the experiment's agent learns from."""
  if experiment.make_agent().experience == 'unrolls':
    return unrolls.Unrolls(experiment, config)
  return transitions.Transitions(experiment, config)


def check(experiment: experiment_lib.Experiment, config: actors.Config) -> None:
  """Refuses numbers with which the run could never learn or would lock.

  Makes no Reverb object: nodes are forked from the process that builds the
  program, and the first such object seeds Reverb's random numbers. Writers of
  different actors would then draw the same item keys, and a table takes a
  second item of a key for a change of the first: half of the experience of two
  actors was lost in this way.

  Raises:
    ValueError: with the arithmetic.
  """
  if experiment.num_agents != 1:
    raise ValueError(
      f'num_agents={experiment.num_agents}: actor_learner trains one agent, '
      'whatever the number of its actors. Set actors.num_actors.'
    )
  found = of(experiment, config)
  plan = found.plan
  # Of one update of one learner: what its sampler spreads over the shards.
  items = plan.batch_size // plan.updates // config.num_learners
  if items < plan.shards:
    raise ValueError(
      f'Each of actors.num_learners={config.num_learners} samples {items} '
      'items at once, for an update (actors.transitions_per_item='
      f'{config.transitions_per_item}), which cannot be spread over '
      f'actors.shards={plan.shards}. Use at most {items} shards, or raise '
      'agent.batch_size.'
    )
  if found.agent.on_policy and plan.writers % plan.shards:
    raise ValueError(
      f'actors.num_actors={plan.writers} cannot be spread over actors.shards='
      f'{plan.shards}: {found.agent.name} learns on policy. Each actor gives '
      'the same to a rollout, and the learner takes the same of each shard: a '
      'shard with fewer actors has too little, and all wait. Make num_actors a '
      'multiple of shards.'
    )
  deadlock.check(plan)
  total, needed = experiment.total_steps, found.first_steps
  if needed >= total:
    raise ValueError(
      f'run.steps_per_agent={total} leaves nothing to learn from: learning '
      f'begins after about {needed} steps of the '
      f'{config.num_actors * config.envs_per_actor} environments. Raise '
      'run.steps_per_agent, or lower the sizes that come before the first '
      'update (min_replay_size, n_step, unroll_length, envs_per_actor).'
    )
