"""What a run on Ray is told, and what is refused before it begins."""

import socket
import subprocess
import sys

import launchpad as lp
import pytest

from murmuration.launch import cell as cell_lib
from murmuration.launch import command_line
from murmuration.launch import engines
from murmuration.launch import needs
from murmuration.launch import rpc
from murmuration.launch import session
from murmuration.launch.engines.cluster import options as options_lib
from tests.launch.engines import toys


@pytest.fixture(autouse=True)
def _no_address(monkeypatch):
  monkeypatch.delenv('RAY_ADDRESS', raising=False)


def program():
  made = lp.Program('test')
  for label in ('learner', 'actor'):
    with made.group(label):
      made.add_node(rpc.Node(toys.Waiter, '/', label))
  return made


def test_a_node_asks_for_what_its_group_was_said_to_need():
  said = ['learner:cpus=4,gpus=1,memory=2e9', 'learner:highmem=0.5']
  learner, actor = engines.check_on_ray(program(), engines.Options('', said))
  assert learner == {'CPU': 4, 'GPU': 1, 'memory': 2e9, 'highmem': 0.5}
  assert actor == {'CPU': 1.0}
  assert options_lib.asked(learner) == {
    'num_cpus': 4,
    'num_gpus': 1,
    'memory': 2e9,
    'resources': {'highmem': 0.5},
  }


@pytest.mark.parametrize(
  'text', ['learner', 'learner:', 'learner:cpus', ':cpus=1', 'a:cpus=-1']
)
def test_what_says_no_need_is_refused(text):
  with pytest.raises(ValueError, match='--cluster'):
    engines.Options('', [text])


def test_a_group_that_is_not_there_is_refused_before_anything_is_written(
  tmp_path, monkeypatch, capsys
):
  monkeypatch.chdir(tmp_path)
  command = ['impala', '--lp_launch_type=ray', '--cluster=lerner:cpus=4']
  assert command_line.main(command) == 2
  assert "'lerner'" in capsys.readouterr().err
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
  'said, variable, meant',
  [
    ('', '', ''),
    ('local', '10.0.0.6:1', ''),
    ('', '10.0.0.6:1', '10.0.0.6:1'),
    ('auto', '10.0.0.6:1', '10.0.0.6:1'),
    ('auto', '', 'auto'),
    ('10.0.0.7:2', '10.0.0.6:1', '10.0.0.7:2'),
    ('10.0.0.7', '', '10.0.0.7:6379'),
  ],
)
def test_the_cluster_is_the_one_that_was_said_or_that_of_the_job(
  said, variable, meant, monkeypatch
):
  monkeypatch.setenv('RAY_ADDRESS', variable)
  assert engines.Options(said).address == meant


def test_a_command_that_was_refused_works_once_the_reason_is_gone(tmp_path):
  where = tmp_path / 'run'
  cell = cell_lib.resolve('impala')
  ray = engines.Options('127.0.0.1:1')  # where nobody listens
  assert session.run(cell, 'ray', where, isolate='off', ray=ray) == 2
  assert not where.exists()


def test_without_ray_a_run_on_it_is_refused(monkeypatch):
  monkeypatch.setitem(sys.modules, 'ray', None)
  with pytest.raises(engines.Refused, match='ray'):
    engines.check_ray()


def test_a_cluster_is_not_measured_by_the_launcher(monkeypatch, tmp_path):
  def measured(*unused):
    raise ValueError('measured here')

  monkeypatch.setattr(needs, 'check', measured)
  monkeypatch.setattr(engines, 'run', lambda *a, **k: 1 / 0)
  with socket.create_server(('127.0.0.1', 0)) as server:
    there = f'127.0.0.1:{server.getsockname()[1]}'
    with pytest.raises(ZeroDivisionError):  # it came that far
      session.run(
        cell_lib.resolve('impala'),
        'ray',
        tmp_path / 'run',
        ray=engines.Options(there),
      )


def test_other_runs_import_no_ray():
  code = """
import sys
from murmuration.launch import command_line
assert not {'ray', 'murmuration.launch.engines.cluster.engine'} & {*sys.modules}
"""
  subprocess.run([sys.executable, '-c', code], check=True, timeout=300)
