"""What a run needs is said before it starts, and what cannot be is refused."""

import pathlib

import pytest

from murmuration.launch import cell as cell_lib
from murmuration.launch import needs
from murmuration.launch import registry


def check(agent, topology=None, **overrides):
  cell = cell_lib.resolve(
    agent,
    topology=topology,
    overrides={key.replace('__', '.'): v for key, v in overrides.items()},
  )
  program = cell.build()
  needs.check(cell.experiment, program, cell.own_bytes)
  return needs.of(cell.experiment, program, cell.own_bytes)


def test_the_arithmetic_is_of_the_settings():
  found = check('dqn', agent__hidden_sizes='(16,)', run__updates_per_call='2')
  cell = cell_lib.resolve('dqn')
  agent, run = cell.experiment.make_agent(), cell.experiment.run
  item = agent.transition_layout().num_bytes
  kept = min(cell.experiment.max_replay_size, run.steps_per_agent)
  assert found.replay_bytes == kept * item
  assert found.call_bytes == 2 * agent.batch_size * item
  assert found.processes == 2


def test_learners_with_a_replay_of_their_own_are_counted_apart():
  options = {'agent__max_replay_size': '1000', 'server__num_learners': '3'}
  one = check('gorila_dqn', 'single_process', agent__max_replay_size='1000')
  three = check('gorila_dqn', **options)
  common = check('gorila_dqn', **options, run__replay='node')
  assert one.replay_bytes * 3 == three.replay_bytes
  assert one.replay_bytes == common.replay_bytes
  # Each samples a whole batch, also from a replay of all.
  assert one.call_bytes * 3 == three.call_bytes == common.call_bytes
  cell = cell_lib.resolve('gorila_dqn')
  size = cell.experiment.make_agent().layout.size
  assert three.parameter_bytes == 3 * size * 4 * (2 + 1)  # and Adagrad's slot


def test_a_rollout_is_sampled_once_and_unrolls_are_whole():
  # CartPole has 4 float32 in an observation.
  found = check('ppo', agent__rollout_steps='1024', agent__epochs='7')
  assert found.call_bytes == 1024 * 16
  found = check(
    'impala', agent__unroll_length='10', agent__batch_size='4',
    run__updates_per_call='8',
  )  # fmt: skip
  assert found.call_bytes == 8 * 4 * 10 * 16


def test_threads_of_tensorflow_are_of_nodes_that_learn():
  found = check('es_mlp', run__eval_episodes='5')
  assert found.threads == 10 * found.processes
  assert found.least_threads == found.processes
  found = check('dqn', run__tf_threads='3')
  assert (found.threads, found.least_threads) == (23, 5)


def test_evolution_keeps_noise_and_no_experience():
  found = check(
    'dqn', 'evolution', evolution__table_size='1000000',
    evolution__num_workers='3',
  )  # fmt: skip
  assert (found.replay_bytes, found.call_bytes) == (0, 0)
  assert found.own_bytes['evolution.table_size'] == 4 * 4_000_000
  assert '0.016 GB for evolution.table_size, ' in str(found)
  with pytest.raises(ValueError, match='Lower evolution.table_size'):
    check(
      'es_mlp', evolution__table_size=str(2**31 - 1),
      evolution__num_workers='100',
    )  # fmt: skip


def test_environments_have_memory_too():
  found = check(
    'apex_dqn', run__eval_episodes='7', actors__num_actors='2',
    actors__envs_per_actor='3',
  ).own_bytes  # fmt: skip
  each = needs.environment_bytes('CartPole-v1')
  assert found == {
    'run.eval_episodes': 7 * each,
    'actors.envs_per_actor': 6 * each,
  }
  assert needs.environment_bytes('Hopper-v5') > 100 * each


def test_learners_that_share_a_batch_out_sample_it_once():
  options = {'agent__batch_size': '64', 'actors__num_actors': '2'}
  one = check('apex_dqn', **options)
  two = check('apex_dqn', **options, actors__num_learners='2')
  assert one.call_bytes == two.call_bytes


@pytest.mark.parametrize(
  'name, preset',
  [
    (name, preset)
    for name in registry.agents()
    for preset in registry.agent(name).presets
  ],
)
def test_every_preset_runs_on_a_small_machine(name, preset, monkeypatch):
  monkeypatch.setattr(needs, 'memory_bytes', lambda: 8 * 10**9)
  monkeypatch.setattr(needs, 'max_processes', lambda: 4096)
  cell = cell_lib.resolve(name, preset)
  needs.check(cell.experiment, cell.build(), cell.own_bytes)


