"""Waiting for places, and what a look at all of them costs; no Ray."""

import sys
import types

import pytest

from launch.engines import restarts
from launch.engines import state
from launch.engines.cluster import backend as backend_lib
from launch.engines.cluster import engine
from launch.engines.cluster import seats
from tests.launch.engines import fake_ray
from tests.launch.engines.fake_ray import RayError


@pytest.fixture
def cluster(monkeypatch):
  return fake_ray.play(monkeypatch)


@pytest.fixture
def clock(monkeypatch):
  """Seconds, of the backend and of its seats."""
  made = types.SimpleNamespace(now=1000.0)
  time = types.SimpleNamespace(monotonic=lambda: made.now)
  monkeypatch.setattr(backend_lib, 'time', time)
  monkeypatch.setattr(seats, 'time', time)
  return made


@pytest.fixture
def backend(cluster, clock, tmp_path):
  with fake_ray.backend_on(tmp_path, [{'CPU': 1.0}]) as made:
    yield made


def test_places_that_are_always_lost_are_why_a_node_fails(
  cluster, backend, clock
):
  backend.start(0, 0)
  pauses_s = []
  for _ in range(seats.MOST_TRIES - 1):
    made = len(cluster.made['seat'])
    lost = RayError('The actor died.\nIt was not schedulable')
    cluster.made['seat'][-1].last('where').answer(lost)
    assert backend.poll(0.0) == []
    began = clock.now
    while len(cluster.made['seat']) == made:
      clock.now += 0.5
      assert backend.poll(0.0) == []
    pauses_s.append(clock.now - began)
    clock.now += backend_lib._SAY_S
    assert backend.poll(0.0) == []
    assert backend.board.slots[0].text == (
      'waits for 1 CPU; the last place was lost: It was not schedulable'
    )
  assert pauses_s == [1.0, 2.0, 4.0, 8.0]
  cluster.made['seat'][-1].last('where').answer(lost)
  (event,) = backend.poll(0.0)
  assert event.failed and not event.killed
  assert event.error == (
    'its places were lost 5 times in a row: It was not schedulable'
  )


def test_a_run_has_not_stalled_while_a_node_waits_for_its_place(
  cluster, backend, clock
):
  slot = backend.board.slots[0]
  watch = engine._Watch([slot], restarts.Rules(stall_s=60.0), lambda: clock.now)
  watch.waits, watch.store = backend.waits, backend.store
  nodes = [state.NodeState('actor/0')]

  def lasts(seconds):
    end = clock.now + seconds
    while clock.now < end and not watch.stalled(nodes):
      clock.now += 1.0
      backend.poll(0.0)
      watch.look(nodes)

  backend.start(0, 1)
  lasts(seats.EXCUSED_S - 2.0)
  assert watch.stalled(nodes) == ''
  lasts(100.0)
  assert 'waits for 1 CPU' in watch.stalled(nodes)
  assert clock.now - 1000.0 >= seats.EXCUSED_S + 50.0


def put_on(cluster, backend, ray_id='one'):
  """Gives the newest seat its place; returns the agent there."""
  cluster.made['seat'][-1].last('where').answer((ray_id, {}))
  backend.poll(0.0)
  return cluster.made['agent'][-1]


def avoided(cluster):
  """What the newest seat avoids."""
  return cluster.made['seat'][-1].options.get('label_selector')


def test_an_agent_that_could_not_begin_has_that_forgiven_when_it_can(
  cluster, backend
):
  backend.start(0, 0)
  agent = put_on(cluster, backend)
  agent.last('describe').answer(RayError('The actor died.'))
  assert backend.poll(0.0) == []
  agent = put_on(cluster, backend)
  agent.last('describe').answer(fake_ray.described())
  backend.poll(0.0)
  agent.last('poll').answer(fake_ray.news(fake_ray.READY))
  backend.poll(0.0)
  agent.last('poll').answer(RayError('The actor died.'))
  (event,) = backend.poll(0.0)  # days later
  assert event.killed
  backend.start(0, 1)
  agent = put_on(cluster, backend)
  agent.last('describe').answer(RayError('The actor died.'))
  assert backend.poll(0.0) == []
  assert avoided(cluster) is None  # once in a row


