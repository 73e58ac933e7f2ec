"""D4PG and DDPG beside their peers: environment steps and updates per second.

Hopper-v5, policy and critic 256 x 256, batch 256, in turns on one machine:
- D4PG, 51 atoms, n = 5, 32 samples per insert: ours as a user starts it (two
  actors, learner with replay, evaluator, counter) and dm-acme's.
- D4PG without a limiter, with 32 environments in each of the two actors.
  dm-acme's agent has no limiter that could be taken away: acting and learning
  take turns in one process. It is measured again at the samples per insert that
  ours came to.
- DDPG, one process, an update for each environment step: ours,
  Stable-Baselines3's, and SBX's, which is compiled JAX. The first two do their
  arithmetic with one thread, SBX with as many as XLA takes.
Rates are those of a window after the first update. Then our learners' calls
alone, on synthetic batches: how much of a run is the arithmetic of learning.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence
import contextlib
import os
import statistics
import sys
import time
from typing import Any

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')
import numpy as np
import psutil

from murmuration.agents import d4pg
from murmuration.agents import ddpg
from murmuration.agents import feeds
from murmuration.agents import learner as learner_lib
from murmuration.agents.exchange import local as local_exchange
from murmuration.configs import d4pg as d4pg_presets
from murmuration.configs import ddpg as ddpg_presets
from murmuration.environment_loops import environments
from murmuration.launch import experiment
from murmuration.replay import packing
from tests.benchmarks import common
from tests.benchmarks.peers import run as peers

_TASK, _PRESET = 'Hopper-v5', 'hopper'
_BATCH, _RATIO = 256, 32
_SETTLE_S = 3.0
_READY_LIMIT_S = 240.0
_SHOWN_CORES = 0.02  # nodes below are not worth a row
# What the peers have, said for ours too where a preset differs.
_AGENT: dict[str, Any] = {
  'policy_sizes': (256, 256),
  'critic_sizes': (256, 256),
  'batch_size': _BATCH,
  'min_replay_size': 1_000,
}
_COMMON = (
  *(f'--config.agent.{name}={value}' for name, value in _AGENT.items()),
  *common.NO_END,
  common.NO_TARGET,
)
_D4PG = (
  f'd4pg:{_PRESET}',
  *_COMMON,
  '--config.agent.n_step=5',
  '--config.agent.num_atoms=51',
)
_PACED = (*_D4PG, f'--config.pace.samples_per_insert={_RATIO}')
_FREE = (
  *_D4PG,
  '--config.pace.samples_per_insert=None',
  '--config.actors.envs_per_actor=32',
  '--config.actors.update_period=512',
)
_DDPG = (
  f'ddpg:{_PRESET}',
  '--topology=single_process',
  *_COMMON,
  f'--config.pace.samples_per_insert={_BATCH}',
)
_OURS, _ACME = 'Murmuration D4PG', 'dm-acme D4PG'
_OURS_FREE = 'Murmuration D4PG, free-running'
_ACME_FREE = 'dm-acme D4PG, same samples per insert'
_OURS_DDPG, _SB3 = 'Murmuration DDPG', 'Stable-Baselines3 DDPG'
_SBX = 'SBX DDPG'
Numbers = dict[str, Any]


def measure(
  flags: Sequence[str], learner: str, actor: str, window_s: float
) -> Numbers:
  """Rates of one of our runs, and what its nodes used of the processor.

  Args:
    flags: of the run.
    learner: kind of node that counts updates.
    actor: kind of node that counts environment steps.
    window_s: seconds of the window.
  """
  kinds = {'own_learner_steps': learner, 'own_actor_steps': actor}
  with common.swarm_run(*flags, script='run.py') as run:
    run.wait_for('first update', run.learning, _READY_LIMIT_S)
    time.sleep(_SETTLE_S)
    before, began = _cpu_s(run), time.monotonic()
    found = common.window_rates(run, kinds, 0.0, window_s)
    after, took = _cpu_s(run), time.monotonic() - began
    first = run.learning()[0]['unix_time_s'] - run.started_at
  nodes = {
    name: (spent - before.get(name, 0.0)) / took
    for name, spent in after.items()
  }
  steps, updates = found['own_actor_steps'], found['own_learner_steps']
  return {
    'env_steps_per_s': steps,
    'updates_per_s': updates,
    'samples_per_insert': updates * _BATCH / steps,
    'cores': sum(nodes.values()),
    'cores_of_nodes': nodes,
    'first_update_s': first,
  }


def _cpu_s(run: common.Run) -> dict[str, float]:
  """CPU seconds so far of each of a run's processes, by name."""
  found: collections.Counter[str] = collections.Counter()
  for process in run.processes():
    with contextlib.suppress(psutil.Error):
      times = process.cpu_times()
      found[process.name()] += times.user + times.system
  return dict(found)


