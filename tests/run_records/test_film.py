"""Videos: what is written can be opened, and lasts as long as the episode."""

import cv2
import numpy as np
from PIL import Image
import pytest

from murmuration.run_records import film


def _frames(count, height=40, width=60):
  """A white square that moves one pixel per frame: no two are equal."""
  for number in range(count):
    frame = np.zeros([height, width, 3], np.uint8)
    frame[5:15, number : number + 10] = 255
    yield frame


def _duration_s(path):
  total = 0
  with Image.open(path) as image:
    for number in range(image.n_frames):
      image.seek(number)
      total += image.info['duration']
  return total / 1000


def test_a_gif_holds_every_frame_in_order_and_repeats(tmp_path):
  path = film.record(_frames(12), tmp_path / 'new' / 'a.gif', fps=20)
  with Image.open(path) as image:
    assert image.n_frames == 12 and image.size == (60, 40)
    assert image.info['loop'] == 0
    for number, frame in enumerate(_frames(12)):
      image.seek(number)
      shown = np.asarray(image.convert('RGB'))
      np.testing.assert_array_equal(shown > 127, frame > 127)


@pytest.mark.parametrize('fps', [10, 30, 50, 60, 125])
def test_a_gif_lasts_about_as_long_as_the_episode(tmp_path, fps):
  path = film.record(_frames(40), tmp_path / 'a.gif', fps=fps)
  # A GIF counts in hundredths of a second.
  assert _duration_s(path) == pytest.approx(40 / fps, rel=0.2)


def test_a_frame_that_stands_still_is_not_lost_time(tmp_path):
  still = [np.zeros([8, 8, 3], np.uint8)] * 10
  path = film.record(still, tmp_path / 'a.gif', fps=10)
  assert _duration_s(path) == pytest.approx(1.0)


@pytest.mark.parametrize('ending', ['gif', 'mp4'])
@pytest.mark.parametrize('there', [True, False])
def test_an_episode_that_breaks_off_leaves_what_was_there(
  tmp_path, ending, there
):
  path = tmp_path / f'a.{ending}'
  if there:
    film.record(_frames(3), path)
  before = path.read_bytes() if there else None

  def broken():
    yield from _frames(3)
    raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    film.record(broken(), path)
  assert [*tmp_path.iterdir()] == [path] * there
  assert not there or path.read_bytes() == before


@pytest.mark.parametrize('ending', ['gif', 'mp4'])
def test_what_makes_frames_may_change_the_directory(
  tmp_path, monkeypatch, ending
):
  (tmp_path / 'other').mkdir()
  monkeypatch.chdir(tmp_path)

  def moving():
    monkeypatch.chdir(tmp_path / 'other')
    yield from _frames(3)

  assert str(film.record(moving(), f'new/a.{ending}')) == f'new/a.{ending}'
  assert [*(tmp_path / 'new').iterdir()] == [tmp_path / 'new' / f'a.{ending}']


def test_wide_frames_are_made_smaller(tmp_path):
  frames = list(_frames(2, height=101, width=1201))
  path = film.record(frames, tmp_path / 'a.gif')
  with Image.open(path) as image:
    assert image.size == (401, 34)


@pytest.mark.parametrize(
  'frames, message',
  [
    ([], 'no frames'),
    ([np.zeros([4, 4], np.uint8)], r'frame 0 is uint8 \[4, 4\]'),
    ([np.zeros([4, 4, 3], np.float32)], 'frame 0 is float32'),
    (
      [np.zeros([4, 4, 3], np.uint8), np.zeros([5, 4, 3], np.uint8)],
      'frame 1',
    ),
  ],
)
def test_what_is_no_picture_is_refused(tmp_path, frames, message):
  with pytest.raises(ValueError, match=message):
    film.record(frames, tmp_path / 'a.gif')


def test_another_ending_is_refused(tmp_path):
  with pytest.raises(ValueError, match=r'\.gif or \.mp4'):
    film.record(_frames(1), tmp_path / 'a.avi')


def test_an_mp4_holds_every_frame(tmp_path):
  path = film.record(_frames(12), tmp_path / 'new' / 'a.mp4', fps=20)
  shown = cv2.VideoCapture(str(path))
  assert shown.get(cv2.CAP_PROP_FRAME_COUNT) == 12
  assert shown.get(cv2.CAP_PROP_FPS) == 20
  for frame in _frames(12):
    _, found = shown.read()
    # It is compressed with loss.
    assert np.mean((found > 127) == (frame > 127)) > 0.97


def test_colours_are_not_swapped(tmp_path):
  red = np.zeros([40, 60, 3], np.uint8)
  red[..., 0] = 255
  path = film.record([red], tmp_path / 'a.mp4')
  _, found = cv2.VideoCapture(str(path)).read()
  blue, green, red_found = found[20, 30]
  assert red_found > 200 and blue < 50 and green < 50
