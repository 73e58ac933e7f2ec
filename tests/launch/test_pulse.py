"""A node's signs of life, without a launcher."""

import threading

import numpy as np
import pytest

from murmuration.launch import pulse


@pytest.fixture
def board(tmp_path):
  found = pulse.Board(tmp_path, 3)
  yield found
  pulse.use(None)


def test_a_slot_is_shared_and_nobody_elses(board, tmp_path):
  pulse.use(pulse.slots(tmp_path / pulse.FILE)[1])
  pulse.beat()
  pulse.worked(moved=True)
  assert [slot.beats for slot in board.slots] == [0, 2, 0]
  assert [slot.moved for slot in board.slots] == [0, 1, 0]


def test_only_the_nodes_own_loop_beats(board):
  pulse.use(board.slots[0])
  thread = threading.Thread(target=pulse.beat)
  thread.start()
  thread.join()
  assert board.slots[0].beats == 0


def test_without_an_engine_all_of_it_does_nothing():
  pulse.beat()
  pulse.waits('a bus')
  with pulse.busy('nothing', 1.0):
    pass
  event = threading.Event()
  assert pulse.stop_event(event) is event


def test_whoever_asks_whether_to_stop_beats(board):
  pulse.use(board.slots[0])
  event = threading.Event()
  stop = pulse.stop_event(event)
  before = board.slots[0].beats
  assert not stop.is_set()
  assert not stop.wait(0.01)
  assert board.slots[0].beats > before + 1
  event.set()
  assert stop.is_set() and stop.wait() and stop.wait(5.0)


def test_a_long_wait_for_the_stop_beats_all_along(board, monkeypatch):
  now, beats = [100.0], []
  monkeypatch.setattr(pulse.time, 'monotonic', lambda: now[0])

  class Never:
    def wait(self, timeout):
      now[0] += timeout
      beats.append(board.slots[0].beats)
      return False

  pulse.use(board.slots[0])
  stop = pulse.stop_event(Never())
  assert not stop.wait(9.5)
  assert now[0] == 109.5
  # At least once a second.
  assert len(beats) >= 10 and (np.diff(beats) > 0).all()


def test_what_keeps_a_node_is_told_and_forgotten(board):
  slot = board.slots[0]
  pulse.use(slot)
  with pulse.busy('tracing', 60.0):
    assert (slot.text, slot.limit_s) == ('tracing', 60.0)
  assert (slot.text, slot.limit_s) == ('', 0.0)
  pulse.waits('x' * 5000)
  assert 100 < len(slot.text) < 1000


def test_the_end_of_a_long_error_is_what_is_kept(board):
  pulse.use(board.slots[0])
  pulse.done(error='where ' * 1000 + 'ValueError: no')
  assert board.slots[0].dead and not board.slots[0].done
  assert board.slots[0].text.endswith('ValueError: no')


def test_a_write_that_fails_is_said_and_survived(board):
  pulse.use(board.slots[0])
  with pulse.survives('the checkpoint'), open('/dev/full', 'w') as full:
    full.write('x' * 100_000)
  assert 'the checkpoint was not written: [Errno 28]' in board.slots[0].text
