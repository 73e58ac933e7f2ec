"""Checkpoints: whole or not at all, and restored by the code's settings."""

import contextlib
import json
import logging
import os
import shutil
import socket
import time

import numpy as np
import pytest
import reverb
from reverb.cc import schema_pb2
import tensorflow as tf

from murmuration.replay import checkpoints
from murmuration.replay import tables

SIGNATURE = tf.TensorSpec([2], tf.float32, name='pair')


@pytest.fixture
def serve(tmp_path):
  """serve(tables) opens a server on tmp_path/replay; all are stopped."""
  opened = []

  def start(*made, directory=tmp_path / 'replay'):
    opened.append(checkpoints.open_server(made, directory=directory))
    return opened[-1]

  yield start
  for one in opened:
    one.server.stop()


def prioritized(max_size=100, exponent=0.6, limiter=None, signature=SIGNATURE):
  return tables.prioritized('replay', max_size, 1, signature, exponent, limiter)


def write(writer, value, table):
  writer.append(np.full(2, value, np.float32))
  writer.create_item(table, float(value), writer.history[-1])


def fill(opened, values, table='replay'):
  """Items [2] of these values, the priority of item v is v."""
  client = opened.server.localhost_client()
  with client.trajectory_writer(1) as writer:
    for value in values:
      write(writer, value, table)
  return client


def sample(client, count, table='replay'):
  """(info, value) of samples."""
  return [
    (one.info, one.data[0][0])
    for one in client.sample(table, count, emit_timesteps=False)
  ]


def info_of(opened, table='replay'):
  """What the server says: a restored table is no longer the one of Python."""
  return opened.server.localhost_client().server_info()[table]


def samples_until_blocked(opened, table='replay'):
  """How many samples the limiter lets through now."""
  dataset = reverb.TrajectoryDataset(
    f'localhost:{opened.server.port}',
    table,
    SIGNATURE.dtype,
    SIGNATURE.shape,
    max_in_flight_samples_per_worker=1,
    num_workers_per_iterator=1,
    rate_limiter_timeout_ms=200,
  )
  return len(list(dataset.take(200).as_numpy_iterator()))


def inserts_until_blocked(opened, wanted, offered=40, table='replay'):
  """How many inserts the limiter lets through now; `wanted` are waited for."""

  def completed():
    info = info_of(opened, table).rate_limiter_info
    return info.insert_stats.completed

  before = completed()
  writer = opened.server.localhost_client().trajectory_writer(1)
  for _ in range(offered):
    write(writer, 1.0, table)
  deadline = time.monotonic() + 60
  while True:
    with pytest.raises(reverb.errors.DeadlineExceededError):
      writer.flush(timeout_ms=200)
    after = completed()
    if after - before >= wanted or time.monotonic() > deadline:
      break
  # A writer cannot be closed while items wait: an empty table lets some in.
  for _ in range(offered):
    opened.server.localhost_client().reset(table)
    with contextlib.suppress(reverb.errors.DeadlineExceededError):
      writer.flush(timeout_ms=200)
      break
  writer.close()
  return after - before


def contents(directory):
  """Key to (priority, times_sampled, inserted_at, data) of a generation."""
  (path, *_) = checkpoints.generations(directory)
  chunks = {
    chunk.chunk_key: chunk.data.SerializeToString()
    for chunk in map(
      schema_pb2.ChunkData.FromString,
      tf.data.TFRecordDataset(
        str(path / checkpoints.CHUNKS), 'ZLIB'
      ).as_numpy_iterator(),
    )
  }
  return {
    item.key: (
      item.priority,
      item.times_sampled,
      (item.inserted_at.seconds, item.inserted_at.nanos),
      [
        chunks[part.chunk_key]
        for column in item.flat_trajectory.columns
        for part in column.chunk_slices
      ],
    )
    for item in checkpoints.read_items(path)
  }


def test_what_is_restored_equals_what_was_saved_item_by_item(serve, tmp_path):
  before = serve(prioritized())
  client = fill(before, range(1, 31))
  sampled = [info.key for info, _ in sample(client, 40)]
  client.mutate_priorities('replay', {sampled[0]: 77.0})
  saved = checkpoints.save(before, tmp_path / 'replay', {'learner_steps': 12})
  wanted = contents(tmp_path / 'replay')
  before.server.stop()

  after = serve(prioritized())
  assert after.restored == saved
  assert after.restored.items == 30
  assert after.restored.meta == {'learner_steps': 12}
  checkpoints.save(after, tmp_path / 'again')
  got = contents(tmp_path / 'again')
  assert got == wanted
  assert wanted[sampled[0]][0] == 77.0
  assert sum(times for _, times, _, _ in wanted.values()) == 40
  # And what a learner gets is the data that was written.
  for info, value in sample(after.server.localhost_client(), 50):
    assert info.priority == (77.0 if info.key == sampled[0] else value)