def measure_peer(peer: str, **options: Any) -> Numbers | None:
  """Rates of a peer; None if its optional environment is not there."""
  found = peers.measure(peer, **options)
  if found is not None:
    found['cores'] = found['cpu_s'] / found['seconds']
  return found


def learner_call(agent: Any, seconds: float) -> dict[str, float]:
  """The learner's call alone, on synthetic batches.

  Returns:
    'updates_per_s', and 'cpu_s' of one update.
  """
  spec, updates = agent.spec, experiment.RunConfig().updates_per_call
  layout = packing.TransitionLayout(
    spec.observation_shape, spec.action_shape, spec.discrete
  )
  rng, items = np.random.default_rng(0), updates * agent.batch_size
  shape = (items, *spec.observation_shape)
  packed = layout.pack(
    rng.standard_normal(shape),
    rng.uniform(-1.0, 1.0, (items, *spec.action_shape)),
    rng.standard_normal(items),
    np.ones(items),
    rng.standard_normal(shape),
  )
  learner = learner_lib.TFLearner(
    agent,
    agent.initial(0)[None],
    [agent.learning_rate],
    local_exchange.Local(),
    feeds.Transitions(layout, agent.batch_size),
    updates_per_call=updates,
  )
  cost = common.timed(lambda: learner.step(packed), seconds)
  return {
    'updates_per_s': 1e6 * updates / cost['wall_us'],
    'cpu_s': 1e-6 * cost['cpu_us'] / updates,
  }


def learner_calls(seconds: float) -> Numbers:
  """`learner_call` of both agents, with the threads of a run."""
  import tensorflow as tf  # pylint: disable=g-import-not-at-top

  threads = experiment.RunConfig().tf_threads
  tf.config.threading.set_intra_op_parallelism_threads(threads)
  tf.config.threading.set_inter_op_parallelism_threads(1)
  spec = environments.spec(_TASK)
  of_d4pg = {**d4pg_presets.PRESETS[_PRESET]['agent'], **_AGENT}
  of_ddpg = {**ddpg_presets.PRESETS[_PRESET]['agent'], **_AGENT}
  return {
    _OURS: learner_call(d4pg.D4PG(d4pg.Config(**of_d4pg), spec), seconds),
    _OURS_DDPG: learner_call(ddpg.DDPG(ddpg.Config(**of_ddpg), spec), seconds),
  }


def repetition(window_s: float) -> Iterator[tuple[str, Numbers | None]]:
  """Each system once."""
  actors = ('node_learner', 'node_actor', window_s)
  acme = {'task': _TASK, 'batch_size': _BATCH, 'seconds': window_s}
  yield _OURS, measure(_PACED, *actors)
  yield (
    _ACME,
    measure_peer('acme_d4pg', samples_per_insert=_RATIO, **acme),
  )
  free = measure(_FREE, *actors)
  yield _OURS_FREE, free
  ratio = f'{free["samples_per_insert"]:.3f}'
  yield (
    _ACME_FREE,
    measure_peer('acme_d4pg', samples_per_insert=ratio, **acme),
  )
  one = ('node_worker', 'node_worker', window_s)
  yield _OURS_DDPG, measure(_DDPG, *one)
  yield (
    _SB3,
    measure_peer('sb3', algorithm='ddpg', task=_TASK, seconds=window_s),
  )
  yield _SBX, measure_peer('sbx', task=_TASK, seconds=window_s)


def main() -> int:
  args = common.arguments(__doc__)
  repetitions = common.choose(args, 1, 2, 3)
  window_s = common.choose(args, 6.0, 15.0, 20.0)
  common.warn_if_busy()
  found: dict[str, list[Numbers]] = {}
  for _ in range(repetitions):
    for name, numbers in repetition(window_s):
      if numbers is not None:
        found.setdefault(name, []).append(numbers)
        print(
          f'{name}: {numbers["env_steps_per_s"]:,.0f} steps/s, '
          f'{numbers["updates_per_s"]:,.1f} updates/s',
          flush=True,
        )
  # Last: TensorFlow's threads would stand beside the runs.
  alone = learner_calls(common.choose(args, 1.0, 5.0, 10.0))
  common.publish(_result(found, alone, window_s), args)
  return 0


