"""Policies, as the supervisor applies them to a backend that is made up."""

import time
import types

import pytest

from launch import pulse
from launch.engines import prepare
from launch.engines import restarts
from launch.engines import signals
from launch.engines import supervision
from launch.engines import watch


def slots(num):
  return [pulse.Slot(memoryview(bytearray(1024))) for _ in range(num)]


class Script:
  """A backend that plays lists of exits, one list per start of a node.

  Nodes in `deaf` do not end when they are asked to; `runs` is whether nodes
  come to run before they exit.
  """

  kills = True

  def __init__(self, deaf=(), killed=False, runs=True, **exits):
    self.deaf = deaf
    self.killed = killed
    self.runs = runs
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
      if self.runs:
        self.events.append(supervision.Event(index, 'running'))
      self.events.append(
        supervision.Event(
          index,
          'exited',
          failed=failed,
          error=end if failed else None,
          killed=self.killed,
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


def play(
  script,
  clients=None,
  limits=restarts.DEFAULT,
  clock=time.monotonic,
  **assigned,
):
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
    signals.Signals(),
    None,
    0.1,
    watch.Watch(script.slots, limits, clock),
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


def test_a_life_that_did_nothing_does_not_start_the_count_anew():
  script = Script(a=['x'] * 4)
  for slot in script.slots:  # a life that has begun, whatever is cleared
    slot.clear = lambda slot=slot: slot.add(pulse._BEATS)
  outcome = play(script, a=restarts.Restart(1, 0.0, healthy_s=0.0))
  assert outcome.exit_code == 1
  assert outcome.nodes[0].restarts == 1


def test_a_long_wait_for_a_host_that_never_runs_a_node_is_given_up():
  script = Script(runs=False, a=['x'] * 4 + ['returns'])
  outcome = play(script, a=restarts.Restart(1, 0.0, healthy_s=0.0))
  assert outcome.exit_code == 1
  assert outcome.nodes[0].restarts == 1


@pytest.mark.parametrize(('killed', 'code'), [(True, 0), (False, 1)])
def test_a_short_life_that_worked_counts_if_it_was_ended_from_outside(
  killed, code
):
  script = Script(killed=killed, a=['x'] * 4 + ['returns'])
  for slot in script.slots:
    slot.clear = lambda slot=slot: slot.add(pulse._WORK)
  outcome = play(script, a=restarts.Restart(1, 0.0, healthy_s=60.0))
  assert outcome.exit_code == code


def test_restarts_are_forgotten_after_the_window():
  script = Script(a=['x'] * 4 + ['returns'])
  limits = restarts.Limits(max_restarts=1, restart_window_s=1e-6)
  outcome = play(script, limits=limits, a=restarts.Restart(None, 0.0))
  assert outcome.exit_code == 0


def test_the_programs_limits_count_where_a_policy_says_nothing():
  script = Script(a=['x'] * 9)
  limits = restarts.Limits(max_restarts=3)
  outcome = play(script, limits=limits, a=restarts.Restart(None, 0.0))
  assert (outcome.exit_code, outcome.nodes[0].restarts) == (1, 3)


class Hangs(Script):
  """Nodes that begin, and then show no life; `where` they are."""

  where = 'Thread 0x1 (most recent call first):\n  File "a.py", line 3 in f\n'

  def start(self, index, restarts):
    super().start(index, restarts)
    self.slots[index].add(pulse._BEATS)

  def kill(self, indices):
    return [self.where for _ in super().kill(indices)]


def test_a_silent_node_is_started_again_and_given_up_when_that_repeats():
  script = Hangs(a=[])
  limits = restarts.Limits(silent_s=1.0, max_silences=3)
  outcome = play(script, limits=limits, a=restarts.Restart(None, 0.0))
  assert outcome.exit_code == 1
  assert outcome.reason == (
    'a failed after it was silent 3 times: silent for 1 s, in f (a.py, line 3)'
  )
  assert script.started == [('a', 0), ('a', 1), ('a', 2)]
  assert 'most recent call first' in outcome.nodes[0].last_error


def test_nodes_that_are_silent_together_are_killed_together():
  class Two(Hangs):
    killed_at_once = []

    def kill(self, indices):
      self.killed_at_once.append(list(indices))
      return super().kill(indices)

  script = Two(a=[], b=[])
  limits = restarts.Limits(silent_s=1.0, max_silences=1)
  restart = restarts.Restart(None, 0.0)
  assert play(script, limits=limits, a=restart, b=restart).exit_code == 1
  assert script.killed_at_once == [[0, 1]]


@pytest.fixture
def hours(monkeypatch):
  """Time that passes with each poll of a `Slow` backend, a second each."""
  made = types.SimpleNamespace(now=0.0)
  clock = types.SimpleNamespace(monotonic=lambda: made.now)
  monkeypatch.setattr(supervision, 'time', clock)
  return made


class Slow(Script):
  """Nodes whose lives last long by a made-up clock; `shows` is what they do."""

  def __init__(self, hours, life_s, shows, **exits):
    super().__init__(**exits)
    self.hours, self.life_s, self.shows = hours, life_s, shows
    self.born_at = 0.0

  def start(self, index, restarts):
    super().start(index, restarts)
    self.born_at = self.hours.now
    self.slots[index].add(pulse._BEATS)

  def poll(self, timeout_s):
    self.hours.now += 1.0
    assert self.hours.now < 20_000, 'it is started again for ever'
    self.shows(self.slots[0])
    if self.hours.now < self.born_at + self.life_s:
      begun = [event for event in self.events if event.kind == 'running']
      self.events = [event for event in self.events if event not in begun]
      return begun
    return super().poll(timeout_s)


def hang_at_something_long(slot):
  slot.say('a call of the learner', 300.0)


def work(slot):
  slot.add(pulse._WORK)
  slot.add(pulse._BEATS)


def beat(slot):
  slot.add(pulse._BEATS)


def test_hangs_that_take_long_add_up(hours):
  script = Slow(hours, 0.0, hang_at_something_long, a=[])
  outcome = play(script, clock=lambda: hours.now, a=restarts.Restart(None, 0.0))
  assert outcome.reason.startswith(
    'a failed after it was silent 3 times: silent for 300 s'
  )


@pytest.mark.parametrize(
  ('shows', 'life_s', 'restarted'),
  [
    (beat, 130.0, 5),  # five of them take longer than the window of 600 s
    (work, 130.0, 9),
    (beat, 700.0, 9),  # a loop that never says that it worked
  ],
)
def test_deaths_of_lives_that_did_nothing_add_up(
  hours, shows, life_s, restarted
):
  script = Slow(hours, life_s, shows, a=['x'] * 9 + ['returns'])
  outcome = play(
    script,
    clock=lambda: hours.now,
    a=restarts.Restart(None, 0.0, healthy_s=1e6),
  )
  assert outcome.nodes[0].restarts == restarted


@pytest.mark.parametrize('shows', [beat, work])
def test_a_wait_for_a_place_is_no_life_of_a_node(hours, shows):
  class Waits(Slow):
    """Its nodes wait as long for a place, and die as soon as they run."""

    def start(self, index, restarts):
      super().start(index, restarts)
      self.slots[index].clear()

    def poll(self, timeout_s):
      self.hours.now += 1.0
      if self.hours.now < self.born_at + self.life_s:
        return []
      self.shows(self.slots[0])
      return Script.poll(self, timeout_s)

  # Longer than healthy_s, and for lives without work than the window.
  wait_s = 100.0 if shows is work else 700.0
  script = Waits(hours, wait_s, shows, a=['x'] * 9 + ['returns'])
  outcome = play(script, clock=lambda: hours.now, a=restarts.Restart(3, 0.0))
  assert outcome.reason == 'a failed after 3 restarts in a row: x'


def hang(slot):
  del slot


class Lives(Script):
  """A node with one life after another: (what it shows, for how long).

  It fails at the end of each, and returns from the one after the last.
  """

  def __init__(self, hours, *lives):
    super().__init__(a=[])
    self.hours, self.lives = hours, [*lives]

  def start(self, index, restarts):
    super().start(index, restarts)
    self.slots[index].add(pulse._BEATS)
    self.events.append(supervision.Event(index, 'running'))
    self.shows, life_s = self.lives.pop(0) if self.lives else (hang, 0.0)
    self.ends_at, self.last = self.hours.now + life_s, not life_s

  def poll(self, timeout_s):
    self.hours.now += 1.0
    assert self.hours.now < 20_000, 'it is started again for ever'
    self.shows(self.slots[0])
    if self.hours.now >= self.ends_at:
      why = None if self.last else 'x'
      event = supervision.Event(0, 'exited', failed=not self.last, error=why)
      self.events.append(event)
    return super().poll(timeout_s)


HANG, WORK = (hang, 1e6), (work, 700.0)  # longer than the window of 600 s


@pytest.mark.parametrize(
  ('lives', 'silences'),
  [
    # A life that worked and died of something else makes them count anew.
    ([HANG, WORK] * 4, None),
    ([HANG, HANG, WORK] * 3, None),
    ([HANG, WORK, HANG, HANG, HANG], 3),
    # It worked for less than the window: silences in that count.
    ([HANG, (work, 100.0)] * 4, 3),
    # It lived as long, and did nothing.
    ([HANG, (beat, 700.0)] * 4, 3),
    ([HANG] * 4, 3),
  ],
)
def test_silences_count_until_a_life_has_worked(hours, lives, silences):
  script = Lives(hours, *lives)
  outcome = play(script, clock=lambda: hours.now, a=restarts.Restart(None, 0.0))
  if silences is None:
    assert (outcome.exit_code, outcome.reason) == (0, 'all nodes finished')
    return
  assert outcome.reason == (
    f'a failed after it was silent {silences} times: silent for 60 s'
  )


@pytest.mark.parametrize('most', [1, 2, 4])
def test_a_node_that_hangs_in_each_life_has_the_stated_number(hours, most):
  script = Lives(hours, *[HANG] * 9)
  limits = restarts.Limits(max_silences=most)
  outcome = play(
    script, limits=limits, clock=lambda: hours.now, a=restarts.Restart(9, 0.0)
  )
  assert len(script.started) == most
  assert f'a failed after it was silent {most} times: ' in outcome.reason


def test_a_silent_node_without_a_restart_ends_the_run_with_the_sentence():
  outcome = play(Hangs(a=[]), limits=restarts.Limits(silent_s=1.0))
  assert outcome.reason == 'a failed: silent for 1 s, in f (a.py, line 3)'


class Threads(Hangs):
  kills = False

  def kill(self, indices):
    return [self.where] * len(indices)


def test_a_silent_thread_ends_the_run_as_it_cannot_be_killed():
  outcome = play(Threads(a=[]), limits=restarts.Limits(silent_s=1.0))
  assert outcome.exit_code == 1
  assert 'a failed: silent for 1 s' in outcome.reason
  assert 'A thread cannot be killed' in outcome.reason


def test_a_run_in_which_nothing_moves_is_ended():
  class Beats(Script):
    moved = False

    def poll(self, timeout_s):
      time.sleep(0.02)
      self.slots[0].add(pulse._BEATS)
      if not self.moved:  # once, and then never again
        self.slots[0].add(pulse._MOVED)
        self.moved = True
      return super().poll(timeout_s)

  outcome = play(Beats(a=[]), limits=restarts.Limits(stall_s=1.0))
  assert outcome.exit_code == 1
  assert outcome.reason.startswith('no step and no update for 1 s')


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
  # Long, for a busy machine: whoever is not asked by then is killed unasked.
  monkeypatch.setattr(supervision, 'STOP_GRACE_S', 3.0)
  script = Script(
    (deaf,), counter=[], replay=[], learner=[], actor=[], last=['returns']
  )
  outcome = play(script, CLIENTS, last=restarts.EndsRun())
  assert script.stopped == ['actor', 'learner', 'counter', 'replay']
  stayed = [n.name for n in outcome.nodes if 'did not' in (n.last_error or '')]
  assert stayed == [deaf]


def test_a_look_that_comes_late_asks_clients_first(monkeypatch):
  monkeypatch.setattr(supervision, 'SERVERS_LATER_S', 0.0)
  script = Script(
    ('actor',), counter=[], replay=[], learner=[], actor=[], last=['returns']
  )
  monkeypatch.setattr(supervision, 'STOP_GRACE_S', 0.5)
  play(script, CLIENTS, last=restarts.EndsRun())
  assert script.stopped == ['actor', 'learner', 'counter', 'replay']


def test_servers_of_each_other_are_asked_at_once():
  # As workers of gossip, in a ring: at once, and before whom they report to.
  script = Script(counter=[], a=[], b=[], c=[], last=['returns'])
  clients = {'counter': ('a', 'b', 'c'), 'a': ('b',), 'b': ('c',), 'c': ('a',)}
  play(script, clients, last=restarts.EndsRun())
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
  outcome = play(Script(**{name: ['returns'] for name in names}), clients)
  assert outcome.exit_code == 0
  assert len(started) == len(names)


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
  assert supervision.gist(error) == gist
