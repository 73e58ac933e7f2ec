"""Policies, as the supervisor applies them to a backend that is made up."""

import pytest

from launch import pulse
from launch.engines import prepare
from launch.engines import restarts
from launch.engines import supervision
from launch.engines import watch


def slots(num):
  return [pulse.Slot(memoryview(bytearray(1024))) for _ in range(num)]


class Script:
  """A backend that plays lists of exits, one list per start of a node.

  Nodes in `deaf` do not end when they are asked to.
  """

  kills = True

  def __init__(self, deaf=(), **exits):
    self.deaf = deaf
    self.exits = {name: list(ends) for name, ends in exits.items()}
    self.names = list(exits)
    self.slots = slots(len(exits))
    self.resumed = []
    self.started, self.stopped = [], []
    self.events = []

  def start(self, index, restarts):
    name = self.names[index]
    self.started.append((name, restarts))
    ends = self.exits[name]
    if ends:
      end = ends.pop(0)
      failed = end != 'returns'
      self.events.append(
        supervision.Event(
          index, 'exited', failed=failed, error=end if failed else None
        )
      )

  def poll(self, timeout_s):
    events, self.events = self.events, []
    if 'lost' in [event.error for event in events]:
      raise supervision.BackendLost('gone')
    return events

  def stop(self, index):
    self.stopped.append(self.names[index])
    if self.names[index] not in self.deaf:
      self.events.append(supervision.Event(index, 'exited'))

  def kill(self, indices):
    self.events += [
      supervision.Event(i, 'exited', failed=True, error='killed by SIGKILL')
      for i in indices
    ]
    return [''] * len(indices)

  def resume(self, index):
    self.resumed.append(self.names[index])


def play(script, clients=None, limits=restarts.DEFAULT, **assigned):
  nodes = [
    prepare.PreparedNode(
      name,
      None,
      None,
      assigned.get(name, restarts.Stop()),
      [],
      frozenset((clients or {}).get(name, ())),
    )
    for name in script.names
  ]
  return supervision.Supervisor(
    script,
    nodes,
    [None] * len(nodes),
    supervision.Signals(),
    None,
    0.1,
    watch.Watch(script.slots, limits),
  ).run()


def test_the_run_ends_when_every_node_returned():
  outcome = play(Script(a=['returns'], b=['returns']))
  assert (outcome.exit_code, outcome.reason) == (0, 'all nodes finished')


def test_a_failure_stops_the_others():
  script = Script(a=['oops'], b=[])
  outcome = play(script)
  assert (outcome.exit_code, outcome.reason) == (1, 'a failed: oops')
  assert script.stopped == ['b']


def test_restarts_are_counted_and_given_up():
  script = Script(a=['x', 'x', 'x', 'x'])
  outcome = play(script, a=restarts.Restart(2, 0.0))
  assert script.started == [('a', 0), ('a', 1), ('a', 2)]
  assert outcome.exit_code == 1
  assert outcome.nodes[0].restarts == 2


def test_a_healthy_stretch_makes_restarts_count_anew():
  script = Script(a=['x'] * 4 + ['returns'])
  outcome = play(script, a=restarts.Restart(1, 0.0, healthy_s=0.0))
  assert outcome.exit_code == 0
  assert outcome.nodes[0].restarts == 4


def test_a_node_that_ends_the_run_counts_before_one_that_fails_with_it():
  script = Script(a=['x'], b=['returns'])
  outcome = play(script, b=restarts.EndsRun())
  assert (outcome.exit_code, outcome.reason) == (0, 'b finished')


def test_a_node_that_ends_the_run_fails_it_by_failing():
  outcome = play(Script(a=['x'], b=[]), a=restarts.EndsRun())
  assert outcome.exit_code == 1


def test_a_node_that_ends_the_run_can_be_restarted_first():
  script = Script(a=['x', 'returns'], b=[])
  restart = restarts.Restart(1, 0.0)
  outcome = play(script, a=restarts.EndsRun(restart))
  assert (outcome.exit_code, outcome.reason) == (0, 'a finished')
  assert outcome.nodes[0].restarts == 1


def test_a_node_that_waits_for_its_restart_does_not_hold_up_the_end():
  script = Script(a=['x'], b=['returns'])
  outcome = play(script, a=restarts.Restart(1, 60.0), b=restarts.EndsRun())
  assert outcome.exit_code == 0
  assert outcome.nodes[0].state == 'stopped'


# Who holds a handle of whom, as in actor_learner.
CLIENTS = {
  'counter': ('learner', 'actor'),
  'replay': ('learner', 'actor'),
  'learner': ('actor',),
}


def test_who_serves_is_asked_to_stop_when_its_clients_are_gone():
  script = Script(counter=[], replay=[], learner=[], actor=[], last=['returns'])
  play(script, CLIENTS, last=restarts.EndsRun())
  assert script.stopped == ['actor', 'learner', 'counter', 'replay']


@pytest.mark.parametrize('deaf', ['actor', 'learner'])
def test_who_serves_is_asked_in_the_same_order_when_a_client_stays(
  monkeypatch, deaf
):
  monkeypatch.setattr(supervision, 'SERVERS_LATER_S', 0.1)
  monkeypatch.setattr(supervision, 'STOP_GRACE_S', 0.8)
  script = Script(
    (deaf,), counter=[], replay=[], learner=[], actor=[], last=['returns']
  )
  outcome = play(script, CLIENTS, last=restarts.EndsRun())
  assert script.stopped == ['actor', 'learner', 'counter', 'replay']
  stayed = [n.name for n in outcome.nodes if 'did not' in (n.last_error or '')]
  assert stayed == [deaf]


def test_servers_of_each_other_are_asked_too(monkeypatch):
  monkeypatch.setattr(supervision, 'SERVERS_LATER_S', 0.1)
  script = Script(a=[], b=[], last=['returns'])
  clients = {'a': ('b',), 'b': ('a',)}
  play(script, clients, last=restarts.EndsRun())
  assert sorted(script.stopped) == ['a', 'b']


def test_a_lost_backend_is_a_failure():
  outcome = play(Script(a=['lost'], b=[]))
  assert (outcome.exit_code, outcome.reason) == (1, 'gone')
  assert [node.state for node in outcome.nodes] == ['failed', 'failed']


@pytest.mark.parametrize(
  ('error', 'gist'),
  [
    ('Traceback (most recent call last):\n  File\nE: a\n  more', 'E: a'),
    ('Fatal Python error: x\nkilled by SIGSEGV', 'killed by SIGSEGV'),
    (None, 'no reason known'),
  ],
)
def test_the_gist_of_an_error_is_the_line_that_says_what_it_is(error, gist):
  assert supervision._gist(error) == gist
