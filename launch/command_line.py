"""The command: words and flags in, a checked cell out, and its run.

Nothing below this file reads a command line. Whatever is wrong with a command
is said in one sentence, with exit code 2, before anything is written.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
import json
import pathlib
import sys

from murmuration.launch import cell as cell_lib
from murmuration.launch import engines
from murmuration.launch import registry
from murmuration.launch import session
from murmuration.replay import isolation
from murmuration.run_records import commands
from murmuration.run_records import jsonable
from murmuration.run_records import names
from murmuration.run_records import run_directory
from murmuration.run_records import settings
from murmuration.run_records import sinks

_CONFIG = '--config'
# What other libraries and our own functions call some flags.
_OTHER_NAMES = {
  **dict.fromkeys(
    ('steps', 'total_timesteps', 'timesteps', 'budget'),
    f'{_CONFIG}.run.steps_per_agent',
  ),
  **dict.fromkeys(('environment', 'env', 'env_id'), f'{_CONFIG}.environment'),
  **dict.fromkeys(('engine', 'launch_type'), '--lp_launch_type'),
  **dict.fromkeys(('out', 'dir', 'log_dir', 'save_path'), '--run_dir'),
}


def main(
  argv: Sequence[str], description: str | None = None, agent: str | None = None
) -> int:
  """Runs one agent on one topology under one engine.

  Args:
    argv: the command line, without the program's name.
    description: what --help begins with.
    agent: what runs if the command line names none.

  Returns:
    The exit code, see `session.run`.
  """
  try:
    sys.path.append(commands.here())  # for module:Name
    rest, changed = overrides(argv)
    parser = _parser(description)
    args = parser.parse(rest)
    names.require('way to isolate', args.isolate, isolation.MODES)
    followers = sinks.parse(args.sink)
    cell, run_dir = _cell(args, changed, agent)
    if args.list_settings:
      return commands.show(settings.listing(cell.sections, cell.unused))
    if args.print_config:
      config = jsonable.encode(cell.config)
      return commands.show(json.dumps(config, indent=2, sort_keys=True))
    engine, ray = session.placed(
      args.lp_launch_type,
      args.ray_address,
      args.cluster,
      args.ray_plain_replay,
      run_dir if args.resume else None,
    )
  except (ValueError, OSError) as e:
    return commands.refuse(e)
  return session.run(
    cell,
    engine,
    run_dir,
    bool(args.resume),
    isolate=args.isolate,
    ray=ray,
    sinks=followers,
  )


def _parser(description: str | None) -> commands.Parser:
  parser = commands.Parser(
    description,
    epilog=f'agents: {", ".join(registry.agents())}\n'
    f'topologies: {", ".join(registry.ALL_TOPOLOGIES)}\n'
    f'engines: {", ".join(engines.NAMES)}\n\n'
    'Presets are in configs/AGENT.py. An agent or a topology of your own is\n'
    'module:Name, where the current directory or PYTHONPATH has the module.',
  )
  parser.other_names = _OTHER_NAMES
  parser.add_argument(
    'agent',
    nargs='?',
    metavar='AGENT[:PRESET]',
    help='what is learned, and where; without a preset the one of the '
    'environment, else the first of its file',
  )
  parser.add_argument(
    '--topology', help="who talks to whom; default: the agent's own"
  )
  parser.add_argument(
    '--lp_launch_type',
    metavar='ENGINE',
    help='where nodes run; default: local_mp, or the engine of the run that '
    'goes on',
  )
  parser.add_argument(
    '--seed', type=commands.at_least(0), help='of the whole run; default: 0'
  )
  parser.add_argument(
    '--run_dir', help='directory of the run; default: runs/AGENT-TASK-TIME'
  )
  parser.add_argument(
    '--resume',
    metavar='RUN',
    help='directory of a run to go on with, on the same engine and Ray unless '
    'flags name others; --config.x.y=VALUE changes single values, for instance '
    'the budget',
  )
  parser.add_argument(
    '--isolate',
    default='auto',
    metavar='MODE',
    help='private network for all nodes: required, auto (where the system '
    'allows it) or off, for environments that need the network; default: '
    '%(default)s',
  )
  parser.add_argument(
    '--ray_address',
    metavar='HOST:PORT',
    help='of the Ray cluster to run on, auto for the one of this host, or '
    'local for a Ray of this run alone; default: RAY_ADDRESS, or else local',
  )
  parser.add_argument(
    '--ray_plain_replay',
    action='store_true',
    help='experience goes from host to host faster, and unencrypted '
    '(docs/clusters.md)',
  )
  parser.add_argument(
    '--cluster',
    action='append',
    metavar='GROUP:NAME=NUMBER,...',
    help='what each node of a group asks of its host, for Ray: cpus, gpus, '
    'memory (bytes) or a resource of your own; default: cpus=1',
  )
  parser.add_argument(
    '--sink',
    default='',
    metavar='NAMES',
    help='where numbers go besides the run: '
    f'{", ".join(sinks.NAMES)}, or module:Name of your own; several with '
    'commas',
  )
  parser.add_argument(
    f'{_CONFIG}.SECTION.NAME',
    metavar='VALUE',
    dest='unused',
    help='changes a setting; --config.environment=ID is the task; of two for '
    'one setting the last counts',
  )
  parser.add_argument(
    '--list-settings',
    action='store_true',
    help='shows all settings of this run with their comments, and ends',
  )
  parser.add_argument(
    '--print-config',
    action='store_true',
    help='prints the resolved config as JSON, as config.json has it, and ends; '
    'what only the start of a run checks is not checked',
  )
  return parser


def overrides(argv: Sequence[str]) -> tuple[list[str], dict[str, str]]:
  """The command without `--config.x.y=value`, and those: x.y to value."""
  rest: list[str] = []
  found: dict[str, str] = {}
  words = list(argv)
  while words:
    word = words.pop(0)
    if not word.startswith(f'{_CONFIG}.'):
      rest.append(word)
      continue
    name, said, value = word.partition('=')
    if not said:
      if not words:
        raise ValueError(f'{word} needs a value: {word}=VALUE.')
      value = words.pop(0)
    found[name.removeprefix(f'{_CONFIG}.')] = value
  return rest, found


def _cell(
  args: argparse.Namespace,
  overrides: dict[str, str],
  default_agent: str | None = None,
) -> tuple[cell_lib.Cell, pathlib.Path | None]:
  if args.resume is None:
    agent = args.agent or default_agent
    if agent is None:
      raise ValueError(
        'which agent? For instance impala:cartpole; there are '
        f'{", ".join(registry.agents())}.'
      )
    if args.run_dir == '':
      raise ValueError('--run_dir= names no directory. Give one: runs/NAME.')
    cell = cell_lib.resolve(
      *registry.split(agent), args.topology, overrides, args.seed or 0
    )
    return cell, pathlib.Path(args.run_dir) if args.run_dir else None
  if not args.resume:
    raise ValueError('--resume= names no run. Give its directory: runs/NAME.')
  for name in ('agent', 'topology', 'seed', 'run_dir'):
    if getattr(args, name) is not None:
      raise ValueError(
        f'--resume goes on with the {name} of the run: leave '
        f'{args.agent if name == "agent" else f"--{name}"} out.'
      )
  try:
    kept = run_directory.open(args.resume).config()
  except (OSError, ValueError) as e:
    raise ValueError(f'--resume: {e}') from e
  own = run_directory.given(kept)
  if own:
    raise ValueError(
      f'{args.resume} was trained with {" and ".join(own.values())}, which '
      'only the script that defines it has. Go on there, in Python: '
      f'{run_directory.loading(args.resume, kept)}.resume().'
    )
  try:
    cell = cell_lib.resume(kept, overrides)
  except ValueError as e:
    raise ValueError(f'--resume={args.resume}: {e}') from e
  return cell, pathlib.Path(args.resume)
