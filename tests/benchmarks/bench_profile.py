"""Where the time of an explorer node goes, in the running default program.

py-spy looks at the loop of explorer/0 from outside while all nodes run, so
waiting for a core counts to the part that waits. Beside it, the CPU time of the
node's threads over the same seconds, from /proc. (TensorFlow runs a call in a
thread of its own, and the loop waits for it.)
"""

from __future__ import annotations

import collections
import contextlib
import pathlib
import subprocess
import sys
import time

import psutil

sys.path[0] = str(pathlib.Path(__file__).resolve().parents[2])

from tests.benchmarks import common  # noqa: E402

_NODE = 'explorer/0'
_NUM_NODES = 2
_SAMPLES_PER_S = 100
_LIMIT_S = 120.0
_LOOP = '_loop (launch/nodes/worker.py'
# The first that is on the stack below the loop has the sample.
_PARTS = (
  ('sample (wait for a batch)', ('replay/sampler.py',)),
  ('replay write', ('replay/adders.py',)),
  ('copy of parameters', ('parameters (agents/learner.py',)),
  ('learner', ('agents/learner.py',)),
  ('acting', ('act (agents/',)),
  ('environment', ('environment_loops/vector.py', 'environment_loops/')),
  (
    'reports and star',
    ('run_records/reporting.py', 'launch/nodes/supervisor.py'),
  ),
)
_OTHER = 'other'


def part_of(stack: str) -> str | None:
  """Which part a stack belongs to; None if it is not the loop's."""
  _, loop, inside = stack.partition(_LOOP)
  if not loop:
    return None
  for part, marks in _PARTS:
    if any(mark in inside for mark in marks):
      return part
  return _OTHER


def shares(stacks: str) -> collections.Counter[str]:
  """Samples of each part, from py-spy's raw format."""
  counts: collections.Counter[str] = collections.Counter()
  for line in stacks.splitlines():
    stack, _, count = line.rpartition(' ')
    # py-spy may name files in full.
    part = part_of(stack.replace(f'{common.ROOT}/', ''))
    if part:
      counts[part] += int(count)
  return counts


def hot_lines(stacks: str, top: int) -> list[tuple[str, int]]:
  """Innermost functions of the loop's samples."""
  counts: collections.Counter[str] = collections.Counter()
  for line in stacks.splitlines():
    stack, _, count = line.rpartition(' ')
    if _LOOP in stack.replace(f'{common.ROOT}/', ''):
      name, _, place = stack.rpartition(';')[2].partition(' (')
      file = place.rpartition(':')[0] or place
      counts[f'{name}, {"/".join(file.split("/")[-2:])}'] += int(count)
  return counts.most_common(top)


def thread_cpu(process: psutil.Process) -> dict[int, tuple[str, float]]:
  """Name and CPU seconds of each thread."""
  found = {}
  for thread in process.threads():
    path = pathlib.Path(f'/proc/{process.pid}/task/{thread.id}/comm')
    with contextlib.suppress(OSError):
      name = path.read_text().strip()
      if thread.id == process.pid:
        name = 'the loop (main thread)'
      elif name == _NODE:  # inherited
        name = "threads of TensorFlow and Reverb's server"
      found[thread.id] = (name, thread.user_time + thread.system_time)
  return found


def node_process(run: common.Run) -> psutil.Process:
  """The process of the node.

  Raises:
    RuntimeError: there is none.
  """
  for process in run.processes():
    with contextlib.suppress(psutil.Error):
      if process.name() == _NODE:
        return process
  raise RuntimeError(f'No process is called {_NODE}.')


def record(process: psutil.Process, path: pathlib.Path, seconds: int) -> str:
  """py-spy's raw stacks, waiting included.

  Raises:
    RuntimeError: it may not look into processes here.
  """
  py_spy = pathlib.Path(sys.executable).parent / 'py-spy'
  done = subprocess.run(
    [
      str(py_spy), 'record', '--nonblocking', '--idle', '--format=raw',
      f'--pid={process.pid}', f'--duration={seconds}',
      f'--rate={_SAMPLES_PER_S}', f'--output={path}',
    ],
    capture_output=True,
    text=True,
  )  # fmt: skip
  if done.returncode or not path.exists():
    raise RuntimeError(
      f'py-spy failed: {done.stderr.strip()}. It needs the right to trace '
      'processes: run this as root, or allow it (kernel.yama.ptrace_scope=0).'
    )
  return path.read_text()


def main() -> int:
  args = common.arguments(__doc__)
  seconds = common.choose(args, 4, 15, 30)
  common.warn_if_busy()
  with common.swarm_run(
    common.NO_TARGET, '--config.run.wall_clock_s=200'
  ) as run:
    run.wait_for(
      'update of every explorer node',
      lambda: len({row['node'] for row in run.learning()}) == _NUM_NODES,
      _LIMIT_S,
    )
    time.sleep(3.0)
    process = node_process(run)
    before, began = thread_cpu(process), time.monotonic()
    stacks = record(process, run.directory.parent / 'stacks.txt', seconds)
    after, took = thread_cpu(process), time.monotonic() - began
  counts = shares(stacks)
  total = sum(counts.values())
  if not total:
    raise RuntimeError('py-spy saw no sample of the loop.')
  names = [*(part for part, _ in _PARTS), _OTHER]
  part_rows = [
    (part, f'{100 * counts[part] / total:.1f} %')
    for part in sorted(names, key=lambda name: -counts[name])
  ]
  hot_rows = [
    (name, f'{100 * count / total:.1f} %')
    for name, count in hot_lines(stacks, 10)
  ]
  threads: dict[str, float] = collections.defaultdict(float)
  for number, (name, spent) in after.items():
    threads[name] += spent - before.get(number, (name, 0.0))[1]
  thread_rows = [
    (name, f'{100 * spent / took:.1f} %')
    for name, spent in sorted(threads.items(), key=lambda item: -item[1])
    if spent / took >= 0.002
  ]
  common.publish(
    common.Result(
      'Where the time of an explorer node goes',
      [
        common.table((f'part of the loop of {_NODE}', 'share'), part_rows),
        common.table(('innermost Python function', 'share'), hot_rows),
        common.table(('thread', 'of one core'), thread_rows),
      ],
      [
        f'{total} samples over {seconds} s of the running default program, by '
        'py-spy, waiting included.',
        'The whole node used '
        f'{100 * sum(threads.values()) / took:.0f} % of one core.',
      ],
      {'samples': dict(counts), 'thread_cpu_s': dict(threads), 'over_s': took},
    ),
    args,
  )
  return 0


if __name__ == '__main__':
  sys.exit(main())
