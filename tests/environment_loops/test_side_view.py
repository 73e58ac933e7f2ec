"""Outlines of a simulation: where they are, and when they are drawn."""

import gymnasium
import mujoco
import numpy as np
import pytest

from environment_loops import environments
from environment_loops import side_view

_MODEL = """
<mujoco>
  <worldbody>
    <geom name="floor" type="plane" size="5 5 1"/>
    <body pos="0 0 1">
      <joint type="{joint}" axis="{axis}"/>
      <geom type="capsule" fromto="-.4 0 0 .4 0 0" size=".1" rgba="1 0 0 1"/>
    </body>
    <body pos="1 0 2">
      <joint type="hinge" axis="{axis}"/>
      <geom type="box" size=".2 .1 .1" rgba="0 0 1 1"/>
    </body>
  </worldbody>
</mujoco>
"""


def _view(joint='hinge', axis='0 1 0'):
  model = mujoco.MjModel.from_xml_string(_MODEL.format(joint=joint, axis=axis))
  data = mujoco.MjData(model)
  mujoco.mj_forward(model, data)
  return side_view.SideView(model, data), model, data


def _where(frame, colour):
  """Middle of the pixels of a colour (x to the right, y upwards), and count."""
  rows, columns = np.nonzero((frame == colour).all(axis=2))
  return columns.mean(), -rows.mean(), len(rows)


def test_geoms_are_where_they_are_as_large_as_they_are():
  view, _, _ = _view()
  frame = view.frame()
  assert frame.dtype == np.uint8 and frame.shape == (360, 480, 3)
  scale = 360 / (2 * view._reach)
  # 1.8 m from the capsule's end to the box's corner, and its bound.
  assert 1.8 < 2 * view._reach < 3
  red_x, red_y, red = _where(frame, (255, 0, 0))
  blue_x, blue_y, blue = _where(frame, (0, 0, 255))
  assert blue_x - red_x == pytest.approx(scale, abs=2)  # 1 m to the right
  assert blue_y - red_y == pytest.approx(scale, abs=2)  # and 1 m higher
  assert red == pytest.approx((0.16 + np.pi * 0.01) * scale**2, rel=0.1)
  assert blue == pytest.approx(0.08 * scale**2, rel=0.1)


def test_what_turns_about_z_is_seen_from_above():
  view, _, data = _view(axis='0 0 1')
  _, red_y, _ = _where(view.frame(), (255, 0, 0))
  _, blue_y, _ = _where(view.frame(), (0, 0, 255))
  assert red_y == pytest.approx(blue_y, abs=1)  # heights are not seen
  data.qpos[0] = np.pi / 2
  mujoco.mj_forward(view._model, data)
  rows, columns = np.nonzero((view.frame() == (255, 0, 0)).all(axis=2))
  assert np.ptp(rows) > 3 * np.ptp(columns)


@pytest.mark.parametrize(
  ('bounds', 'metres'), [('', 0.0), ('limited="true" range="-1 1"', 0.3)]
)
def test_what_is_seen_from_above_is_followed_where_it_has_no_bounds(
  bounds, metres
):
  swimmer = f"""<mujoco><worldbody><body>
    <joint type="slide" axis="1 0 0" {bounds}/>
    <joint type="hinge" axis="0 0 1"/>
    <geom type="capsule" fromto="-1 0 0 1 0 0" size=".1" rgba="1 0 0 1"/>
  </body></worldbody></mujoco>"""
  model = mujoco.MjModel.from_xml_string(swimmer)
  data = mujoco.MjData(model)
  mujoco.mj_forward(model, data)
  view = side_view.SideView(model, data)
  first = view.frame()
  data.qpos[0] = 0.3
  mujoco.mj_forward(model, data)
  then = view.frame()
  (before, _, _), (after, _, _) = (
    _where(frame, (255, 0, 0)) for frame in (first, then)
  )
  scale = 360 / (2 * view._reach)
  assert after - before == pytest.approx(metres * scale, abs=2)
  assert (first != then).any()  # if not of it, then of the marks


@pytest.mark.parametrize(
  ('name', 'follows'), [('Swimmer-v5', True), ('Reacher-v5', False)]
)
def test_the_swimmer_is_followed_and_the_reacher_is_not(name, follows):
  simulation = gymnasium.make(name).unwrapped
  view = side_view.SideView(simulation.model, simulation.data)
  assert view._follows == follows


def test_an_environment_that_cannot_draw_is_drawn_as_outlines(
  monkeypatch, caplog
):
  environment = environments.make('Hopper-v5', 0, render_mode='rgb_array')
  try:
    environment.reset()
    inner = environment._environment.unwrapped

    def fail(*args, **kwargs):
      raise mujoco.FatalError('no OpenGL here')

    monkeypatch.setattr(inner.mujoco_renderer, 'render', fail)
    frames = [environment.render()]
    for _ in range(5):
      environment.step(np.ones(3, np.float32))
    frames.append(environment.render())
  finally:
    environment.close()
  assert frames[0].shape == (360, 480, 3)
  assert (frames[0] != frames[1]).any()
  (said,) = [r.getMessage() for r in caplog.records]
  assert 'no OpenGL here' in said and 'MUJOCO_GL' in said


def test_an_environment_without_a_simulation_keeps_its_error(monkeypatch):
  environment = environments.make('CartPole-v1', 0, render_mode='rgb_array')
  environment.reset()

  def fail():
    raise RuntimeError('no display')

  monkeypatch.setattr(environment._environment, 'render', fail)
  with pytest.raises(RuntimeError, match='no display'):
    environment.render()
  environment.close()
