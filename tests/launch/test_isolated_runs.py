"""Whole programs in a network of their own, seen from the machine outside."""

import contextlib
import errno
import json
import pathlib
import re
import socket
import stat
import subprocess
import sys

import pytest

from murmuration.launch import command_line
from murmuration.launch import session
from murmuration.replay import isolation
from tests import strangers

ROOT = pathlib.Path(__file__).resolve().parents[2]
ENDLESS = ('--config.run.steps_per_agent=10_000_000',)
# At leisure: it is looked at, whatever it comes to.
SLOW = {
  'modules': ROOT / 'tests' / 'launch',
  'environment': {'FAULTY_RELEASE': '/never'},
}
PLAIN = (
  *ENDLESS,
  '--config.environment=faulty_environments:Slow-v0',
  '--config.agent.hidden_sizes=(16,)',
  '--config.run.eval_episodes=2',
  '--config.run.target_return=None',
)
SMALL = (*PLAIN, '--config.agent.min_replay_size=50')
# Those with a Reverb server, which is a port.
JOBS = {
  'swarm': (
    'pso_dqn',
    *SMALL,
    '--config.swarm.num_explorers=2',
    '--config.run.replay=node',
  ),
  'actor_learner': (
    'apex_dqn',
    *SMALL,
    '--config.actors.num_actors=1',
    '--config.run.replay=node',
  ),
  'parameter_server': (
    'gorila_dqn',
    *SMALL,
    '--config.server.num_learners=2',
    '--config.server.num_shards=1',
    '--config.run.replay=colocated',
  ),
  'single_process': ('dqn', *SMALL, '--config.run.replay=colocated'),
}
WITHOUT = {
  'gossip': ('gala_a2c', *PLAIN, '--config.gossip.num_learners=2'),
  'evolution': (
    'es_mlp',
    *PLAIN,
    '--config.evolution.num_workers=1',
    '--config.evolution.population=4',
    '--config.evolution.table_size=100000',
  ),
}

# The command.


@pytest.fixture
def refused(monkeypatch):
  """A system that has no namespaces for us."""

  def unshare(kinds):
    raise OSError(errno.EPERM, 'unshare')

  monkeypatch.setattr(isolation, '_unshare', unshare)
  monkeypatch.setattr(isolation, '_entered', False)


@pytest.fixture
def command(monkeypatch, capsys):
  """command(*flags): what a command says; a run ends where it would begin."""

  def create(*unused, **unused_too):
    raise ValueError('it begins')

  monkeypatch.setattr(session.run_directory, 'create', create)
  # Other tests of this process may have used TensorFlow.
  monkeypatch.setattr(session.engines, 'check', lambda *unused: None)

  def say(*flags):
    assert command_line.main(['pso_dqn:cartpole', *flags]) == 2
    return capsys.readouterr().err

  return say


def test_the_command_goes_on_or_ends_as_it_was_asked_to(refused, command):
  said = command()
  assert said.startswith('note: no private network (')
  assert said.endswith('error: it begins\n')
  assert command('--isolate=off') == 'error: it begins\n'
  (said,) = command('--isolate=required').splitlines()
  assert said.startswith('error: --isolate=required: no private network')
  assert "Did you mean 'off'?" in command('--isolate=of')


def test_a_preset_can_say_that_it_needs_the_network(refused, command):
  needs = '--config.run.needs_network=True'
  assert command(needs) == 'error: it begins\n'
  assert 'run.needs_network says' in command(needs, '--isolate=required')


# Whole programs.


class Seen:
  """A run that learns, and what of it can be seen from outside."""

  def __init__(self, run):
    self.run = run
    counter = run.directory / 'metrics' / 'counter.json'
    run.wait_until(
      lambda: (
        counter.exists()
        and json.loads(counter.read_text())['totals'].get('learner_steps', 0)
      ),
      'learning',
    )
    processes = run.remains()
    self.sockets = set()
    for process in processes:
      self.sockets |= strangers.sockets_of(process.pid)
    # Inode to port, in the network of the run's nodes and in ours.
    self.inside = self._ours(run.process.pid)
    self.outside = self._ours('self')

  def _ours(self, pid):
    found = strangers.listening(pid)
    return {inode: found[inode] for inode in found if inode in self.sockets}


