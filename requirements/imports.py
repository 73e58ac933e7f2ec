"""What the environment must be able to import, and a check that it does."""

import collections
import json
import os

# Everything the project or one of its libraries touches, in an order in which
# a failure explains those that follow.
STACK = (
  'numpy',
  'scipy',
  'tensorflow',
  'sonnet',
  'trfl',
  'tensorflow_probability',
  'tree',
  'dm_env',
  'jax',
  'reverb',
  'launchpad',
  'courier',
  'acme',
  'acme.adders.reverb',
  'gymnasium',
  'Box2D',
  'pygame',
  'mujoco',
  'ale_py',
  'cv2',
  'imageio',
  'PIL',
  'ray',
  'msgpack',
  'cloudpickle',
  'google.protobuf',
  'portpicker',
  'psutil',
  'absl',
  'ml_collections',
  'rliable',
  'rich',
  'matplotlib',
  'tensorboard',
  'pytest',
  'hypothesis',
)

# The project's own top-level packages.
PACKAGES = ('agents', 'replay', 'environment_loops', 'launch', 'configs')

# One line per name, marked: the libraries print too.
CHECK = """
import importlib, json, sys, time
for name in sys.argv[1:]:
  started = time.time()
  try:
    importlib.import_module(name)
    error = None
  except BaseException as e:
    error = type(e).__name__ + ': ' + str(e)
  print('\\n@' + json.dumps([name, error, time.time() - started]), flush=True)
"""

VERSIONS = """
import importlib.metadata, json, re
print(json.dumps({
    re.sub('[-_.]+', '-', d.metadata['Name']).lower(): d.version
    for d in importlib.metadata.distributions() if d.metadata['Name']}))
"""

Result = collections.namedtuple('Result', 'name error seconds')


def python_of(venv):
  return os.path.join(venv, 'bin', 'python')


def site_of(venv):
  return os.path.join(venv, 'lib', 'python3.10', 'site-packages')


def clean_environ():
  """os.environ without what would put packages elsewhere or hide them."""
  unwanted = (
    'PYTHONPATH',
    'PYTHONHOME',
    'PIP_TARGET',
    'PIP_PREFIX',
    'PIP_ROOT',
    'PIP_REQUIREMENT',
    'PIP_CONSTRAINT',
    'PIP_NO_BINARY',
  )
  environ = {k: v for k, v in os.environ.items() if k not in unwanted}
  environ['PIP_USER'] = '0'
  environ['PIP_DISABLE_PIP_VERSION_CHECK'] = '1'
  environ['PYTHONNOUSERSITE'] = '1'
  environ['TF_CPP_MIN_LOG_LEVEL'] = '3'
  environ['PYGAME_HIDE_SUPPORT_PROMPT'] = '1'
  return environ


def own_packages(root):
  """Those of PACKAGES that `root` has (all, unless the clone is partial)."""
  return tuple(
    p for p in PACKAGES if os.path.exists(os.path.join(root, p, '__init__.py'))
  )


def check(names, venv):
  """Imports `names` in one fresh process of `venv`.

  Returns:
    [Result(name, error or None, seconds)] in the order of `names`. Where the
    interpreter itself died, its exit code or signal is the error, and the
    names after it are tried in a new process.
  """
  import subprocess

  results: list = []
  while len(results) < len(names):
    left = names[len(results) :]
    process = subprocess.run(
      [python_of(venv), '-c', CHECK, *left],
      cwd=venv,  # Not the project, whose directory would hide a missing link.
      stdin=subprocess.DEVNULL,
      stdout=subprocess.PIPE,
      stderr=subprocess.DEVNULL,
      env=clean_environ(),
      close_fds=False,
    )
    lines = process.stdout.decode(errors='replace').splitlines()
    found = [json.loads(line[1:]) for line in lines if line.startswith('@[')]
    results += [Result(*f) for f in found]
    if len(found) < len(left):
      reason = f'the interpreter ended with code {process.returncode}'
      results.append(Result(left[len(found)], reason, 0.0))
  return results


def versions(venv):
  """{name as in the lock: version} of what is installed in `venv`."""
  import subprocess

  process = subprocess.run(
    [python_of(venv), '-I', '-c', VERSIONS],
    stdin=subprocess.DEVNULL,
    stdout=subprocess.PIPE,
    stderr=subprocess.DEVNULL,
  )
  return json.loads(process.stdout.decode() or '{}')
