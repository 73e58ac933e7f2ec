"""Writes the policy of a run for use without this project.

  murmuration export runs/NAME                       # RUN/policy.py
  murmuration export runs/NAME --format=savedmodel   # RUN/policy/, TensorFlow's
  murmuration export runs/NAME --format=onnx         # RUN/policy.onnx
  murmuration export runs/NAME --to=policy.npz --score=100   # for the zoo

With normalization and action scaling: observations in, what env.step takes out.
The Python file needs nothing but NumPy: `from policy import policy`.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
import io
import json
import pathlib
import sys
import textwrap
from typing import Any

from murmuration.run_records import first

if __name__ == '__main__':
  first.begin()

from murmuration.run_records import later

if __name__ == '__main__':
  later.put_off()  # most formats, and what is refused, need nothing of it

import numpy as np

from murmuration import playing
from murmuration import portable
from murmuration.agents import base
from murmuration.environment_loops import environments
from murmuration.environment_loops import spaces
from murmuration.run_records import commands
from murmuration.run_records import packages
from murmuration.run_records import run_directory

FORMATS = ('numpy', 'savedmodel', 'onnx')
_SCORE_SEED = 1_000_000  # no run's own
_NAMES = {'numpy': 'policy.py', 'savedmodel': 'policy', 'onnx': 'policy.onnx'}
# What files end in, by which others know what they are; a SavedModel has none.
_ENDINGS = {'numpy': ('.py', '.npz'), 'onnx': ('.onnx',), 'savedmodel': ()}


def main() -> int:
  parser = commands.Parser(__doc__)
  parser.add_argument('run', metavar='RUN', help='directory of a run')
  parser.add_argument(
    '--format', default='numpy', help=f'{", ".join(FORMATS)}; default: numpy'
  )
  parser.add_argument('--to', help='where to; default: in RUN')
  parser.add_argument(
    '--score',
    type=commands.at_least(2),
    metavar='EPISODES',
    help='plays so many, and writes command, seed, mean return and its '
    'interval into the file',
  )
  try:
    sys.path.append(commands.here())  # for agents of the user's own
    args = parser.parse(sys.argv[1:])
    path = export(
      pathlib.Path(args.run),
      args.format,
      args.to and pathlib.Path(args.to),
      args.score,
      tell=print,
    )
  except (ValueError, OSError) as e:
    return commands.refuse(e)
  except environments.EnvironmentFault as e:
    print(f'No score: {e}', file=sys.stderr)
    return 1
  print(path)
  return 0


def _check_ending(to: pathlib.Path, format: str) -> None:
  known = _ENDINGS[format]
  if to.suffix in known:
    return
  others = {end: name for name, ends in _ENDINGS.items() for end in ends}
  if not known and to.suffix not in others:
    return
  wanted = f'ends in {" or ".join(known)}' if known else 'is a directory'
  other = others.get(to.suffix)
  raise ValueError(
    f'{to} ends in {to.suffix!r}; the format {format} {wanted}. Give another '
    f'name{f", or the format {other}" if other else ""}.'
  )


def export(
  run_dir: pathlib.Path,
  format: str = 'numpy',
  to: pathlib.Path | None = None,
  score: int | None = None,
  tell: Callable[[str], None] = lambda unused: None,
  kept: playing.Kept | None = None,
  **about: Any,
) -> pathlib.Path:
  """Writes the best policy of a run.

  Args:
    run_dir: of the run.
    format: 'numpy', 'savedmodel' or 'onnx'.
    to: the file (.py, or .npz without code), or SavedModel's directory.
    score: episodes to play, for `scored`; None plays none.
    tell: is told the score.
    kept: its parameters; None: as they are loaded.
    **about: what else it is to say of itself.

  Returns:
    Where it is.

  Raises:
    ValueError: the format is not known, or its package not installed; `to` ends
      as another format; the run keeps no parameters, or its agent does not say
      its policy as operations.
    FileExistsError: a SavedModel is there.
  """
  if format not in FORMATS:
    raise ValueError(f'format={format!r}: choose from {", ".join(FORMATS)}.')
  if format == 'onnx':
    needed = {'onnx': 'onnx==1.17.0', 'tf2onnx': 'tf2onnx==1.17.0'}
    packages.require('--format=onnx', needed)
  run = run_directory.open(run_dir)
  to = run_dir / _NAMES[format] if to is None else to
  _check_ending(to, format)
  kept = kept or playing.load(run)
  if format == 'savedmodel' and to.exists():
    raise FileExistsError(f'{to} is there already. Give another name.')
  more = scored(run, kept, score) if score else {}
  if more:
    low, high = more['interval']
    tell(
      f'mean return {more["score"]:.1f} [{low:.1f}, {high:.1f}] over '
      f'{more["episodes"]} episodes'
    )
  data = packed(kept, **more, **about)
  to.parent.mkdir(parents=True, exist_ok=True)
  if format == 'savedmodel':
    _save_model(portable.Policy(data), to)
  elif format == 'onnx':
    to.write_bytes(_onnx(portable.Policy(data)))
  elif to.suffix == '.npz':
    to.write_bytes(data)
  else:
    to.write_text(_source(data), encoding='utf-8')
  return to


def scored(
  run: run_directory.RunDirectory, kept: playing.Kept, episodes: int
) -> dict[str, Any]:
  """What a policy of the zoo says of itself: where it is from, its worth.

  The interval is of the mean return, 95%, by a normal approximation.
  """
  config = run.config()
  found = playing.evaluate(run, kept, episodes, _SCORE_SEED)
  half = 1.96 * found.std / np.sqrt(max(len(found.returns) - 1, 1))
  return {
    'command': run.commands()[0],
    'seed': config['seed'],
    'score': found.mean,
    'interval': [round(found.mean - half, 2), round(found.mean + half, 2)],
    'episodes': len(found.returns),
  }


def policy(kept: playing.Kept, native: bool = True) -> Any:
  """The greedy policy, in NumPy where the agent has `operations`.

  Args:
    kept: agent and parameters.
    native: whether actions are in the environment's own units, as `env.step`
      takes them, or as the agent has them.
  """
  spec = kept.agent.spec
  if type(kept.agent).operations is not base.Agent.operations:
    made: Any = portable.Policy(packed(kept, native))
  else:
    made = playing.Live(kept) if native else kept.policy()
  seen = environments.spaces(spec.name)[0]
  if native and spaces.flattened(seen) is not None:
    return playing.OfParts(made, spec.name, seen)
  return made


def packed(kept: playing.Kept, native: bool = True, **about: Any) -> bytes:
  """What `portable.Policy` reads.

  Args:
    kept: agent and parameters.
    native: whether actions are in the environment's own units.
    **about: what else it is to say of itself.
  """
  agent, spec = kept.agent, kept.agent.spec
  operations = agent.operations(np.array(kept.theta, np.float32))
  if native:
    operations = [*operations, *kept.to_native()]
  arrays: list[np.ndarray] = []

  def taken(found: Any) -> Any:
    if isinstance(found, np.ndarray):
      arrays.append(found)
      return {'array': len(arrays) - 1}
    if isinstance(found, (list, tuple)):
      return [taken(one) for one in found]
    return found

  text = json.dumps(
    {
      'agent': agent.name,
      'environment': spec.name,
      'what': kept.what,
      'observation_shape': spec.observation_shape,
      'observation_dtype': spec.observation_dtype,
      **about,
      'operations': taken(operations),
    }
  )
  file = io.BytesIO()
  named = {f'array_{i}': array for i, array in enumerate(arrays)}
  np.savez_compressed(file, about=np.array(text), **named)
  return file.getvalue()


def _source(data: bytes) -> str:
  """One file of Python that holds the code and the numbers."""
  about = portable.Policy(data).about
  lines = textwrap.wrap(base64.b64encode(data).decode(), 76)
  code = pathlib.Path(portable.__file__).read_text(encoding='utf-8')
  return (
    f'# {about["agent"]} on {about["environment"]}: {about["what"]}.\n{code}'
    '\n\nimport base64  # noqa: E402\n\n'
    'policy = Policy(\n  base64.b64decode("""' + '\n'.join(lines) + '""")\n)\n'
  )


def _function(policy: portable.Policy, following: str) -> tuple[Any, list[Any]]:
  """The policy as a function of TensorFlow, and its signature.

  Observations [N, ...] to 'action'; of a policy that remembers also 'state'
  float32 [N, S], zeros at first, and 'fresh' bool [N] (an episode begins), and
  the next state back, under the name `following`.
  """
  import tensorflow as tf
  import tensorflow.experimental.numpy as tnp

  about = policy.about
  shape, dtype = about['observation_shape'], about['observation_dtype']
  inputs = [tf.TensorSpec((None, *shape), dtype, name='observation')]
  if policy.size:
    inputs.append(tf.TensorSpec((None, policy.size), tf.float32, name='state'))
    inputs.append(tf.TensorSpec((None,), tf.bool, name='fresh'))

  @tf.function(input_signature=inputs, autograph=False)
  def act(observation, state=None, fresh=None):
    action, state = portable.apply(
      tnp, policy.operations, observation, state, fresh
    )
    found = {'action': action}
    return {**found, following: state} if policy.size else found

  return act, inputs


def _save_model(policy: portable.Policy, to: pathlib.Path) -> None:
  """A SavedModel with one signature.

  assets.extra/about.json has what it says of itself, a score too.
  """
  import tensorflow as tf

  module = tf.Module()
  module.act, _ = _function(policy, 'state')
  tf.saved_model.save(module, str(to), signatures=module.act)
  # Where TensorFlow has a place for what it does not load itself.
  extra = to / 'assets.extra'
  extra.mkdir(exist_ok=True)
  (extra / 'about.json').write_text(json.dumps(policy.about), encoding='utf-8')


def _onnx(policy: portable.Policy) -> bytes:
  """An ONNX model, with what it says of itself as its metadata."""
  import onnx
  import tf2onnx

  act, inputs = _function(policy, 'next_state')
  model, _ = tf2onnx.convert.from_function(act, inputs, opset=17)
  for value in (*model.graph.input, *model.graph.output):
    value.type.tensor_type.shape.dim[0].dim_param = 'N'
  about = policy.about.items()
  texts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in about}
  onnx.helper.set_model_props(model, texts)
  return model.SerializeToString()


if __name__ == '__main__':
  sys.exit(main())