def test_settings_of_the_code_win_over_those_of_the_checkpoint(serve, tmp_path):
  before = serve(prioritized())
  fill(before, range(1, 21))
  checkpoints.save(before, tmp_path / 'replay')
  before.server.stop()

  limiter = reverb.rate_limiters.SampleToInsertRatio(4.0, 5, error_buffer=50)
  table = tables.prioritized('replay', 500, 5, SIGNATURE, 0.25, limiter)
  after = serve(table)
  info = info_of(after)
  assert info.current_size == 20
  assert info.max_size == 500
  assert info.sampler_options.prioritized.priority_exponent == 0.25
  got = info.rate_limiter_info
  assert (got.samples_per_insert, got.min_size_to_sample) == (4.0, 5)
  assert (got.min_diff, got.max_diff) == (20 - 50, 20 + 50)
  assert got.insert_stats.completed == 20
  assert got.sample_stats.completed == 20 * 4 - 20
  # Neither side is blocked: half the range is free to both.
  assert inserts_until_blocked(after, 12) == 12


def test_what_has_left_a_table_stays_counted(serve, tmp_path):
  before = serve(prioritized(max_size=8))
  sample(fill(before, range(1, 21)), 7)
  checkpoints.save(before, tmp_path / 'replay')
  before.server.stop()
  again = serve(prioritized(max_size=8))
  info = info_of(again)
  assert info.current_size == 8
  again.server.stop()
  limiter = info.rate_limiter_info
  assert limiter.insert_stats.completed == 20
  assert limiter.sample_stats.completed == 7
  # But samples wait until as many as they need are there.
  after = serve(tables.prioritized('replay', 100, 10, SIGNATURE))
  assert samples_until_blocked(after) == 0
  assert len(sample(fill(after, [21, 22]), 3)) == 3


def test_where_inserts_waited_before_none_waits_after(serve, tmp_path):
  def table():
    limiter = reverb.rate_limiters.SampleToInsertRatio(4.0, 5, error_buffer=50)
    return prioritized(limiter=limiter)

  before = serve(table())
  # The upper end of the range: (17 + 1) * 4 - 0 > 4 * 5 + 50.
  fill(before, range(1, 18))
  checkpoints.save(before, tmp_path / 'replay')
  before.server.stop()
  after = serve(table())
  assert samples_until_blocked(after) == 50
  assert inserts_until_blocked(after, 25) == 25


def test_a_table_below_min_size_reaches_the_middle_when_it_has_it(
  serve, tmp_path
):
  before = serve(prioritized())
  fill(before, range(1, 4))
  checkpoints.save(before, tmp_path / 'replay')
  before.server.stop()
  limiter = reverb.rate_limiters.SampleToInsertRatio(2.0, 10, error_buffer=30)
  after = serve(prioritized(limiter=limiter))
  assert samples_until_blocked(after) == 0
  fill(after, range(4, 11))
  assert samples_until_blocked(after) == 30
  assert inserts_until_blocked(after, 30) == 30


def test_a_queue_goes_on_with_what_waited_in_it(serve, tmp_path):
  before = serve(tables.queue('queue', 5, SIGNATURE))
  client = fill(before, range(1, 6), 'queue')
  assert sample(client, 1, 'queue')[0][1] == 1
  checkpoints.save(before, tmp_path / 'replay')
  before.server.stop()
  table = tables.queue('queue', 6, SIGNATURE)
  after = serve(table)
  client = after.server.localhost_client()
  values = [value for _, value in sample(client, 3, 'queue')]
  assert values == [2, 3, 4]
  assert samples_until_blocked(after, 'queue') == 1
  assert inserts_until_blocked(after, 6, table='queue') == 6


def test_a_smaller_table_keeps_the_newest(serve, tmp_path, caplog):
  before = serve(prioritized())
  fill(before, range(1, 21))
  checkpoints.save(before, tmp_path / 'replay')
  before.server.stop()
  after = serve(prioritized(max_size=8))
  assert '12 items' in caplog.text
  assert info_of(after).current_size == 8
  checkpoints.save(after, tmp_path / 'again')
  kept = contents(tmp_path / 'again').values()
  assert sorted(priority for priority, *_ in kept) == list(range(13, 21))
  # Full: the next insert takes the place of the oldest.
  fill(after, [99])
  assert info_of(after).current_size == 8


