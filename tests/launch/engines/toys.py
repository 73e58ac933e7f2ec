"""Small programs for the tests of the engines; run as a script.

  python tests/launch/engines/toys.py SCENARIO RUN_DIR HOW

The last line of the output is the outcome as JSON. Nodes that a test wants to
find write their process id to RUN_DIR/NAME.pid.
"""

import ctypes
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import threading
import time

import launchpad as lp
import numpy as np

from murmuration.launch import engines
from murmuration.launch import pulse
from murmuration.launch import rpc
from murmuration.launch.engines import linux
from murmuration.launch.engines import restarts
from murmuration.launch.engines import supervision
from murmuration.run_records import later

SCENARIOS: dict = {}


def write(path, text):
  """Whole or not at all: a test may read it as soon as it is there."""
  path.with_suffix('.tmp').write_text(text)
  path.with_suffix('.tmp').rename(path)


def scenario(build):
  SCENARIOS[build.__name__] = build
  return build


class Node:
  """A node that says who it is, what it draws, and that it runs."""

  def __init__(self, run_dir, name):
    self.run_dir = pathlib.Path(run_dir)
    drawn = f'{random.random()}\n{np.random.random()}\n'
    write(self.run_dir / f'{name}.drawn', drawn)
    write(self.run_dir / f'{name}.pid', str(os.getpid()))


class Server(Node):
  serves = ('echo', 'pid')

  def echo(self, x):
    return x

  def pid(self):
    return os.getpid()


class Waiter(Node):
  def run(self):
    lp.wait_for_stop()


class Saver(Node):
  """Has something to keep when it is stopped, which takes a moment."""

  def __init__(self, run_dir, name, save_s=0.5):
    super().__init__(run_dir, name)
    self.save_s = save_s

  def run(self):
    (self.run_dir / 'ready').touch()
    lp.wait_for_stop()
    time.sleep(self.save_s)
    (self.run_dir / 'saved').touch()


class Parent(Node):
  """Has children: one in its process group, one in a session of its own."""

  def run(self):
    for name, new_session in (('child', False), ('stray', True)):
      process = subprocess.Popen(
        ['sleep', '300'], start_new_session=new_session
      )
      write(self.run_dir / f'{name}.pid', str(process.pid))
    lp.wait_for_stop()


class Breeder(Node):
  """Has two processes in sessions of their own, one of them an orphan."""

  def __init__(self, run_dir, name):
    super().__init__(run_dir, f'{name}_itself')
    self.name = name

  def run(self):
    process = subprocess.Popen(['sleep', '300'], start_new_session=True)
    command = f'setsid sleep 300 & echo {process.pid} $! > {self.name}.new'
    subprocess.run(['sh', '-c', command], cwd=self.run_dir, check=True)
    new = self.run_dir / f'{self.name}.new'
    new.rename(self.run_dir / f'{self.name}.{os.getpid()}')
    lp.wait_for_stop()


class Stubborn(Node):
  def run(self):
    while True:
      stuck_in_here()


def stuck_in_here():
  time.sleep(0.5)


class Stopper(Node):
  def run(self):
    lp.stop()
    lp.wait_for_stop()


class Raiser(Node):
  def run(self):
    raise ValueError('the cat sat on the keyboard')


class Hopeless(Node):
  def run(self):
    pulse.worked(moved=True)
    error = ValueError('the environment is wrong')
    error.no_restart_helps = True
    raise error


class Crasher(Node):
  def run(self):
    ctypes.string_at(0)


class FilteredCrasher(Node):
  """Writes errors through another process, which takes its time."""

  def run(self):
    slow = subprocess.Popen(
      ['sh', '-c', 'sleep 0.2; exec cat'],
      stdin=subprocess.PIPE,
      stdout=2,
      start_new_session=True,
    )
    os.dup2(slow.stdin.fileno(), 2)
    slow.stdin.close()
    ctypes.string_at(0)


class Leaver(Node):
  def run(self):
    sys.exit(3)


class LeaverWith0(Node):
  def run(self):
    sys.exit(0)


class LeaverAtOnce(Node):
  def run(self):
    os._exit(0)


class Glutton(Node):
  """Works for a while, and then ends as the kernel ends what is too big."""

  def run(self):
    pulse.worked(moved=True)
    time.sleep(0.3)
    with (self.run_dir / 'killed').open('a') as file:
      file.write('.')
    if (self.run_dir / 'killed').stat().st_size < 12:
      os.kill(os.getpid(), signal.SIGKILL)


