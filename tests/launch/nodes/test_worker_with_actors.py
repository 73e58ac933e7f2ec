"""A worker that learns what actors send: a queue that a test fills."""

import functools
import threading

import numpy as np
import pytest
import reverb

from murmuration.agents import base
from murmuration.agents import impala
from murmuration.agents import learner
from murmuration.agents import parameters
from murmuration.environment_loops import environments
from murmuration.environment_loops import vector
from murmuration.launch import actor_settings
from murmuration.launch import experience
from murmuration.launch import experiment as experiment_lib
from murmuration.launch.nodes import worker as worker_lib
from murmuration.launch.rpc import directory

UNROLL, ENVS = 3, 4
TIMEOUT_S = 100
TOO_MUCH = 3e38  # a reward that is finite, of which the gradient is not


class Counter:
  """Stands for the counter: keeps what the learner says last."""

  def __init__(self):
    self.finished = False
    self.metrics = {}
    self.totals = {}
    self.holds = []

  def with_deadline(self, timeout_s):
    del timeout_s
    return self

  def begin(self, node, life):
    return {}

  def report(self, node, counts, metrics, life):
    del node, life
    self.totals.update(counts)
    self.metrics.update(metrics)
    return {'finished': self.finished}

  def log(self, node, kind, row):
    pass

  def hold(self, node, seconds):
    del node
    self.holds.append(seconds)


class Alone:
  """A learner in a thread, and an actor that does what a test says."""

  def __init__(self, run_dir=None, **config):
    self.config = actor_settings.Config(
      num_actors=1, envs_per_actor=ENVS, **{'queue_batches': 200, **config}
    )
    self.experiment = experiment_lib.Experiment(
      make_agent=functools.partial(
        impala.IMPALA,
        impala.Config(hidden_sizes=(8,), unroll_length=UNROLL, batch_size=ENVS),
        environments.spec('CartPole-v1'),
      ),
      environment='CartPole-v1',
      num_agents=1,
      max_replay_size=1,
      min_replay_size=1,
      run=experiment_lib.RunConfig(updates_per_call=1),
      run_dir=run_dir,
    )
    self.counter = Counter()
    address = f'localhost:{directory.pick_port(set())}'
    self.worker = worker_lib.Worker(
      self.experiment,
      'learner/0',
      [self.experiment.actor_info(0)],
      self.counter,
      [address],
      actors=self.config,
    )
    self.error = None
    self.stop = threading.Event()
    self._thread = threading.Thread(target=self._run, daemon=True)
    self._thread.start()
    self.wait_until(lambda: self.worker.get_parameters(-1)['version'] == 0)
    found = experience.of_actors(self.experiment, self.config)
    self.agent = found.agent
    self._behaviour = self.agent.actor(base.ActorInfo(0, 1, 0), ENVS)
    self._environment = vector.make_vector('CartPole-v1', ENVS, seed=0)
    self._observation = self._environment.reset()
    self._rng = np.random.default_rng(0)
    client = reverb.Client(address)
    self.wait_until(lambda: _is_there(client))
    self._adder, self._record = found.adder(
      client, 'replay', self._behaviour, None, self.stop.is_set
    )

  def _run(self):
    try:
      self.worker.run(self.stop)
    except Exception as e:
      self.error = e

  def served(self):
    """Version and theta, as actors get them."""
    answer = self.worker.get_parameters(-1)
    _, theta = parameters.decode(self.agent.layout, answer['theta'])
    return answer['version'], theta

  def act(self, num_blocks, version, reward=None):
    """Writes blocks of steps with the served parameters."""
    _, theta = self.served()
    for _ in range(num_blocks * UNROLL):
      observation = self._observation
      action = self._behaviour.act(theta, observation, 0, self._rng)
      step = self._environment.step(action)
      if reward is not None:
        step = step._replace(reward=np.full(ENVS, reward, np.float32))
      self._record(observation, action, step, version)
      self._behaviour.ended(step.last)
      self._observation = step.next_observation
    self._adder.flush()

  def wait_until(self, condition):
    for _ in range(int(TIMEOUT_S / 0.05)):
      if condition():
        return
      assert self.error is None, self.error
      threading.Event().wait(0.05)
    raise AssertionError(f'waited in vain: {self.counter.metrics}')

  def wait_for(self, **metrics):
    self.wait_until(
      lambda: all(
        self.counter.metrics.get(name) == value
        for name, value in metrics.items()
      )
    )

  def end(self):
    """Waits for the thread, asked to stop or not."""
    self._thread.join(TIMEOUT_S)
    assert not self._thread.is_alive()

  def close(self):
    self.stop.set()
    self.end()
    self._adder.close()
    self._environment.close()


