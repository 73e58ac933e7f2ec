"""A task of dm_control learns as docs/your_environment.md says."""

import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = """
import murmuration as mm

run = mm.train(
  'ddpg', 'suite_env:balance', steps=1200, min_replay_size=200, run_dir='run',
  num_actors=1, evaluations=1, eval_episodes=1,
)
print(run.evaluate(1).returns, run.policy([0.0, 1, 0, 0, 0]))
"""


def test_the_page_s_environment_trains_and_is_evaluated(tmp_path):
  page = (ROOT / 'docs' / 'your_environment.md').read_text()
  section = page.partition('### dm_control')[2]
  code = re.search(r'```python\n(.*?)```', section, re.S)[1]
  (tmp_path / 'suite_env.py').write_text(code)
  (tmp_path / 'script.py').write_text(SCRIPT)
  done = subprocess.run(
    [sys.executable, 'script.py'],
    cwd=tmp_path,
    env={**os.environ, 'PYTHONPATH': str(ROOT)},
    capture_output=True,
    text=True,
    timeout=230,
  )
  assert done.returncode == 0, done.stdout + done.stderr
  found = re.fullmatch(r'\[\s*([\d.]+)\] \[(.*)\]\s*', done.stdout)
  # A reward of at most 1 for each of 1,000 steps; some for any of them.
  assert found and 50 < float(found[1]) <= 1000, done.stdout
  assert -1 <= float(found[2]) <= 1
