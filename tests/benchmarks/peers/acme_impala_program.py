"""Acme's IMPALA as a Launchpad program under local_mp."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import pathlib
import sys
import time

from absl import flags
from acme.agents.tf import impala
from acme.tf import variable_utils
import launchpad as lp
from launchpad.launch.run_locally import launch_local_output_to_files
import psutil
import reverb

from murmuration.environment_loops import environments
from tests.benchmarks.peers import acme_impala_parts as parts
from tests.benchmarks.peers import acme_parts
from tests.benchmarks.peers import window

_ROOT = pathlib.Path(__file__).resolve().parents[3]
_REPORT_S = 0.25
_POLL_S = 0.25
_PULL_PERIOD = 100  # actor steps


class Learner:
  """The learner's node: learns, counts, and writes the result."""

  def __init__(
    self,
    client: reverb.Client,
    task: str,
    actors: int,
    batch_size: int,
    seconds: float,
    started: float,
    path: str,
  ):
    spec = parts.spec_of(task)
    self._counter = acme_parts.UpdateCounter()
    self._learner = parts.make_learner(
      spec, parts.make_network(spec), client, batch_size, self._counter
    )
    self._steps = dict.fromkeys(range(actors), 0)
    self._view = window.Window(seconds, started)
    self._task, self._actors, self._batch_size = task, actors, batch_size
    self._path = pathlib.Path(path)

  def get_variables(self, names: list[str]):
    """What actors pull."""
    return self._learner.get_variables(names)

  def count(self, index: int, env_steps: int) -> None:
    """An actor tells how many steps it has made."""
    self._steps[index] = env_steps

  def run(self) -> None:
    going = True
    while going:
      self._learner.step()
      going = self._view.see(
        sum(self._steps.values()),
        self._counter.updates,
        complete=all(self._steps.values()),
      )
    result = self._view.result(
      'acme_impala',
      self._task,
      f'local_mp, {self._actors} actors of 1 environment',
      self._batch_size,
      [*acme_parts.PACKAGES, 'dm-launchpad-nightly'],
      unroll=parts.UNROLL,
    )
    unfinished = self._path.with_suffix('.part')
    unfinished.write_text(json.dumps(result))
    unfinished.rename(self._path)


class Actor:
  """An actor's node."""

  def __init__(self, client: reverb.Client, learner, task: str, index: int):
    spec = parts.spec_of(task)
    network = parts.make_network(spec)
    self._environment = environments.make(task, seed=index)
    self._learner, self._index = learner, index
    self._actor = impala.IMPALAActor(
      network,
      parts.make_adder(acme_parts.Client(client.server_address)),
      variable_utils.VariableClient(
        learner, {'policy': network.variables}, update_period=_PULL_PERIOD
      ),
    )

  def run(self) -> None:
    env_steps, told = 0, time.monotonic()
    while True:
      timestep = self._environment.reset()
      self._actor.observe_first(timestep)
      while not timestep.last():
        action = self._actor.select_action(timestep.observation)
        timestep = self._environment.step(action)
        self._actor.observe(action, next_timestep=timestep)
        self._actor.update()
        env_steps += 1
        if time.monotonic() - told > _REPORT_S:
          told = time.monotonic()
          self._learner.count(self._index, env_steps)


def _build(
  task: str, actors: int, batch_size: int, seconds: float, path: pathlib.Path
) -> lp.Program:
  program = lp.Program('acme_impala')
  with program.group('replay'):
    replay = program.add_node(
      lp.ReverbNode(lambda: [parts.make_queue(parts.spec_of(task), batch_size)])
    )
  with program.group('learner'):
    learner = program.add_node(
      lp.CourierNode(
        Learner,
        replay,
        task,
        actors,
        batch_size,
        seconds,
        window.process_started(),
        str(path),
      )
    )
  with program.group('actor'):
    for index in range(actors):
      program.add_node(lp.CourierNode(Actor, replay, learner, task, index))
  return program


def measure(
  task: str, actors: int, batch_size: int, seconds: float, directory: str
) -> dict:
  """Runs the program until its learner has a result.

  Args:
    directory: for the result and what the nodes print.

  Raises:
    RuntimeError: a node ended before; with the end of what each printed.
  """
  path = pathlib.Path(directory) / 'result.json'
  logs = pathlib.Path(directory) / 'nodes'
  # The nodes are new interpreters, which import this module.
  os.environ['PYTHONPATH'] = str(_ROOT)
  # Launchpad read LAUNCHPAD_LOGGING_DIR when it was imported.
  launch_local_output_to_files._LOGGING_DIR = str(logs)
  flags.FLAGS(sys.argv[:1])
  with contextlib.redirect_stdout(sys.stderr):
    manager = lp.launch(
      _build(task, actors, batch_size, seconds, path),
      'local_mp',
      terminal='output_to_files',
    )
  # Launchpad's way to stop takes 10 s, then kills this process as well.
  atexit.unregister(manager.wait)
  nodes = psutil.Process().children(recursive=True)
  try:
    while not path.exists():
      if any(node.status() == psutil.STATUS_ZOMBIE for node in nodes):
        raise RuntimeError(
          'A node of the program ended before there was a result.\n'
          + '\n'.join(
            f'{log.relative_to(logs)}: {log.read_text()[-1000:]}'
            for log in sorted(logs.rglob('*'))
            if log.is_file()
          )
        )
      time.sleep(_POLL_S)
  finally:
    for node in nodes:
      with contextlib.suppress(psutil.NoSuchProcess):
        node.kill()
    psutil.wait_procs(nodes, timeout=10)
  return json.loads(path.read_text())
