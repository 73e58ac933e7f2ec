"""The worker: a process that learns. All topologies share this learning loop.

    [act a little]  ->  sample  ->  learner.step  ->  exchange.sync  ->  ...

A worker holds P members, a learner and an exchange. The topology chooses
whether it acts itself (single process, swarm, gossip) or learns from what
actors send, whether it hosts replay or reads from replay nodes, and whether it
evaluates itself. The worker also serves the methods that its exchange serves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
import logging
import random
import threading
import time
from typing import Any
import zlib

import numpy as np
import reverb

from murmuration.agents import base
from murmuration.agents import learner as learner_lib
from murmuration.agents.exchange import base as exchange_base
from murmuration.agents.exchange import local
from murmuration.launch import actor_settings
from murmuration.launch import experience
from murmuration.launch import experiment as experiment_lib
from murmuration.launch import pulse
from murmuration.launch import reporting
from murmuration.launch.nodes import acting
from murmuration.launch.nodes import best
from murmuration.launch.nodes import replay_host
from murmuration.launch.nodes import saves
from murmuration.launch.services import variables

_logger = logging.getLogger(__name__)
_LAST_SAVE_S = 120.0  # the run is held open for the last save, at most
_FLUSH_S = 5.0  # to write the last priorities, at most
_WAIT_S = 0.1
# Added to the watchdog's limit for each update in a call of the learner.
_UPDATE_S = 1.0
# What a worker has by `__init__` alone.
_ATTRIBUTES = ('experiment', 'get_parameters', 'learner', 'members', 'theta')


def _check_names(kind: type, served: Sequence[str], own: Sequence[str]) -> None:
  taken = [name for name in served if name in own]
  if taken:  # `__getattr__` would never be asked.
    raise ValueError(
      f'{kind.__name__} serves {taken}, which the worker has itself. Use other '
      'names.'
    )


class Worker:
  """Learns until the run is over or its members have used their budget."""

  def __init__(
    self,
    experiment: experiment_lib.Experiment,
    node: str,
    members: Sequence[base.ActorInfo],
    counter: Any,
    addresses: Sequence[str],
    *,
    exchange: Callable[..., exchange_base.Exchange] = local.Local,
    peers: Mapping[str, Any] | None = None,
    actors: actor_settings.Config | None = None,
    hosts: Sequence[Any] | None = None,
    first_shard: int = 0,
    table: str = 'replay',
    learning_rates: Sequence[float] | None = None,
    evaluates: bool = False,
    leads: bool = True,
    shown: bool = False,
    given: Any = None,
  ):
    """Stores its arguments; `run` builds everything else.

    Args:
      members: the P members that this worker hosts.
      addresses: 'host:port' of each replay shard that it samples.
      exchange: makes the exchange from `peers`, the clients that it calls.
      peers: by the names of the exchange's arguments.
      actors: settings of the actors; None if the members act here.
      hosts: replay nodes that this worker checkpoints; None if it hosts the
        shards itself, at `addresses`.
      first_shard: number, within the whole run, of the first shard it hosts.
      learning_rates: [P]; None uses the agent's own.
      leads: False for a worker that shares its parameters with others, one of
        which counts, serves and saves for all.
      shown: whether to write its parameters for playback, although it acts.
      given: existing experience, if there are no actors (nodes/offline.py).
    """
    self.experiment = experiment
    self.members = list(members)
    self._counter = counter
    self._reporter = reporting.Reporter(node, counter)
    self._exchange = exchange(**(peers or {}))
    self._acts = actors is None and given is None
    self._experience: Any
    if given is not None:
      self._experience = given
    elif actors is None:
      self._experience = experience.of_members(experiment, len(self.members))
    else:
      self._experience = experience.of_actors(experiment, actors)
    if self._acts and self._experience.queue:
      self._experience.shuffle_as(self.members[0])
    if experiment.run.deterministic or (
      self._acts and experiment.run.replay == 'ring'
    ):
      self._experience.use_rings(base.actor_seed(self.members[0], 'replay'))
    self._agent = self._experience.agent
    self._addresses = list(addresses)
    self._hosts = hosts
    self._first_shard = first_shard
    self._table = table
    self._rates = learning_rates
    self._evaluates = evaluates
    self._leads = leads
    self._shown = shown or (leads and not self._acts)
    self._published = variables.Published(self._agent.layout)
    self.get_parameters = self._published.get
    self._own_host: replay_host.ReplayHost | None = None
    self._acting: acting.Acting | None = None
    self._evaluation: best.SelfEvaluation | None = None
    # For its exchange (agents/exchange/base.py).
    self.learner: Any = None
    self.theta: Any = None  # acting, [P, D]; at most one learner call old
    self._source: Any = None
    self._last: Any = None  # the last sample
    self._metrics: dict[str, float] = {}
    self._skipped = 0
    self._learned = False  # whether an update was sound, in this life
    _check_names(type(self._exchange), self._exchange.serves, dir(self))

  @classmethod
  def check_arguments(
    cls, *unused: Any, exchange: Any = local.Local, **others: Any
  ) -> None:
    """Refuses what `__init__` or the server of the node would, before a start.

    As far as the class of the exchange says it; handles are no clients yet.
    """
    while isinstance(exchange, functools.partial):
      exchange = exchange.func
    served = getattr(exchange, 'serves', None)
    if isinstance(served, str):
      raise ValueError(
        f'serves={served!r} of {exchange.__name__} is a text. Give a tuple of '
        f'names: ({served!r},).'
      )
    if not (isinstance(exchange, type) and isinstance(served, (tuple, list))):
      return  # only an instance says it
    _check_names(exchange, served, [*dir(cls), *_ATTRIBUTES])
    missing = [name for name in served if not hasattr(exchange, name)]
    if missing:
      raise ValueError(
        f'{exchange.__name__} serves {missing}, but has no such method. Give '
        'it one, or mend its `serves`.'
      )

  # Served over RPC.

  @property
  def serves(self) -> tuple[str, ...]:
    return 'get_parameters', *self._exchange.serves

  def __getattr__(self, name: str) -> Any:
    exchange = self.__dict__.get('_exchange')
    if exchange is not None and name in exchange.serves:
      return getattr(exchange, name)
    raise AttributeError(f'{type(self).__name__} has no attribute {name!r}.')

  # The worker as its exchange sees it (agents/exchange/base.py).

  @property
  def steps(self) -> int:
    """Environment steps of each member; 0 if separate actors act."""
    return 0 if self._acting is None else self._acting.steps

  def over(self) -> bool:
    """Whether to stop. Also sends due reports, even while waiting for data."""
    if self._reporter.due():
      self._reporter.report(self._numbers())
    return self._stop.is_set() or self._reporter.finished

  # The loop.

  def run(self, stop: threading.Event | None = None) -> None:
    """Learns until told to stop."""
    self._stop = stop = pulse.stop_event(stop)
    self._exchange.should_stop = stop.is_set
    kept = False
    try:
      with pulse.busy('building learner, replay and environments'):
        self._build()
      self._loop()
      kept = self._finish()
    finally:
      self._exchange.close()
      if self._acting is not None:
        self._acting.close()
      if self._own_host is not None:
        # Before the source: the source's threads end with the server.
        self._own_host.stop(lost=not kept)
      if self._source is not None:
        self._source.close()

  def _build(self) -> None:
    import tensorflow as tf  # the first TensorFlow work of a forked node

    run = self.experiment.run
    try:
      tf.config.threading.set_intra_op_parallelism_threads(run.tf_threads)
      tf.config.threading.set_inter_op_parallelism_threads(1)
    except RuntimeError:
      pass  # Nodes that are threads share TensorFlow; the first has set it.
    done = self._reporter.steps_done(self._stop.is_set)
    steps = done // len(self.members)
    if run.deterministic:
      # Environments may draw from these, too.
      seed = base.actor_seed(self.members[0], f'globals from step {steps}')
      random.seed(seed)
      np.random.seed(seed % 2**32)
    if self._acts:
      # First, so that an environment that cannot be built fails immediately.
      self._acting = acting.Acting(
        self.experiment,
        self._experience,
        self.members,
        steps,
        self._reporter,
        self._exchange.episode_ended,
        self._exchange.actor_steps,
      )
      pulse.beat()
    if self._evaluates:
      self._evaluation = best.SelfEvaluation(
        self.experiment,
        self._agent,
        self.members,
        self._reporter,
        self._stop.is_set,
      )
    pulse.beat()  # The time limit applies to each part.
    # A restarted worker must draw other random numbers. If it died before its
    # first report, `done` is 0 and only `life` shows the restart.
    again = done > 0 or pulse.life()[1] > 1
    self.learner = self._make_learner(f'from step {steps}', again)
    pulse.beat()
    hosts = self._open_replay()
    pulse.beat()
    self._saves = saves.Saves(
      self.experiment.run_dir if self._leads else None,
      self._reporter.node,
      hosts,
      run.replay_checkpoint_s,
    )
    saved = self._saves.restore(self.learner, self._exchange.keeps_learner)
    self._updates = self.learner.updates
    if saved is not None and self._acting is not None and 'random' in saved:
      self._acting.go_on(saved['random'])
    pulse.beat()
    # Lets actors start while the update is traced.
    self._publish()
    if self._acting is not None:
      # A worker that acts has one shard, which it writes to and reads from.
      client = reverb.Client(self._addresses[0])
      self._acting.open(client, self._table, self._stop.is_set)
    pulse.beat()
    self.learner.trace(
      self._experience.sample_specs(), self._experience.probability_specs()
    )
    pulse.beat()
    self._exchange.begin(self)
    self._updates = self.learner.updates
    self._publish()  # `begin` may have changed the parameters.

  def _make_learner(self, purpose: str, again: bool) -> Any:
    theta = self._exchange.initial(
      np.stack([self._fresh(info, purpose) for info in self.members]), again
    )
    rates = self._rates
    if rates is None:
      rates = [self._agent.learning_rate] * len(self.members)
    make = self._agent.learner_class or learner_lib.TFLearner
    return make(
      self._agent,
      theta,
      rates,
      self._exchange,
      self._experience.feed,
      updates_per_call=self._experience.updates_per_call,
      seed=base.actor_seed(self.members[0], f'learner {purpose}'),
    )

  def _fresh(self, info: base.ActorInfo, purpose: str) -> np.ndarray:
    """Fresh parameters [D] of a member.

    With `shared_start` they are those that member 0 began the run with, also
    after a restart: other workers mix with them.
    """
    if self._exchange.shared_start:
      info, purpose = dataclasses.replace(info, index=0), 'from step 0'
    return self._agent.initial(base.actor_seed(info, f'initial {purpose}'))

  def _open_replay(self) -> Sequence[Any]:
    """Starts this worker's shards. Returns the hosts that it checkpoints."""
    if self._hosts is not None:
      return self._hosts
    if not self._leads or (self._acts and self._experience.queue):
      return []  # A worker that acts hands its blocks over without a queue.
    if self._acts and self._experience.rings:
      rings = saves.Rings(
        self.experiment.run_dir, self._reporter.node, self._experience.rings
      )
      rings.restore()
      return [rings]
    self._own_host = replay_host.ReplayHost(
      lambda: self._experience.tables(self._table),
      self.experiment.run_dir,
      self._addresses,
      first_shard=self._first_shard,
      queue=self._experience.queue,
    )
    self._own_host.start()
    return [self._own_host]

  def _loop(self) -> None:
    acting_ = self._acting
    enough = acting_ is None
    self._measure()
    while not self.over():
      if acting_ is not None:
        if acting_.done:
          return
        before, enough = enough, acting_.act(self.theta, self._updates)
        if enough and (not before or self._experience.queue):
          acting_.flush()  # The next sample may need these items.
      if enough:
        if not self._learn():
          return
        if self._saves.due():
          self._save()
      if self._exchange.sync():
        self._publish()
      self._measure()

  def _learn(self) -> bool:
    """One call of the learner. Returns False when the run is over."""
    if self._source is None:
      # A worker that acts gets here only once there is something to sample.
      ends = self.over if self._acting is None else self._acting.in_vain
      self._source = self._experience.source(self._addresses, self._table, ends)
    try:
      sample = next(self._source)
    except StopIteration:
      # If it acts, its tables may have been lost and have to be filled again.
      return self._acting is not None and not self._stop.is_set()
    sample = self._experience.prepare(sample, self._updates)
    probabilities = (
      sample.probabilities if self._experience.prioritized else None
    )
    try:
      # The first call may trace the update.
      limit_s = pulse.LONG_S + _UPDATE_S * self._experience.updates_per_call
      with pulse.busy('a call of the learner', limit_s):
        result = self.learner.step(sample.data, probabilities)
    except exchange_base.OutOfStep:
      try:
        self._exchange.rejoin(self.learner)
      except exchange_base.Stopped:
        return False
      self._updates = self.learner.updates
      self._publish()
      return True
    except exchange_base.Stopped:
      # The call has made some of its updates. Whether they were sound is not
      # known; they alone must not make a run that learned nothing look sound.
      made = self.learner.updates - self._updates
      self._count(made, 0 if self._learned else made * len(self.members))
      self._publish()
      return False
    skipped = int(result.skipped.sum())
    if not self._learned and skipped < result.updates * len(self.members):
      self._learned = True
      self._reporter.log('first_update', {'unix_time_s': time.time()})
    for member in np.flatnonzero(result.broken):
      self._replace(int(member))
    self._count(result.updates, skipped)
    self._publish()
    if probabilities is not None:
      self._source.give_back(sample, result.priorities)
    self._exchange.updated(result)
    self._skipped += skipped
    how = self._agent.metrics
    self._metrics = {
      name: float(
        values[0]
        if len(values) == 1
        else getattr(np, how.get(name, 'mean'))(values)
      )
      for name, values in result.metrics.items()
    }
    self._reporter.remark(self._agent.remarks(self._metrics))
    self._last = sample
    return True

  def _count(self, updates: int, skipped: int) -> None:
    """Counts updates, `skipped` of them, of all members, without effect."""
    self._updates += updates
    every = updates * len(self.members)
    self._reporter.count(samples=every * self._experience.batch_size)
    # Workers that share parameters make each update together: count it once.
    if self._leads:
      self._reporter.count(learner_steps=every - skipped)
      if skipped:
        self._reporter.count(skipped_updates=skipped)

  def _publish(self) -> None:
    self.theta = self.learner.parameters()
    if self._leads:
      self._published.publish(self._updates, self.theta[0])

  def _replace(self, member: int) -> None:
    """Replaces the parameters of a member that are not finite."""
    theta = self._exchange.replacement(member)
    if theta is None and not self._acts:
      raise learner_lib.LearnerFault(
        'The parameters are not finite. The last checkpoint is taken up again; '
        f'if that repeats, lower {" and ".join(self._agent.rate_settings)}.'
      )
    if theta is None:
      theta = self._agent.initial(
        base.actor_seed(self.members[member], f'after step {self.steps}')
      )
    _logger.warning(
      'The parameters of member %d are not finite: replaced.',
      self.members[member].index,
    )
    self.learner.set_member(member, theta)

  def _measure(self) -> None:
    if self._evaluation is not None:
      self._evaluation.now_and_then(self.theta, self.steps)

  def _numbers(self) -> dict[str, float]:
    numbers = {**self._metrics, 'skipped_updates': self._skipped}
    if self._acting is not None:
      numbers.update(self._acting.numbers())
    if self._last is not None:
      numbers.update(self._experience.numbers(self._last, self._updates))
    if self._source is not None and self._experience.prioritized:
      numbers['priorities_dropped'] = self._source.dropped
    if self._source is not None and self._source.not_finite:
      numbers['items_not_finite'] = self._source.not_finite
    if self._leads:
      # Its own count; the run's also has updates that were repeated.
      numbers['parameters_version'] = self._updates
    if self._published.sent_bytes:
      numbers['parameters_sent_mb'] = self._published.sent_bytes / 1e6
    if self._metrics:
      numbers.update(self._exchange.metrics())
    return numbers

  # Checkpoints.

  def _save(self, last: bool = False) -> bool:
    kept = False
    beside = {}
    if self._acting is not None:
      beside['random'] = self._acting.random()
    with pulse.survives('a checkpoint'), pulse.busy('a checkpoint'):
      kept = self._saves.save(self.learner, last, beside)
      if self._shown:
        saves.write_acting(
          self.experiment.run_dir, self.learner.parameters(), self._updates
        )
    return kept

  def _finish(self) -> bool:
    """Saves, then waits for the stop. Returns whether replay was saved."""
    asked = not self._stop.is_set()
    self._published.end()
    if asked:
      self._exchange.ended()
      self._reporter.hold(_LAST_SAVE_S)
    # The saved steps must be counted too, even if the run was interrupted.
    self._reporter.report(self._numbers())
    if self._evaluation is not None:
      if asked:
        self._evaluation.last(self.theta, self.steps)
      self._evaluation.close()
    if self._acting is not None and not self._experience.queue:
      self._acting.flush()  # The checkpoint should hold buffered items too.
    if self._source is not None:
      # A node that was told to stop has only seconds, and still has to save.
      self._source.flush(1.0 if self._stop.is_set() else _FLUSH_S)
    kept = self._save(last=True)
    # Workers that share parameters must log the same checksum.
    _logger.info(
      'Ended at learner step %d with parameters %08x.',
      self._updates,
      zlib.crc32(self.learner.parameters().tobytes()),
    )
    if asked:
      self._reporter.hold(0)
    # Other nodes may still ask for the last parameters. The wait is timed: a
    # signal that another thread handles does not end an untimed wait.
    while not self._stop.wait(_WAIT_S):
      if self._reporter.due():
        self._reporter.report(self._numbers())
      if self._hosts and self._saves.due():
        self._save()  # Other nodes may still write to the replay node.
      if self._exchange.sync():
        self._publish()
    return kept
