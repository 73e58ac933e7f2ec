"""A sweep of real runs; what it refuses before any; its table."""

import contextlib
import csv
import dataclasses
import io
import signal
import sys

import numpy as np
import pytest

from murmuration.launch import command_line
from murmuration.run_records import commands
from murmuration.run_records import curves
from murmuration.run_records import jsonable
from murmuration.run_records import run_directory
from murmuration.studies import runs as study_runs
from murmuration.studies import sweep
from murmuration.studies import sweep_plan

_SMALL = (
  '--config.agent.min_replay_size=50',
  '--config.run.evaluations=3',
  '--config.run.eval_episodes=2',
)


def _plan(*argv):
  spaces, words = sweep_plan.spaces(argv)
  rest, fixed = command_line.overrides(words)
  return sweep_plan.plan(sweep._parser().parse(rest), spaces, fixed)


@pytest.mark.parametrize(
  ('argv', 'said'),
  [
    (['dqn', 'learning_rat=1,2'], 'agent.learning_rate'),
    (['dqn', 'learning_rate=1e-3,-1'], 'positive'),
    (['dqn', 'learning_rate=1e-3,x'], 'not a number'),
    (['dqn', 'learning_rate=1,1e-3', '--config.agent.tua=1'], 'tau'),
    (['dqn', 'steps_per_agent=1,2'], '--steps'),
    (['dqn', 'gamma=0.9', '--config.agent.gamma=0.8'], 'both tried and fixed'),
    (['dqn', 'gamma=0.9', '--how=gird'], 'grid'),
    (['dqn', 'gamma=0.9', '--trials=3'], 'a grid has them all'),
    (['dqn', 'gamma=uniform(0,1)'], 'a grid needs values'),
    (['dqn', 'gamma=0.9', 'gamma=0.8'], 'twice'),
    (['dqn', 'gamma=0.9', 'agent.gamma=0.8'], 'agent.gamma is there twice'),
    (
      ['dqn', 'learning_rate=1e-3,0.001'],
      '--config.agent.learning_rate=1e-3 and '
      '--config.agent.learning_rate=0.001 are the same',
    ),
    (['dqn', 'gamma=0.9', '--lp_launch_type=local'], 'local_mp'),
    (['dqn', 'gamma=0.9', '--ray_address=a:1'], '--lp_launch_type=ray'),
    (['dqn', 'gamma=0.9,0.8,0.7', '--steps=300'], 'min_replay'),
    (['dqn', 'gamma=0.9', '--how=halving'], 'grid, random'),
    (['dqn', 'seed=1,2'], '--seeds=N'),
    (['dqn', 'environment=A,B'], '--config.environment=ID'),
    (['dqn', 'topology=swarm,gossip'], '--topology=NAME'),
    (['gala_a2c', 'topology=x'], 'gossip.topology='),  # its own setting
    (['dqn'], 'nothing is to be tried'),
    (['dqn', 'gamma=0.9', '--job=2'], '--jobs'),
    # A combination that cannot be, found by checking every trial.
    (['ppo', 'rollout_steps=100', 'unroll_length=100,7'], 'rollout_steps'),
  ],
)
def test_what_cannot_be_is_refused_before_anything_runs(argv, said):
  with pytest.raises(ValueError, match='.') as error:
    _plan(*argv)
  assert said in str(error.value)


def test_a_sweep_takes_no_directory_of_a_run_and_no_file(
  tmp_path, monkeypatch, capsys
):
  kept = tmp_path / 'run'
  run_directory.create(kept, {}, {})
  there = sorted(kept.iterdir())
  (tmp_path / 'file').touch()
  for name, said in (('run', 'run is a run: give'), ('file', 'file is a file')):
    argv = ['sweep', 'dqn', 'gamma=0.9', f'--dir={tmp_path}/{name}']
    monkeypatch.setattr(sys, 'argv', argv)
    assert sweep.main() == 2
    assert said in capsys.readouterr().err
  assert sorted(kept.iterdir()) == there


def test_runs_are_named_by_their_settings_and_not_by_their_place():
  few = _plan('dqn', 'learning_rate=1e-3,1e-4', '--steps=600', '--seeds=2')
  more = _plan('dqn', 'learning_rate=1e-5,0.0001,1e-3', '--steps=900')
  assert set(few.trials) < set(more.trials)
  other = _plan('dqn', 'learning_rate=1e-3', '--config.agent.gamma=0.5')
  assert not set(other.trials) & set(more.trials)
  jobs = few.jobs()
  assert len({job.path for job in jobs}) == len(jobs) == 4
  for job in jobs:
    assert '--config.run.steps_per_agent=600' in job.arguments
    assert '--config.run.target_return=None' in job.arguments


