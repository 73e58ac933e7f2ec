"""Servers of this machine are asked without a proxy of the shell."""

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Nothing listens at the proxy's port.
PROXY = {
  'https_proxy': 'http://127.0.0.1:9',
  'http_proxy': 'http://127.0.0.1:9',
}
ASKS = """
import os
import murmuration.replay
import reverb
checkpointer = reverb.checkpointers.DefaultCheckpointer(os.environ['KEEPS'])
server = reverb.Server([reverb.Table.queue('queue', 2)], None, checkpointer)
print(*reverb.Client(f'localhost:{server.port}').server_info(timeout=60))
"""
SAYS = 'import os, murmuration.replay; print(os.environ.get("no_grpc_proxy"))'


def run(code, **environ):
  others = {k: v for k, v in os.environ.items() if 'proxy' not in k.lower()}
  done = subprocess.run(
    [sys.executable, '-c', code],
    cwd=ROOT,
    env={**others, **environ},
    capture_output=True,
    text=True,
    timeout=200,
  )
  assert done.returncode == 0, done.stderr
  return done.stdout.strip()


def test_reverb_of_this_machine_is_not_asked_through_a_proxy(tmp_path):
  assert run(ASKS, **PROXY, KEEPS=str(tmp_path)) == 'queue'


@pytest.mark.parametrize(
  ('before', 'after'),
  [
    ({}, 'localhost,127.0.0.1'),
    ({'no_proxy': 'a.b'}, 'a.b,localhost,127.0.0.1'),
    ({'no_proxy': 'a.b', 'no_grpc_proxy': 'c'}, 'c,localhost,127.0.0.1'),
    # Of a process whose parent has seen to it.
    ({'no_grpc_proxy': 'c,localhost,127.0.0.1'}, 'c,localhost,127.0.0.1'),
  ],
)
def test_what_the_shell_excepts_stays_excepted(before, after):
  assert run(SAYS, **before) == after
