"""What a sweep refuses before any run; its trials, its table, its end."""

import csv
import json
import pathlib
import re
import shlex
import signal
import sys

import numpy as np
import optuna
import pytest

from murmuration import jobs
from murmuration import sweep
from murmuration import trials
from murmuration.launch import command_line
from murmuration.launch import registry
from murmuration.run_records import commands
from murmuration.run_records import jsonable
from murmuration.run_records import run_directory
from murmuration.studies import render_docs

_SMALL = (
  '--config.agent.min_replay_size=50',
  '--config.run.evaluations=3',
  '--config.run.eval_episodes=2',
)
_DIFFERENT = 'dqn', 'prioritized=False,True', 'priority_exponent=0.4,0.6'


def _refusal(*argv):
  with pytest.raises(ValueError, match='.') as error:
    sweep.read(argv).checked()
  return str(error.value)


@pytest.mark.parametrize(
  ('argv', 'said'),
  [
    (['dqn', 'learning_rat=1,2'], 'agent.learning_rate'),
    (['dqn', 'learning_rate=1e-3,-1'], 'learning_rate'),
    (['dqn', 'learning_rate=1e-3,x'], 'learning_rate'),
    (['dqn', 'learning_rate=1,1e-3', '--config.agent.tua=1'], 'tau'),
    (['dqn', 'steps_per_agent=1,2'], 'run.steps_per_agent'),
    (['dqn', 'gamma=0.9', '--config.agent.gamma=0.8'], 'agent.gamma'),
    (['dqn', 'gamma=0.9', '--how=gird'], '--how'),
    (['dqn', 'gamma=0.9', '--trials=3'], '--trials'),
    (['dqn', 'gamma=uniform(0,0.5)'], 'gamma'),
    (['dqn', 'gamma=0.9', 'agent.gamma=0.8'], 'agent.gamma is there twice'),
    (
      ['dqn', 'learning_rate=1e-3,0.001'],
      'learning_rate=1e-3 and learning_rate=0.001 are the same',
    ),
    (['dqn', 'gamma=0.9,0.8,0.7', '--steps=300'], 'min_replay'),
    (['dqn', 'seed=1,2'], '--seeds=N'),
    (['dqn', 'environment=A,B'], '--config.environment=ID'),
    (['dqn', 'topology=swarm,gossip'], '--topology=NAME'),
    (['dqn'], 'SETTING=VALUE'),
    (['dqn', 'gamma=0.9', '--job=2'], '--jobs'),
    # A combination that cannot be, found by checking every trial.
    (['ppo', 'rollout_steps=100', 'unroll_length=100,7'], 'rollout_steps'),
    # Of a search, each end.
    (['dqn', '--how=tpe', 'gamma=uniform(0.9,7)'], 'gamma'),
    (['dqn', '--how=random', 'learning_rate=1e-3,x'], 'learning_rate'),
    # What changes nothing in any trial, or beside what is fixed.
    (['dqn', 'priority_exponent=0.4,0.7'], 'priority_exponent'),
    (['dqn', '--how=tpe', 'priority_exponent=uniform(0,1)'], 'exponent'),
    (
      ['dqn', 'prioritized=False,True', '--config.agent.priority_exponent=0.4'],
      'priority_exponent',
    ),
  ],
)
def test_what_cannot_be_is_refused_before_anything_runs(argv, said):
  assert said in _refusal(*argv)


@pytest.mark.parametrize(
  'values',
  [
    '', '1,,2', '1,1', 'log(1e-4)', 'uniform(a,b)', 'uniform(2,1)',
    'uniform(0,inf)', 'log(0,1)', 'int(1,2.5)',
  ],
)  # fmt: skip
def test_what_is_no_space_is_refused(values):
  with pytest.raises(ValueError, match='agent.x'):
    trials.space(f'agent.x={values}', values)


@pytest.mark.parametrize(
  ('text', 'values'),
  [
    ('1e-3,3e-4', ('1e-3', '3e-4')),
    ('(32,),(64, 64),[1,(2,3)]', ('(32,)', '(64, 64)', '[1,(2,3)]')),
    ('tanh', ('tanh',)),
  ],
)
def test_commas_in_brackets_do_not_separate_values(text, values):
  assert trials.space('x', text).choices == values


def test_runs_are_named_by_their_settings_and_not_by_their_place():
  def names(*argv):
    return {trial.name for trial in sweep.read(argv).checked()}

  few = names('dqn', 'learning_rate=1e-3,1e-4', '--steps=900', '--seeds=2')
  more = names('dqn', 'learning_rate=1e-5,0.0001,1e-3', '--steps=900')
  assert len(few) == 2 and few < more
  other = ('--steps=900', '--config.agent.gamma=0.5')
  assert not names('dqn', 'learning_rate=1e-3', *other) & more


