"""A launcher killed at random moments: the run goes on each time."""

import pytest

from studies import kill_resume


@pytest.mark.long
def test_two_kills_are_survived(capsys):
  assert kill_resume.main(['--times=2', '--seed=1']) == 0, capsys.readouterr()
  said = capsys.readouterr().out
  assert '2 kills, 0 complaints' in said
