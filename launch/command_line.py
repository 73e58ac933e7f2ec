"""The command: words and flags in, a checked cell out, and its run.

Nothing below this file reads a command line. Whatever is wrong with a command
is said in one sentence, with exit code 2, before anything is written.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
import contextlib
import json
import pathlib
import shlex
import sys

from environment_loops import atari
from launch import cell as cell_lib
from launch import engines
from launch import registry
from launch import session
from replay import isolation
from run_records import commands
from run_records import jsonable
from run_records import names
from run_records import run_directory
from run_records import settings
from run_records import sinks

_CONFIG = '--config'
# What a resumed run has from the commands that it was started by.
_ENGINE, _ADDRESS = '--lp_launch_type', '--ray_address'
_CLUSTER, _PLAIN = '--cluster', '--ray_plain_replay'
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


def main(argv: Sequence[str], description: str | None = None) -> int:
  """Runs one agent on one topology under one engine.

  Args:
    argv: the command line, without the program's name.
    description: what --help begins with.

  Returns:
    The exit code, see `session.run`.
  """
  try:
    sys.path.append(commands.here())  # for module:Name
    rest, changed = overrides(argv)
    parser = _parser(description)
    args = parser.parse(rest)
    if args.resume and not (args.list_settings or args.print_config):
      args = parser.parse([*_as_started(args.resume, rest), *rest])
    names.require('engine', args.lp_launch_type, engines.NAMES)
    names.require('way to isolate', args.isolate, isolation.MODES)
    ray = _ray(args)
    followers = sinks.parse(args.sink)
    cell, run_dir = _cell(args, changed)
    if args.list_settings:
      return commands.show(settings.listing(cell.sections, cell.unused))
    if args.print_config:
      config = jsonable.encode(cell.config)
      return commands.show(json.dumps(config, indent=2, sort_keys=True))
  except (ValueError, OSError) as e:
    return commands.refuse(e)
  return session.run(
    cell,
    args.lp_launch_type,
    run_dir,
    bool(args.resume),
    isolate=args.isolate,
    ray=ray,
    sinks=followers,
  )


def _as_started(run: str, argv: Sequence[str]) -> list[str]:
  """The engine of a run and what it asks of Ray, where `argv` does not say it.

  Raises:
    ValueError: it was on a Ray of an address, and where is it now?
  """
  lines: list[str] = []
  with contextlib.suppress(OSError, ValueError):  # `_cell` says what is wrong
    lines = run_directory.open(run).commands()
  kept: dict[str, list[str]] = {}
  for line in lines:
    try:
      found = _where(shlex.split(line))
    except ValueError:  # no command line
      continue
    if found.get(_ENGINE, kept.get(_ENGINE)) != kept.get(_ENGINE):
      kept = {}
    kept.update(found)
  said = _where(argv)
  if said.get(_ENGINE, kept.get(_ENGINE)) != kept.get(_ENGINE):
    return []
  words = [w for name in kept if name not in said for w in kept[name]]
  for word in words:
    address = word.partition(f'{_ADDRESS}=')[2]
    # Not taken over: it may be gone, and `isolation.prepare` has to see it.
    if address and address != 'local':
      raise ValueError(
        f'{run} was on the Ray at {address}. Say where it goes on: {word}, '
        f'{_ADDRESS}=auto for the one of this host, or {_ADDRESS}=local.'
      )
  return words


def _where(words: Sequence[str]) -> dict[str, list[str]]:
  """Of the flags that say where a run is: name to the words of each."""
  found: dict[str, list[str]] = {}
  for word, value in zip(words, [*words[1:], '']):
    name, same_word, _ = word.partition('=')
    if name in (_ENGINE, _ADDRESS, _CLUSTER, _PLAIN):
      whole = word if same_word or name == _PLAIN else f'{word}={value}'
      found.setdefault(name, []).append(whole)
  return found


def _ray(args: argparse.Namespace) -> engines.Options | None:
  """What flags say of Ray; None for another engine.

  Raises:
    ValueError: one of them is wrong, or there is no Ray.
  """
  options = engines.Options(
    args.ray_address or '', args.cluster or (), args.ray_plain_replay
  )
  if args.lp_launch_type == 'ray':
    engines.check_ray()
    return options
  for flag in ('ray_address', 'cluster', 'ray_plain_replay'):
    if getattr(args, flag):
      raise ValueError(
        f'--{flag} is for --lp_launch_type=ray, and this run is '
        f'{args.lp_launch_type}. Leave one of them out.'
      )
  return None


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
    default='local_mp',
    metavar='ENGINE',
    help='where nodes run; default: %(default)s',
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
    help='directory of a run to go on with, as it was started, on the same '
    'engine; --config.x.y=VALUE changes single values, for instance the budget',
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
      if word.partition('=')[0] == _CONFIG:
        raise ValueError(
          f'{word!r}: the preset stands beside the agent, AGENT:PRESET. '
          f'{_CONFIG}.SECTION.NAME=VALUE changes single settings.'
        )
      rest.append(word)
      continue
    name, said, value = word.partition('=')
    if not said:
      if not words:
        raise ValueError(f'{word} needs a value: {word}=VALUE.')
      value = words.pop(0)
    found[name.removeprefix(f'{_CONFIG}.')] = value
  return rest, found


def _check_name(run_dir: str) -> None:
  """Refuses what cannot be a run's directory: it is empty, or no text."""
  if not run_dir:
    raise ValueError('--run_dir= names no directory. Give one: runs/NAME.')
  try:
    run_dir.encode()
  except UnicodeEncodeError as e:
    raise ValueError(
      f'--run_dir={run_dir!r} is not UTF-8, as all that a run writes. Give '
      'another name.'
    ) from e


def _cell(
  args: argparse.Namespace, overrides: dict[str, str]
) -> tuple[cell_lib.Cell, pathlib.Path | None]:
  if args.resume is None:
    if args.agent is None:
      raise ValueError(
        'which agent? For instance impala:cartpole; there are '
        f'{", ".join(registry.agents())}.'
      )
    name, preset = registry.split(args.agent)
    if args.run_dir is not None:
      _check_name(args.run_dir)
    cell = cell_lib.resolve(
      name, preset, args.topology, overrides, args.seed or 0
    )
    return cell, pathlib.Path(args.run_dir) if args.run_dir else None
  if not args.resume:
    raise ValueError('--resume= names no run. Give its directory: runs/NAME.')
  if args.run_dir:
    raise ValueError(
      '--resume goes on in its own directory: leave --run_dir out.'
    )
  try:
    kept = run_directory.open(args.resume).config()
  except (OSError, ValueError) as e:
    raise ValueError(f'--resume: {e}') from e
  agent, preset = registry.split(args.agent or '')
  if preset:
    presets = registry.agent(agent).presets
    names.require(f'preset of {agent}', preset, presets)
    own = presets[preset].get('environment')
    task = overrides.get('environment', own)
    if task and not atari.same_task(task, kept.get('environment', task)):
      raise ValueError(
        f'{args.resume} is a run of environment={kept["environment"]}: it '
        f'cannot go on as {args.agent}. Leave :{preset} out.'
      )
  for flag, name, asked in (
    ('AGENT', 'agent_name', agent or None),
    ('--topology', 'topology', args.topology),
    ('--seed', 'seed', args.seed),
  ):
    if asked is not None and asked != kept.get(name, asked):
      raise ValueError(
        f'{args.resume} is a run of {name}={kept[name]}: it cannot go on as '
        f'{asked}. Leave {flag} out.'
      )
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
