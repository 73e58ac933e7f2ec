"""Reads the plots that are tested."""

import matplotlib.image
import numpy as np


def read(path):
  """The PNG's pixels [H, W, 4]; fails if it is blank."""
  pixels = matplotlib.image.imread(path)
  packed = (255 * pixels).astype(np.uint8).view(np.uint32)  # as one number
  assert len(np.unique(packed)) > 20
  return pixels
