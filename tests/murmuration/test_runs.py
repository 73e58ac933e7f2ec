"""A run as its caller has it: callbacks, notes, its policy, and its end."""

import functools
import itertools
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading

import gymnasium
from gymnasium.envs.classic_control import cartpole
import numpy as np
import psutil
import pytest

import murmuration
from murmuration import episodes
from murmuration import export
from murmuration import playing
from murmuration import portable
from murmuration import process
from murmuration import runs
from murmuration.agents import base
from murmuration.agents import ppo
from murmuration.launch import cell as cell_lib
from murmuration.launch import registry
from murmuration.run_records import checkpoints
from murmuration.run_records import run_directory

LIMIT = 'Endless-v0 has no step limit.'


class Trained:
  """In the place of a run's process: writes what a run writes, in two parts."""

  code = 0
  interrupted = False

  def __init__(self, **words):
    self.words = words
    self._parts = iter((1, 2))
    self._printed = [f'note: {LIMIT}', '[0:05] running: x', 'warning: w']
    self._begun = {'budget': 2, 'steps_per_update': None}

  def ended(self, timeout_s):
    part = next(self._parts, None)
    if part is None:
      return True
    path = self._begun.get('path') or pathlib.Path(self.words['path'])
    if part == 1 and not self.words['resume']:
      run_directory.create(path, {'environment': 'given'}, {})
    state = {'totals': {'actor_steps': part}, 'elapsed_s': 1.0}
    checkpoints.write_state(path / 'metrics' / checkpoints.COUNTER, state)
    with (path / 'metrics' / 'evaluation.jsonl').open('a') as file:
      file.write(json.dumps({'return_mean': float(part)}) + '\n')
    if part == 2 and self.interrupted:
      raise KeyboardInterrupt
    return part == 2

  def begun(self):
    found, self._begun = self._begun, {}
    return (
      {**found, 'path': pathlib.Path(self.words['path'])} if found else None
    )

  def said(self):
    said, self._printed = self._printed, []
    return said

  def stop(self):
    pass

  end = stop

  def close(self):
    return self.code, 'the end'


@pytest.fixture
def trained(monkeypatch, tmp_path):
  """trained(**words): a run as `train` returns it, without a process."""
  monkeypatch.setattr(process, 'Process', Trained)
  monkeypatch.setattr(runs, '_TICKS', 1)

  def train(**words):
    return runs.train('dqn', run_dir=tmp_path / 'run', **words)

  return train


def test_callbacks_hear_what_the_run_writes_in_its_order(trained):
  heard = []
  run = trained(
    progress=False,
    on_tick=lambda run, tick: heard.append(tick['steps']),
    on_evaluation=lambda run, row: heard.append(row),
    on_end=lambda run, summary: heard.append(summary),
  )
  rows = [{'return_mean': 1.0}, {'return_mean': 2.0}]
  assert heard == [1, rows[0], 2, rows[1], {'stopped': False}]
  assert run.metrics() == rows
  heard.clear()
  run.resume(progress=False)
  assert heard[1::2] == [*rows] and len(run.metrics()) == 4


def test_who_has_returned_stop_is_not_called_again(trained):
  called = []

  def callback(kind, answer):
    return lambda run, content: (called.append(kind), answer)[1]

  run = trained(
    progress=False,
    on_tick=callback('tick', None),
    on_evaluation=callback('evaluation', runs.STOP),
    on_end=callback('end', runs.STOP),
  )
  assert called == ['tick', 'evaluation', 'tick', 'end']
  run.resume(progress=False)  # which is another run
  assert called == 2 * ['tick', 'evaluation', 'tick', 'end']
  # One that is given takes the place of the one before; others stay.
  run.resume(progress=False, on_tick=callback('other', None))
  assert called[8:] == ['other', 'evaluation', 'other', 'end']
  with pytest.raises(ValueError, match='on_end=3'):
    run.resume(progress=False, on_end=3)


def test_a_callback_that_returns_what_means_nothing_is_told_so_once(
  trained, capsys
):
  trained(
    progress=False,
    on_tick=lambda run, tick: True,
    on_evaluation=lambda run, row: runs.STOP,
    on_end=lambda run, summary: None,
  )
  said = [
    line for line in capsys.readouterr().err.splitlines() if 'returned' in line
  ]
  assert len(said) == 1 and 'on_tick' in said[0]


