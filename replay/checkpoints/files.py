"""Files of a replay checkpoint: generations, their manifests, their records.

    DIRECTORY/
      staging/               where Reverb writes; empty between two saves
      generation_00000012/
        tables.tfrecord  items.tfrecord  chunks.tfrecord  DONE     Reverb's
        manifest.json        their expected contents: counts, sizes, hashes

The records are TFRecords in one zlib stream, whose checksum shows whether it is
broken, so they are read here without TensorFlow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
import dataclasses
import hashlib
import json
import pathlib
import re
import struct
from typing import Any
import zlib

# Format of manifest.json. Items have a format of their own: packing.FORMAT.
FORMAT = 1

MANIFEST = 'manifest.json'
STAGING = 'staging'
TABLES = 'tables.tfrecord'
ITEMS = 'items.tfrecord'
CHUNKS = 'chunks.tfrecord'
DONE = 'DONE'
REVERB_FILES = (TABLES, ITEMS, CHUNKS, DONE)

_GENERATION = re.compile(r'generation_\d{8,}')
_BLOCK_BYTES = 1 << 20


class Broken(ValueError):
  """A checkpoint does not match its manifest; the message says why."""


class WrongFormat(ValueError):
  """Another version of this project wrote the checkpoint."""


@dataclasses.dataclass(frozen=True)
class Manifest:
  """What a generation holds.

  Attributes:
    generation: its number; the newest is the highest.
    time: when it was saved, seconds since the epoch.
    items: number of items by table.
    sizes: bytes by file name.
    sha256: hexadecimal hash by file name.
    meta: from the caller of `save.save`, such as {'learner_steps': 1200}.
    path: directory of the generation.
  """

  generation: int
  time: float
  items: dict[str, int]
  sizes: dict[str, int]
  sha256: dict[str, str]
  meta: dict[str, Any]
  path: pathlib.Path

  def write(self, directory: pathlib.Path) -> None:
    """Writes manifest.json."""
    values = dataclasses.asdict(self)
    del values['path']
    text = json.dumps({'format': FORMAT, **values}, indent=2)
    (directory / MANIFEST).write_text(text + '\n', encoding='utf-8')


def read_manifest(path: pathlib.Path) -> Manifest:
  """The manifest of a generation; does not check its files.

  Raises:
    Broken: there is none, or it is not a manifest.
    WrongFormat: it was written in another format.
  """
  try:
    values = json.loads((path / MANIFEST).read_text(encoding='utf-8'))
    written = values.pop('format')
  except (OSError, ValueError, KeyError, AttributeError, TypeError) as e:
    raise Broken(f'{path / MANIFEST} cannot be read ({e!r}).') from e
  if written != FORMAT:
    raise WrongFormat(
      f'{path} was written in checkpoint format {written}, but this version '
      f'reads format {FORMAT}. Use the version that wrote it, or move it away '
      'to start empty.'
    )
  try:
    return Manifest(**values, path=path)
  except TypeError as e:
    raise Broken(f'{path / MANIFEST} is no manifest ({e}).') from e


def verify(manifest: Manifest) -> None:
  """Compares the files of a generation with its manifest.

  Raises:
    Broken: a file is missing, cannot be read, or is not the one that was saved.
  """
  for name in REVERB_FILES:
    file = manifest.path / name
    try:
      same = sha256(file) == manifest.sha256.get(name)
    except OSError as e:
      raise Broken(f'{file} cannot be read ({e}).') from e
    if not same:
      raise Broken(f'{file} has changed since it was saved (sha256).')


def generations(directory: pathlib.Path) -> list[pathlib.Path]:
  """The generations in a checkpoint directory, newest first."""
  found = (
    path
    for path in directory.glob('generation_*')
    if _GENERATION.fullmatch(path.name) and path.is_dir()
  )
  return sorted(found, key=number, reverse=True)


def number(path: pathlib.Path) -> int:
  return int(path.name.removeprefix('generation_'))


def sha256(path: pathlib.Path, beat: Callable[[], None] = lambda: None) -> str:
  """The hexadecimal hash of a file; `beat` is called again and again."""
  digest = hashlib.sha256()
  with open(path, 'rb') as file:
    while block := file.read(_BLOCK_BYTES):
      beat()
      digest.update(block)
  return digest.hexdigest()


def read_records(path: pathlib.Path) -> Iterator[bytes]:
  """Yields the records of one of Reverb's files.

  Raises:
    Broken: the file is missing, cut or changed.
  """
  try:
    with open(path, 'rb') as file:
      yield from _records(_inflate(file))
  except (OSError, zlib.error, struct.error) as e:
    raise Broken(f'{path} cannot be read to its end ({e}).') from e


def write_records(path: pathlib.Path, records: Iterable[bytes]) -> None:
  """Writes records as Reverb does."""
  import tensorflow as tf  # writes the checksums that Reverb requires

  with tf.io.TFRecordWriter(str(path), 'ZLIB') as writer:
    for record in records:
      writer.write(record)


def _inflate(file: Any) -> Iterator[bytes]:
  stream = zlib.decompressobj()
  while block := file.read(_BLOCK_BYTES):
    yield stream.decompress(block)
  yield stream.flush()
  if not stream.eof:
    raise zlib.error('the compressed stream has no end')


def _records(blocks: Iterator[bytes]) -> Iterator[bytes]:
  """Splits TFRecords: uint64 size, 4 bytes of checksum, data, 4 of checksum."""
  held = bytearray()
  for block in blocks:
    held += block
    start = 0
    while len(held) - start >= 12:
      (size,) = struct.unpack_from('<Q', held, start)
      end = start + 12 + size
      if len(held) < end + 4:
        break
      yield bytes(held[start + 12 : end])
      start = end + 4
    del held[:start]
  if held:
    raise zlib.error('the last record is cut')
