"""Runs are made once, crashes stay, and what is no result stops a study.

The scripts here are stand-ins that write a run directory and do no learning;
test_results.py has real ones.
"""

import dataclasses
import json
import subprocess

import numpy as np
import pytest

from murmuration import jobs as jobs_lib
from murmuration.studies import plan as study_plan
from murmuration.studies import results
from murmuration.studies import runs as study_runs
from murmuration.studies import summaries as study_results
from murmuration.studies import tables as study_table
from tests.studies import stand_in


@pytest.fixture
def study(tmp_path, monkeypatch):
  """study(mode of the system, **changes) makes one with two seeds."""
  monkeypatch.setattr(jobs_lib, 'POLL_S', 0.02)
  script = tmp_path / 'script.py'
  script.write_text(stand_in.SCRIPT)

  def make(mode='', **changes):
    numbers = {
      'name': 'fake',
      'environment': 'CartPole-v1',
      'budget': 1000,
      'threshold': 10.0,
      'seeds': 2,
      'variants': {
        'DQN': study_plan.Variant((), script=str(script)),
        'New': study_plan.Variant((f'--mode={mode}',), script=str(script)),
      },
      'baseline': 'DQN',
    }
    return study_plan.Study(**{**numbers, **changes})

  return make


def _published(out):
  return json.loads((out / 'fake' / 'results.json').read_text())


def test_a_study_makes_each_run_once(study, tmp_path, capsys):
  assert results.run([study()], tmp_path) == 0
  assert stand_in.started(tmp_path) == ['dqn-0', 'new-0', 'dqn-1', 'new-1']
  first = _published(tmp_path)
  assert results.run([study()], tmp_path) == 0
  assert len(stand_in.started(tmp_path)) == 4 and _published(tmp_path) == first
  said = capsys.readouterr().out
  assert '[4/4] fake/new-1: done' in said
  assert (tmp_path / 'fake' / 'table.md').read_text() in said


def test_more_seeds_later_make_only_those_that_are_missing(study, tmp_path):
  results.run([study()], tmp_path)
  results.run([study(seeds=3)], tmp_path)
  assert stand_in.started(tmp_path)[4:] == ['dqn-2', 'new-2']


def test_a_run_without_its_record_is_made_again(study, tmp_path):
  results.run([study()], tmp_path)
  before = _published(tmp_path)
  runs = tmp_path / 'fake' / 'runs'
  (runs / 'new-0.json').unlink()  # as if the machine had gone down
  (runs / 'new-0' / 'summary.json').unlink()
  results.run([study()], tmp_path)
  assert stand_in.started(tmp_path)[4:] == ['new-0']
  assert _published(tmp_path)['variants'] == before['variants']


def test_runs_of_other_flags_are_refused_before_any_is_made(study, tmp_path):
  results.run([study()], tmp_path)
  with pytest.raises(jobs_lib.Refused, match='steps_per_agent=1000.*2000'):
    results.run([study(budget=2000, seeds=3)], tmp_path)
  assert len(stand_in.started(tmp_path)) == 4


def test_runs_from_before_a_preset_changed_are_refused(
  study, tmp_path, monkeypatch
):
  results.run([study()], tmp_path)
  monkeypatch.setenv('PRESET', '0.5')
  said = 'agent.learning_rate was 1.0 and is 0.5.*remove the runs of'
  with pytest.raises(jobs_lib.Refused, match=said):
    results.run([study(seeds=3)], tmp_path)
  # A record from before records held a hash: its config.json says it.
  for path in (tmp_path / 'fake' / 'runs').glob('*-?.json'):
    old = json.loads(path.read_text())
    assert old.pop('config')
    path.write_text(json.dumps(old))
  with pytest.raises(jobs_lib.Refused, match=said):
    results.run([study()], tmp_path)
  assert len(stand_in.started(tmp_path)) == 4
  monkeypatch.delenv('PRESET')
  assert results.run([study()], tmp_path) == 0


def test_a_commit_in_mid_study_is_named_beside_the_one_before(
  study, tmp_path, monkeypatch
):
  commits = iter(['one', 'one', 'one', 'two'])  # now and then, of two runs

  run = subprocess.run

  def committed(words, **options):
    if words[0] != 'git':
      return run(words, **options)
    said = next(commits) if words[1] == 'rev-parse' else ''
    return subprocess.CompletedProcess(words, 0, said)

  script = study().variants['DQN'].script
  one = {'DQN': study_plan.Variant((), script=script)}
  with monkeypatch.context() as patched:
    patched.setattr(study_runs.subprocess, 'run', committed)
    results.run([study(variants=one)], tmp_path)
  records = (tmp_path / 'fake' / 'runs').glob('dqn-?.json')
  codes = [json.loads(path.read_text())['code'] for path in sorted(records)]
  assert codes == ['one', 'one to two']
  assert _published(tmp_path)['code'] == codes
  assert 'code one, one to two.' in (tmp_path / 'fake/table.md').read_text()


