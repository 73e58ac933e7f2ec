"""The inspector where it cannot show the whole: it says what is missing."""

import json

import numpy as np
import pytest
import reverb
import tensorflow as tf

from murmuration.replay import packing
from murmuration.replay import tables

LAYOUT = packing.TransitionLayout((3,))


def prioritized(signature=None, name='replay'):
  return tables.prioritized(name, 1000, 1, signature or LAYOUT.signature())


def fill(server, count, version=0, table='replay'):
  """`count` transitions of priorities 1, 2, ..."""
  item = LAYOUT.pack(
    np.zeros(3), 1, 0.0, 1.0, np.zeros(3), version=version, written_at=1.0
  )
  with server.localhost_client().trajectory_writer(1) as writer:
    for index in range(count):
      writer.append(item)
      writer.create_item(table, 1.0 + index, writer.history[-1])


def samples_taken(server, table='replay'):
  info = server.localhost_client().server_info()[table]
  return info.rate_limiter_info.sample_stats.completed


@pytest.fixture
def two_shards(serve, tmp_path):
  """A run with two shards of 10 and 11 items, and their servers."""
  run = tmp_path / 'run'
  (run / 'replay').mkdir(parents=True)
  servers = [serve(prioritized()), serve(prioritized())]
  for number, server in enumerate(servers):
    fill(server, 10 + number)
    (run / 'replay' / f'shard_{number}.json').write_text(
      json.dumps({'address': f'localhost:{server.port}', 'shard': number})
    )
  return run, servers


def test_a_shard_without_an_item_is_named_below_the_bars(two_shards, ask):
  run, servers = two_shards
  histogram = ('--histogram', 'priorities')
  code, out, _ = ask(run, *histogram)
  assert code == 0 and 'priority of 512 items' in out
  assert 'Without' not in out
  servers[0].localhost_client().reset('replay')
  code, out, _ = ask(run, *histogram)
  assert code == 0 and 'priority of 256 items' in out
  assert 'Without shard 0, table replay: Samples wait until 1 items' in out


def test_a_shard_that_is_away_is_named_beside_what_the_others_hold(
  two_shards, ask
):
  run, servers = two_shards
  servers[1].stop()
  error = 'Without shard 1: No Reverb server answered'
  # Long enough for the one that lives.
  code, out, _ = ask(run, '--sample', 2, '--timeout', 2)
  assert code == 0 and out.count('shard 0, table replay, item') == 2
  assert error in out
  code, out, _ = ask(run, '--histogram', 'priorities', '--timeout', 2)
  assert code == 0 and 'priority of 256 items' in out and error in out
  # With the other one empty there is nothing to show, for both reasons.
  servers[0].localhost_client().reset('replay')
  code, _, err = ask(run, '--sample', 2, '--timeout', 2)
  assert code == 2 and 'Samples wait until' in err and 'No Reverb' in err


@pytest.mark.parametrize(
  'sampler', [reverb.selectors.MaxHeap, reverb.selectors.Lifo]
)
def test_a_sampler_that_always_gives_the_same_item_is_not_the_table(
  serve, ask, sampler
):
  server = serve(
    reverb.Table(
      'replay',
      sampler(),
      reverb.selectors.Fifo(),
      1000,
      reverb.rate_limiters.MinSize(1),
      signature=LAYOUT.signature(),
    )
  )
  fill(server, 20)
  address = f'localhost:{server.port}'
  code, _, err = ask(address, '--histogram', 'priorities')
  assert code == 2 and 'does not draw at random' in err
  assert 'Look at a checkpoint' in err
  assert samples_taken(server) == 0
  code, out, _ = ask(address, '--sample', 9)
  assert code == 0 and out.count('table replay, item') == 1
  assert '1 of 9 items: its sampler gives this one' in out
  # Asking for it once is enough.
  assert samples_taken(server) == 1


@pytest.mark.parametrize(
  'signature, said',
  [
    (
      tf.TensorSpec(
        [LAYOUT.width], tf.float32, name='transition2.float32_3.int32_scalar'
      ),
      'are transitions of format 2, but this version reads format 1',
    ),
    (
      tf.TensorSpec([LAYOUT.width - 1], tf.float32, name=LAYOUT.name),
      'are float32 [11], but such a transition is float32 [12] here',
    ),
  ],
  ids=['another format', 'another width'],
)
def test_transitions_of_another_version_are_not_decoded(
  serve, ask, signature, said
):
  server = serve(prioritized(signature))
  width = signature.shape[0]
  server.localhost_client().insert(np.ones(width, np.float32), {'replay': 1.0})
  address = f'localhost:{server.port}'
  code, out, _ = ask(address, '--interval', 0)
  # The columns are told as they are.
  assert code == 0 and '1 of 1,000 items' in out
  assert f'{signature.name} float32 [{width}]' in out
  for arguments in (['--sample', 1], ['--histogram', 'priorities']):
    code, _, err = ask(address, *arguments)
    assert code == 2 and said in err
    assert 'Read them with that one' in err
  assert samples_taken(server) == 0
