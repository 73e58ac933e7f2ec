"""A launcher killed at random moments: the run goes on each time."""

import numpy as np
import pytest

from run_records import checkpoints
from studies import kill_resume


@pytest.mark.long
def test_two_kills_are_survived(capsys):
  assert kill_resume.main(['--times=2', '--seed=1']) == 0, capsys.readouterr()
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
