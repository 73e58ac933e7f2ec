"""The borders of the tree, read from the imports (nothing is imported)."""

import ast
import importlib.metadata
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
TOP = 'murmuration.'
# Imported below that name; the library itself is called `murmuration` here.
PACKAGES = (
  'agents',
  'replay',
  'environment_loops',
  'launch',
  'run_records',
  'configs',
  'murmuration',
  'studies',
)

# What each command does first; it imports nothing of ours.
START = 'run_records.first'
# Lowest first: a module may import from its own layer and those below.
LAYERS = (
  (START,),
  ('agents.losses', 'agents.parameters', 'replay', 'environment_loops'),
  ('agents',),
  ('run_records',),
  ('launch',),
  ('configs',),
  ('murmuration', 'studies'),
)
MAIN = "__name__ == '__main__'"
SCRIPTS = len(LAYERS)  # Entry points see everything, and nothing sees them.


def module_of(path):
  """agents/losses/value.py -> agents.losses.value"""
  parts = path.relative_to(ROOT).with_suffix('').parts
  return '.'.join(parts[:-1] if parts[-1] == '__init__' else parts)


def inside(module, package):
  return module == package or module.startswith(package + '.')


def is_script(tree):
  """True for a file that does something when it is run."""
  return any(
    isinstance(node, ast.If) and ast.unparse(node.test) == MAIN
    for node in tree.body
  )


TREES = {
  module_of(path): ast.parse(path.read_text(encoding='utf-8'), str(path))
  for package in PACKAGES
  for path in sorted((ROOT / package).rglob('*.py'))
  if not (path.parent.is_symlink() or path.is_symlink())
}


def layer(module):
  """Index into LAYERS, or SCRIPTS."""
  if module.split('.')[0] in ('launch', 'studies') and module.count('.') == 1:
    if module in TREES and is_script(TREES[module]):
      return SCRIPTS
  for index, packages in enumerate(LAYERS):
    if any(inside(module, package) for package in packages):
      return index
  raise AssertionError(f'{module} is in no layer')


def short(name):
  """murmuration.agents.base -> agents.base; murmuration.runs as it is."""
  below = name.removeprefix(TOP)
  return below if below.split('.')[0] in PACKAGES else name


def imported(tree, modules=TREES):
  """Yields (line, module) of every import, those in functions included."""
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      for alias in node.names:
        yield node.lineno, short(alias.name)
    elif isinstance(node, ast.ImportFrom):
      if node.level:
        yield node.lineno, '.' * node.level + (node.module or '')
        continue
      for alias in node.names:
        name = short(f'{node.module}.{alias.name}')
        yield node.lineno, name if name in modules else short(node.module)


def breaches(forbidden):
  """'module:line imports name' wherever forbidden(module, name)."""
  return [
    f'{module}:{line} imports {name}'
    for module, tree in TREES.items()
    for line, name in imported(tree)
    if forbidden(module, name)
  ]


def is_ours(name):
  return name.split('.')[0] in PACKAGES


def test_every_package_of_the_project_is_there():
  assert [p for p in PACKAGES if p not in TREES] == []
  links = [p for p in PACKAGES if (ROOT / 'murmuration' / p).is_symlink()]
  assert sorted(links) == sorted({*PACKAGES} - {'murmuration'})


def test_packages_are_imported_below_murmuration():
  # `import agents` would load a second copy, which a wheel does not have.
  assert [
    f'{path.relative_to(ROOT)}:{node.lineno}'
    for top in (*PACKAGES, 'tests', 'examples')
    for path in sorted((ROOT / top).rglob('*.py'))
    for node in ast.walk(ast.parse(path.read_text(encoding='utf-8')))
    if isinstance(node, ast.Import | ast.ImportFrom)
    for name in (
      [node.module or '']
      if isinstance(node, ast.ImportFrom)
      else [alias.name for alias in node.names]
    )
    if name.split('.')[0] in {*PACKAGES} - {'murmuration'}
  ] == []


def test_no_module_imports_from_a_layer_above_its_own():
  def upwards(module, name):
    return is_ours(name) and layer(name) > layer(module)

  assert breaches(upwards) == []


def _circle(edges):
  """A circle of names in {name: set of names}, or None."""
  done, path = set(), []

  def walk(name):
    if name in path:
      return [*path[path.index(name) :], name]
    if name in done:
      return None
    path.append(name)
    for other in sorted(edges.get(name, ())):
      found = walk(other)
      if found:
        return found
    done.add(path.pop())
    return None

  return next(filter(None, map(walk, sorted(edges))), None)


def test_no_modules_import_each_other_in_a_circle():
  # Imports in functions count: a circle that is broken up in time is one still.
  edges = {
    module: {name for _, name in imported(tree) if name in TREES} - {module}
    for module, tree in TREES.items()
  }
  assert _circle(edges) is None