@pytest.fixture(scope='module', params=[*JOBS, *WITHOUT])
def job(start_run, request):
  flags = (*{**JOBS, **WITHOUT}[request.param], '--isolate=auto')
  seen = Seen(start_run(*flags, fresh=True, **SLOW))
  seen.has_port = request.param in JOBS
  return seen


@pytest.fixture(scope='module')
def opened(start_run):
  return Seen(start_run(*JOBS['actor_learner'], '--isolate=off', **SLOW))


def _attack(ports, pid, scratch):
  """What another user of the machine gets hold of."""
  got: list = [port for port in ports if strangers.connects(port)]
  for path in (f'/proc/{pid}/ns/net', *map(str, scratch)):
    with contextlib.suppress(OSError), open(path, 'rb'):
      got.append(path)
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as client:
      client.connect(path)
      got.append(path)
  return got


def _scratch(run):
  """Everything in the private directory of a program."""
  (scratch,) = run.temporary.glob('murmuration-*')
  return scratch, list(scratch.rglob('*'))


def test_no_port_of_a_run_is_on_the_machine(job):
  assert bool(job.inside) == job.has_port, job.inside
  if isolation.found().startswith('no '):
    assert 'note: no private network' in job.run.output
  else:
    assert 'note: no private network' not in job.run.output
    assert job.outside == {}


def test_no_port_of_threads_is_on_the_machine(start_run):
  # Some threads of libraries are older than the private network; in a fork
  # there would be none of them.
  flags = (*JOBS['actor_learner'], '--lp_launch_type=local_mt')
  seen = Seen(start_run(*flags, fresh=True, **SLOW))
  assert seen.inside
  assert isolation.found().startswith('no ') or seen.outside == {}
  seen.run.interrupt()
  assert seen.run.wait() == 130, seen.run.output


def test_another_user_gets_hold_of_nothing(job):
  _, files = _scratch(job.run)
  assert any(path.is_socket() for path in files), files
  got = strangers.in_a_child(
    _attack,
    job.inside.values(),
    job.run.process.pid,
    files,
    stranger=True,
  )
  if isolation.found().startswith('no '):
    got = [path for path in got if path not in job.inside.values()]
  if strangers.can_be_another():
    assert got == []
  else:
    assert not [port for port in got if isinstance(port, int)]


def test_the_attack_finds_an_open_run(opened):
  # The same attack, where it has to succeed.
  assert opened.outside == opened.inside != {}
  got = strangers.in_a_child(
    _attack,
    opened.outside.values(),
    opened.run.process.pid,
    [],
    stranger=True,
  )
  assert set(opened.outside.values()) <= set(got)


def test_sockets_lie_where_only_their_user_looks_and_no_pickle_is_kept(job):
  scratch, _ = _scratch(job.run)
  assert stat.S_IMODE(scratch.stat().st_mode) == 0o700
  kept = [path for path in job.run.directory.rglob('*') if path.is_file()]
  assert kept
  pickles = [
    path for path in kept if re.match(rb'\x80[\x02-\x05]', _head(path))
  ]
  assert pickles == []


def _head(path):
  try:
    with path.open('rb') as file:
      return file.read(2)
  except FileNotFoundError:  # the run lives: a file in the making was renamed
    return b''


@pytest.mark.parametrize('job', JOBS, indirect=True)
def test_the_inspector_looks_into_a_private_run(job):
  done = subprocess.run(
    [
      sys.executable,
      '-m',
      'murmuration.replay.inspect',
      job.run.directory,
      '--json',
    ],
    cwd=ROOT,
    capture_output=True,
    text=True,
    timeout=180,
  )
  assert done.returncode == 0, done.stderr
  shards = json.loads(done.stdout)['shards']
  assert {shard['kind'] for shard in shards} == {'server'}
  assert shards[0]['tables'][0]['items'] > 0


def test_a_private_run_ends_as_any_other(job):
  job.run.interrupt()
  assert job.run.wait() == 130, job.run.output
  job.run.assert_nothing_is_left()
  assert not (job.run.directory / 'launcher.json').exists()
