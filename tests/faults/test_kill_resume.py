"""A launcher killed at random moments: the run goes on each time."""

import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from murmuration.run_records import checkpoints
from tests.faults import kill_resume


@pytest.mark.long
def test_two_kills_are_survived(capsys, monkeypatch):
  # Beside other tests, a checkpoint takes many times as long.
  monkeypatch.setattr(kill_resume, 'STATED_S', 60.0)
  handler = signal.getsignal(signal.SIGTERM)
  try:
    code = kill_resume.main(['--times=2', '--seed=1'])
  finally:
    signal.signal(signal.SIGTERM, handler)
  assert code == 0, capsys.readouterr()
  said = capsys.readouterr().out
  assert '2 kills, 0 complaints' in said


def test_updates_are_those_of_whoever_learns_in_any_topology(tmp_path):
  campaign = kill_resume.Campaign(tmp_path, ['dqn'], 6.0)
  directory = campaign.run / 'checkpoints'
  directory.mkdir(parents=True)
  assert campaign.learner_steps() == 0
  for name, arrays in (
    ('learner-0.npz', {'updates': np.array(3)}),
    ('explorer-1.npz', {'updates': np.array(20)}),
    ('shard-0.npz', {'counts': np.array([100, 7])}),
    ('evolution.npz', {'numbers': np.array([1000, 5])}),
    ('best.npz', {'return': np.array(5.0)}),
    ('star_server.npz', {'version': np.array(5)}),
  ):
    checkpoints.write(directory / name, **arrays)
  assert campaign.learner_steps() == 1123


def test_steps_are_those_that_a_next_counter_goes_on_from(tmp_path):
  campaign = kill_resume.Campaign(tmp_path, ['dqn'], 6.0)
  assert campaign.steps() == 0
  (campaign.run / 'metrics').mkdir(parents=True)
  path = campaign.run / 'metrics' / checkpoints.COUNTER
  checkpoints.write_state(path, {'totals': {'actor_steps': 47}})
  assert campaign.steps() == 47


@pytest.fixture
def campaign(tmp_path, monkeypatch):
  """Of runs that sleep, and have saved something since they were started."""
  campaign = kill_resume.Campaign(tmp_path, ['dqn'], 0.0)
  (tmp_path / 'output.txt').touch()
  sleeps = [sys.executable, '-c', 'import time; time.sleep(600)']
  monkeypatch.setattr(campaign, 'start', lambda _: subprocess.Popen(sleeps))
  monkeypatch.setattr(campaign, '_oldest_save', lambda: time.time() + 60)
  return campaign


@pytest.mark.parametrize(
  ('after', 'complaints'),
  [((20, 7), 0), ((20, 5), 0), ((20, 4), 1), ((9, 7), 1), ((9, 4), 1)],
)
def test_steps_or_updates_that_fall_are_complained_about(
  campaign, monkeypatch, after, complaints
):
  for name, seen in (
    ('steps', iter((10, after[0]))),
    ('learner_steps', iter((5, after[1]))),
  ):
    monkeypatch.setattr(campaign, name, lambda seen=seen: next(seen))
  campaign.kill_once(random.Random(0))
  assert len(campaign.kills) == 1
  assert len(campaign.complaints) == complaints, campaign.complaints


@pytest.mark.parametrize(('stated_s', 'complaints'), [(-50.0, 0), (-70.0, 1)])
def test_more_that_is_lost_than_was_stated_is_complained_about(
  campaign, monkeypatch, stated_s, complaints
):
  # What it saved is 60 s younger than its end.
  monkeypatch.setattr(kill_resume, 'STATED_S', stated_s)
  campaign.kill_once(random.Random(0))
  assert ['lost -' in words for words in campaign.complaints] == (
    [True] * complaints
  )
