"""The cost model, by hand and on its page."""

import dataclasses
import json

import pytest

from tests.benchmarks import report
from tests.benchmarks import scaling_check
from tests.benchmarks import scaling_model as model

PARTS = model.Parts(
  apex={'act': 20.0, 'write': 30.0, 'sample': 300.0, 'update': 50.0},
  impala={'act': 10.0, 'queue': 3.0, 'update': 2.0},
  samples_per_s=1e9,
  reports_per_s=5_000.0,
  fetches_per_s=10_000.0,
  own={
    'swarm': 4_000.0,
    'gossip': 30_000.0,
    'parameter server (A3C)': 20_000.0,
    'evolution': 200_000.0,
  },
)


def test_the_pages_show_the_model_and_the_check():
  page = report.SCALING.read_text()
  tables = model.tables(model.parts(report.load()))
  again = 'python tests/benchmarks/scaling_model.py --save writes it'
  assert f'{report.BEGIN_MODEL}\n{tables}\n{report.END_MODEL}' in page, again
  shown = json.loads(report.CHECK.read_text())['text']
  assert f'{report.BEGIN_CHECK}\n{shown}\n{report.END_CHECK}' in page


def test_parts_of_several_machines_are_said():
  results = report.load()
  for script in model._SCRIPTS:
    results[script]['machine'] = 'one'
  assert 'more than one' not in model.tables(model.parts(results))
  results['bench_replay']['machine'] = 'other'
  said = '**The parts are of more than one machine.** '
  (line,) = (
    line
    for line in model.tables(model.parts(results)).splitlines()
    if line.startswith(said)
  )
  assert 'bench_swarm' in line.partition(': one; ')[0]
  assert line.endswith('; bench_replay: other.')


def test_hosts_that_act_help_until_the_learner_s_host_only_learns():
  steps = [model.impala(PARTS, n, cores=1.0).steps_per_s for n in (1, 2, 3, 9)]
  # 1 / (10 + 3 + 2) us; then 1 / 10 us of the second, of which each costs the
  # first 5 us: the other half of it acts at 15; then nothing but 1 / 5 us.
  assert steps[0] == pytest.approx(1e6 / 15)
  assert steps[1] == pytest.approx(1e5 + 0.5e6 / 15)
  assert steps[2] == steps[3] == pytest.approx(2e5)


def test_what_the_tunnel_costs_is_paid_at_both_ends():
  costly = dataclasses.replace(PARTS, forward=5.0 / model.FRAME)
  assert model.impala(costly, 9, cores=1.0).steps_per_s == pytest.approx(1e5)


def test_the_slowest_part_binds():
  slow = dataclasses.replace(PARTS, samples_per_s=32 * 100.0)
  found = model.apex(slow, 2)
  assert found.steps_per_s == 100.0
  assert found.binds == 'tables (samples/s)'


def test_hosts_that_learn_for_themselves_add_up():
  one, many = model.gossip(PARTS, 1), model.gossip(PARTS, 64)
  assert many.steps_per_s == 64 * one.steps_per_s
  assert one.busiest_bytes_per_s == 0.0
  assert many.busiest_bytes_per_s == model.gossip(PARTS, 2).busiest_bytes_per_s


def test_the_link_is_also_known_for_other_steps_than_were_promised():
  found = model.impala(PARTS, 2, cores=1.0)
  assert found.traffic(found.steps_per_s) == found.busiest_bytes_per_s
  assert found.traffic(3e5) == 3e5 / 2 * model.FRAME  # from the other host


def test_parameters_go_to_a_host_when_they_are_new_and_it_asks():
  assert model._theta_out(3, 10.0, 8.0, 50.0) == 2 * 10 * 8
  assert model._theta_out(3, 10.0, 800.0, 50.0) == 2 * 10 * 50
  # Nor within 10 ms a second time.
  assert model._theta_out(3, 10.0, 800.0, 500.0) == 2 * 10 * 100
  # Two hosts of 640 steps/s at 32 samples a step: 80 calls of 32 updates in
  # 16 s, and each actor asks after 64 of its own steps.
  found = model.apex(PARTS, 2).traffic(1280.0)
  assert found == max(model.THETA_Q * 5, 1280 / 2 * model.TRANSITION)


def test_the_busiest_link_is_that_with_most_bytes_one_way():
  before, after = [(5, 100), (7, 0)], [(25, 110), (8, 15)]
  assert scaling_check.busiest_bytes(before, after) == 20


def test_the_check_shows_predicted_bytes_beside_those_of_the_link():
  row = {
    'system': 'IMPALA',
    'hosts': 2,
    'predicted': 200.0,
    'measured': 150.0,
    'predicted_bytes': 2e6,
    'measured_bytes': 2.5e6,
  }
  line = scaling_check._table([row]).splitlines()[-1]
  assert [cell.strip() for cell in line.split('|')[4:-1]] == [
    '150',
    '-25%',
    '-',
    '2.00',
    '2.50',
  ]


def test_a_counter_that_is_full_is_said():
  slow = dataclasses.replace(PARTS, reports_per_s=96.0)
  found = model.swarm(slow, 64)
  assert found.binds == 'counter (192 reports/s)'
  assert found.steps_per_s == model.swarm(PARTS, 32).steps_per_s


def test_where_a_system_stops_is_the_last_doubling_that_helped():
  row = [model.impala(PARTS, n) for n in model.HOSTS]
  assert model.stop(row) == ('4 hosts', "CPU of all hosts, or of the learners'")
