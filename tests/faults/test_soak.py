"""What `make soak` says of the sizes of processes."""

import os
import signal

import psutil
import pytest

from tests.faults import launched
from tests.faults import soak


@pytest.fixture
def handler():
  """What handles SIGTERM, again when the test is over: `main` changes it."""
  previous = signal.getsignal(signal.SIGTERM)
  yield
  signal.signal(signal.SIGTERM, previous)


def _samples(*sizes):
  """One for each minute, of a run with a launcher and one node."""
  return [
    soak.Sample(minute, {'launcher': soak.Size(100, 10, 5), 'node': size})
    for minute, size in enumerate(sizes)
  ]


def _flat(minutes, pss_mb=300.0, descriptors=30, threads=20):
  return [soak.Size(pss_mb, descriptors, threads)] * minutes


def _faults(samples):
  return [fault for row in soak.growth(samples)[0] for fault in row.faults]


def test_what_stays_as_it_is_has_no_fault():
  assert not _faults(_samples(*_flat(41)))


def test_what_fills_at_the_start_has_no_fault():
  filling = [soak.Size(50.0 + 25 * i, 10, 4) for i in range(10)]
  assert not _faults(_samples(*filling, *_flat(31)))


@pytest.mark.parametrize(
  'last, words',
  [
    (soak.Size(320.0, 30, 20), 'grew from 300 to 320 MB'),
    (soak.Size(300.0, 35, 20), '35 descriptors, and had 30'),
    (soak.Size(300.0, 30, 25), '25 threads, and had 20'),
  ],
)
def test_what_grows_is_named(last, words):
  (fault,) = _faults(_samples(*_flat(25), *[last] * 16))
  assert words in fault and fault.startswith('node')


def test_what_grows_little_has_no_fault():
  assert not _faults(_samples(*_flat(25), *_flat(16, 314.0, 34, 24)))


def test_a_node_that_went_is_named():
  samples = _samples(*_flat(41))
  for sample in samples[-10:]:
    del sample.sizes['node']
  found, changed = soak.growth(samples)
  assert [row.name for row in found] == ['launcher']
  assert changed == ['node']


def test_a_node_that_was_started_again_is_named(tmp_path, monkeypatch):
  ends = tmp_path / 'ends.py'
  ends.write_text('')
  monkeypatch.setattr(launched, 'COMMAND', ends)
  made = soak.Soak('impala', 60.0, tmp_path, ())
  made._process.wait()
  made.end()
  # It was back before anybody looked.
  made.samples = _samples(*_flat(41))
  logs = tmp_path / 'impala' / 'logs'
  logs.mkdir(parents=True)
  header = '--- {}, pid {}, 2026-11-23 14:00:0{}{}\n'
  (logs / 'actor-0.log').write_text(header.format('actor/0', 7, 1, ''))
  (logs / 'learner-0.log').write_text(
    header.format('learner/0', 8, 1, '')
    + 'ValueError: NaN\n'
    + header.format('learner/0', 9, 5, ', restart 1')
  )
  assert soak._report(made, tmp_path) == ['learner/0 was started again']


def test_too_few_samples_are_refused():
  with pytest.raises(ValueError, match='Give more --minutes'):
    soak.growth(_samples(*_flat(2)))


def test_a_look_sees_this_process():
  sizes = soak.look(psutil.Process(os.getpid()))
  assert sizes['launcher'].pss_mb > 10
  assert sizes['all'].threads >= sizes['launcher'].threads >= 1


def test_the_picture_is_written(tmp_path):
  samples = [
    soak.Sample(minute, {'all': soak.Size(300, 30, 20)}) for minute in range(9)
  ]
  path = soak.draw({'apex': samples, 'impala': samples}, tmp_path / 'a.png')
  assert path.stat().st_size > 10_000


@pytest.mark.parametrize('looks', [0, 1, 10**6])
def test_a_run_that_refuses_its_flags_says_why(
  tmp_path, monkeypatch, capsys, handler, looks
):
  refuses = tmp_path / 'refuses.py'
  refuses.write_text('print("error: there is no setting agent.x")\nexit(2)\n')
  monkeypatch.setattr(launched, 'COMMAND', refuses)
  left = iter(range(looks))

  def look(launcher):
    if next(left, None) is None:
      raise psutil.NoSuchProcess(launcher.pid)
    return {'all': soak.Size(300, 30, 20)}

  monkeypatch.setattr(soak, 'look', look)
  monkeypatch.setattr(soak, '_PERIOD_S', 0.01)
  flags = ['--systems=impala', '--config.agent.x=1', f'--out={tmp_path}']
  assert soak.main([*flags, '--minutes=60']) == 2
  assert (
    'impala ended with exit code 2: error: there is no setting agent.x'
    in (capsys.readouterr().err)
  )
