"""Workers whose members learn from unrolls, in this process."""

import functools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from murmuration.agents import a2c
from murmuration.agents import impala
from murmuration.agents import learner
from murmuration.agents import ppo
from murmuration.agents.exchange import local
from murmuration.agents.exchange import pull
from murmuration.environment_loops import environments
from murmuration.launch import actor_settings
from murmuration.launch import experience
from murmuration.launch import experiment as experiment_lib
from murmuration.replay import blocks

COUNTING = environments.Spec('counting', (3,), 2)
T, SEQUENCES, MEMBERS = 4, 6, 2
ENVIRONMENTS = SEQUENCES * MEMBERS
ROLLOUT = T * SEQUENCES  # steps of one member
EPOCHS, UPDATES = 2, 6
PPO: dict[str, Any] = {
  'hidden_sizes': (8,),
  'unroll_length': T,
  'rollout_steps': ROLLOUT,
  'batch_size': ROLLOUT // 3,
  'epochs': EPOCHS,
}
# Of the two that have no rollouts; an update is of SEQUENCES unrolls.
IMPALA: dict[str, Any] = {
  'hidden_sizes': (8,),
  'unroll_length': T,
  'batch_size': SEQUENCES,
}


def _experiment(agent=ppo.PPO, config=None, num_agents=MEMBERS, **run):
  config = config or ppo.Config(**PPO)
  return experiment_lib.Experiment(
    make_agent=functools.partial(agent, config, COUNTING),
    environment='counting',
    num_agents=num_agents,
    max_replay_size=1,
    min_replay_size=1,
    pace=experiment_lib.Pace(64.0),
    run=experiment_lib.RunConfig(**{'steps_per_agent': 3 * ROLLOUT, **run}),
  )


class _Watches:
  """Keeps what each call learned from, acted with and came to."""

  def __init__(self, monkeypatch, **options):
    super().__init__(**options)
    self.samples, self.acting, self.results, self.episodes = [], [], [], []
    step = learner.TFLearner.step

    def watched(learner, sample, *rest):
      self.samples.append(
        blocks.Block(*(np.asarray(column) for column in sample))
      )
      self.acting.append(self.worker.theta.copy())
      self.results.append(step(learner, sample, *rest))
      return self.results[-1]

    monkeypatch.setattr(learner.TFLearner, 'step', watched)

  def initial(self, theta, again):
    del again
    # Far from each other, and from a policy that acts alike everywhere.
    noise = np.random.default_rng(0).normal(0, 0.3, theta.shape)
    return theta + noise.astype(np.float32)

  def begin(self, worker):
    self.worker = worker

  def episode_ended(self, done):
    self.episodes.append(done)


class _Watched(_Watches, local.Local):
  """Keeps that of the gradient alone."""


class _Pulled(_Watches, pull.Pull):
  """Keeps that of members that are pulled to a star."""

  star = None

  def begin(self, worker):
    super().begin(worker)
    self.set_star(self.star, [1.0, 0.0])


def test_each_worker_has_minibatches_of_its_own(make_worker, make_counter):
  experiment = _experiment(num_agents=3)
  counter = make_counter(None)
  seeds = [
    make_worker(experiment, counter, members=[i])._experience.feed.seed
    for i in range(3)
  ]
  assert len(set(seeds)) == 3
  # The first has those that a run of one worker has.
  assert seeds[0] == experience.of_members(experiment, 1).feed.seed


