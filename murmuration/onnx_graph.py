"""The operations of a policy as an ONNX graph.

    traced(policy).SerializeToString()

`portable.apply` is run once with tensors that write down what is done to them,
so that there is one interpreter of operations, and not two. Each carries the
NumPy value of an example batch, from which shapes and types follow as they do
there.
"""

from __future__ import annotations

from collections.abc import Sequence
import json
from typing import Any

import numpy as np
import onnx

from murmuration import portable

_OPSET, _IR = 17, 8  # of 2022: read by every runtime since
_ROWS = 3  # of the example; not a size that something else has


class Tensor:
  """A value in the graph.

  Attributes:
    name: of it.
    example: what it is for the example batch; shape[0] is not known later.
  """

  __array_ufunc__ = None  # NumPy's arrays and scalars leave operators to it

  def __init__(self, graph: Graph, name: str, example: np.ndarray):
    self._graph, self.name, self.example = graph, name, example

  @property
  def shape(self) -> tuple[int, ...]:
    return self.example.shape

  def __add__(self, other: Any) -> Tensor:
    return self._graph.joined('Add', np.add, self, other)

  def __radd__(self, other: Any) -> Tensor:
    return self._graph.joined('Add', np.add, other, self)

  def __sub__(self, other: Any) -> Tensor:
    return self._graph.joined('Sub', np.subtract, self, other)

  def __mul__(self, other: Any) -> Tensor:
    return self._graph.joined('Mul', np.multiply, self, other)

  def __rmul__(self, other: Any) -> Tensor:
    return self._graph.joined('Mul', np.multiply, other, self)

  def __truediv__(self, other: Any) -> Tensor:
    return self._graph.joined('Div', np.divide, self, other)

  def __getitem__(self, key: Any) -> Tensor:
    """Slices with steps from 1 up, and `None` for a new axis."""
    graph, found, axis = self._graph, self, 0
    for part in key if isinstance(key, tuple) else (key,):
      if part is None:
        example = np.expand_dims(found.example, axis)
        axes = graph.constant(np.array([axis]))
        found = graph.node('Unsqueeze', [found, axes], example)
      elif part != slice(None):
        start, stop, step = part.indices(found.shape[axis])
        numbers = [graph.constant(np.array([n])) for n in (start, stop, axis)]
        numbers.append(graph.constant(np.array([step])))
        index = (slice(None),) * axis + (part,)
        found = graph.node('Slice', [found, *numbers], found.example[index])
      axis += 1
    return found


