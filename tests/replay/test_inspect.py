"""The inspector's command, on real servers and checkpoints."""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import time
import types

import numpy as np
import pytest
import reverb
import tensorflow as tf

from murmuration.replay import checkpoints
from murmuration.replay import packing
from murmuration.replay import table_checks
from murmuration.replay import tables
from murmuration.replay.inspect import command
from murmuration.replay.inspect import read
from murmuration.replay.inspect import show
from murmuration.replay.inspect import target as inspect_target
from murmuration.run_records import launcher

LAYOUT = packing.TransitionLayout((3,))
ROOT = pathlib.Path(__file__).resolve().parents[2]


def prioritized(name='replay', limiter=None, signature=None, exponent=1.0):
  signature = signature or LAYOUT.signature()
  return tables.prioritized(name, 1000, 1, signature, exponent, limiter)


def packed(index):
  """Transition number `index`, whose reward and version tell it."""
  return LAYOUT.pack(
    np.full(3, index, np.float32),
    index % 2,
    float(index),
    0.9,
    np.full(3, index + 1, np.float32),
    version=10 * index,
    written_at=packing.written_now() - 100,
  )


def fill(server, indices, priority=lambda index: 1.0, table='replay'):
  with server.localhost_client().trajectory_writer(1) as writer:
    for index in indices:
      writer.append(packed(index))
      writer.create_item(table, priority(index), writer.history[-1])


@pytest.fixture
def ask_json(ask):
  def run(*arguments):
    code, out, err = ask(*arguments, '--json')
    assert code == 0, err
    return json.loads(out)

  return run


def samples_taken(server, table='replay'):
  info = server.localhost_client().server_info()[table]
  return info.rate_limiter_info.sample_stats.completed


def test_a_report_says_what_is_in_a_live_table(serve, ask):
  server = serve(prioritized())
  fill(server, range(50))
  address = f'localhost:{server.port}'
  code, out, _ = ask(address, '--interval', '0.2')
  assert code == 0
  for part in (
    f'replay at {address}',
    '50 of 1,000 items (5%)',
    'by priority^1; removed: oldest first',
    'samples from size 1 on',
    'neither waits',
    '0 inserts/s, 0 samples/s',
    'idle ',
    f'{4 * LAYOUT.width} B per item',
    'transition.float32_3.int32_scalar float32 (',
  ):
    assert part in out
  assert samples_taken(server) == 0


def test_a_blocked_table_is_not_waited_for(serve, ask):
  server = serve(
    tables.prioritized('replay', 1000, 30, LAYOUT.signature()),
  )
  fill(server, range(20))
  address = f'localhost:{server.port}'
  code, out, _ = ask(address, '--interval', 0)
  assert code == 0 and 'samples wait: 20 of 30 items' in out
  code, _, err = ask(address, '--sample', 3)
  assert code == 2 and 'until 30 items are there, of 20' in err


def test_a_sample_that_was_asked_for_ends_at_the_timeout(serve, ask):
  limiter = reverb.rate_limiters.SampleToInsertRatio(1.0, 5, error_buffer=4)
  server = serve(prioritized(limiter=limiter))
  fill(server, range(5))
  address = f'localhost:{server.port}'
  # The limiter lets 4 through, and the fifth never comes.
  code, out, _ = ask(address, '--sample', 9, '--timeout', '1.5')
  assert code == 0 and out.count('table replay, item') == 4
  code, _, err = ask(address, '--sample', 1, '--timeout', '1.5')
  assert code == 2 and 'gave no item' in err


def test_a_queue_loses_nothing_to_the_inspector(serve, ask):
  server = serve(tables.queue('queue', 9, LAYOUT.signature()))
  fill(server, range(4), table='queue')
  address = f'localhost:{server.port}'
  code, out, _ = ask(address, '--interval', 0)
  assert code == 0 and 'gone after 1 sample(s)' in out
  code, _, err = ask(address, '--sample', 1)
  assert code == 2 and 'would take them from its reader' in err
  assert server.localhost_client().server_info()['queue'].current_size == 4


def test_samples_are_decoded_by_name(serve, ask, ask_json):
  server = serve(prioritized())
  fill(server, [7])
  address = f'localhost:{server.port}'
  table = ask_json(address, '--sample', 1)['shards'][0]['tables'][0]
  (item,) = table['samples']
  assert item['priority'] == 1.0 and item['times_sampled'] == 1
  fields = item['fields']
  assert list(fields) == list(packing.Transition._fields)
  assert fields['o_t'] == {
    'dtype': 'float32',
    'shape': [3],
    'values': [8.0, 8.0, 8.0],
  }
  assert fields['a_tm1']['values'] == 1 and fields['r_t']['values'] == 7.0
  _, out, _ = ask(address, '--sample', 1)
  assert 'o_tm1 float32 [3] 7 7 7' in out


