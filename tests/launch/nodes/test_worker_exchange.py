"""A worker and its exchange: what it begins with, moves, replaces, serves."""

import collections
import types

import numpy as np
import pytest

from murmuration.agents import parameters
from murmuration.agents.exchange import base as exchange_base
from murmuration.agents.exchange import local
from murmuration.launch import rpc
from murmuration.launch.nodes import worker
from tests.launch.nodes import experiments


class _Script(local.Local):
  """Breaks a member once; hands out a replacement."""

  def __init__(self, replacement=None):
    self.given = replacement
    self.results = []
    self.thetas = []
    self.calls = collections.Counter()

  def begin(self, worker):
    self.worker = worker

  def updated(self, result):
    self.results.append(result)
    self.thetas.append(self.worker.theta.copy())
    if len(self.results) == 2:
      theta = self.worker.theta[1].copy()
      theta[0] = np.nan
      self.worker.learner.set_member(1, theta)

  def replacement(self, member):
    self.calls[f'replacement {member}'] += 1
    return self.given

  def sync(self):
    self.calls['sync'] += 1

  def close(self):
    self.calls['close'] += 1


@pytest.mark.parametrize('has_star', [True, False])
def test_a_member_whose_parameters_are_not_finite_is_replaced(
  recorder, run_worker, make_counter, has_star
):
  experiment = experiments.make(experiments.COUNTING, 2)
  layout = experiment.make_agent().layout
  star = np.full(layout.size, 0.25, np.float32)
  script = _Script(star if has_star else None)
  counter = make_counter(None, experiments.budget(experiment))
  run_worker(experiment, counter, exchange=lambda: script)
  broken = [result.broken.tolist() for result in script.results]
  assert broken.count([False, True]) == 1
  assert broken[2] == [False, True]
  assert (
    script.calls['replacement 1'] == 1 and not script.calls['replacement 0']
  )
  # The call that found it broken skipped its updates, and only its.
  assert script.results[2].skipped.tolist() == [0, 4]
  if has_star:
    np.testing.assert_array_equal(script.thetas[2][1], star)
  for theta in script.thetas[2:]:
    assert np.isfinite(theta).all()
  assert not np.array_equal(script.thetas[-1][1], script.thetas[2][1])
  metrics = counter.snapshot()['nodes']['worker/0']['metrics']
  assert metrics['skipped_updates'] == 4
  # What the inspector takes for the learner's step: of one member.
  assert metrics['parameters_version'] == 4 * len(script.results)
  assert script.calls['close'] == 1 and script.calls['sync'] > 5


@pytest.mark.parametrize('shared', [True, False])
def test_members_start_alike_where_their_exchange_says_so(
  recorder, run_worker, make_counter, shared
):
  first = []

  class Starts(local.Local):
    shared_start = shared

    def initial(self, theta, again):
      assert not again
      first.append(theta)
      return theta

  experiment = experiments.make(
    experiments.COUNTING, 3, run={'steps_per_agent': 20}
  )
  for hosted in ([0, 1], [2]):  # two nodes
    counter = make_counter(None, {'actor_steps': 20 * len(hosted)})
    run_worker(experiment, counter, hosted, exchange=Starts)
  thetas = np.concatenate(first)
  assert len(thetas) == 3
  assert len(np.unique(thetas, axis=0)) == (1 if shared else 3)


def test_what_an_exchange_moved_between_calls_acts_at_once(
  run_worker, make_counter
):
  class Moves(local.Local):
    def __init__(self):
      self.acted, self.made, self.over = [], 0, 0

    def begin(self, worker):
      self.worker = worker

    def updated(self, result):
      self.made += 1

    def sync(self):
      theta = self.worker.learner.parameters()
      self.worker.learner.set_parameters(np.full_like(theta, self.made))
      return True

    def episode_ended(self, done):
      if self.made:
        self.acted.append((self.worker.theta[0, 0], self.made))

    def ended(self):
      self.over += 1

  moves = Moves()
  experiment = experiments.cartpole(num_agents=1, run={'steps_per_agent': 400})
  counter = make_counter(None, experiments.budget(experiment))
  run_worker(experiment, counter, exchange=lambda: moves)
  assert len(moves.acted) > 5
  assert all(theta == made for theta, made in moves.acted)
  assert moves.over == 1


