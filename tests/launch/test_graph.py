"""launch/graph.py: edges of programs that are never started."""

import launchpad as lp
import pytest

from murmuration.launch import graph
from murmuration.launch import rpc


@pytest.fixture
def program():
  """replay <- actors, learner; learner <- actors."""
  program = lp.Program('test')
  with program.group('replay'):
    replay = program.add_node(rpc.Node(object))
  with program.group('learner'):
    learner = program.add_node(rpc.Node(object, replay))
  with program.group('actor'):
    for _ in range(3):
      program.add_node(lp.PyNode(print, {'handles': [replay, (learner,)]}))
  return program


def test_a_holder_points_to_what_it_holds(program):
  actors = [f'actor/{i}' for i in range(3)]
  assert graph.edges(program) == {
    ('learner/0', 'replay/0'),
    *((actor, 'replay/0') for actor in actors),
    *((actor, 'learner/0') for actor in actors),
  }


def test_nodes_are_named_by_group_and_index(program):
  assert graph.nodes(program) == [
    'replay/0',
    'learner/0',
    'actor/0',
    'actor/1',
    'actor/2',
  ]


def test_a_drawing_has_one_box_per_group(program):
  assert graph.to_mermaid(program).splitlines() == [
    'flowchart LR',
    '  replay["replay"]',
    '  learner["learner"]',
    '  actor["actor x 3"]',
    '  learner --> replay',
    '  actor --> replay',
    '  actor --> learner',
  ]


def test_groups_that_point_to_each_other_are_both_drawn():
  program = lp.Program('test')
  nodes = [rpc.Node(object) for _ in range(2)]
  handles = [node.create_handle() for node in nodes]
  for node, handle in zip(nodes, reversed(handles), strict=True):
    node.configure(handle)
  for i, node in enumerate(nodes):
    program.add_node(node, f'side-{i}')
  assert graph.edges(program) == {
    ('side-0/0', 'side-1/0'),
    ('side-1/0', 'side-0/0'),
  }
  assert '  side_0 --> side_1' in graph.to_mermaid(program)
