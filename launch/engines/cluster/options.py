"""What a run on Ray is told: which Ray, and what nodes ask of their hosts.

    --cluster=learner:cpus=4,gpus=1 --cluster=actor:cpus=0.5,highmem=1

`cpus`, `gpus` and `memory` (bytes) are Ray's own; other names are resources
that `ray start --resources` gave a host. A node asks for one CPU unless
something else is said. These numbers place nodes; they do not limit them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import importlib.util
import math
import os
import socket
from typing import Any

import launchpad as lp

AUTO = 'auto'  # the cluster of this host, as Ray finds it
_LOCAL = 'local'
_PORT = 6379  # Ray's default
_CONNECT_S = 5.0
_NAMES = {'cpus': 'CPU', 'gpus': 'GPU', 'memory': 'memory'}
_DEFAULT = {'CPU': 1.0}

Needs = Mapping[str, float]


class Refused(ValueError):
  """The program cannot run on this Ray, with the reason."""


@dataclasses.dataclass(frozen=True)
class Options:
  """How to run on Ray.

  Attributes:
    address: of a cluster, 'HOST:PORT' or 'auto' (of this host); 'local' starts
      a Ray on this machine for this run. The default, '', is what RAY_ADDRESS
      says, or else 'local'. Here a local one is ''.
    resources: what nodes ask for, as `--cluster`.
    plain_replay: whether Reverb goes from host to host unencrypted, without
      the tunnel; its clients then do not find a server that moved.
  """

  address: str = ''
  resources: Sequence[str] = ()
  plain_replay: bool = False

  def __post_init__(self):
    address = self.address
    if address in ('', AUTO):
      # A job that was submitted to a cluster has it, and belongs there.
      address = os.environ.get('RAY_ADDRESS', '') or address
    if address == _LOCAL:
      address = ''
    elif address and address != AUTO and ':' not in address:
      address = f'{address}:{_PORT}'
    object.__setattr__(self, 'address', address)
    _parse(self.resources)


def check() -> None:
  """Refuses where there is no Ray."""
  if importlib.util.find_spec('ray') is None:
    raise Refused(
      '--lp_launch_type=ray needs Ray, which this Python does not have: `make '
      'environment` installs it, or pip install ray.'
    )


def check_program(program: lp.Program, options: Options) -> list[Needs]:
  """Returns what each node asks for; Refused if that or Ray is wrong."""
  check()
  _listens(options.address)
  said = _parse(options.resources)
  for label in said:
    if label not in program.groups:
      raise Refused(
        f'--cluster={label}:...: this program has no group {label!r}; it has '
        f'{", ".join(program.groups)}.'
      )
  return [
    {**_DEFAULT, **said.get(label, {})}
    for label, nodes in program.groups.items()
    for _ in nodes
  ]


def asked(need: Needs) -> dict[str, Any]:
  """The same, as Ray's actors take it."""
  rest = {k: v for k, v in need.items() if v}
  cpus, gpus = rest.pop('CPU', 0.0), rest.pop('GPU', 0.0)
  memory = rest.pop('memory', None)
  return {
    'num_cpus': cpus,
    'num_gpus': gpus,
    'memory': memory,
    'resources': rest,
  }


def words(need: Needs) -> str:
  """'CPU=2, GPU=1'"""
  return ', '.join(f'{k}={v:g}' for k, v in need.items() if v) or 'a host'


def _listens(address: str) -> None:
  """Refuses an address at which nobody listens."""
  if address in ('', AUTO):
    return
  host, _, port = address.rpartition(':')
  try:
    # Ray itself would try for minutes, deaf to Ctrl-C.
    place = host.strip('[]'), int(port)
    socket.create_connection(place, _CONNECT_S).close()
  except (OSError, ValueError) as e:
    raise Refused(
      f'No Ray at {address} ({e}): --ray_address is HOST:PORT of `ray start '
      '--head`, auto for the one of this host, or local.'
    ) from e


def _parse(texts: Iterable[str]) -> dict[str, dict[str, float]]:
  """What flags GROUP:NAME=NUMBER,... say: group -> resource -> amount."""
  found: dict[str, dict[str, float]] = {}
  for text in texts:
    group, _, rest = text.partition(':')
    for part in rest.split(','):
      name, _, value = part.partition('=')
      try:
        amount = float(value)
      except ValueError:
        amount = math.nan
      if not group or not name or not 0 <= amount < math.inf:
        raise Refused(
          f'--cluster={text}: write GROUP:NAME=NUMBER,NAME=NUMBER, for '
          'instance learner:cpus=4,gpus=1.'
        )
      found.setdefault(group, {})[_NAMES.get(name, name)] = amount
  return found
