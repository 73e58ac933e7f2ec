"""Reverb servers inside a node: addresses, checkpoints, RUN/replay/*.json.

Either a learner hosts its replay itself, so that sampling stays within its
process, or replay nodes host one shard each. In both cases a shard is one
Reverb server, with a name in the run's directory of addresses. A restarted
server takes its old port, or another one if a different process listens there;
clients find it when they restart.
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

from murmuration.launch import pulse
from murmuration.launch import rpc
from murmuration.launch.nodes import saves
from murmuration.replay import checkpoints
from murmuration.run_records import checkpoints as checkpoint_files
from murmuration.run_records import jsonable

_logger = logging.getLogger(__name__)
# Between two checks of the stop event. A signal that one of Reverb's threads
# handles does not wake the main thread, so every wait is timed.
_LOOK_UP_S = 0.5


class AddressHandle(base.Handle[str]):
  """Handle of a shard; other nodes get its 'host:port'."""

  def __init__(self, address: lp_address.Address):
    self._address = address

  def dereference(self) -> str:
    return self._address.resolve()


class HostNode(rpc.Node):
  """An `rpc.Node` whose object also hosts Reverb servers."""

  def __init__(
    self, constructor: Callable[..., Any], *args, shards: int = 1, **kwargs
  ):
    """Describes a node with `shards` Reverb servers; nothing starts yet.

    `constructor` also gets the servers' `addresses`. All other arguments are of
    `rpc.Node` and of the constructor.
    """
    addresses = [lp_address.Address(f'replay{i}') for i in range(shards)]
    self._shards = addresses
    super().__init__(
      constructor, *args, addresses=self._own_handles(), **kwargs
    )
    for address in addresses:
      self.allocate_address(address)

  def configure(self, *args, **kwargs):
    """See `lp.CourierNode.configure`: for nodes that call each other."""
    super().configure(*args, addresses=self._own_handles(), **kwargs)

  def _own_handles(self) -> list[AddressHandle]:
    return [AddressHandle(address) for address in self._shards]

  def shard_handle(self, shard: int) -> AddressHandle:
    """Handle of the address of one of the servers, for another node."""
    return self._track_handle(AddressHandle(self._shards[shard]))


class ReplayHost:
  """The shards of one node. With `run` it is a node of its own."""

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
    """Stores its arguments; `start` starts the servers.

    Args:
      make_tables: of one shard.
      run_dir: None saves nothing.
      addresses: 'host:port' of each server.
      first_shard: number of the first server's shard within the run.
      shared: whether nodes other than the worker that saves it write to it.
        What they write after that worker's last save is saved at the end.
      queue: whether each item is sampled once. Nothing is then saved: items
        that were already learned from would come back.
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
    """Starts the servers, restored from their newest checkpoints."""
    for shard, address in enumerate(self._addresses, self._first):
      pulse.beat()  # The node's time limit applies to each server.
      opened = checkpoints.open_server(
        self._make_tables(),
        port=lp_address.get_port_from_address(address),
        directory=self._directory(shard),
      )
      self._opened.append(opened)
      if opened.restored is not None:
        _logger.info(
          'Shard %d goes on from %s with %d items.',
          shard,
          opened.restored.path.name,
          opened.restored.items,
        )
      self._say_where(shard, address, opened.restored)

  def _say_where(
    self, shard: int, address: str, restored: checkpoints.Saved | None
  ) -> None:
    """Writes RUN/replay/shard_<i>.json; warns about data lost in a restart."""
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
    with pulse.survives('the address of a shard, for the inspector'):
      path.parent.mkdir(parents=True, exist_ok=True)
      jsonable.write(
        path, {'address': address, 'shard': shard, 'pid': os.getpid()}
      )

  def save(self, meta: dict[str, Any], last: bool = False) -> int:
    """Writes a checkpoint of each shard. Returns the number of items saved.

    `meta` is stored with it, for instance learner_steps; `last` says that the
    caller writes nothing after this.

    Raises:
      RuntimeError: the servers are not running yet, or no longer.
      checkpoints.Broken: see `checkpoints.save`.
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
        # A large shard takes longer than a node may be silent.
        saved = checkpoints.save(
          opened, directory, meta=meta, beat=pulse.progress
        )
        kept += saved.items
      self._saved_last = last and not self._shared
    return kept

  def stop(self, lost: bool = False) -> None:
    """Stops the servers and ends the calls that are blocked in them.

    With `lost`, no checkpoint has their content: the next start warns of it.
    """
    with self._lock:  # Waits for a save to end.
      opened, self._opened = self._opened, []
      checkpoints.stop([one.server for one in opened])
      for shard in range(self._first, self._first + len(opened)):
        if self._run_dir is not None and not lost:
          # These files list running servers only.
          path = self._run_dir / 'replay' / f'shard_{shard}.json'
          path.unlink(missing_ok=True)

  def run(self, stop: threading.Event | None = None) -> None:
    """Serves until the program stops."""
    stop = pulse.stop_event(stop)
    with pulse.busy('restoring replay'):
      self.start()
    while not stop.wait(_LOOK_UP_S):
      pass
    self.stop(lost=not self._keep())

  def _keep(self) -> bool:
    """Makes the last save if no learner has. Returns whether all is saved."""
    if self._run_dir is None or self._queue:
      return True
    with self._lock:  # A save may be in progress.
      # The engine gives a node only seconds to end: skip a redundant save.
      if self._saved_last:
        return True
    try:
      # Reuses the learner's step count from the last save that it requested.
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
