"""Whole programs on Ray: one Ray of the tests' own, at a loopback address."""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import psutil
import pytest

from launch.engines.cluster import addresses
from launch.rpc import directory

RAY = pathlib.Path(sys.executable).with_name('ray')
SMALL = (
  '--lp_launch_type=ray',
  '--config.agent.hidden_sizes=(16,)',
  '--config.agent.min_replay_size=50',
  '--config.run.eval_episodes=2',
  '--config.run.target_return=None',
  '--config.run.replay=node',
  '--config.actors.shards=2',
  '--config.actors.num_actors=2',
)


class Cluster:
  """A Ray of one host, and what runs on it."""

  def __init__(self):
    # Short: Ray has sockets in it.
    self.files = pathlib.Path(tempfile.mkdtemp(prefix='m-', dir='/tmp'))
    # Another Ray of this machine may have the ports that it takes by itself.
    taken = {*addresses.RAYS_PORTS}
    port, for_clients = (directory.pick_port(taken) for _ in range(2))
    self.address = f'127.0.0.1:{port}'
    # Nobody else on this machine may give it work.
    self.environment = {
      'RAY_AUTH_MODE': 'token',
      'RAY_AUTH_TOKEN': os.urandom(32).hex(),
    }
    log = self.files / 'output.txt'
    self.process = subprocess.Popen(
      [
        *(str(RAY), 'start', '--head', '--block', '--num-cpus=8'),
        '--node-ip-address=127.0.0.1',
        f'--port={port}',
        f'--ray-client-server-port={for_clients}',
        '--dashboard-agent-listen-port=0',
        f'--temp-dir={self.files}/ray',
        f'--object-store-memory={80 << 20}',
        *('--include-dashboard=false', '--disable-usage-stats'),
      ],
      env={**os.environ, **self.environment, 'TMPDIR': str(self.files)},
      stdin=subprocess.DEVNULL,
      stdout=log.open('w'),
      stderr=subprocess.STDOUT,
      start_new_session=True,
    )
    deadline = time.monotonic() + 120
    try:
      while 'Ray runtime started' not in log.read_text():
        assert self.process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)
    except BaseException:  # nobody else closes it
      self.close()
      raise

  def nodes(self):
    """Processes of programs, with those that they are forked from."""
    found = []
    for process in psutil.process_iter():
      with contextlib.suppress(psutil.Error):
        place = process.environ().get('TMPDIR', '')
        words = ' '.join(process.cmdline())
        if place.startswith(str(self.files)) and 'murmuration: ' in words:
          found.append(process)
    return found

  def scratch(self):
    return list(self.files.glob('murmuration-*'))

  def close(self):
    family = []
    with contextlib.suppress(psutil.Error):  # it may have ended by itself
      family = psutil.Process(self.process.pid).children(recursive=True)
    for process in [*family, *self.nodes(), self.process]:
      with contextlib.suppress(psutil.Error):
        process.kill()
    self.process.wait()
    shutil.rmtree(self.files, ignore_errors=True)


@pytest.fixture(scope='module')
def cluster():
  made = Cluster()
  yield made
  made.close()


@pytest.fixture(scope='module')
def start_run_there(cluster, tmp_path_factory, forker):
  """Starts a command on that Ray."""
  from tests import commands

  runs = []

  def start(*flags):
    runs.append(
      commands.Run(
        tmp_path_factory.mktemp('command'),
        *flags,
        f'--ray_address={cluster.address}',
        environment=cluster.environment,
        forker=forker,
      )
    )
    return runs[-1]

  yield start
  for run in runs:
    run.close()


@pytest.mark.long
def test_apex_ends_well_though_an_actor_is_killed(start_run_there, cluster):
  run = start_run_there(
    'apex_dqn', *SMALL, '--config.run.steps_per_agent=3_000'
  )
  run.wait_until(lambda: run.pids('actor/1'), 'actor')
  run.kill('actor/1')
  assert run.wait() == 0, run.output
  summary = json.loads((run.directory / 'summary.json').read_text())
  assert summary['totals']['learner_steps'] > 0
  assert 'restart 1' in run.log('actor/1')
  # The launcher waits for the agents of all hosts.
  assert cluster.nodes() == [] and cluster.scratch() == []
  assert not list(run.directory.glob('.seen*'))


@pytest.mark.long
def test_a_launcher_that_is_killed_leaves_nothing(start_run_there, cluster):
  run = start_run_there(
    'apex_dqn', *SMALL, '--config.run.steps_per_agent=10_000_000'
  )
  run.wait_until(lambda: run.pids('learner/0'), 'learner')
  assert cluster.nodes()
  os.kill(run.process.pid, signal.SIGKILL)
  deadline = time.monotonic() + 60
  while cluster.nodes() or cluster.scratch():
    assert time.monotonic() < deadline, (cluster.nodes(), cluster.scratch())
    time.sleep(0.1)


@pytest.mark.long
def test_what_no_host_can_hold_is_refused_with_the_arithmetic(start_run_there):
  run = start_run_there('apex_dqn', *SMALL, '--cluster=learner:cpus=64')
  assert run.wait() == 2
  assert (
    'error: learner/0 asks for 64 CPU, and the largest of 1 host has 8'
    in run.output
  )
