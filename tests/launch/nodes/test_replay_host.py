"""A host of replay shards: what it saves, and what it says of what is lost."""

import logging
import pathlib
import threading
import time

import numpy as np
import pytest
import reverb
import tensorflow as tf

from murmuration.launch.nodes import replay_host
from murmuration.launch.nodes import saves as saves_lib
from murmuration.launch.rpc import directory
from murmuration.replay import checkpoints
from murmuration.replay import tables

SIGNATURE = tf.TensorSpec([2], tf.float32)

pytestmark = pytest.mark.usefixtures('private_directory')


def _wait_until(condition):
  deadline = time.monotonic() + 60
  while not condition():
    assert time.monotonic() < deadline
    time.sleep(0.01)


class _Node:
  """A host that runs in a thread, as a node of its own does."""

  def __init__(self, run_dir, **options):
    self.address = f'localhost:{directory.pick_port(set())}'
    self.host = replay_host.ReplayHost(
      lambda: [tables.uniform('replay', 100, 1, SIGNATURE)],
      str(run_dir),
      [self.address],
      **options,
    )
    self._stop = threading.Event()
    self._thread = threading.Thread(target=self.host.run, args=(self._stop,))
    self._thread.start()

  def write(self, num):
    # Its server answers a little earlier.
    _wait_until(lambda: self.host._opened)
    client = reverb.Client(self.address)
    with client.trajectory_writer(1) as writer:
      for value in range(num):
        writer.append(np.full(2, value, np.float32))
        writer.create_item('replay', 1.0, writer.history[-1])

  def stop(self):
    self._stop.set()
    self._thread.join(60)
    assert not self._thread.is_alive()


@pytest.fixture
def start(tmp_path):
  """start(): a node in the directory of the test; options are its host's."""
  nodes = []

  def make(**options):
    nodes.append(_Node(tmp_path, **options))
    return nodes[-1]

  yield make
  for node in nodes:
    node.stop()


def _newest(tmp_path):
  directory = tmp_path / 'checkpoints' / 'replay' / 'shard_0'
  paths = checkpoints.generations(directory)
  return checkpoints.read(paths[0]) if paths else None


@pytest.fixture
def break_checkpoints(monkeypatch):
  """break_checkpoints(): from now on Reverb writes what cannot be read."""

  def start():
    whole = reverb.Client.checkpoint

    def lossy(client):
      path = whole(client)
      pathlib.Path(path, checkpoints.ITEMS).write_bytes(b'no records')
      return path

    monkeypatch.setattr(reverb.Client, 'checkpoint', lossy)

  return start


def test_a_node_saves_itself_where_no_learner_came_to_save(start, tmp_path):
  node = start()
  node.write(5)
  node.host.save({'learner_steps': 7})
  node.write(3)
  node.stop()
  manifest = _newest(tmp_path)
  assert manifest.items == 8
  assert manifest.meta == {'learner_steps': 7}


def test_a_node_that_was_saved_for_the_last_time_is_not_saved_again(
  start, tmp_path, caplog
):
  node = start()
  node.write(5)
  node.host.save({'learner_steps': 7}, last=True)
  node.stop()
  assert _newest(tmp_path).path.name == 'generation_00000001'
  start().write(1)
  assert 'lost' not in caplog.text


def test_a_save_that_is_under_way_at_the_end_is_the_last(
  start, tmp_path, monkeypatch
):
  began, go_on = threading.Event(), threading.Event()
  save = checkpoints.save

  def slow(*args, **options):
    began.set()
    assert go_on.wait(60)
    return save(*args, **options)

  node = start()
  node.write(5)
  monkeypatch.setattr(replay_host.checkpoints, 'save', slow)
  asks = threading.Thread(target=node.host.save, args=({}, True))
  asks.start()
  assert began.wait(60)
  threading.Timer(1.0, go_on.set).start()  # after the node has seen the stop
  node.stop()
  asks.join(60)
  assert not asks.is_alive()
  assert _newest(tmp_path).path.name == 'generation_00000001'


def test_what_others_wrote_after_the_last_save_of_one_is_kept(start, tmp_path):
  node = start(shared=True)
  node.write(5)
  node.host.save({'learner_steps': 7}, last=True)
  node.write(3)
  node.stop()
  manifest = _newest(tmp_path)
  assert manifest.items == 8
  assert manifest.meta == {'learner_steps': 7}


@pytest.mark.parametrize('shared', [False, True])
def test_a_server_too_busy_to_answer_is_saved_all_the_same(
  start, tmp_path, monkeypatch, shared
):
  def silent(client, timeout=None):
    raise reverb.errors.DeadlineExceededError('a server under load')

  node = start(shared=shared)
  node.write(5)
  monkeypatch.setattr(reverb.Client, 'server_info', silent)
  node.host.save({'learner_steps': 7})
  assert _newest(tmp_path).path.name == 'generation_00000001'
  node.stop()
  assert _newest(tmp_path).path.name == 'generation_00000002'


def test_what_was_written_after_a_restart_is_kept_too(start, tmp_path):
  first = start(shared=True)
  first.write(5)
  first.stop()
  second = start(shared=True)  # its tables are those of the checkpoint
  second.write(1)
  second.host.save({}, last=True)
  second.write(2)
  second.stop()
  assert _newest(tmp_path).items == 8


def test_a_host_without_servers_does_not_pretend_to_save(start, tmp_path):
  host = replay_host.ReplayHost(lambda: [], str(tmp_path), ['localhost:1'])
  with pytest.raises(RuntimeError, match='shard 0 runs no server'):
    host.save({})
  node = start()
  node.write(1)
  node.stop()
  with pytest.raises(RuntimeError, match='as it has stopped'):
    node.host.save({})


def test_what_could_not_be_saved_is_said_by_the_next_start(
  start, caplog, break_checkpoints
):
  node = start()
  node.write(5)
  break_checkpoints()
  node.stop()
  assert 'Replay was not checkpointed' in caplog.text
  start().write(1)
  said = 'left no checkpoint: what it held is lost'
  _wait_until(lambda: said in caplog.text)


def test_a_save_that_fails_does_not_keep_the_others_from_theirs(
  start, tmp_path, caplog, break_checkpoints
):
  saved = []

  class Whole:
    def save(self, meta, last):
      saved.append((meta, last))

  node = start()
  node.write(5)
  break_checkpoints()
  saves = saves_lib.ReplaySaves([node.host, Whole()], 60.0)
  assert not saves.save(3, last=True)
  assert saved == [({'learner_steps': 3}, True)]
  assert 'Replay was not checkpointed' in caplog.text
  assert _newest(tmp_path) is None


def test_a_save_that_takes_long_is_spoken_of_and_followed_by_a_pause(
  monkeypatch, caplog
):
  caplog.set_level(logging.INFO, saves_lib.__name__)
  now = [0.0]
  monkeypatch.setattr(saves_lib.time, 'monotonic', lambda: now[0])
  took_s = [1.0]

  class Host:
    def save(self, meta, last):
      now[0] += took_s[0]

  saves = saves_lib.ReplaySaves([Host()], 30.0)
  assert not saves.due()
  now[0] = 30.0
  assert saves.due() and saves.save(1)
  assert caplog.messages == []
  now[0] += 29.0
  assert not saves.due()
  now[0] += 1.0
  took_s[0] = 10.0
  assert saves.due() and saves.save(2)
  (message,) = caplog.messages
  assert 'took 10 s' in message and 'due in 200 s' in message
  now[0] += 199.0
  assert not saves.due()
  now[0] += 1.0
  assert saves.due()
