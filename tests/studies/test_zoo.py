"""What comes into the zoo: good enough, small enough, and nothing else."""

import shutil
import sys

import pytest

from murmuration import export
from murmuration import jobs
from murmuration import play
from murmuration.run_records import jsonable
from murmuration.run_records import run_directory
from murmuration.studies import runs
from murmuration.studies import zoo


@pytest.fixture
def entered(tmp_path, monkeypatch):
  """entered(target, environment): a run whose policy is an entry's."""
  source = play.policies()['dqn:cartpole']  # its score is 497.8

  def enter(target, environment='CartPole-v1', most=zoo.MOST_BYTES):
    config = {'environment': environment, 'run': {'target_return': target}}
    run = run_directory.create(tmp_path / 'run', config, {})

    def exported(path, to, score, code):
      assert path == run.path and score == 100 and code == 'abc'
      shutil.copy(source, to)

    monkeypatch.setattr(export, 'export', exported)
    monkeypatch.setattr(zoo, 'MOST_BYTES', most)
    return zoo.enter(run.path, tmp_path / 'dqn-cartpole.npz', 'abc')

  yield enter
  names = {path.name for path in tmp_path.iterdir()}
  assert names <= {'run', 'dqn-cartpole.npz'}


@pytest.mark.parametrize('target', [475.0, None])
def test_a_policy_that_reaches_its_target_is_an_entry(
  entered, tmp_path, target
):
  about = entered(target)
  assert 475 < about['score'] < 500
  assert play.load(str(tmp_path / 'dqn-cartpole.npz')).about == about


@pytest.mark.parametrize(
  ('words', 'said'),
  [
    ({'target': 499.0}, '499.0 is needed'),
    ({'target': None, 'environment': 'LunarLander-v3', 'most': 9}, 'bytes'),
  ],
)
def test_what_is_not_good_or_not_small_leaves_nothing(
  entered, tmp_path, words, said
):
  with pytest.raises(ValueError, match=said):
    entered(**words)
  assert not (tmp_path / 'dqn-cartpole.npz').exists()


def test_a_cell_is_an_agent_with_its_preset(monkeypatch, capsys):
  monkeypatch.setattr(sys, 'argv', ['zoo.py', 'dqn'])
  assert zoo.main() == 2
  assert 'AGENT:PRESET' in capsys.readouterr().err


def test_a_run_that_was_broken_off_goes_on_and_one_that_is_over_does_not(
  tmp_path, monkeypatch
):
  begun = []

  def run(found, parallel, ended):
    (job,) = found
    begun.append(job)
    ended(job, 0)

  def revision(since='new'):
    return 'new' if since == 'new' else f'{since} to new'

  monkeypatch.setattr(jobs, 'run', run)
  monkeypatch.setattr(runs, 'revision', revision)
  assert zoo.train('dqn:cartpole', tmp_path / 'other', 1, None) == 'new'
  begun.clear()
  path = run_directory.create(tmp_path / 'run', {'seed': 1}, {}).path
  # By which code the first part was made is not known.
  for finished, code in ((False, 'unknown to new'), (True, 'unknown')):
    jsonable.write(path / 'summary.json', {'finished': finished})
    assert zoo.train('dqn:cartpole', path, 1, None) == code
  (job,) = begun
  assert job.path == path and job.resumes
  with pytest.raises(ValueError, match='of --seed=1, and asked for is .*=2'):
    zoo.train('dqn:cartpole', path, 2, None)
