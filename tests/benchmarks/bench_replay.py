"""The replay service alone: blocks end to end over gRPC, and transitions.

Blocks: a writer, a queue and a reader in three processes; CartPole's columns,
20 steps of 16 environments in an item. Transitions: a prioritized table in the
reader's own process, packed in one column, batches of 2,048 through
`ShardedSampler`, with priorities written back; nobody writes items meanwhile.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
import types

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')
import numpy as np
import reverb

from murmuration.replay import adders
from murmuration.replay import blocks
from murmuration.replay import packing
from murmuration.replay import priorities
from murmuration.replay import sampler as sampler_lib
from murmuration.replay import tables
from murmuration.replay import writer
from tests.benchmarks import common

_STEPS, _ENVS = 20, 16
_LAYOUT = blocks.BlockLayout(_STEPS, _ENVS, (4,), behaviour_size=2)
_ITEMS, _BATCH = 50_000, 2_048
IN_FLIGHT = 16
_STOP_S = 10.0


def serve_queue(port: int) -> None:
  server = reverb.Server(
    [tables.queue('queue', 64, _LAYOUT.signature())], port=port
  )
  server.wait()


def write_blocks(address: str, in_flight: int) -> None:
  """Writes blocks until it is ended."""
  adder = adders.BlockAdder(
    reverb.Client(address),
    'queue',
    _LAYOUT,
    options=writer.WriteOptions(max_in_flight=in_flight),
  )
  rng = np.random.default_rng(0)
  observation = rng.normal(size=(_ENVS, 4)).astype(np.float32)
  action = np.zeros(_ENVS, np.int32)
  step = types.SimpleNamespace(
    observation=observation,
    reward=np.ones(_ENVS, np.float32),
    discount=np.ones(_ENVS, np.float32),
    last=np.zeros(_ENVS, bool),
    next_observation=observation,
    valid=None,
  )
  behaviour = np.zeros((_ENVS, 2), np.float32)
  core = np.zeros((_ENVS, 0), np.float32)
  while True:
    adder.add(observation, action, step, behaviour, core, 0)


def frame_bytes() -> float:
  """Of a frame of these blocks, before Reverb packs it."""
  sizes = [column.nbytes for column in _LAYOUT.zeros()]
  return sum(sizes) / (_STEPS * _ENVS)


def measure_blocks(
  seconds: float,
  port: int,
  write_to: str = '',
  read_from: str = '',
  in_flight: int = IN_FLIGHT,
) -> tuple[float, int]:
  """Frames per second that the reader gets, and frames written in all.

  Args:
    seconds: of the window.
    port: of the queue.
    write_to: address of the queue as the writer has it; default: its own.
    read_from: likewise for the reader.
    in_flight: blocks that the writer sends before one is confirmed.
  """
  own = f'localhost:{port}'
  command = [sys.executable, __file__, '--port', str(port)]
  command += ['--write_to', write_to or own, f'--in_flight={in_flight}']
  command.append('--role')
  others = [
    subprocess.Popen([*command, role], stderr=subprocess.DEVNULL)
    for role in ('queue', 'writer')
  ]
  try:
    sampler = sampler_lib.ShardedSampler(
      [read_from or own],
      'queue',
      16,
      max_in_flight=32,
      connect_timeout_s=120.0,
      signature=_LAYOUT.signature(),
    )
    next(sampler)
    time.sleep(0.5)
    frames, start = 0, time.perf_counter()
    while (spent := time.perf_counter() - start) < seconds:
      next(sampler)
      frames += 16 * _STEPS * _ENVS
    sampler.close()
    limiter = reverb.Client(own).server_info()['queue'].rate_limiter_info
    written = limiter.insert_stats.completed * _STEPS * _ENVS
    return frames / spent, written
  finally:
    for process in others:
      process.terminate()
    for process in others:
      process.wait(timeout=_STOP_S)


def measure_transitions(seconds: float) -> dict[str, float]:
  """Samples per second and CPU per sample."""
  layout = packing.TransitionLayout((4,))
  server = reverb.Server(
    [tables.prioritized('replay', _ITEMS, 1, layout.signature())]
  )
  client = server.localhost_client()
  rng = np.random.default_rng(0)
  items = writer.ItemWriter(
    client, 'replay', layout.signature(), writer.WriteOptions()
  )
  rows = rng.normal(size=(_ITEMS, layout.width)).astype(np.float32)
  for start in range(0, _ITEMS, 64):
    part = rows[start : start + 64]
    items.extend(part, rng.random(len(part)).tolist())
  items.flush()
  sampler = sampler_lib.ShardedSampler(
    [client.server_address],
    'replay',
    _BATCH,
    signature=layout.signature(),
  )
  back = priorities.PriorityWriter([client], 'replay')
  next(sampler)
  began, cpu = time.perf_counter(), time.process_time()
  count = 0
  while (spent := time.perf_counter() - began) < seconds:
    sample = next(sampler)
    back.update(sample, np.full(_BATCH, 0.5))
    count += _BATCH
  cpu = time.process_time() - cpu
  back.close()
  sampler.close()
  items.close()
  server.stop()
  return {'per_s': count / spent, 'cpu_us': 1e6 * cpu / count}


def main() -> int:
  args = common.arguments(__doc__, _define)
  if args.role == 'queue':
    serve_queue(args.port)
  if args.role == 'writer':
    write_blocks(args.write_to, args.in_flight)
  repetitions = common.choose(args, 1, 3, 5)
  seconds = common.choose(args, 1.0, 4.0, 6.0)
  common.warn_if_busy()
  frames, samples = [], []
  for repetition in range(repetitions):
    frames.append(measure_blocks(seconds, args.port + repetition)[0])
    samples.append(measure_transitions(seconds))
    print(
      f'{frames[-1]:,.0f} frames/s, {samples[-1]["per_s"]:,.0f} samples/s',
      flush=True,
    )
  rates = [found['per_s'] for found in samples]
  common.publish(
    common.Result(
      'The replay service alone',
      [
        common.table(
          ('what', 'median per s', 'each repetition'),
          [
            (
              f'frames, blocks of [{_STEPS}, {_ENVS}], three processes, gRPC',
              f'{statistics.median(frames):,.0f}',
              ' '.join(f'{value:,.0f}' for value in frames),
            ),
            (
              "prioritized transitions sampled in the server's process, "
              'priorities written back',
              f'{statistics.median(rates):,.0f}',
              ' '.join(f'{value:,.0f}' for value in rates),
            ),
          ],
        )
      ],
      [
        'Needed: 250,000 frames/s and 100,000 samples/s.',
        'CPU of a sampled transition, its priority included: '
        f'{statistics.median(f["cpu_us"] for f in samples):.1f} us.',
      ],
      {'frames_per_s': frames, 'samples': samples},
    ),
    args,
  )
  return 0


def _define(parser: argparse.ArgumentParser) -> None:
  parser.add_argument('--role', choices=('queue', 'writer'))
  parser.add_argument('--port', type=int, default=23_711)
  parser.add_argument('--write_to', help='address of the queue')
  parser.add_argument('--in_flight', type=int, default=IN_FLIGHT)


if __name__ == '__main__':
  sys.exit(main())
