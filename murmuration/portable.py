"""A trained policy that needs nothing but NumPy.

    action = policy(observation)         # for env.step
    actions = policy(observations)       # [N, ...], a batch

One that remembers (an LSTM, stacked observations) follows its episodes from
call to call: `policy.reset()` where they begin anew, `policy.ended(last)` where
some of a batch do.
"""

import io
import json

import numpy as np


class Policy:
  """A list of operations with their numbers."""

  def __init__(self, data: bytes):
    """Reads what export.py wrote: an .npz of arrays and of their JSON."""
    with np.load(io.BytesIO(data)) as kept:
      self.about = json.loads(str(kept['about']))
      operations = _filled(self.about.pop('operations'), kept)
    shape = self.about['observation_shape']
    self.operations = [o for o in operations if _changes(o, operations, shape)]
    self.size = sum(map(state_size, self.operations))
    self._shape = tuple(shape)
    self._state: np.ndarray | None = None
    self._fresh: np.ndarray | None = None

  def __call__(self, observation):
    """Actions in the environment's own units, for one observation or [N, ...].

    Raises:
      ValueError: observations of another shape, or that are not finite.
    """
    x = np.asarray(observation)
    single = x.shape == self._shape
    if not single and (x.shape[1:] != self._shape or not len(x)):
      raise ValueError(
        f'observation has shape {x.shape}; needed is {self._shape}, or '
        '[N, ...] for a batch of N, from 1 up.'
      )
    if x.dtype.kind == 'f' and not _finite(x):
      raise ValueError(f'the observation is not finite: {observation}.')
    if self.about.get('observation_dtype') == 'uint8' and (
      x.dtype.kind not in 'iu' or x.min() < 0 or x.max() > 255
    ):
      raise ValueError(
        f'observation has dtype {x.dtype}, from {x.min()} to {x.max()}; this '
        'policy has learned from images of bytes, 0 to 255: give np.uint8.'
      )
    x = self._act(x[None] if single else x)
    return x[0] if single else x

  def _act(self, x):
    if self._state is None:
      self._state = np.zeros((len(x), self.size), np.float32)
      self._fresh = np.ones(len(x), bool)
    if self.size and len(self._state) != len(x):
      raise ValueError(
        f'This policy remembers {len(self._state)} episodes, and got {len(x)} '
        'observations: reset() where others begin.'
      )
    x, state = apply(np, self.operations, x, self._state, self._fresh)
    if self.size:
      self._state, self._fresh = state, np.zeros(len(x), bool)
    return x

  def reset(self):
    """All episodes begin anew."""
    self._state = self._fresh = None

  def ended(self, last):
    """Where episodes of a batch have ended, bool [N]."""
    if self._state is not None:
      self._fresh = np.array(last, bool)


def _finite(x):
  """Whether floats are finite as networks have them: 1e300 is not."""
  if x.dtype != np.float32:
    with np.errstate(over='ignore'):
      x = x.astype(np.float32)
  return np.isfinite(x).all()


def _changes(operation, operations, shape):
  """Whether it changes anything: one that does not costs half a layer."""
  if operation[0] == 'flatten':
    images = any(one[0] in ('reshape', 'conv') for one in operations)
    return images or len(shape) > 1
  return operation[0] != 'offset' or np.any(operation[1])


def state_size(operation):
  """Numbers that an operation remembers of an episode."""
  name, *arguments = operation
  if name == 'stack':
    return (arguments[0] - 1) * arguments[1]
  return 2 * arguments[2].shape[0] if name == 'lstm' else 0


