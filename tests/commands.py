"""Commands as a user gives them: many at once, or one real run."""

import contextlib
import json
import os
import pathlib
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import types

import psutil
import pytest

ROOT = pathlib.Path(__file__).parents[1]
LAUNCH = ROOT / 'launch'
FORKER = ROOT / 'tests' / 'forked_commands.py'
# Of what a small program computes, a quarter is what XLA does to run faster.
_QUICKLY_COMPILED = {'XLA_FLAGS': '--xla_backend_optimization_level=0'}
# Generous: other tests may run beside these.
_TIMEOUT_S = 200


class Forked:
  """A command in a fork of the forker, as a `subprocess.Popen`."""

  def __init__(self, ask, **asked):
    self._ask = ask
    self.pid = ask(start=asked)
    self.returncode = None
    self._ended = os.pidfd_open(self.pid)  # readable when it has ended

  def poll(self):
    with contextlib.suppress(subprocess.TimeoutExpired):
      self.wait(0)
    return self.returncode

  def wait(self, timeout=None):
    if self.returncode is None:
      if not select.select([self._ended], [], [], timeout)[0]:
        raise subprocess.TimeoutExpired('a fork', timeout)
      os.close(self._ended)
      self.returncode = self._ask(ended=self.pid)
    return self.returncode

  def send_signal(self, number):
    if self.poll() is None:
      os.kill(self.pid, number)

  def terminate(self):
    self.send_signal(signal.SIGTERM)

  def kill(self):
    self.send_signal(signal.SIGKILL)