def _row(name: str, runs: list[Numbers]) -> tuple[str, ...]:
  def shown(key: str, form: str) -> str:
    return ' '.join(format(run[key], form) for run in runs)

  first = statistics.median(run['first_update_s'] for run in runs)
  return (
    name,
    shown('env_steps_per_s', ',.0f'),
    shown('updates_per_s', ',.1f'),
    shown('samples_per_insert', ',.1f'),
    shown('cores', '.2f'),
    f'{first:.1f}',
  )


def _node_rows(found: dict[str, list[Numbers]]) -> list[tuple[str, ...]]:
  """What each process of our runs used."""
  rows: list[tuple[str, ...]] = []
  for name, runs in found.items():
    nodes: dict[str, list[float]] = collections.defaultdict(list)
    for run in runs:
      for node, cores in run.get('cores_of_nodes', {}).items():
        nodes[node].append(cores)
    rows += [
      (name, node, f'{statistics.median(cores):.2f}')
      for node, cores in sorted(nodes.items())
      if statistics.median(cores) >= _SHOWN_CORES
    ]
  return rows


def _compared(
  found: dict[str, list[Numbers]], ours: str, peer: str, key: str, needed: str
) -> list[str]:
  """A sentence with the ratio of each repetition; none without the peer."""
  if peer not in found:
    return []
  ratios = [
    mine[key] / theirs[key]
    for mine, theirs in zip(found[ours], found[peer], strict=True)
  ]
  what = {'env_steps_per_s': 'environment steps', 'updates_per_s': 'updates'}
  return [
    f'{ours}: {", ".join(f"{r:.2f}" for r in ratios)} times the {what[key]} of '
    f'{peer}{needed}.'
  ]


def _result(
  found: dict[str, list[Numbers]], alone: Numbers, window_s: float
) -> common.Result:
  steps, updates = 'env_steps_per_s', 'updates_per_s'
  notes = [
    *_compared(found, _OURS, _ACME, steps, '; needed 2.5'),
    *_compared(found, _OURS, _ACME, updates, '; needed 2.5'),
    *_compared(
      found, _OURS_FREE, _ACME, steps, f' at {_RATIO} per insert; needed 10'
    ),
    *_compared(found, _OURS_FREE, _ACME_FREE, steps, ''),
    *_compared(found, _OURS_DDPG, _SB3, updates, '; needed 1.2'),
    *_compared(found, _OURS_DDPG, _SBX, updates, ''),
  ]
  for name in (_OURS, _OURS_FREE, _OURS_DDPG):
    call = alone[_OURS_DDPG if name == _OURS_DDPG else _OURS]
    made, cores = (
      statistics.median(run[key] for run in found[name])
      for key in (updates, 'cores')
    )
    notes.append(
      f'{name}: {made:,.1f} updates/s, where learner calls alone make '
      f'{call[updates]:,.1f} ({100 * made / call[updates]:.0f} %; at 100 % '
      'nothing but the arithmetic of learning binds). They are '
      f'{made * call["cpu_s"]:.2f} of the {cores:.2f} cores in use; the rest '
      'is acting, replay and other nodes.'
    )
  notes += [
    f'Window: {window_s:g} s, from {_SETTLE_S:g} s after the first update.',
    'Cores: CPU time of all processes of a system in the window, per second. '
    "dm-acme and SBX have TensorFlow's and XLA's own choice of threads, as "
    'they come; ours and SB3 have one for arithmetic, ours others for replay.',
  ]
  return common.Result(
    f'D4PG and DDPG beside their peers, {_TASK}, 256 x 256, batch {_BATCH}',
    [
      common.table(
        (
          'system',
          'env steps/s',
          'updates/s',
          'samples per insert',
          'cores',
          'first update, s',
        ),
        [_row(name, runs) for name, runs in found.items()],
      ),
      common.table(('system', 'process', 'cores'), _node_rows(found)),
    ],
    notes,
    {'runs': found, 'learner_calls': alone},
  )


if __name__ == '__main__':
  sys.exit(main())
