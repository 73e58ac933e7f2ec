"""local_mp, from outside: scripts that launch toys.py and look for remains."""

import contextlib
import json
import os
import pathlib
import resource
import signal
import subprocess
import sys
import time

import psutil
import pytest

ROOT = pathlib.Path(__file__).parents[3]
TOYS = pathlib.Path(__file__).with_name('toys.py')


class Run:
  """A launcher in a process of its own."""

  def __init__(self, directory, name, processes_of, open_files=None):
    self._processes_of = processes_of
    self.directory = directory / 'run'
    self.temporary = directory / 'tmp'
    for path in (self.directory, self.temporary):
      path.mkdir()
    environment = {**os.environ, 'PYTHONPATH': str(ROOT)}
    environment['TMPDIR'] = str(self.temporary)
    self.process = subprocess.Popen(
      [sys.executable, str(TOYS), name, str(self.directory), 'local_mp'],
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
      env=environment,
      # Ctrl-C in a terminal goes to a whole process group.
      start_new_session=True,
      preexec_fn=open_files
      and (lambda: resource.setrlimit(resource.RLIMIT_NOFILE, open_files)),
    )

  def wait(self):
    """Returns exit code, reason, {node: [state, restarts, error]}."""
    out, err = self.process.communicate(timeout=200)
    last = out.splitlines()[-1] if out else ''
    assert last.startswith('['), (out, err)
    reason, nodes, self.seconds = json.loads(last)
    return self.process.returncode, reason, nodes

  def pid(self, name):
    """Waits for a node and returns its process id."""
    path = self.directory / f'{name}.pid'
    wait_until(path.exists)
    return int(path.read_text())

  def state(self):
    """Waits for the first state; returns [[node, pid, state], ...]."""
    path = self.directory / 'state.json'
    wait_until(path.exists)
    return json.loads(path.read_text())

  def notices(self):
    path = self.directory / 'notices'
    return path.read_text() if path.exists() else ''

  def log(self, name):
    return (self.directory / 'logs' / f'{name}-0.log').read_text()

  def remains(self):
    """Processes that the run left behind."""
    return self._processes_of(self.temporary)

  def close(self):
    for process in [self.process, *self.remains()]:
      with contextlib.suppress(psutil.Error):
        process.kill()
    self.process.communicate()


@pytest.fixture
def launch(tmp_path, processes_of):
  runs = []

  def start(name, **options):
    runs.append(Run(tmp_path, name, processes_of, **options))
    return runs[-1]

  yield start
  for run in runs:
    run.close()


def wait_until(condition, timeout_s=60.0):
  deadline = time.monotonic() + timeout_s
  while not condition():
    assert time.monotonic() < deadline, 'waited in vain'
    time.sleep(0.02)


def is_dead(pid):
  """Also true for a zombie: an orphan waits for its new parent to notice."""
  try:
    return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
  except psutil.NoSuchProcess:
    return True


def assert_nothing_is_left(run):
  wait_until(lambda: not run.remains())
  assert list(run.temporary.iterdir()) == []


def test_arrays_and_numpy_scalars_cross_between_processes(launch):
  run = launch('calls')
  assert run.wait()[:2] == (0, 'client/0 finished')
  assert_nothing_is_left(run)


def test_nodes_need_not_be_picklable(launch):
  run = launch('cannot_be_pickled')
  assert run.wait()[:2] == (0, 'all nodes finished')
  assert (run.directory / 'ran').exists()


def test_a_limit_of_open_files_that_can_be_raised_is_no_limit(launch):
  hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
  run = launch('waits', open_files=(30, hard))
  pid = run.pid('waiter')
  assert resource.prlimit(pid, resource.RLIMIT_NOFILE)[0] > 100
  os.kill(run.process.pid, signal.SIGINT)
  assert run.wait()[0] == 130


def test_a_node_that_raises_ends_the_run_with_its_traceback(launch):
  run = launch('raises')
  code, reason, nodes = run.wait()
  assert code == 1
  assert reason == 'raiser/0 failed: ValueError: the cat sat on the keyboard'
  state, _, error = nodes['raiser/0']
  assert state == 'failed'
  assert error.startswith('Traceback') and 'in run' in error
  assert nodes['waiter/0'][0] == 'stopped'
  assert 'the cat sat on the keyboard' in run.log('raiser')
  assert_nothing_is_left(run)


