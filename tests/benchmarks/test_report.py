"""The pages show what was measured."""

import json

import pytest

from tests.benchmarks import report
from tests.benchmarks import scaling_check


def _runs(**systems):
  return {
    name: [
      {'env_steps_per_s': rate, 'updates_per_s': rate / 10} for rate in rates
    ]
    for name, rates in systems.items()
  }


def test_the_pages_show_what_was_measured():
  results = report.load()
  page, readme = report.PAGE.read_text(), report.README.read_text()
  again = 'python tests/benchmarks/report.py writes it'
  assert f'{report.BEGIN}\n{report.markdown(results)}\n' in page, again
  assert f'{report.BEGIN_SPEED}\n{report.speed(results)}\n' in readme, again


def test_the_page_shows_what_several_hosts_made():
  shown = json.loads(report.CHECK.read_text())['text']
  page = report.SCALING.read_text()
  assert f'{report.BEGIN_CHECK}\n{shown}\n{report.END_CHECK}' in page


def test_the_busiest_link_is_that_with_most_bytes_one_way():
  before, after = [(5, 100), (7, 0)], [(25, 110), (8, 15)]
  assert scaling_check.busiest_bytes(before, after) == 20


def test_a_row_has_all_repetitions_and_the_ratio_of_their_medians():
  runs = _runs(
    **{
      'Murmuration Ape-X': [3000.0, 5000.0],
      'Stable-Baselines3 DQN': [1000.0, 3000.0],
    }
  )
  (row,) = report.speed(
    {'bench_apex': {'numbers': {'runs': runs}}}
  ).splitlines()[2:]
  assert '| 3,000 5,000 | Stable-Baselines3 DQN: 1,000 3,000 | 2.0 |' in row


def test_a_peer_that_was_not_measured_has_no_row():
  runs = _runs(**{'Murmuration Ape-X': [3000.0]})
  table = report.speed({'bench_apex': {'numbers': {'runs': runs}}})
  assert len(table.splitlines()) == 2


def test_a_result_has_its_origin_as_far_as_that_was_kept():
  old = {'command': 'python x.py', 'date': '2026-11-20', 'machine': '2 cores'}
  new = {**old, 'code': 'abc', 'busy_cores': 0.04}
  assert report.made(old) == '`python x.py`, 2026-11-20, 2 cores'
  assert (
    report.made(new) == f'{report.made(old)}, code abc, 0.0 cores busy before'
  )


def test_a_result_whose_command_is_gone_is_not_shown():
  entry = {
    **{'command': 'python x.py', 'date': '', 'machine': ''},
    **{'title': 'Here', 'tables': [], 'notes': []},
  }
  found = {'bench_ray': entry, 'bench_gone': {**entry, 'title': 'Gone'}}
  text = report.markdown(found)
  assert '## Here' in text and '## Gone' not in text


def test_a_page_without_markers_is_refused(tmp_path):
  page = tmp_path / 'page.md'
  page.write_text('nothing here')
  with pytest.raises(ValueError, match='needs a line begin'):
    report.replace(page, 'begin', 'end', 'text')