def apply(xp, operations, x, state, fresh):
  """Outputs and the next state; `xp` is NumPy or has its functions.

  Args:
    x: inputs [K, ...].
    state: [K, S].
    fresh: where an episode begins, bool [K].
  """
  following, start = [], 0
  for operation in operations:
    name, *a = operation
    if name == 'dense':  # the most frequent come first
      x = xp.matmul(x, a[1]) + a[0]
    elif name == 'tanh':
      x = xp.tanh(x)
    elif name == 'relu':
      x = xp.maximum(x, np.float32(0))
    elif name == 'float':
      x = xp.asarray(x, np.float32)
    elif name == 'flatten':
      x = xp.reshape(x, (-1, a[0]))
    elif name == 'reshape':
      x = xp.reshape(x, (-1, *a[0]))
    elif name == 'transpose':
      x = xp.transpose(x, a[0])
    elif name == 'divide':
      x = x / np.float32(a[0])
    elif name == 'normalize':
      limit = np.float32(a[2])
      x = _clip(xp, (x - a[0]) / a[1], -limit, limit)
    elif name == 'conv':
      x = _conv(xp, x, *a)
    elif name == 'dueling':
      value, advantage = (apply(xp, one, x, None, None)[0] for one in a)
      x = advantage + (value - xp.mean(advantage, axis=-1, keepdims=True))
    elif name == 'take':
      x = x[:, : a[0]]
    elif name == 'argmax':
      x = x.argmax(axis=-1) if xp is np else xp.argmax(x, axis=-1)
    elif name == 'offset':
      x = x + a[0]
    elif name == 'table':  # the environment's own actions, by their numbers
      x = xp.take(a[0], x, axis=0)
    elif name == 'bound':  # from [-1, 1] to the environment's own units
      low, high, dtype = a
      unit = _clip(xp, xp.asarray(x, np.float64), -1.0, 1.0)
      unit = (unit + 1.0) / 2.0
      # high - low may overflow.
      x = unit * high + (unit * -1.0 + 1.0) * low
      x = xp.asarray(_clip(xp, x, low, high), np.dtype(dtype))
    else:
      size = state_size(operation)
      own = state[:, start : start + size]
      if name == 'stack':
        first = xp.concatenate([x] * (a[0] - 1), axis=1)
        x = xp.concatenate([xp.where(fresh[:, None], first, own), x], axis=1)
        following.append(x[:, a[1] :])
      elif name == 'lstm':
        x, own = _lstm(xp, x, xp.where(fresh[:, None], 0 * own, own), *a)
        following.append(own)
      else:
        raise ValueError(f'There is no operation {name!r}.')
      start += size
  return x, xp.concatenate(following, axis=1) if following else state


def _clip(xp, x, low, high):
  return xp.minimum(xp.maximum(x, low), high)  # ONNX has no clip by arrays


def _conv(xp, x, bias, weights, stride, padding):
  """A convolution of images [K, H, W, C], one place of its kernel at a time."""
  kernel, sides = weights.shape[0], x.shape[1:3]
  if padding == 'SAME':
    needed = [(-(-side // stride) - 1) * stride + kernel for side in sides]
    more = [max(n - side, 0) for n, side in zip(needed, sides)]
    edges = [(0, 0), *((m // 2, m - m // 2) for m in more), (0, 0)]
    x = xp.pad(x, edges, 'constant')
  high, wide = ((side - kernel) // stride + 1 for side in x.shape[1:3])
  total = bias
  for i in range(kernel):
    for j in range(kernel):
      part = x[
        :,
        i : i + (high - 1) * stride + 1 : stride,
        j : j + (wide - 1) * stride + 1 : stride,
      ]
      total = total + xp.matmul(part, weights[i, j])
  return total


def _lstm(xp, x, state, bias, of_input, of_hidden):
  """The output, and the next state: hidden, then cell."""
  n = of_hidden.shape[0]
  gates = xp.matmul(x, of_input) + xp.matmul(state[:, :n], of_hidden) + bias
  half = np.float32(0.5)
  let_in, forget, out = (
    half * xp.tanh(half * gates[:, k * n : (k + 1) * n]) + half
    for k in (0, 1, 3)
  )
  cell = forget * state[:, n:] + let_in * xp.tanh(gates[:, 2 * n : 3 * n])
  hidden = out * xp.tanh(cell)
  return hidden, xp.concatenate([hidden, cell], axis=1)


def _filled(found, kept):
  """Operations with their arrays, which JSON names {'array': i}."""
  if isinstance(found, dict):
    return kept[f'array_{found["array"]}']
  if isinstance(found, list):
    return [_filled(one, kept) for one in found]
  return found
