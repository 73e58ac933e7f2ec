"""What is said of `module:Name` where the module has no such name."""

import pytest

from murmuration.launch import registry
from murmuration.run_records import sinks

MODULE = """
import contextlib
from murmuration.agents import dqn
from murmuration.agents.dqn import DQN
from murmuration.run_records.sinks import MLflow, Sink

class Mine(DQN):
  pass

class _Half(Sink):
  pass

class Whole(_Half):
  pass
"""


@pytest.mark.parametrize(
  'find, word, said',
  [
    (registry.agent, 'Mien', "Did you mean '{0}:Mine'? There are {0}:Mine."),
    (sinks.parse, 'Hole', "Did you mean '{0}:Whole'? There are {0}:Whole."),
    (registry.topology, 'Mine2', '{0} has none.'),
  ],
)
def test_a_name_that_a_module_lacks_is_told_what_it_defines_of_that_kind(
  tmp_path, monkeypatch, find, word, said
):
  (tmp_path / 'with_all_kinds.py').write_text(MODULE)
  monkeypatch.syspath_prepend(tmp_path)
  with pytest.raises(ValueError) as refused:
    find(f'with_all_kinds:{word}')
  assert str(refused.value).endswith(said.format('with_all_kinds'))


def test_a_topology_that_a_module_lacks_is_told_those_that_it_has():
  with pytest.raises(ValueError, match='There are tests.swap:Swapping.$'):
    registry.topology('tests.swap:Exchange')


@pytest.mark.parametrize(
  'find, word, said',
  [
    (registry.agent, 'my_away:Mine', "^agent 'my_away:Mine' needs the module "),
    (registry.topology, 'my_away:Mine', 'directory that has my_away.py '),
    (registry.topology, 'my.own:it', 'which does not import: .*my/own.py'),
    (registry.agent, './my_away.py:Mine', 'not a path: my_away:Mine, where '),
    (registry.agent, 'a/my_away:Mine', 'not a path: my_away:Mine, where '),
    (registry.agent, 'my_away.py', 'not a path: my_away:Name, where '),
    (registry.agent, 'my.own.Mine', "Did you mean 'my.own:Mine'[?] One of "),
    (registry.agent, 'a2c.cartpole', "Did you mean 'a2c:cartpole'[?]"),
    (registry.agent, 'dqm:cartpole', "no agent 'dqm'. Did you mean 'dqn'[?]"),
    (registry.agent, 'runs/dqn', 'There is no agent .* is named module:Name'),
  ],
)
def test_a_module_that_is_not_here_is_said_to_be_missing(find, word, said):
  with pytest.raises(ValueError, match=said):
    find(word)


def test_presets_are_in_small_letters_by_which_they_are_no_class():
  for name in registry.agents():
    assert all(one.islower() for one in registry.agent(name).presets), name
