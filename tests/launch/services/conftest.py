"""What tests of services share."""

import pytest

from murmuration.environment_loops import environments
from tests.launch.services import inference_cases
from tests.launch.services import star_cases


@pytest.fixture
def make_swarm(monkeypatch):
  """make_swarm(run_dir=None, **swarm settings): a star that runs."""
  made = []
  monkeypatch.setattr(environments, 'spec', lambda unused: star_cases.SPEC)
  monkeypatch.setattr(environments, 'make', lambda *unused: made[-1].script)

  def make(run_dir=None, counter=None, run=None, **settings):
    swarm = star_cases.Swarm(
      run_dir, counter or star_cases.Counter(), run or {}, settings
    )
    made.append(swarm)
    swarm.start()
    return swarm

  yield make
  for swarm in made:
    swarm.end()


@pytest.fixture
def world():
  """world(agent, **config) starts an inference server."""
  made = []

  def make(agent='impala', **options):
    made.append(inference_cases.World(agent, **options))
    return made[-1]

  yield make
  for one in made:
    one.close()
