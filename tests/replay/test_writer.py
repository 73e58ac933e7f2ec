"""The item writer through real Reverb servers, also through ones that die."""

import dataclasses
import logging
import os
import pathlib
import subprocess
import sys
import time
from typing import NamedTuple

import numpy as np
import pytest
import reverb
import tensorflow as tf

from murmuration.replay import packing
from murmuration.replay import tables
from murmuration.replay import writer

ROW = tf.TensorSpec((3,), tf.float32)


class Columns(NamedTuple):
  """A nested signature whose columns differ in shape and type."""

  pixels: object
  number: object
  flags: object


COLUMNS = Columns(
  tf.TensorSpec((2, 3), tf.uint8),
  tf.TensorSpec((), tf.int64),
  tf.TensorSpec((4,), tf.bool),
)


def _rows(count, first=0):
  return np.arange(3 * first, 3 * (first + count), dtype=np.float32).reshape(
    count, 3
  )


def _read(client, table, count):
  samples = client.sample(table, count, emit_timesteps=False)
  return [sample.data for sample in samples]


def _wait_for(condition, timeout_s=60):
  deadline = time.monotonic() + timeout_s
  while not condition():
    assert time.monotonic() < deadline
    time.sleep(0.01)


def _size(client, table):
  return client.server_info()[table].current_size


def test_an_item_has_its_columns_in_the_order_of_the_signature(serve):
  server = serve(tables.queue('queue', 100, COLUMNS))
  client = server.localhost_client()
  items = writer.ItemWriter(client, 'queue', COLUMNS)
  rng = np.random.default_rng(0)
  wanted = [
    Columns(
      rng.integers(0, 256, (2, 3), np.uint8),
      np.array(2**40 + i),
      rng.integers(0, 2, 4).astype(bool),
    )
    for i in range(20)
  ]
  pixels = np.zeros((3, 2), np.uint8)
  for item in wanted:
    # A view that is not contiguous, of an array that the caller uses again.
    pixels[...] = item.pixels.T
    items.append(item._replace(pixels=pixels.T), 1.0)
  pixels[...] = 0
  items.flush()
  for sent, got in zip(wanted, _read(client, 'queue', 20), strict=True):
    for a, b in zip(sent, got, strict=True):
      np.testing.assert_array_equal(a, b)
      assert a.dtype == b.dtype and a.shape == b.shape


@pytest.mark.parametrize('length', [1, 4, 16, 64])
def test_rows_arrive_once_each_in_order_with_their_priorities(serve, length):
  server = serve(tables.queue('queue', 1000, ROW))
  client = server.localhost_client()
  options = writer.WriteOptions(max_in_flight=40)
  items = writer.ItemWriter(client, 'queue', ROW, options, length)
  # Whole chunks, chunks that are ended early, and single items in between.
  done = 0
  for count in (0, 1, 16, 5, 64, 4, 3, 100):
    rows = _rows(count, done)
    items.extend(rows, [1.0 + r for r in range(done, done + count)])
    items.append([_rows(1, done + count)[0]], 1.0 + done + count)
    done += count + 1
  items.flush()
  assert _size(client, 'queue') == done
  samples = list(client.sample('queue', done, emit_timesteps=False))
  np.testing.assert_array_equal([s.data[0] for s in samples], _rows(done))
  np.testing.assert_array_equal(
    [s.info.priority for s in samples], 1.0 + np.arange(done)
  )


@pytest.mark.parametrize('count', [1, 10, 16])
def test_a_chunk_that_is_not_full_does_not_wait(serve, count):
  server = serve(tables.queue('queue', 100, ROW))
  client = server.localhost_client()
  items = writer.ItemWriter(client, 'queue', ROW, burst=16)
  items.extend(_rows(count), [1.0] * count)
  _wait_for(lambda: _size(client, 'queue') == count)


