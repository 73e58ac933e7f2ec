"""What the watch makes of signs of life; time is made up."""

import pytest

from murmuration.launch import pulse
from murmuration.launch.engines import restarts
from murmuration.launch.engines import state
from murmuration.launch.engines import watch as watch_lib


class Nodes:
  """Two nodes and a watch, whose seconds pass as the test says."""

  def __init__(self, **rules):
    self.now = 0.0
    self.slots = [
      pulse.Slot(memoryview(bytearray(pulse._BYTES))) for _ in range(2)
    ]
    self.states = [
      state.NodeState(name, state='running')
      for name in ('learner/0', 'actor/0')
    ]
    self.watch = watch_lib.Watch(
      self.slots, restarts.Rules(**rules), lambda: self.now
    )
    self.verdicts = []
    self.notices = []

  def live(self, seconds, *beating, step_s=0.5):
    """Lets time pass in which the nodes `beating` show life."""
    end = self.now + seconds
    while self.now < end:
      self.now += step_s
      for index in beating:
        self.slots[index].add(pulse._BEATS)
      self.verdicts += self.watch.look(self.states)
      notice = self.states[0].notice
      if not self.notices or self.notices[-1] != notice:
        self.notices.append(notice)


@pytest.fixture
def in_node():
  """in_node(slot): what the thread does is the doing of that node."""
  yield pulse.use
  pulse.use(None)


def test_who_beats_is_not_spoken_of():
  nodes = Nodes()
  nodes.live(300, 0, 1)
  assert nodes.notices == [''] and nodes.verdicts == []


def test_who_never_beat_is_not_watched():
  nodes = Nodes()
  nodes.live(300)
  assert nodes.notices == [''] and nodes.verdicts == []
  assert nodes.watch.stalled(nodes.states) == ''


def test_silence_is_said_within_15_s_and_then_at_twice_the_time():
  nodes = Nodes()
  nodes.live(1, 0)
  nodes.live(59)
  assert nodes.notices == [
    '',
    'silent for 10 s',
    'silent for 20 s',
    'silent for 40 s',
  ]
  nodes.live(1, 0)
  assert nodes.states[0].notice == ''


def test_silence_past_its_limit_is_a_verdict():
  nodes = Nodes(silent_s=30.0)
  nodes.live(1, 0, 1)
  nodes.live(29.5, 1)
  assert nodes.verdicts == []
  nodes.live(0.5, 1)
  assert nodes.verdicts == [(0, 'silent for 30 s')]


def test_who_is_busy_has_the_time_that_it_asked_for(in_node):
  nodes = Nodes(silent_s=30.0)
  in_node(nodes.slots[0])
  with pulse.busy('tracing', 100.0):
    nodes.live(99, 1)
    assert nodes.verdicts == []
    assert 'silent for 10 s, busy with tracing (for 100 s at most)' in (
      nodes.notices
    )
    nodes.live(2, 1)
  assert nodes.verdicts[0][0] == 0
  nodes.watch.started(0)
  nodes.verdicts.clear()
  pulse.beat()
  nodes.live(31)
  assert nodes.verdicts, 'it is busy no more'


def test_who_waits_says_what_for(in_node):
  nodes = Nodes()
  for _ in range(12):
    in_node(nodes.slots[0])
    pulse.waits('the table is full')
    nodes.live(1)
  assert nodes.states[0].notice == 'for 10 s now: the table is full'
  nodes.live(20, 0)
  assert nodes.states[0].notice == ''


def test_who_says_it_between_long_tries_waits_too(in_node):
  nodes = Nodes()
  in_node(nodes.slots[0])
  for _ in range(3):
    pulse.waits('no server')
    nodes.live(15, 0)
  assert nodes.states[0].notice.endswith(' s now: no server')


def test_one_word_is_no_wait(in_node):
  nodes = Nodes()
  in_node(nodes.slots[0])
  pulse.waits('a checkpoint was not written')
  nodes.live(60, 0)
  assert nodes.notices == ['']


def test_a_run_in_which_nothing_moves_has_stalled_and_says_who_waits(in_node):
  nodes = Nodes(stall_s=60.0)
  in_node(nodes.slots[0])
  for _ in range(100):
    pulse.worked(moved=True)
    nodes.live(1, 1)
  assert nodes.watch.stalled(nodes.states) == ''
  for _ in range(60):
    pulse.waits('the table is full')
    nodes.live(1, 1)
  why = nodes.watch.stalled(nodes.states)
  assert why.startswith('no step and no update for 60 s: learner/0 for ')
  assert 'the table is full' in why


def test_a_run_whose_learner_is_busy_has_not_stalled(in_node):
  nodes = Nodes(stall_s=60.0)
  in_node(nodes.slots[0])
  with pulse.busy('tracing', 300.0):
    nodes.live(200, 1)
    assert nodes.watch.stalled(nodes.states) == ''


def test_a_wait_with_long_tries_in_something_long_is_no_work(in_node):
  nodes = Nodes(stall_s=60.0)
  in_node(nodes.slots[0])
  with pulse.busy('a call of the learner', 300.0):
    for _ in range(10):
      pulse.waits('shard 0 is away')
      nodes.live(7, 1)
    assert 'shard 0 is away' in nodes.watch.stalled(nodes.states)


def test_who_gets_on_may_be_busy_for_longer_and_excuses_the_run_meanwhile(
  in_node, monkeypatch
):
  nodes = Nodes(silent_s=60.0, stall_s=100.0)
  monkeypatch.setattr(pulse.time, 'monotonic', lambda: nodes.now)
  in_node(nodes.slots[0])
  pulse.worked(moved=True)
  with pulse.busy('a checkpoint', 300.0):
    for _ in range(500):  # a save that gets on each second
      nodes.live(1, 1)
      pulse.progress()
    assert nodes.verdicts == []
    assert nodes.watch.stalled(nodes.states) == ''
    nodes.live(299, 1)
    assert nodes.verdicts != [], 'it hangs'


def test_a_run_in_which_nobody_ever_counts_has_not_stalled(in_node):
  nodes = Nodes(stall_s=60.0)
  nodes.live(200, 0, 1)
  assert nodes.watch.stalled(nodes.states) == ''
  in_node(nodes.slots[0])
  pulse.waits('the counter')
  nodes.live(60, 0, 1)
  assert 'no step' in nodes.watch.stalled(nodes.states)


def test_a_launcher_that_slept_makes_nobody_silent():
  nodes = Nodes()
  nodes.live(1, 0, 1)
  nodes.live(3000, step_s=1000)
  assert nodes.verdicts == [] and nodes.states[0].notice == ''


def test_a_new_life_begins_with_nothing():
  nodes = Nodes(silent_s=30.0)
  nodes.live(1, 0)
  nodes.live(25)
  nodes.watch.started(0)
  nodes.live(100, 1)
  assert nodes.verdicts == []
  assert nodes.watch.worked(0)  # it shows nothing, so nothing is known


def test_a_life_that_did_nothing_has_not_worked(in_node):
  nodes = Nodes()
  in_node(nodes.slots[0])
  pulse.beat()
  assert not nodes.watch.worked(0)
  pulse.worked()
  assert nodes.watch.worked(0)
