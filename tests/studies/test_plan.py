"""What a study may say, and the processes that it comes to."""

import dataclasses
import json
import pathlib
import re

import pytest

from murmuration.launch import session
from murmuration.run_records import learning_statistics as statistics
from murmuration.studies import declared
from murmuration.studies import plan as study_plan


def _study(**changes):
  numbers = {
    'name': 'small',
    'environment': 'CartPole-v1',
    'budget': 100,
    'threshold': 475.0,
    'seeds': 3,
    'variants': {
      'DQN': study_plan.Variant(('dqn',), together=True),
      'PSO-DQN, c = 0': study_plan.Variant(('pso_dqn',)),
    },
    'baseline': 'DQN',
  }
  return study_plan.Study(**{**numbers, **changes})


def test_systems_take_turns_and_shared_processes_are_there_once():
  jobs = study_plan.jobs(_study(), pathlib.Path('runs'))
  assert [(job.path.name, job.seeds) for job in jobs] == [
    ('dqn-of-3', (0, 1, 2)),
    ('pso-dqn-c-0-0', (0,)),
    ('pso-dqn-c-0-1', (1,)),
    ('pso-dqn-c-0-2', (2,)),
  ]


def test_a_run_gets_its_seed_the_budget_and_no_goal():
  together, _, alone, _ = study_plan.jobs(_study(), pathlib.Path('runs'))
  budget = ('--config.run.steps_per_agent=100',)
  no_goal = ('--config.run.target_return=None',)
  assert alone.arguments == ('pso_dqn', *budget, *no_goal, '--seed=1')
  assert together.arguments == (
    'dqn', '--config.single.num_agents=3', *budget, *no_goal, '--seed=0'
  )  # fmt: skip
  assert alone.script == session.root() / 'launch' / 'run.py'


def test_some_variants_keep_the_baseline_and_what_can_still_be_said():
  study = _study(
    variants={name: study_plan.Variant(('dqn',)) for name in ('DQN', 'A', 'B')},
    contrasts=(study_plan.Contrast('x', 'A', 'B'),),
    goals=(study_plan.Goal('A', 475.0, 3, 3), study_plan.Goal('B', 1.0, 3, 3)),
  )
  found = study.only(['A'])
  assert list(found.variants) == ['DQN', 'A']
  assert not found.contrasts and [g.variant for g in found.goals] == ['A']
  with pytest.raises(ValueError, match="no variant 'C'.*'A', 'B'"):
    study.only(['C'])


def test_the_threshold_is_the_studys_and_the_random_return_the_tasks():
  reference = _study(threshold=300.0).reference
  assert reference.threshold == 300.0
  assert reference.random == statistics.REFERENCES['CartPole-v1'].random
  own = _study(environment='mine:Task', random=-7.5).reference
  assert own == statistics.Reference(-7.5, 475.0)


@pytest.mark.parametrize(
  'changes, message',
  [
    ({'name': 'Ape X'}, 'use a-z'),
    ({'environment': 'Mine-v0'}, 'random policy.*Mine-v0.*random='),
    ({'budget': 0}, 'budget=0'),
    ({'seeds': 0}, 'seeds=0'),
    ({'timed': True}, 'shares? a process'),
    ({'baseline': 'PPO'}, "no variant 'PPO'"),
    ({'goals': (study_plan.Goal('A', 1.0, 1, 1),)}, "no variant 'A'"),
    (
      {'contrasts': (study_plan.Contrast('x', 'DQN', 'A'),)},
      "no variant 'A'",
    ),
    (
      {
        'variants': {
          name: study_plan.Variant(('dqn',)) for name in ('DQN', 'dqn!')
        }
      },
      'one directory',
    ),
  ],
)
def test_a_study_that_cannot_be_is_refused(changes, message):
  with pytest.raises(ValueError, match=message):
    _study(**changes)


