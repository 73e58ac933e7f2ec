"""Parsing and listing of a run's settings.

Settings come in sections, such as `agent` and `run`: frozen dataclasses whose
fields have bounds and comments (agents/settings.py).
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
import dataclasses
import difflib
import textwrap
import types
import typing
from typing import Any, Literal

from murmuration.agents import settings

_WIDTH = 80
# Words that stand in many names, and tell little alone.
_COMMON = frozenset(
  ('', 'max', 'min', 'n', 'num', 'of', 'per', 'period', 'rate', 'size')
)

# What Stable-Baselines3, CleanRL, Spinning Up, Tianshou or RLlib call them.
_ELSEWHERE = {
  name: here.split()
  for names, here in {
    'buffer_size buffer_capacity memory_size': 'max_replay_size',
    'learning_starts update_after': 'min_replay_size',
    'start_steps warmup_steps start_timesteps': 'random_steps min_replay_size',
    'total_timesteps total_steps max_steps steps budget': 'steps_per_agent',
    'tau polyak': 'target_update_tau',
    'target_update_interval target_update_freq target_network_frequency': (
      'target_update_period'
    ),
    'train_freq train_frequency gradient_steps utd_ratio replay_ratio': (
      'samples_per_insert'
    ),
    'n_steps num_steps': 'n_step rollout_steps unroll_length steps_per_agent',
    'n_epochs update_epochs num_sgd_iter': 'epochs',
    'clip_range clip_coef clip_ratio clip_param': 'clip',
    'ent_coef entropy_coef entropy_coeff': 'entropy_cost first_temperature',
    'vf_coef vf_loss_coeff': 'value_cost baseline_cost',
    'exploration_initial_eps start_e': 'epsilon_start',
    'exploration_final_eps end_e': 'epsilon_end',
    'exploration_fraction': 'epsilon_steps',
    'actor_lr pi_lr policy_lr': 'policy_learning_rate learning_rate',
    'critic_lr q_lr': 'critic_learning_rate learning_rate',
    'alpha': 'first_temperature',
    'discount discount_factor': 'gamma',
    'num_envs n_envs num_envs_per_worker': 'envs_per_actor',
    'num_workers': 'num_actors num_learners num_explorers',
    'net_arch hiddens fcnet_hiddens': 'hidden_sizes policy_sizes',
    'grad_clip max_grad_norm': 'max_gradient_norm',
    'clip_rewards': 'reward_clip',
    'eval_freq evaluation_interval': 'evaluations',
    'double_q': 'double',
  }.items()
  for name in names.split()
}


class Unknown(ValueError):
  """There is no such setting; `setting` is its name, section.name."""

  def __init__(self, setting: str, known: list[str]):
    super().__init__(f'There is no setting {setting!r}.{near(setting, known)}')
    self.setting = setting


def names(config_class: Any) -> list[str]:
  """The names of a config's settings, in order."""
  return [
    field.name for field in dataclasses.fields(config_class) if field.init
  ]


def make(section: str, config_class: Any, values: Mapping[str, Any]) -> Any:
  """A section's config from values; lists, as JSON has them, become tuples.

  Raises:
    ValueError: a name is unknown or a value is refused, with the reason.
  """
  for name in values:
    if name not in names(config_class):
      raise Unknown(f'{section}.{name}', qualified(section, config_class))
  try:
    return config_class(
      **{
        name: tuple(value) if isinstance(value, list) else value
        for name, value in values.items()
      }
    )
  except TypeError as e:
    raise ValueError(f'The section {section!r} cannot be: {e}.') from e


def qualified(section: str, config_class: Any) -> list[str]:
  return [f'{section}.{name}' for name in names(config_class)]


def near(word: str, known: list[str]) -> str:
  """' Did you mean ...?', or that --list-settings names them all."""
  section, _, name = word.rpartition('.')
  for one in known:  # by its own name, in another section
    if section != 'agent' and one.rpartition('.')[2] == name:
      return f' Did you mean "{one}"?'
  once = 'agent.unroll_length' in known  # learned from, and no pace is taken
  meant = [
    one
    for elsewhere in _ELSEWHERE.get(name, ())
    for one in known
    if one.rpartition('.')[2] == elsewhere
    and not (once and one.startswith('pace.'))
  ]
  if meant:  # the first, but rather one of the section that was named
    best = max(meant, key=lambda one: one.rpartition('.')[0] == section)
    return f' Did you mean "{best}"?'

  def likeness(one: str) -> float:
    its_section, _, its = one.rpartition('.')
    # Of names that share as much, the more alike, the shorter, and one that
    # begins with it.
    begins = _ratio(name.split('_')[-1], its.split('_')[0]) >= 0.8
    tie = 0.02 * begins + 0.02 * _ratio(name, its) - 0.001 * len(its)
    return _likeness(name, its) + 0.1 * (section == its_section) + tie

  best = max(known, key=likeness, default='')
  if _likeness(name, best.rpartition('.')[2]) >= 0.6:
    return f' Did you mean "{best}"?'
  return ' --list-settings shows all that there are.'