def test_items_of_another_kind_are_decoded_by_their_signature(serve, ask_json):
  signature = {
    'reward': tf.TensorSpec([4, 2], tf.float32),
    'state': tf.TensorSpec([5], tf.int64),
  }
  server = serve(prioritized(signature=signature))
  block = np.arange(8, dtype=np.float32).reshape(4, 2)
  with server.localhost_client().trajectory_writer(1) as writer:
    writer.append({'reward': block, 'state': np.arange(5)})
    history = {name: column[-1] for name, column in writer.history.items()}
    writer.create_item('replay', 1.0, history)
  address = f'localhost:{server.port}'
  table = ask_json(address, '--sample', 1)['shards'][0]['tables'][0]
  assert table['bytes_per_item'] == 4 * 8 + 8 * 5
  fields = table['samples'][0]['fields']
  assert fields['reward']['values'] == block.tolist()
  assert fields['state']['values'] == [0, 1, 2, 3, 4]


def test_a_histogram_shows_the_table_and_not_what_its_sampler_prefers(serve):
  # Half have priority 1 and half 4: those are drawn four times as often.
  server = serve(prioritized())
  fill(server, range(40), lambda index: 1.0 if index % 2 else 4.0)
  report = read.Report('', [read.read_server(f'localhost:{server.port}', 5)])
  read.look(report, 5, 900)
  values, weights = read.priorities(report)['replay']
  weights = weights / weights.sum()
  assert np.mean(values == 4.0) > 0.7
  assert weights[values == 4.0].sum() == pytest.approx(0.5, abs=0.1)


def test_a_histogram_is_drawn(serve, ask):
  server = serve(prioritized())
  fill(server, range(30), lambda index: 1.0 + index)
  code, out, _ = ask(f'localhost:{server.port}', '--histogram', 'priorities')
  assert code == 0 and '###' in out and 'replay: priority of 256 items' in out
  empty = f'localhost:{serve(prioritized()).port}'
  code, _, err = ask(empty, '--histogram', 'priorities')
  assert code == 2 and 'until 1 items' in err


def test_a_histogram_is_drawn_where_output_is_ascii(serve):
  server = serve(prioritized())
  fill(server, range(30), lambda index: 1.0 + index)
  done = subprocess.run(
    [
      sys.executable,
      '-m',
      'murmuration.replay.inspect',
      f'localhost:{server.port}',
    ]
    + ['--histogram=priorities'],
    cwd=ROOT,
    env={**os.environ, 'PYTHONIOENCODING': 'ascii'},
    capture_output=True,
    text=True,
    timeout=100,
  )
  assert done.returncode == 0, done
  assert 'replay: priority of 256 items' in done.stdout, done


@pytest.fixture
def saved(tmp_path):
  """A checkpoint directory with 20 items at learner step 500."""
  directory = tmp_path / 'run' / 'checkpoints' / 'replay' / 'shard_0'
  opened = checkpoints.open_server([prioritized()], directory=directory)
  fill(opened.server, range(20), lambda index: 1.0 + index)
  checkpoints.save(opened, directory, {'learner_steps': 500})
  opened.server.stop()
  return directory


def everything_in(directory):
  return {
    path: (path.stat().st_mtime_ns, path.is_dir() or path.read_bytes())
    for path in directory.rglob('*')
  }


def test_a_checkpoint_is_read_without_touching_it(saved, ask, ask_json):
  before = everything_in(saved)
  code, out, _ = ask(saved)
  assert code == 0
  assert '20 of 1,000 items' in out and 'learner_steps 500' in out
  shards = ask_json(saved, '--sample', 100)['shards']
  items = shards[0]['tables'][0]['samples']
  rewards = [item['fields']['r_t']['values'] for item in items]
  assert rewards == list(range(20))  # each once, in order
  assert [item['priority'] for item in items] == [1.0 + r for r in rewards]
  assert {item['times_sampled'] for item in items} == {0}
  assert everything_in(saved) == before