class Beater(Node):
  """Shows life until it is told that this was enough."""

  def run(self):
    stop = pulse.stop_event()
    while not (self.run_dir / 'enough').exists():
      stop.wait(0.05)


class Returner(Node):
  def run(self):
    time.sleep(0.3)


class Checker(Node):
  """Makes calls whose arguments make plain Courier hang."""

  def __init__(self, run_dir, name, server):
    super().__init__(run_dir, name)
    self.server = server

  def run(self):
    array = np.arange(200_000, dtype=np.float32).reshape(2, -1)
    np.testing.assert_array_equal(self.server.echo(array), array)
    assert self.server.echo(np.float64(3.5)) == 3.5
    assert self.server.echo({'x': [np.int32(1), (np.zeros(()),)]})['x'][0] == 1


class SeesRestart(Checker):
  """Returns when its server has been replaced by another process."""

  def run(self):
    first = self.server.pid()
    (self.run_dir / f'{os.getpid()}.saw').touch()
    while rpc.retry(self.server.pid) == first:
      if lp.stop_event().wait(0.05):
        return


class Replayer(Node):
  """Returns when it has sampled from two processes of its Reverb server."""

  def __init__(self, run_dir, name, client):
    super().__init__(run_dir, name)
    self.client = client

  def run(self):
    import tensorflow as tf

    assert float(tf.function(lambda x: x + 1)(tf.constant(1.0))) == 2.0
    self.write_and_read()
    (self.run_dir / 'sampled').touch()
    while not self.is_empty():  # It comes back empty.
      if lp.stop_event().wait(0.05):
        return
    self.write_and_read()

  def write_and_read(self):
    self.client.insert(np.float32(7), {'table': 1.0})
    (sample,) = self.client.sample('table', 1)
    assert sample[0].data[0] == 7

  def is_empty(self):
    try:
      return not self.client.server_info(timeout=5)['table'].current_size
    except Exception:  # Gone, and back soon.
      return False


def tables():
  import reverb

  return [
    reverb.Table(
      'table',
      reverb.selectors.Uniform(),
      reverb.selectors.Fifo(),
      max_size=10,
      rate_limiter=reverb.rate_limiters.MinSize(1),
    )
  ]


def add(program, label, cls, run_dir, *args, node=lp.PyClassNode):
  with program.group(label):
    return program.add_node(node(cls, str(run_dir), label, *args))


def pair(run_dir, cls):
  program = lp.Program('pair')
  server = add(program, 'server', Server, run_dir, node=rpc.Node)
  add(program, 'client', cls, run_dir, server)
  return program


@scenario
def calls(run_dir):
  program = pair(run_dir, Checker)
  restarts.assign(program, ends_run='client')
  return program


@scenario
def server_killed(run_dir):
  program = pair(run_dir, SeesRestart)
  restarts.assign(program, come_back=True, ends_run='client')
  return program


@scenario
def raises(run_dir):
  program = lp.Program('raises')
  add(program, 'waiter', Waiter, run_dir)
  add(program, 'raiser', Raiser, run_dir)
  return program


@scenario
def crashes(run_dir):
  program = lp.Program('crashes')
  add(program, 'waiter', Waiter, run_dir)
  add(program, 'crasher', Crasher, run_dir)
  return program


@scenario
def crashes_behind_a_filter(run_dir):
  program = lp.Program('crashes_behind_a_filter')
  add(program, 'crasher', FilteredCrasher, run_dir)
  return program


@scenario
def leaves(run_dir):
  program = lp.Program('leaves')
  add(program, 'leaver', Leaver, run_dir)
  return program


@scenario
def leaves_with_0(run_dir):
  program = lp.Program('leaves_with_0')
  add(program, 'leaver', LeaverWith0, run_dir)
  return program


@scenario
def leaves_at_once(run_dir):
  program = lp.Program('leaves_at_once')
  add(program, 'leaver', LeaverAtOnce, run_dir)
  return program


@scenario
def beats(run_dir):
  program = lp.Program('beats')
  add(program, 'beater', Beater, run_dir)
  return program


@scenario
def raises_again_and_again(run_dir):
  program = lp.Program('raises_again_and_again')
  add(program, 'waiter', Waiter, run_dir)
  add(program, 'raiser', Raiser, run_dir)
  restarts.assign(program, come_back=True, max_restarts=2)
  return program


@scenario
def is_hopeless(run_dir):
  program = lp.Program('is_hopeless')
  add(program, 'hopeless', Hopeless, run_dir)
  restarts.assign(program, come_back=True)
  return program