def _is_there(client):
  try:
    return 'replay' in client.server_info(timeout=1)
  except Exception:
    return False


@pytest.fixture
def alone():
  made = []

  def make(run_dir=None, **options):
    made.append(Alone(run_dir, **options))
    return made[-1]

  yield make
  for one in made:
    one.close()


def test_an_update_that_is_not_finite_is_skipped_and_counted(alone):
  run = alone()
  _, before = run.served()
  run.act(3, version=0, reward=TOO_MUCH)
  run.wait_for(skipped_updates=3)
  version, theta = run.served()
  assert version == 3
  np.testing.assert_array_equal(theta, before)
  run.act(2, version=3)
  run.wait_until(lambda: run.served()[0] == 5)
  version, theta = run.served()
  assert np.isfinite(theta).all() and not np.array_equal(theta, before)
  run.wait_for(skipped_updates=3)
  assert run.error is None


def test_a_hundred_in_a_row_end_the_learner_with_the_reason(alone):
  run = alone()
  most = learner.MAX_SKIPPED_IN_A_ROW
  run.act(most - 1, version=0, reward=TOO_MUCH)
  run.wait_for(skipped_updates=most - 1)
  run.act(1, version=0)  # which is finite: the row is broken
  run.act(most, version=0, reward=TOO_MUCH)
  run.end()
  assert isinstance(run.error, learner.LearnerFault)
  message = f'skipped {most} updates in a row because its gradient is not'
  assert message in str(run.error) and 'learning_rate' in str(run.error)
  # Whoever comes in its place must not begin with broken parameters.
  assert np.isfinite(run.served()[1]).all()


def test_a_block_that_lags_too_far_is_counted_and_teaches_nothing(alone):
  run = alone(max_lag=2)
  run.act(3, version=0)  # learned from at steps 0 to 2
  run.wait_until(lambda: run.served()[0] == 3)
  before = run.served()[1]
  run.act(1, version=0)
  run.wait_for(stale_blocks=1)
  run.wait_until(lambda: run.served()[0] == 4)
  assert run.counter.metrics['policy_lag_max'] == 3
  # Not by the momentum of its optimizer either.
  np.testing.assert_array_equal(run.served()[1], before)
  run.act(2, version=4)
  run.wait_until(lambda: run.served()[0] == 6)
  run.wait_for(stale_blocks=1)


def test_with_an_empty_queue_the_learner_waits_and_goes_on(alone):
  run = alone()
  run.act(2, version=0)
  run.wait_until(lambda: run.served()[0] == 2)
  threading.Event().wait(1.0)
  assert run.served()[0] == 2 and run.error is None
  run.act(1, version=2)
  run.wait_until(lambda: run.served()[0] == 3)


def test_with_an_empty_queue_the_learner_hears_of_the_end(alone):
  run = alone()
  run.act(2, version=0)
  run.wait_until(lambda: run.served()[0] == 2)
  run.counter.finished = True
  # Held until the last checkpoint, and then let go.
  run.wait_until(lambda: run.counter.holds[1:] == [0])
  run.stop.set()
  run.end()
  assert run.error is None and run.counter.totals['learner_steps'] == 2
