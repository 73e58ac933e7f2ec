"""On CPython 3.11 TensorFlow leaks 16 bytes with each tensor; here it stops.

A sample is a dozen tensors, so a learner grew by 3 GB a day. Python 3.11 gives
each new object of a class with attributes a small array for them, and
TensorFlow's deallocator does not know of it
(https://github.com/tensorflow/tensorflow/issues/62551, closed, not mended). A
tensor that is made without the array is freed whole, and may have attributes
nevertheless: Python then makes a dictionary, as 3.10 does.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

_TP_NEW = 312  # bytes from the start of a PyTypeObject of CPython 3.11
_MANAGED_DICT = 1 << 4  # Py_TPFLAGS_MANAGED_DICT


def stop_leak() -> bool:
  """Makes new tensors of this process without the array; again does nothing.

  Returns:
    Whether it was needed, and is done.
  """
  if sys.implementation.name != 'cpython' or sys.version_info[:2] != (3, 11):
    return False
  from tensorflow.python.framework import ops  # late: launch/later.py

  plain = ctypes.cast(ctypes.pythonapi.PyType_GenericNew, ctypes.c_void_p).value
  tensor = _tp_new(ops.EagerTensor)
  if tensor.value == plain:
    return True
  # A list is made by that function and a tensor as `object` is, or something is
  # not where it is thought to be.
  if (
    _tp_new(list).value != plain
    or tensor.value != _tp_new(object).value
    or not ops.EagerTensor.__flags__ & _MANAGED_DICT
  ):
    return False
  tensor.value = plain
  return True


def _tp_new(kind: Any) -> ctypes.c_void_p:
  """The place in a type of the function that makes its objects."""
  return ctypes.c_void_p.from_address(id(kind) + _TP_NEW)
