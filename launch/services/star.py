"""The star of a swarm: it holds theta_star, and plays what decides on it.

Liu et al. 2018: one supervisor holds theta_star. Explorers offer candidates.
Greedy episodes, played here, decide which of them becomes theta_star and how
strongly it pulls (agents/swarm/supervisor_rules.py).

    explorer: get_star(version) -> theta_star, c, R_star, bar
              offer(theta, claim, ...)
    star:     next -> one episode -> finish -> checkpoint -> explorers see it
"""

from __future__ import annotations

import logging
import pathlib
import threading
import time
from typing import Any

import numpy as np

from murmuration.agents import parameters
from murmuration.agents.swarm import explorers
from murmuration.agents.swarm import supervisor_rules
from murmuration.environment_loops import environments
from murmuration.environment_loops import evaluation
from murmuration.environment_loops import faults
from murmuration.environment_loops import vector
from murmuration.launch import experiment as experiment_lib
from murmuration.launch import pulse
from murmuration.launch import reporting
from murmuration.launch.nodes import evaluator
from murmuration.run_records import checkpoints

_logger = logging.getLogger(__name__)
_CHECKPOINT_PERIOD_S = 2.0
_WAIT_S = 0.1  # for a candidate


class Star:
  """Serves theta_star to explorers, and plays the supervisor's episodes."""

  serves = ('get_parameters', 'get_star', 'offer')

  def __init__(
    self,
    experiment: experiment_lib.Experiment,
    config: explorers.Config,
    counter: Any,
  ):
    """Starts empty, or from its checkpoint in the run's directory.

    The run ends when a whole window of confirmations of theta_star has a mean
    of `run.target_return`.
    """
    self._experiment = experiment
    self._config = config
    self._agent = experiment.make_agent()
    self._reporter = reporting.Reporter('star/0', counter)
    self._lock = threading.Lock()  # of the rules and of what explorers get
    self._rules = supervisor_rules.Rules(config)
    self._seen: tuple[int, bytes | None] = (0, None)  # version and theta_star
    self._published = time.monotonic()  # or the start that took it up
    self._trial_since = 0.0
    self._confirmed = 0  # episodes of theta_star after its trial, in this life
    self._faults = 0
    self._directory: pathlib.Path | None = None
    self._saved = time.monotonic()
    self._changed = False  # since the last checkpoint
    if experiment.run_dir is not None:
      self._directory = checkpoints.directory(experiment.run_dir)
      self._restore()

  # Served.

  def get_parameters(self, have_version: int) -> dict[str, Any]:
    """theta_star in a learner's format, see `variables.Published.get`."""
    star = self.get_star(have_version)
    return {'version': star['version'], 'theta': star['theta']}

  def get_star(self, known_version: int) -> dict[str, Any]:
    """theta_star, encoded, or None if `known_version` is it, and its numbers.

    'bar' is the claim of the waiting candidate.
    """
    with self._lock:
      version, theta = self._seen
      return {
        'version': version,
        # Not `>`: a star restored from its checkpoint may have an older one.
        'theta': None if version == known_version else theta,
        'c': self._rules.c if theta is not None else 0.0,
        'r_star': self._rules.r_star,
        'bar': self._rules.bar,
      }

  def offer(
    self, theta: bytes, claim: float, explorer: int, learner_step: int
  ) -> bool:
    """Keeps the candidate if its claim exceeds the waiting one's.

    Raises:
      parameters.LayoutMismatch: the explorer has another network.
      ValueError: the parameters are not finite.
    """
    _, offered = parameters.decode(self._agent.layout, theta)
    if not np.isfinite(offered).all():
      raise ValueError(f'Explorer {explorer} offered non-finite parameters.')
    with self._lock:
      self._changed = True
      return self._rules.offer(
        supervisor_rules.Candidate(
          np.array(offered), float(claim), int(explorer), int(learner_step)
        )
      )

  # The node.

  def run(self, stop: threading.Event | None = None) -> None:
    """Plays until the program stops."""
    self._stop = stop = pulse.stop_event(stop)
    evaluator.be_nice(self._experiment)
    # A restarted star plays other episodes than the one that died.
    seed = np.random.SeedSequence([self._experiment.seed, time.time_ns()])
    with pulse.busy('building an environment'):
      environment = environments.make(
        self._experiment.environment, int(seed.generate_state(1)[0] >> 1)
      )
    try:
      while not stop.is_set():
        self._episode(environment)
        if time.monotonic() - self._saved > _CHECKPOINT_PERIOD_S:
          self.save()
        self._report()
    finally:
      environment.close()
      self.save()

  def metrics(self) -> dict[str, float]:
    """Metrics of the swarm, for the counter and the live view."""
    with self._lock:
      rules = self._rules
      found = {
        'R_star': rules.r_star,
        'c': rules.c,
        'x': rules.x,
        'accepted': rules.accepted,
        'rejected': rules.rejected,
        'rejected_fraction': rules.rejected_fraction,
        'waiting_claim': rules.bar,
        'claim_bar': rules.claim_bar,
        'offers': rules.offers,
        'star_version': rules.version,
        'episodes_supervised': rules.episodes,
      }
      if rules.star is not None:
        # With 0 learner steps, theta_star is a lucky random network.
        found['star_learner_steps'] = rules.star.learner_step
        found['star_age_s'] = time.monotonic() - self._published
      return found

  def save(self) -> None:
    """Writes the checkpoint if anything changed since the last one."""
    self._saved = time.monotonic()
    with self._lock:
      if self._directory is None or not self._changed:
        return
      self._changed = False
      arrays: dict[str, Any] = self._rules.save()
      star = self._rules.star
      version, r_star = self._rules.version, self._rules.r_star
    what = 'the checkpoint of theta_star'
    with pulse.survives(what), pulse.busy(what):
      checkpoints.write(self._directory / checkpoints.STAR_SERVER, **arrays)
      if star is not None:
        checkpoints.write(
          self._directory / checkpoints.STAR,
          sync=False,  # nothing goes on from it
          theta=star.theta,
          version=version,
          r_star=r_star,
          explorer=star.explorer,
        )
      return
    self._changed = True  # It was not written.

  def _report(self) -> None:
    if self._reporter.due():
      self._reporter.report(self.metrics())

  def _episode(self, environment: Any) -> None:
    """Plays the next episode, or waits where there is none."""
    with self._lock:
      tried = self._rules.trial
      candidate = self._rules.next()
      trial = self._rules.trial
      version = self._rules.version
    if candidate is None:
      self._stop.wait(_WAIT_S)
      return
    if trial is not None and (trial is not tried or not self._trial_since):
      self._trial_since = time.monotonic()
    timed_out = False
    steps = 0

    def ends() -> bool:
      nonlocal steps, timed_out
      self._report()
      spent = time.monotonic() - self._trial_since
      timed_out = trial is not None and spent > self._config.trial_timeout_s
      leaves = timed_out or self._stop.is_set()
      steps += not leaves
      return leaves

    found = None
    try:
      found = evaluation.run_episode(
        self._policy(candidate),
        environment,
        self._experiment.eval_limit,
        should_stop=ends,
      )
    except faults.EnvironmentFault as e:
      if self._experiment.run.on_fault == vector.RAISE:
        raise
      # Part of an episode gives no return; it is played again.
      self._faults += 1
      faults.say_dropped(_logger, self._faults, e)
      self._reporter.count(supervisor_faults=1)
      # A policy may break each of its episodes, at once and without end.
      self._stop.wait(self._config.confirmation_period_s)
    # Steps of an episode that was left, or broke, were played too.
    self._reporter.count(supervisor_steps=steps)
    if found is not None:
      self._reporter.count(supervisor_episodes=1)
      self._take(candidate, found, version, is_trial=trial is not None)
    elif timed_out:
      self._drop(candidate)
    if found is not None and trial is None:
      # Confirmations never stop; without a pause they would use a whole core.
      self._stop.wait(self._config.confirmation_period_s)

  def _policy(self, candidate: supervisor_rules.Candidate) -> Any:
    policy = self._agent.greedy(candidate.theta)
    epsilon = self._experiment.run.eval_epsilon
    if epsilon:
      policy = evaluation.Randomized(
        policy, self._agent.spec, epsilon, time.time_ns()
      )
    return policy

  def _take(
    self,
    candidate: supervisor_rules.Candidate,
    episode_return: float,
    version: int,
    is_trial: bool,
  ) -> None:
    rules = self._rules
    with self._lock:
      decided = rules.finish(episode_return)
      self._changed = True
    accepted = rules.version != version
    if accepted:
      # Saved before explorers see it, and before its row is written: the next
      # start must not give its number to another.
      self.save()
      with self._lock:
        self._show()
      self._confirmed = 0
      self._reporter.log(
        'star',
        {
          'version': rules.version,
          'claim': candidate.claim,
          'R_star': rules.r_star,
          'c': rules.c,
          'x': rules.x,
          'explorer': candidate.explorer,
          'learner_steps': candidate.learner_step,
        },
      )
    if decided:
      self._log_candidate(candidate, accepted)
    self._reporter.log(
      'supervisor',
      {
        'kind': 'trial' if is_trial else 'confirmation',
        'version': version,
        'episode_return': episode_return,
        'R_star': rules.r_star,
      },
    )
    if not is_trial:
      self._confirmed += 1
      self._check_goal(candidate)

  def _drop(self, candidate: supervisor_rules.Candidate) -> None:
    """Rejects a candidate whose trial took too long."""
    with self._lock:
      self._rules.reject()
      self._changed = True
    _logger.warning(
      'A candidate is dropped: after swarm.trial_timeout_s=%g s %d of %d '
      'episodes of its trial had ended.',
      self._config.trial_timeout_s,
      len(self._rules.trial_returns),
      self._config.b + 1,
    )
    self._log_candidate(candidate, accepted=False)

  def _log_candidate(
    self, candidate: supervisor_rules.Candidate, accepted: bool
  ) -> None:
    rules, tried = self._rules, {}
    if rules.trial_returns:  # a trial that timed out may have none
      tried['trial_mean'] = float(np.mean(rules.trial_returns))
    self._reporter.log(
      'candidate',
      {
        'accepted': accepted,
        'claim': candidate.claim,
        'explorer': candidate.explorer,
        'R_star': rules.r_star,
        'rejected_fraction': rules.rejected_fraction,
        **tried,
      },
    )

  def _check_goal(self, star: supervisor_rules.Candidate) -> None:
    rules, target = self._rules, self._experiment.run.target_return
    # The trial chose theta_star by its episodes, so they do not confirm it. Nor
    # is each window that ends anew looked at: of many, one would do by luck.
    if target is None or self._confirmed % self._config.window:
      return
    if rules.r_star < target or self._reporter.finished:
      return
    self.save()
    self._reporter.finish(
      f'theta_star has a confirmed mean return of {rules.r_star:.1f} over '
      f'{len(rules.hist)} episodes (target {target:g})',
      {
        'R_star': rules.r_star,
        'episodes': len(rules.hist),
        'version': rules.version,
        'explorer': star.explorer,
        'star_learner_steps': star.learner_step,
        'accepted': rules.accepted,
        'rejected': rules.rejected,
      },
    )

  def _show(self) -> None:
    """Gives explorers the newest theta_star. The lock is held."""
    version, star = self._rules.version, self._rules.star
    if star is not None:
      theta = parameters.encode(self._agent.layout, version, star.theta)
      self._seen = version, theta
      self._published = time.monotonic()

  def _restore(self) -> None:
    assert self._directory is not None
    path = self._directory / checkpoints.STAR_SERVER
    arrays = checkpoints.read(path, repair=True)
    if arrays is None:
      return
    size = self._agent.layout.size
    for name, array in arrays.items():
      if name == 'state' or name.endswith('theta') and array.shape != (size,):
        raise ValueError(
          f'{path} is of another version of this software or of another '
          'network: start a new run.'
        )
    self._rules.restore(arrays)
    self._show()
    _logger.info('Went on from version %d of theta_star.', self._rules.version)
