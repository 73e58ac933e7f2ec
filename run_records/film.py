"""Frames to a moving picture: GIF or MP4."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
import itertools
import math
import os
import pathlib

import cv2
import numpy as np
from PIL import Image


def record(
  frames: Iterable[np.ndarray],
  path: str | os.PathLike[str],
  fps: float = 30.0,
  max_width: int = 600,
) -> pathlib.Path:
  """Writes a GIF or an MP4, whichever the path's ending says.

  Args:
    frames: uint8 [H, W, 3], all of one size, at least one.
    path: of the file; its directory is made.
    fps: frames per second of the episode.
    max_width: wider frames of a GIF are made smaller by a whole factor.

  Raises:
    ValueError: another ending, no frames, or frames that are not pictures.
    RuntimeError: OpenCV cannot write an MP4 here.
  """
  check(path)
  path = pathlib.Path(path)
  checked = _checked(frames)
  whole = itertools.chain([next(checked)], checked)  # raises before it writes
  path.parent.mkdir(parents=True, exist_ok=True)
  if path.suffix.lower() == '.gif':
    _write_gif(whole, path, fps, max_width)
  else:
    _write_mp4(whole, path, fps)
  return path


def _write_gif(
  frames: Iterator[np.ndarray], path: pathlib.Path, fps: float, max_width: int
) -> None:
  """Writes one that repeats endlessly.

  GIF players slow down above 50 frames per second, so faster episodes lose
  every other frame rather than their speed.
  """
  skip = max(1, math.ceil(fps / 50.0))
  shown = (
    _picture(_shrunk(frame, max_width))
    for frame in itertools.islice(frames, 0, None, skip)
  )
  # Pillow merges equal frames and adds up their durations.
  next(shown).save(
    path,
    format='GIF',
    save_all=True,
    append_images=shown,
    # A GIF counts in hundredths of a second, as Pillow rounds downwards.
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
    writer.write(np.ascontiguousarray(frame[..., ::-1]))  # blue first
  writer.release()


def check(path: str | os.PathLike[str]) -> None:
  """Refuses a path to which no film can be written; writes nothing.

  Raises:
    ValueError: another ending than .gif or .mp4.
    OSError: a directory is there, or no right to write.
  """
  path = pathlib.Path(path)
  ending = path.suffix.lower()
  if ending not in ('.gif', '.mp4'):
    raise ValueError(
      f'{path} ends in {ending!r}; a video ends in .gif or .mp4.'
    )
  there = path if path.exists() else path.parent
  while not there.exists():
    there = there.parent
  if path.is_dir() or there.is_file() != path.exists():
    raise OSError(f'{path} cannot be written: {there} is in the way.')
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
  # A palette per frame: a flame or an explosion has colours of its own.
  return Image.fromarray(frame).quantize(
    256, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE
  )


def _shrunk(frame: np.ndarray, max_width: int) -> np.ndarray:
  factor = -(-frame.shape[1] // max_width)
  if factor == 1:
    return frame
  height, width = (size // factor * factor for size in frame.shape[:2])
  # The mean of each block: single pixels would flicker.
  blocks = frame[:height, :width].reshape(
    height // factor, factor, width // factor, factor, 3
  )
  return blocks.mean(axis=(1, 3)).astype(np.uint8)