def test_a_circle_is_found():
  edges = {'a': {'b', 'c'}, 'b': {'c'}, 'c': {'d'}, 'd': {'b'}}
  assert _circle(edges) == ['b', 'c', 'd', 'b']
  assert _circle({'a': {'b', 'c'}, 'b': {'c'}}) is None


def test_no_module_imports_an_entry_point():
  def script(module, name):
    return is_ours(name) and layer(name) == SCRIPTS

  assert breaches(script) == []


def test_replay_and_environment_loops_import_no_agents_and_not_each_other():
  def across(module, name):
    for package in ('replay', 'environment_loops'):
      if inside(module, package) and is_ours(name):
        return not inside(name, package) and name != START
    return False

  assert breaches(across) == []


def test_no_node_imports_the_inspector():
  def inspects(module, name):
    if inside(module, 'replay.inspect') or module == 'replay.export':
      return False
    return inside(name, 'replay.inspect')

  assert breaches(inspects) == []


@pytest.mark.parametrize('package', ['agents', 'replay', 'environment_loops'])
def test_what_is_learned_knows_nothing_of_launchpad(package):
  def distributed(module, name):
    return inside(module, package) and (
      inside(name, 'launchpad') or inside(name, 'courier')
    )

  assert breaches(distributed) == []


def test_topologies_know_no_losses_networks_or_agents():
  # agents.swarm and agents.evolution hold the rules of services, not what is
  # learned; agents.exchange how parameters move besides; agents.settings words
  # what is wrong with a number.
  allowed = (
    'agents.base',
    'agents.evolution',
    'agents.exchange',
    'agents.settings',
    'agents.swarm',
  )
  learning = ('agents', 'tensorflow', 'sonnet', 'trfl', 'jax')

  def learns(module, name):
    return (
      inside(module, 'launch.topologies')
      and any(inside(name, package) for package in learning)
      and not any(inside(name, package) for package in allowed)
    )

  assert breaches(learns) == []


def test_agents_know_nothing_of_the_swarm():
  def swarm(module, name):
    return (
      inside(module, 'agents')
      and not inside(module, 'agents.swarm')
      and inside(name, 'agents.swarm')
    )

  assert breaches(swarm) == []


def test_no_module_loads_pickles():
  # They run what they say: docs/security.md.
  loaders = ('pickle', 'cloudpickle', 'dill', 'joblib', 'shelve')
  # A helper's, over a pipe from the process that started it; and the nodes of a
  # run on Ray, which come with the code of Ray's actors.
  allowed = (
    'murmuration.helper',
    'murmuration.objects',
    'launch.engines.cluster.forkserver',
  )

  def loads(module, name):
    return name.split('.')[0] in loaders and module not in allowed

  assert breaches(loads) == []
  arrays = [
    f'{module}:{node.value.lineno}'
    for module, tree in TREES.items()
    for node in ast.walk(tree)
    if isinstance(node, ast.keyword) and node.arg == 'allow_pickle'
  ]
  assert arrays == []


def test_all_imports_are_absolute():
  assert breaches(lambda module, name: name.startswith('.')) == []


def test_no_star_is_imported():
  stars = [
    f'{module}:{node.lineno}'
    for module, tree in TREES.items()
    for node in ast.walk(tree)
    if isinstance(node, ast.ImportFrom)
    and any(alias.name == '*' for alias in node.names)
  ]
  assert stars == []


def installed_modules():
  """Top-level names that the installed packages bring."""
  names = set()
  for distribution in importlib.metadata.distributions():
    for file in distribution.files or ():
      top = file.parts[0]
      names.add(top.removesuffix('.py') if len(file.parts) == 1 else top)
  return names


def test_no_module_in_launch_hides_one_of_python_or_of_the_stack():
  # `python launch/run_swarm.py` puts launch/ first on sys.path: a
  # launch/statistics.py would be what every library gets for `statistics`.
  taken = {*sys.stdlib_module_names, *installed_modules(), *PACKAGES, 'tests'}
  own = {
    module.split('.')[1] for module in TREES if module.startswith('launch.')
  }
  hidden = sorted(own & taken)
  assert hidden == [], f'rename launch/{{{",".join(hidden)}}}'


def test_the_reader_of_imports_sees_each_form():
  tree = ast.parse(
    'import a.b as c\n'
    'from murmuration.agents import base, nothing\n'
    'def f():\n'
    '  from . import d\n'
  )
  found = list(imported(tree, modules={'agents.base'}))
  assert found == [(1, 'a.b'), (2, 'agents.base'), (2, 'agents'), (4, '.')]