def test_what_changes_nothing_beside_the_rest_of_a_trial_is_not_tried():
  found = sweep.read([*_DIFFERENT, '--steps=600']).checked()
  assert [trial.settings for trial in found] == [
    {'agent.prioritized': 'False'},
    {'agent.prioritized': 'True', 'agent.priority_exponent': '0.4'},
    {'agent.prioritized': 'True', 'agent.priority_exponent': '0.6'},
  ]


def test_every_run_has_the_flags_the_whole_budget_and_a_seed_of_its_own():
  words = ('--lp_launch_type=ray', '--ray_address=10.0.0.1:6379')
  found = sweep.read(['impala:cartpole', 'gamma=0.9', '--steps=5000', *words])
  (trial,) = found.checked()
  own = found.jobs(trial)
  assert len({job.path for job in own}) == 3
  for seed, job in enumerate(own):
    rest, config = command_line.overrides(job.arguments)
    assert rest == ['impala:cartpole', *words, f'--seed={seed}']
    assert config == {
      'run.steps_per_agent': '5000',
      'run.target_return': 'None',
      'agent.anneal_env_steps': '5000',  # over which its rate falls
      'agent.gamma': '0.9',
    }


def test_every_sweep_in_the_docs_can_be_planned(tmp_path, monkeypatch):
  (tmp_path / 'my_env.py').write_text(_CORRIDOR)
  monkeypatch.syspath_prepend(tmp_path)
  found = 0
  for page in render_docs.pages():
    text = page.read_text(encoding='utf-8').replace('\\\n', '')
    for line in re.findall(r'^ {4}murmuration sweep (.*)$', text, re.M):
      assert sweep.read(shlex.split(line, comments=True)).checked()
      found += 1
  assert found > 5


_CORRIDOR = """
import gymnasium
import numpy as np

class Corridor(gymnasium.Env):
  max_episode_steps = 50
  observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
  action_space = gymnasium.spaces.Discrete(2)

  def reset(self, *, seed=None, options=None):
    super().reset(seed=seed)
    return np.zeros(2, np.float32), {}

  def step(self, action):
    return np.zeros(2, np.float32), 0.0, False, False, {}

class Remote(Corridor):
  pass
"""


def test_a_preset_that_changed_is_another_sweep(monkeypatch):
  def digest():
    return sweep.read(['dqn', 'gamma=0.9,0.8']).digest()

  before = digest()
  assert digest() == before
  presets = registry.agent('dqn').presets['cartpole']
  monkeypatch.setitem(presets, 'agent', {'learning_rate': 0.5})
  assert digest() != before


# Runs that do not learn: their scores are made up.


@pytest.fixture
def made_up(monkeypatch):
  """made_up(*argv, score): runs a sweep, with score(settings, seed) of runs.

  A score of None is a crash; KeyboardInterrupt an interruption. Returns the
  exit code, the rows of the table, and the runs that were made.
  """

  def run(*argv, score):
    found = sweep.read(argv)
    found.directory.mkdir(exist_ok=True, parents=True)
    made = []

    def begin(waiting, parallel, ended, unwanted):
      for job in waiting:
        made.append(job.path.name)
        value = score(job.trial.settings, job.seed)
        if value is KeyboardInterrupt:
          raise KeyboardInterrupt
        if not job.begun:
          run_directory.create(job.path, {}, {})
        rows = []
        for number in range(1, found.evaluations + 1):
          steps = found.steps * number // found.evaluations
          rows.append({'actor_steps': steps, 'return_mean': value or 0.0})
          lines = ''.join(json.dumps(row) + '\n' for row in rows)
          (job.path / 'metrics' / 'evaluation.jsonl').write_text(lines)
          if unwanted(job):
            break
        else:
          ended(job, int(value is None))

    monkeypatch.setattr(jobs, 'run', begin)
    code = sweep.run(found)
    with open(found.directory / 'table.csv', newline='') as file:
      return code, list(csv.DictReader(file)), made

  return run


@pytest.mark.parametrize('best', ['False', '0.4', '0.6'])
def test_the_table_has_a_column_for_each_setting_that_a_trial_has(
  tmp_path, made_up, capsys, best
):
  code, table, _ = made_up(
    *(*_DIFFERENT, '--steps=600', '--seeds=2', f'--dir={tmp_path}'),
    score=lambda settings, seed: 1.0 + (best in settings.values()) + seed,
  )
  assert code == 0
  tried = [
    (row['agent.prioritized'], row['agent.priority_exponent']) for row in table
  ]
  rest = {
    'False': ('False', ''),
    '0.4': ('True', '0.4'),
    '0.6': ('True', '0.6'),
  }
  assert tried[0] == rest.pop(best) and {*tried[1:]} == {*rest.values()}
  assert [float(row['score']) for row in table] == [2.5, 1.5, 1.5]
  assert (table[0]['worst'], table[0]['best']) == ('2.0', '3.0')
  assert {(row['state'], row['env_steps']) for row in table} == {
    ('done', '1200')
  }
  said = capsys.readouterr().out
  assert '3,600 environment steps in all runs' in said
  assert f'  {commands.called("run")} dqn ' in said
  lines = said.split('\n\n')[1].splitlines()
  assert len(lines) == 4 and {len(line.split()) for line in lines} == {9}


