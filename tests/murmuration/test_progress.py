"""The bar, and what stands above it."""

import io
import sys

import pytest

from murmuration import progress


def test_the_bar_says_how_far_it_is(capsys):
  bar = progress.Bar(True)
  tick = {'steps': 500, 'budget': 1000, 'elapsed_s': 2.0}
  bar.show('evaluation', {'return_mean': 21.0})
  bar.show('tick', tick)
  bar.close()
  shown = capsys.readouterr().err
  assert ' 50%' in shown and '250/s' in shown and 'return 21.0' in shown
  progress.Bar(False).show('tick', tick)
  assert capsys.readouterr().err == ''


def test_a_bar_is_full_at_most_and_a_shorter_one_covers_it(capsys):
  bar = progress.Bar(True)
  bar.show('tick', {'steps': 1010, 'budget': 1000, 'elapsed_s': 1e-3})
  bar.show('tick', {'steps': 1010, 'budget': 1000, 'elapsed_s': 1e3})
  _, long, short = capsys.readouterr().err.split('\r')
  assert f'[{"#" * 24}] 100%' in long
  assert short.strip() and len(short) == len(long)


def test_a_note_stands_above_the_bar_also_where_that_is_not_shown(capsys):
  tick = {'steps': 500, 'budget': 1000, 'elapsed_s': 2.0}
  for shown in (True, False):
    bar = progress.Bar(shown)
    bar.show('tick', tick)
    bar.say('note: no step limit')
    bar.show('tick', tick)
    bar.close()
    lines = capsys.readouterr().err.replace('\r', '\n').split('\n')
    kept = [line.strip() for line in lines if line.strip()]
    assert 'note: no step limit' in kept and len(kept) == (3 if shown else 1)


class _Full(io.StringIO):
  def write(self, text):
    raise OSError(28, 'No space left on device')


@pytest.mark.parametrize('stream', [None, io.StringIO(), _Full()])
def test_a_bar_that_nobody_can_see_ends_no_run(monkeypatch, stream):
  if type(stream) is io.StringIO:
    stream.close()
  monkeypatch.setattr(sys, 'stderr', stream)
  for shown in (None, True):
    bar = progress.Bar(shown)
    bar.show('tick', {'steps': 5, 'budget': 10, 'elapsed_s': 2.0})
    bar.say('note: nobody')
    bar.close()