def test_what_changes_nothing_beside_the_rest_of_a_trial_is_not_tried():
  argv = 'dqn', 'prioritized=False,True', 'priority_exponent=0.4,0.7'
  found = _plan(*argv, '--steps=600')
  assert [*found.trials.values()] == [
    {'agent.prioritized': 'False'},
    {'agent.prioritized': 'True', 'agent.priority_exponent': '0.4'},
    {'agent.prioritized': 'True', 'agent.priority_exponent': '0.7'},
  ]
  drawn = _plan(*argv, '--steps=600', '--how=random', '--trials=9')
  assert len(drawn.trials) == 3
  for words in (
    ('priority_exponent=0.4,0.7',),  # in none of them
    ('prioritized=False,True', '--config.agent.priority_exponent=0.4'),
  ):
    with pytest.raises(ValueError, match='would change nothing here'):
      _plan('dqn', *words, '--steps=600')


def test_all_runs_are_on_the_cluster_that_was_named():
  words = ('--lp_launch_type=ray', '--ray_address=10.0.0.1:6379')
  found = _plan('dqn', 'gamma=0.9,0.8', '--steps=600', *words)
  for job in found.jobs():
    rest, _ = command_line.overrides(job.arguments)
    args = command_line._parser(None).parse(rest)
    assert args.ray_address == '10.0.0.1:6379'


def test_a_rate_that_falls_falls_over_the_steps_of_the_sweep():
  found = _plan('impala:cartpole', 'gamma=0.9', '--steps=5000')
  assert '--config.agent.anneal_env_steps=5000' in found.flags
  assert not any('steps_per_agent' in flag for flag in found.flags)


def test_two_commands_do_not_make_the_runs_of_one_sweep(
  tmp_path, monkeypatch, capsys
):
  argv = ['sweep', 'dqn', 'gamma=0.9', '--steps=600', f'--dir={tmp_path}']
  monkeypatch.setattr(sys, 'argv', argv)
  monkeypatch.setattr(sys, 'path', [*sys.path])
  monkeypatch.setattr(signal, 'signal', lambda *unused: None)
  monkeypatch.setattr(sweep, 'run', lambda *unused: 0)
  with study_runs.alone([tmp_path]):
    assert sweep.main() == 2
  assert 'another process is making runs' in capsys.readouterr().err
  assert sweep.main() == 0


def test_the_best_is_first_and_crashes_are_last():
  found = _plan('dqn', 'gamma=0.5,0.6,0.7,0.8', '--seeds=2')
  a, b, c, d = found.trials

  def record(score, code=0):
    return {'score': score, 'exit_code': code, 'env_steps': 10}

  table = sweep.rows(
    found,
    {
      a: [record(9.0), record(11.0)],
      b: [record(5.0), record(6.0)],
      c: [record(None, 1), record(99.0)],
      d: [record(7.0), record(8.0)],
    },
  )
  assert [row['run'] for row in table] == [f'{n}-*' for n in (a, d, b, c)]
  assert [row['score'] for row in table] == [10.0, 7.5, 5.5, None]
  assert table[3]['crashed'] == 1 and table[0]['env_steps'] == 20
  header, first, *_ = sweep.text_table(table).splitlines()
  assert header.split()[0] == 'agent.gamma' and first.split()[0] == '0.5'


@pytest.mark.parametrize('best', [0, 1, 2])
def test_the_table_has_a_column_for_each_setting_that_a_trial_has(
  tmp_path, monkeypatch, best
):
  argv = 'dqn', 'prioritized=False,True', 'priority_exponent=0.4,0.6'
  found = _plan(*argv, '--seeds=1', f'--dir={tmp_path}')
  score = dict.fromkeys(found.trials, 1.0)
  score[list(found.trials)[best]] = 2.0

  def run_all(jobs, *unused):
    for job in jobs:
      run_directory.create(job.path, {}, {})
      record = {'exit_code': 0, 'score': score[job.variant], 'env_steps': 1}
      jsonable.write(job.record, record)

  monkeypatch.setattr(study_runs, 'run_all', run_all)
  assert sweep.run(found) == 0
  with open(tmp_path / 'table.csv', newline='') as file:
    table = list(csv.DictReader(file))
  tried = [
    (row['agent.prioritized'], row['agent.priority_exponent']) for row in table
  ]
  rest = [('False', ''), ('True', '0.4'), ('True', '0.6')]
  assert tried == [rest.pop(best), *rest]
  assert {row['steps'] for row in table} == {'30000'}
  reached = {
    name: [{'score': score[name], 'exit_code': 0, 'env_steps': 1}]
    for name in found.trials
  }
  lines = sweep.text_table(sweep.rows(found, reached)).splitlines()
  assert {len(line.split()) for line in lines} == {9}