@scenario
def eats_all_memory(run_dir):
  killed = run_dir / 'killed'
  # What the kernel counts in /proc/vmstat.
  linux.oom_kills = lambda: killed.stat().st_size if killed.exists() else 0
  program = lp.Program('eats_all_memory')
  add(program, 'glutton', Glutton, run_dir)
  supervision._HEALTHY_S = 0.1
  restarts.assign(program, come_back=True, max_restarts=2)
  return program


@scenario
def waits(run_dir):
  program = lp.Program('waits')
  add(program, 'waiter', Waiter, run_dir)
  add(program, 'parent', Parent, run_dir)
  add(program, 'server', Server, run_dir, node=rpc.Node)
  return program


@scenario
def breeds(run_dir):
  program = lp.Program('breeds')
  for name in ('killed', 'spared'):
    add(program, name, Breeder, run_dir)
  restarts.assign(program, come_back=True)
  return program


@scenario
def saves(run_dir):
  program = lp.Program('saves')
  add(program, 'saver', Saver, run_dir)
  return program


@scenario
def ends_and_saves(run_dir):
  program = lp.Program('ends_and_saves')
  add(program, 'saver', Saver, run_dir, 2.0)
  add(program, 'beater', Beater, run_dir)
  restarts.assign(program, ends_run='beater')
  return program


@scenario
def cannot_be_pickled(run_dir):
  lock = threading.Lock()

  class Local(Node):
    def run(self):
      with lock:
        write(self.run_dir / 'ran', 'yes')

  program = lp.Program('cannot_be_pickled')
  with program.group('local'):
    program.add_node(lp.PyClassNode(Local, run_dir, 'local'))
  with program.group('function'):
    program.add_node(lp.PyNode(lambda: lock.acquire()))
  return program


@scenario
def ends(run_dir):
  program = lp.Program('ends')
  add(program, 'waiter', Waiter, run_dir)
  add(program, 'returner', Returner, run_dir)
  restarts.assign(program, ends_run='returner')
  return program


@scenario
def stops(run_dir):
  program = lp.Program('stops')
  add(program, 'waiter', Waiter, run_dir)
  add(program, 'stopper', Stopper, run_dir)
  return program


@scenario
def stubborn(run_dir):
  program = lp.Program('stubborn')
  add(program, 'stubborn', Stubborn, run_dir)
  add(program, 'beater', Beater, run_dir)
  restarts.assign(program, ends_run='beater')
  return program


@scenario
def stubborn_for_long(run_dir):
  supervision.STOP_GRACE_S = 120.0
  return stubborn(run_dir)


@scenario
def replay_killed(run_dir):
  later.load(['tensorflow', 'reverb'])
  program = lp.Program('replay_killed')
  with program.group('replay'):
    replay = program.add_node(lp.ReverbNode(tables))
  add(program, 'replayer', Replayer, run_dir, replay)
  restarts.assign(program, come_back=True, ends_run='replayer')
  return program


def main():
  name, run_dir, how = sys.argv[1:]
  names = {
    'twice': ['ends', 'calls'],
    'stops_in_a_thread': ['stops'],
  }.get(name, [name])
  for one in names:
    found = []

    def run(one=one, found=found):
      found.append(play(one, pathlib.Path(run_dir), how))

    if name.endswith('_in_a_thread'):
      thread = threading.Thread(target=run)
      thread.start()
      thread.join()
    else:
      run()
  sys.exit(found[0].exit_code)


def play(name, run_dir, how):
  program = SCENARIOS[name](run_dir)

  def write_state(run_state):
    rows = [[node.name, node.pid, node.state] for node in run_state.nodes]
    write(run_dir / 'state.json', json.dumps(rows))
    with (run_dir / 'notices').open('a') as notices:
      for node in run_state.nodes:
        notices.write(f'{node.name} {node.notice}\n' if node.notice else '')
    if run_state.stopping:
      (run_dir / 'stopping').touch()

  supervision._TICK_S = 0.05
  start = time.monotonic()
  outcome = engines.run(program, how, run_dir=run_dir, on_tick=write_state)
  nodes = {
    node.name: [node.state, node.restarts, node.last_error]
    for node in outcome.nodes
  }
  seconds = time.monotonic() - start
  print()
  print(json.dumps([outcome.reason, nodes, seconds]), flush=True)
  return outcome


if __name__ == '__main__':
  main()
