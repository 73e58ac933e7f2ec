"""Runs small programs of catalogue agents, each in a fork; a helper of tests.

  python tests/forked_programs.py DIRECTORY UPDATES < ways.json

Ways are [[agent, topology, engine], ...] by their names in launch/catalogue.py.
Each is built small, checked, run and ended when every member has made UPDATES
learner steps. A line of JSON is printed for each as it ends, with 'way' and
either 'refused' (the reason), 'error' (a traceback)
or 'exit_code', 'reason', 'nodes' and 'totals'.
"""

import dataclasses
import functools
import json
import os
import pathlib
import signal
import sys
import traceback
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from agents.swarm import explorers as swarm_lib
from launch import actors
from launch import catalogue
from launch import engines
from launch import experiment as experiment_lib
from launch import graph
from launch import session
from launch.engines import linux
from launch.topologies import actor_learner
from launch.topologies import single_process
from launch.topologies import swarm

_MEMBERS = 2
_ENVIRONMENTS = 4  # of an actor
_AT_ONCE = 2  # programs
# Of those that an agent has.
_SMALL = {
  'hidden_sizes': (8,),
  'policy_sizes': (8,),
  'critic_sizes': (8,),
  'num_atoms': 11,
  'batch_size': 2 * _ENVIRONMENTS,  # of A2C, a block of each of two actors
  'min_replay_size': 50,
  'unroll_length': 5,
  'rollout_steps': 40,  # a block of each of two actors
  'epochs': 1,
}
_NO_END = 10_000_000  # environment steps

# Name in the catalogue to a way to build it with few nodes.
BUILDERS = {
  'single_process': (1, single_process.build),
  'actor_learner': (
    1,
    lambda experiment: actor_learner.build(
      experiment, actors.Config(num_actors=2, envs_per_actor=_ENVIRONMENTS)
    ),
  ),
  'swarm': (
    _MEMBERS,
    lambda experiment: swarm.build(
      experiment,
      swarm_lib.Config(num_explorers=_MEMBERS, explorers_per_node=_MEMBERS),
    ),
  ),
}


def small_experiment(
  agent: str, num_agents: int, run_dir: pathlib.Path
) -> experiment_lib.Experiment:
  """The catalogue's experiment of an agent, made small."""
  found = catalogue.experiment(agent, num_agents)
  make_agent: Any = found.make_agent  # a functools.partial
  config, spec = make_agent.args
  names = {field.name for field in dataclasses.fields(config)}
  config = dataclasses.replace(
    config, **{name: _SMALL[name] for name in names & set(_SMALL)}
  )
  return dataclasses.replace(
    found,
    make_agent=functools.partial(make_agent.func, config, spec),
    min_replay_size=getattr(config, 'min_replay_size', 1),
    run=experiment_lib.RunConfig(
      steps_per_agent=_NO_END,
      wall_clock_s=150,  # many times what it takes
      evaluations=1,
      eval_episodes=1,
      updates_per_call=1,
    ),
    run_dir=str(run_dir),
  )


def run(way: list[str], run_dir: pathlib.Path, updates: int) -> dict:
  agent, topology, engine = way
  num_agents, build = BUILDERS[topology]
  experiment = small_experiment(agent, num_agents, run_dir)
  try:
    program = build(experiment)
  except ValueError as e:
    return {'refused': str(e)}
  graph.check(program)
  make_counter = session.counter_of(program)
  counter: list = []
  ended: list[bool] = []

  def end_soon(state) -> None:
    if ended or any(node.state == 'starting' for node in state.nodes):
      return
    if not counter:
      counter.append(make_counter())
    if counter[0].totals().get('learner_steps', 0) >= updates * num_agents:
      ended.append(counter[0].finish(f'{updates} learner steps'))

  outcome = engines.run(program, engine, run_dir=run_dir, on_tick=end_soon)
  summary = json.loads((run_dir / 'summary.json').read_text())
  return {
    'exit_code': outcome.exit_code,
    'reason': outcome.reason,
    'nodes': [[node.name, node.state, node.restarts] for node in outcome.nodes],
    'outcome': summary['outcome'],
    'totals': summary['totals'],
  }


def _child(
  parent: int, way: list[str], run_dir: pathlib.Path, updates: int
) -> None:
  try:
    linux.die_with_parent(parent, signal.SIGTERM)
    run_dir.mkdir()
    found = run(way, run_dir, updates)
  except BaseException:
    found = {'error': traceback.format_exc()}
  # One write of a short line: lines of two programs do not mix.
  line = json.dumps({'way': way, **found}) + '\n'
  os.write(1, line.encode())


def main() -> None:
  directory, updates = pathlib.Path(sys.argv[1]), int(sys.argv[2])
  engines.warm_up()
  running, parent = 0, os.getpid()
  for number, way in enumerate(json.load(sys.stdin)):
    if running == _AT_ONCE:
      os.wait()
      running -= 1
    if not os.fork():
      code = 1
      try:
        _child(parent, way, directory / str(number), updates)
        code = 0
      finally:
        # Not sys.exit: what the parent registered is not this child's to do.
        # The zygote of this program ends with its launcher.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    running += 1
  while running:
    os.wait()
    running -= 1


if __name__ == '__main__':
  main()
