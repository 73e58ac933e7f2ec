"""The process of one run of `murmuration.train`: as `murmuration run` is.

  python -m murmuration.helper FILE_DESCRIPTOR

process.py starts it, and sends what is to be trained through a pipe. It says
what is wrong as the command does: a sentence on stderr, and its exit code.
"""

from __future__ import annotations

import multiprocessing.connection
import os
import pathlib
import signal
import sys
from typing import Any

from murmuration.run_records import first

if __name__ == '__main__':
  # The caller may ignore it, and has blocked it until it can be taken.
  signal.signal(signal.SIGINT, signal.default_int_handler)
  first.begin()
  first.streams('utf-8')  # as process.py reads it
  signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

from murmuration.replay import isolation
from murmuration.run_records import later

if __name__ == '__main__':
  isolation.prepare()  # the imports below may start threads
  later.put_off()

from murmuration import choices
from murmuration import objects
from murmuration.launch import session
from murmuration.run_records import commands
from murmuration.run_records import counter_file
from murmuration.run_records import run_directory
from murmuration.run_records import sinks


def main(connection: Any) -> int:
  """Trains what the caller sends; returns the exit code of the run."""
  try:
    said = connection.recv()
  except EOFError:
    return commands.TERMINATED
  sys.path += [path for path in said['search_path'] if path not in sys.path]
  path, resume, cluster = said['path'], said['resume'], said['cluster']
  try:
    objects.take(said['objects'])
    if resume:
      run = run_directory.open(path)
      made = counter_file.counted(run.metrics_directory).get('totals', {})
      cell = choices.resumed(
        run.config(), said['settings'], said['steps'], made
      )
    else:
      cell = choices.cell(
        said['agent'],
        said['environment'],
        said['topology'],
        said['settings'],
        said['steps'],
        said['seed'],
      )
    followers = sinks.parse(said['sinks'])
    engine, ray = session.placed(
      said['engine'],
      said['ray_address'],
      [cluster] if isinstance(cluster, str) and cluster else cluster,
      run=path if resume else None,
    )
  except (ValueError, OSError) as e:
    return commands.refuse(e)

  def tick(path: pathlib.Path) -> None:
    if not connection.closed:
      connection.send(
        {
          'path': path,
          'budget': cell.experiment.total_steps,
          'steps_per_update': choices.steps_per_update(cell),
        }
      )
      connection.close()
    if os.getppid() != said['caller']:  # a run does not outlive its caller
      os.kill(os.getpid(), signal.SIGTERM)

  return session.run(
    cell,
    engine,
    path,
    resume,
    on_tick=tick,
    ray=ray,
    sinks=followers,
    command=said['line'],
  )


if __name__ == '__main__':
  pipe = multiprocessing.connection.Connection(int(sys.argv[1]))
  first.leave(main(pipe))