def test_a_run_shows_all_shards_and_their_total(serve, ask, ask_json, tmp_path):
  run = tmp_path / 'run'
  (run / 'replay').mkdir(parents=True)
  servers = [serve(prioritized()), serve(prioritized())]
  for number, server in enumerate(servers):
    fill(server, range(10 + number))
    (run / 'replay' / f'shard_{number}.json').write_text(
      json.dumps({'address': f'localhost:{server.port}', 'shard': number})
    )
  found = ask_json(run, '--interval', '0.1')
  assert found['totals']['replay']['items'] == 21
  assert [s['shard'] for s in found['shards']] == ['shard 0', 'shard 1']
  servers[1].stop()
  # Long enough for the one that lives.
  code, out, _ = ask(run, '--interval', 0, '--timeout', 3)
  assert code == 0
  assert 'does not answer' in out and 'No Reverb server answered' in out
  assert 'total replay 10' in out


def _left(saved, serve):
  """A run with a checkpoint, and its server, which has stopped."""
  run = saved.parents[2]
  server = serve(prioritized())
  (run / 'replay').mkdir()
  (run / 'replay' / 'shard_0.json').write_text(
    json.dumps({'address': f'localhost:{server.port}', 'shard': 0})
  )
  server.stop()
  return run, server


def test_a_run_without_servers_shows_what_it_saved(saved, ask, serve):
  run, server = _left(saved, serve)
  code, out, _ = ask(run, '--timeout', 1)
  assert code == 0
  assert 'No server of this run answers' in out and '20 of 1,000' in out
  for arguments in (['--sample', 3], ['--histogram', 'priorities']):
    code, out, _ = ask(run, '--timeout', 1, *arguments)
    assert code == 0 and 'No server of this run answers' in out
  assert 'priority of 20 items' in out


def test_a_run_that_ends_while_it_is_asked_shows_what_it_saved(saved, serve):
  run, _ = _left(saved, serve)
  away = saved.rename(run.parent / 'away')
  target = inspect_target.find(str(run))  # it lives, and has saved nothing yet
  with pytest.raises(read.Failed, match='No Reverb server answered'):
    read.read(target, 1)
  away.rename(saved)
  (shard,) = read.read(target, 1)
  assert shard.saved and [table.size for table in shard.tables] == [20]


@pytest.mark.parametrize('left', ['summary.json', 'launcher.json'])
def test_a_run_that_ended_before_it_saved_is_not_asked_whether_it_lives(
  saved, serve, left
):
  run, _ = _left(saved, serve)
  saved.rename(run.parent / 'away')
  # Of a run that was killed, the record of a process that is no more.
  (run / left).write_text(json.dumps({'pid': 1, 'host': 'here'}))
  target = inspect_target.find(str(run))
  with pytest.raises(read.Failed, match='has ended without a checkpoint'):
    read.read(target, 1)
  with launcher.claim(run):
    with pytest.raises(read.Failed, match='No Reverb server answered'):
      read.read(target, 1)


def test_a_watch_sees_a_server_that_is_back_after_a_checkpoint(
  saved, serve, monkeypatch
):
  run, server = _left(saved, serve)
  target = inspect_target.find(str(run))
  args = argparse.Namespace(target=str(run))
  slept = []
  monkeypatch.setattr(
    read,
    'time',
    types.SimpleNamespace(sleep=slept.append, monotonic=time.monotonic),
  )

  def look(timeout_s, before):
    args.timeout = timeout_s
    return read.collect(args, target, 0.2, before)

  gone = look(1, None)
  assert gone.shards[0].saved and slept == []
  still = look(1, gone.shards)
  assert still.shards[0].saved and slept == [0.2]
  serve(prioritized(), port=server.port)
  assert not look(60, still.shards).shards[0].saved


@pytest.fixture
def watch(monkeypatch, capsys):
  """watch(address, calls): what it prints until Ctrl-C ends it.

  `calls` are made before the readings, of which the last one is broken off.
  """
  collect = read.collect

  def run(address, calls):
    left = iter(calls)

    def interrupted(*arguments):
      next(left)()
      return collect(*arguments)

    monkeypatch.setattr(read, 'collect', interrupted)
    flags = [address, '--watch', '--json', '--interval=0.05', '--timeout=3']
    assert command.main(flags) == 0
    out, err = capsys.readouterr()
    return [json.loads(line) for line in out.splitlines()], err

  return run


def press_ctrl_c():
  raise KeyboardInterrupt


def test_a_watch_reads_again_and_again(serve, watch):
  server = serve(prioritized())
  fill(server, range(50))
  address = f'localhost:{server.port}'
  calls = [lambda: None, lambda: fill(server, [50]), press_ctrl_c]
  found, _ = watch(address, calls)
  tables = [one['shards'][0]['tables'][0] for one in found]
  assert [table['items'] for table in tables] == [50, 51]
  assert samples_taken(server) == 0


