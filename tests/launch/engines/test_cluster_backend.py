"""Placing, losing and finding of nodes, with a Ray that the test plays."""

import signal

import pytest

from launch import pulse
from launch.engines import supervision
from launch.rpc import hosts
from tests.launch.engines import fake_ray
from tests.launch.engines.fake_ray import RayError
from tests.launch.engines.fake_ray import news
from tests.launch.engines.fake_ray import place

EXITED = {'event': 'exited', 'index': 0, 'pid': 50, 'code': -9, 'oom': False}


@pytest.fixture
def cluster(monkeypatch):
  return fake_ray.play(monkeypatch)


@pytest.fixture
def backend(cluster, tmp_path):
  needs = [{'CPU': 1.0}, {'CPU': 2.0, 'GPU': 1.0}]
  with fake_ray.backend_on(tmp_path, needs) as made:
    yield made


def test_a_node_asks_for_its_resources_and_says_what_it_waits_for(
  cluster, backend
):
  backend.start(1, 0)
  backend.poll(0.0)
  (seat,) = cluster.made['seat']
  assert seat.options['num_cpus'] == 2.0 and seat.options['num_gpus'] == 1.0
  assert backend.board.slots[1].text == 'waits for 2 CPU and 1 GPU'


def test_the_names_are_on_the_host_of_the_launcher(cluster, backend):
  (names,) = cluster.made['names']
  assert names.options == {'scheduling_strategy': 'head'}


def test_nodes_start_where_they_were_placed_and_their_signs_are_seen(
  cluster, backend
):
  agent, _ = place(cluster, backend)
  shown = pulse.Board(backend._logs.paths[0].parent, 1).slots[0]
  shown.add(0)
  agent.last('poll').answer(news(slots={0: shown.read()}))
  backend.poll(0.0)
  assert backend.board.slots[0].beats == 1
  backend.stop(0)
  assert (0, int(signal.SIGTERM)) in agent.asked('signal')


def test_a_node_that_asks_to_stop_the_run_is_heard(cluster, backend):
  agent, _ = place(cluster, backend)
  asked = []
  backend._on_asked = lambda: asked.append(True)
  agent.last('poll').answer({**news(), 'asked': True})
  backend.poll(0.0)
  assert asked == [True]


def test_a_lost_host_is_the_end_of_its_nodes_which_then_start_elsewhere(
  cluster, backend
):
  agent, seats = place(cluster, backend)
  # Ray says it of all of them at one time.
  for actor, method in [(agent, 'poll'), *((seat, 'hold') for seat in seats)]:
    actor.last(method).answer(RayError('The actor died.'))
  events = backend.poll(0.0)
  assert [(e.index, e.kind, e.failed, e.killed) for e in events] == [
    (0, 'exited', True, True),
    (1, 'exited', True, True),
  ]
  assert events[0].error == 'its host was lost: 10.0.0.7'
  assert agent.dead and all(seat.dead for seat in seats)
  other, _ = place(cluster, backend, 'two')
  assert other is not agent


def test_the_launcher_asks_the_newest_agent_of_its_own_host(
  cluster, backend, monkeypatch
):
  monkeypatch.setattr(hosts, '_agent', None)
  place(cluster, backend, 'two')
  assert hosts._agent is None
  agent, _ = place(cluster, backend, 'head')
  assert hosts._agent.address == 'unix:/p/agent'
  agent.last('poll').answer(RayError('The actor died.'))
  backend.poll(0.0)
  other = cluster.made['agent'][-1]
  assert other is not agent  # though no node is there by now
  other.last('describe').answer(fake_ray.described(place='/q'))
  backend.poll(0.0)
  assert hosts._agent.address == 'unix:/q/agent'


def test_a_node_whose_place_was_taken_is_killed_by_its_agent(cluster, backend):
  agent, seats = place(cluster, backend)
  seats[0].last('hold').answer(RayError('The actor died.'))
  assert backend.poll(0.0) == []
  assert agent.asked('signal') == [(0, int(signal.SIGKILL))]
  agent.last('poll').answer(news([EXITED]))
  (event,) = backend.poll(0.0)
  assert (event.index, event.kind, event.killed) == (0, 'exited', True)


