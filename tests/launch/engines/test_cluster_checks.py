"""What is checked before a run on a cluster begins, and in which words."""

import errno
import pathlib
import shutil
import socket
import sys
import types

import pytest

from launch import cell as cell_lib
from launch import command_line
from launch import engines
from launch import needs
from launch import session
from launch.engines.cluster import code
from launch.engines.cluster import host
from launch.engines.cluster import resources
from murmuration import objects
from run_records import packages

# --- Resources ----------------------------------------------------------------


def test_flags_say_what_a_group_needs():
  found = resources.parse(['learner:cpus=4,gpus=1', 'actor:highmem=0.5'])
  assert found == {
    'learner': {'CPU': 4.0, 'GPU': 1.0},
    'actor': {'highmem': 0.5},
  }
  assert resources.of_groups(['learner', 'actor', 'counter'], found) == {
    'learner': {'CPU': 4.0, 'GPU': 1.0},
    'actor': {'CPU': 1.0, 'highmem': 0.5},
    'counter': {'CPU': 1.0},
  }


@pytest.mark.parametrize(
  'text', ['learner', 'learner:', 'learner:cpus', ':cpus=1', 'a:cpus=-1']
)
def test_a_flag_that_says_nothing_is_refused_with_an_example(text):
  with pytest.raises(ValueError, match='GROUP:NAME=NUMBER'):
    engines.Options('', [text])


def test_a_group_that_is_not_there_is_refused_with_those_that_are():
  with pytest.raises(ValueError, match="no group 'actors'; it has actor"):
    resources.of_groups(['actor'], {'actors': {'CPU': 1.0}})


def test_what_can_never_be_placed_is_refused_with_the_arithmetic():
  nodes = {'learner/0': {'CPU': 1.0, 'GPU': 2.0}, 'actor/0': {'CPU': 1.0}}
  there = [{'CPU': 8.0, 'GPU': 1.0}, {'CPU': 64.0}]
  with pytest.raises(ValueError) as refused:
    resources.check(nodes, there)
  assert str(refused.value).startswith(
    'learner/0 asks for 2 GPU, and the largest of 2 hosts has 1'
  )
  # Each resource alone is there, but on two hosts.
  nodes['learner/0'] = {'CPU': 16.0, 'GPU': 1.0}
  with pytest.raises(ValueError, match='16 CPU and 1 GPU, which none of'):
    resources.check(nodes, there)


def test_what_has_to_wait_is_said():
  nodes = {f'actor/{i}': {'CPU': 1.0} for i in range(5)}
  assert resources.check(nodes, [{'CPU': 2.0}, {'CPU': 3.0}]) == ''
  assert resources.check(nodes, [{'CPU': 2.0}, {'CPU': 2.0}]) == (
    '5 nodes ask for 5 CPU; there are 4 on 2 hosts'
  )


# --- Sentences ----------------------------------------------------------------


def test_without_ray_the_sentence_says_how_to_get_it(monkeypatch):
  monkeypatch.setitem(sys.modules, 'ray', None)
  with pytest.raises(engines.Refused, match='needs Ray.*pip install ray=='):
    engines.check_ray()


@pytest.mark.parametrize(
  'said, why',
  [
    ('lerner:cpus=4', "no group 'lerner'; it has counter, "),
    ('learner:cpus=0.00001', 'finer than 0.0001'),
    ('learner:gpus=1.5', 'above 1 it is a whole number'),
    ('learner:object_store_memory=1', "is Ray's own"),
  ],
)
def test_what_nodes_cannot_ask_for_is_refused_before_anything_is_written(
  said, why, tmp_path, monkeypatch, capsys
):
  monkeypatch.chdir(tmp_path)
  command = ['impala', '--lp_launch_type=ray', f'--cluster={said}']
  assert command_line.main(command) == 2
  error = capsys.readouterr().err
  assert error.startswith('error: ') and why in error
  assert not list(tmp_path.iterdir())


def test_a_command_that_was_refused_works_once_the_reason_is_gone(
  tmp_path, monkeypatch
):
  where = tmp_path / 'run'
  cell = cell_lib.resolve('impala')
  ray = engines.Options('127.0.0.1:1')  # where nobody listens
  assert session.run(cell, 'ray', where, isolate='off', ray=ray) == 2
  assert not where.exists()

  def no_host(*unused, **named):
    raise engines.Refused('no host is large enough')

  monkeypatch.setattr(engines, 'run', no_host)
  ray = engines.Options()
  assert session.run(cell, 'ray', where, isolate='off', ray=ray) == 2
  assert not where.exists()


