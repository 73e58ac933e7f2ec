"""A small cell of evolution strategies."""

from murmuration.launch import cell as cell_lib

SMALL = {
  'agent.hidden_sizes': '(8,)',
  'evolution.population': '8',
  'evolution.pairs_per_task': '2',
  'evolution.envs_per_worker': '3',
  'evolution.table_size': '50_000',
  'run.target_return': 'None',
}


def make(run_dir=None, preset='', **numbers):
  found = cell_lib.resolve(
    'es_mlp', preset, overrides={**SMALL, **numbers}, seed=7
  )
  experiment = found.experiment
  if run_dir is not None:
    experiment = found.experiment.__class__(
      **{**vars(experiment), 'run_dir': str(run_dir)}
    )
  return experiment, found.sections['evolution']