@pytest.mark.parametrize('name', ['crashes', 'crashes_behind_a_filter'])
def test_a_crash_in_native_code_names_the_signal_and_the_place(launch, name):
  code, reason, nodes = launch(name).wait()
  assert (code, reason) == (1, 'crasher/0 failed: killed by SIGSEGV')
  assert 'string_at' in nodes['crasher/0'][2]


def test_a_node_that_exits_with_a_code_has_failed(launch):
  assert launch('leaves').wait()[:2] == (1, 'leaver/0 failed: SystemExit: 3')


def test_a_node_that_exits_with_0_in_the_middle_has_failed(launch):
  code, reason, nodes = launch('leaves_with_0').wait()
  assert (code, reason) == (1, 'leaver/0 failed: SystemExit: 0')
  assert 'sys.exit(0)' in nodes['leaver/0'][2]  # and where


def test_a_node_that_ends_its_process_with_0_has_failed(launch):
  code, reason, _ = launch('leaves_at_once').wait()
  assert code == 1
  assert 'leaver/0 failed: it left with exit code 0' in reason
  assert 'os._exit(0)' in reason


@pytest.mark.parametrize(
  'number, why',
  [
    (signal.SIGKILL, 'killed by SIGKILL'),
    (40, 'killed by signal 40'),  # a real-time one: Python has no name for it
    (signal.SIGTERM, 'a SIGTERM that the launcher did not send'),
  ],
)
def test_a_killed_server_comes_back_on_its_port_and_the_run_goes_on(
  launch, number, why
):
  run = launch('server_killed')
  wait_until((run.directory / f'{run.pid("client")}.saw').exists)
  os.kill(run.pid('server'), number)
  code, reason, nodes = run.wait()
  assert (code, reason) == (0, 'client/0 finished')
  state, restarts, error = nodes['server/0']
  assert (state, restarts) == ('stopped', 1)
  assert why in error
  headers = [x for x in run.log('server').splitlines() if x.startswith('---')]
  assert len(headers) == 2 and headers[1].endswith('restart 1')


def test_what_a_killed_node_had_started_ends_with_it(launch):
  run = launch('breeds')

  def families():
    """The processes that each start of a node has started, by its pid."""
    found = {'killed': {}, 'spared': {}}
    for path in run.directory.glob('*.[0-9]*'):
      pids = [int(pid) for pid in path.read_text().split()]
      found[path.stem][int(path.suffix[1:])] = pids
    return found

  wait_until(lambda: all(families().values()))
  ((first, started),) = families()['killed'].items()
  (spared,) = families()['spared'].values()
  os.kill(first, signal.SIGKILL)
  wait_until(lambda: all(map(is_dead, started)))
  wait_until(lambda: len(families()['killed']) == 2)
  (second,) = [
    pids for pid, pids in families()['killed'].items() if pid != first
  ]
  assert not any(map(is_dead, spared + second))
  os.kill(run.process.pid, signal.SIGINT)
  assert run.wait()[0] == 130
  assert all(map(is_dead, spared + second))
  assert_nothing_is_left(run)


def test_a_killed_client_that_ends_the_run_is_restarted_too(launch):
  run = launch('server_killed')
  first = run.pid('client')
  os.kill(first, signal.SIGKILL)
  wait_until(lambda: run.pid('client') != first)
  wait_until((run.directory / f'{run.pid("client")}.saw').exists)
  os.kill(run.pid('server'), signal.SIGKILL)
  code, _, nodes = run.wait()
  assert code == 0
  assert nodes['client/0'][:2] == ['finished', 1]


def test_a_dead_node_is_noticed_soon(launch):
  run = launch('waits')
  pid = run.pid('waiter')
  os.kill(pid, signal.SIGKILL)
  start = time.monotonic()

  def noticed():
    return ['waiter/0', None, 'failed'] in run.state()

  wait_until(noticed)
  assert time.monotonic() - start < 20
  code, reason, _ = run.wait()
  assert code == 1
  assert reason.startswith('waiter/0 failed: killed by SIGKILL')
  assert_nothing_is_left(run)