def test_a_watch_tries_again_where_its_server_is_away(serve, watch):
  server = serve(prioritized())
  calls = [lambda: None, server.stop, press_ctrl_c]
  found, said = watch(f'localhost:{server.port}', calls)
  assert len(found) == 1 and 'No Reverb server answered' in said
  assert 'Trying again; Ctrl-C ends this.' in said


def test_what_cannot_be_shown_is_said_with_exit_code_2(
  serve, ask, saved, tmp_path
):
  server = serve(prioritized())
  address = f'localhost:{server.port}'
  (chunks,) = saved.rglob(checkpoints.CHUNKS)
  chunks.write_bytes(chunks.read_bytes()[:-5])
  code, _, err = ask(saved)
  assert code == 2 and 'is broken' in err and checkpoints.CHUNKS in err
  server.stop()
  code, _, err = ask(address, '--timeout', 1)
  assert code == 2 and 'No Reverb server answered' in err


# Where only a part can be shown.


@pytest.fixture
def two_shards(serve, tmp_path):
  """A run with two shards of 10 and 11 items, and their servers."""
  run = tmp_path / 'run'
  (run / 'replay').mkdir(parents=True)
  servers = [serve(prioritized()), serve(prioritized())]
  for number, server in enumerate(servers):
    fill(server, range(10 + number), lambda index: 1.0 + index)
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
  fill(server, range(20))
  address = f'localhost:{server.port}'
  code, _, err = ask(address, '--histogram', 'priorities')
  assert code == 2 and 'again and again' in err
  assert 'Look at a checkpoint' in err
  assert samples_taken(server) == 0
  code, out, _ = ask(address, '--sample', 9)
  assert code == 0 and out.count('table replay, item') == 1
  # Asking for it once is enough.
  assert samples_taken(server) == 1


# The numbers and their words.


def table(size, limiter, max_size=5000, **others):
  values = {
    'name': 'replay',
    'size': size,
    'max_size': max_size,
    'max_times_sampled': 0,
    'sampler': None,
    'remover': None,
    'limiter': limiter,
    'signature': None,
  }
  return read.Table(**{**values, **others})


def ratio(inserts, samples):
  """8 samples per insert +- 1,200, from 1,000 items on."""
  return table_checks.Limiter(
    8.0, 1000, 8000 - 1200, 8000 + 1200, inserts, samples
  )


@pytest.mark.parametrize(
  'size, limiter, sentence',
  [
    (300, ratio(300, 0), 'samples wait: 300 of 1,000 items'),
    # The cursor is 9,200 of at most 9,200.
    (2000, ratio(2000, 6800), 'inserts wait: 1,200 samples behind'),
    # One insert more would fit.
    (2000, ratio(2000, 6808), 'neither waits: 1,192 samples behind'),
    (2000, ratio(2000, 9200), 'samples wait: 1,200 samples ahead'),
    (2000, ratio(2000, 9199), 'neither waits: 1,199 samples ahead'),
    (7, table_checks.Limiter(1, 5, -1.7e308, 1.7e308, 7, 999), 'neither waits'),
    (
      4,
      table_checks.Limiter(1, 5, -1.7e308, 1.7e308, 4, 0),
      'samples wait: 4 of 5 items',
    ),
    (
      9,
      table_checks.Limiter(1, 1, 0, 9, 20, 11),
      'inserts wait: the queue is full',
    ),
    (8, table_checks.Limiter(1, 1, 0, 9, 20, 12), 'neither waits'),
    (
      20,
      table_checks.Limiter(8, 1, 5, 10, 21, 163),
      'both wait: inserts and samples block each other',
    ),
  ],
)
def test_the_state_of_a_limiter_in_words(size, limiter, sentence):
  assert show.limiter_state(table(size, limiter)) == sentence


def test_the_words_agree_with_what_a_table_itself_lets_through(serve):
  limiter = reverb.rate_limiters.SampleToInsertRatio(2.0, 5, error_buffer=12)
  real = tables.uniform('replay', 100, 5, None, limiter)
  server = serve(real)
  client = server.localhost_client()

  def seen():
    return read.read_server(f'localhost:{server.port}', 5).tables[0]

  def agrees():
    now = seen()
    assert now.limiter.inserts_wait(now.size) != real.can_insert(1)
    assert now.limiter.samples_wait(now.size) != real.can_sample(1)

  agrees()
  while real.can_insert(1):
    client.insert(np.zeros(1, np.float32), {'replay': 1.0})
    agrees()
  assert show.limiter_state(seen()) == 'inserts wait: 12 samples behind'
  while real.can_sample(1):
    list(client.sample('replay', 1))
    agrees()
  assert show.limiter_state(seen()) == 'samples wait: 12 samples ahead'