def test_what_is_learned_from_is_exactly_what_was_acted(
  recorder, run_worker, make_counter, monkeypatch
):
  # Two vector steps and a bit more than three rollouts.
  experiment = _experiment(steps_per_agent=3 * ROLLOUT + SEQUENCES + 1)
  seen = _Watched(monkeypatch)
  counter = make_counter(None, {'actor_steps': experiment.total_steps})
  run_worker(experiment, counter, exchange=lambda: seen)
  (environment,) = recorder
  assert [len(rows) for rows in environment.steps] == (
    [3 * T + 2] * ENVIRONMENTS
  )
  assert len(seen.samples) == 3  # what is no whole rollout is not learned
  cuts = 0
  for call, sample in enumerate(seen.samples):
    assert sample.reward.shape == (1, T, ENVIRONMENTS)
    assert sample.version == [call * UPDATES]
    for k, rows in enumerate(environment.steps):
      acted = rows[call * T : (call + 1) * T]
      o, a, r, d, arrival, last = (np.array(x) for x in zip(*acted))
      np.testing.assert_array_equal(sample.observation[0, :T, k], o)
      np.testing.assert_array_equal(sample.action[0, :, k], a)
      np.testing.assert_array_equal(sample.reward[0, :, k], r)
      np.testing.assert_array_equal(sample.discount[0, :, k], d)
      np.testing.assert_array_equal(sample.last[0, :, k], last)
      cut = np.flatnonzero(last & (d > 0))
      # Without a time limit a block has room for one true end.
      no_experience = np.flatnonzero(~sample.valid[0, :, k])
      np.testing.assert_array_equal(no_experience, cut[1:])
      if len(cut):
        cuts += 1
        np.testing.assert_array_equal(
          sample.final_observation[0, 0, k], arrival[cut[0]]
        )
  assert cuts > 10
  totals = counter.totals()
  assert totals['actor_steps'] == experiment.total_steps
  assert totals['learner_steps'] == MEMBERS * 3 * UPDATES
  assert totals['episodes'] == len(seen.episodes)
  # Episodes are told by member.
  ended = []
  for k, rows in enumerate(environment.steps):
    total = 0.0
    for _, _, reward, _, _, last in rows:
      total += reward
      if last:
        ended.append((k // SEQUENCES, total))
        total = 0.0
  assert sorted(
    (done.index, done.episode_return) for done in seen.episodes
  ) == sorted(ended)
  # Each member acted with its own newest parameters: pi / mu is 1.
  assert (seen.acting[0] != seen.acting[1]).any(axis=1).all()
  for result in seen.results:
    assert result.metrics['lag_deviation'].max() < 1e-4


CASES = {
  'PPO with an LSTM': (
    ppo.PPO,
    ppo.Config(**{**PPO, 'lstm_size': 4, 'shared_torso': True}),
    UPDATES,
    ROLLOUT,
  ),
  'IMPALA': (impala.IMPALA, impala.Config(**IMPALA), 2, 2 * ROLLOUT),
  'A2C': (a2c.A2C, a2c.Config(**IMPALA), 1, ROLLOUT),
}


@pytest.mark.parametrize(
  'name',
  [
    pytest.param('PPO with an LSTM', marks=pytest.mark.long),
    'IMPALA',
    'A2C',
  ],
)
def test_agents_on_unrolls_learn_all_that_they_act(
  recorder, run_worker, make_counter, monkeypatch, name
):
  agent, config, updates, steps = CASES[name]
  # The counting rewards are of no size to learn from.
  config = type(config)(**{**vars(config), 'reward_scale': 1e-6})
  experiment = _experiment(
    agent, config, updates_per_call=2, steps_per_agent=2 * steps
  )
  seen = _Watched(monkeypatch)
  counter = make_counter(None, {'actor_steps': experiment.total_steps})
  run_worker(experiment, counter, exchange=lambda: seen)
  assert counter.totals()['learner_steps'] == MEMBERS * 2 * updates
  acted = sum(len(rows) for rows in recorder[0].steps)
  learned = sum(sample.reward.size for sample in seen.samples)
  assert acted == learned == MEMBERS * 2 * steps
  lags = [np.ptp(sample.version) for sample in seen.samples]
  assert lags == [0, 0], 'a call is acted with one set of parameters'
  for result in seen.results:
    assert not result.skipped.any()
    assert all(np.isfinite(v).all() for v in result.metrics.values())
  assert (seen.acting[0] != seen.acting[1]).any(axis=1).all()


def test_theta_star_pulls_once_after_each_rollout(
  recorder, run_worker, make_counter, monkeypatch
):
  seen = _Pulled(monkeypatch, c_max=None, period=UPDATES)
  experiment = _experiment()
  star = np.full(experiment.make_agent().layout.size, 0.3, np.float32)
  seen.star = star
  monkeypatch.setattr(
    tf.random.Generator, 'uniform', lambda self, shape: tf.fill(shape, 0.5)
  )
  counter = make_counter(None, {'actor_steps': experiment.total_steps})
  worker = run_worker(
    experiment,
    counter,
    exchange=lambda: seen,
    # Without a gradient's part, so that only the pull moves.
    learning_rates=[0.0] * MEMBERS,
  )
  assert len(seen.acting) == 3
  for before, after in zip(seen.acting, [*seen.acting[1:], worker.theta]):
    np.testing.assert_allclose(after[0], (before[0] + star) / 2, rtol=1e-5)
    np.testing.assert_array_equal(after[1], before[1])


def test_budgets_without_a_whole_rollout_are_refused():
  experience.check_members(_experiment(steps_per_agent=ROLLOUT))
  with pytest.raises(
    ValueError, match=f'learning begins after {ROLLOUT} steps'
  ):
    experience.check_members(_experiment(steps_per_agent=ROLLOUT - 1))


def test_a_server_is_waited_for_as_long_as_its_table(check_patience):
  experiment = _experiment(impala.IMPALA, impala.Config(**IMPALA), num_agents=1)
  config = actor_settings.Config(num_actors=1, envs_per_actor=SEQUENCES)
  check_patience(experience.of_actors(experiment, config))
