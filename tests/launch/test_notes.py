"""What is said of a cell before it runs."""

import pathlib

import pytest

from murmuration.launch import cell as cell_lib
from murmuration.launch import notes
from murmuration.launch import registry

HERE = pathlib.Path(__file__).parent
_OWN = {'environment': 'MountainCarContinuous-v0'}


def _of(agent, preset, **overrides):
  settings = {name.replace('__', '.'): text for name, text in overrides.items()}
  return notes.of(cell_lib.resolve(agent, preset, overrides=settings))


def test_rates_that_are_0_long_before_the_end_are_told_with_what_to_type():
  (note,) = _of('impala', 'cartpole', run__steps_per_agent='1_000_000')
  assert 'step 200,000 of 1,000,000 (agent.anneal_env_steps=200000)' in note
  assert '--config.agent.anneal_env_steps=1000000 ' in note
  assert '--config.agent.anneal_env_steps=None' in note


def test_a_fall_over_updates_is_told_in_environment_steps():
  # A batch of 64, each transition 64 times: an update for each step.
  (note,) = _of('apex_dqn', 'cartpole', run__steps_per_agent='101000')
  assert 'step 51,000 of 101,000 (agent.anneal_updates=50000)' in note
  assert '--config.agent.anneal_updates=100000 ' in note
  assert _of(
    'apex_dqn',
    'cartpole',
    run__steps_per_agent='101000',
    agent__anneal_updates='100000',
  ) == []  # fmt: skip


@pytest.mark.parametrize(
  'agent, preset, overrides',
  [
    # A little before the end, or after it.
    ('impala', 'cartpole', {'run__steps_per_agent': '220000'}),
    ('impala', 'cartpole', {'run__steps_per_agent': '1000'}),
    # They stay.
    ('dqn', 'cartpole', {'run__steps_per_agent': '1000000000'}),
    # How many updates that is, nobody knows.
    (
      'apex_dqn',
      'cartpole',
      {'run__steps_per_agent': '900000', 'pace__samples_per_insert': 'None'},
    ),
  ],
)
def test_nothing_is_said_where_there_is_nothing_to_say(
  agent, preset, overrides
):
  assert _of(agent, preset, **overrides) == []


def test_each_learner_of_a_parameter_server_fills_a_replay_of_its_own():
  cell = cell_lib.resolve(
    'apex_dqn',
    'cartpole',
    'parameter_server',
    {'run.steps_per_agent': '101000', 'server.num_learners': '4'},
  )
  (note,) = notes.of(cell)
  assert 'step 54,000 of 101,000' in note
  assert '--config.agent.anneal_updates=97000 ' in note


def test_a_rate_that_nobody_learns_with_is_not_told():
  cell = cell_lib.resolve(
    'impala', topology='evolution', overrides={'run.steps_per_agent': '1000000'}
  )
  assert notes.of(cell) == []


def test_no_preset_is_worth_a_note():
  for agent in ('impala', 'ppo', 'a2c', 'a3c', 'apex_dqn', 'd4pg'):
    for preset, values in registry.agent(agent).presets.items():
      if not values['environment'].startswith('ALE'):
        assert _of(agent, preset) == [], (agent, preset)


@pytest.mark.parametrize('agent', ['d4pg', 'acme_d4pg'])
def test_a_support_of_another_task_is_told(agent):
  (note,) = _of(agent, 'inverted_pendulum', **_OWN)
  assert note.startswith('agent.v_min=0 and agent.v_max=100: ')
  assert 'another task than MountainCarContinuous-v0' in note
  (note,) = _of(agent, 'inverted_pendulum', **_OWN, agent__v_min='-1')
  assert note.startswith('agent.v_max=100: ')


@pytest.mark.parametrize(
  'overrides',
  [{}, {'environment': 'InvertedPendulum-v5'}, {'agent__v_min': '-1'}],
)
def test_a_support_of_the_task_itself_is_not(overrides):
  assert _of('d4pg', 'inverted_pendulum', **overrides) == []


def test_a_support_of_one_s_own_is_not():
  own = {'agent__v_min': '-9', 'agent__v_max': '9'}
  assert _of('d4pg', 'inverted_pendulum', **_OWN, **own) == []


@pytest.mark.parametrize('limit, said', [('100', False), ('70_000', True)])
def test_what_evaluations_without_a_limit_may_cost_is_told(
  monkeypatch, limit, said
):
  monkeypatch.syspath_prepend(HERE)
  (note,) = _of(
    'dqn',
    'cartpole',
    environment='faulty_environments:Endless-v0',
    run__steps_per_agent='20_000',
    run__evaluations='10',
    run__eval_episodes='5',
    run__eval_max_steps=limit,
  )
  assert 'Endless-v0 has no step limit' in note
  cost = 'may take 3,850,000 steps for an agent, where training has 20,000.'
  assert (cost in note) == said


def test_a_larger_budget_of_a_resumed_run_stretches_the_fall_of_rates():
  kept = cell_lib.resolve('impala', 'cartpole').config
  raised = {'run.steps_per_agent': '400000'}
  found = cell_lib.resume(kept, raised)
  assert found.config['agent']['anneal_env_steps'] == 400_000
  (note,) = notes.of(found)
  assert 'agent.anneal_env_steps=200000' in note
  # Unless the user says otherwise.
  for own in ('200000', 'None'):
    chosen = {**raised, 'agent.anneal_env_steps': own}
    found = cell_lib.resume(kept, chosen)
    assert str(found.config['agent']['anneal_env_steps']) == own
    assert not any('new budget' in note for note in notes.of(found))
