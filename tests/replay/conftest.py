"""A Reverb server that goes away with the test, and the inspector's command."""

import collections
import threading
import time

import pytest
import reverb

from murmuration.launch.rpc import directory
from murmuration.replay.inspect import command

_STOPPED: collections.deque = collections.deque(maxlen=8)
_stop = reverb.Server.stop


def _stop_and_keep(server):
  """Stops it, and keeps it while its threads may still run.

  One that is deleted at once can hang with the GIL held: see `stop` in
  replay/checkpoints.py, which waits as long as a run can.
  """
  _stop(server)
  _STOPPED.append(server._server)


reverb.Server.stop = _stop_and_keep


@pytest.fixture
def serve(tmp_path):
  """serve(*tables) starts a server; all are stopped at the end of the test."""
  servers = []

  def start(*tables, port=None):
    # Reverb's own choice of a directory would stay behind.
    checkpointer = reverb.checkpointers.DefaultCheckpointer(
      path=str(tmp_path / f'checkpoints{len(servers)}')
    )
    # A server that comes back on its port: no connection can have taken it.
    port = port or directory.pick_port(set())
    servers.append(reverb.Server(list(tables), port, checkpointer))
    return servers[-1]

  yield start
  for server in servers:
    server.stop()


@pytest.fixture
def once_said(caplog):
  """once_said(words, function, *args) calls it when these words are logged."""
  threads = []

  def start(words, function, *args):
    def run():
      deadline = time.monotonic() + 60
      while words not in caplog.text and time.monotonic() < deadline:
        time.sleep(0.02)
      function(*args)

    threads.append(threading.Thread(target=run))
    threads[-1].start()

  yield start
  for thread in threads:
    thread.join()


@pytest.fixture
def ask(capsys):
  """ask(*arguments) gives the inspector's exit code and what it printed."""

  def run(*arguments):
    code = command.main([str(a) for a in arguments])
    out, err = capsys.readouterr()
    return code, ' '.join(out.split()), err

  return run
