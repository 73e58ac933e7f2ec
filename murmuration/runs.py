"""Runs as a caller has them: train, evaluate, play, keep, go on."""

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
# Called with the run, and with what has come: see `train`.
Callback = Callable[['Run', dict[str, Any]], Any]

_POLL_S = 0.1
_TICKS = 4  # polls between two ticks
# Exit codes of a run, as in run_records/commands.py; the last is of a process
# that is stopped before it can say so.
_USAGE = 2
_BROKEN_OFF = (130, 143, -2)
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
    self._process: process.Process | None = None
    self._policy: Any = None
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
    episodes = arguments.whole('episodes', episodes)
    seed = arguments.whole('seed', seed, 0)
    export, kept = self._kept()
    policy = export.policy(kept, native=False)
    result = export.playing.evaluate(self._open(), kept, episodes, seed, policy)
    return Evaluation(result.mean, result.std, result.returns, result.broken)

  @property
  def policy(self) -> Any:
    """The greedy policy of the best parameters that were kept.

    A `portable.Policy`; of an agent without `operations` the agent's own code,
    called in the same way.
    """
    if self._policy is None:
      export, kept = self._kept()
      self._policy = export.policy(kept)
    return self._policy

  def config(self) -> dict[str, Any]:
    """All settings, section by section."""
    return self._open().config()

  def summary(self) -> dict[str, Any] | None:
    """Why it ended, totals and result; None if it was killed."""
    return self._open().summary()

  def metrics(self, kind: str = 'evaluation') -> list[dict[str, Any]]:
    """Rows that were logged: a table, as pandas.DataFrame takes it.

    Args:
      kind: 'evaluation', or another of those that the run has, such as
        'node_learner'.

    Raises:
      ValueError: it has no such rows; names those that it has.
    """
    from murmuration.run_records import names

    run = self._open()
    names.require('kind of metrics', kind, run.kinds())
    return run.metrics(kind)

  def plot(self, path: Path | None = None) -> pathlib.Path:
    """Draws the learning curve.

    Args:
      path: of the PNG; learning_curve.png in the run's directory if None.

    Returns:
      Where it is.

    Raises:
      ValueError: nothing was evaluated yet.
    """
    from murmuration.run_records import plots

    drawn = plots.learning_curve(self._open().path, path)
    if drawn is None:
      raise ValueError(f'{self.path} has no evaluation to draw yet.')
    return drawn

  def film(self, path: Path, seed: int = 0, steps: int = 1500) -> pathlib.Path:
    """Films one episode.

    Args:
      path: of the film, .gif or .mp4.
      seed: of the episode.
      steps: environment steps at most.

    Raises:
      ValueError, OSError: the path is none of a film, or cannot be written.
      RuntimeError: the environment breaks.
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
    """Writes the policy for use without this project: see export.py.

    Args:
      path: of the file (.py, or .npz without code; .onnx), or of SavedModel's
        directory.
      format: 'numpy', 'savedmodel' or 'onnx'.
    """
    export, kept = self._kept()
    return export.export(self.path, format, pathlib.Path(path), kept=kept)

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
    """export.py, and the best parameters, with the objects of this process."""
    from murmuration.run_records import later

    with later.deferred():  # most policies need no TensorFlow
      from murmuration import export
      from murmuration.environment_loops import environments

      # What a name stands for may be another class since.
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
    """Trains to the end, in a process of its own."""
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
      child.end()  # after an exception, or Ctrl-C, it saves
      _show(child, bar)
      code, output = child.close()
      self._process = None
      self._policy = None  # of parameters that a callback saw
      bar.close()
      if not over and news is not None:
        # Who called `train` has no run now.
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
    """The call that loads it."""
    from murmuration.run_records import run_directory

    return run_directory.loading(self.path, self.config())

  def _take(self, kind: str, content: Any, bar: Any) -> None:
    """What a run has written while it trains."""
    if kind == 'warning':
      bar.say(content)
      return
    if kind == 'evaluation':
      self._policy = None  # it may have left better parameters
    bar.show(kind, content)
    self._called(f'on_{kind}', content, bar)

  def _called(self, name: str, content: dict[str, Any], bar: Any) -> None:
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
  """Shows what a run has noted since, as its command does."""
  for line in child.said():
    if line.startswith(_SAID):
      bar.say(line)
