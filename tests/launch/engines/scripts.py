"""A backend that is made up, and a supervisor that plays it."""

from murmuration.launch import pulse
from murmuration.launch.engines import prepare
from murmuration.launch.engines import restarts
from murmuration.launch.engines import signals
from murmuration.launch.engines import supervision
from murmuration.launch.engines import watch


def slots(num):
  return [pulse.Slot(memoryview(bytearray(1024))) for _ in range(num)]


class Script:
  """A backend that plays lists of exits, one list per start of a node.

  Its time passes with each poll, `step_s` at a time. Nodes in `deaf` do not end
  when they are asked to; `runs` is whether nodes come to run before they exit,
  and `life_s` how long they live then.
  """

  kills = True
  step_s = 0.25

  def __init__(
    self,
    deaf=(),
    killed=False,
    oom=False,
    runs=True,
    life_s=0.0,
    **exits,
  ):
    self.now = 0.0
    self.deaf = deaf
    self.killed, self.oom = killed, oom
    self.runs, self.life_s = runs, life_s
    self.exits = {name: list(ends) for name, ends in exits.items()}
    self.names = list(exits)
    self.slots = slots(len(exits))
    self.started, self.stopped = [], []
    self.events = []
    self.later = []  # (when, event)

  def clock(self):
    return self.now

  def start(self, index, again):
    name = self.names[index]
    self.started.append((name, again))
    ends = self.exits[name]
    if ends:
      end = ends.pop(0)
      failed = end != 'returns'
      if self.runs:
        self.events.append(supervision.Event(index, 'running'))
      event = supervision.Event(
        index,
        'exited',
        failed=failed,
        error=end if failed else None,
        killed=self.killed,
        oom=self.oom,
      )
      self.later.append((self.now + self.life_s, event))

  def poll(self, timeout_s):
    self.now += self.step_s
    assert self.now < 20_000, 'it has no end'
    due = [event for when, event in self.later if when <= self.now]
    self.later = [pair for pair in self.later if pair[0] > self.now]
    events, self.events = self.events + due, []
    if 'lost' in [event.error for event in events]:
      raise supervision.BackendLost('gone')
    return events

  def stop(self, index):
    self.stopped.append(self.names[index])
    if self.names[index] not in self.deaf:
      self.events.append(supervision.Event(index, 'exited'))

  def kill(self, index):
    self.events.append(
      supervision.Event(index, 'exited', failed=True, error='killed by SIGABRT')
    )
    return ''


def play(script, came=None, **rules):
  nodes = [prepare.PreparedNode(name, None, None, {}) for name in script.names]
  return supervision.Supervisor(
    script,
    nodes,
    [None] * len(nodes),
    came or signals.Signals(),
    None,
    watch.Watch(script.slots, restarts.Rules(**rules), script.clock),
    script.clock,
  ).run()
