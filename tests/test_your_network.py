"""The code on docs/your_network.md works as it stands there."""

import importlib
import pathlib
import re
import sys

import numpy as np
import pytest
import tensorflow as tf

from murmuration.agents import dqn
from murmuration.environment_loops import environments
from murmuration.launch import cell
from murmuration.launch import registry
from murmuration.replay import packing
from murmuration.run_records import settings

PAGE = pathlib.Path(__file__).resolve().parents[1] / 'docs/your_network.md'


@pytest.fixture
def modules(tmp_path):
  """A directory with the page's modules."""
  codes = re.findall(r'```python\n(.*?)```', PAGE.read_text(), re.DOTALL)
  for name, code in zip(('two_parts', 'my_ppo'), codes, strict=True):
    (tmp_path / f'{name}.py').write_text(code)
  return tmp_path


@pytest.fixture
def two_parts(modules, monkeypatch):
  monkeypatch.syspath_prepend(modules)
  yield importlib.import_module('two_parts')
  monkeypatch.delitem(sys.modules, 'two_parts')


def test_both_forms_of_the_page_s_network_are_one_function(two_parts):
  network = two_parts.TwoParts(2, 3, 4)
  rng = np.random.default_rng(0)
  members = [network.initial(rng) for _ in range(3)]
  inputs = rng.normal(size=(3, 6, 5)).astype(np.float32)
  stacked = [np.stack(arrays) for arrays in zip(*members)]
  acts = network.forward(network.prepare(stacked), inputs)
  learns = network.make_sonnet()
  for variables, x, want in zip(members, inputs, acts):
    got = learns([tf.constant(v) for v in variables], tf.constant(x))
    np.testing.assert_allclose(got, want, atol=1e-5)


def test_the_page_s_agent_learns_all_parameters_of_its_network(two_parts):
  spec = environments.Spec('Test-v0', (4,), 2)
  agent = two_parts.TwoPartDQN(dqn.Config(), spec)
  rng = np.random.default_rng(0)
  o_tm1, o_t = rng.normal(size=(2, 8, 4)).astype(np.float32)
  batch = packing.Transition(
    tf.constant(o_tm1),
    tf.constant(rng.integers(2, size=8).astype(np.int32)),
    tf.ones(8),
    tf.ones(8),
    tf.constant(o_t),
    weight=tf.ones(8),
  )
  theta = agent.initial(1)
  variables = [tf.Variable(v) for v in agent.layout.unpack(theta)]
  with tf.GradientTape() as tape:
    loss = agent.loss(variables, variables, batch).loss
  for gradient in tape.gradient(loss, variables):
    assert np.abs(gradient).max() > 0
  actions = agent.greedy(theta)(o_t)
  assert actions.shape == (8,) and set(actions) <= {0, 1}
  with pytest.raises(ValueError, match='cannot be exported'):
    agent.operations(theta)


@pytest.mark.parametrize(
  'topology', ['single_process', 'actor_learner', 'swarm', 'gossip']
)
def test_the_page_s_agent_goes_on_a_topology_by_its_name(two_parts, topology):
  found = cell.resolve(
    'two_parts:TwoPartDQN',
    topology=topology,
    overrides={'environment': 'CartPole-v1'},
  )
  assert found.build().groups
  assert isinstance(found.experiment.make_agent(), two_parts.TwoPartDQN)


@pytest.mark.parametrize(
  'agent, named',
  [
    ('dqn', 'hidden_sizes activation network dueling'),
    ('ppo', 'hidden_sizes activation network lstm_size stack'),
    ('impala', 'hidden_sizes activation network lstm_size stack'),
    ('a2c', 'hidden_sizes activation network lstm_size stack'),
    ('d4pg', 'policy_sizes critic_sizes activation'),
    ('sac', 'policy_sizes critic_sizes activation'),
  ],
)
def test_the_settings_that_the_page_names_are_there(agent, named):
  there = settings.names(registry.agent(agent).config)
  assert set(named.split()) <= set(there)


def test_ppo_trains_with_the_page_s_network(modules, start_run):
  run = start_run(
    'my_ppo:TwoPartPPO',
    '--config.environment=CartPole-v1',
    '--config.run.steps_per_agent=2000',
    '--config.run.target_return=None',
    modules=modules,
  )
  assert run.wait() == 0, run.output
  run.assert_no_traceback()