def test_too_many_restarts_in_a_row_fail_for_good(launch):
  code, reason, nodes = launch('raises_again_and_again').wait()
  assert code == 1
  assert 'failed after 2 restarts in a row: ValueError' in reason
  assert nodes['raiser/0'][:2] == ['failed', 2]


def test_a_node_that_no_restart_helps_is_not_restarted(launch):
  code, reason, nodes = launch('is_hopeless').wait()
  assert code == 1
  assert 'the environment is wrong' in reason
  assert nodes['hopeless/0'][:2] == ['failed', 0]


def test_a_node_that_the_kernel_kills_for_memory_is_given_up(launch):
  code, reason, nodes = launch('eats_all_memory').wait()
  assert code == 1
  assert 'run out of memory' in reason
  assert nodes['glutton/0'][:2] == ['failed', 2]


def test_a_node_that_ends_the_run_ends_it_with_0(launch):
  code, reason, nodes = launch('ends').wait()
  assert (code, reason) == (0, 'returner/0 finished')
  assert nodes['waiter/0'][0] == 'stopped'


@pytest.mark.parametrize('name', ['stops', 'stops_in_a_thread'])
def test_lp_stop_in_a_node_ends_the_run_with_0(launch, name):
  run = launch(name)
  code, reason, _ = run.wait()
  assert code == 0 and 'lp.stop()' in reason
  assert_nothing_is_left(run)


def test_one_launcher_can_run_two_programs(launch):
  run = launch('twice')
  assert run.wait()[:2] == (0, 'client/0 finished')
  assert_nothing_is_left(run)


def test_ctrl_c_is_130_and_leaves_nothing(launch):
  run = launch('waits')
  for name in ('waiter', 'server', 'child', 'stray'):
    run.pid(name)
  os.killpg(run.process.pid, signal.SIGINT)
  code, reason, nodes = run.wait()
  assert (code, reason) == (130, 'interrupted')
  assert {state for state, _, _ in nodes.values()} == {'stopped'}
  assert_nothing_is_left(run)


def test_sigterm_is_143_and_leaves_nothing(launch):
  run = launch('waits')
  for name in ('waiter', 'server', 'child', 'stray'):
    run.pid(name)
  os.kill(run.process.pid, signal.SIGTERM)
  code, reason, nodes = run.wait()
  assert (code, reason) == (143, 'terminated (SIGTERM)')
  assert {state for state, _, _ in nodes.values()} == {'stopped'}
  assert_nothing_is_left(run)


@pytest.mark.parametrize(
  'numbers', [(signal.SIGTERM,), (signal.SIGTERM, signal.SIGHUP)]
)
def test_a_sigterm_to_the_whole_job_lets_the_nodes_save(launch, numbers):
  # As service managers and batch systems stop a job.
  run = launch('saves')
  wait_until((run.directory / 'ready').exists)
  launcher = psutil.Process(run.process.pid)
  family = [*launcher.children(recursive=True), launcher]
  for number in numbers:
    for process in family:
      with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(number)
  code, reason, nodes = run.wait()
  assert (code, reason) == (143, 'terminated (SIGTERM)')
  assert nodes['saver/0'][0] == 'stopped'
  assert (run.directory / 'saved').exists()
  assert_nothing_is_left(run)


def test_one_ctrl_c_while_a_run_ends_by_itself_kills_nobody(launch):
  run = launch('ends_and_saves')
  wait_until((run.directory / 'ready').exists)
  (run.directory / 'enough').touch()
  wait_until((run.directory / 'stopping').exists)
  os.kill(run.process.pid, signal.SIGINT)
  assert run.wait()[:2] == (0, 'beater/0 finished')
  assert (run.directory / 'saved').exists()


