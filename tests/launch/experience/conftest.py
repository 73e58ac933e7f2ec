"""What all kinds of experience have to do alike."""

import pytest

from murmuration.launch import pulse
from murmuration.replay import sampler
from murmuration.replay import writer


@pytest.fixture
def check_patience(monkeypatch):
  """check_patience(experience): servers are waited for as long as tables."""

  def check(found):
    given = []
    monkeypatch.setattr(
      writer, 'ItemWriter', lambda *args: given.append(args[3])
    )
    monkeypatch.setattr(
      sampler, 'ShardedSampler', lambda *args, **options: given.append(options)
    )
    found.adder(object(), 'replay', None, None, lambda: False)
    found.source([], 'replay', lambda: False)
    options, read = given
    assert read['connect_timeout_s'] == pulse.WAIT_S
    assert options.timeout_s == pulse.WAIT_S

  return check