def test_seeds_of_one_config_have_one_hash():
  config = {'seed': 0, 'agent': {'n_step': 3}}
  assert jobs_lib.digest(config) == jobs_lib.digest({**config, 'seed': 1})
  other = {**config, 'agent': {'n_step': 5}}
  assert jobs_lib.digest(config) != jobs_lib.digest(other)


def test_a_crash_counts_as_random_for_the_rest_and_stays(study, tmp_path):
  broken = study(mode='crash')
  assert results.run([broken], tmp_path) == 1
  # Returns 10 * seed + (0, 1, 2) up to 0.4 of the budget, then 26.
  rest = 0.6 * 26.0
  found = _published(tmp_path)['variants']['New']
  assert found['auc'] == pytest.approx([0.4 + rest, 0.4 * 11 + rest])
  assert found['last_three'] == [26.0, 26.0] and found['crashed'] == 2
  assert results.run([broken], tmp_path) == 1
  assert len(stand_in.started(tmp_path)) == 4
  table = (tmp_path / 'fake' / 'table.md').read_text()
  assert 'New: 2 of 2 crashed' in table


def test_a_study_without_an_evaluation_has_no_picture_and_the_next_is_made(
  study, tmp_path, capsys
):
  script = study().variants['DQN'].script
  early = study_plan.Variant(('--mode=early',), script=script)
  broken = study(variants={'DQN': early, 'New': early})
  (tmp_path / 'fake').mkdir()
  (tmp_path / 'fake' / 'learning_curves.png').touch()  # of other runs
  assert results.run([broken, study(name='next')], tmp_path) == 1
  assert 'fake has no picture: no run of' in capsys.readouterr().err
  assert _published(tmp_path)['variants']['New']['crashed'] == 2
  assert not (tmp_path / 'fake' / 'learning_curves.png').exists()
  assert (tmp_path / 'next' / 'learning_curves.png').exists()


def test_crashed_runs_are_made_again_when_asked_for(
  study, tmp_path, monkeypatch
):
  broken = study(mode='crash')
  results.run([broken], tmp_path)
  monkeypatch.setenv('REPAIRED', '1')
  assert results.run([broken], tmp_path, retry_crashed=True) == 0
  assert stand_in.started(tmp_path)[4:] == ['new-0', 'new-1']
  assert _published(tmp_path)['variants']['New']['crashed'] == 0


def test_a_variant_that_is_refused_is_said_before_any_run(study, tmp_path):
  with pytest.raises(jobs_lib.Refused, match='(?s)--mode=refused.*no agent of'):
    results.run([study(mode='refused')], tmp_path)
  assert not (tmp_path / 'fake').exists()


@pytest.mark.parametrize(
  'mode, message', [('usage', 'no such flag'), ('fail', 'half an edit')]
)
def test_a_program_that_does_not_begin_is_no_result(
  study, tmp_path, mode, message
):
  with pytest.raises(jobs_lib.Refused, match=message):
    results.run([study(mode=mode)], tmp_path)
  # The first of them stopped it; what was there is kept.
  assert stand_in.started(tmp_path) == ['dqn-0', 'new-0']
  assert (tmp_path / 'fake' / 'runs' / 'dqn-0.json').exists()
  assert not (tmp_path / 'fake' / 'runs' / 'new-0.json').exists()


def test_seeds_that_share_a_process_are_its_members(study, tmp_path):
  made = study()
  variants = {
    'DQN': dataclasses.replace(made.variants['DQN'], together=True),
    'New': made.variants['New'],
  }
  made = study(variants=variants)
  results.run([made], tmp_path)
  assert sorted(stand_in.started(tmp_path)) == ['dqn-of-2', 'new-0', 'new-1']
  found = _published(tmp_path)['variants']
  # The members' returns here are those of the seeds of the other.
  assert found['DQN']['auc'] == found['New']['auc'] == [2.5, 12.5]
  assert found['DQN']['steps_per_s'] == [pytest.approx(2000 / 6.0)]
  table = (tmp_path / 'fake' / 'table.md').read_text()
  assert 'DQN: its 2 seeds share one process' in table