def test_a_second_ctrl_c_kills_at_once(launch):
  run = launch('stubborn_for_long')
  run.pid('stubborn')
  os.kill(run.process.pid, signal.SIGINT)
  # Two signals that are not taken yet are one.
  wait_until((run.directory / 'stopping').exists)
  os.kill(run.process.pid, signal.SIGINT)
  start = time.monotonic()
  code, _, nodes = run.wait()
  assert time.monotonic() - start < 60  # it is killed after 120 s anyhow
  assert code == 130
  assert 'second Ctrl-C' in nodes['stubborn/0'][2]
  assert_nothing_is_left(run)


@pytest.mark.long
def test_a_node_that_does_not_stop_is_killed_within_10_s(launch):
  run = launch('stubborn')
  run.pid('stubborn')
  (run.directory / 'enough').touch()
  code, _, nodes = run.wait()
  assert code == 0
  assert 8 < run.seconds < 60
  state, _, error = nodes['stubborn/0']
  assert state == 'stopped'
  assert 'did not stop within 8 s' in error
  assert 'stuck_in_here' in error and 'zygote.py' not in error
  assert_nothing_is_left(run)


@pytest.mark.parametrize('stopped', [False, True])
def test_when_the_launcher_is_killed_everything_dies(launch, stopped):
  run = launch('waits')
  for name in ('waiter', 'server', 'child', 'stray'):
    run.pid(name)
  if stopped:
    psutil.Process(run.pid('waiter')).parent().suspend()
  run.process.kill()
  assert_nothing_is_left(run)


def test_when_the_zygote_is_killed_the_run_ends_with_1(launch):
  run = launch('waits')
  waiter = psutil.Process(run.pid('waiter'))
  run.pid('child')
  stray = psutil.Process(run.pid('stray'))
  waiter.parent().kill()
  code, reason, nodes = run.wait()
  assert code == 1 and 'killed' in reason and '--resume' in reason
  assert {state for state, _, _ in nodes.values()} == {'failed'}
  wait_until(lambda: is_dead(run.pid('child')))
  wait_until(lambda: is_dead(stray.pid))
  assert_nothing_is_left(run)


@pytest.mark.long
def test_a_run_whose_zygote_is_stopped_can_be_ended(launch):
  run = launch('waits')
  for name in ('waiter', 'server', 'child', 'stray'):
    run.pid(name)
  psutil.Process(run.pid('waiter')).parent().suspend()
  os.kill(run.process.pid, signal.SIGINT)
  code, reason, _ = run.wait()
  assert code == 130 and reason.startswith('interrupted')
  assert_nothing_is_left(run)


def test_nodes_have_names_in_logs_and_in_ps_and_random_numbers_of_their_own(
  launch,
):
  run = launch('waits')
  drawn = []
  for name in ('waiter', 'parent', 'server'):
    run.pid(name)
    drawn += (run.directory / f'{name}.drawn').read_text().split()
  assert len(set(drawn)) == 6, drawn
  pid = run.pid('waiter')
  assert run.log('waiter').startswith(f'--- waiter/0, pid {pid}, ')
  assert psutil.Process(pid).cmdline()[0] == 'murmuration: waiter/0'


def test_servers_listen_on_sockets_alone_which_go_with_the_run(launch):
  run = launch('waits')
  server = psutil.Process(run.pid('server'))

  def sockets():
    connections = server.net_connections('unix')
    return [c.laddr for c in connections if c.laddr.endswith('server%2F0')]

  wait_until(sockets)
  # A long path is bound by way of an open directory, and shown so.
  (scratch,) = run.temporary.iterdir()
  (path,) = scratch.rglob(pathlib.Path(sockets()[0]).name)
  assert path.parent.stat().st_mode & 0o777 == 0o700
  assert not server.net_connections('tcp')
  os.kill(run.process.pid, signal.SIGINT)
  run.wait()
  assert not path.parent.exists()


@pytest.mark.long
def test_a_killed_reverb_server_comes_back_and_tensorflow_runs_in_nodes(launch):
  run = launch('replay_killed')
  wait_until((run.directory / 'sampled').exists, 120.0)
  (pid,) = [pid for node, pid, _ in run.state() if node == 'replay/0']
  os.kill(pid, signal.SIGKILL)
  code, _, nodes = run.wait()
  assert code == 0, nodes
  assert nodes['replay/0'][:2] == ['stopped', 1]
  assert_nothing_is_left(run)
