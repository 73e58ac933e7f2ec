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
  # Of an episode that breaks off, nothing stays and nothing is lost; and what
  # makes the frames may change the working directory.
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


def _write_gif(
  frames: Iterator[np.ndarray], path: pathlib.Path, fps: float
) -> None:
  """Writes a GIF that repeats endlessly.

  GIF players slow down above 50 frames per second, so frames of faster episodes
  are skipped to keep the speed.
  """
  skip = max(1, math.ceil(fps / 50.0))
  shown = (
    _picture(_shrunk(frame))
    for frame in itertools.islice(frames, 0, None, skip)
  )
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


def check(path: str | os.PathLike[str]) -> None:
  """Checks that a video can be written to the path; writes nothing.

  Raises:
    ValueError: the ending is not .gif or .mp4.
    OSError: a directory has this name, or the user may not write there.
  """
  path = pathlib.Path(path)
  ending = path.suffix.lower()
  if ending not in ('.gif', '.mp4'):
    raise ValueError(
      f'{path} ends in {ending!r}; a video ends in .gif or .mp4.'
    )
  there = path.resolve().parent  # it is written beside, and takes its place
  while not there.exists():
    there = there.parent
  if path.is_dir() or there.is_file():
    raise OSError(
      f'{path} cannot be written: {path if path.is_dir() else there} is in '
      'the way.'
    )
  if not os.access(there, os.W_OK):
    raise OSError(f'{path} cannot be written: no right to write to {there}.')


def _checked(frames: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
  shape = None
  for number, frame in enumerate(frames):
    frame = np.asarray(frame)
    if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3:
      raise ValueError(
        f'frame {number} is {frame.dtype} {list(frame.shape)}; a frame is '
        "uint8 [H, W, 3], as an environment with render_mode='rgb_array' "
        'gives it.'
      )
    if shape is not None and frame.shape != shape:
      raise ValueError(
        f'frame {number} is {list(frame.shape)}, the first was {list(shape)}; '
        'all must be of one size.'
      )
    shape = frame.shape
    yield frame
  if shape is None:
    raise ValueError('no frames were given, so there is nothing to write.')


def _picture(frame: np.ndarray) -> Image.Image:
  # One palette per frame: a flame or an explosion brings new colours.
  return Image.fromarray(frame).quantize(
    256, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE
  )


def _shrunk(frame: np.ndarray) -> np.ndarray:
  """The frame, by a whole factor smaller if it is too wide."""
  factor = -(-frame.shape[1] // _MAX_WIDTH)
  if factor == 1:
    return frame
  height, width = (size // factor * factor for size in frame.shape[:2])
  # Takes the mean of each block, as single pixels would flicker.
  blocks = frame[:height, :width].reshape(
    height // factor, factor, width // factor, factor, 3
  )
  return blocks.mean(axis=(1, 3)).astype(np.uint8)
