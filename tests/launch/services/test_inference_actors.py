"""Real actors that act through a server and write what is learned from."""

import contextlib
import dataclasses
import threading
import time

import numpy as np
import portpicker
import pytest
import reverb

from murmuration.launch import experience
from murmuration.launch.nodes import actor
from murmuration.replay import blocks

ENVS, BLOCKS = 4, 12


@pytest.fixture
def acting(private_directory, world, tmp_path):
  """acting(config, policy) starts actors that write to a queue each."""
  del private_directory
  with contextlib.ExitStack() as stack:

    def start(made, config, policy):
      kind = experience.of_actors(made.experiment, config)
      streams, stop = [], threading.Event()
      for i in range(config.num_actors):
        port = portpicker.pick_unused_port()
        keeper = reverb.checkpointers.DefaultCheckpointer(
          str(tmp_path / f'{port}')
        )
        server = reverb.Server(kind.tables('replay'), port, keeper)
        stack.callback(server.stop)
        address = f'localhost:{port}'
        node = actor.Actor(
          made.experiment,
          config,
          i,
          made.counter,
          policy,
          address,
          share=made.experiment.total_steps // config.num_actors,
        )
        thread = threading.Thread(target=node.run, args=[stop], daemon=True)
        thread.start()
        stack.callback(thread.join, 60)
        streams.append(kind.source([address], 'replay', stop.is_set))
      stack.callback(made.over.set)
      stack.callback(stop.set)
      return streams

    yield start


def _take(stream, count=BLOCKS):
  """The next blocks of an actor, each with axes [1, ...]."""
  return [
    blocks.Block(*map(np.asarray, next(stream).data)) for _ in range(count)
  ]


def test_actors_write_the_blocks_that_they_would_write_locally(world, acting):
  made = world(num_actors=2)
  local = dataclasses.replace(made.config, inference='local')
  central = acting(made, made.config, made.client)
  alone = acting(made, local, made.learner)
  for one, other in zip(central, alone):
    ends = 0
    for got, expected in zip(_take(one), _take(other)):
      ends += got.last.sum()
      for name, column in got._asdict().items():
        if name != 'written_at':
          np.testing.assert_allclose(
            column, getattr(expected, name), rtol=1e-5, atol=1e-5, err_msg=name
          )
    assert ends > 0


@pytest.mark.long
def test_no_block_holds_what_was_acted_before_and_after_a_server_died(
  world, acting
):
  made = world(num_actors=2)
  streams = acting(made, made.config, made.client)
  found = [[] for _ in streams]
  # Read all the time: an actor that waits for its queue is between two blocks.
  over = threading.Event()

  def read(stream, taken):
    while not over.is_set():
      taken += _take(stream, 1)

  for pair in zip(streams, found):
    threading.Thread(target=read, args=pair, daemon=True).start()
  for deaths in range(4):
    most = [len(taken) + 20 for taken in found]
    deadline = time.monotonic() + 60
    while any(len(taken) < enough for taken, enough in zip(found, most)):
      assert time.monotonic() < deadline
      time.sleep(0.01)
    if deaths < 3:
      made.end()
      made.start()
  over.set()
  for taken in found:
    for block in taken:
      assert _deviation(made, block) < 1e-5


def _deviation(made, block):
  """Largest difference of log-probabilities from the block's own state on."""
  network, head = made.agent.network, made.agent.head
  parts = network.prepare(made.agent.layout.unpack(made.learner.theta[None]))
  core, fresh = block.core[0].copy(), np.zeros(ENVS, np.bool_)
  largest = 0.0
  for t in range(made.agent.unroll_length):
    outputs, core = network.step(parts, block.observation[0, t], core, fresh)
    log_pi = np.asarray(head.log_prob(outputs, block.action[0, t]))
    largest = max(largest, np.abs(log_pi - block.behaviour[0, t, :, 0]).max())
    fresh = block.last[0, t]
  return largest
