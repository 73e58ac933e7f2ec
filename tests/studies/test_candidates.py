"""What supervisors kept out, read from a run's rows."""

import pytest

from run_records import metrics
from run_records import run_directory
from studies import candidates

SERVER = {'accepted': 3, 'rejected': 1, 'actor_steps': 900}


def _run(path, confirmations, server=(SERVER,), trials=()):
  """A run with these returns of each version's confirmations."""
  run = run_directory.create(path, {'environment': 'CartPole-v1'}, {})
  writer = metrics.MetricsWriter(run.metrics_directory)
  for row in server:
    writer.row('node_star', row)
  for kind, found in (('confirmation', confirmations), ('trial', trials)):
    for version, returns in dict(found).items():
      for i, episode_return in enumerate(returns):
        row = {'version': version, 'episode_return': episode_return}
        writer.row(
          'supervisor', {**row, 'kind': kind, 'actor_steps': 100 * version + i}
        )
  writer.close()
  return path


def test_a_version_that_is_worse_for_certain_has_fallen(tmp_path):
  noise = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
  higher = [100.0 + n for n in noise]
  run = _run(
    tmp_path / 'a',
    # Better, worse for certain, worse within the noise, better.
    {1: noise, 2: higher, 3: noise, 4: [n - 0.1 for n in noise], 5: higher},
    trials={3: [1e6] * 9},  # trials chose, so they do not judge
  )
  assert candidates.of_run(run) == candidates.Filter(3, 1, judged=4, fallen=1)


def test_a_version_is_judged_by_five_confirmations_at_least(tmp_path):
  run = _run(tmp_path / 'a', {1: [9.0] * 5, 2: [1.0] * 4, 4: [0.0] * 5})
  # 2 has four only; 3 has none, so that 4 has nobody before it.
  assert candidates.of_run(run) == candidates.Filter(3, 1, 0, 0)


def test_versions_are_compared_where_they_meet(tmp_path):
  # Twenty of each side: the old one's first and the new one's last differ.
  run = _run(
    tmp_path / 'a',
    {1: [500.0] * 20 + [1.0] * 20, 2: [1.0] * 20 + [-500.0] * 20},
  )
  assert candidates.of_run(run).fallen == 0


@pytest.mark.parametrize('confirmations', [{}, {1: [1.0]}])
def test_a_run_without_rows_of_a_supervisor_says_nothing(
  tmp_path, confirmations
):
  # As a plain agent, or as a swarm before the rows were kept.
  server = () if confirmations else (SERVER,)
  run = _run(tmp_path / 'a', confirmations, server)
  assert candidates.of_run(run) is None
