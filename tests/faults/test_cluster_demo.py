"""What the demo of a cluster refuses before it begins."""

import shutil
import signal
import subprocess
import sys

import pytest

from tests.faults import cluster_demo
from tests.faults import cluster_records
from tests.faults import namespaces


@pytest.mark.parametrize(
  ('flags', 'said'),
  [
    (['--lose=learner/1'], 'apex has no such node, but counter/0, replay/0'),
    (
      ['--only=impala,swarm', '--lose=learner/0'],
      'swarm has no such node, but counter/0, star/0, explorer/0',
    ),
    (
      ['--lose=actor/3', '--config.actors.num_actors=3'],
      'apex has no such node',
    ),
    (['--lose=learner/0', '--config.actors.number=3'], 'actors.number'),
    (['--save', '--lose=learner/0'], '--save keeps what `make cluster-demo`'),
    (['--save', '--weather=50,1'], '--save keeps what `make cluster-demo`'),
    (['--save', '--config.seed=1'], '--save keeps what `make cluster-demo`'),
    (['--weather=50'], "'50' is no weather. Give milliseconds and percent"),
  ],
)
def test_what_cannot_be_is_said_before_a_host_is_made(
  monkeypatch, capsys, flags, said
):
  monkeypatch.setattr(sys, 'argv', ['cluster_demo.py', *flags])
  monkeypatch.setattr(namespaces, 'enter', None)
  with pytest.raises(SystemExit) as ended:
    cluster_demo.main()
  assert ended.value.code == 2
  assert said in capsys.readouterr().err


@pytest.mark.parametrize('system', cluster_demo.SYSTEMS)
def test_each_system_has_the_nodes_that_are_lost_and_that_wait(system):
  nodes = cluster_demo.nodes(system, ())
  assert cluster_demo._LOST[system] in nodes
  acting = [n for n in nodes if n.startswith(f'{cluster_demo._ACTS[system]}/')]
  # Two hosts have room for all; the one that is left has not.
  assert cluster_demo._ROOM < len(acting) <= 2 * cluster_demo._ROOM


@pytest.mark.parametrize('best, code', [(474.0, 1), (475.0, 0)])
def test_all_systems_run_and_each_has_to_reach_the_bar(
  monkeypatch, tmp_path, capsys, best, code
):
  def run(system, directory, lose, weather, extra):
    assert directory == tmp_path / system and weather is None and not extra
    return cluster_records.Result(
      system=system,
      lost=[lose],
      again_s={lose: 9.0},
      still_s={},
      joined=['actor/0'],
      exit_code=0,
      returns=[500.0 if system != 'swarm' else best],
      bar=cluster_demo._BAR,
      problem='',
      date='2026-11-24',
      cores=2,
      load=1.0,
    )

  monkeypatch.setattr(sys, 'argv', ['demo', f'--directory={tmp_path}'])
  monkeypatch.setattr(namespaces, 'enter', lambda: None)
  monkeypatch.setattr(signal, 'signal', lambda *unused: None)
  monkeypatch.setattr(cluster_demo, 'run', run)
  assert cluster_demo.main() == code
  rows = capsys.readouterr().out.splitlines()[-4:]
  assert [row.split(' | ')[0] for row in rows] == [
    '| apex',
    '| impala',
    '| swarm',
    '| gossip',
  ]


def test_a_node_that_is_there_may_be_lost(monkeypatch, capsys):
  def run(*arguments, **options):
    return subprocess.CompletedProcess(arguments, returncode=1)

  monkeypatch.setattr(sys, 'argv', ['demo', '--only=apex', '--lose=actor/3'])
  monkeypatch.delenv('MURMURATION_NAMESPACE', raising=False)
  monkeypatch.setattr(shutil, 'which', lambda command: command)
  monkeypatch.setattr(subprocess, 'run', run)
  with pytest.raises(SystemExit) as ended:
    cluster_demo.main()
  assert ended.value.code == 2
  assert 'gives no network namespaces' in capsys.readouterr().err
