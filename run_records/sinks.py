"""Where else a run's numbers go: Weights & Biases, MLflow, a user's own.

A sink is a `Sink`, which follow.py feeds from a run's JSON lines. One of your
own is a subclass, and is named as your own agents are.

    --sink=wandb    offline, in RUN/sinks/wandb; `wandb sync` sends it. With
                    WANDB_MODE=online at once. WANDB_PROJECT, else murmuration
    --sink=mlflow   in RUN/sinks/mlflow, or at MLFLOW_TRACKING_URI.
                    MLFLOW_EXPERIMENT_NAME, else murmuration; another run of
                    MLflow for each start
    --sink=my_module:MySink
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
import os
import pathlib
from typing import Any

from murmuration.run_records import jsonable
from murmuration.run_records import names
from murmuration.run_records import packages
from murmuration.run_records import run_directory

_PROJECT = 'murmuration'
_BATCH = 100  # settings in one call of MLflow
_LONGEST = 500  # characters of a setting's value there
# A sink to what it imports, and by which name pip knows it.
_NEEDED = {
  'wandb': {'wandb': 'wandb'},
  'mlflow': {'mlflow': 'mlflow-skinny'},
}
NAMES = tuple(_NEEDED)


class Sink:
  """What takes a run's numbers. Override what you want."""

  def __init__(self, run: run_directory.RunDirectory, state: Mapping[str, Any]):
    """Begins, or goes on.

    Args:
      run: whose numbers they are.
      state: what `state` gave when the run was followed before; {} at first.
    """

  def state(self) -> dict[str, Any]:
    """What a later process needs to go on with the same record, as JSON."""
    return {}

  def row(self, kind: str, row: Mapping[str, Any]) -> None:
    """A whole row as it is in metrics/<kind>.jsonl."""

  def scalars(self, values: Mapping[str, float], step: int) -> None:
    """The row's numbers by TensorBoard's tags, at so many actor steps."""

  def close(self, finished: bool) -> None:
    """The run is over: whether it came to its end, or was broken off."""


class WandB(Sink):
  """A run of Weights & Biases."""

  def __init__(self, run: run_directory.RunDirectory, state: Mapping[str, Any]):
    import wandb

    directory = _directory(run, 'wandb')
    self._id = state.get('id') or wandb.util.generate_id()
    mode: Any = os.environ.get('WANDB_MODE', 'offline')
    self._run = wandb.init(
      project=os.environ.get('WANDB_PROJECT', _PROJECT),
      name=run.name,
      id=self._id,
      resume='allow' if state else None,
      dir=directory,
      config=jsonable.encode(run.config()),
      mode=mode,
      settings=wandb.Settings(
        silent=True, console='off', disable_git=True, save_code=False
      ),
    )
    # Rows of several nodes come with steps that fall, too.
    self._run.define_metric('*', step_metric='actor_steps')

  def state(self) -> dict[str, Any]:
    return {'id': self._id}

  def scalars(self, values: Mapping[str, float], step: int) -> None:
    self._run.log({'actor_steps': step, **values})

  def close(self, finished: bool) -> None:
    self._run.finish(exit_code=int(not finished))


class MLflow(Sink):
  """A run of MLflow."""

  def __init__(self, run: run_directory.RunDirectory, state: Mapping[str, Any]):
    import mlflow

    # Files are a store that it still has, and wants to be asked for.
    os.environ.setdefault('MLFLOW_ALLOW_FILE_STORE', 'true')
    os.environ.setdefault('MLFLOW_DISABLE_TELEMETRY', 'true')
    local = _directory(run, 'mlflow').absolute().as_uri()
    self._mlflow = mlflow
    mlflow.set_tracking_uri(os.environ.get('MLFLOW_TRACKING_URI', local))
    mlflow.set_experiment(os.environ.get('MLFLOW_EXPERIMENT_NAME', _PROJECT))
    mlflow.start_run(run_name=run.name)
    settings = [
      (name, str(value)[:_LONGEST])
      for name, value in jsonable.flat(run.config())
    ]
    for i in range(0, len(settings), _BATCH):
      mlflow.log_params(dict(settings[i : i + _BATCH]))

  def scalars(self, values: Mapping[str, float], step: int) -> None:
    self._mlflow.log_metrics({**values}, step=step)

  def close(self, finished: bool) -> None:
    self._mlflow.end_run('FINISHED' if finished else 'KILLED')


_MAKE: dict[str, Callable[..., Sink]] = {
  'wandb': WandB,
  'mlflow': MLflow,
}


def make(
  name: str, run: run_directory.RunDirectory, state: Mapping[str, Any]
) -> Sink:
  """A sink by its name."""
  return (_MAKE[name] if name in _MAKE else _own(name))(run, state)


def _own(name: str) -> type[Sink]:
  """The class that `module:Name` names.

  Raises:
    ValueError: there is none, or it is no sink.
  """
  found = names.own('sink', name, _is_sink)
  if found is None:
    names.unknown('sink', name, NAMES, f'Several with commas. {names.OWN}')
  if not _is_sink(found):
    raise ValueError(
      f'{name} is {names.kind(found)}, not a sink: it has to be a subclass of '
      'murmuration.run_records.sinks.Sink.'
    )
  return found


def _is_sink(found: Any) -> bool:
  return isinstance(found, type) and issubclass(found, Sink)


def parse(text: str) -> tuple[str, ...]:
  """'wandb,my_module:MySink' as names.

  Raises:
    ValueError: there is no such sink, or its package is not installed.
  """
  asked = tuple(dict.fromkeys(text.split(','))) if text else ()
  for name in asked:
    if name in _NEEDED:
      packages.require(f'--sink={name}', _NEEDED[name])
    else:
      _own(name)
  return asked


def _directory(run: run_directory.RunDirectory, name: str) -> pathlib.Path:
  path = run.path / 'sinks' / name
  path.mkdir(parents=True, exist_ok=True)
  return path