def test_a_policy_is_loaded_anew_after_an_evaluation_and_at_the_end(
  trained, monkeypatch
):
  numbers = itertools.count()

  monkeypatch.setattr(playing, 'load', lambda run, config: None)
  monkeypatch.setattr(export, 'policy', lambda kept: next(numbers))
  played = []

  def play(run, content):
    played.append(run.policy)

  run = trained(progress=False, on_tick=play, on_evaluation=play)
  assert played == [0, 1, 1, 2]
  assert run.policy == run.policy == 3


@pytest.mark.parametrize('shown', [True, False])
def test_what_a_run_notes_is_shown_as_its_command_shows_it(
  trained, capsys, shown
):
  trained(progress=shown)
  said = capsys.readouterr().err
  lines = [line for line in said.split('\n') if 'steps,' not in line]
  assert lines == [f'note: {LIMIT}', 'warning: w', '']
  assert ('steps,' in said) == shown


@pytest.mark.parametrize('shown', [True, False])
def test_who_interrupts_a_run_is_told_where_it_is_kept(
  trained, monkeypatch, capsys, tmp_path, shown
):
  monkeypatch.setattr(Trained, 'interrupted', True)
  with pytest.raises(KeyboardInterrupt):
    trained(progress=shown)
  *before, last, end = capsys.readouterr().err.split('\n')
  assert last.startswith('interrupted: ') and not end
  assert f'load({str(tmp_path / "run")!r})' in last
  # The bar stands above it.
  assert ('1 of 2 steps' in before[-1]) == shown


@pytest.mark.parametrize(
  'code, error', [(2, ValueError), (1, RuntimeError), (-9, RuntimeError)]
)
def test_what_its_process_says_is_raised(trained, monkeypatch, code, error):
  monkeypatch.setattr(Trained, 'code', code)
  with pytest.raises(error, match='the end'):
    trained()


# With real processes.


@pytest.mark.parametrize('size', [0, 10_000_000])
def test_a_process_that_cannot_start_shows_what_it_said(
  monkeypatch, tmp_path, size
):
  monkeypatch.setenv('PYTHONHOME', '/nowhere')
  more = {'agent.x': 'x' * size}  # more than a pipe holds
  with pytest.raises(RuntimeError, match='Fatal Python error'):
    runs.train('dqn', run_dir=tmp_path / 'run', **more)


def test_what_cannot_be_sent_leaves_no_process(tmp_path):
  before = psutil.Process().children()
  with pytest.raises(Exception, match='pickle'):
    runs.train('dqn', learning_rate=threading.Lock())
  assert psutil.Process().children() == before


@pytest.fixture
def make_run(tmp_path):
  """make_run(environment, **overrides): a run that keeps some parameters."""

  def make(environment, agent='impala', **overrides):
    overrides = {f'agent.{k}': v for k, v in overrides.items()}
    overrides['environment'] = environment
    config = cell_lib.resolve(agent, overrides=overrides).config
    run = run_directory.create(tmp_path / 'run', config, {})
    made = registry.make(json.loads(json.dumps(config)))
    checkpoints.write(
      run.checkpoints / checkpoints.BEST,
      theta=made.initial(0),
      return_mean=1.0,
      steps=1,
    )
    return murmuration.load(run.path)

  return make


@pytest.mark.parametrize('process_started', [False, True])
def test_a_stop_in_the_first_moment_is_one_of_the_run(
  make_run, monkeypatch, process_started
):
  run = make_run('CartPole-v1')

  class Stopped(process.Process):
    def __init__(self, **words):
      if not process_started:
        run.stop()
      super().__init__(**words)
      if process_started:  # and has done nothing yet
        self.stop()

  monkeypatch.setattr(process, 'Process', Stopped)
  run.stop()  # of nothing
  assert run.resume(100, engine='local_mt', progress=False).stopped
  assert not (run.path / 'metrics' / 'counter.json').exists()


def test_a_refusal_of_its_process_is_raised_with_its_sentence(make_run):
  run = make_run('CartPole-v1')
  with pytest.raises(ValueError, match='^There is no setting') as refused:
    run.resume(100, learning_rat=1)
  assert 'agent.learning_rate' in str(refused.value)


LONG = """
import murmuration as mm

def tick(run, tick):
  if tick['steps'] > 0:
    print(run.path, flush=True)

mm.train(
  'dqn', 'CartPole-v1', steps=10**8, run_dir='run', on_tick=tick,
  batch_size=32, hidden_sizes=(16,), eval_episodes=1, target_return=None,
)
"""