def test_the_best_of_eight_is_chosen_on_some_episodes_and_scored_on_others(
  study, tmp_path
):
  made = study()
  script = made.variants['DQN'].script
  best = study_plan.Variant((), best_of=3, script=script)
  made = study(variants={'Best': best, 'DQN': made.variants['DQN']})
  results.run([made], tmp_path)
  # A process for each seed, as its agents are one system.
  assert sorted(stand_in.started(tmp_path)) == [
    'best-0',
    'best-1',
    'dqn-0',
    'dqn-1',
  ]
  found = _published(tmp_path)['variants']['Best']
  curve = [0.0, 101.0, 202.0, 3.0, 104.0, 205.0]
  assert found['last_three'] == [pytest.approx(np.mean(curve[-3:]))] * 2
  area = np.interp(np.linspace(0, 5, 100_001), range(6), curve).mean()
  assert found['auc'] == [pytest.approx(area, rel=1e-4)] * 2
  assert '--config.single.num_agents=3 ' in found['command']
  table = (tmp_path / 'fake' / 'table.md').read_text()
  assert 'Best: each seed is 3 independent agents.' in table


def test_what_supervisors_played_is_said_beside_the_explorers_steps(
  study, tmp_path
):
  results.run([study(mode='swarm')], tmp_path)
  found = _published(tmp_path)['variants']
  assert found['New']['supervisor_steps'] == [70, 72]
  assert 'supervisor_steps' not in found['DQN']
  table = (tmp_path / 'fake' / 'table.md').read_text()
  said = "New: steps are the explorers'. In each process supervisors made 71"
  assert said in table and 'DQN: steps are' not in table


def test_a_best_of_one_seed_each_cannot_share_a_process():
  with pytest.raises(ValueError, match='best_of=8'):
    study_plan.Variant((), together=True, best_of=8)


def test_several_runs_go_at_a_time_unless_seconds_are_compared(
  study, tmp_path, monkeypatch
):
  seen = []
  run_all = study_runs.run_all

  def watch(jobs, parallel, progress):
    seen.append(parallel)
    run_all(jobs, parallel, progress)

  monkeypatch.setattr(study_runs, 'run_all', watch)
  timed = study(name='timed', timed=True)
  results.run([study(), timed], tmp_path, parallel=4)
  assert seen == [4, 1]
  assert 'by_seconds' not in _published(tmp_path)
  timed_results = json.loads((tmp_path / 'timed/results.json').read_text())
  # Seed 0 ends after 6 s, seed 1 after 11 s.
  assert timed_results['by_seconds']['seconds'] == 8.5


def test_what_is_published_goes_where_it_belongs(study, tmp_path):
  docs = tmp_path / 'docs'
  results.run([study()], tmp_path / 'out', publish=docs)
  assert {path.name for path in (docs / 'fake').iterdir()} == {
    'results.json', 'table.md', 'learning_curves.png'
  }  # fmt: skip
  assert {path.name for path in (tmp_path / 'out/fake').iterdir()} == {'runs'}


def test_whole_runs_have_seconds_up_to_their_last_evaluation(study, tmp_path):
  made = study()
  results.run([made], tmp_path)
  jobs = study_plan.jobs(made, tmp_path / 'fake' / 'runs')
  system = study_results.read(made, jobs)['DQN']
  assert system.seconds == [6.0, 11.0]  # not the 99 of the summary
  assert system.steps_per_s == pytest.approx([1000 / 6, 1000 / 11])


def test_evaluations_that_a_curve_lacks_are_said_below_the_table(
  study, tmp_path
):
  made = study()
  results.run([made], tmp_path)
  jobs = study_plan.jobs(made, tmp_path / 'fake' / 'runs')

  def table():
    found = study_results.collect(made, study_results.read(made, jobs), 'make')
    return study_table.render(found)

  assert 'given up' not in table() and 'fewer than 0.8' not in table()
  (first, second) = (job for job in jobs if job.variant == 'New')
  path = first.path / 'metrics' / 'evaluation.jsonl'
  rows = [json.loads(line) for line in path.read_text().splitlines()]
  rows[2] |= {'return_mean': 'NaN', 'member_returns': ['NaN']}
  path.write_text(''.join(json.dumps(row) + '\n' for row in rows))
  for job, evaluations in ((first, 7), (second, 7), (jobs[0], 8)):
    path = job.path / 'config.json'
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, 'run': {'evaluations': evaluations}}))
  # Of six points one is gone, and five are fewer than 0.8 of seven.
  assert 'New: 1 evaluations were given up' in table()
  assert 'New: curves of 1 of 2 have fewer than 0.8' in table()
  assert 'DQN: curves of 1 of 2 have fewer than 0.8' in table()
  assert 'DQN: 1 evaluations' not in table()