def test_metrics_of_members_become_one_as_the_agent_says(
  run_worker, make_counter
):
  class Reads(local.Local):
    def updated(self, result):
      self.found = result.metrics

  reads = Reads()
  experiment = experiments.cartpole(run={'steps_per_agent': 60})
  counter = make_counter(None, experiments.budget(experiment))
  run_worker(experiment, counter, exchange=lambda: reads)
  told = counter.snapshot()['nodes']['worker/0']['metrics']
  largest, means = reads.found['target_max'], reads.found['q_mean']
  assert largest.max() > largest.mean() and told['target_max'] == largest.max()
  assert told['q_mean'] == pytest.approx(means.mean())


class _Serves(local.Local):
  serves = ('hello',)

  def hello(self, name):
    return f'hello {name}'

  def goodbye(self):
    raise AssertionError


def test_what_an_exchange_serves_is_served_by_its_worker_and_no_more(
  make_worker, make_counter, tmp_path
):
  worker = make_worker(
    experiments.cartpole(), make_counter(None), exchange=_Serves
  )
  address = f'unix:{tmp_path}/worker'
  with rpc.serve(worker, address):
    client = rpc.Client(address, timeout_s=60.0)
    assert client.hello('you') == 'hello you'
    for name in ('goodbye', 'meet', 'sync'):
      with pytest.raises(rpc.RemoteError, match=f'serve a method {name!r}'):
        getattr(client, name)()
  assert not hasattr(worker, 'goodbye')


class _Strays(local.Local):
  """Is out of step at its third call, and then goes on as it began."""

  on_host = True

  def __init__(self, stopped=False):
    self.calls = []
    self._stopped = stopped

  def begin(self, worker):
    self._state = worker.learner.save()

  def meet(self, learner, gradient):
    if learner.updates == 9 and 'rejoin' not in self.calls:
      raise exchange_base.OutOfStep
    return gradient

  def rejoin(self, learner):
    self.calls.append('rejoin')
    if self._stopped:
      raise exchange_base.Stopped
    learner.restore(self._state)

  def updated(self, result):
    self.calls.append('updated')


def test_a_learner_that_is_out_of_step_rejoins_and_goes_on(
  recorder, run_worker, make_counter
):
  strays, counter = _Strays(), make_counter(None)
  worker = run_worker(
    experiments.make(experiments.COUNTING), counter, exchange=lambda: strays
  )
  # 19 calls; see the test of the budget in test_worker.py.
  assert strays.calls == ['updated'] * 2 + ['rejoin'] + ['updated'] * 16
  assert worker.learner.updates == 4 * 16
  assert worker.get_parameters(-1)['version'] == 4 * 16
  # Only what was made in whole calls is counted, of two members.
  assert counter.totals()['learner_steps'] == 2 * 4 * 18


def test_a_run_that_ends_while_a_learner_rejoins_is_over(
  recorder, run_worker, make_counter
):
  strays = _Strays(stopped=True)
  worker = run_worker(
    experiments.make(experiments.COUNTING),
    make_counter(None),
    exchange=lambda: strays,
  )
  assert strays.calls == ['updated'] * 2 + ['rejoin']
  assert worker.steps < 100


class _Ends(_Strays):
  """The run ends in the middle of its third call."""

  def meet(self, learner, gradient):
    if learner.updates == 9:
      raise exchange_base.Stopped
    return gradient


def test_what_a_call_made_before_the_end_is_counted_and_served(
  recorder, run_worker, make_counter
):
  counter = make_counter(None)
  worker = run_worker(
    experiments.make(experiments.COUNTING), counter, exchange=_Ends
  )
  assert worker.learner.updates == 9
  assert counter.totals()['learner_steps'] == 2 * 9
  served = worker.get_parameters(-1)
  assert (served['version'], served['last']) == (9, True)
  _, theta = parameters.decode(worker.learner.agent.layout, served['theta'])
  np.testing.assert_array_equal(theta, worker.learner.parameters()[0])


def test_an_exchange_may_not_serve_what_its_worker_serves():
  class Mine(local.Local):
    serves = ('get_parameters', 'mine')

  run = experiments.make(experiments.COUNTING, 1)
  info = [run.actor_info(0)]
  said = r"Mine serves \['get_parameters'\], which the worker has"
  counter = types.SimpleNamespace(with_deadline=lambda timeout_s: None)
  with pytest.raises(ValueError, match=said):
    worker.Worker(run, 'a/0', info, counter, [], exchange=Mine)
  made = worker.Worker(run, 'a/0', info, counter, [])
  public = {name for name in vars(made) if not name.startswith('_')}
  assert public == {*worker._ATTRIBUTES}  # refused before it is made, too
