"""Policies, as the supervisor applies them to a backend that is made up."""

import itertools
import traceback
import types

import pytest

from launch import pulse
from launch.engines import restarts
from launch.engines import supervision
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
  outcome = scripts.play(script, a=restarts.Restart(2, 0.0))
  assert script.started == [('a', 0), ('a', 1), ('a', 2)]
  assert outcome.exit_code == 1
  assert outcome.nodes[0].restarts == 2


def test_a_healthy_stretch_makes_restarts_count_anew():
  script = scripts.Script(a=['x'] * 4 + ['returns'])
  outcome = scripts.play(script, a=restarts.Restart(1, 0.0, healthy_s=0.0))
  assert outcome.exit_code == 0
  assert outcome.nodes[0].restarts == 4


def test_a_life_that_did_nothing_does_not_start_the_count_anew():
  script = scripts.Script(a=['x'] * 4)
  for slot in script.slots:  # a life that has begun, whatever is cleared
    slot.clear = lambda slot=slot: slot.add(pulse._BEATS)
  outcome = scripts.play(script, a=restarts.Restart(1, 0.0, healthy_s=0.0))
  assert outcome.exit_code == 1
  assert outcome.nodes[0].restarts == 1


def test_a_long_wait_for_a_host_that_never_runs_a_node_is_given_up():
  script = scripts.Script(runs=False, a=['x'] * 4 + ['returns'])
  outcome = scripts.play(script, a=restarts.Restart(1, 0.0, healthy_s=0.0))
  assert outcome.exit_code == 1
  assert outcome.nodes[0].restarts == 1


@pytest.mark.parametrize(('killed', 'code'), [(True, 0), (False, 1)])
def test_a_short_life_that_worked_counts_if_it_was_ended_from_outside(
  killed, code
):
  script = scripts.Script(killed=killed, a=['x'] * 4 + ['returns'])
  for slot in script.slots:
    slot.clear = lambda slot=slot: slot.add(pulse._WORK)
  outcome = scripts.play(script, a=restarts.Restart(1, 0.0, healthy_s=60.0))
  assert outcome.exit_code == code


def test_restarts_are_forgotten_after_the_window():
  script = scripts.Script(a=['x'] * 4 + ['returns'])
  limits = restarts.Limits(max_restarts=1, restart_window_s=1e-6)
  outcome = scripts.play(script, limits=limits, a=restarts.Restart(None, 0.0))
  assert outcome.exit_code == 0


def test_the_programs_limits_count_where_a_policy_says_nothing():
  script = scripts.Script(a=['x'] * 9)
  limits = restarts.Limits(max_restarts=3)
  outcome = scripts.play(script, limits=limits, a=restarts.Restart(None, 0.0))
  assert (outcome.exit_code, outcome.nodes[0].restarts) == (1, 3)


def test_a_node_that_ends_the_run_counts_before_one_that_fails_with_it():
  script = scripts.Script(a=['x'], b=['returns'])
  outcome = scripts.play(script, b=restarts.EndsRun())
  assert (outcome.exit_code, outcome.reason) == (0, 'b finished')


def test_a_node_that_ends_the_run_fails_it_by_failing():
  outcome = scripts.play(scripts.Script(a=['x'], b=[]), a=restarts.EndsRun())
  assert outcome.exit_code == 1


def test_a_node_that_ends_the_run_can_be_restarted_first():
  script = scripts.Script(a=['x', 'returns'], b=[])
  restart = restarts.Restart(1, 0.0)
  outcome = scripts.play(script, a=restarts.EndsRun(restart))
  assert (outcome.exit_code, outcome.reason) == (0, 'a finished')
  assert outcome.nodes[0].restarts == 1


def test_a_node_that_waits_for_its_restart_does_not_hold_up_the_end():
  script = scripts.Script(a=['x'], b=['returns'])
  outcome = scripts.play(
    script, a=restarts.Restart(1, 60.0), b=restarts.EndsRun()
  )
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
  outcome = scripts.play(script, came=came, last=restarts.EndsRun())
  assert outcome.exit_code == code
  (slow, _) = outcome.nodes
  assert ('second Ctrl-C' in (slow.last_error or '')) == (interrupts > 1)


# Who holds a handle of whom, as in actor_learner.
CLIENTS = {
  'counter': ('learner', 'actor'),
  'replay': ('learner', 'actor'),
  'learner': ('actor',),
}


@pytest.fixture
def ticks(monkeypatch):
  """Time that passes by being asked for: no stop is waited for."""
  now = itertools.count(0.0, 0.01).__next__
  clock = types.SimpleNamespace(monotonic=now)
  monkeypatch.setattr(supervision, 'time', clock)


def test_who_serves_is_asked_to_stop_when_its_clients_are_gone():
  script = scripts.Script(
    counter=[], replay=[], learner=[], actor=[], last=['returns']
  )
  scripts.play(script, CLIENTS, last=restarts.EndsRun())
  assert script.stopped == ['actor', 'learner', 'counter', 'replay']


@pytest.mark.parametrize('deaf', ['actor', 'learner'])
def test_who_serves_is_asked_in_the_same_order_when_a_client_stays(ticks, deaf):
  script = scripts.Script(
    (deaf,), counter=[], replay=[], learner=[], actor=[], last=['returns']
  )
  outcome = scripts.play(script, CLIENTS, last=restarts.EndsRun())
  assert script.stopped == ['actor', 'learner', 'counter', 'replay']
  stayed = [n.name for n in outcome.nodes if 'did not' in (n.last_error or '')]
  assert stayed == [deaf]


def test_a_look_that_comes_late_asks_clients_first(ticks, monkeypatch):
  monkeypatch.setattr(supervision, 'SERVERS_LATER_S', 0.0)
  script = scripts.Script(
    ('actor',), counter=[], replay=[], learner=[], actor=[], last=['returns']
  )
  scripts.play(script, CLIENTS, last=restarts.EndsRun())
  assert script.stopped == ['actor', 'learner', 'counter', 'replay']


def test_servers_of_each_other_are_asked_at_once():
  # As workers of gossip, in a ring: at once, and before whom they report to.
  script = scripts.Script(counter=[], a=[], b=[], c=[], last=['returns'])
  clients = {'counter': ('a', 'b', 'c'), 'a': ('b',), 'b': ('c',), 'c': ('a',)}
  scripts.play(script, clients, last=restarts.EndsRun())
  assert sorted(script.stopped[:3]) == ['a', 'b', 'c']
  assert script.stopped[3:] == ['counter']


def test_who_reaches_whom_is_found_once_for_each_of_many_nodes(monkeypatch):
  # As many paths from the first layer to the last as 60 ** 4.
  layers = [[f'n{layer}_{i}' for i in range(60)] for layer in range(5)]
  names = [name for layer in layers for name in layer]
  clients = {
    name: after for layer, after in zip(layers, layers[1:]) for name in layer
  }
  reached, started = supervision._reached, []

  class Visited(list):
    visits = 0

    def __getitem__(self, index):
      self.visits += 1
      assert self.visits <= len(names), 'a node is gone through again'
      return super().__getitem__(index)

  def counted(clients, start):
    assert start not in started, 'found already'
    started.append(start)
    return reached(Visited(clients), start)

  monkeypatch.setattr(supervision, '_reached', counted)
  outcome = scripts.play(
    scripts.Script(**{name: ['returns'] for name in names}), clients
  )
  assert outcome.exit_code == 0
  assert len(started) == len(names)


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
