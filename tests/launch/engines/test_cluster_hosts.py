"""Hosts that cannot run nodes, with a Ray that the test plays."""

import io
import sys

import pytest

from tests.launch.engines import fake_ray
from tests.launch.engines.fake_ray import RayError
from tests.launch.engines.fake_ray import news

NOT_HERE = {'ray.io/node-id': '!in(one)'}


@pytest.fixture
def cluster(monkeypatch):
  return fake_ray.play(monkeypatch)


@pytest.fixture
def backend(cluster, tmp_path):
  with fake_ray.backend_on(tmp_path, [{'CPU': 1.0}, {'CPU': 1.0}]) as made:
    yield made


def seated(cluster, backend, host='one', number=2):
  """Gives nodes their place on a host; returns its agent."""
  for index in range(number):
    backend.start(index, 0)
  for seat in cluster.made['seat'][-number:]:
    seat.last('where').answer((host, {}))
  assert backend.poll(0.0) == []
  return cluster.made['agent'][-1]


def test_a_bad_host_is_said_once_and_its_nodes_go_elsewhere(
  cluster, backend, capsys
):
  agent = seated(cluster, backend)
  first = list(cluster.made['seat'])
  assert all('label_selector' not in seat.options for seat in first)
  agent.last('describe').answer(
    fake_ray.described(problem='other code', place='')
  )
  assert backend.poll(0.0) == []  # no failure of a node
  assert agent.dead and all(seat.dead for seat in first)
  assert capsys.readouterr().err == (
    'note: 10.0.0.7 cannot run nodes: other code. Nodes go to other hosts.\n'
  )
  again = cluster.made['seat'][2:]
  assert [seat.options['label_selector'] for seat in again] == [NOT_HERE] * 2
  assert backend.poll(0.0) == []
  assert 'and 1 of the hosts cannot run nodes' in backend.board.slots[0].text
  # Ray was asked for this one before anything was known of the host.
  again[0].last('where').answer(('one', {}))
  assert backend.poll(0.0) == []
  third = cluster.made['seat'][-1]
  assert len(cluster.made['agent']) == 1 and again[0].dead
  for seat in (third, again[1]):
    seat.last('where').answer(('two', {}))
  backend.poll(0.0)
  other = cluster.made['agent'][-1]
  other.last('describe').answer(fake_ray.described('10.0.0.8'))
  backend.poll(0.0)
  other.last('poll').answer(news(fake_ray.READY))
  assert backend.poll(0.0) == []
  assert len(other.asked('start')) == 2
  assert capsys.readouterr().err == ''


def test_a_run_goes_on_though_nobody_reads_what_it_says_of_a_host(
  cluster, backend, monkeypatch
):
  class Closed(io.StringIO):
    def write(self, text):
      raise BrokenPipeError(32, 'Broken pipe')

  agent = seated(cluster, backend)
  monkeypatch.setattr(sys, 'stderr', Closed())
  agent.last('describe').answer(
    fake_ray.described(problem='other code', place='')
  )
  assert backend.poll(0.0) == []
  assert agent.dead


def test_no_node_starts_on_a_host_that_is_full_though_its_agent_is_there(
  cluster, backend
):
  agent = seated(cluster, backend)
  agent.last('describe').answer(fake_ray.described(problem='no memory'))
  assert backend.poll(0.0) == []
  agent.last('poll').answer(news(fake_ray.READY))
  assert backend.poll(0.0) == []
  assert agent.asked('start') == [] and not agent.dead


def test_a_node_fails_where_no_host_is_left_that_could_take_it(
  cluster, backend
):
  cluster.hosts = {'head': {}, 'one': {'CPU': 8.0}}
  agent = seated(cluster, backend)
  agent.last('describe').answer(
    fake_ray.described(problem='other code', place='')
  )
  events = backend.poll(0.0)
  why = 'no host is left for it: 10.0.0.7 cannot run nodes: other code'
  assert [(e.index, e.failed, e.killed, e.error) for e in events] == [
    (index, True, False, why) for index in range(2)
  ]
  backend.start(0, 1)
  assert [event.error for event in backend.poll(0.0)] == [why]
  cluster.hosts['three'] = {'CPU': 1.0}
  backend.start(0, 2)
  assert backend.poll(0.0) == []
  assert cluster.made['seat'][-1].options['label_selector'] == NOT_HERE


def test_a_bad_host_that_is_gone_is_not_why_a_node_waits(cluster, backend):
  agent = seated(cluster, backend)
  agent.last('describe').answer(
    fake_ray.described(problem='other code', place='')
  )
  cluster.hosts = {'head': {}}
  assert backend.poll(0.0) == []  # it waits, as for any other host


@pytest.mark.parametrize(
  'method, answer, why',
  [
    (
      'describe',
      RayError('The actor died.\nOSError: [Errno 28] No space left on device'),
      'OSError: [Errno 28] No space left on device',
    ),
    ('poll', news(gone='no memory for the stack'), 'no memory for the stack'),
  ],
)
def test_a_host_whose_agent_ends_twice_before_it_is_ready_is_bad(
  cluster, backend, capsys, method, answer, why
):
  for number in range(2):
    assert capsys.readouterr().err == ''
    if not number:
      seated(cluster, backend, number=1)
    else:
      cluster.made['seat'][-1].last('where').answer(('one', {}))
      assert backend.poll(0.0) == []
    agent = cluster.made['agent'][-1]
    assert len(cluster.made['agent']) == number + 1
    if method == 'poll':
      agent.last('describe').answer(fake_ray.described())
      assert backend.poll(0.0) == []
    agent.last(method).answer(answer)
    assert backend.poll(0.0) == [] and agent.dead
  assert capsys.readouterr().err == (
    # Ray's name for the host, until it has said its own.
    f'note: 10.0.0.7 could not start the agent: {why}. '
    'Nodes go to other hosts.\n'
  )
  assert cluster.made['seat'][-1].options['label_selector'] == NOT_HERE
