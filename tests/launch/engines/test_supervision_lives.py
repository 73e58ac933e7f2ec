"""Lives of nodes that are silent or do nothing, and how they add up."""

import pytest

from murmuration.launch import pulse
from murmuration.launch.engines import supervision
from tests.launch.engines import scripts


class Hangs(scripts.Script):
  """Nodes that begin, and then show no life; `where` they are."""

  where = (
    'Current thread 0x1 (most recent call first):\n  File "a.py", line 3 in f\n'
  )

  def start(self, index, again):
    super().start(index, again)
    self.slots[index].add(pulse._BEATS)

  def kill(self, index):
    self.events.append(
      supervision.Event(index, 'exited', failed=True, error=self.where)
    )
    return ''


def test_a_silent_node_is_started_again_and_given_up_when_that_repeats():
  script = Hangs(a=[])
  outcome = scripts.play(
    script,
    come_back=True,
    silent_s=1.0,
    max_restarts=2,
  )
  assert outcome.exit_code == 1
  assert outcome.reason == (
    'a failed after 2 restarts in a row: silent for 1 s, in f (a.py, line 3)'
  )
  assert script.started == [('a', 0), ('a', 1), ('a', 2)]
  assert 'most recent call first' in outcome.nodes[0].last_error


class Slow(scripts.Script):
  """Nodes whose lives last long; `shows` is what they do."""

  step_s = 1.0

  def __init__(self, life_s, shows, **exits):
    super().__init__(life_s=life_s, **exits)
    self.shows = shows

  def start(self, index, again):
    super().start(index, again)
    self.slots[index].add(pulse._BEATS)

  def poll(self, timeout_s):
    self.shows(self.slots[0])
    return super().poll(timeout_s)


def hang_at_something_long(slot):
  slot.say('a call of the learner', 300.0)


def work(slot):
  slot.add(pulse._WORK)
  slot.add(pulse._BEATS)


def beat(slot):
  slot.add(pulse._BEATS)


def test_hangs_that_take_long_add_up():
  script = Slow(0.0, hang_at_something_long, a=[])
  outcome = scripts.play(script, come_back=True)
  assert outcome.reason.startswith(
    'a failed after 5 restarts in a row: silent for 300 s'
  )


@pytest.mark.parametrize(
  ('shows', 'life_s', 'restarted'),
  [
    (beat, 130.0, 5),  # five of them take longer than the window of 600 s
    (beat, 700.0, 9),  # a loop that never says that it worked
  ],
)
def test_deaths_of_lives_that_did_nothing_add_up(shows, life_s, restarted):
  script = Slow(life_s, shows, a=['x'] * 9 + ['returns'])
  outcome = scripts.play(script, come_back=True)
  assert outcome.nodes[0].restarts == restarted


@pytest.mark.parametrize('shows', [beat, work])
def test_a_wait_for_a_place_is_no_life_of_a_node(shows):
  # Longer than a healthy life, and for lives without work than the window.
  wait_s = 100.0 if shows is work else 700.0
  script = Slow(wait_s, shows, runs=False, a=['x'] * 9 + ['returns'])
  outcome = scripts.play(script, come_back=True, max_restarts=3)
  assert outcome.reason == 'a failed after 3 restarts in a row: x'


def hang(slot):
  del slot


class Lives(scripts.Script):
  """A node with one life after another: (what it shows, for how long).

  It fails at the end of each, and returns from the one after the last.
  """

  step_s = 1.0

  def __init__(self, *lives):
    super().__init__(a=[])
    self.lives = [*lives]

  def start(self, index, again):
    super().start(index, again)
    self.slots[index].add(pulse._BEATS)
    self.events.append(supervision.Event(index, 'running'))
    self.shows, life_s = self.lives.pop(0) if self.lives else (hang, 0.0)
    self.ends_at, self.last = self.now + life_s, not life_s

  def poll(self, timeout_s):
    self.shows(self.slots[0])
    if self.now + self.step_s >= self.ends_at:
      self.ends_at = float('inf')
      why = None if self.last else 'x'
      event = supervision.Event(0, 'exited', failed=not self.last, error=why)
      self.events.append(event)
    return super().poll(timeout_s)


HANG, WORK = (hang, 1e6), (work, 700.0)  # longer than the window of 600 s


@pytest.mark.parametrize(
  ('lives', 'given_up'),
  [
    # A life that worked and died of something else makes them count anew.
    ([HANG, WORK] * 4, False),
    ([HANG, HANG, WORK] * 3, False),
    ([HANG, WORK, HANG, HANG, HANG], True),
    ([HANG] * 4, True),
    # Another death counts with them, if its life did nothing.
    ([HANG, (beat, 100.0)] * 2, True),
  ],
)
def test_silences_count_until_a_life_has_worked(lives, given_up):
  outcome = scripts.play(Lives(*lives), come_back=True, max_restarts=3)
  assert ('failed after 3 restarts in a row' in outcome.reason) == given_up
  assert outcome.exit_code == given_up


def test_a_silent_node_without_a_restart_ends_the_run_with_the_sentence():
  outcome = scripts.play(
    Hangs(a=[]),
    silent_s=1.0,
  )
  assert outcome.reason == 'a failed: silent for 1 s, in f (a.py, line 3)'


class Threads(Hangs):
  kills = False

  def kill(self, index):
    del index
    return self.where


def test_a_silent_thread_ends_the_run_as_it_cannot_be_killed():
  outcome = scripts.play(
    Threads(a=[]),
    silent_s=1.0,
  )
  assert outcome.exit_code == 1
  assert 'a failed: silent for 1 s' in outcome.reason
  assert 'A thread cannot be killed' in outcome.reason


def test_a_thread_that_a_debugger_holds_is_waited_for_with_all_the_others():
  class Held(Threads):
    where = '  File "/usr/lib/python3.11/bdb.py", line 90, in trace_dispatch\n'
    asked = 0

    def poll(self, timeout_s):
      self.slots[1].add(pulse._BEATS)
      self.slots[1].waits('the table is empty')  # which the first would fill
      return super().poll(timeout_s)

    def kill(self, index):
      assert index == 0
      self.asked += 1
      if self.asked == 100:  # it is let go, and both come to their end
        self.events += [supervision.Event(i, 'exited') for i in range(2)]
      return super().kill(index)

  outcome = scripts.play(
    Held(a=[], b=[]),
    silent_s=1.0,
    stall_s=3.0,
  )
  assert (outcome.exit_code, outcome.reason) == (0, 'all nodes finished')


def test_a_run_in_which_nothing_moves_is_ended():
  class Beats(scripts.Script):
    moved = False

    def poll(self, timeout_s):
      self.slots[0].add(pulse._BEATS)
      if not self.moved:  # once, and then never again
        self.slots[0].add(pulse._MOVED)
        self.moved = True
      return super().poll(timeout_s)

  outcome = scripts.play(
    Beats(a=[]),
    stall_s=1.0,
  )
  assert outcome.exit_code == 1
  assert outcome.reason.startswith('no step and no update for 1 s')
