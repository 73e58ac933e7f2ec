"""What a run asks of an agent before it starts: the contract of base.py.

A node that finds out later would fail, and be started again for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
import difflib
from typing import Any

from murmuration.agents import base

_NEEDED = (
  'name spec layout optimizer target_update batch_size learning_rate metrics'
).split()
_OF_TRANSITIONS = ['gamma', 'n_step']
_POOLS = ('mean', 'max', 'min')


def overrides(kind: type, one: str, other: str) -> bool:
  """Whether a class has method `one` of its own, and `other` from a parent."""
  return _place(kind, one) < _place(kind, other)


def _is_default(kind: type, name: str) -> bool:
  return getattr(kind, name) is getattr(base.Agent, name)


def _place(kind: type, name: str) -> int:
  mro = kind.__mro__
  return next((i for i, k in enumerate(mro) if name in vars(k)), len(mro))


def check_class(kind: type[base.Agent], config: Any) -> None:
  """Refuses a class that cannot be made, or not with this class of config.

  Raises:
    ValueError: says what it lacks, or names both configs.
  """
  for name in sorted(kind.__abstractmethods__):
    parent = next(k for k in kind.__mro__ if name in vars(k))
    near = difflib.get_close_matches(name, vars(kind), 1)
    raise ValueError(
      f'{kind.__name__} has no method {name}, which {parent.__name__} asks of '
      f'it. {f"Is its {near[0]} meant? " if near else ""}Give it one.'
    )
  try:
    said = kind.config_class()
  except Exception:  # it does not say it, and `config` does
    return
  if said and not (isinstance(config, type) and issubclass(config, said)):
    named = getattr(config, '__qualname__', repr(config))
    raise ValueError(
      f'{kind.__name__} is to be made with '
      f'config={getattr(config, "__module__", "")}.{named}, but its own is '
      f'{said.__module__}.{said.__qualname__}. Give that one, or one made of '
      'it.'
    )


def unmade(error: AttributeError) -> ValueError | None:
  """What to say of an agent whose `__init__` raised this; None if nothing.

  It may need what a class has to say, such as its `name`.
  """
  agent = error.obj
  if isinstance(agent, base.Agent) and error.name in _NEEDED + _OF_TRANSITIONS:
    return _lacking(agent, [error.name])
  return None


def _lacking(agent: base.Agent, missing: Sequence[str]) -> ValueError:
  return ValueError(
    f'{type(agent).__name__} has no {" and no ".join(missing)}, which '
    'agents/base.py asks of an agent. Give its class, or its __init__, these '
    'attributes.'
  )


def check(agent: base.Agent) -> None:
  """Refuses an agent that lacks something, or contradicts itself.

  Raises:
    ValueError: says what, and what to do.
  """
  if agent.learner_class is not None:
    return  # The learner knows what it needs.
  unrolls = agent.unroll_length is not None
  needed = [*_NEEDED, *(() if unrolls else _OF_TRANSITIONS)]
  missing = [name for name in needed if not hasattr(agent, name)]
  if missing:
    raise _lacking(agent, missing)
  lacks = [n for n in ('slots', 'direction') if not hasattr(agent.optimizer, n)]
  if lacks:
    raise ValueError(
      f'The optimizer of {agent.name}, {type(agent.optimizer).__name__}, has '
      f'no {" and no ".join(lacks)}. Give one of agents/optimizers.py, or one '
      'of yours that is as they are.'
    )
  for metric, pool in agent.metrics.items():
    if pool not in _POOLS:
      raise ValueError(
        f'{agent.name} pools its metric {metric!r} by {pool!r}; there are '
        f'{", ".join(_POOLS)}.'
      )
  if unrolls and agent.priority_exponent is not None:
    raise ValueError(
      f'{agent.name} sets unroll_length and priority_exponent, but unrolls '
      'come in a queue, each once, without priorities. Leave one of them out.'
    )
  kind = type(agent)
  ways = ('actor',) if unrolls else ('actor', 'act')
  if all(_is_default(kind, name) and name not in vars(agent) for name in ways):
    raise ValueError(
      f'{kind.__name__} does not say how it acts. Give it a method '
      f'{" or ".join(ways)}, as agents/base.py has it.'
    )
  # Which of the two a node uses depends on the topology.
  pairs = [('greedy', 'greedy_each'), ('greedy', 'operations')]
  if not unrolls:
    pairs += [('act', 'actor'), ('actor', 'act')]
  for one, other in pairs:
    own = [name for name in (one, other) if not _is_default(kind, name)]
    if own == [one, other] and overrides(kind, one, other):
      parent = kind.__mro__[_place(kind, other)]
      raise ValueError(
        f'{kind.__name__} has a method {one} of its own, but {other} is that '
        f'of {parent.__name__}, which is used in its place in some topologies '
        f'or for export. Override both, or let the other follow from it: '
        f'`{other} = base.Agent.{other}`.'
      )
