"""Runs one peer and returns what it measured.

  python tests/benchmarks/peers/run.py sb3 --algorithm ddpg --seconds 20

Peers: acme_dqn, acme_d4pg and acme_impala run in this interpreter's
environment; sb3, sbx, sample_factory, evotorch and rllib in .peers/NAME,
optional (`python requirements/environment.py NAME`); gala in that of sb3. Other
flags go to the peer's script. Exit code 2: the optional environment is not
there.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

import psutil

_HERE = pathlib.Path(__file__).resolve().parent
_ROOT = _HERE.parents[2]
sys.path[:0] = [str(_ROOT), str(_ROOT / 'requirements')]

import environment  # noqa: E402

# Imports, filling replay, compiling and stopping, on a busy machine.
_AROUND_S = 240.0
_TAIL = 20  # lines of output in a message


@dataclasses.dataclass(frozen=True)
class _Peer:
  """A script, and the environment it needs (None: ours)."""

  script: str
  environment: str | None = None


PEERS = {
  'acme_dqn': _Peer('acme_dqn.py'),
  'acme_d4pg': _Peer('acme_d4pg.py'),
  'acme_impala': _Peer('acme_impala.py'),
  'sb3': _Peer('sb3.py', 'sb3'),
  'gala': _Peer('gala_a2c.py', 'sb3'),
  'evotorch': _Peer('evotorch_es.py', 'evotorch'),
  'sbx': _Peer('sbx_ddpg.py', 'sbx'),
  'sample_factory': _Peer('sample_factory_appo.py', 'sample_factory'),
  'rllib': _Peer('rllib_agents.py', 'rllib'),
}


def measure(peer: str, **options: Any) -> dict[str, Any] | None:
  """Runs a peer in a process of its own.

  Args:
    peer: a key of PEERS.
    **options: flags of its script, such as seconds=20 or task='Hopper-v5'.

  Returns:
    What its line of JSON says (see `window.Window.result`); None, with a
    printed sentence, if its optional environment is not there, or if it says
    that it cannot run in ours.

  Raises:
    ValueError: no such peer.
    RuntimeError: it failed or took too long; with the end of its output.
  """
  if peer not in PEERS:
    raise ValueError(f'peer={peer!r} is none of {", ".join(PEERS)}.')
  found = PEERS[peer]
  python = sys.executable
  if found.environment is not None:
    place = environment.Environment(found.environment)
    if place.needed() != 'nothing':
      print(
        f'{peer} is left out. {place.directory} is not there, or not what '
        f'{place.pins} says: python requirements/environment.py '
        f'{found.environment} makes it.',
        flush=True,
      )
      return None
    python = place.bin
  flags = [f'--{name}={value}' for name, value in options.items()]
  limit_s = float(options.get('seconds', 20.0)) + _AROUND_S
  # A peer that is killed does not remove what it wrote.
  with tempfile.TemporaryDirectory(
    prefix='peer-', ignore_cleanup_errors=True
  ) as directory:
    printed = pathlib.Path(directory) / 'printed.txt'
    with printed.open('wb') as output:
      code = _run(
        [python, str(_HERE / found.script), *flags], output, limit_s, directory
      )
    lines = printed.read_text(errors='replace').splitlines()
  for line in reversed(lines):
    with contextlib.suppress(ValueError):
      result = json.loads(line)
      if isinstance(result, dict) and 'env_steps_per_s' in result:
        return result
  tail = '\n'.join(lines[-_TAIL:])
  if code == os.EX_UNAVAILABLE:  # it cannot run in this environment
    print(lines[-1], flush=True)
    return None
  how = (
    f'took more than {limit_s:g} s' if code is None else f'ended with {code}'
  )
  raise RuntimeError(
    f'{peer} {how} and gave no figures. Its last words:\n{tail}'
  )


def _run(
  command: list[str], output, limit_s: float, directory: str
) -> int | None:
  """Runs to the end; None if killed after `limit_s`, with all it started."""
  process = psutil.Popen(
    command,
    cwd=_ROOT,
    stdin=subprocess.DEVNULL,
    stdout=output,
    stderr=subprocess.STDOUT,
    env={
      **os.environ,
      'TF_CPP_MIN_LOG_LEVEL': '3',
      'CUDA_VISIBLE_DEVICES': '-1',
      'TMPDIR': directory,
    },
  )
  try:
    return process.wait(limit_s)
  except psutil.TimeoutExpired:
    return None
  finally:
    if process.poll() is None:
      for child in [*process.children(recursive=True), process]:
        with contextlib.suppress(psutil.NoSuchProcess):
          child.kill()
      process.wait()


def main() -> int:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('peer', choices=PEERS)
  args, rest = parser.parse_known_args()
  result = measure(args.peer, **_options(parser, rest))
  if result is None:
    return 2
  print(json.dumps(result, indent=2))
  return 0


def _options(
  parser: argparse.ArgumentParser, words: list[str]
) -> dict[str, str]:
  """--a=1 --b 2 as {'a': '1', 'b': '2'}."""
  split = [part for word in words for part in word.split('=', 1)]
  if len(split) % 2 or not all(name.startswith('--') for name in split[::2]):
    parser.error(f'{" ".join(words)} is not a list of --name value.')
  return {name[2:]: value for name, value in zip(split[::2], split[1::2])}


if __name__ == '__main__':
  sys.exit(main())