@pytest.mark.parametrize(
  'file',
  [
    checkpoints.TABLES,
    checkpoints.ITEMS,
    checkpoints.CHUNKS,
    checkpoints.MANIFEST,
  ],
)
def test_a_broken_generation_falls_back_to_the_one_before(
  serve, tmp_path, caplog, file
):
  before = serve(prioritized())
  directory = tmp_path / 'replay'
  for values in ([1, 2], [3], [4]):
    fill(before, values)
    checkpoints.save(before, directory)
  before.server.stop()
  newest, older = checkpoints.generations(directory)
  damaged = newest / file
  raw = damaged.read_bytes()
  middle = len(raw) // 2
  flipped = raw[:middle] + bytes([raw[middle] ^ 1]) + raw[middle + 1 :]
  damaged.write_bytes(raw[:middle] if file == checkpoints.MANIFEST else flipped)
  after = serve(prioritized())
  assert after.restored.path == older
  assert info_of(after).current_size == 3
  assert f'{newest.name} is left out' in caplog.text


def test_a_checkpoint_with_a_manifest_of_before_goes_on(serve, tmp_path):
  before = serve(prioritized())
  fill(before, [1, 2])
  saved = checkpoints.save(before, tmp_path / 'replay', {'learner_steps': 12})
  before.server.stop()
  path = saved.path / checkpoints.MANIFEST
  more = {'format': 1, 'generation': 1, 'items': {'replay': 2}, 'sha256': {}}
  path.write_text(json.dumps({**json.loads(path.read_text()), **more}))
  after = serve(prioritized())
  assert after.restored == saved and info_of(after).current_size == 2


def test_without_a_checkpoint_it_starts_empty_and_says_so(
  serve, tmp_path, caplog
):
  caplog.set_level(logging.INFO)
  after = serve(prioritized())
  assert after.restored is None
  assert info_of(after).current_size == 0
  assert 'replay starts empty' in caplog.text


def test_the_leftovers_of_a_killed_save_are_not_restored(serve, tmp_path):
  before = serve(prioritized())
  client = fill(before, [1, 2, 3])
  # Reverb has written, and the process dies before `save` moves it.
  written = client.checkpoint()
  assert os.path.isdir(written)
  before.server.stop()
  after = serve(prioritized())
  assert after.restored is None
  assert info_of(after).current_size == 0


@pytest.mark.parametrize(
  'table, reason',
  [
    (
      prioritized(signature=tf.TensorSpec([3], tf.float32, name='pair')),
      r'shape=\(2,\).*made for.*shape=\(3,\)',
    ),
    (prioritized(signature=tf.TensorSpec([2], tf.float32, name='x')), "'x'"),
    (tables.uniform('other', 9, 1, SIGNATURE), "'replay'.*for {'other'"),
  ],
)
def test_other_tables_or_signatures_are_refused(serve, tmp_path, table, reason):
  before = serve(prioritized())
  fill(before, [1])
  checkpoints.save(before, tmp_path / 'replay')
  before.server.stop()
  with pytest.raises(checkpoints.Refused, match=reason):
    serve(table)
  assert serve(prioritized()).restored is not None


def test_the_newest_generations_stay_and_nothing_else_is_touched(
  serve, tmp_path
):
  opened = serve(prioritized())
  directory = tmp_path / 'replay'
  others = [directory / name for name in ('zzz_not_ours', 'generation_old')]
  for other in others:
    other.mkdir()
  fill(opened, [1])
  for _ in range(4):
    checkpoints.save(opened, directory)
  names = [path.name for path in checkpoints.generations(directory)]
  assert names == ['generation_00000004', 'generation_00000003']
  assert all(other.is_dir() for other in others)
  assert not (directory / checkpoints.STAGING).exists()


