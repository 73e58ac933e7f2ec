"""actor_learner with central inference, before it starts."""

import functools
import pathlib

import pytest

from agents import impala
from environment_loops import environments
from launch import actor_settings
from launch import experiment as experiment_lib
from launch import graph
from launch.engines import restarts
from launch.services.inference import frames
from launch.topologies import actor_learner

ROOT = pathlib.Path(__file__).parents[4]


def _experiment():
  spec = environments.spec('CartPole-v1')
  return experiment_lib.Experiment(
    functools.partial(impala.IMPALA, impala.Config(), spec),
    'CartPole-v1',
    num_agents=1,
    max_replay_size=1,
    min_replay_size=1,
    run=experiment_lib.RunConfig(replay='node'),
  )


def _program(**options):
  return actor_learner.build(_experiment(), actor_settings.Config(**options))


def test_actors_ask_the_server_and_the_server_asks_the_learner():
  program = _program(inference='central')
  graph.check(program)
  edges = graph.edges(program)
  for actor in ('actor/0', 'actor/1'):
    assert {target for source, target in edges if source == actor} == {
      'counter/0', 'inference/0', 'replay/0'
    }  # fmt: skip
  assert {target for source, target in edges if source == 'inference/0'} == {
    'counter/0', 'learner/0'
  }  # fmt: skip
  assert ('evaluator/0', 'learner/0') in edges
  assert restarts.of(program).come_back


def test_the_page_shows_the_program():
  page = ROOT / 'docs' / 'topologies' / 'central_inference.md'
  picture = graph.to_mermaid(_program(inference='central'))
  assert f'```mermaid\n{picture}```' in page.read_text(encoding='utf-8')


def test_local_inference_has_no_server():
  program = _program()
  assert 'inference' not in program.groups
  assert ('actor/0', 'learner/0') in graph.edges(program)


@pytest.mark.parametrize(
  'options, message',
  [
    ({'inference': 'remote'}, r"inference='remote'.*'local', 'central'"),
    ({'inference_transport': 'tcp'}, "inference_transport='tcp' is not known"),
    ({'inference_max_wait_ms': -1.0}, 'inference_max_wait_ms=-1.0'),
    ({'inference_max_wait_ms': float('nan')}, 'inference_max_wait_ms=nan'),
    ({'inference_max_batch': 0}, 'actors.inference_max_batch=0'),
  ],
)
def test_settings_that_mean_nothing_are_refused(options, message):
  with pytest.raises(ValueError, match=message):
    actor_settings.Config(**options)


def test_frames_tell_other_sizes_apart():
  found = {
    frames.layout(
      _experiment(), actor_settings.Config(envs_per_actor=k)
    ).fingerprint
    for k in (1, 2, 2)
  }
  assert len(found) == 2
