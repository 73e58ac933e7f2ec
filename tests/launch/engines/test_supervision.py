"""Policies, as the supervisor applies them to a backend that is made up."""

import traceback
import types

import numpy as np
import pytest

from murmuration.launch import pulse
from murmuration.launch.engines import supervision
from tests.launch.engines import scripts


def test_the_run_ends_when_every_node_returned():
  outcome = scripts.play(scripts.Script(a=['returns'], b=['returns']))
  assert (outcome.exit_code, outcome.reason) == (0, 'all nodes finished')


def test_a_failure_stops_the_others():
  script = scripts.Script(a=['oops'], b=[])
  outcome = scripts.play(script)
  assert (outcome.exit_code, outcome.reason) == (1, 'a failed: oops')
  assert script.stopped == ['b']


def test_restarts_are_counted_and_given_up():
  script = scripts.Script(a=['x', 'x', 'x', 'x'])
  outcome = scripts.play(script, come_back=True, max_restarts=2)
  assert script.started == [('a', 0), ('a', 1), ('a', 2)]
  assert outcome.exit_code == 1
  assert outcome.nodes[0].restarts == 2


def test_pauses_before_restarts_double_up_to_a_cap():
  script = scripts.Script(a=['x'] * 9)
  script.step_s = 0.1
  times = []
  start = script.start

  def noted(index, again):
    times.append(script.now)
    start(index, again)

  script.start = noted
  scripts.play(script, come_back=True, max_restarts=8)
  pauses = np.diff(times)
  # A node ends, and is started again, at the polls after that.
  assert pauses == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 5, 5, 5], abs=0.25)


def lives(**options):
  """Lives of half a minute that end with an error, and a last one."""
  return scripts.Script(life_s=30.0, a=['x'] * 4 + ['returns'], **options)


def working(script):
  """Has each start of a node do something for the run."""
  for slot in script.slots:
    slot.clear = lambda slot=slot: slot.add(pulse._WORK)
  return script


def test_a_healthy_stretch_makes_restarts_count_anew():
  outcome = scripts.play(lives(), come_back=True, max_restarts=1)
  assert outcome.exit_code == 0
  assert outcome.nodes[0].restarts == 4


def test_a_life_that_did_nothing_does_not_start_the_count_anew():
  script = lives()
  for slot in script.slots:  # a life that has begun, whatever is cleared
    slot.clear = lambda slot=slot: slot.add(pulse._BEATS)
  outcome = scripts.play(script, come_back=True, max_restarts=1)
  assert outcome.exit_code == 1
  assert outcome.nodes[0].restarts == 1


def test_a_long_wait_for_a_host_that_never_runs_a_node_is_given_up():
  outcome = scripts.play(lives(runs=False), come_back=True, max_restarts=1)
  assert outcome.exit_code == 1
  assert outcome.nodes[0].restarts == 1


@pytest.mark.parametrize(('killed', 'code'), [(True, 0), (False, 1)])
def test_a_short_life_that_worked_counts_if_it_was_ended_from_outside(
  killed, code
):
  script = scripts.Script(killed=killed, a=['x'] * 4 + ['returns'])
  outcome = scripts.play(working(script), come_back=True, max_restarts=1)
  assert outcome.exit_code == code


def test_lives_that_end_for_want_of_memory_add_up_however_long_they_are():
  script = working(lives(oom=True))
  outcome = scripts.play(script, come_back=True, max_restarts=3)
  assert (outcome.exit_code, outcome.nodes[0].restarts) == (1, 3)


def test_restarts_are_forgotten_after_the_window():
  script = scripts.Script(a=['x'] * 4 + ['returns'])
  outcome = scripts.play(
    script, come_back=True, max_restarts=1, restart_window_s=1e-6
  )
  assert outcome.exit_code == 0


def test_a_node_that_ends_the_run_counts_before_one_that_fails_with_it():
  script = scripts.Script(a=['x'], b=['returns'])
  outcome = scripts.play(script, ends_run='b')
  assert (outcome.exit_code, outcome.reason) == (0, 'b finished')


def test_a_node_that_ends_the_run_fails_it_by_failing():
  outcome = scripts.play(scripts.Script(a=['x'], b=[]), ends_run='a')
  assert outcome.exit_code == 1


