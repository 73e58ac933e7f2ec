"""The evaluator: what it logs, and when it ends a run."""

import functools
import json
import pathlib
import threading
import time
import types

import numpy as np
import pytest

from murmuration.agents import dqn
from murmuration.agents import impala
from murmuration.agents import parameters
from murmuration.environment_loops import environments
from murmuration.environment_loops import evaluation
from murmuration.launch import experiment as experiment_lib
from murmuration.launch import pulse
from murmuration.launch import reporting
from murmuration.launch.nodes import evaluator

HERE = pathlib.Path(__file__).parent
SPEC = environments.spec('CartPole-v1')
_DQN = functools.partial(dqn.DQN, dqn.Config(hidden_sizes=(4,)), SPEC)


@pytest.fixture(autouse=True)
def _reports_often(monkeypatch):
  """A node hears of its run's end in the answer to a report."""
  monkeypatch.setattr(reporting, '_PERIOD_S', 0.05)


class _Counter:
  """Keeps rows; the run is over after `reports` reports."""

  def __init__(self, steps, reports):
    self.steps = steps
    self.left = reports
    self.rows = []
    self.holds = []
    self.outcome = None

  def with_deadline(self, timeout_s):
    del timeout_s
    return self

  def totals(self):
    return {'actor_steps': self.steps}

  def report(self, node, counts, metrics, life):
    del node, counts, metrics
    self.left -= 1
    return {'totals': {}, 'finished': self.finished()}

  def finished(self):
    return self.left < 0 or self.outcome is not None

  def log(self, node, kind, row):
    self.rows.append((node, kind, row))

  def hold(self, node, seconds):
    self.holds.append((node, seconds))

  def finish(self, reason, result):
    self.outcome = (reason, result)


class _Learner:
  def __init__(self, agent, theta):
    self._answer = {
      'version': 7,
      'theta': parameters.encode(agent.layout, 7, theta),
    }

  def get_parameters(self, have_version):
    del have_version
    return self._answer


def _evaluator(
  theta=None,
  target=None,
  steps=10,
  ends_run=True,
  environment='CartPole-v1',
  on_fault='raise',
  make_agent=_DQN,
  run_dir=None,
):
  agent = make_agent()
  run = experiment_lib.RunConfig(
    steps_per_agent=100,
    eval_episodes=3,
    target_return=target,
    on_fault=on_fault,
    background_niceness=0,
  )
  experiment = experiment_lib.Experiment(
    make_agent, environment, 1, 1000, 50, 1, run=run, run_dir=run_dir
  )
  counter = _Counter(steps, reports=1)
  theta = np.zeros(agent.layout.size) if theta is None else theta
  learner = _Learner(agent, theta)
  return evaluator.Evaluator(experiment, counter, learner, ends_run), counter


def test_it_says_which_version_made_how_much_at_which_step():
  node, counter = _evaluator()
  node.run(threading.Event())
  node_name, kind, row = counter.rows[-1]
  assert (node_name, kind) == ('evaluator/0', 'evaluation')
  assert (row['actor_steps'], row['version']) == (10, 7)
  assert len(row['returns']) == 3
  assert row['return_mean'] == pytest.approx(np.mean(row['returns']))
  assert row['broken_episodes'] == 0


@pytest.mark.parametrize('steps, played', [(10, []), (16, [16])])
def test_what_a_run_ended_with_is_not_played_again_when_it_is_resumed(
  tmp_path, steps, played
):
  rows = [{'actor_steps_per_member': found} for found in (0, 5, 10)]
  (tmp_path / 'metrics').mkdir()
  path = tmp_path / 'metrics' / 'evaluation.jsonl'
  path.write_text('\n'.join(map(json.dumps, rows)) + '\n')
  node, counter = _evaluator(steps=steps, run_dir=str(tmp_path))
  node.run(threading.Event())
  found = [row['actor_steps_per_member'] for _, _, row in counter.rows]
  assert found == played


def test_an_evaluation_without_whole_episodes_has_no_return_where_they_drop(
  monkeypatch,
):
  monkeypatch.syspath_prepend(HERE)
  # Each of its episodes turns NaN: a sum of four rewards is no return.
  node, counter = _evaluator(
    target=1.0, environment='faulty_environments:TurnsNaN-v0', on_fault='drop'
  )
  node.run(threading.Event())
  row = counter.rows[-1][2]
  assert np.isnan(row['return_mean']) and row['returns'] == []
  assert row['broken_episodes'] == 3 * 10
  assert counter.outcome is None


