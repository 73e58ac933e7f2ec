"""Frames to a moving picture: GIF or MP4."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
import itertools
import os
import pathlib

import cv2
import numpy as np
from PIL import Image


def record_gif(
  frames: Iterable[np.ndarray],
  path: str | os.PathLike[str],
  fps: float = 30.0,
  max_width: int = 600,
) -> pathlib.Path:
  """Writes an endlessly repeating GIF.

  Args:
    frames: uint8 [H, W, 3], all of one size, at least one.
    path: of the file; its directory is made.
    fps: frames per second of the episode. GIF players slow down above 50, so
      faster episodes lose every other frame rather than their speed.
    max_width: wider frames are made smaller by a whole factor.

  Raises:
    ValueError: no frames, or frames that are not pictures.
  """
  path = pathlib.Path(path)
  skip = 1
  while fps / skip > 50.0:
    skip += 1
  shown = _shrunk(itertools.islice(_checked(frames), 0, None, skip), max_width)
  first = next(shown)
  path.parent.mkdir(parents=True, exist_ok=True)
  # A GIF counts in hundredths of a second, as Pillow rounds downwards.
  duration_ms = 10 * max(2, round(100.0 * skip / fps))
  # Pillow merges equal frames and adds up their durations.
  _picture(first).save(
    path,
    format='GIF',
    save_all=True,
    append_images=(_picture(frame) for frame in shown),
    duration=duration_ms,
    loop=0,
  )
  return path


def record_mp4(
  frames: Iterable[np.ndarray], path: str | os.PathLike[str], fps: float = 30.0
) -> pathlib.Path:
  """Writes an MP4.

  Args:
    frames: as for `record_gif`.
    path: of the file; its directory is made.
    fps: frames per second.

  Raises:
    RuntimeError: OpenCV cannot write it here.
    ValueError: no frames, or frames that are not pictures.
  """
  path = pathlib.Path(path)
  checked = _checked(frames)
  first = next(checked)
  path.parent.mkdir(parents=True, exist_ok=True)
  height, width = first.shape[:2]
  code = cv2.VideoWriter.fourcc(*'mp4v')
  writer = cv2.VideoWriter(str(path), code, fps, (width, height))
  if not writer.isOpened():
    raise RuntimeError(
      f'OpenCV cannot write {path}. Give a name that ends in .gif.'
    )
  for frame in itertools.chain([first], checked):
    writer.write(np.ascontiguousarray(frame[..., ::-1]))  # blue first
  writer.release()
  return path


def record(
  frames: Iterable[np.ndarray], path: str | os.PathLike[str], fps: float = 30.0
) -> pathlib.Path:
  """Writes a GIF or an MP4, whichever the path's ending says.

  Raises:
    ValueError: another ending, or frames that cannot be written.
  """
  check(path)
  if pathlib.Path(path).suffix.lower() == '.gif':
    return record_gif(frames, path, fps)
  return record_mp4(frames, path, fps)


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


def _shrunk(
  frames: Iterable[np.ndarray], max_width: int
) -> Iterator[np.ndarray]:
  for frame in frames:
    factor = -(-frame.shape[1] // max_width)
    if factor == 1:
      yield frame
      continue
    height, width = (size // factor * factor for size in frame.shape[:2])
    # The mean of each block: single pixels would flicker.
    blocks = frame[:height, :width].reshape(
      height // factor, factor, width // factor, factor, 3
    )
    yield blocks.mean(axis=(1, 3)).astype(np.uint8)