@pytest.mark.long
@pytest.mark.parametrize('number', [signal.SIGKILL, signal.SIGINT])
def test_a_run_ends_with_its_caller(tmp_path, number):
  caller = subprocess.Popen(
    [sys.executable, '-c', LONG],
    cwd=tmp_path,
    env={**os.environ, 'PYTHONPATH': str(pathlib.Path(__file__).parents[2])},
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
    # What runs the tests in the background may ignore interrupts.
    preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
  )
  started = []
  try:
    assert caller.stdout.readline().strip() == str(tmp_path / 'run')
    started = psutil.Process(caller.pid).children(recursive=True)
    caller.send_signal(number)
    _, said = caller.communicate(timeout=100)
    _, alive = psutil.wait_procs(started, timeout=100)
    assert len(started) > 2 and alive == []
  finally:
    for one in [caller, *started]:
      if (
        one.is_running() if isinstance(one, psutil.Process) else not one.poll()
      ):
        one.kill()
  run = run_directory.open(tmp_path / 'run')
  assert run.summary()['outcome'] != 'budget'  # it has saved
  if number == signal.SIGINT:
    assert 'interrupted: kept in' in said and 'KeyboardInterrupt' in said


# In the caller's own process.


class Slow(cartpole.CartPoleEnv):
  """Ctrl-C comes in its third step."""

  max_episode_steps = 50
  seen = 0

  def step(self, action):
    type(self).seen += 1
    if self.seen == 3:
      raise KeyboardInterrupt
    return super().step(action)


def test_ctrl_c_ends_the_episodes_and_no_others(make_run):
  run = make_run(f'{__name__}:Slow', lstm_size='8')
  seen = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
  alone = [run.policy(one) for one in seen]
  run.policy.reset()
  found = [run.policy(one) for one in seen[:10]]
  Slow.seen = 0
  with pytest.raises(KeyboardInterrupt):
    run.evaluate(2)
  assert len(run.evaluate(2).returns) == 2
  # Of episodes that were under way nothing is forgotten.
  assert [*found, *(run.policy(one) for one in seen[10:])] == alone


def test_a_film_that_cannot_be_is_refused_before_it_is_played(
  make_run, tmp_path, monkeypatch
):
  run = make_run('CartPole-v1')
  monkeypatch.setattr(episodes, 'record', lambda *unused: pytest.fail())
  (tmp_path / 'dir.gif').mkdir()
  with pytest.raises(ValueError, match=r'\.gif or \.mp4'):
    run.film(tmp_path / 'film.avi')
  with pytest.raises(OSError, match='cannot be written'):
    run.film(tmp_path / 'dir.gif')


def test_an_agent_without_operations_is_played_by_its_own_code(
  make_run, monkeypatch
):
  run = make_run('Pendulum-v1', 'ppo')
  seen = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
  want = run.policy(seen)
  assert type(run.policy) is portable.Policy
  with monkeypatch.context() as patch:
    patch.setattr(ppo.PPO, 'operations', base.Agent.operations)
    own = murmuration.load(run.path)
    assert isinstance(own.policy, playing.Live)
    np.testing.assert_allclose(own.policy(seen), want, atol=1e-5)
    np.testing.assert_allclose(own.policy(seen[0]), want[0], atol=1e-5)
    assert own.policy(seen).dtype == want.dtype
    for wrong in (np.zeros(4), np.zeros((0, 3)), 'abc', {'a': 1}):
      with pytest.raises(ValueError, match='shape'):
        own.policy(wrong)
    assert len(own.evaluate(2).returns) == 2


class Narrow(cartpole.CartPoleEnv):
  pass


class Wide(gymnasium.Wrapper):
  """Poles with another number to see."""

  def __init__(self, **options):
    super().__init__(cartpole.CartPoleEnv(**options))
    self.observation_space = gymnasium.spaces.Box(-9, 9, (5,), np.float32)


def test_an_id_that_is_registered_anew_is_another_environment(
  make_run, monkeypatch
):
  registry_, name = gymnasium.registry, 'Anew-v0'
  monkeypatch.setitem(registry_, name, None)
  for entry_point, size in ((Narrow, 4), (Wide, 5)):
    del registry_[name]
    gymnasium.register(name, functools.partial(entry_point))
    run = make_run(f'{__name__}:{entry_point.__name__}', 'ppo')
    config = {**run.config(), 'environment': name}  # as another process has it
    (run.path / 'config.json').write_text(json.dumps(config))
    assert run.policy(np.zeros(size)) in (0, 1)
    shutil.rmtree(run.path)
