"""An exchange and a topology from outside (swap.py), for any kind of agent."""

import json
import pathlib

import numpy as np
import pytest

from murmuration.launch import cell as cell_lib
from murmuration.launch import rpc
from murmuration.launch.engines import restarts
from tests import swap

HERE = pathlib.Path(__file__).parent
# Uniform replay, prioritized replay, a queue of rollouts.
AGENTS = ('dqn:cartpole', 'apex_dqn:cartpole', 'ppo:cartpole')
STEPS = {'ppo:cartpole': 4096}


class _Worker:
  """A worker whose learner has one vector."""

  def __init__(self, theta):
    self.theta, self.learner, self.updates = theta, self, 0

  def set_parameters(self, theta):
    self.theta = theta


class _Client:
  """A client of an exchange that is there."""

  def __init__(self, exchange):
    self.swap, self.timeout_s = exchange.swap, 10.0

  def with_deadline(self, timeout_s):
    self.timeout_s = timeout_s
    return self


def test_two_workers_have_each_other_s_parameters_after_a_swap():
  one, two = np.zeros((2, 3)), np.ones((2, 3))
  second = swap.Swap(10)
  client = _Client(second)
  first = swap.Swap(10, client)
  workers = _Worker(one), _Worker(two)
  for exchange, worker in zip((first, second), workers):
    exchange.begin(worker)
  assert client.timeout_s <= 1  # the worker learns nothing meanwhile
  assert not first.sync()
  assert workers[0].theta is one  # not yet
  workers[0].updates = 10
  # Whether parameters moved: what is published then acts.
  assert [e.sync() for e in (first, second, first, second)] == [
    True, True, False, False,
  ]  # fmt: skip
  assert workers[0].theta is two and workers[1].theta is one
  assert first.metrics() == second.metrics() == {'swaps': 1}


class _Gone:
  """A client whose calls raise."""

  def __init__(self, error):
    self.error, self.calls = error, 0

  def with_deadline(self, timeout_s):
    return self

  def swap(self, theta):
    self.calls += 1
    raise self.error


def test_a_call_of_many_periods_is_one_swap():
  exchange = swap.Swap(10, _Gone(rpc.Unavailable('there', 'swap', False, '')))
  worker = _Worker(np.zeros((2, 3)))
  exchange.begin(worker)
  for updates, calls in ((9, 0), (64, 1), (64, 1), (69, 1), (70, 2), (128, 3)):
    worker.updates = updates
    assert not exchange.sync()
    assert exchange._other.calls == calls, updates


def test_what_the_other_one_raises_is_an_error_and_its_absence_is_not():
  error = rpc.RemoteError('AttributeError', 'Worker does not serve swap', '')
  exchange = swap.Swap(1, _Gone(error))
  worker = _Worker(np.zeros((2, 3)))
  exchange.begin(worker)
  worker.updates = 1
  with pytest.raises(rpc.RemoteError, match='does not serve'):
    exchange.sync()


def test_a_worker_that_is_not_ready_takes_parameters_and_gives_none():
  exchange, theirs = swap.Swap(10), np.ones((2, 3))
  assert exchange.swap(theirs) is None
  worker = _Worker(np.zeros((2, 3)))
  exchange.begin(worker)
  assert exchange.sync() and worker.theta is theirs


@pytest.mark.parametrize(
  'served, said',
  [
    (
      ('swap', 'theta'),
      r"Swap serves \['theta'\], which the worker has itself",
    ),
    (('get_parameters',), r"\['get_parameters'\], which the worker has"),
    ('swap', r"serves='swap' of Swap is a text. Give .*: \('swap',\)"),
    (('swop',), r"Swap serves \['swop'\], but has no such method"),
  ],
)
def test_what_an_exchange_cannot_serve_is_refused_before_it_starts(
  monkeypatch, served, said
):
  monkeypatch.setattr(swap.Swap, 'serves', served)
  with pytest.raises(ValueError, match=said):
    _cell().build()


def _cell(**overrides):
  return cell_lib.resolve(
    'dqn',
    'cartpole',
    'tests.swap:Swapping',
    {name.replace('__', '.'): x for name, x in overrides.items()},
  )


def test_a_worker_that_dies_is_started_again():
  rules = restarts.of(_cell().build())
  assert rules.come_back and rules.ends_run == 'counter'


def test_a_replay_node_is_refused_as_there_is_none():
  with pytest.raises(ValueError, match="run.replay='node': swap has no replay"):
    _cell(run__replay='node').build()


@pytest.fixture(scope='module')
def runs(start_run):
  started = {
    agent: start_run(
      agent,
      '--topology=swap:Swapping',
      f'--config.run.steps_per_agent={STEPS.get(agent, 2000)}',
      '--config.swap.period=20',
      '--config.run.target_return=None',
      script='run.py',
      modules=HERE,
    )
    for agent in AGENTS
  }
  for run in started.values():
    assert run.wait() == 0, run.output
  return started


@pytest.mark.parametrize('agent', AGENTS)
def test_any_agent_swaps_by_the_word_of_a_topology(runs, agent):
  metrics = runs[agent].directory / 'metrics'
  for node in ('worker_0', 'worker_1'):
    rows = (metrics / f'node_{node}.jsonl').read_text().splitlines()
    assert json.loads(rows[-1])['swaps'] > 0


def test_the_target_ends_such_a_run(start_run):
  run = start_run(
    'dqn:cartpole',
    '--topology=swap:Swapping',
    '--config.run.steps_per_agent=20000',
    '--config.run.target_return=5',  # any policy has it
    script='run.py',
    modules=HERE,
  )
  assert run.wait() == 0, run.output
  assert '5 was asked for' in run.output


@pytest.mark.parametrize('agent', AGENTS)
def test_such_a_run_is_kept_as_any_other(runs, agent):
  directory = runs[agent].directory
  config = json.loads((directory / 'config.json').read_text())
  assert config['topology'] == 'swap:Swapping'
  assert config['swap'] == {'period': 20}
  assert (directory / 'learning_curve.png').exists()
  assert (directory / 'checkpoints' / 'worker_0-0.npz').exists()
  assert (directory / 'checkpoints' / 'worker_1-0.npz').exists()


def test_the_page_shows_this_file():
  page = HERE.parent / 'docs' / 'adding_a_topology.md'
  assert f'```python\n{(HERE / "swap.py").read_text()}```' in page.read_text()
