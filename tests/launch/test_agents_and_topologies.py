"""Any agent x any topology: each that is not refused is run.

In threads and in processes. Aliases (pso_dqn, a3c and others) are agents by the
name of their topology, the same cells again: they are run once, on that one.
"""

import json
import pathlib
import subprocess
import sys

import pytest

from murmuration.launch import cell as cell_lib
from murmuration.launch import registry
from murmuration.run_records import commands

HERE = pathlib.Path(__file__).parent
UPDATES = 5
# One for each topology is run by `make test`.
MAIN = (
  ('dqn', 'single_process'),
  ('impala', 'actor_learner'),
  ('pso_dqn', 'swarm'),
  ('es_mlp', 'evolution'),
  ('gala_a2c', 'gossip'),
  ('gorila_dqn', 'parameter_server'),
)


def _is_of_its_own(agent, topology, engine):
  if not registry.is_alias(agent) or (agent, topology) in MAIN:
    return True
  return engine == 'local_mp' and topology == registry.agent(agent).topology


LOCAL = ('local_mt', 'local_mp')  # ray: test_ray.py
WAYS = [
  (agent, topology, engine)
  for engine in LOCAL
  for agent in registry.agents()
  for topology in registry.TOPOLOGIES
  if _is_of_its_own(agent, topology, engine)
]
WAY_TEST = 'test_a_way_is_built_launched_and_learns_or_is_refused'


def _marked(ways):
  # The swarm in processes is the run of test_run_swarm.py.
  elsewhere = ('pso_dqn', 'swarm', 'local_mp')
  return [
    pytest.param(
      *way,
      marks=[pytest.mark.main_job]
      if way[:2] in MAIN and way != elsewhere
      else [],
    )
    for way in ways
  ]


def _refusal(agent, topology):
  """What the topology says of the agent's default preset, or None."""
  try:
    cell_lib.resolve(agent, topology=topology).build()
  except ValueError as e:
    return str(e)
  return None


class _Programs:
  """Ways, run by one process; results are read as they are asked for."""

  def __init__(self, directory, ways):
    self.errors = directory / 'errors.txt'
    self._results = {}
    runs = directory / 'runs'
    runs.mkdir()
    with self.errors.open('w') as errors:
      self.process = subprocess.Popen(
        [
          sys.executable,
          str(HERE.parent / 'forked_programs.py'),
          str(runs),
          str(UPDATES),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
      )
    json.dump(ways, self.process.stdin)
    self.process.stdin.close()

  def result(self, way):
    while way not in self._results:
      line = self.process.stdout.readline()
      assert line, self.errors.read_text()
      found = json.loads(line)
      self._results[tuple(found['way'])] = found
    return self._results[way]

  def close(self):
    self.process.kill()  # programs that still run end with it
    self.process.wait()
    self.process.stdout.close()


@pytest.fixture(scope='module')
def programs(request, tmp_path_factory):
  # In their order, of all that were selected.
  ways = [
    tuple(
      item.callspec.params[name] for name in ('agent', 'topology', 'engine')
    )
    for item in request.session.items
    if getattr(item, 'originalname', '') == WAY_TEST
  ]
  found = _Programs(tmp_path_factory.mktemp('programs'), ways)
  yield found
  found.close()


@pytest.mark.parametrize('agent, topology, engine', _marked(WAYS))
def test_a_way_is_built_launched_and_learns_or_is_refused(
  programs, agent, topology, engine
):
  found = programs.result((agent, topology, engine))
  refusal = _refusal(agent, topology)
  if refusal is not None:
    assert found['code'] == commands.USAGE, found['output']
    assert found['output'] == f'error: {refusal}\n'
    # A refusal says what to do instead.
    assert any(f'Use {other}' in refusal for other in registry.TOPOLOGIES)
    return
  assert found['code'] == 0, (found['output'], programs.errors.read_text())
  summary = found['summary']
  assert summary['outcome'] == 'goal', found
  assert summary['totals']['learner_steps'] >= UPDATES
  assert summary['totals']['actor_steps'] > 0
  assert {restarts for *_, restarts in found['nodes']} == {0}, found


def test_every_agent_and_every_topology_is_of_some_use():
  accepted = [way[:2] for way in WAYS if _refusal(*way[:2]) is None]
  assert {agent for agent, _ in accepted} == set(registry.agents())
  assert {topology for _, topology in accepted} == set(registry.TOPOLOGIES)


@pytest.mark.parametrize('engine', LOCAL)
def test_every_agent_and_every_topology_is_run_by_every_engine(engine):
  agents, topologies = zip(*(way[:2] for way in WAYS if way[2] == engine))
  assert set(topologies) == set(registry.TOPOLOGIES)
  alone = {name for name in registry.agents() if not registry.is_alias(name)}
  assert alone <= set(agents)
  assert engine != 'local_mp' or set(agents) == set(registry.agents())


@pytest.mark.parametrize('name', registry.agents())
def test_an_agent_runs_by_default_where_its_config_says(name):
  agent = registry.agent(name)
  assert agent.name == name
  assert _refusal(name, agent.topology) is None
