"""A Reverb server that goes away with the test, and the inspector's command."""

import pytest
import reverb

from replay.inspect import command


@pytest.fixture
def serve(tmp_path):
  """serve(*tables) starts a server; all are stopped at the end of the test."""
  servers = []

  def start(*tables, port=None):
    # Reverb's own choice of a directory would stay behind.
    checkpointer = reverb.checkpointers.DefaultCheckpointer(
      path=str(tmp_path / f'checkpoints{len(servers)}')
    )
    servers.append(reverb.Server(list(tables), port, checkpointer))
    return servers[-1]

  yield start
  for server in servers:
    server.stop()


@pytest.fixture
def ask(capsys):
  """ask(*arguments) gives the inspector's exit code and what it printed."""

  def run(*arguments):
    code = command.main([str(a) for a in arguments])
    out, err = capsys.readouterr()
    return code, ' '.join(out.split()), err

  return run
