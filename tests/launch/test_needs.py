"""A run whose replay or batches cannot fit into memory does not start."""

import pytest

from murmuration.launch import cell as cell_lib
from murmuration.launch import needs
from murmuration.launch import registry

GB = 10**9


def check(agent, preset='', topology=None, **overrides):
  cell = cell_lib.resolve(
    agent,
    preset,
    topology,
    {key.replace('__', '.'): value for key, value in overrides.items()},
  )
  needs.check(cell.experiment, cell.build())


@pytest.mark.parametrize(
  'name, preset',
  [
    (name, preset)
    for name in registry.agents()
    for preset in registry.agent(name).presets
  ],
)
def test_every_preset_runs_on_a_small_machine(name, preset, monkeypatch):
  monkeypatch.setattr(needs, 'memory_bytes', lambda: 8 * GB)
  check(name, preset)


@pytest.mark.parametrize(
  'setting, value',
  [('agent.batch_size', 10**9), ('agent.max_replay_size', 2 * 10**9)],
)
def test_what_no_machine_holds_is_refused(setting, value):
  budget = {'run__steps_per_agent': str(10**12)}
  overrides = {setting.replace('.', '__'): str(value), **budget}
  with pytest.raises(ValueError, match=setting):
    check('dqn', **overrides)


def test_each_learner_with_its_own_replay_counts(monkeypatch):
  cell = cell_lib.resolve('gorila_dqn')
  item = cell.experiment.agent.transition_layout().num_bytes
  options = {
    'agent__max_replay_size': '1000000',
    'agent__batch_size': '8',
    'run__steps_per_agent': str(10**12),
    'server__num_learners': '3',
  }
  monkeypatch.setattr(needs, 'memory_bytes', lambda: 2 * 10**6 * item)
  with pytest.raises(ValueError, match='3,000,000.*agent.max_replay_size'):
    check('gorila_dqn', **options)
  # A server of all has it once, and compresses it.
  check('gorila_dqn', **options, run__replay='node')


def test_replay_holds_no_more_than_the_budget(monkeypatch):
  monkeypatch.setattr(needs, 'memory_bytes', lambda: 10**6)
  check('dqn', agent__max_replay_size='2000000000', run__steps_per_agent='5000')


def test_evolution_keeps_no_replay(monkeypatch):
  monkeypatch.setattr(needs, 'memory_bytes', lambda: 1)
  check('dqn', topology='evolution')


def test_the_memory_of_this_machine_is_known():
  assert needs.memory_bytes() > GB // 2


@pytest.mark.parametrize(
  'agent, overrides, said',
  [
    ('dqn', {'run__updates_per_call': '10000000'}, 'from 1 to 10000'),
    ('dqn', {'agent__batch_size': '1000000000'}, 'leaves no update'),
    (
      'd4pg',
      {'run__updates_per_call': '10000', 'run__steps_per_agent': '3000'},
      'leaves no update',
    ),
    ('dqn', {'agent__max_replay_size': '1000000000000'}, 'from 1 to 214748'),
    ('dqn', {'pace__samples_per_insert': '1e12'}, 'at most 10,000'),
    ('dqn', {'run__tf_threads': '1000000'}, 'from 1 to 1024'),
    ('dqn', {'run__eval_episodes': '10000000000'}, 'from 1 to 1000000'),
    ('impala', {'actors__envs_per_actor': '1000000000'}, 'from 1 to 1000000'),
    ('dqn', {'run__silent_s': '0.5'}, 'at least 1'),
    ('dqn', {'run__stall_s': '1e-9'}, 'at least 1'),
    ('acme_dqn', {'agent__hidden_sizes': '(2.5,)'}, 'agent.hidden_sizes'),
    ('acme_d4pg', {'agent__policy_sizes': '(2.5,)'}, 'agent.policy_sizes'),
    ('pso_dqn', {'swarm__confirmation_period_s': 'inf'}, 'from 0 to 10'),
    ('pso_dqn', {'swarm__confirmation_period_s': '1e300'}, 'from 0 to 10'),
    ('dqn', {'agent__hidden_sizes': '(' * 5000}, 'hidden_sizes'),
    ('d4pg', {'agent__num_atoms': '1000000000000'}, 'atoms between them are'),
    ('ppo', {'agent__epochs': '1000000000'}, 'updates of one rollout'),
  ],
)
def test_numbers_out_of_bounds_are_refused(agent, overrides, said):
  with pytest.raises(ValueError, match=said):
    check(agent, **overrides)