class Graph:
  """Nodes as they are written, and NumPy's functions that write them."""

  def __init__(self):
    self.nodes: list[onnx.NodeProto] = []
    self.initializers: list[onnx.TensorProto] = []

  def node(
    self, operator: str, inputs: Sequence[Tensor], example: Any, **attributes
  ) -> Tensor:
    name = f'{operator}_{len(self.nodes)}'
    self.nodes.append(
      onnx.helper.make_node(
        operator, [i.name for i in inputs], [name], name, **attributes
      )
    )
    return Tensor(self, name, np.asarray(example))

  def constant(self, value: Any) -> Tensor:
    value, name = np.asarray(value), f'constant_{len(self.initializers)}'
    self.initializers.append(onnx.numpy_helper.from_array(value, name))
    return Tensor(self, name, value)

  def joined(self, operator: str, function: Any, *values: Any) -> Tensor:
    """An operator whose inputs NumPy would bring to one type."""
    example = function(*(getattr(v, 'example', v) for v in values))
    tensors = [v if isinstance(v, Tensor) else self.constant(v) for v in values]
    same = [self.asarray(tensor, example.dtype) for tensor in tensors]
    return self.node(operator, same, example)

  # What portable.apply calls, by NumPy's names.

  def asarray(self, x: Tensor, dtype: Any) -> Tensor:
    dtype = np.dtype(dtype)
    if x.example.dtype == dtype:
      return x
    to = onnx.helper.np_dtype_to_tensor_dtype(dtype)
    return self.node('Cast', [x], x.example.astype(dtype), to=to)

  def reshape(self, x: Tensor, shape: Sequence[int]) -> Tensor:
    wanted = self.constant(np.array(shape, np.int64))
    return self.node('Reshape', [x, wanted], np.reshape(x.example, shape))

  def transpose(self, x: Tensor, axes: Sequence[int]) -> Tensor:
    example = np.transpose(x.example, axes)
    return self.node('Transpose', [x], example, perm=list(axes))

  def maximum(self, x: Any, y: Any) -> Tensor:
    return self.joined('Max', np.maximum, x, y)

  def clip(self, x: Tensor, low: Any, high: Any) -> Tensor:
    return self.joined('Min', np.minimum, self.maximum(x, low), high)

  def matmul(self, x: Any, y: Any) -> Tensor:
    return self.joined('MatMul', np.matmul, x, y)

  def tanh(self, x: Tensor) -> Tensor:
    return self.node('Tanh', [x], np.tanh(x.example))

  def mean(self, x: Tensor, axis: int, keepdims: bool) -> Tensor:
    example = np.mean(x.example, axis=axis, keepdims=keepdims)
    return self.node(
      'ReduceMean', [x], example, axes=[axis], keepdims=int(keepdims)
    )

  def argmax(self, x: Tensor, axis: int) -> Tensor:
    example = np.argmax(x.example, axis=axis)
    return self.node('ArgMax', [x], example, axis=axis, keepdims=0)

  def take(self, x: np.ndarray, indices: Tensor, axis: int) -> Tensor:
    example = np.take(x, indices.example, axis=axis)
    return self.node('Gather', [self.constant(x), indices], example, axis=axis)

  def pad(self, x: Tensor, edges: Any, mode: Any) -> Tensor:
    ends = self.constant(np.array(edges, np.int64).T.ravel())
    example = np.pad(x.example, edges, mode)
    return self.node('Pad', [x, ends], example, mode=mode)

  def concatenate(self, parts: Sequence[Tensor], axis: int) -> Tensor:
    example = np.concatenate([part.example for part in parts], axis)
    return self.node('Concat', parts, example, axis=axis)

  def where(self, condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    example = np.where(condition.example, x.example, y.example)
    return self.node('Where', [condition, x, y], example)


def traced(policy: portable.Policy) -> onnx.ModelProto:
  """A model of 'observation' [N, ...] to 'action'.

  One that remembers also takes 'state' float32 [N, S], zeros at first, and
  'fresh' bool [N] (an episode begins), and gives 'next_state'.
  """
  about, graph = policy.about, Graph()
  shape = (_ROWS, *about['observation_shape'])
  example = np.zeros(shape, about['observation_dtype'])
  inputs = [Tensor(graph, 'observation', example)]
  if policy.size:
    state = np.zeros((_ROWS, policy.size), np.float32)
    inputs.append(Tensor(graph, 'state', state))
    inputs.append(Tensor(graph, 'fresh', np.ones(_ROWS, bool)))
  observation, *memory = inputs
  found = portable.apply(
    graph, policy.operations, observation, *(memory or (None, None))
  )
  outputs = []
  for name, tensor in zip(('action', 'next_state'), found):
    if tensor is not None:
      graph.nodes.append(
        onnx.helper.make_node('Identity', [tensor.name], [name], name)
      )
      outputs.append(Tensor(graph, name, tensor.example))
  model = onnx.helper.make_model(
    onnx.helper.make_graph(
      graph.nodes,
      about['agent'],
      [_declared(tensor) for tensor in inputs],
      [_declared(tensor) for tensor in outputs],
      graph.initializers,
    ),
    opset_imports=[onnx.helper.make_opsetid('', _OPSET)],
    ir_version=_IR,
    producer_name='murmuration',
  )
  onnx.helper.set_model_props(
    model,
    {k: v if isinstance(v, str) else json.dumps(v) for k, v in about.items()},
  )
  onnx.checker.check_model(model)
  return model


def _declared(tensor: Tensor) -> onnx.ValueInfoProto:
  kind = onnx.helper.np_dtype_to_tensor_dtype(tensor.example.dtype)
  return onnx.helper.make_tensor_value_info(
    tensor.name, kind, ['N', *tensor.shape[1:]]
  )
