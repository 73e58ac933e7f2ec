"""Workers without a program, in the test's own process."""

import threading

import pytest


class Ends(threading.Event):
  """A stop that comes once a worker has nothing left to do but wait for it."""

  def wait(self, timeout=None):
    del timeout
    self.set()
    return True


@pytest.fixture
def make_worker(private_directory):
  """make_worker(experiment, counter): of all members, with a shard of its own.

  Further arguments are the worker's.
  """
  del private_directory
  from murmuration.launch.nodes import worker
  from murmuration.launch.rpc import directory

  def make(experiment, counter, members=None, node='worker/0', **options):
    if members is None:
      members = range(experiment.num_agents)
    infos = [experiment.actor_info(index) for index in members]
    options.setdefault('addresses', [f'localhost:{directory.pick_port(set())}'])
    return worker.Worker(experiment, node, infos, counter, **options)

  return make


@pytest.fixture
def run_worker(make_worker):
  """run_worker(...): as `make_worker`, and runs it to the end of its run."""

  def run(*args, **options):
    worker = make_worker(*args, **options)
    worker.run(Ends())
    return worker

  return run