@pytest.mark.parametrize(
  'make, sentence',
  [
    (reverb.selectors.Uniform, 'uniform'),
    (reverb.selectors.Fifo, 'oldest first'),
    (reverb.selectors.Lifo, 'newest first'),
    (reverb.selectors.MinHeap, 'lowest priority first'),
    (reverb.selectors.MaxHeap, 'highest priority first'),
    (lambda: reverb.selectors.Prioritized(0.6), 'by priority^0.6'),
  ],
)
def test_every_sampler_has_words(make, sentence):
  made = reverb.Table('t', make(), make(), 9, reverb.rate_limiters.MinSize(1))
  assert show.selector(made.info.sampler_options) == sentence
  assert show.selector(made.info.remover_options) == sentence


def test_rates_and_waits_are_those_of_the_interval(monkeypatch):
  def shard(time, limiter, **worker_ms):
    one = table(2000, limiter, worker_ms=worker_ms)
    return read.Shard('replay', 'here', time, [one])

  early = ratio(1000, 100), {'waiting_for_sampling': 500, 'sleeping': 9000}
  late = ratio(1040, 420), {'waiting_for_sampling': 1760, 'sleeping': 9600}

  def rates(*readings):
    """By two readings 2 s apart."""
    first, second = (
      shard(10.0 + 2 * index, limiter, **worker_ms)
      for index, (limiter, worker_ms) in enumerate(readings)
    )
    monkeypatch.setattr(read, 'read', lambda *unused: [second])
    args = argparse.Namespace(target='here', timeout=1)
    report = read.collect(args, inspect_target.Target({}), 1e-9, [first])
    return report.shards[0].tables[0].rates

  found = rates(early, late)
  assert (found.inserts, found.samples) == (20.0, 160.0)
  assert '20 inserts/s, 160 samples/s (8.00' in show.speed(found)
  assert 'writers waited for samplers 63%' in show.waiting(found)
  assert 'idle 30%' in show.waiting(found)
  # A server that was started again counts from 0.
  assert rates(late, early) is None


def test_bins_hold_every_value_and_those_of_a_wide_spread_grow():
  values = np.array([1.0, 2.0, 3.0, 900.0])
  edges, parts = show.bins(values, np.array([1.0, 1.0, 1.0, 5.0]))
  assert np.diff(edges)[-1] > 100 * np.diff(edges)[0]
  assert (edges[0], edges[-1]) == (1.0, 900.0)
  assert parts.sum() == pytest.approx(1)
  assert parts[-1] == pytest.approx(5 / 8)
  edges, parts = show.bins(np.array([-1.0, 100.0]), np.ones(2))
  np.testing.assert_allclose(np.diff(edges), 101 / 16)
  assert parts.tolist() == [0.5] + [0.0] * 14 + [0.5]
  edges, parts = show.bins(np.array([4.0, 4.0]), np.ones(2))
  assert parts.tolist() == [1.0] and edges.tolist() == [3.5, 4.5]


@pytest.mark.parametrize(
  'arguments, reason',
  [
    (['8000'], 'Give localhost:8000'),
    (['host:99999'], 'no address'),
    (['nowhere'], 'no directory and no address'),
    ([str(ROOT / 'docs')], 'neither a run'),
    (['h:1', '--sample', '0'], 'at least 1'),
    (['h:1', '--watch', '--sample', '1'], 'choose one'),
    (['h:1', '--interval', '-1'], '--interval'),
  ],
)
def test_a_command_that_cannot_work_is_refused(arguments, reason, capsys):
  try:
    code = command.main(arguments)
  except SystemExit as e:
    code = e.code
  assert code == 2
  assert reason in ' '.join(capsys.readouterr().err.split())


def test_the_module_runs_as_a_command_and_answers_usage_without_tensorflow():
  program = (
    'import runpy, sys\n'
    'class No:\n'
    '  def find_spec(self, name, path=None, target=None):\n'
    '    assert name not in ("tensorflow", "reverb"), name\n'
    'sys.meta_path.insert(0, No())\n'
    'sys.argv = ["inspect", "8000"]\n'
    'runpy.run_module("murmuration.replay.inspect", run_name="__main__")\n'
  )
  done = subprocess.run(
    [sys.executable, '-c', program],
    cwd=ROOT,
    capture_output=True,
    text=True,
    timeout=60,
  )
  assert done.returncode == 2, done.stderr
  assert 'Give localhost:8000' in done.stderr
