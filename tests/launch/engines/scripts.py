"""A backend that is made up, and a supervisor that plays it."""

import itertools
import time

from launch import pulse
from launch.engines import prepare
from launch.engines import restarts
from launch.engines import signals
from launch.engines import supervision
from launch.engines import watch


def slots(num):
  return [pulse.Slot(memoryview(bytearray(1024))) for _ in range(num)]


class Script:
  """A backend that plays lists of exits, one list per start of a node.

  Nodes in `deaf` do not end when they are asked to; `runs` is whether nodes
  come to run before they exit.
  """

  kills = True

  def __init__(self, deaf=(), killed=False, runs=True, **exits):
    self.deaf = deaf
    self.killed = killed
    self.runs = runs
    self.exits = {name: list(ends) for name, ends in exits.items()}
    self.names = list(exits)
    self.slots = slots(len(exits))
    self.resumed = []
    self.started, self.stopped = [], []
    self.events = []

  def start(self, index, restarts):
    name = self.names[index]
    self.started.append((name, restarts))
    ends = self.exits[name]
    if ends:
      end = ends.pop(0)
      failed = end != 'returns'
      if self.runs:
        self.events.append(supervision.Event(index, 'running'))
      self.events.append(
        supervision.Event(
          index,
          'exited',
          failed=failed,
          error=end if failed else None,
          killed=self.killed,
        )
      )

  def poll(self, timeout_s):
    events, self.events = self.events, []
    if 'lost' in [event.error for event in events]:
      raise supervision.BackendLost('gone')
    return events

  def stop(self, index):
    self.stopped.append(self.names[index])
    if self.names[index] not in self.deaf:
      self.events.append(supervision.Event(index, 'exited'))

  def kill(self, indices):
    self.events += [
      supervision.Event(i, 'exited', failed=True, error='killed by SIGKILL')
      for i in indices
    ]
    return [''] * len(indices)

  def resume(self, index):
    self.resumed.append(self.names[index])


def ticking():
  """A clock on which a quarter of a second passes with each look at it."""
  return itertools.count(0.0, 0.25).__next__


def play(
  script,
  clients=None,
  limits=restarts.DEFAULT,
  clock=time.monotonic,
  came=None,
  **assigned,
):
  nodes = [
    prepare.PreparedNode(
      name,
      None,
      None,
      assigned.get(name, restarts.Stop()),
      [],
      frozenset((clients or {}).get(name, ())),
    )
    for name in script.names
  ]
  return supervision.Supervisor(
    script,
    nodes,
    [None] * len(nodes),
    came or signals.Signals(),
    None,
    watch.Watch(script.slots, limits, clock),
  ).run()
