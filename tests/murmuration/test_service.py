"""What a helper process plays, and that Ctrl-C ends it and nothing else."""

import json
import os
import signal
import threading

import numpy as np
import pytest

import murmuration
from murmuration import objects
from murmuration import process
from murmuration import service
from murmuration.launch import cell as cell_lib
from murmuration.launch import registry
from murmuration.run_records import checkpoints
from murmuration.run_records import run_directory

# Step by step as slow as its file says; the second can be broken off by nobody.
ENVIRONMENTS = """
import pathlib
import time

import gymnasium
from gymnasium.envs.classic_control import cartpole

HERE = pathlib.Path(__file__).parent


class Slow(cartpole.CartPoleEnv):
  max_episode_steps = 50

  def step(self, action):
    (HERE / 'stepped').touch()
    time.sleep(float((HERE / 'seconds').read_text()))
    return super().step(action)


class Deaf(Slow):
  def step(self, action):
    while True:
      try:
        return super().step(action)
      except KeyboardInterrupt:
        pass
"""


@pytest.fixture
def make_run(tmp_path, monkeypatch):
  """make_run(environment): a run of a policy with memory, and its directory."""
  (tmp_path / 'slow_poles.py').write_text(ENVIRONMENTS)
  (tmp_path / 'seconds').write_text('60')
  monkeypatch.syspath_prepend(tmp_path)

  def make(environment):
    overrides = {'environment': environment, 'agent.lstm_size': '8'}
    config = cell_lib.resolve('impala', overrides=overrides).config
    run = run_directory.create(tmp_path / 'run', config, {})
    agent = registry.make(json.loads(json.dumps(config)))
    checkpoints.write(
      run.checkpoints / checkpoints.BEST,
      theta=agent.initial(0),
      return_mean=1.0,
      steps=1,
    )
    return murmuration.load(run.path)

  return make


@pytest.fixture
def interrupted(tmp_path):
  """interrupted(call): Ctrl-C once an environment steps in that call."""

  def press(*unused):
    raise KeyboardInterrupt

  # Not SIGINT, which is for the tests.
  previous = signal.signal(signal.SIGUSR1, press)

  def calls():
    return sum(helper._calls for helper in process._services.values())

  def wait(over, before):
    # Not while it still asks: whoever may have half a question is killed.
    while not ((tmp_path / 'stepped').exists() and calls() > before):
      if over.wait(0.01):
        return
    os.kill(os.getpid(), signal.SIGUSR1)

  def interrupt(call):
    (tmp_path / 'stepped').unlink(missing_ok=True)
    over = threading.Event()
    arguments = over, calls()
    thread = threading.Thread(target=wait, args=arguments, daemon=True)
    thread.start()
    try:
      with pytest.raises(KeyboardInterrupt):
        call()
    finally:  # also where it never stepped
      over.set()
      thread.join()
    (tmp_path / 'seconds').write_text('0')

  yield interrupt
  signal.signal(signal.SIGUSR1, previous)


@pytest.fixture
def services(monkeypatch):
  found = {}
  monkeypatch.setattr(process, '_services', found)
  yield found
  for helper in found.values():
    helper.close()


def test_ctrl_c_ends_the_episodes_and_leaves_the_process_as_it_was(
  make_run, interrupted, services, monkeypatch
):
  monkeypatch.setattr(process, '_INTERRUPT_S', 60.0)  # on a busy machine
  run = make_run('slow_poles:Slow')
  seen = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
  alone = [run.policy(one) for one in seen]
  run.policy.reset()
  found = [run.policy(one) for one in seen[:10]]
  (helper,) = services.values()
  interrupted(lambda: run.evaluate(2))
  assert len(run.evaluate(2).returns) == 2
  assert [*services.values()] == [helper] and helper.process.poll() is None
  # Of episodes that were under way nothing is forgotten.
  assert [*found, *(run.policy(one) for one in seen[10:])] == alone


def test_what_ctrl_c_cannot_end_goes_with_its_process(
  make_run, interrupted, services, monkeypatch
):
  monkeypatch.setattr(process, '_INTERRUPT_S', 0.3)
  run = make_run('slow_poles:Deaf')
  interrupted(lambda: run.evaluate(2))
  (helper,) = services.values()
  assert helper.process.poll() == -signal.SIGKILL
  assert len(run.evaluate(2).returns) == 2


def test_half_a_message_holds_up_nobody(tmp_path, services, monkeypatch):
  given = objects.Objects()
  helper = process.service(given)

  class Half:
    def send(self, message):
      raise KeyboardInterrupt

  with monkeypatch.context() as patch:
    patch.setattr(helper, 'connection', Half())
    with pytest.raises(KeyboardInterrupt):
      helper.call('config', path=tmp_path)
  assert helper.process.poll() == -signal.SIGKILL
  with pytest.raises(ValueError, match='no run|not a run'):
    process.service(given).call('config', path=tmp_path)


def test_a_film_that_cannot_be_is_refused_before_it_is_played(
  make_run, tmp_path, monkeypatch
):
  run = make_run('CartPole-v1')
  monkeypatch.setattr(service.playing, 'record', lambda *unused: pytest.fail())
  (tmp_path / 'dir.gif').mkdir()
  with pytest.raises(ValueError, match=r'\.gif or \.mp4'):
    service.film(run.path, tmp_path / 'film.avi', 0, 10)
  with pytest.raises(OSError, match='in the way'):
    service.film(run.path, tmp_path / 'dir.gif', 0, 10)


@pytest.mark.parametrize('process_started', [False, True])
def test_a_stop_in_the_first_moment_is_one_of_the_run(
  make_run, monkeypatch, process_started
):
  run = make_run('slow_poles:Slow')

  class Stopped(process.Helper):
    def __init__(self, *arguments, **options):
      if not process_started:
        run.stop()
      super().__init__(*arguments, **options)
      if process_started:  # and has done nothing yet
        self.stop()

  monkeypatch.setattr(process, 'Helper', Stopped)
  run.stop()  # of nothing
  assert run.resume(100, engine='local_mp', progress=False).stopped
  assert not (run.path / 'metrics' / 'counter.json').exists()