def test_chunks_are_long_for_small_rows_only():
  assert writer.chunk_length(56) == writer.CHUNK_LENGTH
  assert writer.chunk_length(writer.CHUNK_BYTES // 4) == 4
  assert writer.chunk_length(84 * 84 * 4) == 1
  assert writer.chunk_length(0) == writer.CHUNK_LENGTH


@pytest.mark.parametrize('length', [1, 4])
def test_a_full_queue_holds_the_writer_within_its_bound(serve, length):
  server = serve(tables.queue('small', 6, ROW))
  client = server.localhost_client()
  options = writer.WriteOptions(max_in_flight=8)
  items = writer.ItemWriter(client, 'small', ROW, options, length)
  items.extend(_rows(length), [1.0] * length)
  items.flush()  # the first one sets the stream up, too
  items._options = dataclasses.replace(options, timeout_s=3.0)
  done = length
  with pytest.raises(writer.WriteBlocked, match='6 of 6 items.*inserts wait'):
    while done < 100:
      items.extend(_rows(length, done), [1.0] * length)
      done += length
  # The one that raised is in flight, too.
  assert 6 < done + length <= 6 + 8
  got = _read(client, 'small', done + length)
  np.testing.assert_array_equal([g[0] for g in got], _rows(done + length))


def test_many_items_in_flight_do_not_fill_the_log(serve, tmp_path):
  log = tmp_path / 'log'
  server = serve(tables.queue('small', 1, ROW))
  client = server.localhost_client()
  kept, file = os.dup(2), os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
  os.dup2(file, 2)
  os.close(file)
  try:
    options = writer.WriteOptions(max_in_flight=150)
    items = writer.ItemWriter(client, 'small', ROW, options)
    items._options = dataclasses.replace(options, timeout_s=0.2)
    with pytest.raises(writer.WriteBlocked):
      items.extend(_rows(200), [1.0] * 200)
    os.write(2, b'another line\n')
    deadline = time.monotonic() + 60
    while 'another line' not in log.read_text():
      assert time.monotonic() < deadline
      time.sleep(0.05)
  finally:
    os.dup2(kept, 2)
    os.close(kept)
  assert 'pending items' not in log.read_text()


# Its disk is full at 1,000 bytes, and then has room again.
FULL_DISK = """
import os, resource, sys, time
from murmuration.replay import stderr

path, deadline = sys.argv[1], time.monotonic() + 60
os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
stderr.drop_notes_of_writers()
for _ in range(20):
  os.write(2, b'x' * 99 + b'\\n')
while os.stat(path).st_size < 1000:
  assert time.monotonic() < deadline, 'the disk never was full'
  time.sleep(0.05)
os.truncate(path, 0)
while b'room' not in open(path, 'rb').read():
  assert time.monotonic() < deadline, 'nothing is written any more'
  os.write(2, b'room\\n')
  time.sleep(0.05)
"""


def test_a_log_goes_on_where_its_disk_was_full(tmp_path):
  log = tmp_path / 'log'
  done = subprocess.run(
    [sys.executable, '-c', FULL_DISK, str(log)],
    cwd=pathlib.Path(__file__).parents[2],
  )
  assert done.returncode == 0, log.read_text()


def test_a_stop_request_ends_the_wait_without_an_error(serve):
  server = serve(tables.queue('small', 1, ROW))
  options = writer.WriteOptions(max_in_flight=2, should_stop=lambda: True)
  items = writer.ItemWriter(server.localhost_client(), 'small', ROW, options)
  start = time.monotonic()
  items.extend(_rows(10), [1.0] * 10)
  items.flush()
  assert time.monotonic() - start < options.timeout_s


def test_a_long_wait_for_a_queue_without_consumers_is_said(serve, monkeypatch):
  monkeypatch.setattr(writer, '_PATIENCE_S', 0.2)
  server = serve(tables.queue('small', 1, ROW))
  said = []
  options = writer.WriteOptions(max_in_flight=2, timeout_s=5.0, say=said.append)
  items = writer.ItemWriter(server.localhost_client(), 'small', ROW, options)
  with pytest.raises(writer.WriteBlocked):
    items.extend(_rows(10), [1.0] * 10)
  assert said and all("table 'small' at" in text for text in said)


@pytest.fixture
def impatient(monkeypatch):
  monkeypatch.setattr(writer, '_PATIENCE_S', 0.2)


def _restarting(serve, **options):
  server = serve(tables.queue('queue', 10_000, ROW))
  client = reverb.Client(f'localhost:{server.port}')
  options = writer.WriteOptions(max_in_flight=20, **options)
  return server, client, writer.ItemWriter(client, 'queue', ROW, options)


@pytest.mark.long
def test_a_server_that_comes_back_gets_all_that_it_had_not_confirmed(
  serve, caplog, impatient
):
  server, client, items = _restarting(serve)
  items.extend(_rows(30), [1.0] * 30)
  items.flush()
  server.stop()
  away = time.monotonic()
  items.extend(_rows(10, 30), [1.0] * 10)
  items._options = dataclasses.replace(items._options, timeout_s=2)
  with pytest.raises(writer.WriteBlocked, match='does not answer'):
    items.flush()
  items._options = dataclasses.replace(items._options, timeout_s=60)
  serve(tables.queue('queue', 10_000, ROW), port=server.port)
  items.flush()
  items.extend(_rows(50, 40), [1.0] * 50)
  items.flush()
  gone, back = (record.getMessage() for record in caplog.records[-2:])
  assert f'localhost:{server.port} does not answer: ' in gone
  assert 'is back after' in back and f'{items.lost} were lost' in back
  assert time.monotonic() - away < 60
  # Reverb sends again in any order.
  count = _size(client, 'queue')
  got = {int(row[0][0]) // 3 for row in _read(client, 'queue', count)}
  assert count == len(got) == 60 - items.lost
  assert set(range(40, 90)) <= got <= set(range(30, 90))


def test_a_writer_that_gave_up_is_replaced_and_what_it_had_is_lost(
  serve, caplog
):
  _, client, items = _restarting(serve)
  items.extend(_rows(10), [1.0] * 10)
  items.flush()
  items._unconfirmed = 7
  items._writer.Close()  # From here on it refuses whatever it is given.
  items.extend(_rows(30, 10), [1.0] * 30)
  items.flush()
  assert items.lost == 7
  assert any('7 items that the server had not' in m for m in caplog.messages)
  got = [row[0] for row in _read(client, 'queue', 40)]
  np.testing.assert_array_equal(got, _rows(40))


def test_a_server_that_stays_away_ends_the_write(serve, impatient, caplog):
  caplog.set_level(logging.ERROR, 'murmuration.replay.writer')
  server, _, items = _restarting(serve)
  items._options = dataclasses.replace(items._options, timeout_s=0.5)
  server.stop()
  with pytest.raises(
    writer.WriteBlocked, match=rf'localhost:{server.port}: it does not'
  ):
    for _ in range(5):
      items.extend(_rows(20), [1.0] * 20)
  items.close()


def test_a_stop_request_ends_the_wait_for_a_server_that_is_gone(serve):
  server, _, items = _restarting(serve, should_stop=lambda: True)
  server.stop()
  items._writer.Close()
  items.extend(_rows(30), [1.0] * 30)
  items.flush()
  # Whatever had no writer is counted.
  assert items.lost == 30


def test_signatures_that_do_not_fit_are_refused(serve):
  layout = packing.TransitionLayout((4,), (3,))
  server = serve(
    tables.queue('rows', 10, ROW),
    tables.queue('columns', 10, COLUMNS),
    tables.queue('transitions', 10, layout.signature()),
  )
  client = server.localhost_client()
  with pytest.raises(
    ValueError, match="no table 'cue' at .*, only columns, rows"
  ):
    writer.ItemWriter(client, 'cue', ROW)
  with pytest.raises(ValueError, match="'columns' at .*is written"):
    writer.ItemWriter(client, 'columns', ROW)
  with pytest.raises(ValueError, match="'rows' at .*is written"):
    writer.ItemWriter(client, 'rows', tf.TensorSpec((3,), tf.float64))
  # Of the same width: only the name of the signature tells them apart.
  other = packing.TransitionLayout((5,), (1,))
  assert other.width == layout.width
  with pytest.raises(ValueError, match='same environment'):
    writer.ItemWriter(client, 'transitions', other.signature())
  items = writer.ItemWriter(client, 'rows', ROW)
  with pytest.raises(ValueError, match=r'\[3\].*\[4\]'):
    items.append([np.zeros(4, np.float32)], 1.0)


def test_options_out_of_range_are_refused():
  with pytest.raises(ValueError, match='max_in_flight=0 must'):
    writer.WriteOptions(max_in_flight=0)


def test_no_server_is_an_error_with_its_address():
  client = reverb.Client('localhost:1')
  with pytest.raises(ConnectionError, match='localhost:1 did not answer'):
    writer.ItemWriter(client, 'queue', ROW, writer.WriteOptions(timeout_s=1))
  # A node that is told to stop does not wait for a server that restores.
  said, start = [], time.monotonic()
  options = writer.WriteOptions(
    timeout_s=300.0, should_stop=lambda: bool(said), say=said.append
  )
  with pytest.raises(ConnectionError, match='run stops.*localhost:1'):
    writer.ItemWriter(client, 'queue', ROW, options)
  assert said == ['the Reverb server at localhost:1 does not answer']
  assert time.monotonic() - start < 60
