"""The command line of every run_*.py: flags in, one checked `Settings` out.

Nothing below this file reads flags. Whatever is wrong with a command is said in
one sentence, with exit code 2, before anything is written.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import pathlib
import sys
from typing import Any, NoReturn

from absl import app
from absl import flags
from launchpad import flags as lp_flags
from ml_collections import config_flags

from environment_loops import environments
from run_records import run_directory

USAGE = 2  # exit code of a command that cannot work
ENGINES = ('local_mt', 'local_mp')

# Flags that every script has.
_COMMON = (
  'config', 'seed', 'run_dir', 'resume', 'print_config', 'lp_launch_type'
)  # fmt: skip
_OPTIONAL = ('float | None', 'int | None')
_FLAGS = flags.FLAGS


class UsageError(ValueError):
  """The command cannot work; the message says what to change."""


@dataclasses.dataclass(frozen=True)
class Settings:
  """What a command line says, resolved.

  Attributes:
    config: sections and values, an ml_collections ConfigDict.
    engine: 'local_mt' or 'local_mp'.
    seed: of the whole run.
    run_dir: where to keep the run; None chooses a new one under runs/.
    resume: whether run_dir holds a run to go on with.
    print_config: only print the resolved config, as config.json would have it.
    options: the script's own flags by name.
  """

  config: Any
  engine: str
  seed: int
  run_dir: pathlib.Path | None
  options: dict[str, Any]
  resume: bool = False
  print_config: bool = False


def define_flags(config_file: str | pathlib.Path) -> None:
  """Defines the flags that every entry point has."""
  config_file = pathlib.Path(config_file).resolve()
  sys.argv[1:] = _with_preset(sys.argv[1:], config_file)
  try:
    config_flags.DEFINE_config_file(
      'config',
      f'{config_file}:',
      'A preset name, or a config file and a preset, FILE.py:PRESET. Single '
      'values are set with --config.section.name=value.',
    )
  except (AttributeError, KeyError, TypeError, ValueError) as e:
    # Overrides are looked up while the flag is defined.
    fail(_plain(e))
  app.define_help_flags()
  flags.DEFINE_integer('seed', 0, 'Seed of the whole run.', lower_bound=0)
  flags.DEFINE_string(
    'run_dir', None, 'Directory of the run; default runs/AGENT-TASK-TIME.'
  )
  flags.DEFINE_string(
    'resume',
    None,
    'Directory of a run to go on with, with its config; --config.x=y changes '
    'single values, for instance the budget.',
  )
  flags.DEFINE_boolean(
    'print_config', False, 'Print the resolved config as JSON, and run nothing.'
  )
  _FLAGS.set_default('lp_launch_type', 'local_mp')
  for name in _COMMON:
    # So that --help shows them beside the script's own.
    _FLAGS.register_key_flag_for_module(sys.argv[0], _FLAGS[name])


def parse(argv: Sequence[str], optional: Sequence[str] = ()) -> Settings:
  """The settings of a command line.

  Args:
    argv: the command line.
    optional: sections of the config that a resumed run may be without.

  Raises:
    UsageError: a flag is unknown or its value cannot be.
  """
  try:
    rest = _FLAGS(list(argv))
  except flags.Error as e:
    raise UsageError(_plain(e)) from e
  except (AttributeError, KeyError, TypeError, ValueError) as e:
    raise UsageError(_plain(e)) from e
  if len(rest) > 1:
    raise UsageError(
      f'{rest[1]!r} is no flag. Flags are written --name=value; see --help.'
    )
  engine = lp_flags.LAUNCH_TYPE.value
  engine = getattr(engine, 'value', engine)
  if engine not in ENGINES:
    raise UsageError(
      f'--lp_launch_type={engine} is not an engine of this project. Choose one '
      f'of {list(ENGINES)}.'
    )
  config = _FLAGS.config
  try:
    config.to_dict()
  except OSError as e:  # A file that could not be read shows here, not before.
    raise UsageError(f'--config: {_plain(e)}') from e
  seed, run_dir = _FLAGS.seed, _FLAGS.run_dir
  if _FLAGS.resume:
    if run_dir:
      raise UsageError(
        '--resume goes on in its own directory: leave --run_dir out.'
      )
    seed = _take_up(config, _FLAGS.resume, optional)
    run_dir = _FLAGS.resume
  own = _FLAGS.flags_by_module_dict().get(sys.argv[0], [])
  own = own + _FLAGS.flags_by_module_dict().get('__main__', [])
  return Settings(
    config=config,
    engine=engine,
    seed=seed,
    run_dir=pathlib.Path(run_dir) if run_dir else None,
    resume=bool(_FLAGS.resume),
    print_config=_FLAGS.print_config,
    options={f.name: f.value for f in own if f.name not in _COMMON},
  )


def _take_up(config: Any, path: str, optional: Sequence[str] = ()) -> int:
  """Puts the config of a kept run under the command's own overrides.

  Returns:
    The seed of the run.
  """
  try:
    kept = run_directory.open(path).config()
  except (run_directory.RunDirectoryRefused, OSError, ValueError) as e:
    raise UsageError(f'--resume: {e}') from e
  overrides = config_flags.get_override_values(_FLAGS['config'])
  for section in config:
    if section not in kept and section in optional:
      continue
    if section not in kept:
      raise UsageError(
        f'--resume={path}: that run has no {section!r} in its config.json: it '
        f'is a run of {kept.get("agent_name", "another program")}. Resume it '
        'with the script that started it.'
      )
    try:
      if isinstance(kept[section], dict):
        config[section].update(kept[section])
        _forget_newer(config, section, kept, overrides)
      else:
        config[section] = kept[section]
    except (KeyError, TypeError, AttributeError) as e:
      raise UsageError(f'--resume={path}: {_plain(e)}') from e
  config.update_from_flattened_dict(overrides)
  return int(kept['seed'])


def _forget_newer(config: Any, section: str, kept: Any, overrides: Any) -> None:
  """Leaves what a kept run does not know to the default, not to the preset.

  A new field's default is what there was before it.
  """
  with config[section].unlocked():
    for name in set(config[section]) - set(kept[section]):
      if f'{section}.{name}' not in overrides:
        del config[section][name]


def make(constructor: Any, values: Any) -> Any:
  """A frozen config from a section of the command line.

  Raises:
    UsageError: a value is refused, with the reason of the config.
  """
  values = {
    name: tuple(value) if isinstance(value, list) else value
    for name, value in values.items()
  }
  for field in dataclasses.fields(constructor):
    # Only these take any literal (configs/), so only these can be a word.
    value = values.get(field.name)
    if field.type in _OPTIONAL and isinstance(value, str):
      raise UsageError(
        f'{field.name}={value!r} is no number. Give a number, or None.'
      )
  try:
    return constructor(**values)
  except (TypeError, ValueError) as e:
    raise UsageError(_plain(e)) from e


def environment_spec(name: str) -> environments.Spec:
  """The spec of an environment.

  Raises:
    UsageError: it cannot be used, with the reason.
  """
  try:
    return environments.spec(name)
  except environments.EnvironmentRefused as e:
    raise UsageError(_plain(e)) from e


def fail(message: str) -> NoReturn:
  """Ends the command with one sentence and the exit code for usage."""
  print(f'error: {message}', file=sys.stderr)
  sys.exit(USAGE)


def _with_preset(argv: Sequence[str], config_file: pathlib.Path) -> list[str]:
  """`--config=acrobot` to `--config=<config_file>:acrobot`.

  A relative FILE.py that is not there is looked for where the project is.
  """
  found, args = [], list(argv)
  while args:
    arg = args.pop(0)
    if arg in ('--config', '-config') and args:
      arg = f'--config={args.pop(0)}'
    name, _, value = arg.partition('=')
    if name in ('--config', '-config'):
      if '.py' not in value:
        arg = f'--config={config_file}:{value}'
      elif not pathlib.Path(value.partition(':')[0]).exists():
        ours = config_file.parents[1] / value
        if pathlib.Path(str(ours).partition(':')[0]).exists():
          arg = f'--config={ours}'
    found.append(arg)
  return found


def _plain(error: BaseException) -> str:
  """The last sentence of an error: absl and ml_collections wrap tracebacks."""
  text = str(error.args[0] if error.args else error)
  if 'Traceback (most recent call last)' in text:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    text = lines[-1].partition(': ')[2] or lines[-1]
  text = text.replace('\\n', ' ').replace('\\', '').replace('\n', ' ').strip()
  if len(text) > 1 and text[0] == text[-1] and text[0] in '"\'':
    text = text[1:-1]  # the repr that a KeyError is printed as
  if text.strip('"\'').isidentifier():
    name = text.strip('"\'')
    text = (
      f'The config has no setting {name!r}. The config.json of any run shows '
      'all that there are.'
    )
  return text
