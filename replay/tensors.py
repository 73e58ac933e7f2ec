"""Works around a leak of 16 bytes per TensorFlow tensor on CPython 3.11.

A sample is a dozen tensors, so a learner grew by 3 GB a day. Python 3.11 gives
each new object of a class with attributes a small array for them, which
TensorFlow's deallocator does not know
(https://github.com/tensorflow/tensorflow/issues/62551, closed, not fixed). A
tensor that is created without the array is freed completely, and can still have
attributes: Python then makes a dictionary, as 3.10 does.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

_TP_NEW = 312  # offset in bytes in a PyTypeObject of CPython 3.11
_MANAGED_DICT = 1 << 4  # Py_TPFLAGS_MANAGED_DICT


def stop_leak() -> bool:
  """Makes new tensors of this process without the array; may be repeated.

  Returns:
    Whether the workaround is needed and applied.
  """
  if sys.implementation.name != 'cpython' or sys.version_info[:2] != (3, 11):
    return False
  from tensorflow.python.framework import ops  # late: run_records/later.py

  plain = ctypes.cast(ctypes.pythonapi.PyType_GenericNew, ctypes.c_void_p).value
  tensor = _tp_new(ops.EagerTensor)
  if tensor.value == plain:
    return True
  # Checks the offset: that function must make lists, and not yet tensors.
  if (
    _tp_new(list).value != plain
    or tensor.value != _tp_new(object).value
    or not ops.EagerTensor.__flags__ & _MANAGED_DICT
  ):
    return False
  tensor.value = plain
  return True


def _tp_new(kind: Any) -> ctypes.c_void_p:
  """The slot of a type that holds the function which creates its objects."""
  return ctypes.c_void_p.from_address(id(kind) + _TP_NEW)
