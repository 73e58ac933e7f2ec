"""Whole programs on Ray: one Ray of the tests' own, at a loopback address."""

import contextlib
import json
import os
import pathlib
import re
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

ROOT = pathlib.Path(__file__).parents[3]
# The command `ray`, with as long to start as a Ray of the launcher's own has.
RAY = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from launch.engines.cluster import join
from ray.scripts import scripts
with join.longer_start():
  scripts.main()
"""
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
        *(
          sys.executable,
          '-c',
          RAY,
          'start',
          '--block',
          '--num-cpus=8',
          *flags,
        ),
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
def test_what_no_host_can_hold_is_refused_with_the_arithmetic(
  start_run_there, cluster
):
  # Also without a flag, as in a job that was submitted to the cluster.
  for environment in ({}, {'RAY_ADDRESS': cluster.address}):
    run = start_run_there(
      'apex_dqn', *SMALL, '--cluster=learner:cpus=64', **environment
    )
    assert run.wait() == 2
    assert (
      'error: learner/0 asks for 64 CPU, and the largest of 1 host has 8'
      in run.output
    )


@pytest.mark.long
def test_another_token_than_the_clusters_is_refused_with_what_to_set(
  start_run_there,
):
  run = start_run_there('apex_dqn', *SMALL, RAY_AUTH_TOKEN='ab' * 32)
  assert run.wait() == 2
  assert 'wants a token, and this process has none or another' in run.output
  assert 'RAY_AUTH_TOKEN' in run.output and 'Traceback' not in run.output
  assert not run.directory.exists()


@pytest.mark.parametrize(
  'number, code', [(signal.SIGINT, 130), (signal.SIGTERM, 143)]
)
@pytest.mark.long
def test_a_signal_while_a_ray_of_its_own_starts_ends_the_command(
  start_run, number, code
):
  run = start_run('dqn:cartpole', '--lp_launch_type=ray')
  run.wait_until(lambda: 'a local Ray is started' in run.output, 'Ray')
  os.killpg(run.process.pid, number)  # as a terminal, or a batch system
  assert run.wait() == code, run.output
  assert 'Traceback' not in run.output
  assert not (run.directory / 'launcher.json').exists()


@pytest.mark.long
def test_a_run_whose_control_store_is_killed_stops_and_says_so(start_run):
  run = start_run('apex_dqn', *SMALL, '--config.run.steps_per_agent=10_000_000')

  def learns():
    path = run.directory / 'metrics' / 'node_learner.jsonl'
    return path.exists() and path.read_text().strip()

  run.wait_until(learns, 'update')
  family = psutil.Process(run.process.pid).children(recursive=True)
  (store,) = [one for one in family if one.name() == 'gcs_server']
  (files,) = {
    re.match('/tmp/murmuration-ray-[^/]+', word.partition('=')[2])[0]
    for word in store.cmdline()
    if '=/tmp/murmuration-ray-' in word
  }
  store.kill()
  assert run.wait() == 1, run.output
  assert 'control store (gcs_server at 127.0.0.1:' in run.output
  assert run.output.count('is away since') == 1
  assert 'Traceback' not in run.output
  summary = json.loads((run.directory / 'summary.json').read_text())
  assert summary['outcome'] == 'failed' and not summary['finished']
  reason = summary['reason']
  assert reason.startswith('Ray lost its control store (gcs_server at ')
  # On a busy machine it goes on with the nodes that are still there.
  assert f'Start the run again with --resume={run.directory}' in reason
  assert reason in run.output
  # Nodes were asked to stop, and saved: the counter wrote what it counted.
  assert summary['totals']['learner_steps'] > 0
  run.assert_nothing_is_left()
  # Some of Ray's processes hide their TMPDIR.
  _, left = psutil.wait_procs(family, timeout=60)
  assert left == []
  assert not pathlib.Path(files).exists()
  assert not list(run.directory.glob('.seen*'))


@pytest.mark.long
def test_a_run_whose_raylet_is_killed_says_so(start_run):
  run = start_run(
    'apex_dqn',
    *SMALL,
    '--config.run.steps_per_agent=10_000_000',
    # By this number Ray would take its raylet for dead, and this process along.
    environment={'RAY_RAYLET_PID': str(1 << 30)},
  )
  run.wait_until(lambda: run.pids('learner/0'), 'learner')
  family = psutil.Process(run.process.pid).children(recursive=True)
  (raylet,) = [one for one in family if one.name() == 'raylet']
  raylet.kill()
  assert run.wait() == 1, run.output
  assert 'Traceback' not in run.output
  summary = json.loads((run.directory / 'summary.json').read_text())
  assert summary['outcome'] == 'failed'
  assert 'servers of the run are is gone' in summary['reason']
  assert not (run.directory / 'launcher.json').exists()
  run.assert_nothing_is_left()
  _, left = psutil.wait_procs(family, timeout=60)
  assert left == []


# Last: its host joins the cluster for good.
@pytest.mark.long
def test_a_host_with_other_packages_gets_no_node_and_ends_no_run(
  start_run_there, cluster, tmp_path
):
  (tmp_path / 'numpy-0.0.dist-info').mkdir()
  (tmp_path / 'numpy-0.0.dist-info' / 'METADATA').write_text(
    'Metadata-Version: 2.1\nName: numpy\nVersion: 0.0\n'
  )
  cluster.start(f'--address={cluster.address}', PYTHONPATH=str(tmp_path))
  run = start_run_there(
    'apex_dqn', *SMALL, '--config.run.steps_per_agent=3_000'
  )
  assert run.wait() == 0, run.output
  assert 'ray: 2 hosts, 16 CPUs' in run.output
  sentence = 'cannot run nodes: it has another version of the project'
  assert run.output.count(sentence) == 1, run.output
  assert 'numpy 0.0' in run.output
  summary = json.loads((run.directory / 'summary.json').read_text())
  assert summary['totals']['learner_steps'] > 0
