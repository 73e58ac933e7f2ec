"""What is read out of the runs of the demo of a cluster."""

import dataclasses
import json
import time

import pytest

from tests.faults import cluster_demo
from tests.faults import cluster_records


@pytest.fixture
def run(tmp_path):
  (tmp_path / 'metrics').mkdir()
  (tmp_path / 'logs').mkdir()
  return tmp_path


def write(run, kind, **row):
  with (run / 'metrics' / f'{kind}.jsonl').open('a') as file:
    file.write(f'{json.dumps(row)}\n')


def report(run, node, steps):
  # By the counter's clock it is always the same time.
  kind = f'node_{node.partition("/")[0]}'
  write(run, kind, node=node, elapsed_s=1.0, own_actor_steps=steps)


def test_a_stand_still_is_seen_though_the_clock_of_reports_stood_too(run):
  reports = cluster_records.Reports(run)
  for now in range(100, 110):
    for index in range(3):
      report(run, f'explorer/{index}', 10 * (now - 100))
    reports.look(now)
  # The counter is away for 20 s, and with it all reports. The first is lost
  # with its host; the second is told to wait; the third works on at its rate.
  for index, steps in enumerate([90, 90 + 50, 90 + 200]):
    report(run, f'explorer/{index}', steps)
  reports.look(129)
  report(run, 'explorer/0', 100)
  reports.look(133)
  still = reports.still_s(since=109.5)
  assert still == {
    'explorer/0': 20.0,
    'explorer/1': 15.0,
    'explorer/2': 0.0,
    'counter/0': 20.0,
  }
  assert reports.still_s(since=129.5)['explorer/0'] == 3.0
  assert reports.still_s(since=133.5)['explorer/0'] == 0.0


def test_a_learner_stands_still_by_its_updates_and_others_by_their_rows(run):
  reports = cluster_records.Reports(run)
  reports.look(1)  # nothing is there yet
  for now in (2, 3, 9):
    write(run, 'node_learner', node='learner/0', own_learner_steps=5 * now)
    write(run, 'supervisor', node='star/0', episode_return=1.0)
    reports.look(now)
  assert reports.still_s(since=4) == {
    'learner/0': 0.0,
    'star/0': 6.0,
    'counter/0': 6.0,
  }


def test_half_a_row_is_read_when_it_is_whole(run):
  reports = cluster_records.Reports(run)
  path = run / 'metrics' / 'evaluation.jsonl'
  path.write_text('{"node": "evaluator/0", "return_m')
  reports.look(1)
  with path.open('a') as file:
    file.write('ean": 500.0}\n{"node": "evaluator/0", "return_mean": "nan"}\n')
  reports.look(2)
  assert reports.returns(since=1.5) == [500.0]
  assert reports.returns(since=2.5) == []


def test_rows_are_followed_while_a_run_goes_on(run):
  with cluster_records.Reports(run) as reports:
    write(run, 'evaluation', node='evaluator/0', return_mean=3.0)
    deadline = time.monotonic() + 60
    while not reports.returns(since=0):
      assert time.monotonic() < deadline
      time.sleep(0.01)
    write(run, 'evaluation', node='evaluator/0', return_mean=4.0)
  assert reports.returns(since=0) == [3.0, 4.0]


LOG = """\
--- {name}, pid 7, 2026-11-24 10:00:00, started by hand, on host2
--- {name}, pid 9, 2026-11-24 10:01:{seconds}, started by hand, on {host}
"""


@pytest.fixture
def ended(run):
  """A run that lost learner/0 and actor/0, and found both again."""
  for name, seconds, host in (
    ('learner/0', '12', 'host3'),
    ('actor/0', '14', 'host4'),
    ('actor/1', '59', 'host3'),
  ):
    path = run / 'logs' / f'{name.replace("/", "-")}.log'
    path.write_text(LOG.format(name=name, seconds=seconds, host=host))
  starts = cluster_records.starts(run)
  before = {name: lives[:1] for name, lives in starts.items()}
  before['actor/1'][0].host = 'host3'
  report(run, 'actor/0', 5)
  reports = cluster_records.Reports(run)
  at = before['learner/0'][0].at + 60.4
  reports.look(at - 1)  # what is there by then
  write(run, 'evaluation', node='evaluator/0', return_mean=480.0)
  write(run, 'evaluation', node='evaluator/0', return_mean=430.0)
  report(run, 'actor/0', 5)
  reports.look(at + 30)

  def make(**changed):
    found = cluster_records.result(
      'apex',
      run,
      before,
      'host2',
      'host4',
      at,
      reports,
      exit_code=0,
      bar=475.0,
      problem='',
      load=1.0,
    )
    return dataclasses.replace(found, **changed)

  return make


def test_a_run_that_kept_its_promises_has_no_faults(ended):
  found = ended()
  assert found.lost == ['actor/0', 'learner/0']
  assert found.again_s == pytest.approx({'actor/0': 13.6, 'learner/0': 11.6})
  assert found.joined == ['actor/0']
  assert found.returns == [480.0, 430.0]
  # Neither the evaluator nor the counter, which lived on.
  assert found.still_s == {'actor/0': 31.0}
  assert not found.faults


@pytest.mark.parametrize(
  'changed, said',
  [
    ({'exit_code': 1}, 'exit code 1'),
    ({'again_s': {'learner/0': 2.0}}, 'not started again: actor/0'),
    ({'joined': []}, 'nothing runs on the new host'),
    ({'returns': []}, 'after the loss no greedy return of 475'),
    ({'returns': [9.0, 474.0]}, 'after the loss no greedy return of 475'),
    ({'problem': 'no update within 240 s'}, 'no update within 240 s'),
  ],
)
def test_what_a_run_did_not_do_is_a_fault(ended, changed, said):
  assert ended(**changed).faults == [said]
  assert said in cluster_records.table([ended(**changed)])


def test_the_table_has_a_row_for_each_run(ended):
  found = ended(
    still_s={'learner/0': 20.2, 'actor/0': 9.0, 'actor/1': 3.0, 'actor/2': 5.0}
  )
  row = cluster_records.table([found]).splitlines()[-1]
  assert row == (
    '| apex | actor, learner | actor 14, learner 12 | actor 9, learner 20 | '
    'actor 3 to 5 | actor | exit code 0 | 480, 430 |'
  )


def test_results_are_kept_beside_those_of_other_systems(
  ended, tmp_path, monkeypatch
):
  page = tmp_path / 'clusters.md'
  page.write_text(
    f'before\n{cluster_records.BEGIN}\nold\n{cluster_records.END}\nafter\n'
  )
  monkeypatch.setattr(cluster_records, 'PAGE', page)
  monkeypatch.setattr(cluster_records, 'RESULTS', tmp_path / 'demo.json')
  order = list(cluster_demo.SYSTEMS)
  cluster_records.save([ended(system='swarm'), ended(system='apex')], order)
  cluster_records.save([ended(system='impala', load=9.0)], order)
  assert list(cluster_records.load()) == ['apex', 'impala', 'swarm']
  assert cluster_records.load()['swarm'] == ended(system='swarm')
  before, text, after = page.read_text().partition(
    cluster_records.text(cluster_records.load())
  )
  assert before == f'before\n{cluster_records.BEGIN}\n'
  assert after == f'\n\n{cluster_records.END}\nafter\n'
  assert '(load average 1 to 9 before a run began)' in text


def test_the_page_shows_what_was_kept():
  kept = cluster_records.load()
  assert list(kept) == list(cluster_demo.SYSTEMS)
  text = cluster_records.text(kept)
  assert text in cluster_records.PAGE.read_text()
