"""The README's lines of Python, run as a reader would: pasted into a script."""

import os
import pathlib
import re
import subprocess
import sys

from PIL import Image

from murmuration.run_records import run_directory

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_the_readme_s_lines_of_python_run_as_they_stand(tmp_path):
  text = (ROOT / 'README.md').read_text(encoding='utf-8')
  (code,) = re.findall(r'```python\n(.*?)```', text, re.S)
  assert len([line for line in code.splitlines() if line.strip()]) <= 10
  # What its last comment promises.
  code += 'print(policy([0.0, 0.0, 0.1, 0.0]))\n'
  (tmp_path / 'script.py').write_text(code)
  done = subprocess.run(
    [sys.executable, 'script.py'],
    cwd=tmp_path,
    env={**os.environ, 'PYTHONPATH': str(ROOT)},
    capture_output=True,
    text=True,
    timeout=230,
  )
  assert done.returncode == 0, done.stdout + done.stderr
  first, *rest, action = done.stdout.splitlines()
  mean = float(
    re.match(r'Evaluation\(mean=(?:np\.float64\()?([\d.]+)', first)[1]
  )
  # A random policy's is 22; this one learned.
  assert mean > 100
  assert "'return_mean'" in ''.join(rest) and action in '01'
  kept = run_directory.open(tmp_path / 'my_run')
  assert kept.config()['agent_name'] == 'ppo' and kept.summary()['finished']
  with Image.open(tmp_path / 'film.gif') as film:
    assert film.n_frames > 10
