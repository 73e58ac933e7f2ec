"""N actors, S replay shards, a learner and an evaluator.

Actor i writes to shard i mod S. The learner samples all shards and writes
priorities back to the shard of each item. Nodes that may die and restart:
actors and the evaluator, without effect on others; replay nodes and the
learner, from their checkpoints; the counter.

With `run.replay='colocated'` the learner hosts the shards, so that sampling
needs no socket. With `actors.inference='central'` one server
(services/inference) acts for all actors; if it restarts, episodes begin anew.
"""

from __future__ import annotations

import functools

import launchpad as lp

from murmuration.launch import actor_settings
from murmuration.launch import experience
from murmuration.launch import experiment as experiment_lib
from murmuration.launch import rpc
from murmuration.launch.nodes import actor
from murmuration.launch.nodes import replay_host
from murmuration.launch.nodes import worker
from murmuration.launch.services import averaging
from murmuration.launch.services import inference
from murmuration.launch.topologies import parts
from murmuration.replay import deadlock

SECTION = 'actors'
# Replay checkpoints depend on the size of an item; each shard has its own.
Config = actor_settings.Config
ignored = actor_settings.ignored
members = parts.one_agent


def build(experiment: experiment_lib.Experiment, config: Config) -> lp.Program:
  """Builds the program. Raises ValueError if sizes do not fit or deadlock."""
  experience.check_actors(experiment, config)
  if experiment.run.replay == 'ring':
    raise ValueError(
      "run.replay='ring' is in the memory of a worker that acts itself; here "
      'actors send to the learner. Set colocated or node.'
    )
  program = lp.Program('actor_learner')
  counter = parts.counter(program, experiment)
  hosts = None
  if experiment.run.replay == 'node':
    hosts, shards = parts.replay(
      program,
      experiment,
      lambda: experience.of_actors(experiment, config).tables('replay'),
      config.shards,
      queue=experience.of_actors(experiment, config).queue,
    )
  info = [experiment.actor_info(0)]
  with program.group('learner'):
    options: dict = {'actors': config}
    if config.num_learners > 1:
      options['exchange'] = functools.partial(
        averaging.Leads, config.num_learners
      )
    arguments = (worker.Worker, experiment, 'learner/0', info, counter)
    if hosts is None:
      node = replay_host.HostNode(*arguments, shards=config.shards, **options)
      shards = [node.shard_handle(i) for i in range(config.shards)]
    else:
      node = rpc.Node(*arguments, addresses=shards, hosts=hosts, **options)
    learner = program.add_node(node)
    for i in range(1, config.num_learners):
      program.add_node(
        lp.PyClassNode(
          worker.Worker,
          experiment,
          f'learner/{i}',
          info,
          counter,
          addresses=shards,
          actors=config,
          exchange=functools.partial(averaging.Follows, i),
          peers={'master': learner},
          leads=False,
        )
      )
  policy = None
  if config.inference == 'central':
    with program.group('inference'):
      policy = program.add_node(
        rpc.Node(
          inference.Server,
          experiment,
          config,
          counter,
          learner,
        )
      )
  plan = experience.of_actors(experiment, config).plan
  split = functools.partial(deadlock.parts, plan)
  with program.group('actor'):
    for i, share in enumerate(parts.shares(experiment, 'actor', split)):
      program.add_node(
        lp.PyClassNode(
          actor.Actor,
          experiment,
          config,
          i,
          counter,
          policy or learner,
          shards[i % config.shards],
          share=share,
        )
      )
  parts.evaluator(program, experiment, counter, learner)
  parts.let_all_come_back(program)
  return program
