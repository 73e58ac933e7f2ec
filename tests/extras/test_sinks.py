"""Weights & Biases and MLflow as a run's sinks, read back by their own code."""

import os
import subprocess
import sys

import mlflow
import pytest
from wandb.proto import wandb_internal_pb2
from wandb.sdk.internal import datastore

from murmuration.launch import session
from murmuration.replay import isolation
from murmuration.run_records import run_directory


@pytest.fixture(scope='module')
def run(tmp_path_factory):
  """A run in a private network where there are such, and its continuation."""
  path = tmp_path_factory.mktemp('sinks') / 'run'
  private = 'private network for' in isolation.found()
  base = [sys.executable, session.root() / 'launch' / 'run.py']
  base += ['--sink=wandb,mlflow', '--config.run.evaluations=3']
  base += ['--isolate=required'] if private else []
  for flags in (
    ['dqn:cartpole', f'--run_dir={path}', '--config.run.steps_per_agent=1500'],
    [f'--resume={path}', '--config.run.steps_per_agent=2500'],
  ):
    done = subprocess.run(
      [*base, *flags, '--config.run.target_return=None'],
      capture_output=True,
      text=True,
      timeout=200,
      env={k: v for k, v in os.environ.items() if not k.startswith('WANDB')},
    )
    log = path / 'sinks' / 'log.txt'
    said = log.read_text() if log.exists() else 'no log'
    assert done.returncode == 0, done.stdout + done.stderr + said
    assert 'warning' not in done.stderr, done.stderr + said
  return run_directory.open(path)


def _evaluations(run):
  return sorted(
    (row['actor_steps'], row['return_mean'])
    for row in run.metrics('evaluation')
  )


def test_weights_and_biases_has_every_evaluation_once(run):
  found, names, settings = [], set(), {}
  for path in sorted(run.path.glob('sinks/wandb/wandb/offline-run-*/*.wandb')):
    store = datastore.DataStore()
    store.open_for_scan(str(path))
    while (data := store.scan_data()) is not None:
      record = wandb_internal_pb2.Record()
      record.ParseFromString(data)
      if record.WhichOneof('record_type') == 'run':
        names.add((record.run.run_id, record.run.display_name))
        settings |= {i.key: i.value_json for i in record.run.config.update}
      if record.WhichOneof('record_type') == 'history':
        row = {
          i.key or '/'.join(i.nested_key): i.value_json
          for i in record.history.item
        }
        if 'evaluation/return_mean' in row:
          steps = int(row['actor_steps'])
          found.append((steps, float(row['evaluation/return_mean'])))
  assert sorted(found) == _evaluations(run)
  # Both processes wrote to one run, of the run's name.
  assert {name for _, name in names} == {run.name} and len(names) == 1
  assert 'learning_rate' in settings['agent']


def test_mlflow_has_every_evaluation_once_and_the_settings(run, monkeypatch):
  monkeypatch.setenv('MLFLOW_ALLOW_FILE_STORE', 'true')
  store = (run.path / 'sinks' / 'mlflow').as_uri()
  client = mlflow.MlflowClient(store)
  (experiment,) = (
    e for e in client.search_experiments() if e.name == 'murmuration'
  )
  kept = client.search_runs([experiment.experiment_id])
  assert len(kept) == 2  # a run and its continuation
  found = [
    (metric.step, metric.value)
    for one in kept
    for metric in client.get_metric_history(
      one.info.run_id, 'evaluation/return_mean'
    )
  ]
  assert sorted(found) == _evaluations(run)
  rate = run.config()['agent']['learning_rate']
  for one in kept:
    assert one.info.status == 'FINISHED' and one.info.run_name == run.name
    assert one.data.params['agent.learning_rate'] == str(rate)