def test_a_node_whose_place_is_taken_while_it_is_forked_has_one_life(
  cluster, backend
):
  backend.start(0, 0)
  (seat,) = cluster.made['seat']
  seat.last('where').answer(('one', {}))
  backend.poll(0.0)
  (agent,) = cluster.made['agent']
  agent.last('describe').answer(fake_ray.described())
  backend.poll(0.0)
  agent.last('poll').answer(news(fake_ray.READY))
  backend.poll(0.0)
  assert len(agent.asked('start')) == 1
  seat.last('hold').answer(RayError('The actor died.'))
  # Not yet: the process is on its way, and would go on beside the next.
  assert backend.poll(0.0) == []
  assert agent.asked('signal') == []
  for kind in ('started', 'running'):
    agent.last('poll').answer(news([{'event': kind, 'index': 0, 'pid': 50}]))
    assert [event.kind for event in backend.poll(0.0)] == [kind]
  assert agent.asked('signal') == [(0, int(signal.SIGKILL))]
  agent.last('poll').answer(news([EXITED]))
  (event,) = backend.poll(0.0)
  assert (event.kind, event.failed, event.killed) == ('exited', True, True)
  assert seat.dead


def test_a_node_whose_place_is_taken_before_it_is_forked_is_placed_again(
  cluster, backend
):
  backend.start(0, 0)
  (seat,) = cluster.made['seat']
  seat.last('where').answer(('one', {}))
  backend.poll(0.0)
  seat.last('hold').answer(RayError('The actor died.'))
  (event,) = backend.poll(0.0)
  assert (event.kind, event.killed) == ('exited', True)
  assert event.error == 'its place was lost'


def test_a_host_that_can_no_longer_run_nodes_is_given_up(cluster, backend):
  agent, _ = place(cluster, backend)
  agent.last('poll').answer(news(gone='the tunnel ended'))
  events = backend.poll(0.0)
  assert [(e.index, e.kind, e.killed) for e in events] == [
    (0, 'exited', True),
    (1, 'exited', True),
  ]
  assert events[0].error == (
    'its host was lost: 10.0.0.7, where the tunnel ended'
  )
  assert agent.dead


def test_a_node_that_waits_for_its_place_stops_at_once(cluster, backend):
  backend.start(0, 0)
  backend.stop(0)
  (event,) = backend.poll(0.0)
  assert (event.index, event.kind) == (0, 'exited')


def test_a_node_whose_agent_could_not_start_it_has_failed(cluster, backend):
  backend.start(0, 0)
  (seat,) = cluster.made['seat']
  seat.last('where').answer(('one', {}))
  backend.poll(0.0)
  (agent,) = cluster.made['agent']
  agent.last('describe').answer(fake_ray.described())
  backend.poll(0.0)
  agent.last('poll').answer(news(fake_ray.READY))
  backend.poll(0.0)
  trace = 'ray::Agent.start()\n  File "host.py"\nOSError: Message too long'
  agent.last('start').answer(RayError(trace))
  (event,) = backend.poll(0.0)
  assert (event.kind, event.failed, event.killed) == ('exited', True, False)
  assert event.error == (
    '10.0.0.7 could not start it: OSError: Message too long'
  )
  assert seat.dead


def test_a_host_that_is_lost_as_a_node_starts_is_no_failure_of_the_node(
  cluster, backend
):
  backend.start(0, 0)
  cluster.made['seat'][0].last('where').answer(('one', {}))
  backend.poll(0.0)
  (agent,) = cluster.made['agent']
  agent.last('describe').answer(fake_ray.described())
  backend.poll(0.0)
  agent.last('poll').answer(news(fake_ray.READY))
  backend.poll(0.0)
  agent.last('start').answer(fake_ray.RayActorError('The actor died.'))
  assert backend.poll(0.0) == []
  agent.last('poll').answer(fake_ray.RayActorError('The actor died.'))
  (event,) = backend.poll(0.0)
  assert event.error == 'its host was lost: 10.0.0.7' and event.killed


def test_a_run_without_its_actor_of_names_ends_with_a_sentence(
  cluster, backend
):
  place(cluster, backend)
  (names,) = cluster.made['names']
  trace = 'The actor died.\nWorker exit type: SYSTEM_ERROR'
  names.last('hold').answer(fake_ray.RayActorError(trace))
  with pytest.raises(
    supervision.BackendLost,
    match='servers of the run are is gone .Worker exit type: SYSTEM_ERROR.:',
  ):
    backend.poll(0.0)


def test_a_ray_that_is_gone_does_not_hide_how_the_run_ended(
  cluster, backend, monkeypatch, capsys
):
  _, seats = place(cluster, backend)
  tried = []

  def kill(actor):
    tried.append(actor)
    raise RuntimeError('Ray has not been started yet.')

  def wait(*unused, **named):
    raise RayError('The raylet is gone.')

  with monkeypatch.context() as patch:
    patch.setattr(cluster, 'kill', kill)
    patch.setattr(cluster, 'wait', wait)
    backend.__exit__(None, None, None)
  everybody = [actor for made in cluster.made.values() for actor in made]
  assert set(map(id, tried)) == set(map(id, everybody))
  assert 'note: Ray says, as the run ends: The raylet is gone' in (
    capsys.readouterr().err
  )
