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

from murmuration.launch.engines.cluster import tunnel
from murmuration.launch.rpc import directory

ROOT = pathlib.Path(__file__).parents[3]
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
    taken = {*tunnel.RAYS_PORTS}
    port, for_clients = (directory.pick_port(taken) for _ in range(2))
    self.address = f'127.0.0.1:{port}'
    # Nobody else on this machine may give it work.
    self.environment = {
      'RAY_AUTH_MODE': 'token',
      'RAY_AUTH_TOKEN': os.urandom(32).hex(),
    }
    # Found first by all that this Ray starts.
    self.modules = self.files / 'modules'
    self.modules.mkdir()
    self.processes = []
    try:
      self.start(
        '--head',
        f'--port={port}',
        f'--ray-client-server-port={for_clients}',
        f'--temp-dir={self.files}/ray',
        '--include-dashboard=false',
      )
    except BaseException:  # nobody else closes it
      self.close()
      raise

  def start(self, *flags, **environment):
    """Starts a host; returns when Ray runs there."""
    log = self.files / f'output{len(self.processes)}.txt'
    process = subprocess.Popen(
      [
        str(pathlib.Path(sys.executable).with_name('ray')),
        *('start', '--block', '--num-cpus=8'),
        *flags,
        '--node-ip-address=127.0.0.1',
        '--dashboard-agent-listen-port=0',
        # Else each Ray counts up from 10,002, whoever has that port.
        *('--min-worker-port=0', '--max-worker-port=0'),
        f'--object-store-memory={80 << 20}',
        '--disable-usage-stats',
      ],
      env={
        **os.environ,
        **self.environment,
        'TMPDIR': str(self.files),
        'SAYS': str(self.files / 'says'),
        'PYTHONPATH': str(self.modules),
        **environment,
      },
      stdin=subprocess.DEVNULL,
      stdout=log.open('w'),
      stderr=subprocess.STDOUT,
      start_new_session=True,
    )
    self.processes.append(process)
    deadline = time.monotonic() + 120
    while 'Ray runtime started' not in log.read_text():
      assert process.poll() is None, log.read_text()
      assert time.monotonic() < deadline, log.read_text()
      time.sleep(0.1)

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
    for process in self.processes:
      with contextlib.suppress(psutil.Error):  # it may have ended by itself
        family += psutil.Process(process.pid).children(recursive=True)
    for process in [*family, *self.nodes(), *self.processes]:
      with contextlib.suppress(psutil.Error):
        process.kill()
    for process in self.processes:
      process.wait()
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

  def start(*flags, **environment):
    # An address of RAY_ADDRESS needs no flag.
    if 'RAY_ADDRESS' not in environment:
      flags += (f'--ray_address={cluster.address}',)
    runs.append(
      commands.Run(
        tmp_path_factory.mktemp('command'),
        *flags,
        environment={**cluster.environment, **environment},
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


# What a user's own environment says of itself, and where that goes.
TASK = """
import os, pathlib
import gymnasium

def make():
  says = pathlib.Path(os.environ.get('SAYS', os.devnull))
  with says.open('a') as file:
    file.write('{0} ')
  return gymnasium.make('CartPole-v1')
"""


@pytest.mark.long
def test_hosts_run_the_modules_that_the_launcher_has(
  cluster, start_run_there, tmp_path
):
  # The host has others of that name, where its own Python finds them first.
  (cluster.modules / 'my_task.py').write_text(TASK.format('other'))
  (tmp_path / 'my_task.py').write_text(TASK.format('mine'))
  run = start_run_there(
    'dqn',
    *SMALL[:5],
    '--config.environment=my_task:make',
    '--config.run.steps_per_agent=300',
    PYTHONPATH=f'{tmp_path}:{ROOT}',
  )
  assert run.wait() == 0, run.output
  # The launcher made it too, without this variable.
  assert {*(cluster.files / 'says').read_text().split()} == {'mine'}


@pytest.mark.long
def test_what_ray_refuses_is_said_in_a_line(start_run_there):
  run = start_run_there('apex_dqn', *SMALL, '--cluster=learner:cpus=64')
  assert run.wait() == 2, run.output
  assert 'learner/0' in run.output and 'CPU=64' in run.output
  run = start_run_there('apex_dqn', *SMALL, RAY_AUTH_TOKEN='ab' * 32)
  assert run.wait() == 2, run.output
  assert 'token' in run.output.lower() and not run.directory.exists()


@pytest.mark.parametrize(
  'number, code', [(signal.SIGINT, 130), (signal.SIGTERM, 143)]
)
@pytest.mark.long
def test_a_signal_while_a_ray_of_its_own_starts_ends_the_command(
  start_run, number, code
):
  run = start_run('dqn:cartpole', '--lp_launch_type=ray')
  run.wait_until(lambda: 'starts a local Ray' in run.output, 'Ray')
  os.killpg(run.process.pid, number)  # as a terminal, or a batch system
  assert run.wait() == code, run.output
  assert 'Traceback' not in run.output
  assert not (run.directory / 'launcher.json').exists()


@pytest.mark.long
def test_a_run_whose_raylet_is_killed_ends(start_run):
  run = start_run('apex_dqn', *SMALL, '--config.run.steps_per_agent=10_000_000')
  run.wait_until(lambda: run.pids('learner/0'), 'learner')
  family = psutil.Process(run.process.pid).children(recursive=True)
  (raylet,) = [one for one in family if one.name() == 'raylet']
  raylet.kill()
  assert run.wait() == 1, run.output
  assert '--resume' in run.output and 'Traceback' not in run.output
  assert not (run.directory / 'launcher.json').exists()
  run.assert_nothing_is_left()
  _, left = psutil.wait_procs(family, timeout=60)
  assert left == []
