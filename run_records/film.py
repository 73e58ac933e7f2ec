"""Writes frames as a GIF or MP4."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
import itertools
import math
import os
import pathlib

import cv2
import numpy as np
from PIL import Image

_MAX_WIDTH = 600  # pixels of a GIF


def record(
  frames: Iterable[np.ndarray],
  path: str | os.PathLike[str],
  fps: float = 30.0,
) -> pathlib.Path:
  """Writes a GIF or an MP4, depending on the path's ending.

  Args:
    frames: uint8 [H, W, 3], all of one size, at least one.
    path: of the file; its directory is made.
    fps: frames per second of the episode.

  Raises:
    ValueError: another ending, no frames, or frames of another kind.
    OSError: the path cannot be written.
    RuntimeError: OpenCV cannot write an MP4 here.
  """
  check(path)
  path = pathlib.Path(path)
  # What makes the frames may change the working directory.
  whole = path.resolve()
  part = whole.with_name(f'{path.stem}.part{path.suffix}')
  checked = _checked(frames)
  # The first frame is checked before anything is written.
  shown = itertools.chain([next(checked)], checked)
  whole.parent.mkdir(parents=True, exist_ok=True)
  write = _write_gif if path.suffix.lower() == '.gif' else _write_mp4
  try:
    write(shown, part, fps)
    os.replace(part, whole)
  finally:
    part.unlink(missing_ok=True)
  return path


def check(path: str | os.PathLike[str]) -> None:
  """Checks that a video can be written to the path; writes nothing.

  Raises:
    ValueError: the ending is not .gif or .mp4.
    OSError: something is in the way, or the user may not write there.
  """
  path = pathlib.Path(path)
  if path.suffix.lower() not in ('.gif', '.mp4'):
    raise ValueError(f'{path} has to end in .gif or .mp4.')
  there = next(p for p in path.resolve().parents if p.exists())
  if path.is_dir() or not there.is_dir() or not os.access(there, os.W_OK):
    raise OSError(f'{path} cannot be written.')


def _write_gif(
  frames: Iterator[np.ndarray], path: pathlib.Path, fps: float
) -> None:
  """Writes a GIF that repeats endlessly.

  GIF players slow down above 50 frames per second, so frames of faster episodes
  are skipped to keep the speed.
  """
  skip = max(1, math.ceil(fps / 50.0))
  shown = map(_picture, itertools.islice(frames, 0, None, skip))
  # Pillow merges equal frames and adds up their durations.
  next(shown).save(
    path,
    format='GIF',
    save_all=True,
    append_images=shown,
    # Milliseconds, in whole hundredths of a second: a GIF counts in these, and
    # Pillow rounds down.
    duration=10 * max(2, round(100.0 * skip / fps)),
    loop=0,
  )


def _picture(frame: np.ndarray) -> Image.Image:
  # Takes the mean of each block, as single pixels would flicker.
  image = Image.fromarray(frame).reduce(-(-frame.shape[1] // _MAX_WIDTH))
  # One palette per frame: a flame or an explosion brings new colours.
  return image.quantize(
    256, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE
  )


def _write_mp4(
  frames: Iterator[np.ndarray], path: pathlib.Path, fps: float
) -> None:
  first = next(frames)
  code, size = cv2.VideoWriter.fourcc(*'mp4v'), first.shape[1::-1]
  writer = cv2.VideoWriter(str(path), code, fps, size)
  if not writer.isOpened():
    raise RuntimeError(
      f'OpenCV cannot write {path}. Give a name that ends in .gif.'
    )
  for frame in itertools.chain([first], frames):
    writer.write(np.ascontiguousarray(frame[..., ::-1]))  # to BGR
  writer.release()


def _checked(frames: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
  """Yields the frames; raises ValueError for what is no picture."""
  shape = None
  for number, frame in enumerate(frames):
    frame = np.asarray(frame)
    if frame.dtype != np.uint8 or frame.shape != (
      shape or (*frame.shape[:2], 3)
    ):
      raise ValueError(
        f'frame {number} is {frame.dtype} {list(frame.shape)}; frames are '
        "uint8 [H, W, 3] of one size, as of render_mode='rgb_array'."
      )
    shape = frame.shape
    yield frame
  if shape is None:
    raise ValueError('no frames were given, so there is nothing to write.')
