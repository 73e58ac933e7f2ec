"""Draws a MuJoCo model without OpenGL: outlines of its bodies from one side.

MuJoCo's own renderer needs a graphics driver, which servers seldom have. A film
of a policy only has to show where the limbs are: capsules, spheres, cylinders
and boxes are projected onto the plane in which the model moves.
"""

from __future__ import annotations

from typing import Any

import cv2
import mujoco
import numpy as np
from PIL import Image
from PIL import ImageDraw

_SIZE = (480, 360)  # width and height of a frame, pixels
_FINE = 2  # oversampling factor, for smooth edges
_MARGIN = 1.3  # size of the view relative to the initial extent of the model
_SKY, _GROUND = (225, 235, 245), (120, 130, 120)
_CORNERS = np.array(
  [[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)], float
)


class SideView:
  """Pictures of one simulation.

  Models whose hinges all turn about z are seen from above, others from the
  side, with x to the right and z upwards. If the model may leave the picture
  along x, the view follows it, past a line with marks.

  `model` is a mujoco.MjModel. `data`, its mujoco.MjData, is read by `frame`.
  """

  def __init__(self, model: Any, data: Any):
    self._model, self._data = model, data
    kinds, axes = model.jnt_type, model.jnt_axis
    hinges = axes[kinds == mujoco.mjtJoint.mjJNT_HINGE]
    # The target of a Reacher slides too, but within limits.
    free = (kinds == mujoco.mjtJoint.mjJNT_SLIDE) & (model.jnt_limited == 0)
    leaves = bool((np.abs(axes[free, 0]) > 0.9).any())
    from_above = len(hinges) > 0 and bool((np.abs(hinges[:, 2]) > 0.9).all())
    # World coordinates that point to the right and upwards.
    self._plane = [0, 1] if from_above else [0, 2]
    self._follows = leaves or not from_above
    solid = model.geom_rgba[:, 3] > 0
    planes = model.geom_type == mujoco.mjtGeom.mjGEOM_PLANE
    self._geoms = np.flatnonzero(solid & ~planes)
    places = data.geom_xpos[self._geoms][:, self._plane]
    bounds = model.geom_rbound[self._geoms][:, None]
    low, high = (places - bounds).min(axis=0), (places + bounds).max(axis=0)
    self._centre = (low + high) / 2
    # Half the extent that the shorter side of the picture shows, in metres.
    self._reach = _MARGIN * float((high - low).max()) / 2

  def frame(self) -> np.ndarray:
    """A picture of the current state, uint8 [height, width, 3]."""
    width, height = (_FINE * side for side in _SIZE)
    picture = Image.new('RGB', (width, height), _SKY)
    draw = ImageDraw.Draw(picture)
    scale = min(width, height) / (2 * self._reach)
    centre = self._centre.copy()
    if self._follows:
      moving = self._model.geom_bodyid[self._geoms] > 0
      centre[0] = self._data.geom_xpos[self._geoms[moving], 0].mean()

    def pixels(points: np.ndarray) -> np.ndarray:
      """Maps [..., 3] in metres to [..., 2] in pixels."""
      flat = (points[..., self._plane] - centre) * scale
      return np.array([width / 2, height / 2]) + flat * np.array([1, -1])

    if self._follows:
      self._draw_ground(draw, pixels, (width, height), scale, centre[0])
    for geom in self._geoms:
      self._draw(draw, int(geom), pixels, scale)
    return np.asarray(picture.resize(_SIZE, Image.Resampling.BOX))

  def _draw_ground(self, draw, pixels, size, scale, middle) -> None:
    level = float(pixels(np.zeros(3))[1])
    draw.line([(0, level), (size[0], level)], _GROUND, 2 * _FINE)
    # A mark at each half metre shows the speed.
    half = size[0] / scale
    for k in range(int(2 * (middle - half)), int(2 * (middle + half)) + 1):
      x = float(pixels(np.array([k / 2, 0.0, 0.0]))[0])
      draw.line([(x, level), (x - 8, level + 12)], _GROUND, _FINE)

  def _draw(self, draw, geom: int, pixels, scale: float) -> None:
    kind = mujoco.mjtGeom(self._model.geom_type[geom])
    size = self._model.geom_size[geom]
    position = self._data.geom_xpos[geom]
    turned = self._data.geom_xmat[geom].reshape(3, 3)
    colour = tuple(int(255 * c) for c in self._model.geom_rgba[geom, :3])
    if kind == mujoco.mjtGeom.mjGEOM_BOX:
      corners = pixels(position + (_CORNERS * size) @ turned.T)
      hull = cv2.convexHull(corners.astype(np.float32))[:, 0].tolist()
      draw.polygon([tuple(point) for point in hull], colour)
      return
    radius = float(size[0]) * scale
    half = np.zeros(3)
    if kind in (mujoco.mjtGeom.mjGEOM_CAPSULE, mujoco.mjtGeom.mjGEOM_CYLINDER):
      half = turned[:, 2] * size[1]
    ends = pixels(np.stack([position - half, position + half]))
    draw.line([tuple(p) for p in ends], colour, max(1, round(2 * radius)))
    if kind != mujoco.mjtGeom.mjGEOM_CYLINDER:
      for x, y in ends:
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), colour)
