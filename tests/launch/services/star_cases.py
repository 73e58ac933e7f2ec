"""A star whose environment is a script, and a counter that listens.

The next episode has the return that a test names.
"""

import contextlib
import functools
import queue
import threading
import time

import dm_env
import numpy as np

from murmuration.agents import dqn
from murmuration.agents import parameters
from murmuration.agents.swarm import explorers
from murmuration.environment_loops import environments
from murmuration.launch import experiment as experiment_lib
from murmuration.launch.services import star as star_lib

SPEC = environments.Spec('script', (3,), 2)
_AGENT = functools.partial(dqn.DQN, dqn.Config(hidden_sizes=(4,)), SPEC)
LAYOUT = _AGENT().layout
ENDLESS = 'an episode without an end'
PATIENCE_S = 60.0


class Script(dm_env.Environment):
  """Plays one episode for each entry: its return, an error, or `ENDLESS`."""

  def __init__(self):
    self.entries = queue.Queue()
    self.over = threading.Event()
    self.actions = set()

  def reset(self):
    self._entry = None
    while self._entry is None and not self.over.is_set():
      with contextlib.suppress(queue.Empty):
        self._entry = self.entries.get(timeout=0.02)
    return dm_env.restart(np.zeros(3, np.float32))

  def step(self, action):
    self.actions.add(int(action))
    observation = np.zeros(3, np.float32)
    if self._entry is ENDLESS:
      time.sleep(0.01)
      return dm_env.transition(0.0, observation)
    if isinstance(self._entry, Exception):
      raise self._entry
    return dm_env.termination(float(self._entry), observation)

  def observation_spec(self):
    raise AssertionError('nobody asks')

  action_spec = observation_spec

  def close(self):
    pass


class Counter:
  """What the star tells the counter."""

  def __init__(self):
    self.rows, self.goal = [], None

  def with_deadline(self, timeout_s):
    del timeout_s
    return self

  def begin(self, *unused):
    return {}

  def report(self, *unused):
    return {'finished': self.goal is not None}

  def log(self, node, kind, row):
    del node
    self.rows.append((kind, row))

  def finish(self, reason, result):
    del reason
    self.goal = result

  def of(self, kind, *names):
    rows = [row for found, row in self.rows if found == kind]
    return [tuple(row[name] for name in names) for row in rows]


class Swarm:
  """A star that runs in a thread, and its script."""

  def __init__(self, run_dir, counter, run, settings):
    experiment = experiment_lib.Experiment(
      _AGENT,
      'script',
      1,
      1000,
      50,
      run=experiment_lib.RunConfig(**run),
      run_dir=None if run_dir is None else str(run_dir),
    )
    # b + 1 = 2 episodes in a trial; k = 1 so that the pull reaches its clamp.
    config = explorers.Config(
      **{
        'b': 1,
        'k': 1.0,
        'window': 4,
        'idle_episodes': 2,
        'confirmation_period_s': 0.0,
        **settings,
      }
    )
    self.layout = LAYOUT
    self.counter = counter
    self.star = star_lib.Star(experiment, config, counter)
    self.script = Script()
    self.error = None
    self._stop = threading.Event()
    self._thread = threading.Thread(target=self._run)

  def _run(self):
    try:
      self.star.run(self._stop)
    except Exception as e:
      self.error = e

  def start(self):
    self._thread.start()

  def theta(self, value):
    return np.full(self.layout.size, value, np.float32)

  def offer(self, value, claim, explorer=0):
    data = parameters.encode(self.layout, 0, self.theta(value))
    return self.star.offer(data, claim, explorer, 10)

  def wait_until(self, condition):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
      assert time.monotonic() < deadline and self.error is None, self.error
      time.sleep(0.01)

  def play(self, *returns):
    """Plays one episode for each return, to its end.

    After the last one the star is in the next episode, or waits for a
    candidate.
    """
    rows = len(self.counter.of('supervisor')) + len(returns)
    for episode_return in returns:
      self.script.entries.put(episode_return)
    self.wait_until(lambda: len(self.counter.of('supervisor')) == rows)

  def get(self, known=0):
    """(version, value of theta or None, R_star)."""
    found = self.star.get_star(known)
    theta = found['theta']
    if theta is not None:
      theta = float(parameters.decode(self.layout, theta)[1][0])
    return found['version'], theta, found['r_star']

  def end(self):
    self._stop.set()
    self.script.over.set()
    if self._thread.is_alive():
      self._thread.join(PATIENCE_S)
    assert not self._thread.is_alive()
