"""Every row that was written can be read back, whatever happened next."""

import json
import math
import subprocess
import sys
import threading

import numpy as np
import pytest
from tensorboard.backend.event_processing import event_accumulator

from murmuration.run_records import jsonable
from murmuration.run_records import metrics


def _scalars(directory):
  events = event_accumulator.EventAccumulator(str(directory))
  events.Reload()
  return {
    tag: [(e.step, e.value) for e in events.Scalars(tag)]
    for tag in events.Tags()['scalars']
  }


def test_rows_are_on_disk_before_the_writer_is_closed(tmp_path):
  writer = metrics.MetricsWriter(tmp_path)
  writer.row('star', {'version': 1, 'R_star': 475.5})
  writer.row('star', {'version': 2, 'R_star': np.float32(500)})
  assert metrics.read_jsonl(tmp_path / 'star.jsonl') == [
    {'version': 1, 'R_star': 475.5},
    {'version': 2, 'R_star': 500.0},
  ]
  writer.scalars({'star/R_star': 475.5}, step=10)
  assert _scalars(tmp_path) == {'star/R_star': [(10, 475.5)]}
  writer.close()


def test_every_line_is_strict_json_and_non_finite_numbers_come_back(tmp_path):
  row = {
    'lost': math.nan,
    'low': -math.inf,
    'high': np.float64(math.inf),
    'returns': np.array([1.0, math.inf]),
    'flag': np.bool_(True),
    'none': None,
    'name': 'explorer/0',
  }
  writer = metrics.MetricsWriter(tmp_path)
  writer.row('event', row)
  writer.close()
  line = (tmp_path / 'event.jsonl').read_text()

  def refuse(name):
    raise AssertionError(f'{name} is not JSON')

  json.loads(line, parse_constant=refuse)
  (read,) = metrics.read_jsonl(tmp_path / 'event.jsonl')
  assert math.isnan(read.pop('lost'))
  assert read == {
    'low': -math.inf,
    'high': math.inf,
    'returns': [1.0, math.inf],
    'flag': True,
    'none': None,
    'name': 'explorer/0',
  }


def test_only_single_numbers_become_scalars(tmp_path):
  writer = metrics.MetricsWriter(tmp_path)
  writer.scalars(
    {
      'a': 1,
      'b': np.float32(2),
      'c': np.array(3),
      'd': [1],
      'e': 'x',
      'f': None,
    },
    step=7,
  )
  writer.scalars({'only': 'words'}, step=8)
  writer.close()
  assert _scalars(tmp_path) == {'a': [(7, 1)], 'b': [(7, 2)], 'c': [(7, 3)]}


def test_a_line_cut_by_a_kill_is_neither_read_nor_glued_to_the_next(tmp_path):
  path = tmp_path / 'star.jsonl'
  path.write_text('{"a": 1}\n{"a": 2, "b')
  assert metrics.read_jsonl(path) == [{'a': 1}]
  writer = metrics.MetricsWriter(tmp_path)
  writer.row('star', {'a': 3})
  writer.close()
  assert metrics.read_jsonl(path) == [{'a': 1}, {'a': 3}]


@pytest.mark.parametrize(
  'content, whole',
  [
    ('', 0),
    ('x' * 30, 0),
    ('ab\n', 3),
    ('ab\ncd\n', 6),
    ('ab\n' + 'x' * 30, 3),
    ('ab\n' + 'x' * 30 + '\n', 34),
  ],
)
def test_the_end_of_whole_lines_is_found(tmp_path, content, whole):
  path = tmp_path / 'star.jsonl'
  path.write_text(content)
  assert metrics.end_of_rows(path) == whole
  assert metrics.end_of_rows(path / 'below a file') == 0
  metrics._open_for_append(path).close()
  assert path.read_text() == content[:whole]


def test_rows_are_read_from_where_the_last_reading_ended(tmp_path):
  path = tmp_path / 'star.jsonl'
  assert list(metrics.rows(path)) == []
  path.write_text('{"a": 1}\n{"a": "inf"}\n{"a"')
  assert list(metrics.rows(path)) == [({'a': 1}, 9), ({'a': math.inf}, 22)]
  assert list(metrics.rows(path, 9)) == [({'a': math.inf}, 22)]
  with path.open('a') as file:
    file.write(': 3}\nwhat\n')
  rows = metrics.rows(path, 22)
  assert next(rows) == ({'a': 3}, 31)
  with pytest.raises(ValueError, match=r'star\.jsonl:2 \(from byte 22 on\)'):
    next(rows)


def test_a_broken_line_in_the_middle_is_named(tmp_path):
  path = tmp_path / 'star.jsonl'
  path.write_text('{"a": 1}\nwhat\n{"a": 2}\n')
  with pytest.raises(ValueError, match=r'star\.jsonl:2'):
    metrics.read_jsonl(path)


def test_threads_do_not_mix_their_lines(tmp_path):
  writer = metrics.MetricsWriter(tmp_path)

  def work(name):
    for number in range(200):
      writer.row('event', {'thread': name, 'number': number})
      writer.scalars({f'x{name}': number}, step=number)

  threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  writer.close()
  rows = metrics.read_jsonl(tmp_path / 'event.jsonl')
  for name in range(4):
    numbers = [row['number'] for row in rows if row['thread'] == name]
    assert numbers == list(range(200))
  assert all(len(points) == 200 for points in _scalars(tmp_path).values())


def test_a_writer_that_is_closed_drops_rows_quietly(tmp_path):
  writer = metrics.MetricsWriter(tmp_path)
  writer.close()
  writer.row('star', {'a': 1})
  writer.scalars({'a': 1}, step=1)
  assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize('kind', ['', '../star', 'a/b', '.hidden'])
def test_a_kind_that_is_no_file_name_is_refused(tmp_path, kind):
  with pytest.raises(ValueError, match='cannot name a metrics file'):
    metrics.MetricsWriter(tmp_path).row(kind, {})


def test_a_reader_sees_the_old_json_file_or_the_new_one(tmp_path):
  path = tmp_path / 'summary.json'
  jsonable.write(path, {'a': 1})
  with pytest.raises(TypeError, match='object'):
    jsonable.write(path, {'a': object()})
  assert jsonable.read(path) == {'a': 1}
  assert [p.name for p in tmp_path.iterdir()] == ['summary.json']


def test_writing_metrics_does_not_import_tensorflow(tmp_path):
  code = (
    'import sys; from murmuration.run_records import metrics; '
    f'w = metrics.MetricsWriter({str(tmp_path)!r}); '
    "w.scalars({'a': 1}, 1); w.close(); "
    "sys.exit('tensorflow' in sys.modules)"
  )
  assert (
    subprocess.run([sys.executable, '-c', code], check=False).returncode == 0
  )
