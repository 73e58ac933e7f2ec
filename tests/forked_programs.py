"""Runs small programs by the command, each in a fork; a helper of tests.

  python tests/forked_programs.py DIRECTORY UPDATES < ways.json

Ways are [[agent, topology, engine], ...] by their names in launch/registry.py.
Each is what `launch/run.py` makes of them, with small numbers, and is ended
when every member has made UPDATES learner steps. A line of JSON is printed for
each as it ends, with 'way', 'code', 'output' and, where it ran, 'summary' and
'nodes'.
"""

import atexit
import contextlib
import gc
import json
import os
import pathlib
import signal
import sys
import traceback
from typing import Any

# As in commands.py.
os.environ.setdefault('XLA_FLAGS', '--xla_backend_optimization_level=0')
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from murmuration.environment_loops import environments
from murmuration.launch import command_line
from murmuration.launch import engines
from murmuration.launch import registry
from murmuration.launch import session
from murmuration.launch.engines import linux
from murmuration.run_records import later
from murmuration.run_records import plots
from murmuration.run_records import settings

_MEMBERS = 2
_ENVIRONMENTS = 4  # of an actor
_AT_ONCE = 2  # programs
# Section to what is set where the cell has it.
_SMALL: dict[str, dict[str, Any]] = {
  'agent': {
    'hidden_sizes': (8,),
    'policy_sizes': (8,),
    'critic_sizes': (8,),
    'num_atoms': 11,
    'batch_size': 2 * _ENVIRONMENTS,  # of A2C, a block of each of two actors
    'min_replay_size': 50,
    'unroll_length': 5,
    'rollout_steps': 40,  # a block of each of two actors
    'epochs': 1,
  },
  'run': {
    'steps_per_agent': 10_000_000,  # no end
    'wall_clock_s': 150,  # many times what it takes
    'target_return': None,
    'evaluations': 1,
    'eval_episodes': 1,
  },
}
# By the name of a topology; one that is not here runs with its defaults.
_OF_TOPOLOGY: dict[str, dict[str, Any]] = {
  'actor_learner': {'num_actors': 2, 'envs_per_actor': _ENVIRONMENTS},
  'evolution': {'num_workers': 2, 'population': 4, 'pairs_per_task': 2},
  'swarm': {'num_explorers': _MEMBERS, 'explorers_per_node': _MEMBERS},
  'gossip': {'num_learners': _MEMBERS},
  'parameter_server': {'num_learners': _MEMBERS},
}


def flags(agent: str, topology: str) -> list[str]:
  """The small numbers, of those that the cell has."""
  found: Any = registry.agent(agent)
  own = settings.names(found.config)
  sections: dict[str, dict[str, Any]] = {
    'agent': {
      name: value
      for name, value in _SMALL['agent'].items()
      if name in own
      and (topology != 'evolution' or name in ('hidden_sizes', 'policy_sizes'))
    },
    'run': _SMALL['run'],
    registry.topology(topology).SECTION: _OF_TOPOLOGY.get(topology, {}),
  }
  if 'unroll_length' not in own and topology != 'evolution':
    sections['pace'] = {'samples_per_insert': 8.0}
  # PPO's call is a rollout, A2C's an update, evolution's a population.
  if not ('epochs' in own or found.agent.updates_per_call) and (
    topology != 'evolution'
  ):
    sections['run'] = {**_SMALL['run'], 'updates_per_call': 1}
  return [
    f'--config.{section}.{name}={value}'
    for section, values in sections.items()
    for name, value in values.items()
  ]


def _run(way: list[str], run_dir: pathlib.Path, updates: int) -> dict:
  agent, topology, engine = way
  found: dict = {}
  start = engines.run

  def ended_soon(program, how, *, on_tick, **options):
    make_counter = session.counter_of(program)
    members = found['members']
    counter: list = []
    ended: list[bool] = []

    def tick(state) -> None:
      on_tick(state)
      if ended or any(node.state == 'starting' for node in state.nodes):
        return
      if not counter:
        counter.append(make_counter())
      if counter[0].totals().get('learner_steps', 0) >= updates * members:
        ended.append(counter[0].finish(f'{updates} learner steps'))

    outcome = start(program, how, on_tick=tick, **options)
    found['nodes'] = [[n.name, n.state, n.restarts] for n in outcome.nodes]
    return outcome

  engines.run = ended_soon  # type: ignore[assignment]
  run = session.run

  def watched(cell, *arguments, **options):
    found['members'] = cell.experiment.num_agents
    return run(cell, *arguments, **options)

  session.run = watched
  found['code'] = command_line.main(
    [
      agent,
      f'--topology={topology}',
      f'--lp_launch_type={engine}',
      f'--run_dir={run_dir}',
      *flags(agent, topology),
    ]
  )
  if (run_dir / 'summary.json').exists():
    found['summary'] = json.loads((run_dir / 'summary.json').read_text())
  return found


def _child(
  parent: int, way: list[str], directory: pathlib.Path, updates: int
) -> None:
  answers = os.dup(1)
  printed = directory.with_suffix('.txt')
  with printed.open('w') as file:
    os.dup2(file.fileno(), 1)
    os.dup2(file.fileno(), 2)
  try:
    linux.die_with_parent(parent, signal.SIGTERM)
    found = _run(way, directory, updates)
  except BaseException:
    found = {'code': None}
    traceback.print_exc()
  sys.stdout.flush()
  sys.stderr.flush()
  output = printed.read_text(errors='replace')[-2500:]
  # One write of a short line: lines of two programs do not mix.
  line = json.dumps({'way': way, **found, 'output': output}) + '\n'
  os.write(answers, line.encode())


def main() -> None:
  directory, updates = pathlib.Path(sys.argv[1]), int(sys.argv[2])
  later.load()
  for name in registry.agents():
    registry.agent(name)
  environments.spec('CartPole-v1')  # Gymnasium imports what it makes
  # Up to a second each; other runs have one drawn.
  setattr(plots, 'learning_curve', lambda path: None)  # noqa: B010
  gc.collect()
  gc.freeze()
  running, parent = 0, os.getpid()
  for number, way in enumerate(json.load(sys.stdin)):
    if running == _AT_ONCE:
      os.wait()
      running -= 1
    if not os.fork():
      code = 1
      # Not sys.exit: what the parent registered is not this child's to do. The
      # zygote of this program ends with its launcher.
      atexit._clear()
      try:
        _child(parent, way, directory / str(number), updates)
        code = 0
      finally:
        with contextlib.suppress(BaseException):
          atexit._run_exitfuncs()  # TensorFlow's remove its source files
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    running += 1
  while running:
    os.wait()
    running -= 1


if __name__ == '__main__':
  main()