def test_a_save_beats_as_long_as_its_files_grow_and_no_longer(
  serve, tmp_path, monkeypatch
):
  opened = serve(prioritized())
  fill(opened, range(1, 4))
  monkeypatch.setattr(checkpoints, '_LOOK_S', 0.01)
  whole, size_of = reverb.Client.checkpoint, checkpoints._bytes_in
  beats, looks = [], []

  def wait_for(events, more):
    enough, deadline = len(events) + more, time.monotonic() + 60
    while len(events) < enough:
      assert time.monotonic() < deadline
      time.sleep(0.001)

  def slow(client):
    part = opened.staging / 'newest' / checkpoints.CHUNKS
    part.parent.mkdir(parents=True)
    wait_for(looks, 2)
    for _ in range(3):
      with part.open('ab') as file:
        file.write(b'x')
      wait_for(beats, 1)
    so_far = len(beats)
    wait_for(looks, 3)
    assert len(beats) == so_far  # it hangs
    shutil.rmtree(opened.staging)
    return whole(client)

  monkeypatch.setattr(reverb.Client, 'checkpoint', slow)
  monkeypatch.setattr(
    checkpoints, '_bytes_in', lambda path: looks.append(0) or size_of(path)
  )
  checkpoints.save(opened, tmp_path / 'replay', beat=lambda: beats.append(0))
  assert len(beats) >= 3


def test_a_save_that_finds_no_room_leaves_nothing_and_is_no_new_kind_of_error(
  serve, tmp_path, monkeypatch
):
  opened = serve(prioritized())
  directory = tmp_path / 'replay'
  fill(opened, [1, 2])
  first = checkpoints.save(opened, directory)
  whole = reverb.Client.checkpoint

  def full(client):
    os.truncate(os.path.join(whole(client), checkpoints.CHUNKS), 3)
    # As Reverb's on a full disk, where it leaves what it had written.
    raise IndexError('items.tfrecord; No space left on device')

  with monkeypatch.context() as patched:
    patched.setattr(reverb.Client, 'checkpoint', full)
    with pytest.raises(OSError, match='No space left'):
      checkpoints.save(opened, directory)
  assert not opened.staging.exists()
  assert checkpoints.generations(directory) == [first.path]
  fill(opened, [3])
  assert checkpoints.save(opened, directory).items == 3


def test_a_restore_writes_nothing_where_checkpoints_are(
  serve, tmp_path, monkeypatch
):
  before = serve(prioritized())
  fill(before, [1, 2])
  checkpoints.save(before, tmp_path / 'replay')
  before.server.stop()
  there = sorted((tmp_path / 'replay').iterdir())
  start, seen = checkpoints.start, []

  def look(tables, port, staging, prepared):
    seen.append(sorted(staging.parent.iterdir()))
    # Nor is anything copied that may be large.
    assert all(
      (prepared / name).is_symlink()
      for name in (checkpoints.ITEMS, checkpoints.CHUNKS)
    )
    return start(tables, port, staging, prepared)

  monkeypatch.setattr(checkpoints, 'start', look)
  after = serve(prioritized())
  assert seen == [there]
  assert {
    value for _, value in sample(after.server.localhost_client(), 20)
  } == {1, 2}


def test_a_generation_that_cannot_be_read_now_is_not_passed_over(
  serve, tmp_path
):
  before = serve(prioritized())
  directory = tmp_path / 'replay'
  for values in ([1], [2]):
    fill(before, values)
    newest = checkpoints.save(before, directory)
  before.server.stop()
  for name in (checkpoints.ITEMS, checkpoints.CHUNKS):
    file = newest.path / name
    content = file.read_bytes()
    file.unlink()
    file.mkdir()  # an error that is neither of a lost nor of a damaged file
    with pytest.raises(OSError, match=name):
      serve(prioritized())
    file.rmdir()
    file.write_bytes(content)
  assert serve(prioritized()).restored.path == newest.path


def test_a_port_that_is_taken_costs_no_checkpoint(serve, tmp_path):
  before = serve(prioritized())
  fill(before, [1, 2])
  checkpoints.save(before, tmp_path / 'replay')
  before.server.stop()
  with socket.socket(socket.AF_INET6) as taken:
    taken.bind(('::', 0))
    taken.listen()
    port = taken.getsockname()[1]
    with pytest.raises(ValueError, match='server'):
      checkpoints.open_server([prioritized()], port, tmp_path / 'replay')
  assert serve(prioritized()).restored.items == 2


def test_a_server_without_a_directory_can_be_saved_and_leaves_nothing(
  tmp_path, monkeypatch
):
  monkeypatch.setattr('tempfile.tempdir', str(tmp_path / 'tmp'))
  (tmp_path / 'tmp').mkdir()
  opened = checkpoints.open_server([prioritized()])
  fill(opened, [1, 2])
  manifest = checkpoints.save(opened, tmp_path / 'here')
  opened.server.stop()
  assert manifest.items == 2
  assert list((tmp_path / 'tmp').iterdir()) == []
