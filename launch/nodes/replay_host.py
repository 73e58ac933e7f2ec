"""Reverb servers inside a node: addresses, checkpoints, RUN/replay/*.json.

A learner hosts its replay itself (sampling then crosses no process), or replay
nodes host a shard each. In both cases a shard is one Reverb server with a name
in the run's directory of addresses. It comes back where it was, or, if another
process listens there, elsewhere: clients find it when they start again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import logging
import os
import pathlib
import threading
from typing import Any

from launchpad import address as lp_address
from launchpad.nodes import base
import reverb

from launch import pulse
from launch import rpc
from launch.nodes import saves
from replay.checkpoints import save as checkpoints
from run_records import checkpoints as checkpoint_files
from run_records import metrics

_logger = logging.getLogger(__name__)
# Seconds between two looks at the stop event. A signal that one of Reverb's
# threads handles does not wake the main thread, so each wait has an end.
_LOOK_UP_S = 0.5
_LONG_S = 300.0  # a full table may take to restore


class AddressHandle(base.Handle[str]):
  """What other nodes hold of a shard; becomes its 'host:port' in them."""

  def __init__(self, address: lp_address.Address):
    self._address = address

  def dereference(self) -> str:
    return self._address.resolve()


class HostNode(rpc.Node):
  """An `rpc.Node` whose object also hosts Reverb servers.

  The object gets their addresses as the keyword argument `addresses`.
  """

  def __init__(
    self, constructor: Callable[..., Any], *args, shards: int = 1, **kwargs
  ):
    """Describes the node; nothing starts yet.

    Args:
      constructor: makes the object; gets `addresses` beside the arguments.
      *args: arguments; handles become clients.
      shards: Reverb servers that it hosts.
      **kwargs: of `rpc.Node` and of the constructor.
    """
    addresses = [lp_address.Address(f'replay{i}') for i in range(shards)]
    self._shards = addresses
    super().__init__(
      constructor, *args, addresses=self._own_handles(), **kwargs
    )
    for address in addresses:
      self.allocate_address(address)

  def configure(self, *args, **kwargs):
    """Gives the constructor its arguments after handles were made.

    For nodes that call each other; see `lp.CourierNode.configure`.
    """
    super().configure(*args, addresses=self._own_handles(), **kwargs)

  def _own_handles(self) -> list[AddressHandle]:
    return [AddressHandle(address) for address in self._shards]

  def shard_handle(self, shard: int) -> AddressHandle:
    """For another node: the address of one of the servers."""
    return self._track_handle(AddressHandle(self._shards[shard]))


class ReplayHost:
  """The shards of one node; `run` makes it a node of its own."""

  serves = ('save',)

  def __init__(
    self,
    make_tables: Callable[[], list[reverb.Table]],
    run_dir: str | None,
    addresses: Sequence[str],
    first_shard: int = 0,
    shared: bool = False,
    queue: bool = False,
  ):
    """Takes its arguments in; servers start with `start`.

    Args:
      make_tables: makes the tables of one shard.
      run_dir: the run's directory; None keeps nothing.
      addresses: 'host:port' of each server.
      first_shard: number of the first of them.
      shared: others write to it too, beside the worker that saves it: what they
        write after that one's last save is kept at the end.
      queue: its items are taken once. None of them is saved: those that were
        learned from would come back.
    """
    self._make_tables = make_tables
    self._run_dir = None if run_dir is None else pathlib.Path(run_dir)
    self._queue = queue
    self._addresses = list(addresses)
    self._first = first_shard
    self._shared = shared
    self._opened: list[checkpoints.Opened] = []
    self._meta: dict[str, Any] = {}
    self._saved_last = False
    self._lock = threading.Lock()

  def start(self) -> None:
    """Starts the servers, with what their newest checkpoints hold."""
    for shard, address in enumerate(self._addresses, self._first):
      pulse.beat()  # what limits its node limits each
      opened = checkpoints.open_server(
        self._make_tables(),
        port=lp_address.get_port_from_address(address),
        directory=self._directory(shard),
      )
      self._opened.append(opened)
      if opened.restored is not None:
        _logger.info(
          'Shard %d goes on from generation %d with %d items.',
          shard,
          opened.restored.generation,
          sum(opened.restored.items.values()),
        )
      self._say_where(shard, address, opened.restored)

  def _say_where(
    self, shard: int, address: str, restored: checkpoints.Manifest | None
  ) -> None:
    """Writes RUN/replay/shard_<i>.json; warns of what a restart has lost."""
    if self._run_dir is None:
      return
    path = self._run_dir / 'replay' / f'shard_{shard}.json'
    if path.exists() and restored is None:
      _logger.warning(
        'Shard %d was there before and left no checkpoint: what it held is '
        'lost. Actors fill it again.',
        shard,
      )
    elif path.exists():
      _logger.warning(
        'Shard %d was there before: what came after its checkpoint is lost.',
        shard,
      )
    path.parent.mkdir(parents=True, exist_ok=True)
    metrics.write_json(
      path, {'address': address, 'shard': shard, 'pid': os.getpid()}
    )

  def save(self, meta: dict[str, Any], last: bool = False) -> int:
    """Writes a checkpoint of each shard. Returns the items kept.

    Args:
      meta: what else a reader should know, for instance learner_steps.
      last: nothing that the caller knows of comes after it.

    Raises:
      RuntimeError: no server runs here, not yet or no more.
      checkpoint_files.Broken: see `checkpoints.save`.
    """
    kept = 0
    with self._lock:
      if not self._opened:
        raise RuntimeError(
          f'Nothing was saved: the host of shard {self._first} runs no server, '
          'as it has stopped or is only starting. Its checkpoint of before is '
          'what a resumed run gets.'
        )
      self._meta = dict(meta)
      for shard, opened in enumerate(self._opened, self._first):
        pulse.beat()
        directory = self._directory(shard)
        if directory is None:
          continue
        manifest = checkpoints.save(opened, directory, meta=meta)
        kept += sum(manifest.items.values())
      self._saved_last = last and not self._shared
    return kept

  def stop(self, lost: bool = False) -> None:
    """Ends the servers, and with them the calls that wait in them.

    Args:
      lost: no checkpoint holds what they hold; the next start will say so.
    """
    with self._lock:  # Not in the middle of a save.
      opened, self._opened = self._opened, []
      for shard, server in enumerate(opened, self._first):
        server.server.stop()
        if self._run_dir is not None and not lost:
          # The file names live servers only.
          path = self._run_dir / 'replay' / f'shard_{shard}.json'
          path.unlink(missing_ok=True)

  def run(self, stop: threading.Event | None = None) -> None:
    """Serves until the program stops."""
    stop = pulse.stop_event(stop)
    with pulse.busy('restoring replay', _LONG_S):
      self.start()
    while not stop.wait(_LOOK_UP_S):
      pass
    self.stop(lost=not self._keep())

  def _keep(self) -> bool:
    """Saves what no learner came to save. Returns whether all is kept."""
    if self._run_dir is None or self._queue:
      return True
    with self._lock:  # A save may be under way.
      # The engine waits a few seconds for a node to end: no save for nothing.
      if self._saved_last:
        return True
    try:
      # The learner's steps are those of the last save that it asked for.
      kept = self.save(self._meta)
    except saves.FAILURES as e:
      _logger.warning('Replay was not checkpointed: %s', e)
      return False
    _logger.info('Saved %d items at the end.', kept)
    return True

  def _directory(self, shard: int) -> pathlib.Path | None:
    if self._run_dir is None or self._queue:
      return None
    directory = checkpoint_files.directory(self._run_dir)
    return directory / 'replay' / f'shard_{shard}'
