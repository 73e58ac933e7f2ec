"""The learner of `actor_learner`: samples, updates, priorities, parameters.

It serves its parameters over RPC while it learns, and hosts its replay unless
that has nodes of its own. Restarted, it goes on from its last checkpoint, with
target network, optimizer and step counter.

Of more than one learner, this is true of the first. The others take their share
of each batch to it, and its parameters at every start (services/gradients.py).
"""

from __future__ import annotations

from collections.abc import Sequence
import contextlib
import logging
import pathlib
import threading
import time
from typing import Any
import zlib

import numpy as np
import reverb

from agents import base
from agents import exchange as exchange_lib
from agents import learner
from launch import actors
from launch import experiment as experiment_lib
from launch.experience import choice as experience
from launch.nodes import replay_host
from launch.nodes import replay_saves
from launch.services import averaging
from launch.services import variables
from replay import priorities
from replay import sampler
from run_records import checkpoints
from run_records import reporting

_logger = logging.getLogger(__name__)
_SAVE_PERIOD_S = 5.0  # between checkpoints of the parameters
_PRIORITIES_FLUSH_S = 5.0
_LAST_SAVE_S = 120.0  # after the end, at most


class Learner:
  """Learns from replay until the run is over."""

  def __init__(
    self,
    experiment: experiment_lib.Experiment,
    config: actors.Config,
    counter: Any,
    addresses: Sequence[str],
    hosts: Sequence[Any] | None = None,
    table: str = 'replay',
    index: int = 0,
    master: Any = None,
  ):
    """Takes its arguments in; everything is built in `run`.

    Args:
      experiment: what to run.
      config: of the actors and the pace.
      counter: client of the counter.
      addresses: 'host:port' of each replay shard.
      hosts: clients of the nodes that host them; None: learner 0 does.
      table: name of the table in each shard.
      index: rank among `actors.num_learners`.
      master: client of learner 0, for the others.
    """
    self._experiment = experiment
    self._config = config
    self._addresses = list(addresses)
    self._hosts = hosts
    self._table = table
    self._experience = experience.of(experiment, config)
    self._agent = self._experience.agent
    self._index = index
    self._reporter = reporting.Reporter(f'learner/{index}', counter)
    self._reduce: averaging.Master | averaging.Member | None = None
    if index:
      self._reduce = averaging.Member(index, master, self._over)
    elif config.num_learners > 1:
      self._reduce = averaging.Master(config.num_learners)
    self._published = variables.Published(self._agent.layout)
    self._own_host: replay_host.ReplayHost | None = None
    self._prioritized = self._experience.prioritized
    self._metrics: dict[str, float] = {}
    self._skipped = 0
    self._saved = time.monotonic()

  # Served.

  def get_parameters(self, have_version: int) -> dict[str, Any]:
    """{'version', 'theta'}: parameters if newer than `have_version`."""
    return self._published.get(have_version)

  def join_learners(self, learner: int) -> averaging.State | None:
    """Where another learner goes on; None: ask again."""
    return self._master.join(learner)

  def contribute(self, learner: int, share: tuple) -> averaging.Answer:
    """Takes another learner's share of an update."""
    return self._master.contribute(learner, share)

  @property
  def _master(self) -> averaging.Master:
    assert isinstance(self._reduce, averaging.Master), self._index
    return self._reduce

  def run(self, stop: threading.Event | None = None) -> None:
    """Learns; returns when told to stop."""
    if stop is None:
      import launchpad as lp  # pylint: disable=g-import-not-at-top

      stop = lp.stop_event()
    self._stop = stop
    kept = False
    try:
      self._build()
      while self._learn():
        self._save_now_and_then()
      kept = self._finish()
    finally:
      if self._own_host is not None:
        self._own_host.stop(lost=not kept)

  def _build(self) -> None:
    import tensorflow as tf  # the first TensorFlow work of a forked node

    experiment, agent = self._experiment, self._agent
    run = experiment.run
    try:
      tf.config.threading.set_intra_op_parallelism_threads(run.tf_threads)
      tf.config.threading.set_inter_op_parallelism_threads(1)
    except RuntimeError:
      pass  # threads share one TensorFlow; the first node has set it
    info = experiment.actor_info(0)
    theta = agent.initial(base.actor_seed(info, 'initial'))[None]
    self._learner = (agent.learner_class or learner.TFLearner)(
      agent,
      theta,
      [agent.learning_rate(info, 'none')],
      exchange_lib.Average(self._reduce)
      if self._reduce
      else exchange_lib.Local(),
      self._experience.feed,
      updates_per_call=self._experience.updates_per_call,
      seed=base.actor_seed(info, 'learner'),
    )
    if self._index == 0:
      self._restore()
    self._updates = self._learner.updates
    # Actors start with these while the update is traced.
    self._publish()
    if self._hosts is None and self._index == 0:
      self._own_host = replay_host.ReplayHost(
        lambda: self._experience.tables(self._table),
        experiment.run_dir,
        self._addresses,
      )
      self._own_host.start()
    hosts = self._hosts or ([self._own_host] if self._own_host else [])
    self._replay_saves = replay_saves.ReplaySaves(
      hosts, run.replay_checkpoint_s
    )
    self._sampler = self._experience.sampler(
      self._addresses, self._table, self._over
    )
    self._writer: priorities.PriorityWriter | None = None
    if self._prioritized:
      clients = [reverb.Client(address) for address in self._addresses]
      self._writer = priorities.PriorityWriter(clients, self._table)
    probabilities = None
    if self._prioritized:
      items = self._experience.updates_per_call * self._experience.batch_size
      probabilities = tf.TensorSpec((items,), tf.float32)
    self._learner.trace(self._experience.sample_specs(), probabilities)
    if isinstance(self._reduce, averaging.Master):
      self._reduce.begin(self._updates, self._learner.save, self._over)
    elif self._reduce is not None:
      self._join(self._reduce)

  def _join(self, member: averaging.Member) -> None:
    with contextlib.suppress(averaging.Stopped):
      self._learner.restore(member.join())
      self._updates = self._learner.updates
      _logger.info('Learning with the others from step %d.', self._updates)

  def _learn(self) -> bool:
    """One call of the learner. Returns False when the run is over."""
    try:
      sample = next(self._sampler)
    except StopIteration:
      return False
    sample = self._experience.prepare(sample, self._updates)
    try:
      result = self._learner.step(
        sample.data, sample.probabilities if self._prioritized else None
      )
    except averaging.OutOfStep:
      assert isinstance(self._reduce, averaging.Member)
      self._join(self._reduce)
      return not self._over()
    except averaging.Stopped:
      self._count(self._learner.updates - self._updates)
      return False
    if not self._metrics:
      self._reporter.log('first_update', {'unix_time_s': time.time()})
    if result.broken.any():
      raise learner.LearnerFault(
        'The parameters are not finite. The last checkpoint is taken up again; '
        f'if that repeats, lower {" and ".join(self._agent.rate_settings)}.'
      )
    self._count(result.updates)
    self._publish()
    if self._writer is not None:
      self._write_priorities(sample, result)
    self._skipped += int(result.skipped.sum())
    self._metrics = {
      name: float(np.mean(values)) for name, values in result.metrics.items()
    }
    self._reporter.remark(self._agent.remarks(self._metrics))
    self._last = sample
    return not self._over()

  def _count(self, updates: int) -> None:
    self._updates += updates
    samples = updates * self._experience.batch_size
    # An update of all learners is one.
    self._reporter.count(
      learner_steps=0 if self._index else updates, samples=samples
    )

  def _write_priorities(
    self, sample: sampler.Sample, result: learner.StepResult
  ) -> None:
    assert self._writer is not None and result.priorities is not None
    new = self._experience.item_priorities(result.priorities)
    if result.skipped.any():
      # Batches without a finite gradient keep their priorities.
      known = np.isfinite(new)
      new = new[known]
      sample = sample._replace(
        keys=sample.keys[known], shards=sample.shards[known]
      )
    self._writer.update(sample, new)

  def _publish(self) -> None:
    if self._index:
      return  # whoever wants parameters asks learner 0
    self._published.publish(self._updates, self._learner.acting()[0])

  def _over(self) -> bool:
    """Whether to stop; also tells the counter, while there is no data too."""
    if self._reporter.due():
      self._reporter.report(self._numbers())
    return self._stop.is_set() or self._reporter.finished

  def _numbers(self) -> dict[str, float]:
    numbers = {**self._metrics, 'skipped_updates': self._skipped}
    if not self._metrics:
      return numbers
    numbers.update(self._experience.numbers(self._last, self._updates))
    if self._writer is not None:
      numbers['priorities_dropped'] = self._writer.dropped
    if self._reduce is not None:
      numbers['gradients_waited_s'] = self._reduce.waited_s
    if isinstance(self._reduce, averaging.Master):
      numbers['learner_rejoins'] = self._reduce.rejoins
    return numbers

  # What survives.

  def _path(self) -> pathlib.Path | None:
    if self._experiment.run_dir is None or self._index:
      return None
    directory = checkpoints.directory(self._experiment.run_dir)
    return directory / checkpoints.LEARNER

  def _restore(self) -> None:
    path = self._path()
    if path is None or not path.exists():
      return
    with np.load(path) as saved:
      self._learner.restore(dict(saved))
    _logger.info('Going on from learner step %d.', self._learner.updates)

  def _save_now_and_then(self) -> None:
    if time.monotonic() - self._saved >= _SAVE_PERIOD_S:
      self._save()
      if self._path() is not None and self._replay_saves.due():
        self._replay_saves.save(self._updates)

  def _save(self) -> None:
    path = self._path()
    if path is None:
      return
    self._saved = time.monotonic()
    checkpoints.write(path, **self._learner.save())
    theta = self._learner.acting()
    checkpoints.write(
      path.with_name(checkpoints.AGENTS), theta=theta, steps=self._updates
    )

  def _finish(self) -> bool:
    """Saves and waits for the stop. Returns whether replay is kept."""
    self._reporter.hold(_LAST_SAVE_S)
    # What is saved is to be counted too.
    self._reporter.report(self._numbers())
    if self._writer is not None:
      self._writer.flush(_PRIORITIES_FLUSH_S)
      self._writer.close()
    self._save()
    kept = self._path() is None or self._replay_saves.save(
      self._updates, last=True
    )
    if self._reduce is not None:
      # Equal in all learners, or something is wrong.
      _logger.info(
        'Ended at learner step %d with parameters %08x.',
        self._updates,
        zlib.crc32(self._learner.parameters().tobytes()),
      )
    self._reporter.hold(0)
    while not self._stop.wait(0.1):
      if self._reporter.due() and self._reporter.report(self._numbers()):
        break
    # Evaluators may still ask for the last parameters. Timed, because a signal
    # that another thread takes does not wake a wait that is not.
    while not self._stop.wait(1.0):
      pass
    return kept
