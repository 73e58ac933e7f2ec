"""What a counter that was killed goes on from: its state and its journal."""

import types

import pytest

from launch.services import counter as counter_lib
from run_records import counter_file
from run_records import durable


class _Clock:
  def __init__(self):
    self.now = 100.0

  def __call__(self):
    return self.now


def _counter(run_dir, clock=None):
  return counter_lib.Counter(run_dir, clock=clock or _Clock())


@pytest.fixture
def reported(tmp_path):
  """A counter's files after 6 reports, of which its state holds the first."""
  clock = _Clock()
  counter = _counter(tmp_path, clock)
  for i in range(6):
    clock.now += 0.01
    counter.report(f'e/{i % 2}', {'actor_steps': 1})
  return tmp_path / 'metrics' / counter_file.JOURNAL


def test_a_journal_is_gone_on_from_again_and_again(tmp_path):
  clock = _Clock()
  for life in range(1, 4):
    counter = _counter(tmp_path, clock)
    for done in range(5):
      clock.now += 0.01
      told = {'actor_steps': done}
      counter.report('e/0', {'actor_steps': 1}, life=(('run', life), told))
    # Killed.
  counter = _counter(tmp_path, clock)
  assert counter.totals() == {'actor_steps': 15}
  assert counter.snapshot()['nodes']['e/0']['totals'] == {'actor_steps': 15}


def test_what_was_counted_is_read_with_the_journal(reported, tmp_path):
  found = counter_file.counted(tmp_path / 'metrics')
  counter = _counter(tmp_path)
  assert found['totals'] == counter.totals() == {'actor_steps': 6}
  assert found['elapsed_s'] == counter.snapshot()['elapsed_s']
  each = {'actor_steps': 3}
  assert found['node_totals'] == {'e/0': each, 'e/1': each}
  counter.close()  # all of it is in the state
  assert counter_file.counted(tmp_path / 'metrics')['totals'] == found['totals']
  assert counter_file.counted(tmp_path / 'other') == {}


@pytest.mark.parametrize(
  'damage, left',
  [
    (lambda data: data[:-3], 5),  # the last line was cut
    (lambda data: data.replace(b'e/1', b'e/7', 1), 1),
    (lambda data: b'', 1),
    (lambda data: b'\n'.join(data.split(b'\n')[1:]), 1),
  ],
)
def test_of_a_damaged_journal_what_is_before_it_is_taken(
  reported, tmp_path, damage, left
):
  data = reported.read_bytes()
  reported.write_bytes(damage(data))
  counter = _counter(tmp_path)
  assert counter.totals()['actor_steps'] == left
  counter.report('e/9', {'actor_steps': 1})
  assert _counter(tmp_path).totals()['actor_steps'] == left + 1


def test_lines_that_wait_for_room_are_written_again_once_a_second_at_most(
  tmp_path, monkeypatch
):
  clock, tried = _Clock(), []
  time = types.SimpleNamespace(monotonic=clock)
  monkeypatch.setattr(counter_file, 'time', time)

  def replace(*args, **options):
    tried.append(clock.now)
    raise OSError('No space left on device')

  file = counter_file.CounterFile(tmp_path)
  with monkeypatch.context() as patch:
    patch.setattr(durable, 'replace', replace)
    for number in range(1, 13):
      file.add(number, ['e/0'])
      file.flush()
      clock.now += 0.25
  assert tried == [100.0, 101.0, 102.0]
  assert 'No space' in str(file.error)
  file.flush()
  assert file.error is None
  journal = tmp_path / counter_file.JOURNAL
  assert journal.read_bytes().count(b'\n') == 12


def test_a_report_costs_the_same_in_a_large_program(tmp_path):
  """By what it writes: the state, which grows, only now and then."""
  clock = _Clock()
  counter = _counter(tmp_path, clock)
  for i in range(300):
    counter.report(f'e/{i}', {'actor_steps': 1}, {'loss': 1.0})
  journal = tmp_path / 'metrics' / counter_file.JOURNAL
  before = journal.stat().st_size
  counter.report('e/0', {'actor_steps': 1})
  assert 0 < journal.stat().st_size - before < 200