def test_an_evaluation_without_whole_episodes_fails_its_node_by_default(
  monkeypatch,
):
  monkeypatch.syspath_prepend(HERE)
  node, _ = _evaluator(environment='faulty_environments:TurnsNaN-v0')
  with pytest.raises(environments.EnvironmentFault, match='only 0 of 3'):
    node.run(threading.Event())


def test_an_answer_that_makes_no_sense_ends_the_node():
  node, counter = _evaluator()
  counter.left = 10**9
  node._server._answer = {'theta': b''}
  with pytest.raises(parameters.LayoutMismatch, match='not encoded'):
    node.run(threading.Event())


def test_the_end_waits_for_the_last_evaluation():
  node, counter = _evaluator()
  node.run(threading.Event())
  *before, last = [seconds for _, seconds in counter.holds]
  assert before and min(before) > 0 and last == 0


def test_a_target_that_is_reached_is_confirmed_and_ends_the_run():
  # Zero parameters push left always: about 9 steps an episode.
  node, counter = _evaluator(target=5.0)
  node.run(threading.Event())
  reason, result = counter.outcome
  assert 'over 20 episodes' in reason and '5 was asked for' in reason
  assert result['episodes'] == 20 and result['return_mean'] >= 5.0


@pytest.mark.parametrize('memory', [{'stack': 2}, {'lstm_size': 4}])
def test_a_policy_with_a_memory_is_confirmed_over_other_episodes(memory):
  config = impala.Config(hidden_sizes=(4,), **memory)
  make_agent = functools.partial(impala.IMPALA, config, SPEC)
  node, counter = _evaluator(target=5.0, make_agent=make_agent)
  node.run(threading.Event())
  assert counter.outcome[1]['episodes'] == 20


@pytest.mark.parametrize('target, ends_run', [(50.0, True), (5.0, False)])
def test_a_target_that_is_not_reached_or_not_its_business_does_not(
  target, ends_run
):
  node, counter = _evaluator(target=target, ends_run=ends_run)
  node.run(threading.Event())
  assert counter.outcome is None


class _Hasty(_Counter):
  """A run that makes a period of steps at each look, and then is over."""

  def totals(self):
    self.steps = min(self.steps + 5, 100)
    return super().totals()

  def report(self, node, counts, metrics, life):
    del node, counts, metrics
    return {'totals': {}, 'finished': self.finished()}

  def finished(self):
    return self.steps == 100


def test_a_run_that_is_quicker_than_its_evaluations_has_a_whole_curve(
  monkeypatch,
):
  node, _ = _evaluator()
  counter = _Hasty(-5, reports=0)
  node._counter = counter
  node._reporter._counter = counter
  played = []

  def play(thetas, episodes, purpose, stop):
    del thetas, episodes, stop
    played.append(int(purpose.split()[-1]))
    while counter.steps < 100:  # Slower than the run.
      time.sleep(0.01)
    return [evaluation.VectorResult(np.ones(3), broken=0)]

  monkeypatch.setattr(node._judge, '_play', play)
  node.run(threading.Event())
  steps = [row['actor_steps'] for _, _, row in counter.rows]
  assert steps == played == list(range(0, 101, 5))
  assert all(row['age_s'] >= 0 for _, _, row in counter.rows)


def test_where_a_target_ends_the_run_the_newest_is_played_and_none_goes_back(
  monkeypatch, caplog
):
  node, counter = _evaluator(target=5.0)
  counter.left = 10**9
  for steps in (1, 2, 3):
    node._take(steps)
  played = []

  def play(thetas, episodes, purpose, stop):
    del thetas, episodes, stop
    played.append(int(purpose.split()[-1]))
    return [evaluation.VectorResult(np.full(3, 9.0), broken=0)]

  monkeypatch.setattr(node._judge, '_play', play)
  counter.steps = 3
  node.run(threading.Event())
  assert played[:2] == [3, 3]  # an evaluation, and its confirmation
  assert [row['actor_steps'] for _, _, row in counter.rows][0] == 3
  assert counter.outcome[1]['steps_of_agent'] == 3
  assert 'The run is over: 2 snapshots' in caplog.text


