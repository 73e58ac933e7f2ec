"""Placing, losing and finding of nodes, with a Ray that the test plays."""

import functools
import signal

import pytest

from murmuration.launch import pulse
from murmuration.launch.engines import supervision
from murmuration.launch.rpc import hosts
from tests.launch.engines import fake_ray
from tests.launch.engines.fake_ray import RayError
from tests.launch.engines.fake_ray import news
from tests.launch.engines.fake_ray import placed


@pytest.fixture
def cluster(monkeypatch):
  monkeypatch.setattr(hosts, '_agent', None)  # as it was, after the test
  return fake_ray.play(monkeypatch)


@pytest.fixture
def asked():
  return []


@pytest.fixture
def backend(cluster, tmp_path, asked):
  needs = [{'CPU': 1.0}, {'CPU': 2.0, 'GPU': 1.0}]
  said = functools.partial(asked.append, True)
  with fake_ray.backend_on(cluster, tmp_path, needs, said) as made:
    yield made


def test_a_node_asks_for_its_resources_and_says_what_it_waits_for(
  cluster, backend
):
  backend.start(1, 0)
  backend.poll(0.0)
  (place,) = cluster.places
  assert place.options['num_cpus'] == 2.0 and place.options['num_gpus'] == 1.0
  assert backend.waits()
  assert 'CPU=2, GPU=1' in backend.slots[1].text


def test_nodes_start_where_they_were_placed_and_their_signs_are_seen(
  cluster, backend, tmp_path
):
  agent = placed(cluster, backend)
  assert agent.options['host'] == 'one' and not backend.waits()
  # With what Ray has given them there.
  assert [(index, env) for index, _, env, _ in agent.asked('start')] == [
    (index, {'CUDA_VISIBLE_DEVICES': '3'}) for index in range(2)
  ]
  shown = pulse.Board(tmp_path, 1).slots[0]
  shown.add(0)
  agent.last('poll').answer(news(slots={0: shown.read()}))
  backend.poll(0.0)
  assert backend.slots[0].beats == 1
  backend.stop(0)
  assert agent.asked('signal') == [(0, int(signal.SIGTERM))]


def test_a_node_that_asks_to_stop_the_run_is_heard(cluster, backend, asked):
  agent = placed(cluster, backend)
  agent.last('poll').answer(news(asked=True))
  backend.poll(0.0)
  assert asked


def test_a_lost_host_is_the_end_of_its_nodes_which_then_start_elsewhere(
  cluster, backend
):
  agent = placed(cluster, backend)
  agent.last('poll').answer(RayError('The actor died.'))
  events = backend.poll(0.0)
  assert [(e.index, e.kind, e.failed, e.killed) for e in events] == [
    (0, 'exited', True, True),
    (1, 'exited', True, True),
  ]
  assert '10.0.0.7' in events[0].error
  assert placed(cluster, backend, 'one') is not agent  # it is back


TRACE = 'ray::Agent.__init__()\n  File "host.py"\nRuntimeError: other numpy'


@pytest.mark.parametrize(
  'answers', [[RayError(TRACE)], [news(), news(gone='no other numpy')]]
)
def test_a_host_that_cannot_run_nodes_is_a_failure_of_those_placed_there(
  cluster, backend, answers
):
  backend.start(0, 0)
  cluster.places[0].last('where').answer(('one', {}))
  backend.poll(0.0)
  for answer in answers:
    cluster.agents[-1].last('poll').answer(answer)
    events = backend.poll(0.0)
  (event,) = events
  # Not killed: the fifth in a row ends the run.
  assert (event.kind, event.failed, event.killed) == ('exited', True, False)
  assert '10.0.0.7' in event.error and 'other numpy' in event.error


def test_a_node_whose_host_is_lost_before_it_had_its_place_is_placed_again(
  cluster, backend
):
  backend.start(0, 0)
  cluster.places[0].last('where').answer(RayError('The actor died.'))
  (event,) = backend.poll(0.0)
  assert (event.kind, event.failed) == ('exited', True)


def test_a_node_that_waits_for_its_place_stops_at_once(cluster, backend):
  backend.start(0, 0)
  backend.stop(0)
  (event,) = backend.poll(0.0)
  assert (event.index, event.kind) == (0, 'exited')


def test_the_exit_of_a_node_is_heard_and_its_place_given_up(cluster, backend):
  agent = placed(cluster, backend)
  exited = {'event': 'exited', 'index': 0, 'pid': 50, 'code': -9, 'oom': False}
  agent.last('poll').answer(news([exited]))
  (event,) = backend.poll(0.0)
  assert (event.index, event.failed, event.killed) == (0, True, True)
  # What an agent says of it later is of a life that is over.
  agent.last('poll').answer(news([{**exited, 'event': 'running'}]))
  assert backend.poll(0.0) == []


def test_a_run_without_its_actor_of_names_ends(cluster, backend):
  placed(cluster, backend)
  cluster.names.last('hold').answer(RayError('The actor died.'))
  with pytest.raises(supervision.BackendLost, match='--resume'):
    backend.poll(0.0)


def test_a_run_whose_launcher_has_lost_its_agent_ends(cluster, backend):
  cluster.agents[0].last('poll').answer(news(gone='killed'))
  with pytest.raises(supervision.BackendLost, match='--resume'):
    backend.poll(0.0)


def test_a_ray_that_is_gone_does_not_hide_how_the_run_ended(
  cluster, backend, monkeypatch, capsys
):
  def wait(*unused, **named):
    raise RayError('The raylet is gone.')

  monkeypatch.setattr(cluster, 'wait', wait)
  backend.__exit__(None, None, None)
  assert 'The raylet is gone' in capsys.readouterr().err
