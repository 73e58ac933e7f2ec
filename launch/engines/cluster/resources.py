"""What the nodes of a group ask of their host, and whether a cluster has it.

    --cluster=learner:cpus=4,gpus=1 --cluster=actor:cpus=0.5,highmem=1

`cpus`, `gpus` and `memory` (bytes) are Ray's own; other names are resources
that `ray start --resources` gave a host. A node that nothing is said of asks
for one CPU. Amounts are those that Ray takes: to 0.0001, GPUs above 1 whole.
These are numbers to place nodes by; Ray holds nobody to them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
import math
from typing import Any

_NAMES = {'cpus': 'CPU', 'gpus': 'GPU', 'memory': 'memory'}
_WORDS = {'CPU': 'CPU', 'GPU': 'GPU', 'memory': 'byte of memory'}
_DEFAULT = {'CPU': 1.0}
_LEAST = 1e-4  # Ray's precision
_RAYS_OWN = ('object_store_memory',)  # no node may ask for it

Needs = Mapping[str, float]


class Refused(ValueError):
  """The program cannot run on this Ray, with the reason."""


def parse(texts: Iterable[str]) -> dict[str, dict[str, float]]:
  """What flags GROUP:NAME=NUMBER,... say: group -> resource -> amount."""
  found: dict[str, dict[str, float]] = {}
  for text in texts:
    group, _, rest = text.partition(':')
    needs = found.setdefault(group, {})
    for part in rest.split(','):
      name, _, value = part.partition('=')
      try:
        amount = float(value)
      except ValueError:
        amount = math.nan
      if not group or not name or not 0 <= amount < math.inf:
        raise Refused(
          f'--cluster={text} says not what a group needs: write '
          '--cluster=GROUP:NAME=NUMBER,NAME=NUMBER, for instance '
          '--cluster=learner:cpus=4,gpus=1.'
        )
      why = _not_rays(name, amount)
      if why:
        raise Refused(f'--cluster={text}: {why}')
      needs[_NAMES.get(name, name)] = amount
  return found


def _not_rays(name: str, amount: float) -> str:
  """Why Ray would not take an amount; '' if it would."""
  if name in _RAYS_OWN:
    return f"{name} is Ray's own, and experience is not in there. Leave it out."
  if amount % _LEAST and round(amount, 4) != amount:
    return (
      f'{name}={amount:g} is finer than {_LEAST}, which is as fine as Ray is.'
    )
  if name == 'gpus' and amount > 1 and amount % 1:
    return f'gpus={amount:g}: above 1 it is a whole number, or 1 or less.'
  return ''


def of_groups(
  labels: Sequence[str], said: Mapping[str, Needs]
) -> dict[str, dict[str, float]]:
  """What a node of each group asks for; Refused for another group."""
  for label in said:
    if label not in labels:
      raise Refused(
        f'--cluster={label}:...: this program has no group {label!r}; it has '
        f'{", ".join(labels)}.'
      )
  return {label: {**_DEFAULT, **said.get(label, {})} for label in labels}


def total(needs: Iterable[Needs]) -> dict[str, float]:
  found: dict[str, float] = {}
  for need in needs:
    for name, amount in need.items():
      found[name] = found.get(name, 0.0) + amount
  return found


def check(nodes: Mapping[str, Needs], hosts: Sequence[Needs]) -> str:
  """What has to wait for another host, in words; '' if nothing.

  `nodes` maps names to what they need; `hosts` is what each one has, in all.
  Refused if no host is large enough for one of the nodes.
  """
  for name, need in nodes.items():
    for resource, amount in need.items():
      most = max((host.get(resource, 0.0) for host in hosts), default=0.0)
      if amount > most:
        flag = {v: k for k, v in _NAMES.items()}.get(resource, resource)
        raise Refused(
          f'{name} asks for {words({resource: amount})}, and the largest of '
          f'{_hosts(hosts)} has {most:g}: it could never start. Add a '
          f'larger host, or lower --cluster={name.rsplit("/", 1)[0]}:{flag}=...'
        )
    if not any(fits(need, host) for host in hosts):
      raise Refused(
        f'{name} asks for {words(need)}, which none of {_hosts(hosts)} '
        'has together: it could never start. Add a host that has, or ask for '
        'less (--cluster).'
      )
  asked, there = total(nodes.values()), total(hosts)
  short = {k: v for k, v in asked.items() if v > there.get(k, 0.0)}
  if not short:
    return ''
  return '; '.join(
    f'{len(nodes)} nodes ask for {words({k: v})}; there are '
    f'{there.get(k, 0.0):g} on {_hosts(hosts)}'
    for k, v in short.items()
  )


def words(need: Needs) -> str:
  """'2 CPU and 1 GPU'"""
  parts = [f'{v:g} {_WORDS.get(k, k)}' for k, v in need.items() if v]
  return ' and '.join(parts) or 'a host'


def options(need: Needs) -> dict[str, Any]:
  """The same, as Ray's actors take it."""
  rest = {k: v for k, v in need.items() if k not in _NAMES.values() and v}
  return {
    'num_cpus': need.get('CPU', 0.0),
    'num_gpus': need.get('GPU', 0.0),
    **({'memory': need['memory']} if need.get('memory') else {}),
    **({'resources': rest} if rest else {}),
  }


def _hosts(hosts: Sequence[Needs]) -> str:
  return f'{len(hosts)} host{"s" * (len(hosts) != 1)}'


def fits(need: Needs, host: Needs) -> bool:
  """Whether a host that is empty could hold a node."""
  return all(host.get(name, 0.0) >= amount for name, amount in need.items())
