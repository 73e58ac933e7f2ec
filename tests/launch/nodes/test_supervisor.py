"""A supervisor of a swarm, in this process."""

import functools
import threading

import numpy as np
import pytest

from agents import dqn
from agents import parameters
from agents.swarm import explorers as swarm_lib
from environment_loops import environments
from environment_loops import faults
from launch import experiment as experiment_lib
from launch import rpc
from launch.nodes import supervisor as supervisor_lib
from tests import counting

COUNTING = environments.Spec('counting', (3,), 2)
BREAKS = 2  # episodes, the first is 0
PAUSE_S = 0.01


class _Breaks(counting.CountingEnvironment):
  """An environment whose third episode breaks, or several from there on."""

  broken = 1

  def step(self, action):
    if BREAKS <= self._episode < BREAKS + self.broken:
      raise faults.fault('counting', self._t, 'reward', float('nan'))
    return super().step(action)


class _Stop(threading.Event):
  """A stop that knows which pauses it was waited for in."""

  def __init__(self):
    super().__init__()
    self.pauses = []

  def wait(self, timeout=None):
    self.pauses.append(timeout)
    return super().wait(timeout)


class _Server:
  """Asks for episodes; stops the supervisor after some of them."""

  def __init__(self, layout, stop, episodes):
    self._theta = parameters.encode(layout, 1, np.zeros(layout.size))
    self._stop, self._episodes = stop, episodes
    self.asked, self.returns, self.signs, self.sent = 0, [], [], 0

  def next_episode(self, supervisor, holding):
    self.asked += 1
    self.sent += holding < 0
    if len(self.returns) == self._episodes:
      self._stop.set()
    return {
      'ticket': self.asked if not self._stop.is_set() else -1,
      'kind': 'trial',
      'candidate': 0,
      'theta': self._theta if holding < 0 else None,
    }

  def with_deadline(self, timeout_s):
    return self

  def playing(self, ticket):
    self.signs.append(ticket)
    return True

  def report_episode(self, ticket, episode_return):
    self.returns.append(episode_return)
    return True


def _supervise(monkeypatch, make_counter, on_fault, make_server=_Server, **run):
  monkeypatch.setattr(environments, 'spec', lambda unused: COUNTING)
  config = dqn.Config(hidden_sizes=(8,))
  experiment = experiment_lib.Experiment(
    functools.partial(dqn.DQN, config, COUNTING),
    'counting',
    1,
    1000,
    50,
    run=experiment_lib.RunConfig(
      on_fault=on_fault, background_niceness=0, **run
    ),
  )
  monkeypatch.setattr(
    environments, 'make', lambda *unused: _Breaks(counting.Plan())
  )
  monkeypatch.setattr(environments, 'spec', lambda *unused: COUNTING)
  stop = _Stop()
  server = make_server(experiment.make_agent().layout, stop, episodes=4)
  counter = make_counter()
  supervisor = supervisor_lib.Supervisor(
    experiment,
    swarm_lib.Config(confirmation_period_s=PAUSE_S),
    0,
    counter,
    server,
  )
  supervisor.run(stop)
  supervisor._reporter.report()
  server.totals, server.pauses = counter.totals(), stop.pauses
  return server


def test_a_supervisor_drops_a_broken_episode_where_it_is_told_to(
  monkeypatch, make_counter, caplog
):
  server = _supervise(monkeypatch, make_counter, 'drop')
  # Nothing is said of the broken one, and the server is asked again.
  plan = counting.Plan()
  expected = [
    sum(plan.reward(0, e, t + 1) for t in range(plan.length(0, e)))
    for e in (0, 1, 3, 4)
  ]
  assert server.returns == expected
  assert server.asked == 4 + 1 + 1
  assert server.sent == 1  # It holds the parameters from then on.
  assert (
    'Episode dropped, number 1: counting returned reward nan' in caplog.text
  )
  # The steps before the fault were played too.
  whole = sum(plan.length(0, e) for e in (0, 1, 3, 4))
  assert server.totals['supervisor_episodes'] == 4
  assert whole < server.totals['supervisor_steps'] <= whole + plan.length(0, 2)


def test_episodes_that_all_break_are_paused_after_and_not_each_is_told_of(
  monkeypatch, make_counter, caplog
):
  monkeypatch.setattr(_Breaks, 'broken', 210)
  server = _supervise(monkeypatch, make_counter, 'drop')
  assert server.totals['supervisor_faults'] == 210
  assert server.pauses.count(PAUSE_S) == 210
  told = [r for r in caplog.records if 'Episode dropped' in r.message]
  assert [r.args[0] for r in told] == [*range(1, 11), 100, 200]


def test_an_episode_is_reported_though_its_first_report_is_lost(
  monkeypatch, make_counter
):
  lost = []

  class Loses(_Server):
    def report_episode(self, ticket, episode_return):
      if not lost:
        lost.append(ticket)
        raise rpc.Unavailable('nowhere', 'report_episode', True, 'no answer')
      assert lost in ([ticket], [None])
      lost[0] = None
      return super().report_episode(ticket, episode_return)

  server = _supervise(monkeypatch, make_counter, 'drop', make_server=Loses)
  assert len(server.returns) == 4 and server.asked == 4 + 1 + 1


def test_an_episode_that_nobody_asks_for_any_more_is_left(
  monkeypatch, make_counter
):
  monkeypatch.setattr(supervisor_lib, '_SAY_S', -1.0)

  class Forgets(_Server):
    def playing(self, ticket):
      super().playing(ticket)
      return ticket > 1  # as a server that was started again

  server = _supervise(monkeypatch, make_counter, 'drop', make_server=Forgets)
  assert server.signs.count(1) == 1  # at its first step
  assert server.signs.count(2) > 1 and len(server.returns) == 4


def test_a_supervisor_fails_at_a_broken_episode_by_default(
  monkeypatch, make_counter
):
  default = experiment_lib.RunConfig().on_fault
  with pytest.raises(faults.EnvironmentFault):
    _supervise(monkeypatch, make_counter, default)


@pytest.mark.parametrize('epsilon, actions', [(0.0, {0}), (1.0, {0, 1})])
def test_a_supervisor_draws_as_many_actions_as_evaluations_do(
  monkeypatch, make_counter, epsilon, actions
):
  taken = set()
  step = _Breaks.step

  def watched(self, action):
    taken.add(int(action))
    return step(self, action)

  monkeypatch.setattr(_Breaks, 'step', watched)
  _supervise(monkeypatch, make_counter, 'drop', eval_epsilon=epsilon)
  assert taken == actions
