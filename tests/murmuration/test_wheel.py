"""The wheel in an empty environment, beside others' packages of our names."""

import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGES = (
  'agents',
  'configs',
  'environment_loops',
  'launch',
  'replay',
  'run_records',
  'studies',
)

pytestmark = pytest.mark.long


def _done(command, **options):
  done = subprocess.run(
    [str(word) for word in command],
    capture_output=True,
    text=True,
    timeout=200,
    **options,
  )
  assert done.returncode == 0, done.stdout + done.stderr
  return done.stdout


def copy(source):
  """Copies what a wheel is built of, as a build leaves files behind."""
  source.mkdir()
  unwanted = shutil.ignore_patterns('__pycache__')
  kept = ('murmuration', 'pyproject.toml', 'README.md', 'LICENSE')
  for name in (*PACKAGES, *kept):
    if (ROOT / name).is_dir():
      shutil.copytree(
        ROOT / name, source / name, ignore=unwanted, symlinks=True
      )
    else:
      shutil.copy(ROOT / name, source)


@pytest.fixture(scope='module')
def wheel(tmp_path_factory):
  directory = tmp_path_factory.mktemp('wheel')
  source = directory / 'source'
  copy(source)
  _done(
    [sys.executable, '-m', 'pip', 'wheel', '--no-deps', '--no-build-isolation']
    + ['--no-index', '--wheel-dir', directory, source]
  )
  (found,) = directory.glob('murmuration-*.whl')
  return found


@pytest.fixture(scope='module')
def environment(wheel, tmp_path_factory):
  """An empty environment that sees the locked stack, with the wheel."""
  directory = tmp_path_factory.mktemp('environment')
  venv.create(directory, symlinks=True)
  python = directory / 'bin' / 'python'
  (purelib,) = directory.glob('lib/python*/site-packages')
  # The stack's own path files are not read: the clone is not on the path.
  (purelib / 'stack.pth').write_text(sysconfig.get_path('purelib') + '\n')
  _done(
    [sys.executable, '-m', 'pip', '--python', python, 'install', '--no-deps']
    + ['--no-index', '--no-warn-script-location', wheel]
  )
  return directory


@pytest.fixture
def user(tmp_path):
  """A directory with files that are called as the project's packages are."""
  for package in PACKAGES:
    (tmp_path / f'{package}.py').write_text('WHO = "the user"\n')
  return tmp_path


def _clean():
  return {k: v for k, v in os.environ.items() if k != 'PYTHONPATH'}


def test_the_wheel_has_every_package_and_what_belongs_to_it(wheel):
  names = zipfile.ZipFile(wheel).namelist()
  tops = {name.partition('/')[0] for name in names}
  assert tops - {n for n in tops if n.endswith('.dist-info')} == {'murmuration'}
  assert 'murmuration/py.typed' in names
  # What they compare is only in a clone.
  assert not any(name.startswith('murmuration/studies') for name in names)
  assert any(name.startswith('murmuration/zoo/') for name in names)


def test_it_runs_evaluates_and_plays_beside_the_user_s_files(environment, user):
  command = environment / 'bin' / 'murmuration'
  _done(
    [command, 'run', 'ppo:cartpole', '--config.run.steps_per_agent=1024']
    + ['--run_dir=try'],
    cwd=user,
    env=_clean(),
  )
  said = _done(
    [command, 'evaluate', 'try', '--episodes=2', '--video='],
    cwd=user,
    env=_clean(),
  )
  assert '2 episodes' in said
  _done([command, 'export', 'try'], cwd=user, env=_clean())
  assert (user / 'try' / 'policy.py').exists()
  said = _done([command, 'play', 'impala:cartpole'], cwd=user, env=_clean())
  assert 'mean' in said
  assert 'tensorflow' in _done([command, 'doctor'], cwd=user, env=_clean())


def test_the_user_s_modules_stay_theirs(environment, user):
  code = (
    'import agents, launch, murmuration as mm\n'
    'assert agents.WHO == launch.WHO == "the user"\n'
    'run = mm.train("dqn", "CartPole-v1", steps=300, min_replay_size=64)\n'
    'print(len(run.evaluate(2).returns), mm.__file__)\n'
  )
  (user / 'script.py').write_text(code)
  said = _done(
    [environment / 'bin' / 'python', 'script.py'], cwd=user, env=_clean()
  )
  assert said.startswith('2 ') and str(environment) in said