class Run:
  """A command line in a process of its own, and what it leaves."""

  def __init__(
    self,
    directory,
    *flags,
    script='run.py',
    resume=None,
    modules=None,
    environment=None,
    forker=None,
  ):
    """Starts it: as a user does, or in a fork, where a forker is given."""
    self.directory = resume or directory / 'run'
    where = 'run_dir' if resume is None else 'resume'
    self.temporary = directory / 'tmp'
    self.temporary.mkdir(parents=True)
    variables = {**os.environ, **(environment or {})}
    variables['TMPDIR'] = str(self.temporary)
    if modules is not None:
      variables['PYTHONPATH'] = str(modules)
    argv = [*flags, f'--{where}={self.directory}']
    # A file, not a pipe: nobody reads while the test waits for something else.
    self._output = directory / 'output.txt'
    with self._output.open('w') as file:
      if forker is not None:
        self.process = Forked(
          forker,
          script=str(LAUNCH / script),
          argv=argv,
          cwd=str(directory),
          env={**_QUICKLY_COMPILED, **variables},
          output=str(self._output),
        )
        return
      self.process = subprocess.Popen(
        [sys.executable, str(LAUNCH / script), *argv],
        stdout=file,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        cwd=directory,
        env=variables,
        # Ctrl-C in a terminal goes to a whole process group.
        start_new_session=True,
      )

  @property
  def output(self):
    return self._output.read_text()

  def wait(self):
    """Waits for the end; returns the exit code."""
    try:
      return self.process.wait(timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
      pass
    raise AssertionError(f'no end after {_TIMEOUT_S} s:\n{self.output}')

  def interrupt(self):
    os.killpg(self.process.pid, signal.SIGINT)

  def log(self, node):
    path = self.directory / 'logs' / f'{node.replace("/", "-")}.log'
    return path.read_text(errors='replace') if path.exists() else ''

  def pids(self, node):
    """Process ids of a node, one for each start, from its log's headers."""
    return [
      int(pid)
      for pid in re.findall(r'^--- .*, pid (\d+),', self.log(node), re.M)
    ]

  def kill(self, node, left=lambda: None):
    """Kills a node and waits until it has been started again.

    Returns:
      What left() says when the node is dead: its next life has done nothing.
    """
    starts = len(self.pids(node))
    process = psutil.Process(self.pids(node)[-1])
    process.kill()
    process.wait(_TIMEOUT_S)
    found = left()
    self.wait_until(lambda: len(self.pids(node)) > starts, f'{node} again')
    return found

  def wait_until(self, condition, what, timeout_s=120.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
      assert self.process.poll() is None, f'no {what}:\n{self.output}'
      assert time.monotonic() < deadline, f'no {what}:\n{self.output}'
      time.sleep(0.05)

  def remains(self):
    """Processes that the run left behind."""
    return _processes_of(self.temporary)

  def assert_no_traceback(self):
    """In the log of any node."""
    logs = list((self.directory / 'logs').glob('*.log'))
    assert logs
    for log in logs:
      assert 'Traceback' not in log.read_text(), log.read_text()

  def assert_nothing_is_left(self):
    deadline = time.monotonic() + 60.0
    while self.remains() and time.monotonic() < deadline:
      time.sleep(0.05)
    assert self.remains() == []
    assert list(self.temporary.iterdir()) == []

  def close(self):
    for process in [self.process, *self.remains()]:
      with contextlib.suppress(psutil.Error, ProcessLookupError):
        process.kill()
    self.process.wait()


def _processes_of(temporary):
  """Living processes whose TMPDIR is in the directory `temporary`."""
  found = []
  for process in psutil.process_iter():
    with contextlib.suppress(psutil.Error):
      if process.environ().get('TMPDIR', '').startswith(str(temporary)):
        if process.status() != psutil.STATUS_ZOMBIE:
          found.append(process)
  return found


@pytest.fixture(scope='session')
def processes_of():
  """processes_of(directory): what runs with its TMPDIR there."""
  return _processes_of


@pytest.fixture(scope='session')
def forker():
  """forker(**question): asks forked_commands.py, of which there is one.

  It imports the stack and forks for each command: an import each would cost
  seconds each.
  """
  processes, lock, due = [], threading.Lock(), []

  def ask(**question):
    with lock:
      return answer(question)

  def answer(question):
    if not processes:
      processes.append(
        subprocess.Popen(
          [sys.executable, str(FORKER)],
          stdin=subprocess.PIPE,
          stdout=subprocess.PIPE,
          text=True,
          cwd=ROOT,
          # Where the environments of tests are.
          env={**os.environ, 'PYTHONPATH': str(ROOT / 'tests' / 'launch')},
        )
      )
    (process,) = processes
    json.dump(question, process.stdin)
    process.stdin.write('\n')
    process.stdin.flush()
    due.append(question)
    while due:  # more than one after a test that ran out of time meanwhile
      line = process.stdout.readline()
      assert line, 'forked_commands.py ended; it says above why'
      due.pop()
    return json.loads(line)

  yield ask
  for process in processes:
    process.stdin.close()
    process.wait(_TIMEOUT_S)
    process.stdout.close()


@pytest.fixture(scope='module')
def start_run(tmp_path_factory, forker):
  """start_run(*flags) starts a command; all are ended after the module.

  With `fresh=True` it is a new Python's, as a user starts it, and not a fork.
  """
  runs = []

  def start(*flags, fresh=False, **options):
    runs.append(
      Run(
        tmp_path_factory.mktemp('command'),
        *flags,
        forker=None if fresh else forker,
        **options,
      )
    )
    return runs[-1]

  yield start
  for run in runs:
    run.close()


@pytest.fixture(scope='session')
def run_commands(forker):
  """run_commands(cases, script='run.py') runs it with many command lines.

  A case is {'argv', 'cwd', 'mode'}; forked_commands.py has the modes. Returns a
  list of {'code', 'stdout', 'stderr'}.
  """
  return lambda cases, script='run.py': forker(
    script=str(LAUNCH / script), cases=cases
  )


@pytest.fixture(scope='module')
def forked_runs(forker):
  """Runs of studies and sweeps are forks while this is there."""
  from murmuration import jobs
  from murmuration.studies import runs as study_runs

  def start(words, stdout, **unused):
    _, script, *argv = map(str, words)
    return Forked(
      forker,
      script=script,
      argv=argv,
      cwd=os.getcwd(),
      env={
        **_QUICKLY_COMPILED,
        'TMPDIR': tempfile.gettempdir(),
        **os.environ,
      },
      output=stdout.name,
    )

  def resolve(job):
    argv = ['--print-config', *job.arguments]
    (said,) = forker(
      script=str(job.script), cases=[{'argv': argv, 'cwd': os.getcwd()}]
    )
    assert said['code'] == 0, said
    return json.loads(said['stdout'])

  with pytest.MonkeyPatch.context() as patch:
    changed = types.SimpleNamespace(**{**vars(subprocess), 'Popen': start})
    patch.setattr(jobs, 'subprocess', changed)
    patch.setattr(study_runs, 'resolve', resolve)
    yield


# Workers without a program, in the test's own process.


@pytest.fixture
def private_directory(tmp_path_factory, monkeypatch):
  """Reverb leaves a directory for each server; here they go with the test."""
  monkeypatch.setattr(
    tempfile, 'tempdir', str(tmp_path_factory.mktemp('reverb'))
  )


@pytest.fixture
def make_counter():
  """make_counter(run_dir=None, budget=None): a counter as a client sees it."""
  from murmuration.launch.services import counter

  class InProcess(counter.Counter):
    def with_deadline(self, timeout_s):
      return self

  return lambda run_dir=None, budget=None: InProcess(run_dir, budget)


@pytest.fixture
def recorder(monkeypatch):
  """Has workers act in counting environments; holds the last ones made.

  Each has `steps[k]`, the rows (o, a, r, d, o', last) of environment k.
  """
  from murmuration.environment_loops import environments
  from murmuration.environment_loops import vector
  from tests import counting

  spec = environments.Spec('counting', (3,), 2)

  class Recorder(vector.VectorEnvironment):
    def __init__(self, num):
      super().__init__(spec, num)
      self._inner = counting.make_vector(num)
      self._observation = None
      self.steps = [[] for _ in range(num)]

    def reset(self):
      self._observation = self._inner.reset()
      return self._observation

    def step(self, actions):
      step = self._inner.step(actions)
      for k, rows in enumerate(self.steps):
        rows.append(
          (
            self._observation[k],
            int(actions[k]),
            float(step.reward[k]),
            float(step.discount[k]),
            step.observation[k],
            bool(step.last[k]),
          )
        )
      self._observation = step.next_observation
      return step

    def close(self):
      self._inner.close()

  made = []

  def make(name, num, seed, on_fault):
    assert name == spec.name and on_fault == 'raise'
    made.append(Recorder(num))
    return made[-1]

  monkeypatch.setattr(vector, 'make_vector', make)
  monkeypatch.setattr(environments, 'spec', lambda name: spec)
  return made
