"""Runs a swarm, or with --baseline its agent alone: run.py by an older name.

  python launch/run_swarm.py --config=acrobot --config.swarm.num_explorers=8
  python launch/run_swarm.py --config=configs/pso_ddpg.py:hopper
  python launch/run_swarm.py --baseline     # the agent alone, same budget
  python launch/run_swarm.py --baseline --num_agents=4

`--config=PRESET` is one of PSO-DQN's (configs/pso_dqn.py), `FILE.py:PRESET` one
of another swarm's in configs/. Liu et al. 2018, arXiv:1811.10264.
"""

from __future__ import annotations

from collections.abc import Sequence
import pathlib
import sys

# Run as a file, Python would look for modules in launch/ first.
if not __package__:
  sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

from murmuration.run_records import first

if __name__ == '__main__':
  first.begin()

from murmuration.replay import isolation
from murmuration.run_records import later

if __name__ == '__main__':
  isolation.prepare(sys.argv)  # the imports below may start threads
  later.put_off()

from murmuration.launch import command_line
from murmuration.launch import registry
from murmuration.run_records import commands
from murmuration.run_records import names

_AGENT = 'pso_dqn'


def translated(argv: Sequence[str]) -> list[str]:
  """The same command for run.py; ValueError for a config file of others."""
  parser = commands.Parser(None, add_help=False)
  parser.add_argument('--config', default='')
  parser.add_argument('--num_agents')
  parser.add_argument('--baseline', action='store_true')
  args, found = parser.parse_known_args(argv)
  file, preset = args.config, ''
  if not file.endswith('.py'):
    file, _, preset = file.rpartition(':')
  agent = pathlib.Path(file).stem if file else _AGENT
  if agent not in registry.agents():
    names.unknown(
      'config file',
      file,
      [f'configs/{known}.py' for known in registry.agents()],
      'A file of your own is run.py module:Name',
    )
  if args.num_agents:
    found.append(f'--config.single.num_agents={args.num_agents}')
  if args.baseline:
    found.append('--topology=single_process')
    agent = agent.removeprefix('pso_')
  if not any(word.partition('=')[0] == '--resume' for word in found):
    found.insert(0, f'{agent}:{preset}' if preset else agent)
  return found


def main() -> int:
  try:
    argv = translated(sys.argv[1:])
  except ValueError as e:
    return commands.refuse(e)
  return command_line.main(argv, __doc__)


if __name__ == '__main__':
  first.leave(main())
