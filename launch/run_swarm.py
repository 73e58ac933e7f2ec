"""Runs PSO-DQN, -DDPG, -D4PG or -PPO: explorers that are pulled to a best.

  python launch/run_swarm.py --lp_launch_type=local_mp
  python launch/run_swarm.py --config=acrobot --config.swarm.num_explorers=8
  python launch/run_swarm.py --config=configs/pso_ddpg.py:hopper
  python launch/run_swarm.py --config=configs/pso_d4pg.py:pendulum
  python launch/run_swarm.py --config=configs/pso_ppo.py
  python launch/run_swarm.py --baseline     # the agent alone, same budget

The config file says which agent explores: its field `agent_name`, pso_dqn where
it has none. Liu et al. 2018, arXiv:1811.10264; docs/agents/pso_dqn.md,
docs/agents/pso_ddpg.md and docs/agents/pso_ppo.md.
"""

from __future__ import annotations

from collections.abc import Sequence
import functools
import os
import pathlib
import sys
from typing import Any

# Run as a file, Python would look for modules in launch/ first.
if not __package__:
  sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])
# TensorFlow's notes about GPUs and CPU features; errors are still shown.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')

from absl import flags

from agents import d4pg
from agents import ddpg
from agents import dqn
from agents import ppo
from agents.swarm import explorers as swarm_lib
from launch import command_line
from launch import entry
from launch import experiment as experiment_lib
from launch import session
from launch.topologies import single_process
from launch.topologies import swarm
from run_records import run_directory

# What a config's agent_name may be; the agent alone is called without prefix.
_PREFIX = 'pso_'
_AGENTS = {
  'pso_d4pg': (d4pg.D4PG, d4pg.Config),
  'pso_ddpg': (ddpg.DDPG, ddpg.Config),
  'pso_dqn': (dqn.DQN, dqn.Config),
  'pso_ppo': (ppo.PPO, ppo.Config),
}
_DEFAULT = 'pso_dqn'


def main() -> int:
  command_line.define_flags(_config_file(sys.argv[1:]))
  flags.DEFINE_boolean(
    'baseline',
    False,
    'The agent alone (DQN, DDPG, D4PG or PPO, as the config file says) instead '
    'of the swarm.',
  )
  flags.DEFINE_integer(
    'num_agents', 1, 'Independent agents of the baseline.', lower_bound=1
  )
  try:
    settings = command_line.parse(sys.argv, optional=('swarm',))
    config = settings.config.to_dict()
    kept = _kept(settings)
    config['seed'] = settings.seed
    name = _of_swarm(config.get('agent_name', _DEFAULT))
    if name not in _AGENTS:
      raise command_line.UsageError(
        f'agent_name={name!r} is no agent of a swarm; there are '
        f'{sorted(_AGENTS)}. It comes with the config file: choose one with '
        '--config=FILE.py:PRESET and leave agent_name as it is there.'
      )
    make = functools.partial(entry.make_experiment, settings, *_AGENTS[name])
    if settings.options['baseline'] or (kept and 'swarm' not in kept):
      if 'swarm' in kept:
        raise command_line.UsageError(
          f'{settings.run_dir} is a swarm: leave --baseline out to resume it.'
        )
      name = name.removeprefix(_PREFIX)
      experiment = make(
        kept.get('num_agents') or settings.options['num_agents']
      )
      config['num_agents'] = experiment.num_agents
      del config['swarm']
      build = functools.partial(_build_baseline, experiment)
    else:
      swarm_config = command_line.make(swarm_lib.Config, settings.config.swarm)
      experiment = make(swarm_config.num_explorers)
      build = functools.partial(_build_swarm, experiment, swarm_config)
    config['agent_name'] = name
  except command_line.UsageError as e:
    command_line.fail(str(e))
  return session.run(build, settings, name, config)


def _kept(settings: command_line.Settings) -> dict[str, Any]:
  """The config of the run that is resumed; {} for a new run."""
  if not settings.resume or settings.run_dir is None:
    return {}
  kept = run_directory.open(settings.run_dir).config()
  if 'actors' in kept:
    raise command_line.UsageError(
      f'{settings.run_dir} was started with actors or by their script: resume '
      f'it with launch/run_{kept.get("agent_name")}.py.'
    )
  return kept


def _of_swarm(name: str) -> str:
  """The agent's name with the prefix that a resumed baseline is without."""
  return f'{_PREFIX}{name}' if f'{_PREFIX}{name}' in _AGENTS else name


def _config_file(argv: Sequence[str]) -> pathlib.Path:
  """The presets that `--config=PRESET` means: of a resumed run, its agent's."""
  name, args = _DEFAULT, list(argv)
  while args:
    flag, _, path = args.pop(0).partition('=')
    if flag.lstrip('-') == 'resume':
      path = path or (args.pop(0) if args else '')
      try:
        name = str(run_directory.open(path).config().get('agent_name'))
      except (ValueError, OSError):
        pass  # command_line says what is wrong with it
  name = _of_swarm(name)
  if name not in _AGENTS:
    name = _DEFAULT
  return session.root() / 'configs' / f'{name}.py'


def _build_swarm(experiment, config, run_dir):
  return swarm.build(experiment_lib.in_directory(experiment, run_dir), config)


def _build_baseline(experiment, run_dir):
  return single_process.build(experiment_lib.in_directory(experiment, run_dir))


if __name__ == '__main__':
  sys.exit(main())