def test_agents_that_share_a_budget_have_their_part_of_it(tmp_path):
  shared = study_plan.Variant(('dqn:cartpole',), shared_by=4)
  study = _study(
    variants={'one': study_plan.Variant(()), 'four': shared},
    baseline='one',
    goals=(),
    contrasts=(),
  )
  part = f'--config.run.steps_per_agent={study.budget // 4}'
  assert part in study_plan.arguments(study, 'four')
  jobs = study_plan.jobs(study, tmp_path)
  assert {job.variant: job.scale for job in jobs} == {'one': 1, 'four': 4}
  with pytest.raises(ValueError, match='shared_by=4'):
    study_plan.Variant((), together=True, shared_by=4)


def test_steps_that_teach_nothing_come_on_top():
  late = study_plan.Variant(('gorila_dqn:cartpole',), counted=0.75)
  study = _study(
    variants={'three': study_plan.Variant(()), 'late': late},
    baseline='three',
    goals=(),
    contrasts=(),
    budget=900,
  )
  assert '--config.run.steps_per_agent=1200' in study_plan.arguments(
    study, 'late'
  )
  for wrong in (0.0, 1.1):
    with pytest.raises(ValueError, match=f'counted={wrong}'):
      study_plan.Variant((), counted=wrong)


# Those of the project.


@pytest.fixture(scope='module')
def study_commands(tmp_path_factory, run_commands):
  """(study, variant) to what its script makes of the command of seed 0."""
  directory = tmp_path_factory.mktemp('commands')
  jobs = [
    job
    for study in declared.STUDIES.values()
    for job in study_plan.jobs(dataclasses.replace(study, seeds=1), directory)
  ]
  found = {}
  for script in {job.script for job in jobs}:
    own = [job for job in jobs if job.script == script]
    ours = script.name == 'run.py'
    print_it = () if ours else ('--print-config',)
    mode = 'resolve' if ours else 'no_start'
    cases = [
      {'argv': [*job.arguments, *print_it], 'cwd': str(directory), 'mode': mode}
      for job in own
    ]
    said = run_commands(cases, script)
    for answer in said:
      if not ours and not answer['code']:
        answer['stdout'] = f'{{"config": {answer["stdout"]}}}'
    found.update({(job.study, job.variant): a for job, a in zip(own, said)})
  return found


@pytest.mark.parametrize(
  'study', declared.STUDIES.values(), ids=lambda s: s.name
)
def test_the_commands_of_a_study_can_be_run_and_are_what_it_says(
  study, study_commands
):
  networks, evaluations = set(), set()
  for label in study.variants:
    answer = study_commands[study.name, label]
    assert answer['code'] == 0, answer['stderr']
    config = json.loads(answer['stdout'])['config']
    assert config['environment'] == study.environment
    share = study.budget_of(label) / study.variants[label].scale
    assert abs(config['run']['steps_per_agent'] - share) < 1
    assert config['run']['target_return'] is None
    agent = config['agent']
    sizes = agent.get('hidden_sizes') or agent['policy_sizes']
    if study.variants[label].budget is None:
      networks.add((*sizes, agent.get('activation')))
    evaluations.add(
      (config['run']['evaluations'], config['run']['eval_episodes'])
    )
  # The rules of a comparison: same evaluation schedule, and same network but
  # for a system that has a budget of its own.
  assert len(networks) == len(evaluations) == 1


@pytest.mark.parametrize('name', ['apex_cartpole', 'apex_acrobot'])
def test_the_plain_dqn_samples_as_often_as_ape_x(name, study_commands):
  plain = json.loads(study_commands[name, 'DQN']['stdout'])
  apex = json.loads(study_commands[name, 'Ape-X DQN']['stdout'])
  assert plain['config']['pace'] == apex['config']['pace']


def test_every_published_study_is_listed_with_what_it_compares():
  page = session.root() / 'docs' / 'results' / 'README.md'
  text = page.read_text(encoding='utf-8')
  for study in declared.STUDIES.values():
    assert re.search(rf'^\| .*`{study.name}`.*\|$', text, re.M), study.name
