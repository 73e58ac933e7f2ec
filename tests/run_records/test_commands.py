"""What each command does first: streams, and Ctrl-C before there are files."""

import os
import pathlib
import signal
import subprocess
import sys

import pytest

from murmuration.run_records import commands

ROOT = pathlib.Path(__file__).parents[2]
# In place of a module that takes long to import, and takes all that comes.
SLOW = """
import time
print('importing', flush=True)
try:
  while True:  # a signal just before a sleep is handled after it
    time.sleep(0.05)
except BaseException:
  time.sleep(600)
"""
LEAVES = """
from murmuration.run_records import first
first.begin()
import threading
first.raise_interrupts()
threading.Thread(target=threading.Event().wait).start()
import sys
end = sys.exit
sys.exit = lambda code: [print('leaves', flush=True), end(code)]
first.leave(3)
"""
PRINTS = """
from murmuration.run_records import first
first.begin()
import os, sys
print('R\\u00b2 \\u00b7')
print('said', file=sys.stderr)
sys.stdin.read()
found = os.pipe()
print(min(found) > 2, all(map(os.get_inheritable, range(3))))
"""


def _interrupted(after, words, environment=None):
  """Exit code and stderr of a Python that gets Ctrl-C after its first line."""
  process = subprocess.Popen(
    [sys.executable, *words],
    cwd=ROOT,
    env=environment,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
    start_new_session=True,
    # What runs the tests in the background may ignore interrupts.
    preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
  )
  try:
    assert process.stdout.readline() == after
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[1]
  finally:
    process.kill()
    process.wait()
  return process.returncode, said


@pytest.mark.parametrize(
  'script',
  [
    'launch/run.py',
    'launch/run_swarm.py',
    'launch/evaluate.py',
    'murmuration/sweep.py',
    'murmuration/play.py',
    'murmuration/export.py',
    'run_records/follow.py',
    'studies/results.py',
    'studies/zoo.py',
  ],
)
def test_an_interrupt_in_an_import_ends_the_command_with_a_word(
  script, tmp_path
):
  (tmp_path / 'argparse.py').write_text(SLOW)  # one of the first
  environment = {**os.environ, 'PYTHONPATH': f'{tmp_path}:{ROOT}'}
  words = [str(ROOT / script), '--help']
  assert _interrupted('importing\n', words, environment) == (
    130,
    'interrupted\n',
  )


@pytest.mark.parametrize(
  'script',
  [
    'launch/run.py',
    'launch/run_swarm.py',
    'launch/evaluate.py',
  ],
)
def test_a_python_without_the_packages_says_which_one_has_them(script):
  path = str(ROOT / script)
  done = subprocess.run(
    [sys.executable, '-S', path, 'a b'],  # without site-packages
    env={k: v for k, v in os.environ.items() if k != 'PYTHONPATH'},
    capture_output=True,
    text=True,
    timeout=60,
  )
  assert done.returncode == 1 and not done.stdout, done
  (line,) = done.stderr.splitlines()
  assert line.startswith(f'error: {sys.executable} has no '), line
  assert '`make environment`' in line
  assert line.endswith(f"{ROOT}/.venv/bin/python {path} 'a b'"), line


def test_an_interrupt_ends_a_command_whose_threads_do_not():
  assert _interrupted('leaves\n', ['-c', LEAVES]) == (3, '')


def test_of_signals_that_are_ignored_only_interrupts_remain_so():
  script = (
    'import signal; from murmuration.run_records import first; first.begin(); '
    'print(*map(int, map(signal.getsignal, (signal.SIGINT, signal.SIGCHLD))))'
  )
  done = subprocess.run(
    [sys.executable, '-c', script],
    cwd=ROOT,
    capture_output=True,
    text=True,
    timeout=60,
    preexec_fn=lambda: [
      signal.signal(number, signal.SIG_IGN)
      for number in (signal.SIGINT, signal.SIGCHLD)
    ],
  )
  ignored, default = int(signal.SIG_IGN), int(signal.SIG_DFL)
  assert done.stdout == f'{ignored} {default}\n', done


@pytest.mark.parametrize('closed', ['', '>&-', '<&-', '>&- 2>&- <&-'])
def test_what_nobody_reads_may_be_printed_all_the_same(closed):
  done = subprocess.run(
    ['sh', '-c', f'exec "$0" -c "$1" {closed}', sys.executable, PRINTS],
    cwd=ROOT,
    env={**os.environ, 'PYTHONIOENCODING': 'ascii'},
    stdin=subprocess.DEVNULL,
    capture_output=True,
    text=True,
    timeout=60,
  )
  assert done.returncode == 0, done
  open_output = '>' not in closed
  assert done.stdout == ('R? ?\nTrue True\n' if open_output else '')
  assert done.stderr == ('' if '2>' in closed else 'said\n')


def test_the_end_of_a_log_stays_in_lines(tmp_path):
  (tmp_path / 'broken.py').write_text('print("one\\n  two")\n1 / 0\n')
  (tmp_path / 'mine.py').write_text(
    'from murmuration.studies import plan\n'
    f'broken = plan.Variant((), script={str(tmp_path / "broken.py")!r})\n'
    "one = plan.Study('one', 'CartPole-v1', 100, 1.0, 1, {'A': broken}, 'A')\n"
    "STUDIES = {'one': one}\n"
  )
  done = subprocess.run(
    [sys.executable, str(ROOT / 'studies' / 'results.py')]
    + ['--studies=mine.py', '--out=out'],
    cwd=tmp_path,
    env={**os.environ, 'PYTHONPATH': str(ROOT)},
    capture_output=True,
    text=True,
    timeout=100,
  )
  assert done.returncode == commands.USAGE, done
  lines = done.stderr.splitlines()
  assert lines[0].startswith('error: ') and {'one', '  two'} <= {*lines}, done
  assert lines[-1] == 'ZeroDivisionError: division by zero', done


@pytest.mark.parametrize(
  'words',
  [
    ['studies/zoo.py', 'ppo:cartpole'],
    ['murmuration/export.py', 'runs/a'],
    ['murmuration/play.py'],
    ['run_records/follow.py', 'runs/a', '--to=wandb'],
  ],
)
def test_in_a_directory_that_was_removed_a_command_is_refused(words, tmp_path):
  script, *rest = words
  # The shell leaves the variable PWD, by which nothing is found.
  done = subprocess.run(
    ['sh', '-c', 'cd "$1" && rmdir "$1" && shift && exec "$@"', 'sh', tmp_path]
    + [sys.executable, str(ROOT / script), *rest],
    capture_output=True,
    text=True,
    timeout=60,
  )
  assert done.returncode == commands.USAGE, done
  last = done.stderr.splitlines()[-1]
  assert last.startswith('error: the working directory is not there'), done
  assert 'Traceback' not in done.stderr, done


@pytest.mark.parametrize(
  ('argv', 'line'),
  [
    (['murmuration run', 'ppo', '--run_dir=a b'], "murmuration run ppo '"),
    (['/my runs/run.py', 'ppo'], "'/my runs/run.py' ppo"),
  ],
)
def test_a_command_line_can_be_pasted(argv, line, monkeypatch):
  monkeypatch.setattr(sys, 'argv', argv)
  assert commands.line().startswith(line)
