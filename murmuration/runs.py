"""`train` and `load`, and the `Run` that they return."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import os
import pathlib
from typing import Any, NamedTuple

from murmuration import arguments
from murmuration import objects
from murmuration import process
from murmuration import stored

Path = str | os.PathLike[str]
# Takes the run and a dict, see `train`.
Callback = Callable[['Run', dict[str, Any]], Any]

_POLL_S = 0.1
_TICKS = 4  # polls between two ticks
# Exit codes, as in run_records/commands.py: Ctrl-C, SIGTERM, and SIGINT before
# the process handles it.
_USAGE = 2
_BROKEN_OFF = (130, 143, -2)
# Lines of the process that the caller sees.
_SAID = ('note: ', 'warning: ')


class _Stop:
  def __repr__(self) -> str:
    return 'murmuration.STOP'


STOP = _Stop()  # a callback returns it to end the run


class Evaluation(NamedTuple):
  """The result of `Run.evaluate`.

  Attributes:
    mean: mean undiscounted return, in the environment's units of reward.
    std: standard deviation of the returns.
    returns: one for each episode.
    broken: how often the environment failed; each such episode was replaced.
  """

  mean: float
  std: float
  returns: Any  # np.ndarray, float64 [episodes]
  broken: int = 0


class Run:
  """A run: its directory, and what you can do with it.

  Attributes:
    path: the directory, with config, metrics, checkpoints and logs.
    stopped: whether `stop`, a callback or Ctrl-C ended the training.
  """

  def __init__(self, path: Path, given: objects.Objects):
    self.path = pathlib.Path(path)
    self.stopped = False
    self._given = given
    self._to_stop = False
    self._process: process.Process | None = None
    self._policy: Any = None
    self._callbacks: dict[str, Any] = {}
    self._stopping: set[str] = set()  # callbacks that have returned STOP
    self._told: set[str] = set()  # callbacks that got a warning

  def __repr__(self) -> str:
    return f'murmuration.Run({os.fspath(self.path)!r})'

  def evaluate(self, episodes: int = 20, seed: int = 0) -> Evaluation:
    """Plays episodes with the best parameters, greedily.

    Args:
      episodes: how many; they run side by side.
      seed: of the episodes.

    Raises:
      ValueError: the run has no parameters yet, or an argument is not a number.
      RuntimeError: the environment failed.
    """
    episodes = arguments.whole('episodes', episodes)
    seed = arguments.whole('seed', seed, 0)
    export, kept = self._kept()
    policy = export.policy(kept, native=False)
    result = export.playing.evaluate(self._open(), kept, episodes, seed, policy)
    return Evaluation(result.mean, result.std, result.returns, result.broken)

  @property
  def policy(self) -> Any:
    """The greedy policy of the best parameters: `action = policy(observation)`.

    A `portable.Policy`. For an agent without `operations` it is the agent's own
    code, with the same call.
    """
    if self._policy is None:
      export, kept = self._kept()
      self._policy = export.policy(kept)
    return self._policy

  def config(self) -> dict[str, Any]:
    """All settings, by section."""
    return self._open().config()

  def summary(self) -> dict[str, Any] | None:
    """Outcome, totals and result; None if the run was killed."""
    return self._open().summary()

  def metrics(self, kind: str = 'evaluation') -> list[dict[str, Any]]:
    """Logged rows, as `pandas.DataFrame` takes them.

    Args:
      kind: 'evaluation', or another kind such as 'node_learner'.

    Raises:
      ValueError: the run has no such kind; the message lists those it has.
    """
    from murmuration.run_records import names

    run = self._open()
    names.require('kind of metrics', kind, run.kinds())
    return run.metrics(kind)

  def plot(self, path: Path | None = None) -> pathlib.Path:
    """Draws the learning curve.

    Args:
      path: where to write the PNG; None: learning_curve.png in the run's
        directory.

    Returns:
      The path.

    Raises:
      ValueError: the run has no evaluations yet.
    """
    from murmuration.run_records import plots

    drawn = plots.learning_curve(self._open().path, path)
    if drawn is None:
      raise ValueError(f'{self.path} has no evaluation to draw yet.')
    return drawn

  def film(self, path: Path, seed: int = 0, steps: int = 1500) -> pathlib.Path:
    """Films one episode.

    Args:
      path: where to write it, .gif or .mp4.
      seed: of the episode.
      steps: environment steps, at most.

    Raises:
      ValueError, OSError: the path has another ending, or cannot be written.
      RuntimeError: the environment failed.
    """
    from murmuration.run_records import film

    seed = arguments.whole('seed', seed, 0)
    steps = arguments.whole('steps', steps)
    film.check(path)  # before an episode is played
    export, kept = self._kept()
    from murmuration import episodes

    name = kept.agent.spec.name
    return episodes.record(export.policy(kept), name, seed, path, steps)

  def export(self, path: Path, format: str = 'numpy') -> pathlib.Path:
    """Exports the policy, to run without this project (see export.py).

    Args:
      path: a file (.py; .npz for parameters alone; .onnx), or a directory for
        a SavedModel.
      format: 'numpy', 'savedmodel' or 'onnx'.
    """
    export, kept = self._kept()
    return export.export(self.path, format, pathlib.Path(path), kept=kept)

  def save(self, path: Path, overwrite: bool = False) -> pathlib.Path:
    """Copies the run; `load(path)` opens the copy.

    Args:
      path: where to.
      overwrite: whether to replace another run at `path`.

    Raises:
      ValueError: `path` is inside the run, or contains it.
      FileExistsError: `path` exists.
    """
    return stored.copy(self.path, pathlib.Path(path), overwrite)

  def stop(self) -> None:
    """Ends training; for callbacks and other threads."""
    self._to_stop = True  # where there is no process yet, `_train` looks
    child = self._process  # None as soon as the run has ended
    if child is not None:
      child.stop()

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
    """Continues training in the same directory.

    Args:
      steps: more environment steps for each agent; None: the rest of the
        budget.
      engine: as in `train`; None: the engine that the run used.
      progress: as in `train`.
      sinks: as in `train`.
      ray_address: as in `train`; '': that of the run, if it used Ray.
      cluster: likewise.
      on_tick: as in `train`; None: keeps the callback that this run has.
      on_evaluation: likewise.
      on_end: likewise.
      **config: settings to change.

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
    words = {
      'steps': arguments.whole_or_none('steps', steps),
      'engine': engine,
      'sinks': sinks,
      'ray_address': ray_address,
      'cluster': cluster,
    }
    settings = arguments.plain(config)
    there = f'load({str(self.path.absolute())!r})'
    line = arguments.written(f'{there}.resume', (), settings, **words)
    self._train(progress, self.path, line, True, settings=settings, **words)
    return self

  def _open(self) -> Any:
    from murmuration.run_records import run_directory

    return run_directory.open(self.path)

  def _kept(self) -> tuple[Any, Any]:
    """The module export, and the best parameters."""
    from murmuration.run_records import later

    with later.deferred():  # most policies need no TensorFlow
      from murmuration import export
      from murmuration.environment_loops import environments

      # A notebook may have defined the class again.
      environments.forget()
      run = self._open()
      config = self._given.config_here(run.config())
      return export, export.playing.load(run, config)

  def _train(
    self,
    progress: bool | None,
    path: pathlib.Path | None,
    line: str,
    resume: bool,
    **words: Any,
  ) -> None:
    """Trains in a separate process, and waits until it ends."""
    from murmuration import news as news_lib
    from murmuration import progress as progress_lib

    self.stopped = self._to_stop = False
    self._stopping.clear()
    told = news_lib.end_of_evaluations(path) if resume and path else 0
    bar = progress_lib.Bar(progress)
    news: Callable[[], Any] | None = None
    child = self._process = process.Process(
      objects=self._given.pickled(),
      path=path,
      resume=resume,
      line=line,
      **words,
    )
    over = False
    try:
      if self._to_stop:
        child.stop()
      polls = 0
      while not over:
        over = child.ended(_POLL_S)
        _show(child, bar)
        begun = child.begun()
        if begun is not None:
          self.path = begun.pop('path')
          news = news_lib.News(self.path, **begun, told=told)
        polls += 1
        if news is not None and (over or polls % _TICKS == 0):
          for kind, content in news():
            self._take(kind, content, bar)
    finally:
      child.end()  # also after an exception or Ctrl-C: it saves
      _show(child, bar)
      code, output = child.close()
      self._process = None
      self._policy = None  # of parameters that a callback saw
      bar.close()
      if not over and news is not None:
        # `train` returns nothing in this case.
        bar.say(f'interrupted: kept in {self.path}; {self._loading()}')
    if code == _USAGE:
      raise ValueError(f'\n{output}'.rpartition('\nerror: ')[2].strip())
    if code and code not in _BROKEN_OFF:
      where = f'; {self.path / "logs"} has what its nodes said' if news else ''
      raise RuntimeError(
        f'The run failed with exit code {code}{where}.\n{output}'
      )
    self.stopped = code in _BROKEN_OFF
    summary = self._open().summary() if news is not None else None
    self._called('on_end', {'stopped': self.stopped, **(summary or {})}, bar)

  def _loading(self) -> str:
    """The call that loads this run."""
    from murmuration.run_records import run_directory

    return run_directory.loading(self.path, self.config())

  def _take(self, kind: str, content: Any, bar: Any) -> None:
    """Handles a new line of the run's files."""
    if kind == 'warning':
      bar.say(content)
      return
    if kind == 'evaluation':
      self._policy = None  # it may have left better parameters
    bar.show(kind, content)
    self._called(f'on_{kind}', content, bar)

  def _called(self, name: str, content: dict[str, Any], bar: Any) -> None:
    callback = self._callbacks.get(name)
    # A run that was stopped still reports what it did before.
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
  """Trains an agent on an environment until its budget or target is reached.

  The program runs in a separate process, as with `murmuration run`, so you can
  call this as often as you like, whatever your own process has started.

  Args:
    agent: a name with or without a preset ('ppo', 'ppo:pendulum'),
      'module:Name', a `murmuration.launch.registry.Agent`, or a subclass of
      `murmuration.agents.base.Agent` whose `config` is annotated with its
      class, in the body or in `__init__`.
    environment: a gymnasium id, 'module:Name', or a class or function that
      makes a gymnasium environment. None: the preset's.
    steps: environment steps for each agent (all its actors together); None:
      the preset's.
    topology: a name, 'module:Name', or a topology object; None: the agent's
      default.
    engine: 'local_mp' (processes), 'local_mt' (threads of one process) or 'ray'
      (processes on a Ray cluster, or on a local Ray).
    seed: of the whole run.
    run_dir: directory of the run; None: runs/AGENT-ENVIRONMENT-TIME.
    progress: whether to show a progress bar; None: in terminals and notebooks.
    sinks: where else to log, such as 'wandb,mlflow' (run_records/sinks.py).
    ray_address: address of the Ray cluster for `engine='ray'`: HOST:PORT,
      'auto' for the cluster of this host, or 'local' for a Ray of this run
      alone; '': RAY_ADDRESS, else 'local'.
    cluster: resources for each node of a group, such as
      'learner:cpus=4,gpus=1', or a list of these; as --cluster.
    on_tick: called about twice a second with the run and {'steps', 'budget',
      'elapsed_s', 'totals'}.
    on_evaluation: called with the run and each evaluation: {'actor_steps',
      'return_mean', 'returns', ...}.
    on_end: called with the run and its summary. Any callback may return `STOP`,
      or call `run.stop()`, to end the run, which is kept. A callback that
      returned `STOP` is not called again.
    **config: settings by name, such as learning_rate=1e-3 or num_actors=2, or
      by section where two sections share a name: run={'eval_episodes': 5}.
      `murmuration run AGENT --list-settings` lists them.

  With a preset's own environment you get its settings and its target, which
  ends the run. With another environment you get the settings of the agent's
  first preset, without a target.

  Returns:
    The run, after it has ended.

  Raises:
    ValueError: the run cannot start; the message says why.
    RuntimeError: a node failed for good; the message has its output.
    KeyboardInterrupt: you pressed Ctrl-C. The run is kept, and a line says
      where.
  """
  given = objects.Objects()
  run = Run('' if run_dir is None else run_dir, given)
  run._callbacks = {
    'on_tick': on_tick,
    'on_evaluation': on_evaluation,
    'on_end': on_end,
  }
  arguments.check_callbacks(run._callbacks)
  things = {'agent': agent, 'environment': environment, 'topology': topology}
  names = {
    kind: given.name(thing, kind)
    for kind, thing in things.items()
    if thing is not None or kind == 'agent'
  }
  words = {
    'steps': arguments.whole_or_none('steps', steps),
    'engine': engine,
    'sinks': sinks,
    'ray_address': ray_address,
    'cluster': cluster,
    'topology': names.get('topology'),
    'seed': arguments.whole('seed', seed, 0),
  }
  settings = arguments.plain(config)
  first = names['agent'], names.get('environment')
  default = {'engine': None} if engine == 'local_mp' else {}
  line = arguments.written(
    'train',
    first,
    settings,
    **{**words, **default},
    run_dir='' if run_dir is None else os.fspath(run_dir),
  )
  path = None if run_dir is None else run.path
  run._train(
    progress,
    path,
    line,
    False,
    agent=first[0],
    environment=first[1],
    settings=settings,
    **words,
  )
  return run


def load(
  path: Path,
  *,
  agent: Any = None,
  environment: Any = None,
  topology: Any = None,
) -> Run:
  """Opens a run from its directory.

  Args:
    path: the directory (`Run.path`, or where you saved it).
    agent: the class or object that the run was trained with, if a script or a
      notebook defined it. Importable ones are found by name.
    environment: likewise. An id that this process has registered works too.
    topology: likewise.

  Raises:
    ValueError: there is no run, or it was trained with something else.
  """
  from murmuration.run_records import run_directory

  given, config = objects.Objects(), run_directory.open(path).config()
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


def _show(child: process.Process, bar: Any) -> None:
  """Shows new notes and warnings of the run."""
  for line in child.said():
    if line.startswith(_SAID):
      bar.say(line)