@pytest.mark.parametrize(
  ('steps', 'score'),
  # The last evaluation may stand behind: the first from the budget on counts.
  [(1000, 40.0), (980, 40.0), (500, 20.0), (400, 20.0), (100, 0.0)],
)
def test_what_a_longer_sweep_has_made_of_a_run_does_not_count(
  tmp_path, monkeypatch, steps, score
):
  found = _plan('dqn', 'gamma=0.9', '--seeds=1', f'--dir={tmp_path}')
  (job,) = dataclasses.replace(found, steps=steps).jobs()
  run_directory.create(job.path, {}, {})
  jsonable.write(job.record, {'exit_code': 0})
  at = np.array([200.0, 350, 510, 700, 850, 1010])
  kept = curves.Curve(at, at, np.array([0.0, 20, 40, 30, 40, 50]))
  monkeypatch.setattr(curves, 'of_run', lambda path: kept)
  assert sweep.scored(job)['score'] == score


def test_a_generation_that_ends_far_beyond_the_budget_is_scored(
  tmp_path, monkeypatch
):
  found = _plan('es_mlp', 'sigma=0.1', '--seeds=1', f'--dir={tmp_path}')
  (job,) = dataclasses.replace(found, steps=30_000).jobs()
  run_directory.create(job.path, {}, {})
  jsonable.write(job.record, {'exit_code': 0})
  at = np.array([0.0, 40_394])
  kept = curves.Curve(at, at, np.array([10.0, 50.0]))
  monkeypatch.setattr(curves, 'of_run', lambda path: kept)
  assert sweep.scored(job)['score'] == 30.0


def test_the_picture_has_the_whole_runs_that_were_asked_for(
  tmp_path, monkeypatch
):
  found = _plan('dqn', 'gamma=0.9', '--seeds=3', f'--dir={tmp_path}')
  (name,) = found.trials
  drawn, records = {}, []
  for seed, code in enumerate((0, 1, 0, 0)):  # the last by an earlier sweep
    job = found.job(name, seed)
    run_directory.create(job.path, {}, {})
    score = None if code else 1.0
    records.append({'exit_code': code, 'score': score, 'env_steps': 1})
    jsonable.write(job.record, records[-1])
  monkeypatch.setattr(curves, 'of_run', lambda path: path.name)
  monkeypatch.setattr(
    sweep.study_plots,
    'compare_curves',
    lambda groups, *unused, **unused_too: drawn.update(groups),
  )
  sweep._ending(found, sweep.rows(found, {name: records[:3]}))
  assert drawn == {'gamma=0.9, 1 crashed': [f'{name}-0', f'{name}-2']}


@pytest.fixture(scope='module')
def made(tmp_path_factory, forked_runs):
  out = tmp_path_factory.mktemp('sweep') / 'out'
  argv = ['dqn:cartpole', 'num_agents=1,2', '--seeds=1', f'--dir={out}']

  def run(steps=600):
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
      found = _plan(*argv, f'--steps={steps}', *_SMALL)
      assert sweep.run(found, parallel=2) == 0
    return said.getvalue()

  run(300)
  return out, run(), run


def test_a_sweep_goes_on_with_more_steps_and_counts_every_sample(made):
  out, said, run = made
  with open(out / 'table.csv', newline='') as file:
    table = list(csv.DictReader(file))
  assert [int(row['steps']) for row in table] == [600, 600]
  for row in table:
    (path,) = (p for p in (out / 'runs').glob(row['run']) if p.is_dir())
    found = run_directory.open(path)
    members = int(row['single.num_agents'])
    assert found.config()['single']['num_agents'] == members
    assert found.summary()['totals']['actor_steps'] == int(row['env_steps'])
    # All its agents.
    assert int(row['env_steps']) >= members * int(row['steps'])
    assert len(found.commands()) == 2
  total = sum(int(row['env_steps']) for row in table)
  assert f'{total:,} environment steps in all 2 runs' in said
  assert f'  {commands.called("run")} dqn:cartpole ' in said
  assert (out / 'curves.png').read_bytes().startswith(b'\x89PNG')


def test_what_is_there_is_not_made_again(made):
  out, said, run = made
  before = {p: p.stat().st_mtime_ns for p in out.glob('runs/*.json')}
  assert run().splitlines()[-1] == said.splitlines()[-1]
  after = {p: p.stat().st_mtime_ns for p in out.glob('runs/*.json')}
  assert after == before and len(after) == 4


def test_the_usage_shows_where_settings_stand():
  usage = sweep._parser().format_usage()
  assert usage.endswith('AGENT[:PRESET] [SETTING=VALUES ...]\n')
