"""What the demo of a cluster refuses before it begins."""

import sys

import pytest

from studies import cluster_demo
from studies import namespaces


@pytest.mark.parametrize(
  ('flags', 'said'),
  [
    (['--lose=learner/1'], 'apex has no such node, but counter/0, replay/0'),
    (
      ['--systems=impala,swarm', '--lose=learner/0'],
      'swarm has no such node, but counter/0, star/0, explorer/0',
    ),
    (
      ['--lose=actor/3', '--config.actors.num_actors=3'],
      'apex has no such node',
    ),
    (['--lose=learner/0', '--config.actors.number=3'], 'actors.number'),
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
def test_each_system_has_the_node_that_is_lost_by_default(system):
  assert cluster_demo._LOST[system] in cluster_demo.nodes(system, ())


def test_a_node_that_is_there_may_be_lost(monkeypatch, capsys):
  def enter():
    raise RuntimeError('no network here')

  monkeypatch.setattr(sys, 'argv', ['cluster_demo.py', '--lose=actor/3'])
  monkeypatch.setattr(namespaces, 'enter', enter)
  assert cluster_demo.main() == 2
  assert 'no network here' in capsys.readouterr().err