def test_a_host_that_could_run_no_node_is_tried_again_after_a_while(
  cluster, backend, clock, capsys
):
  backend.start(0, 0)
  for _ in range(2):
    agent = put_on(cluster, backend)
    agent.last('describe').answer(RayError('The actor died.'))
    backend.poll(0.0)
  assert avoided(cluster) == {'ray.io/node-id': '!in(one)'}
  clock.now += restarts.Rules().restart_window_s - 1.0
  backend.poll(0.0)
  assert avoided(cluster) is not None
  clock.now += 1.0
  backend.poll(0.0)  # also for a node that has waited for a place since
  assert avoided(cluster) is None
  agent = put_on(cluster, backend)
  agent.last('describe').answer(fake_ray.described())
  backend.poll(0.0)
  agent.last('poll').answer(fake_ray.news(fake_ray.READY))
  backend.poll(0.0)
  assert agent.asked('start')
  assert capsys.readouterr().err.count('could not start the agent') == 1


def test_a_host_that_says_that_it_is_full_is_avoided_for_so_long(
  cluster, backend, clock
):
  backend.start(0, 0)
  agent = put_on(cluster, backend)
  agent.last('describe').answer(fake_ray.described(problem='its disk is full'))
  backend.poll(0.0)
  for _ in range(4):
    agent.last('poll').answer(fake_ray.news(problem='its disk is full'))
    backend.poll(0.0)
    assert avoided(cluster) == {'ray.io/node-id': '!in(one)'}
    clock.now += 400.0
  agent.last('poll').answer(fake_ray.news(fake_ray.READY))
  backend.poll(0.0)
  clock.now += 200.0
  backend.poll(0.0)
  assert avoided(cluster) is None
  put_on(cluster, backend)
  assert agent.asked('start')


def lines(function, *args):
  """How many lines of Python a call runs."""
  count = 0

  def trace(frame, event, arg):
    nonlocal count
    count += event == 'line'
    return trace

  before = sys.gettrace()
  sys.settrace(trace)
  try:
    function(*args)
  finally:
    sys.settrace(before)
  return count


@pytest.mark.parametrize('number', [10, 100])
def test_a_look_at_a_node_costs_the_same_among_many(
  cluster, clock, tmp_path, number
):
  with fake_ray.backend_on(tmp_path, [{'CPU': 1.0}] * number) as backend:
    fake_ray.place(cluster, backend, number=number)
    # What the agent of one node says is not about all.
    answer = fake_ray.news([{'event': 'running', 'index': 0, 'pid': 50}])
    host = backend._hosts['one']
    backend._seats._on = {'one': {0: None}}
    assert lines(backend._take, 'one', host, answer) < 40


def test_thousands_of_places_are_looked_at_once_a_second(
  cluster, clock, tmp_path, monkeypatch
):
  number = 50
  with fake_ray.backend_on(tmp_path, [{'CPU': 1.0}] * number) as backend:
    fake_ray.place(cluster, backend, number=number)
    for start in cluster.made['agent'][0].calls:
      if start.method == 'start':
        start.answer(None)
    backend.poll(0.0)
    monkeypatch.setattr(seats, '_FRESH_S', 0.2)
    monkeypatch.setattr(seats, '_HELD_S', 1.0)
    backend.poll(0.0)
    cluster.waited.clear()
    for _ in range(100):  # as many as there are in 5 s
      clock.now += 0.05
      backend.poll(0.05)
    # An agent and the actor of names at each, all seats at five of them.
    assert cluster.waited.count(2) == 100
    assert sum(cluster.waited) <= 100 * 2 + 6 * number
    # Who has no place yet is looked for more often.
    backend.stop(0)
    backend.poll(0.0)
    backend._seats.leave(0)
    backend.start(0, 1)
    cluster.made['seat'][-1].last('where').answer(('one', {}))
    clock.now += 0.2
    backend.poll(0.0)
    assert len(cluster.made['agent'][0].asked('start')) == number + 1
