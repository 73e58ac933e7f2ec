"""The swarm's star server: holds theta_star and the waiting candidate.

It owns the supervisor's state machine (agents/swarm), so that supervisors are
stateless and may be started or killed at any time: each is told which episode
to run and reports its return. All state is in one checkpoint.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
import dataclasses
import logging
import math
import pathlib
import threading
import time
from typing import Any

import numpy as np

from agents import parameters
from agents.swarm import explorers
from agents.swarm import supervisor_rules
from launch import pulse
from launch import reporting
from launch.services import swarm_state
from run_records import checkpoints

_logger = logging.getLogger(__name__)
_TICK_S = 0.05
_CHECKPOINT_PERIOD_S = 2.0
# After so long without a call of `playing` (nodes/supervisor.py) or a report,
# an episode is taken for lost.
_EPISODE_TIMEOUT_S = 60.0
_PER_LIFE = 2**32  # candidate or ticket numbers in one life, at most


@dataclasses.dataclass
class _Running:
  ticket: supervisor_rules.Ticket
  supervisor: int
  since: float
  version: int  # of theta_star when the episode was requested


class StarServer:
  """Serves theta_star to explorers and episodes to supervisors."""

  serves = (
    'get_parameters',
    'get_star',
    'offer',
    'next_episode',
    'playing',
    'report_episode',
  )

  def __init__(
    self,
    config: explorers.Config,
    layout: parameters.Layout,
    run_dir: str | None,
    counter: Any,
    target_return: float | None = None,
    clock: Callable[[], float] = time.monotonic,
  ):
    """Starts empty, or from its checkpoint in `run_dir`, if that is not None.

    All nodes must have a network of this `layout`. The run ends when a whole
    window of confirmations of theta_star has a mean of `target_return`.
    """
    self._config = config
    self._layout = layout
    self._clock = clock
    self._counter = counter
    self._target_return = target_return
    self._machine = supervisor_rules.make_supervision(config)
    self._lock = threading.Lock()
    self._candidates: dict[int, swarm_state.Candidate] = {}
    # Each life has its own range of numbers (see `_restore`): a supervisor may
    # still hold or report numbers that the previous life did not save.
    self._next_candidate = self._next_ticket = pulse.life()[1] * _PER_LIFE
    self._running: dict[int, _Running] = {}
    self._trial_since: float | None = None
    self._version = 0
    self._published = clock()  # theta_star, or the start that took it up
    self._supervisor_seen = clock()
    self._episodes = 0
    self._offers = 0
    self._rows: collections.deque[tuple[str, dict[str, Any]]] = (
      collections.deque()
    )
    self._goal: dict[str, Any] | None = None
    self._confirmed = 0  # episodes of theta_star after its trial, in this life
    self._directory: pathlib.Path | None = None
    self._dirty = False
    self._saved = -math.inf
    if run_dir is not None:
      self._directory = checkpoints.directory(run_dir)
      self._restore()

  # Explorers.

  def get_parameters(self, have_version: int) -> dict[str, Any]:
    """theta_star in a learner's format, see `variables.Published.get`."""
    star = self.get_star(have_version)
    return {'version': star['version'], 'theta': star['theta']}

  def get_star(self, known_version: int) -> dict[str, Any]:
    """theta_star, encoded, or None if `known_version` is it, and its numbers.

    'bar' is the waiting claim, 'supervisor_age_s' the time since a supervisor
    last called.
    """
    with self._lock:
      star = self._machine.star
      theta = None
      # Not `>`: a server restored from its checkpoint may have an older one.
      if star is not None and self._version != known_version:
        theta = self._candidates[star].theta
      return {
        'version': self._version,
        'c': self._pull_weight(),
        'r_star': self._machine.r_star,
        'x': self._machine.x,
        'bar': self._machine.bar,
        'supervisor_age_s': self._clock() - self._supervisor_seen,
        'theta': theta,
      }

  def offer(
    self, theta: bytes, claim: float, explorer: int, learner_step: int
  ) -> bool:
    """Keeps the candidate if its claim exceeds the waiting one's.

    Raises:
      parameters.LayoutMismatch: the explorer has another network.
      ValueError: parameters or claim are not finite.
    """
    _, vector = parameters.decode(self._layout, theta)
    if not np.isfinite(vector).all() or not math.isfinite(claim):
      raise ValueError(
        f'Explorer {explorer} offered non-finite parameters or the claim '
        f'{claim}: refused.'
      )
    with self._lock:
      self._offers += 1
      if not self._machine.offer(self._next_candidate, claim):
        return False
      self._candidates[self._next_candidate] = swarm_state.Candidate(
        bytes(theta), float(claim), int(explorer), int(learner_step)
      )
      self._next_candidate += 1
      self._dirty = True
      self._forget()
      return True

  # Supervisors.

  def next_episode(self, supervisor: int, holding: int) -> dict[str, Any]:
    """The next episode for a supervisor; its previous one is taken for lost.

    Args:
      supervisor: index of the caller.
      holding: candidate whose parameters it already has, -1 for none.

    Returns:
      'ticket' (-1: wait for a candidate), 'kind', 'candidate', and 'theta'
      encoded, or None if the supervisor holds it.
    """
    with self._lock:
      self._supervisor_seen = self._clock()
      self._cancel(lambda running: running.supervisor == supervisor)
      self._expire()
      ticket = self._machine.next_episode()
      if ticket is None:
        return {'ticket': -1, 'kind': 'wait', 'candidate': -1, 'theta': None}
      if ticket.kind == 'trial' and self._trial_since is None:
        self._trial_since = self._clock()
      number = self._next_ticket
      self._next_ticket += 1
      self._running[number] = _Running(
        ticket, supervisor, self._clock(), self._version
      )
      theta = self._candidates[ticket.candidate].theta
      return {
        'ticket': number,
        'kind': ticket.kind,
        'candidate': ticket.candidate,
        'theta': None if ticket.candidate == holding else theta,
      }

  def playing(self, ticket: int) -> bool:
    """Keeps an episode from timing out. Returns whether its ticket is valid.

    It is not if its trial has taken longer than `swarm.trial_timeout_s`.
    """
    with self._lock:
      self._supervisor_seen = self._clock()
      self._heard(ticket)
      return ticket in self._running

  def report_episode(self, ticket: int, episode_return: float) -> bool:
    """Records an episode's return. Returns whether its ticket was valid."""
    if not math.isfinite(episode_return):
      raise ValueError(f'The episode return {episode_return} is not finite.')
    with self._lock:
      self._supervisor_seen = self._clock()
      self._heard(ticket)
      running = self._running.pop(ticket, None)
      if running is None:
        return False
      self._episodes += 1
      returns = self._trial_returns(float(episode_return))
      of_star = running.ticket.candidate == self._machine.star
      verdict = self._machine.finish(running.ticket, float(episode_return))
      if running.ticket.kind == 'confirmation' and of_star:
        self._confirmed += 1
        self._check_goal()
      if verdict.published is not None:
        # By the literal rules, theta_star's good confirmations do so again.
        if not of_star:
          self._publish(verdict.published, returns)
      elif verdict.dropped is not None:
        self._log_candidate(verdict.dropped, returns)
      self._log(
        'supervisor',
        kind=running.ticket.kind,
        version=running.version,
        episode_return=float(episode_return),
        R_star=self._machine.r_star,
      )
      if verdict != supervisor_rules.Verdict(None, None):
        self._trial_since = None
        self._forget()
      self._dirty = True
      return True

  # The node.

  def metrics(self) -> dict[str, float]:
    """Metrics of the swarm, for the counter and the live view."""
    with self._lock:
      machine = self._machine
      # With 0 learner steps, theta_star is a lucky random network.
      learned: dict[str, float] = {}
      if machine.star is not None:
        chosen = self._candidates[machine.star]
        learned['star_learner_steps'] = chosen.learner_step
        learned['star_age_s'] = self._clock() - self._published
      return {
        'R_star': machine.r_star,
        'c': self._pull_weight(),
        'x': machine.x,
        'accepted': machine.accepted,
        'rejected': machine.rejected,
        'rejected_fraction': self._rejected_fraction(),
        'waiting_claim': machine.bar,
        'claim_bar': machine.claim_bar,
        'offers': self._offers,
        'star_version': self._version,
        'episodes_supervised': self._episodes,
        'supervisor_age_s': self._clock() - self._supervisor_seen,
        **learned,
      }

  def run(self, stop: threading.Event | None = None) -> None:
    """Reports, logs and checkpoints until the run ends."""
    stop = pulse.stop_event(stop)
    reporter = reporting.Reporter('star/0', self._counter)
    while not stop.wait(_TICK_S):
      # Rows from before the save alone: of a publication that is on record,
      # the next start must not give the number to another.
      rows = len(self._rows)
      if self._clock() - self._saved > _CHECKPOINT_PERIOD_S:
        self.save()
      self._flush(reporter, rows)
      if reporter.due():
        reporter.report(self.metrics())
    self.save()

  def save(self) -> None:
    """Writes the checkpoint if anything changed since the last one."""
    with self._lock:
      if self._directory is None or not self._dirty:
        return
      self._dirty = False
      self._saved = self._clock()
      r_star = self._machine.r_star
      candidates = dict(self._candidates)
      kept = {
        'machine': dataclasses.asdict(self._machine),
        'version': self._version,
        'next_candidate': self._next_candidate,
        'episodes': self._episodes,
        'offers': self._offers,
      }
    what = 'the checkpoint of theta_star'
    with pulse.survives(what), pulse.busy(what):
      swarm_state.write(self._directory, self._layout, kept, candidates, r_star)
      return
    self._dirty = True  # It was not written.

  # With the lock held.

  def _pull_weight(self) -> float:
    if isinstance(self._machine, supervisor_rules.LiteralSupervision):
      return self._machine.published_c
    return self._machine.c

  def _trial_returns(self, *newest: float) -> list[float]:
    """Returns of the running trial; the literal rules have none."""
    if isinstance(self._machine, supervisor_rules.DefaultSupervision):
      return [*self._machine.trial_returns, *newest]
    return []

  def _rejected_fraction(self) -> float:
    machine = self._machine
    return machine.rejected / max(machine.accepted + machine.rejected, 1)

  def _log(self, rows: str, **row: Any) -> None:
    self._rows.append((rows, row))

  def _publish(self, candidate: int, returns: list[float]) -> None:
    self._version += 1
    self._published = self._clock()
    self._confirmed = 0
    # Makes `run` write a checkpoint immediately. Before the row is there: `run`
    # sends no row of a publication that is not saved.
    self._saved = -math.inf
    chosen = self._candidates[candidate]
    self._log(
      'star',
      version=self._version,
      claim=chosen.claim,
      R_star=self._machine.r_star,
      c=self._pull_weight(),
      x=self._machine.x,
      explorer=chosen.explorer,
      learner_steps=chosen.learner_step,
    )
    self._log_candidate(candidate, returns)

  def _log_candidate(self, candidate: int, returns: list[float]) -> None:
    chosen = self._candidates[candidate]
    # A trial that timed out may have completed no episode.
    tried = {'trial_mean': float(np.mean(returns))} if returns else {}
    self._log(
      'candidate',
      accepted=candidate == self._machine.star,
      claim=chosen.claim,
      explorer=chosen.explorer,
      R_star=self._machine.r_star,
      rejected_fraction=self._rejected_fraction(),
      **tried,
    )

  def _forget(self) -> None:
    """Drops the parameters that the rules can no longer ask for."""
    machine = self._machine
    keep = {machine.star}
    if isinstance(machine, supervisor_rules.LiteralSupervision):
      keep |= {machine.loaded, machine.arrived}
    else:
      keep |= {pair[0] for pair in (machine.waiting, machine.trial) if pair}
    self._candidates = {i: c for i, c in self._candidates.items() if i in keep}

  def _cancel(self, lost: Callable[[_Running], bool]) -> None:
    for number in [n for n, r in self._running.items() if lost(r)]:
      self._machine.cancel(self._running.pop(number).ticket)

  def _heard(self, ticket: int) -> None:
    """Of a supervisor that plays; a single one asks for nothing meanwhile."""
    running = self._running.get(ticket)
    if running is not None:
      running.since = self._clock()
    self._expire()

  def _expire(self) -> None:
    now = self._clock()
    self._cancel(lambda running: now - running.since > _EPISODE_TIMEOUT_S)
    if (
      self._trial_since is not None
      and now - self._trial_since > self._config.trial_timeout_s
    ):
      returns = self._trial_returns()
      dropped = self._machine.drop_trial()
      self._trial_since = None
      self._dirty = True
      if dropped is not None:
        _logger.warning(
          'A candidate is dropped: after swarm.trial_timeout_s=%g s %d of '
          '%d episodes of its trial had ended.',
          self._config.trial_timeout_s,
          len(returns),
          self._config.b + 1,
        )
        self._log_candidate(dropped, returns)
        # Whoever plays another of its episodes need not end it.
        self._cancel(lambda running: running.ticket.candidate == dropped)
        self._forget()

  def _check_goal(self) -> None:
    machine = self._machine
    if self._target_return is None or self._goal is not None:
      return
    if not isinstance(machine, supervisor_rules.DefaultSupervision):
      return  # The literal rules keep no mean over a window.
    # The trial chose theta_star by its episodes, so they do not confirm it. Nor
    # is each window that ends anew looked at: of many, one would do by luck.
    if self._confirmed % machine.window:
      return
    if machine.r_star >= self._target_return:
      assert machine.star is not None
      self._goal = {
        'R_star': machine.r_star,
        'episodes': len(machine.hist),
        'version': self._version,
        'explorer': self._candidates[machine.star].explorer,
        'star_learner_steps': self._candidates[machine.star].learner_step,
        'accepted': machine.accepted,
        'rejected': machine.rejected,
      }

  # In the node's own thread, without the lock.

  def _flush(self, reporter: reporting.Reporter, rows: int) -> None:
    for _ in range(rows):
      reporter.log(*self._rows.popleft())
    if self._goal and not reporter.finished:
      self.save()
      reporter.finish(
        f'theta_star has a confirmed mean return of '
        f'{self._goal["R_star"]:.1f} over {self._goal["episodes"]} episodes '
        f'(target {self._target_return:g})',
        self._goal,
      )

  def _restore(self) -> None:
    assert self._directory is not None
    found = swarm_state.read(self._directory, self._layout)
    if found is None:
      return
    kept, self._candidates = found
    supervisor_rules.restore(self._machine, kept['machine'])
    self._version = kept['version']
    # Above the numbers of the life that saved, and of those lives of this
    # start that did not.
    range_ = kept['next_candidate'] // _PER_LIFE + pulse.life()[1]
    self._next_candidate = range_ * _PER_LIFE
    self._episodes = kept['episodes']
    self._offers = kept['offers']
    _logger.info('Went on from version %d of theta_star.', self._version)
