"""Runs as a caller has them: train, evaluate, play, keep, go on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import contextlib
import os
import pathlib
from typing import Any, NamedTuple

from murmuration import arguments
from murmuration import objects
from murmuration import policy as policy_lib
from murmuration import process
from murmuration import progress as progress_lib
from murmuration import stored

Path = str | os.PathLike[str]
# Called with the run, and with what has come: see `train`.
Callback = Callable[['Run', dict[str, Any]], Any]

_POLL_S = 0.1
# Exit codes of a run. As in run_records/commands.py, which is not imported: in
# the caller's process a name like `run_records` may be the caller's own.
_USAGE = 2
_BROKEN_OFF = (130, 143)
# What a run prints, and its caller is shown.
_SAID = ('note: ', 'warning: ')


class _Stop:
  def __repr__(self) -> str:
    return 'murmuration.STOP'


STOP = _Stop()  # what a callback returns to end its run


class Evaluation(NamedTuple):
  """Episodes of a greedy policy.

  Attributes:
    mean: of the returns, undiscounted, in the environment's units of reward.
    std: their standard deviation.
    returns: of each episode.
    broken: episodes that broke, and that others were played for.
  """

  mean: float
  std: float
  returns: Any  # np.ndarray, float64 [episodes]
  broken: int = 0


class Run:
  """A run and its directory. Made by `train` and `load`.

  Attributes:
    path: its directory: config, metrics, checkpoints, logs.
    stopped: whether it was broken off, by `stop`, a callback or Ctrl-C.
  """

  def __init__(self, path: Path, given: objects.Objects):
    self.path = pathlib.Path(path)
    self.stopped = False
    self._given = given
    self._to_stop = False
    self._helper: process.Helper | None = None
    self._policy: policy_lib.Policy | None = None
    self._callbacks: dict[str, Any] = {}
    self._stopping: set[str] = set()  # callbacks that have returned STOP
    self._told: set[str] = set()  # and other things, which was said once

  def __repr__(self) -> str:
    return f'murmuration.Run({os.fspath(self.path)!r})'

  def evaluate(self, episodes: int = 20, seed: int = 0) -> Evaluation:
    """Plays whole episodes with the best parameters that were kept.

    Args:
      episodes: how many, side by side.
      seed: of the episodes.

    Raises:
      ValueError: the run keeps no parameters yet, or a number is none.
      RuntimeError: the environment breaks.
    """
    return Evaluation(
      *self._call(
        'evaluate',
        episodes=arguments.whole('episodes', episodes),
        seed=arguments.whole('seed', seed, 0),
      )
    )

  @property
  def policy(self) -> policy_lib.Policy:
    """The greedy policy of the best parameters that were kept."""
    if self._policy is None:
      self._policy = policy_lib.Policy(self._given, self.path.absolute())
    return self._policy

  def config(self) -> dict[str, Any]:
    """All settings, section by section."""
    return self._call('config')

  def summary(self) -> dict[str, Any] | None:
    """Why it ended, totals and result; None if it was killed."""
    return self._call('summary')

  def metrics(self, kind: str = 'evaluation') -> list[dict[str, Any]]:
    """Rows that were logged: a table, as pandas.DataFrame takes it.

    Args:
      kind: 'evaluation', or another of those that the run has, such as
        'node_learner'.

    Raises:
      ValueError: it has no such rows; names those that it has.
    """
    return self._call('metrics', kind=kind)

  def plot(self, path: Path | None = None) -> pathlib.Path:
    """Draws the learning curve.

    Args:
      path: of the PNG; learning_curve.png in the run's directory if None.

    Returns:
      Where it is.

    Raises:
      ValueError: nothing was evaluated yet.
    """
    return self._call('plot', to=arguments.absolute(path))

  def film(self, path: Path, seed: int = 0, steps: int = 1500) -> pathlib.Path:
    """Films one episode.

    Args:
      path: of the film, .gif or .mp4.
      seed: of the episode.
      steps: environment steps at most.
    """
    return self._call(
      'film',
      to=arguments.absolute(path),
      seed=arguments.whole('seed', seed, 0),
      steps=arguments.whole('steps', steps),
    )

  def export(self, path: Path, format: str = 'numpy') -> pathlib.Path:
    """Writes the policy for use without this project: see export.py.

    Args:
      path: of the file (.py, or .npz without code; .onnx), or of SavedModel's
        directory.
      format: 'numpy', 'savedmodel' or 'onnx'.
    """
    return self._call('export', to=arguments.absolute(path), format=format)

  def save(self, path: Path, overwrite: bool = False) -> pathlib.Path:
    """Copies the run, so that `load(path)` has all of it.

    Args:
      path: of the copy.
      overwrite: whether another run that is there makes room.

    Raises:
      ValueError: `path` is inside the run, or the run inside `path`.
      FileExistsError: there is something at `path`.
    """
    return stored.copy(self.path, pathlib.Path(path), overwrite)

  def stop(self) -> None:
    """Ends a run that is training, from a callback or another thread."""
    self._to_stop = True  # where there is no helper yet, `_train` looks
    helper = self._helper  # None as soon as the run has ended
    if helper is not None:
      helper.stop()

  def resume(
    self,
    steps: int | None = None,
    *,
    engine: str | None = None,
    progress: bool | None = None,
    sinks: str = '',
    ray_address: str = '',
    cluster: str | Sequence[str] = (),
    on_tick: Callback | None = None,
    on_evaluation: Callback | None = None,
    on_end: Callback | None = None,
    **config: Any,
  ) -> Run:
    """Goes on training in the same directory.

    Args:
      steps: environment steps of each agent beside those that were made; None:
        what is left of the budget.
      engine: as for `train`; None: the one that the run was on.
      progress: as for `train`.
      sinks: as for `train`.
      ray_address: as for `train`; '': that of the run, if it was on Ray.
      cluster: likewise.
      on_tick: as for `train`; None: the one that this run has, if any.
      on_evaluation: likewise.
      on_end: likewise.
      **config: settings that change.

    Returns:
      This run.
    """
    callbacks = {
      'on_tick': on_tick,
      'on_evaluation': on_evaluation,
      'on_end': on_end,
    }
    arguments.check_callbacks(callbacks)
    self._callbacks |= {k: v for k, v in callbacks.items() if v is not None}
    self._train(
      progress,
      engine=engine,
      resume=True,
      steps=arguments.whole_or_none('steps', steps),
      sinks=sinks,
      ray_address=ray_address,
      cluster=cluster,
      settings=arguments.as_text(config),
    )
    return self

  def _train(self, progress: bool | None, **words: Any) -> None:
    """Trains to the end, in a helper process of its own."""
    self.stopped = self._to_stop = False
    self._stopping.clear()
    process.trained += self._given.own
    bar = progress_lib.Bar(progress)
    self._helper = helper = process.Helper(self._given, trains=True)
    message: tuple[str, Any] | None = None
    begun = False
    try:
      if self._to_stop:
        helper.stop()
      helper.begin('train', path=self.path, **words)
      while True:
        message = helper.receive(_POLL_S)
        _show(helper, bar)
        if message is None:
          continue
        if message[0] in ('done', 'error'):
          break
        begun |= message[0] == 'path'
        self._take(*message, bar)
      code, summary = helper.result(message)
    finally:
      broken_off = message is None or message[0] not in ('done', 'error')
      if broken_off:
        # An exception, Ctrl-C also: the run is to save and to end.
        self.stop()
        helper.drain()
      _show(helper, bar)
      output = helper.close()
      self._helper = None
      self._policy = None  # of parameters that a callback saw
      bar.close()
      if broken_off and begun and (self.path / 'config.json').is_file():
        # Who called `train` has no run now.
        path = os.fspath(self.path)
        own = objects.kinds(stored.config(self.path)).items()
        things = ''.join(f', {kind}={name}' for name, kind in own)
        bar.say(f'interrupted: kept in {path}; mm.load({path!r}{things})')
    if code == _USAGE:
      why = f'\n{output}'.rpartition('\nerror: ')[2]
      raise ValueError(arguments.in_python(why.strip()))
    if code and code not in _BROKEN_OFF:
      raise RuntimeError(
        f'The run failed; {self.path / "logs"} has what its nodes said.\n'
        f'{output}'
      )
    self.stopped = code in _BROKEN_OFF
    self._called('on_end', {'stopped': self.stopped, **(summary or {})}, bar)

  def _take(self, kind: str, content: Any, bar: progress_lib.Bar) -> None:
    """What a helper says while it trains."""
    if kind == 'path':
      self.path = content
      return
    if kind == 'evaluation':
      self._policy = None  # it may have left better parameters
    bar.show(kind, content)
    self._called(f'on_{kind}', content, bar)

  def _called(
    self, name: str, content: dict[str, Any], bar: progress_lib.Bar
  ) -> None:
    callback = self._callbacks.get(name)
    # While it saves and ends, a run tells of what it did before.
    if callback is None or name in self._stopping:
      return
    answer = callback(self, content)
    if answer is STOP:
      self._stopping.add(name)
      self.stop()  # nothing where the run is over
    elif answer is not None and name not in self._told:
      self._told.add(name)
      bar.say(
        f'warning: {name} returned {answer!r:.60}, which does nothing: '
        f'{STOP} ends the run, None lets it go on.'
      )

  def _call(self, operation: str, **words: Any) -> Any:
    while True:
      with contextlib.suppress(process.MadeRoom):
        return process.service(self._given).call(
          operation, path=self.path.absolute(), **words
        )


def train(
  agent: Any,
  environment: Any = None,
  steps: int | None = None,
  *,
  topology: Any = None,
  engine: str = 'local_mp',
  seed: int = 0,
  run_dir: Path | None = None,
  progress: bool | None = None,
  sinks: str = '',
  ray_address: str = '',
  cluster: str | Sequence[str] = (),
  on_tick: Callback | None = None,
  on_evaluation: Callback | None = None,
  on_end: Callback | None = None,
  **config: Any,
) -> Run:
  """Trains an agent on an environment, to the end of its budget or its target.

  The program runs in a process of its own, as `murmuration run` does: whatever
  this one has started, and as often as it is called.

  Args:
    agent: a name, with a preset or without ('ppo', 'ppo:pendulum'), or
      'module:Name', or a `murmuration.launch.registry.Agent`, or a subclass of
      `murmuration.agents.base.Agent` that says of which class its config is, by
      `config: Config` in its body or at the parameter of its `__init__`.
    environment: a gymnasium id, 'module:Name', or a class or function that
      makes a gymnasium environment. None: that of the preset.
    steps: environment steps of each agent (of all actors together); None: of
      the preset.
    topology: a name, 'module:Name', or an object that is one; None: the
      agent's own.
    engine: 'local_mp' (processes), 'local_mt' (threads of one process) or 'ray'
      (processes on a Ray cluster, or on a Ray of their own).
    seed: of the whole run.
    run_dir: where the run is kept; None: runs/AGENT-ENVIRONMENT-TIME.
    progress: whether a bar shows how far it is; None: in a terminal and in a
      notebook.
    sinks: where numbers go besides the run, such as 'wandb,mlflow': see
      run_records/sinks.py.
    ray_address: of the Ray cluster that `engine='ray'` runs on, HOST:PORT, or
      'auto' for the one of this host, or 'local' for one of this run alone; '':
      what RAY_ADDRESS says, or else 'local'.
    cluster: what each node of a group asks of its host there, such as
      'learner:cpus=4,gpus=1'; several in a list. The command's --cluster.
    on_tick: called about twice a second with the run and {'steps', 'budget',
      'elapsed_s', 'totals'}.
    on_evaluation: called with the run and each evaluation: {'actor_steps',
      'return_mean', 'returns', ...}.
    on_end: called with the run and its summary. A callback that returns
      `STOP`, or calls `run.stop()`, ends the run, which is kept; who returned
      `STOP` is not called again.
    **config: settings by name: learning_rate=1e-3, num_actors=2; by section
      where two have the name: run={'eval_episodes': 5}. `murmuration run
      AGENT --list-settings` shows them all.

  A preset's own environment brings its numbers and its target, which ends the
  run; another environment gets those of the agent's first preset, and no
  target.

  Returns:
    The run, when it is over.

  Raises:
    ValueError: something that cannot work, with the reason.
    RuntimeError: a node failed for good, with what it said.
    KeyboardInterrupt: at Ctrl-C, when the run has ended as by `stop`. It is
      kept, and a line says where.
  """
  given = objects.Objects()
  run = Run('' if run_dir is None else run_dir, given)
  run._callbacks = {
    'on_tick': on_tick,
    'on_evaluation': on_evaluation,
    'on_end': on_end,
  }
  arguments.check_callbacks(run._callbacks)
  run._train(
    progress,
    agent=given.name(agent, 'agent'),
    environment=None
    if environment is None
    else given.name(environment, 'environment'),
    topology=None if topology is None else given.name(topology, 'topology'),
    engine=engine,
    seed=arguments.whole('seed', seed, 0),
    steps=arguments.whole_or_none('steps', steps),
    sinks=sinks,
    ray_address=ray_address,
    cluster=cluster,
    settings=arguments.as_text(config),
    chosen=run_dir is not None,
  )
  return run


def load(
  path: Path,
  *,
  agent: Any = None,
  environment: Any = None,
  topology: Any = None,
) -> Run:
  """A run that was kept: `Run.path`, or where it was saved.

  Args:
    path: its directory.
    agent: the object that it was trained with, where that was defined in a
      script or a notebook; what has an importable name is found by itself.
    environment: likewise. An id that this process has registered goes along.
    topology: likewise.

  Raises:
    ValueError: there is no run, or it was trained with something else.
  """
  given, config = objects.Objects(), stored.config(pathlib.Path(path))
  things = (agent, environment, topology)
  for (key, kind), thing in zip(objects.KEYS.items(), things, strict=True):
    kept = config.get(key)
    kept = kept if isinstance(kept, str) else ''
    if thing is not None or kept:
      found = given.name(kept if thing is None else thing, kind, kept)
      same = found == kept
      if kind == 'agent':
        same |= found.partition(':')[0] == kept  # a preset of it
      if kept and not same:
        raise ValueError(
          f'{kind}={thing!r}, but {path} was trained with {kept!r}. Leave '
          f'{kind}= out, or give the object of that name where it was defined '
          'in a script or a notebook.'
        )
  return Run(pathlib.Path(path).absolute(), given)


def _show(helper: process.Helper, bar: progress_lib.Bar) -> None:
  """Shows what a run has noted since, as its command does."""
  for line in helper.said():
    if line.startswith(_SAID):
      bar.say(arguments.in_python(line))