def test_a_node_that_ends_the_run_can_be_restarted_first():
  script = scripts.Script(a=['x', 'returns'], b=[])
  outcome = scripts.play(script, come_back=True, ends_run='a')
  assert (outcome.exit_code, outcome.reason) == (0, 'a finished')
  assert outcome.nodes[0].restarts == 1


def test_a_node_that_waits_for_its_restart_does_not_hold_up_the_end():
  script = scripts.Script(a=['x'], b=['returns'])
  outcome = scripts.play(script, come_back=True, ends_run='b')
  assert outcome.exit_code == 0
  assert outcome.nodes[0].state == 'stopped'


@pytest.mark.parametrize('interrupts', [1, 2])
def test_a_run_whose_nodes_had_all_ended_as_a_signal_came_is_finished(
  interrupts,
):
  script = scripts.Script(one=['returns'], other=['returns'])
  came = types.SimpleNamespace(
    interrupts=interrupts, terminated=False, asked=False
  )
  outcome = scripts.play(script, came=came)
  assert outcome.exit_code == 0


@pytest.mark.parametrize(
  ('interrupts', 'terminated', 'code'),
  [(1, False, 0), (2, False, 130), (0, True, 143), (1, True, 143)],
)
def test_a_run_that_ended_as_a_signal_came_is_finished_unless_it_is_killed(
  interrupts, terminated, code
):
  script = scripts.Script(('slow',), slow=[], last=['returns'])
  script.patience = 3  # polls after which what is deaf returns all the same

  def poll(timeout_s):
    script.patience -= script.stopped == ['slow']
    if not script.patience:
      script.events.append(supervision.Event(0, 'exited'))
    return scripts.Script.poll(script, timeout_s)

  script.poll = poll
  came = types.SimpleNamespace(
    interrupts=interrupts, terminated=terminated, asked=False
  )
  outcome = scripts.play(script, came=came, ends_run='last')
  assert outcome.exit_code == code
  (slow, _) = outcome.nodes
  assert ('second Ctrl-C' in (slow.last_error or '')) == (interrupts > 1)


# In the order of actor_learner, which adds who serves others before those.
NODES = ('counter/0', 'replay/0', 'learner/0', 'actor/0', 'actor/1')


def served(*deaf):
  ends = {name: [] for name in NODES}
  return scripts.Script(deaf, **ends, **{'last/0': ['returns']})


def test_nodes_are_asked_to_stop_in_reverse_order_of_the_program():
  script = served()
  scripts.play(script, ends_run='last')
  assert script.stopped == [*reversed(NODES)]


def test_all_of_a_group_are_asked_at_once_and_the_group_before_them_later():
  script = served('actor/0')
  times = {}
  stop = script.stop

  def noted(index):
    times[script.names[index]] = script.now
    stop(index)

  script.stop = noted
  outcome = scripts.play(script, ends_run='last')
  assert script.stopped == [*reversed(NODES)]
  assert times['actor/0'] == times['actor/1'] < times['learner/0']
  # The first group has some time too, before all that is left is killed.
  assert times['counter/0'] + 1.0 < times['actor/0'] + supervision.STOP_GRACE_S
  stayed = [n.name for n in outcome.nodes if 'did not' in (n.last_error or '')]
  assert stayed == ['actor/0']


def test_a_look_that_comes_late_asks_in_the_same_order(monkeypatch):
  monkeypatch.setattr(supervision, 'SERVERS_LATER_S', 0.0)
  script = served('actor/0', 'actor/1')
  scripts.play(script, ends_run='last')
  assert script.stopped == [*reversed(NODES)]


def test_a_lost_backend_is_a_failure():
  outcome = scripts.play(scripts.Script(a=['lost'], b=[]))
  assert (outcome.exit_code, outcome.reason) == (1, 'gone')
  assert [node.state for node in outcome.nodes] == ['failed', 'failed']


def _chained():
  try:
    try:
      {}['x']
    except KeyError as e:
      raise ValueError('a sentence') from e
  except ValueError:
    return traceback.format_exc()


@pytest.mark.parametrize(
  ('error', 'gist'),
  [
    ('Traceback (most recent call last):\n  File\nE: a\n  more', 'E: a'),
    ('Fatal Python error: x\nkilled by SIGSEGV', 'killed by SIGSEGV'),
    (None, 'no reason known'),
    (_chained(), 'ValueError: a sentence'),
  ],
)
def test_the_gist_of_an_error_is_the_line_that_says_what_it_is(error, gist):
  assert supervision.gist(error) == gist
