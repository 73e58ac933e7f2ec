"""The wheel with what pip installs of itself: no lock, no clone.

Takes minutes, most of them to download: 1 GB from the index that pip is
configured with.
"""

import os
import subprocess
import sys
import venv

import pytest

from tests.murmuration import test_wheel

SCRIPT = """
import murmuration as mm

run = mm.train('ppo', 'CartPole-v1', steps=1024, run_dir='try')
print(len(run.evaluate(2).returns), run.policy([0.0, 0, 0, 0]) in (0, 1))
"""


def _said(*command, code=0, **options):
  done = subprocess.run(
    [str(word) for word in command],
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
    env={k: v for k, v in os.environ.items() if k != 'PYTHONPATH'},
    **options,
  )
  assert done.returncode == code, done.stdout
  return done.stdout


@pytest.mark.timeout(900)
def test_pip_install_and_setup_are_all_that_it_needs(tmp_path):
  test_wheel.copy(tmp_path / 'source')
  pip = [sys.executable, '-m', 'pip', 'wheel', '--quiet', '--no-deps']
  _said(*pip, '--wheel-dir', tmp_path, tmp_path / 'source')
  (wheel,) = tmp_path.glob('*.whl')
  venv.create(tmp_path / 'empty', symlinks=True, with_pip=True)
  tools = tmp_path / 'empty' / 'bin'
  _said(tools / 'pip', 'install', '--quiet', wheel)
  told = _said(tools / 'murmuration', 'run', 'ppo', code=1, cwd=tmp_path)
  assert 'Run once:  murmuration setup' in told
  _said(tools / 'murmuration', 'setup')
  assert 'No broken requirements' in _said(tools / 'pip', 'check')
  assert 'tensorflow' in _said(tools / 'murmuration', 'doctor')
  (tmp_path / 'script.py').write_text(SCRIPT)
  told = _said(tools / 'python', 'script.py', cwd=tmp_path)
  assert told.endswith('2 True\n')
