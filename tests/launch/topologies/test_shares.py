"""Who does how much of a budget, also of a run resumed with other numbers."""

import pytest

from murmuration.launch import cell as cell_lib
from murmuration.launch.services import counter as counter_lib

# Of an agent: its nodes that act, and the setting with their number.
KINDS = {
  'apex_dqn': ('actor', 'actors.num_actors'),
  'a2c': ('actor', 'actors.num_actors'),
  'a3c': ('learner', 'server.num_learners'),
}


def _done(run_dir, **steps):
  """A counter that ends after nodes have made so many steps."""
  counter = counter_lib.Counter(run_dir)
  for node, made in steps.items():
    counter.report(node.replace('_', '/'), {'actor_steps': made})
  counter.close()


def _shares(agent, run_dir, steps, count):
  kind, number = KINDS[agent]
  said = {'run.steps_per_agent': f'{steps}', number: f'{count}'}
  if agent == 'a2c':
    said['actors.envs_per_actor'] = '4'
  nodes = cell_lib.resolve(agent, overrides=said).build(str(run_dir)).groups
  if kind == 'learner':
    return [node._args[0].run.steps_per_agent for node in nodes[kind]]
  return [node._kwargs['share'] for node in nodes[kind]]


@pytest.mark.parametrize('agent', KINDS)
def test_what_is_left_is_shared_out_on_top_of_what_is_done(agent, tmp_path):
  kind, _ = KINDS[agent]
  assert _shares(agent, tmp_path, 40_001, 2) == [20_001, 20_000]
  _done(tmp_path, **{f'{kind}_0': 18_000, f'{kind}_1': 20_000})
  assert _shares(agent, tmp_path, 60_000, 2) == [29_000, 31_000]
  # Those who come do as much of the rest as those who were there.
  more = _shares(agent, tmp_path, 60_000, 4)
  assert more == [23_500, 25_500, 5_500, 5_500]
  # What one did who is gone is done.
  assert _shares(agent, tmp_path, 60_000, 1) == [40_000]


@pytest.mark.parametrize('agent', ['apex_dqn', 'a3c'])
def test_of_a_budget_that_is_spent_nothing_is_left(agent, tmp_path):
  _done(tmp_path, **{f'{KINDS[agent][0]}_0': 9_000})
  none = 1 if agent == 'a3c' else 0  # a budget is at least a step
  assert _shares(agent, tmp_path, 9_000, 2) == [9_000, none]