def test_what_the_learner_ended_with_is_evaluated_though_time_is_short(
  monkeypatch, caplog
):
  node, counter = _evaluator(steps=100)
  now = [1000.0]
  monkeypatch.setattr(
    evaluator,
    'time',
    types.SimpleNamespace(monotonic=lambda: now[0], sleep=time.sleep),
  )
  for steps in range(0, 100, 5):
    node._take(steps)

  def play(*unused):
    now[0] += 20.0
    return [evaluation.VectorResult(np.ones(3), broken=0)]

  monkeypatch.setattr(node._judge, '_play', play)
  node._finish(threading.Event())
  steps = [row['actor_steps'] for _, _, row in counter.rows]
  assert steps == sorted(steps) and steps[-1] == 100
  assert 1 < len(steps) <= 6
  assert f'{21 - len(steps)} snapshots' in caplog.text


def test_evaluations_that_a_killed_evaluator_took_along_are_said(
  tmp_path, monkeypatch, caplog
):
  (tmp_path / 'metrics').mkdir()
  path = tmp_path / 'metrics' / 'evaluation.jsonl'
  rows = [{'actor_steps_per_member': found} for found in (0, 20, 21)]
  path.write_text('\n'.join(map(json.dumps, rows)) + '\n')
  caplog.set_level('INFO')
  node, _ = _evaluator(run_dir=str(tmp_path))
  assert 'Of the 5 parts of the run up to step 21, by' in caplog.text
  assert 'evaluations, 3 have no evaluation' in caplog.text
  counter = _Hasty(30, reports=0)  # looked at first after 35 steps
  node._counter = counter
  node._reporter._counter = counter
  result = evaluation.VectorResult(np.ones(3), broken=0)
  monkeypatch.setattr(node._judge, '_play', lambda *unused: [result])
  node.run(threading.Event())
  found = sorted(row['actor_steps'] for _, _, row in counter.rows)
  assert found == list(range(35, 101, 5))
  # By the present number of evaluations: an earlier start may have had fewer.
  assert 'The run is over' not in caplog.text


@pytest.mark.parametrize('stopped', [False, True])
def test_what_was_not_evaluated_at_the_end_is_said(
  monkeypatch, caplog, stopped
):
  node, counter = _evaluator()
  stop, now = threading.Event(), [1000.0]
  monkeypatch.setattr(
    evaluator,
    'time',
    types.SimpleNamespace(monotonic=lambda: now[0], sleep=time.sleep),
  )
  for steps in (1, 2, 3):
    node._take(steps)
  played = []

  def play(thetas, episodes, purpose, should_stop):
    played.append(purpose)
    if len(played) < 2:
      return [evaluation.VectorResult(np.ones(3), broken=0)]
    assert not should_stop()
    if stopped:
      stop.set()
    else:  # before the counter's end, which would stop it without a word
      now[0] += evaluator._LAST_EVALUATIONS_S - evaluator._SAY_S + 1
    assert should_stop()
    return None

  monkeypatch.setattr(node._judge, '_play', play)
  node._finish(stop)
  assert len(counter.rows) == 1
  # Of four, with the final one: one was played and one was cut.
  assert 'The run is over: 3 snapshots' in caplog.text
  assert counter.holds[-1] == ('evaluator/0', 0)


def test_the_end_waits_for_an_evaluation_that_takes_long(monkeypatch):
  node, counter = _evaluator()
  counter.left = 10**9  # until it is set below
  held = []

  def play(thetas, episodes, purpose, stop):
    del thetas, episodes, purpose, stop
    # Asked for before: it may be too busy to hear of the end in time.
    assert counter.holds and min(counter.holds)[1] > 0
    counter.left = -1  # The run ends in the middle of an evaluation.
    deadline = time.monotonic() + 60
    while node._ended is None:
      assert time.monotonic() < deadline, 'nobody heard while it was played'
      time.sleep(0.01)
    held.extend(counter.holds)
    return [evaluation.VectorResult(np.ones(3), broken=0)]

  monkeypatch.setattr(node._judge, '_play', play)
  node.run(threading.Event())
  (name, seconds), *_ = held
  assert name == 'evaluator/0' and seconds > 0
  assert counter.holds[-1] == ('evaluator/0', 0)
  assert len(counter.rows) == 1