def test_without_openssl_a_run_on_several_hosts_is_refused(
  tmp_path, monkeypatch, capsys
):
  monkeypatch.setenv('PATH', '/nowhere')
  where = tmp_path / 'run'
  with socket.create_server(('127.0.0.1', 0)) as server:
    ray = engines.Options(f'127.0.0.1:{server.getsockname()[1]}')
    cell = cell_lib.resolve('impala')
    monkeypatch.setattr(engines, 'run', lambda *a, **k: 1 / 0)
    assert session.run(cell, 'ray', where, isolate='off', ray=ray) == 2
  assert 'apt-get install openssl' in capsys.readouterr().err
  assert not where.exists()


def test_a_cluster_is_not_measured_by_the_launcher(monkeypatch, tmp_path):
  def measured(*unused):
    raise ValueError('measured here')

  monkeypatch.setattr(needs, 'check', measured)
  with socket.create_server(('127.0.0.1', 0)) as server:
    there = f'127.0.0.1:{server.getsockname()[1]}'
    with monkeypatch.context() as patched:
      patched.setattr(engines, 'run', lambda *a, **k: 1 / 0)
      with pytest.raises(ZeroDivisionError):  # it came that far
        session.run(
          cell_lib.resolve('impala'),
          'ray',
          tmp_path / 'run',
          ray=engines.Options(there),
        )


def plan_for(token, version):
  return host.Plan('run', 1, b'', token, version, {}, None)


def test_a_host_that_does_not_see_the_run_directory_is_refused(tmp_path):
  token = tmp_path / 'token'
  refusal = host.mismatch(plan_for((str(token), 'ours'), code.version()))
  assert refusal.startswith(f'it does not see the run directory: {token}')
  token.write_text('of another file system')
  assert host.mismatch(plan_for((str(token), 'ours'), code.version()))
  token.write_text('ours')
  assert not host.mismatch(plan_for((str(token), 'ours'), code.version()))


def test_a_host_with_other_code_is_refused_with_both_versions(tmp_path):
  token = tmp_path / 'token'
  token.write_text('ours')
  refusal = host.mismatch(plan_for((str(token), 'ours'), 'project abc'))
  assert 'it has another version of the project' in refusal
  assert code.version() in refusal and 'the launcher project abc' in refusal


def test_a_host_that_may_only_read_the_run_directory_is_refused(
  tmp_path, monkeypatch
):
  # Nobody makes a file there, not even root.
  seen = pathlib.Path('/proc/version')
  plan = plan_for((str(seen), seen.read_text()), code.version())
  assert host.mismatch(plan).startswith(
    'it cannot write to the run directory, where nodes have their logs and '
    'checkpoints ('
  )

  def full(*unused, **named):
    raise OSError(errno.ENOSPC, 'No space left on device')

  # That is so on all hosts, and may pass.
  monkeypatch.setattr(host.tempfile, 'TemporaryFile', full)
  assert host.mismatch(plan) == ''


def test_what_a_run_keeps_the_versions_of_is_the_same_on_all_hosts():
  # The project itself is compared by its source.
  kept = packages.versions().keys() - {'python', 'murmuration'}
  assert kept <= {*code._PINNED}


def test_all_that_a_run_may_import_of_the_project_is_compared():
  # No run imports what measures runs.
  assert {*code._PACKAGES} == {*objects.PACKAGES} - {'studies'}


def test_a_host_that_is_full_is_refused_with_what_to_do(tmp_path, monkeypatch):
  def memory(available):
    found = types.SimpleNamespace(available=available)
    monkeypatch.setattr(host.psutil, 'virtual_memory', lambda: found)

  memory(2e9)
  room = shutil.disk_usage(tmp_path)
  monkeypatch.setattr(
    host.shutil, 'disk_usage', lambda path: room._replace(free=3_000_000)
  )
  assert host.full().startswith('its disk is full: ')
  assert 'has 3 MB free, and nodes need 200. Make room' in host.full()
  monkeypatch.setattr(
    host.shutil, 'disk_usage', lambda path: room._replace(free=10**12)
  )
  assert host.full() == ''
  memory(20e6)
  assert host.full().startswith('its memory is full: 20 MB are available')