def _likeness(name: str, other: str) -> float:
  """From 0 to 1: of the names, of words in them, or of initials."""
  words = other.split('_')
  initials = ''.join(word[:1] for word in words)
  if len(name) > 1 and initials.endswith(name):
    return 1.0  # lr for learning_rate and for policy_learning_rate
  own = [word for word in name.split('_') if word not in _COMMON]
  alike = [
    max((_of_word(one, word) for word in words), default=0.0) for one in own
  ]
  found = [ratio for ratio in alike if ratio > 0.65]
  of_words = 0.0
  if found:  # the more of them, the better
    of_words = 0.6 * max(found) + 0.3 * len(found) / len(own)
  return max(_ratio(name, other), of_words)


def _of_word(one: str, word: str) -> float:
  if word in _COMMON:
    return 0.0
  begins = len(one) > 2 and word.startswith(one)
  return max(_ratio(one, word), 0.9 * begins)


def _ratio(a: str, b: str) -> float:
  return difflib.SequenceMatcher(None, a, b).ratio()


def parse(section: str, config_class: Any, name: str, text: str) -> Any:
  """The value of a field, from its text; ValueError for another type."""
  hint = settings.type_hints(config_class)[name]
  options = (
    typing.get_args(hint)
    if typing.get_origin(hint) in (types.UnionType, typing.Union)
    else (hint,)
  )
  if text == 'None' and type(None) in options:
    return None
  for option in options:
    try:
      return _parsed(option, text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
      continue  # the last two: deeply nested brackets
  wanted = ' or '.join(_named(option) for option in options)
  raise ValueError(
    f'{section}.{name}={text!r} is not {wanted}. Set --config.{section}.{name}.'
  )


def _parsed(option: Any, text: str) -> Any:
  if option is str or typing.get_origin(option) is Literal:
    return text  # the config checks the word
  if option is bool:
    word = text.lower()
    if word not in ('true', 'false', '1', '0'):
      _refuse()
    return word in ('true', '1')
  if option is type(None):
    _refuse()
  if option is float:
    return float(text)
  value = ast.literal_eval(text)
  if typing.get_origin(option) is tuple:
    value = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    parts = typing.get_args(option)
    if parts[-1] is not Ellipsis and len(parts) != len(value):
      _refuse()
    return value
  if option is int and type(value) is float and 'e' in text.lower():
    value = int(value) if value.is_integer() else value  # 1e5
  if type(value) is not option:  # True is not accepted as a number
    _refuse()
  return value


def _refuse() -> typing.NoReturn:
  raise ValueError


def _named(option: Any) -> str:
  parts = typing.get_args(option)
  if typing.get_origin(option) is tuple and parts[-1] is not Ellipsis:
    return f'({", ".join(_named(part) for part in parts)})'
  return {
    int: 'a whole number',
    float: 'a number',
    bool: 'True or False',
    type(None): 'None',
    tuple[int, ...]: 'whole numbers between commas, such as 64,64',
    tuple[float, ...]: 'numbers between commas, such as 0.5,0.9',
  }.get(option, str(option))


def listing(sections: Mapping[str, Any], unused: Mapping[str, str]) -> str:
  """Name, value, bounds and comment of each setting, section by section.

  Args:
    sections: names to configs or to plain values.
    unused: settings that change nothing, and why.
  """
  lines = []
  for section, config in sections.items():
    if not dataclasses.is_dataclass(config):
      lines += [f'--config.{section}={config}', '']
      continue
    for setting in settings.describe(type(config)):
      name = f'{section}.{setting.name}'
      lines.append(f'--config.{name}={getattr(config, setting.name)}')
      comment = setting.comment.removesuffix('.')
      said = f'{comment} ({setting.bounds or setting.type})'.strip()
      if name in unused:
        said += f'. Changes nothing here: {unused[name]}'
      lines += textwrap.wrap(
        said, _WIDTH, initial_indent='    ', subsequent_indent='    '
      )
    lines.append('')
  return '\n'.join(lines).rstrip()