def test_the_time_after_the_end_is_counted_once_also_within_an_evaluation(
  monkeypatch, caplog
):
  node, counter = _evaluator()
  counter.left = 10**9  # until it is set below
  now, ended = [1000.0], []
  monkeypatch.setattr(
    evaluator,
    'time',
    types.SimpleNamespace(monotonic=lambda: now[0], sleep=time.sleep),
  )
  slot = pulse.Slot(memoryview(bytearray(1024)))
  moved = []

  def play(thetas, episodes, purpose, should_stop):
    del thetas, episodes
    assert purpose == 'evaluation at 10'
    moved.append(slot.moved)
    assert not should_stop() and slot.moved == moved[0]
    counter.left = -1  # The run ends in the middle of it.
    deadline = time.monotonic() + 60
    while node._ended is None:
      assert time.monotonic() < deadline
      time.sleep(0.01)
    now[0] += evaluator._LAST_EVALUATIONS_S - evaluator._SAY_S - 1
    assert not should_stop()
    moved.append(slot.moved)
    now[0] += 2
    ended.append(should_stop())
    return None

  monkeypatch.setattr(node._judge, '_play', play)
  pulse.use(slot)
  try:
    node.run(threading.Event())
  finally:
    pulse.use(None)
  assert ended == [True]
  # Each of its steps after the end was movement: nothing else moves then.
  assert moved == [0, 1]
  # What was cut, and what the learner ended with.
  assert 'The run is over: 2 snapshots' in caplog.text
  assert counter.holds[-1] == ('evaluator/0', 0)


def test_the_end_waits_for_an_evaluator_only_while_it_moves(monkeypatch):
  node, counter = _evaluator()
  counter.left = 10**9  # until it is set below
  now = [1000.0]
  monkeypatch.setattr(
    evaluator,
    'time',
    types.SimpleNamespace(monotonic=lambda: now[0], sleep=time.sleep),
  )
  played = []

  def play(thetas, episodes, purpose, should_stop):
    del thetas, episodes, purpose
    if not played:
      for _ in range(3):
        before = len(counter.holds)
        now[0] += 100.0  # of one step
        assert len(counter.holds) == before
        should_stop()
        assert counter.holds[before:] == [('evaluator/0', evaluator._HOLD_S)]
    played.append(counter.left)
    counter.left = -1
    return [evaluation.VectorResult(np.ones(3), broken=0)]

  monkeypatch.setattr(node._judge, '_play', play)
  node.run(threading.Event())
  assert played and counter.holds[-1] == ('evaluator/0', 0)


def test_what_waits_has_a_bound(monkeypatch, caplog):
  node, counter = _evaluator(steps=100)
  bound = 5 * 4 * node._agent.layout.size
  monkeypatch.setattr(evaluator, '_WAITING_BYTES', bound)
  for steps in range(101):
    node._take(steps)
  node.run(threading.Event())
  found = [row['actor_steps'] for _, _, row in counter.rows]
  assert found == [96, 97, 98, 99, 100]
  assert 'The run is over: 96 snapshots' in caplog.text


class _Busy:
  """A learner that makes some more updates after the run's end."""

  def __init__(self, agent, updates, last):
    self._agent, self._left, self._last = agent, updates, last

  def get_parameters(self, have_version):
    version = 7 - self._left
    self._left = max(self._left - 1, 0)
    theta = np.full(self._agent.layout.size, version, np.float32)
    encoded = parameters.encode(self._agent.layout, version, theta)
    return {
      'version': version,
      'theta': None if version == have_version else encoded,
      'last': self._last and version == 7,
    }


@pytest.mark.parametrize(
  'updates, waiting, played',
  [
    (3, None, []),
    # What waits is played before the learner ends.
    (4, 50, [(50, 3)]),
    (4, 100, [(100, 3)]),
    # Another of the same step is left out if it was not.
    (1, 50, [(50, 6)]),
    (1, 100, []),
  ],
)
def test_the_last_evaluation_is_of_the_last_update(
  monkeypatch, caplog, updates, waiting, played
):
  node, counter = _evaluator(steps=100)
  node._server = _Busy(_DQN(), updates, last=True)
  monkeypatch.setattr(evaluator, '_WAIT_S', 0.01)
  if waiting is not None:
    node._take(waiting)  # not evaluated yet, at this step
  node._finish(threading.Event())
  rows = [(row['actor_steps'], row['version']) for _, _, row in counter.rows]
  assert sorted(rows) == [*played, (100, 7)]
  assert not caplog.text


def test_a_learner_that_does_not_end_is_said(monkeypatch, caplog):
  node, counter = _evaluator(steps=100)
  node._server = _Busy(_DQN(), updates=0, last=False)
  monkeypatch.setattr(evaluator, '_WAIT_S', 0.01)
  monkeypatch.setattr(evaluator, '_LAST_UPDATE_S', 0.1)
  node._finish(threading.Event())
  ((_, _, row),) = counter.rows
  assert (row['actor_steps'], row['version']) == (100, 7)
  assert 'did not say within' in caplog.text
