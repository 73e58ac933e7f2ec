"""Evolution strategies: N workers that play, a master that updates.

Workers send only noise indices and returns to the master. Nodes that may die
and restart: workers (their tasks are handed out again), the master (from its
checkpoint), the evaluator and the counter. Learning uses no gradient: only the
agent's network and greedy policy matter (docs/topologies/evolution.md).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import launchpad as lp

from murmuration.agents import base
from murmuration.agents import evolution
from murmuration.environment_loops import atari
from murmuration.launch import experiment as experiment_lib
from murmuration.launch import rpc
from murmuration.launch.nodes import es_worker
from murmuration.launch.services import evolution as master_lib
from murmuration.launch.topologies import parts

SECTION = 'evolution'
members = parts.one_agent
Config = evolution.Config
# An agent's settings that its greedy policy depends on. The others are about
# learning by gradient, exploration or replay.
_OF_POLICY = (
  'network',
  'hidden_sizes',
  'policy_sizes',
  'activation',
  'dueling',
  'shared_torso',
  'lstm_size',
  'stack',
  'normalize_observations',
  'tanh_mean',
  'free_sigma',
)
_UNUSED = {
  'pace.samples_per_insert': 'there is no replay',
  'run.replay': 'there is no replay',
  'run.replay_checkpoint_s': 'there is no replay',
  'run.updates_per_call': 'a call is one update, of evolution.population',
  'run.tf_threads': 'it is of workers that learn by gradient',
}
_LEAST = 100  # smallest noise table, in numbers of parameters


def ignored(agent: base.Agent, config: Config) -> dict[str, str]:
  """Settings that a run would ignore, and why."""
  del config
  found = dict(_UNUSED)
  # A user's own settings may be of the network.
  ours: Any = [
    kind
    for kind in type(getattr(agent, 'config', None)).__mro__
    if dataclasses.is_dataclass(kind)
    and kind.__module__.startswith('murmuration.agents.')
  ]
  for field in dataclasses.fields(ours[0]) if ours else ():
    if field.name not in _OF_POLICY:
      found[f'agent.{field.name}'] = (
        'of the agent, its greedy policy is used; numbers of learning are '
        'those of the section evolution'
      )
  if agent.spec.discrete:
    found['action_noise'] = f'actions of {agent.spec.name} are discrete'
  if agent.learner_class is None and not evolution.observation_size(
    agent.layout
  ):
    found['obs_stat_prob'] = (
      'the agent does not normalize observations '
      '(agent.normalize_observations=False, or it cannot)'
    )
  return found


def build(experiment: experiment_lib.Experiment, config: Config) -> lp.Program:
  """Builds the program. Raises ValueError if the agent or sizes do not fit."""
  _check(experiment, config)
  program = lp.Program('evolution')
  counter = parts.counter(program, experiment)
  with program.group('master'):
    master = program.add_node(
      rpc.Node(
        master_lib.Master,
        experiment,
        config,
        counter,
      )
    )
  with program.group('worker'):
    for i in range(config.num_workers):
      program.add_node(
        lp.PyClassNode(es_worker.Worker, experiment, config, i, counter, master)
      )
  parts.evaluator(program, experiment, counter, master)
  parts.let_all_come_back(program)
  return program


def _check(experiment: experiment_lib.Experiment, config: Config) -> None:
  agent = experiment.agent
  if agent.learner_class is not None:
    raise ValueError(
      f'{agent.name} has networks of its own, which cannot be perturbed here. '
      'Use actor_learner: --topology=actor_learner.'
    )
  if atari.is_atari(experiment.environment):
    raise ValueError(
      f'{experiment.environment}: games are seeded all at once, and episodes '
      'of evolution strategies have a seed each. Use actor_learner: '
      '--topology=actor_learner.'
    )
  place = evolution.perturbed(agent.layout)
  dim = place.stop - place.start
  if config.table_size < _LEAST * dim:
    raise ValueError(
      f'evolution.table_size={config.table_size} is less than {_LEAST} times '
      f'the {dim} parameters that are perturbed: perturbations would overlap '
      f'too often. Set it to {_LEAST * dim} or more, or make the network '
      'smaller.'
    )
  # An episode has at least one step.
  least = 2 * config.population
  if least > experiment.total_steps:
    raise ValueError(
      f'run.steps_per_agent={experiment.total_steps} leaves no update: a '
      f'generation has at least {least:,} environment steps '
      f'(evolution.population={config.population} pairs of episodes). Lower '
      'it, or raise run.steps_per_agent.'
    )
