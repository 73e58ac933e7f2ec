"""What the picture of a run shows, and how numbers look in it."""

import pytest

from murmuration.run_records import view_text
from tests.run_records import view_cases as cases


def test_the_picture_shows_what_the_issue_asks_for():
  shown = cases.drawn(
    cases.state(*cases.NODES), cases.snapshot(), footer='runs/a'
  )
  for words in (
    '412,300 of 930,000 env steps',
    '0:48 left',
    '1:23',
    'runs/a',
    'env steps/s      3k',
    'updates/s        1.4k',
    'training return  150.0',
    '432.1 ± 33.0',
    '44%',
    'R* 412.5',
    'c 0.0183',
    'x 11',
    'version 6',
    'star learned for 1,200 learner steps',
    'accepted 7',
    'rejected 13',
    'explorer/0 running 7 1.5k 700 100.0',
  ):
    # However wide the columns are.
    found = ' '.join(shown.split()), ' '.join(words.split())
    assert found[1] in found[0], (words, shown)


@pytest.mark.parametrize('width', [60, 80, 96, 200])
def test_the_picture_fits_the_terminal(width):
  shown = cases.drawn(cases.state(*cases.NODES), cases.snapshot(), width)
  assert max(len(line) for line in shown.splitlines()) <= width


def test_before_the_first_report_the_nodes_are_shown():
  shown = cases.drawn(cases.state(cases.node('counter/0', 'starting')), None)
  assert 'waiting for the first report' in shown and 'starting' in shown


def test_of_two_budgets_the_one_nearer_to_its_end_is_shown():
  snapshot = cases.snapshot(
    totals={'actor_steps': 412_300, 'learner_steps': 900},
    budget={'actor_steps': 930_000, 'learner_steps': 1000},
  )
  shown = cases.drawn(cases.state(*cases.NODES), snapshot)
  assert '900 of 1,000 updates · 90%' in shown


def test_where_the_run_is_over_no_time_is_left():
  snapshot = cases.snapshot(finished=True, left_s=0.0)
  shown = cases.drawn(cases.state(*cases.NODES), snapshot)
  assert '44% · done' in shown
  assert 'left' not in shown + view_text.line(snapshot, cases.NODES)


def test_a_plain_agent_has_no_swarm_in_its_picture():
  snapshot = cases.snapshot()
  del snapshot['nodes']['star/0']
  shown = cases.drawn(cases.state(cases.node('explorer/0')), snapshot)
  assert 'R*' not in shown


def test_many_nodes_become_one_line_per_group_with_the_worst_state():
  nodes = [cases.node(f'explorer/{i}') for i in range(31)]
  nodes[4] = cases.node(
    'explorer/4', 'restarting', restarts=2, last_error='SIGKILL'
  )
  nodes[7] = cases.node('explorer/7', restarts=1)
  shown = cases.drawn(cases.state(*nodes), cases.snapshot())
  (row,) = [line for line in shown.splitlines() if 'explorer x 31' in line]
  assert '1 restarting, 3 restarts' in row
  # Rates are added up; of returns the mean is shown.
  assert row.split()[-4:-1] == ['3k', '1.4k', '150.0']
  assert 'explorer/4: SIGKILL' in shown


def test_what_is_odd_about_a_node_is_said():
  node = cases.node('explorer/1', notice='silent for 12 s')
  shown = cases.drawn(cases.state(node), cases.snapshot())
  assert 'explorer/1 silent for 12 s' in shown


def test_of_many_nodes_with_errors_those_that_are_down_are_shown():
  ran = [cases.node(f'a/{i}', restarts=1, last_error='E1') for i in range(3)]
  down = cases.node('b/0', 'failed', last_error='E2')
  shown = cases.drawn(cases.state(*ran, down), None)
  assert 'b/0: E2' in shown and 'a/0: E1' in shown and 'a/2: E1' not in shown
  assert 'and 1 more nodes with errors' in shown


def test_brackets_in_names_and_errors_are_not_taken_for_styles():
  error = 'ValueError: [bold] is no [/index]'
  shown = cases.drawn(
    cases.state(cases.node('a[b]/0', 'failed', last_error=error)), None
  )
  assert error in shown and 'a[b]/0' in shown


@pytest.mark.parametrize(
  'seconds, shown',
  [(0, '0:00'), (75.9, '1:15'), (3675, '1:01:15'), (-3, '0:00')],
)
def test_clock(seconds, shown):
  assert view_text.clock(seconds) == shown


@pytest.mark.parametrize(
  'value, shown',
  [
    (0, '0'),
    (999, '999'),
    (1000, '1k'),
    (12_345, '12.3k'),
    (99_960, '100k'),
    (999_960, '1M'),
    (999.7, '1k'),
    (3.4e6, '3.4M'),
    (float('nan'), '-'),
    (None, '-'),
  ],
)
def test_short(value, shown):
  assert view_text.short(value) == shown
