"""The flat vector: layouts, packing, and what travels between nodes."""

import numpy as np
import pytest

from murmuration.agents import parameters

SHAPES = [
  ('policy/w', (3, 2)),
  ('policy/b', (2,)),
  ('scale', ()),
  ('critic/w', (3, 1)),
]


@pytest.fixture
def layout():
  return parameters.Layout(
    SHAPES,
    groups={'policy': ['policy/w', 'policy/b'], 'critic': ['critic/w']},
  )


def test_variables_lie_one_after_the_other(layout):
  assert [v.offset for v in layout.variables] == [0, 6, 8, 9]
  assert layout.sizes == [6, 2, 1, 3]
  assert layout.size == 12


def test_unpack_gives_back_what_was_packed(layout):
  rng = np.random.default_rng(0)
  arrays = [rng.normal(size=s).astype(np.float32) for _, s in SHAPES]
  theta = layout.pack(arrays)
  assert theta.dtype == np.float32
  for before, after in zip(arrays, layout.unpack(theta), strict=True):
    np.testing.assert_array_equal(before, after)


def test_a_vector_is_the_variables_in_row_major_order(layout):
  arrays = layout.unpack(np.arange(12))
  np.testing.assert_array_equal(arrays[0], [[0, 1], [2, 3], [4, 5]])
  np.testing.assert_array_equal(arrays[1], [6, 7])
  assert arrays[2] == 8
  np.testing.assert_array_equal(arrays[3], [[9], [10], [11]])


def test_a_population_unpacks_to_views_with_its_leading_axes(layout):
  theta = np.zeros((5, 12), np.float32)
  variables = layout.unpack(theta)
  assert [v.shape for v in variables] == [(5, *s) for _, s in SHAPES]
  variables[1][3] = 7.0
  np.testing.assert_array_equal(theta[3, 6:8], [7.0, 7.0])


def test_a_group_is_one_slice(layout):
  assert layout.groups == {'policy': slice(0, 8), 'critic': slice(9, 12)}


@pytest.mark.parametrize(
  ('members', 'message'),
  [
    (['policy/w', 'scale'], "'scale' does not follow 'policy/w'"),
    (['policy/w', 'value'], r"\['value'\]"),
    ([], 'no variable'),
  ],
)
def test_a_group_that_is_not_one_slice_is_refused(members, message):
  with pytest.raises(ValueError, match=message):
    parameters.Layout(SHAPES, groups={'group': members})


def test_a_layout_needs_variables_with_names_of_their_own():
  with pytest.raises(ValueError, match='names must differ'):
    parameters.Layout([('w', (2,)), ('w', (3,))])
  with pytest.raises(ValueError, match='at least one variable'):
    parameters.Layout([])


@pytest.mark.parametrize(
  'shapes',
  [
    [*reversed(SHAPES)],
    [*SHAPES[:3], ('critic/w', (1, 3))],
    [*SHAPES[:3], ('value/w', (3, 1))],
    SHAPES[:3],
  ],
  ids=['order', 'shape', 'name', 'number'],
)
def test_layouts_differ_where_their_networks_do(layout, shapes):
  assert parameters.Layout(shapes) != layout
  assert parameters.Layout(shapes).fingerprint != layout.fingerprint


def test_layouts_of_equal_networks_are_equal(layout):
  again = parameters.Layout(SHAPES)
  assert again == layout
  assert hash(again) == hash(layout)


def test_arrays_and_vectors_of_another_network_are_refused(layout):
  with pytest.raises(parameters.LayoutMismatch, match='the layout needs'):
    layout.pack([np.zeros(s) for _, s in SHAPES[:3]])
  with pytest.raises(parameters.LayoutMismatch, match='11 parameters'):
    layout.unpack(np.zeros(11))


def test_encoded_parameters_come_back_with_their_version(layout):
  theta = np.random.default_rng(1).normal(size=12).astype(np.float32)
  theta[:2] = np.nan, -np.inf
  data = parameters.encode(layout, 2**40, theta)
  parameters.check_encoded(layout, data)
  version, decoded = parameters.decode(layout, data)
  assert version == 2**40
  assert decoded.dtype == np.float32
  np.testing.assert_array_equal(decoded, theta)
  assert not decoded.flags.writeable


def test_a_strided_float64_vector_is_encoded_by_its_values(layout):
  theta = np.arange(24.0)[::2]
  _, decoded = parameters.decode(layout, parameters.encode(layout, 0, theta))
  np.testing.assert_array_equal(decoded, theta)


def test_only_one_vector_of_the_layout_is_encoded(layout):
  with pytest.raises(parameters.LayoutMismatch, match=r'\(2, 12\)'):
    parameters.encode(layout, 0, np.zeros((2, 12)))


def test_parameters_of_another_network_are_not_decoded(layout):
  # Of the same size, so that only the fingerprint tells them apart.
  other = parameters.Layout([('w', (12,))])
  data = parameters.encode(other, 3, np.zeros(12))
  with pytest.raises(parameters.LayoutMismatch, match='another network'):
    parameters.decode(layout, data)


def test_bytes_that_are_cut_off_or_foreign_are_not_decoded(layout):
  data = parameters.encode(layout, 3, np.zeros(12))
  with pytest.raises(parameters.LayoutMismatch, match='cut off'):
    parameters.decode(layout, data[:-4])
  for foreign in (b'', data[:20], b'XXXX' + data[4:]):
    with pytest.raises(parameters.LayoutMismatch, match='not encoded'):
      parameters.decode(layout, foreign)