def test_crashes_have_no_score_and_are_made_again_when_asked_for(
  tmp_path, made_up
):
  argv = ('dqn', 'gamma=0.5,0.6', '--seeds=2', f'--dir={tmp_path}')

  def score(settings, seed):
    return None if (settings['agent.gamma'], seed) == ('0.6', 1) else 7.0

  code, table, made = made_up(*argv, score=score)
  assert code == 1 and len(made) == 4
  assert [(row['score'], row['state']) for row in table] == [
    ('7.0', 'done'),
    ('', 'crashed'),
  ]
  code, again, made = made_up(*argv, score=score)
  assert (code, again, made) == (1, table, [])
  code, again, made = made_up(
    *argv, '--retry_crashed', score=lambda settings, seed: 7.0
  )
  assert code == 0 and made == [f'{table[1]["run"][:-1]}1']
  assert [row['state'] for row in again] == ['done', 'done']


@pytest.mark.parametrize('how', ['grid', 'random', 'tpe'])
def test_an_interrupted_sweep_goes_on_and_a_larger_one_has_its_runs(
  tmp_path, made_up, how
):
  argv = ['dqn', 'learning_rate=1e-2,1e-3,1e-4', f'--dir={tmp_path}']
  if how != 'grid':
    argv[1] = 'learning_rate=log(1e-5,1e-2)'
    argv += [f'--how={how}', '--trials=3']
  scores = iter([1.0, 2.0, 3.0, 4.0, KeyboardInterrupt])
  with pytest.raises(KeyboardInterrupt):
    made_up(*argv, score=lambda *unused: next(scores))
  kept = {path.name for path in (tmp_path / 'runs').glob('*.json')}
  assert len(kept) == 4
  code, table, made = made_up(*argv, score=lambda *unused: 5.0)
  assert (code, len(table), len(made)) == (0, 3, 5)
  assert not {f'{name}.json' for name in made} & kept
  assert sorted(float(row['score']) for row in table) == [2.0, 14 / 3, 5.0]
  if how == 'grid':
    argv[1] += ',1e-5'
  else:
    argv[-1] = '--trials=4'
  code, larger, made = made_up(*argv, score=lambda *unused: 6.0)
  assert (code, len(larger), len(made)) == (0, 4, 3)
  assert {row['run'] for row in table} < {row['run'] for row in larger}


def test_random_trials_differ_and_are_drawn_by_the_seed(tmp_path, made_up):
  def tried(directory, *more):
    _, table, _ = made_up(
      *('dqn', 'learning_rate=log(1e-4,1e-2)', 'n_step=int(1,3)'),
      *('--how=random', '--seeds=1', f'--dir={tmp_path / directory}', *more),
      score=lambda *unused: 1.0,
    )
    return {row['agent.learning_rate']: row['agent.n_step'] for row in table}

  one = tried('a', '--trials=20')
  assert len(one) == 20 and {*one.values()} == {'1', '2', '3'}
  rates = np.array([*map(float, one)])
  # About half of them below the geometric mean, not below the mean.
  assert 1e-4 <= rates.min() and rates.max() <= 1e-2
  assert 5 <= (rates < 1e-3).sum() <= 15
  few = tried('b', '--trials=5').items()
  assert few <= one.items()
  assert not tried('c', '--trials=5', '--draw_seed=1').items() & few


def test_no_more_trials_are_drawn_than_there_are(tmp_path, made_up):
  _, table, made = made_up(
    *('dqn', 'gamma=0.8,0.9', '--how=random', '--trials=4', '--seeds=2'),
    f'--dir={tmp_path}',
    score=lambda *unused: 1.0,
  )
  assert len(table) == 2 and len(made) == len({*made}) == 4


