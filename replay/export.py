"""Writes what a run's replay holds as a data set.

    murmuration dataset runs/NAME out/
    murmuration dataset runs/NAME/checkpoints/replay/shard_0 out/

  out/transitions.npz    arrays, of which `--topology=offline` learns
  out/NAME-v0/           the same as episodes, for Minari

Arrays, N transitions in the order of writing; docs/replay.md has more:

  o_tm1, o_t             observations, [N, *observation_shape]
  a_tm1                  actions: int32 [N], or float32 [N, *action_shape] in
                         [-1, 1]
  r_t, d_t               n-step sums of rewards, and of discounts without their
                         last gamma: 0 after a termination, float32 [N]
  priority, version      of replay; learner steps of what acted, [N]
  about                  JSON: environment, agent, n_step, gamma, layout; `also`
                         where the run was resumed with others
"""

from __future__ import annotations

import pathlib
import sys

from murmuration.run_records import first

if __name__ == '__main__':
  first.begin()

import argparse
from collections.abc import Iterator, Sequence
import contextlib
import json
import os
import re
from typing import Any, NamedTuple
import zipfile

import numpy as np

# Nothing that takes seconds to import before --help.
from murmuration.replay import isolation
from murmuration.replay import packing
from murmuration.replay import ring

FILE = 'transitions.npz'
FORMATS = ('all', 'arrays', 'minari')
FIELDS = ('o_tm1', 'a_tm1', 'r_t', 'd_t', 'o_t')
_USAGE = 2
_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command; returns its exit code: 0, or 2 with a sentence."""
  parser = argparse.ArgumentParser(
    prog='murmuration dataset',
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument('source', help='a run, or a checkpoint of its replay')
  parser.add_argument('out', type=pathlib.Path, help='directory to write')
  parser.add_argument('--format', choices=FORMATS, default='all')
  args = parser.parse_args(argv)
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')
  isolation.prepare()
  isolation.enter('auto')  # a checkpoint is read by a server in this process
  try:
    sys.path.append(os.getcwd())  # for environments of the user's own
    from murmuration.replay import checkpoints  # noqa: F401

    first.raise_interrupts()
    for line in export(args.source, args.out, args.format):
      print(line)
  except (ValueError, OSError) as e:
    print(f'error: {e}', file=sys.stderr)
    return _USAGE
  except KeyboardInterrupt:
    print('interrupted', file=sys.stderr)
    return _INTERRUPTED
  return 0


def export(source: str, out: pathlib.Path, format: str = 'all') -> list[str]:
  """Writes data sets.

  Args:
    source: directory of a run or of a checkpoint.
    out: directory to write.
    format: of `FORMATS`.

  Returns:
    What was written, a line for each.

  Raises:
    ValueError: there is no replay of transitions, or not what Minari needs.
    FileExistsError: a data set is there.
  """
  found, about = read(source)
  wanted = FORMATS[1:] if format == 'all' else (format,)
  lines = []
  if out.exists() and not out.is_dir():
    raise FileExistsError(f'{out} is a file: a data set needs a directory.')
  out.mkdir(parents=True, exist_ok=True)
  path = out / FILE
  if 'arrays' in wanted and path.exists():
    raise FileExistsError(f'{path} is there already. Give another directory.')
  part = out / f'part.{FILE}'
  try:
    if 'arrays' in wanted:
      arrays = {name: values for name, values in found.items() if len(values)}
      np.savez(part, about=np.array(json.dumps(about)), **arrays)
    # It may be refused: then arrays can still go to the same place.
    if 'minari' in wanted:
      lines.append(_minari(found, about, out))
    # Of what is interrupted before, nothing is in the way of the next.
    if 'arrays' in wanted:
      os.replace(part, path)
      lines.insert(0, f'{path}: {len(found["r_t"]):,} transitions')
      if 'also' in about:
        lines.append(f'note: {_also(about)}')
  finally:
    part.unlink(missing_ok=True)
  return lines


def read(source: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
  """The transitions of all shards, and where they are from.

  Raises:
    ValueError: there is no checkpoint of replay, or not of transitions.
  """
  kept = pathlib.Path(source) / 'checkpoints'
  # Those without the name of a node are of an older version, and left behind by
  # a run that went on.
  rings = sorted(kept.glob('ring-*-*.npz')) or sorted(kept.glob('ring-*.npz'))
  layout, rows, priorities = _of_rings(rings) if rings else _of_tables(source)
  if not len(priorities):
    raise ValueError(f'The replay of {source} is empty.')
  found = layout.unpack(rows.reshape(-1, layout.width))._asdict()
  found['priority'] = np.repeat(
    priorities, len(found['r_t']) // len(priorities)
  )
  there = found.pop('weight') > 0
  del found['written_at']
  if not there.all():
    found = {name: values[there] for name, values in found.items()}
  return found, {**_config(pathlib.Path(source)), 'layout': layout.name}


# Of N items: their layout, the items [N, ..., W], and priorities [N].
_Items = tuple[packing.TransitionLayout, np.ndarray, np.ndarray]


def _of_rings(paths: Sequence[pathlib.Path]) -> _Items:
  """Replay that was in the memory of workers."""
  import tensorflow as tf

  rows, priorities, layout = [], [], None
  for path in paths:
    with np.load(path) as saved:
      order = ring.in_order(saved)
      rows.append(saved['rows'][order])
      priorities.append(saved['priorities'][order].astype(np.float32))
      name = str(saved['layout']) if 'layout' in saved.files else ''
    spec = tf.TensorSpec(rows[-1].shape[1:], rows[-1].dtype, name)
    layout = packing.from_signature(spec)
    if layout is None:
      raise ValueError(
        f'{path} does not say what its items hold: an older version wrote it.'
      )
  assert layout is not None
  return layout, np.concatenate(rows), np.concatenate(priorities)


def _of_tables(source: str) -> _Items:
  """Replay that was in tables of Reverb."""
  from murmuration.replay import checkpoints
  from murmuration.replay.inspect import target as inspect_target

  directories = inspect_target.find(source).saved().values()
  if not directories:
    raise ValueError(
      f'{source} has no checkpoint of replay yet: a run writes one every '
      'run.replay_checkpoint_s seconds, and at its end.'
    )
  tables = [table for path in directories for table in _tables(path)]
  layout, item_shape = tables[0].layout, tables[0].item_shape
  count = sum(len(table.places) for table in tables)
  # Filled in turn: replay is large, and a second copy may not fit.
  rows, first_row = np.empty((count, *item_shape), layout.dtype), 0
  for table in tables:
    if table.places:
      for key, columns in checkpoints.read_data(
        table.path, table.name, table.places
      ):
        rows[first_row + table.places[key]] = columns[0]
    first_row += len(table.places)
  return layout, rows, np.concatenate([table.priorities for table in tables])


class _Table(NamedTuple):
  """A saved table: where each item goes, by its key, and the priorities."""

  path: pathlib.Path
  name: str
  layout: packing.TransitionLayout
  item_shape: tuple[int, ...]
  places: dict[int, int]
  priorities: np.ndarray


def _tables(directory: pathlib.Path) -> Iterator[_Table]:
  from murmuration.replay import checkpoints
  from murmuration.replay.inspect import read as reading

  shard = reading.read_checkpoint(directory)
  if shard.error:
    raise ValueError(shard.error)
  path = pathlib.Path(shard.source)
  for table in shard.tables:
    specs = [spec for _, spec in reading.leaves(table.signature)]
    layout = packing.from_signature(specs[0]) if len(specs) == 1 else None
    if layout is None:
      raise ValueError(
        f'Table {table.name!r} of {path} holds no transitions: agents that '
        'learn from unrolls keep blocks in a queue. Export the run of an agent '
        'with replay, such as dqn or d4pg.'
      )
    places: dict[int, int] = {}
    priorities = np.empty(table.size, np.float32)
    for item in checkpoints.read_items(path):
      if item.table == table.name:
        priorities[len(places)] = item.priority
        places[item.key] = len(places)
    yield _Table(
      path, table.name, layout, tuple(specs[0].shape), places, priorities
    )


def _config(path: pathlib.Path) -> dict[str, Any]:
  """Of the run that a directory is in: what says how to read its replay."""
  for directory in (path.resolve(), *path.resolve().parents):
    file = directory / 'config.json'
    if file.exists():
      # Those before are kept as config.1.json and so on.
      configs = [
        json.loads(one.read_text(encoding='utf-8'))
        for one in (file, *sorted(directory.glob('config.*.json')))
      ]
      made, *before = map(_sums, configs)
      also = [sums for sums in before if _alike(sums) != _alike(made)]
      return {
        'environment': configs[0].get('environment'),
        'agent': configs[0].get('agent_name'),
        **made,
        **({'also': also} if also else {}),
      }
  return {}


def _sums(config: dict[str, Any]) -> dict[str, Any]:
  """How transitions of a run are made of rewards."""
  agent = config.get('agent', {})
  return {
    'n_step': agent.get('n_step', 1),
    'gamma': agent.get('gamma'),
    'reward_clip': agent.get('reward_clip'),
  }


def _alike(sums: dict[str, Any]) -> dict[str, Any]:
  # A sum of one reward has no gamma.
  return {**sums, 'gamma': sums['gamma'] if sums['n_step'] > 1 else None}


def about(path: pathlib.Path) -> dict[str, Any]:
  """What a data set says of itself; as `load`, without reading the arrays."""
  with _opened(path) as file:
    return json.loads(str(file['about']))


def load(path: pathlib.Path) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
  """What `export` wrote as arrays, packed as replay has it.

  Args:
    path: of the file, or its directory.

  Returns:
    Packed transitions [N, W], their priorities [N] (1 where none are kept),
    and what is said about them.

  Raises:
    ValueError: it is no such file.
  """
  with _opened(path) as file:
    said = json.loads(str(file['about']))
    fields = {name: file[name] for name in FIELDS}
    count = len(fields['r_t'])
    version = file['version'] if 'version' in file.files else 0.0
    priorities = file['priority'] if 'priority' in file.files else None
  layout = packing.TransitionLayout(
    fields['o_tm1'].shape[1:],
    fields['a_tm1'].shape[1:],
    fields['a_tm1'].dtype.kind == 'i',
    'uint8' if fields['o_tm1'].dtype == np.uint8 else 'float32',
  )
  rows = layout.pack(**fields, version=version)
  if priorities is None:
    priorities = np.ones(count, np.float32)
  return rows, priorities, said


@contextlib.contextmanager
def _opened(path: pathlib.Path) -> Iterator[Any]:
  path = path / FILE if path.is_dir() else path
  try:
    found = np.load(path)
    if not isinstance(found, np.lib.npyio.NpzFile):
      raise ValueError('it is a single array')
    with found as file:
      yield file
  except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile) as e:
    raise ValueError(
      f'{path} is no data set of transitions ({e}). `murmuration dataset '
      'RUN OUT` writes one.'
    ) from e


def _also(about: dict[str, Any]) -> str:
  return (
    'the run went on with other settings than it began with, and replay may '
    f'still hold transitions of {json.dumps(about["also"])}'
  )


def _minari(found: dict, about: dict[str, Any], out: pathlib.Path) -> str:
  from murmuration.replay import episodes
  from murmuration.replay import minari

  if not about.get('environment') or about.get('gamma') is None:
    raise ValueError(
      'Minari keeps episodes, and to find them takes the n_step and gamma of '
      "the run's config.json, which is not above this checkpoint. Export the "
      'run, or only arrays: --format=arrays.'
    )
  if 'also' in about:
    raise ValueError(
      f'{_also(about)}, and episodes are found in transitions of one kind. '
      'Export only arrays: --format=arrays.'
    )
  n, gamma = int(about['n_step']), about['gamma']
  if n > 1 and np.float32(gamma ** (n - 1)) == 0:
    raise ValueError(
      f'with agent.gamma={gamma} and agent.n_step={n}, the discount of a full '
      'window is 0, as at the end of an episode, so that episodes cannot be '
      'told apart. Export only arrays: --format=arrays.'
    )
  agent = re.sub(r'\W', '_', str(about['agent']))
  # 'CartPole-v1' is a task 'cartpole', 'my_tasks:Point' one 'my_tasks_point'.
  task = re.sub(r'\W', '_', re.sub(r'-v\d+$', '', about['environment']))
  name = f'{agent}_{task}-v0'.lower()
  fields = {k: v for k, v in found.items() if k != 'priority'}
  count, steps = minari.write(
    out,
    name,
    about['environment'],
    episodes.episodes(packing.Transition(**fields), n, gamma),
    {'algorithm_name': str(about['agent'])},
  )
  total = len(found['r_t'])
  rest = ''
  if steps < total:
    rest = ' (the rest is of episodes that had not ended)'
  return (
    f'{out / name}: {count:,} episodes, {steps:,} of {total:,} steps{rest}. '
    f"MINARI_DATASETS_PATH={out} and minari.load_dataset('{name}') read it."
  )


if __name__ == '__main__':
  sys.exit(main())