@pytest.mark.parametrize(
  ('said', 'files'),
  [
    # Version 2: the limit of a slice holds for what runs in it.
    (
      '0::/user.slice/run-1.scope',
      {
        'user.slice/memory.max': '5000',
        'user.slice/run-1.scope/memory.max': 'max',
        'user.slice/run-1.scope/pids.max': '70',
      },
    ),
    # Version 1, as of Slurm.
    (
      '9:name=systemd:/x\n8:pids:/slurm/job\n4:cpu,memory:/slurm/job/step\n0::/',
      {
        'memory/slurm/job/memory.limit_in_bytes': '5000',
        'memory/slurm/job/step/memory.limit_in_bytes': str(2**63 - 4096),
        'pids/slurm/job/pids.max': '70',
      },
    ),
    # A container of version 1 has its own group for a root.
    (
      '8:pids:/docker/ab\n4:memory:/docker/ab',
      {'memory/memory.limit_in_bytes': '5000', 'pids/pids.max': '70'},
    ),
    ('0::/', {'memory.max': '5000', 'pids.max': '70'}),
  ],
)
def test_the_lowest_limit_of_control_groups_holds(
  said, files, tmp_path, monkeypatch
):
  for name, text in files.items():
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(f'{text}\n')
  read = pathlib.Path.read_text

  def elsewhere(path, **options):
    if str(path) == '/proc/self/cgroup':
      return f'{said}\n'
    below = str(path).partition('/sys/fs/cgroup/')[2]
    return read(tmp_path / below if below else path, **options)

  monkeypatch.setattr(pathlib.Path, 'read_text', elsewhere)
  assert (needs.memory_bytes(), needs.max_processes()) == (5000, 70)
  # None limits anything, as on most machines without containers.
  for file in tmp_path.rglob('*.*'):
    if file.is_file():
      file.write_text('max\n')
  pages = needs.os.sysconf('SC_PHYS_PAGES') * needs.os.sysconf('SC_PAGE_SIZE')
  assert needs.memory_bytes() == pages and needs.max_processes() > 70


def test_root_has_no_limit_of_processes(monkeypatch):
  limit = needs.resource.RLIMIT_NPROC
  monkeypatch.setattr(
    needs.resource, 'getrlimit', lambda kind: (7, 7) if kind == limit else None
  )
  monkeypatch.setattr(needs.os, 'geteuid', lambda: 1000)
  assert needs.max_processes() == 7
  monkeypatch.setattr(needs.os, 'geteuid', lambda: 0)
  assert needs.max_processes() > 7


@pytest.mark.parametrize(
  'agent, overrides, said',
  [
    (
      'dqn',
      {
        'agent__batch_size': '1000000000',
        'run__steps_per_agent': '1000000000000',
      },
      'Lower agent.batch_size',
    ),
    (
      'dqn',
      {'agent__hidden_sizes': '(1000000,1000000)'},
      'Lower the sizes of the networks',
    ),
    (
      'dqn',
      {
        'agent__max_replay_size': '2000000000',
        'run__steps_per_agent': '1000000000000',
      },
      'Lower agent.max_replay_size',
    ),
    (
      'sac',
      {'environment': 'Hopper-v5', 'run__eval_episodes': '100000'},
      'Lower run.eval_episodes',
    ),
    (
      'd4pg',
      {
        'environment': 'Hopper-v5',
        'actors__envs_per_actor': '10000',
        'run__steps_per_agent': '100000000',
      },
      'Lower actors.envs_per_actor',
    ),
  ],
)
def test_what_no_machine_holds_is_refused_with_the_arithmetic(
  agent, overrides, said, monkeypatch
):
  monkeypatch.setattr(needs, 'memory_bytes', lambda: 4 * 10**9)
  with pytest.raises(ValueError) as caught:
    check(agent, **overrides)
  for word in (said, 'GB for replay', 'The machine has 4 GB', 'processes'):
    assert word in str(caught.value)


def test_more_threads_than_the_system_gives_are_refused(monkeypatch):
  monkeypatch.setattr(needs, 'max_processes', lambda: 1000)
  with pytest.raises(ValueError, match='have 1,000 of these together'):
    check('dqn', run__tf_threads='1000')


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
def test_what_was_accepted_and_broke_is_refused_by_its_bounds(
  agent, overrides, said
):
  with pytest.raises(ValueError) as caught:
    check(agent, **overrides)
  assert said in str(caught.value)