def test_tpe_draws_near_what_was_good(tmp_path, made_up):
  def score(settings, seed):
    return -abs(np.log10(float(settings['agent.learning_rate'])) + 3.0)

  _, table, _ = made_up(
    *('dqn', 'learning_rate=log(1e-7,1e-1)', '--how=tpe', '--trials=30'),
    *('--seeds=1', f'--dir={tmp_path}'),
    score=score,
  )
  study = optuna.load_study(
    study_name=None,
    storage=optuna.storages.JournalStorage(
      optuna.storages.journal.JournalFileBackend(str(tmp_path / 'optuna.log'))
    ),
  )
  assert len(study.trials) == len(table) == 30
  miss = [-trial.value for trial in study.trials]
  assert np.mean(miss[20:]) < 0.7 * np.mean(miss[:10])


def test_bad_trials_are_pruned_by_their_evaluations(tmp_path, made_up):
  # Seven good ones, then two that are bad in all seeds.
  rates = ','.join(f'{number}e-4' for number in range(1, 10))
  argv = ('dqn', f'learning_rate={rates}', '--seeds=2', f'--dir={tmp_path}')

  def score(settings, seed):
    return 1.0 if settings['agent.learning_rate'] in ('8e-4', '9e-4') else 9.0

  code, table, made = made_up(*argv, '--prune', score=score)
  assert code == 0 and len(made) == 7 * 2 + 2
  assert [row['state'] for row in table] == ['done'] * 7 + ['pruned'] * 2
  # They were stopped before the end of their first run.
  steps = [int(row['env_steps']) for row in table]
  assert max(steps[7:]) < steps[0] / 2 and table[8]['score'] == ''
  assert made_up(*argv, '--prune', score=score) == (0, table, [])


def test_a_sweep_takes_no_directory_of_a_run_and_no_file(
  tmp_path, monkeypatch, capsys
):
  kept = tmp_path / 'run'
  run_directory.create(kept, {}, {})
  there = sorted(kept.iterdir())
  (tmp_path / 'file').touch()
  monkeypatch.setattr(signal, 'signal', lambda *unused: None)
  monkeypatch.setattr(sys, 'path', [*sys.path])
  for name in ('run', 'file'):
    argv = ['sweep', 'dqn', 'gamma=0.9', f'--dir={tmp_path}/{name}']
    monkeypatch.setattr(sys, 'argv', argv)
    assert sweep.main() == 2
    assert f'{tmp_path}/{name}' in capsys.readouterr().err
  assert sorted(kept.iterdir()) == there


def test_two_commands_do_not_make_the_runs_of_one_sweep(
  tmp_path, monkeypatch, capsys
):
  argv = ['sweep', 'dqn', 'gamma=0.9', '--steps=600', f'--dir={tmp_path}']
  monkeypatch.setattr(sys, 'argv', argv)
  monkeypatch.setattr(sys, 'path', [*sys.path])
  monkeypatch.setattr(signal, 'signal', lambda *unused: None)
  monkeypatch.setattr(sweep, 'run', lambda *unused: 0)
  with jobs.alone([tmp_path]):
    assert sweep.main() == 2
  assert str(tmp_path) in capsys.readouterr().err
  assert sweep.main() == 0


def test_the_example_of_the_docs_ends_with_the_right_table(
  tmp_path, monkeypatch, capsys, forked_runs
):
  page = pathlib.Path(sweep.__file__).parents[1] / 'docs' / 'sweep.md'
  (line,) = re.findall(
    r'^ {4}murmuration (sweep dqn priori.*)$', page.read_text(), re.M
  )
  argv = [
    *shlex.split(line),
    *_SMALL,
    '--steps=600',
    '--seeds=1',
    f'--dir={tmp_path}/out',
  ]
  monkeypatch.setattr(sys, 'argv', argv)
  monkeypatch.setattr(sys, 'path', [*sys.path])
  monkeypatch.setattr(signal, 'signal', lambda *unused: None)
  assert sweep.main() == 0
  with open(tmp_path / 'out' / 'table.csv', newline='') as file:
    table = list(csv.DictReader(file))
  scores = [float(row['score']) for row in table]
  assert scores == sorted(scores, reverse=True) and len(scores) == 3
  for row in table:
    (path,) = (
      p for p in (tmp_path / 'out' / 'runs').glob(row['run']) if p.is_dir()
    )
    run = run_directory.open(path)
    assert (
      run.summary()['totals']['actor_steps'] == int(row['env_steps']) == 600
    )
    agent = jsonable.encode(run.config()['agent'])
    assert str(agent['prioritized']) == row['agent.prioritized']
    if row['agent.priority_exponent']:
      assert str(agent['priority_exponent']) == row['agent.priority_exponent']
  assert (tmp_path / 'out' / 'curves.png').read_bytes().startswith(b'\x89PNG')
  records = {
    p: p.stat().st_mtime_ns for p in (tmp_path / 'out').glob('runs/*.json')
  }
  assert len(records) == 3
  assert sweep.main() == 0  # all is there
  assert records == {p: p.stat().st_mtime_ns for p in records}
