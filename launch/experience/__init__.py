"""Experience: the data that environments send to a learner, and its pace.

Off-policy agents send transitions through replay, uniform or prioritized;
agents that learn from unrolls send blocks through a queue. One class has the
table, adder, feed and source of one kind of experience, so that the static
check, the rate limiter and the run use the same numbers.

kind         the interface of a kind of experience
transitions  transitions in replay, from actors
population   transitions in replay, from the members of a worker that acts
unrolls      blocks in a queue, from either
"""

from __future__ import annotations

from murmuration.launch import actor_settings
from murmuration.launch import experiment as experiment_lib
from murmuration.launch.experience import kind
from murmuration.launch.experience import population
from murmuration.launch.experience import transitions
from murmuration.launch.experience import unrolls
from murmuration.replay import deadlock


class TooFewSteps(ValueError):
  """The budget of a member ends before its first update."""


def of_actors(
  experiment: experiment_lib.Experiment, config: actor_settings.Config
) -> kind.Kind:
  """The experience that actors send to the learners of one agent."""
  if experiment.agent.experience == 'unrolls':
    return unrolls.Unrolls(experiment, config)
  return transitions.Transitions(experiment, config)


def of_members(
  experiment: experiment_lib.Experiment, members: int
) -> kind.Local:
  """The experience of `members` agents in a worker that acts itself."""
  agent = experiment.agent
  if agent.experience == 'unrolls':
    return unrolls.OwnUnrolls(experiment, members)
  if agent.priority_exponent is not None:
    return population.PrioritizedSteps(experiment, members)
  return population.Steps(experiment, members)


def check_actors(
  experiment: experiment_lib.Experiment, config: actor_settings.Config
) -> None:
  """Refuses sizes with which the run could never learn or would deadlock.

  Makes no Reverb object: nodes are forked from the process that builds the
  program, and the first such object seeds Reverb's random numbers. Writers of
  different actors would then draw the same item keys, and a table treats a
  second item with a key as an update of the first: two actors lost half of
  their experience in this way.
  """
  found = of_actors(experiment, config)
  plan = found.plan
  # Items of one update of one learner, which it samples from all shards.
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
  ratio = experiment.pace.samples_per_insert
  call = found.updates_per_call * found.agent.batch_size
  if not found.queue and ratio is not None and call / ratio > total:
    raise ValueError(
      f'run.steps_per_agent={total} leaves no update: one call of the learner '
      f'(run.updates_per_call={found.updates_per_call}) takes {call:,} '
      f'samples, for which pace.samples_per_insert={ratio:g} asks '
      f'{call / ratio:,.0f} environment steps. Lower run.updates_per_call or '
      'agent.batch_size, or raise run.steps_per_agent.'
    )
  if needed >= total:
    raise ValueError(
      f'run.steps_per_agent={total} leaves nothing to learn from: learning '
      f'begins after about {needed} steps of the '
      f'{config.num_actors * config.envs_per_actor} environments. Raise '
      'run.steps_per_agent, or lower the sizes that come before the first '
      'update (min_replay_size, n_step, unroll_length, envs_per_actor).'
    )


def check_members(
  experiment: experiment_lib.Experiment, acts: bool = True
) -> None:
  """Refuses sizes with which members of a worker that acts could never learn.

  Without `acts`, as offline, it does not explore. Makes no Reverb object, see
  `check_actors`.
  """
  agent = experiment.agent
  if agent.learner_class is not None:
    raise ValueError(
      f'{agent.name} has a learner of its own, for one agent whose actors are '
      'apart. Use actor_learner: --topology=actor_learner.'
    )
  found = of_members(experiment, 1)
  if acts:
    agent.check_exploration(found.envs_per_member)
  assert found.steps_per_call > 0  # Raises if one loop cannot keep the pace.
  deadlock.check(found.plan)
  needed, budget = found.first_steps, experiment.run.steps_per_agent
  if needed > budget or (needed == budget and not found.queue):
    raise TooFewSteps(
      f'run.steps_per_agent={budget} leaves nothing to learn from: learning '
      f'begins after {needed} steps ({found.why}). Raise run.steps_per_agent '
      f'or lower {found.knob}.'
    )
  # The learner makes no call that the budget cuts short.
  calls = int(budget / found.steps_per_call)
  if not found.queue and calls * found.steps_per_call < needed:
    raise TooFewSteps(
      f'run.steps_per_agent={budget} leaves no update: one call of the learner '
      f'(run.updates_per_call={found.updates_per_call}) comes with '
      f'{found.steps_per_call:,.0f} environment steps, and learning begins '
      f'after {needed}. Lower run.updates_per_call or agent.batch_size, or '
      'raise run.steps_per_agent.'
    )
