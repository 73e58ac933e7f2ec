"""What a command refuses, it refuses before TensorFlow is imported."""

import json
import pathlib
import subprocess
import sys

import pytest

from murmuration.run_records import later

ROOT = pathlib.Path(__file__).parents[2]
# Runs main with each command line; says which modules were needed for them.
SCRIPT = """
import json, sys
from murmuration.run_records import later
later.put_off()
from murmuration.launch import command_line
codes = [command_line.main(argv) for argv in json.loads(sys.argv[1])]
inner = ['tensorflow.python', 'reverb.client', 'sonnet.src']
said = [codes, [name for name in inner if name in sys.modules]]
print(json.dumps(said))
"""
REFUSED = (
  ['nonsense'],
  ['ppo:nonsense'],
  ['ppo', '--topology=nonsense'],
  ['ppo', '--lp_launch_type=nonsense'],
  ['ppo', '--config.environment=Nonsense-v0'],
  ['ppo', '--config.agent.nonsense=1'],
  ['ppo', '--config.agent.learning_rate=-1'],
  ['pso_dqn', '--config.swarm.num_explorers=0'],
  ['--resume=nonsense'],
)


def test_tensorflow_says_only_errors_when_it_comes():
  code = (
    'import os; from murmuration.run_records import later; later.put_off(); '
    "print(os.environ['TF_CPP_MIN_LOG_LEVEL'])"
  )
  for given, said in ({}, '2'), ({'TF_CPP_MIN_LOG_LEVEL': '0'}, '0'):
    done = subprocess.run(
      [sys.executable, '-c', code],
      capture_output=True,
      text=True,
      env={'PYTHONPATH': str(ROOT), **given},
    )
    assert done.stdout.split() == [said], done.stderr


def test_a_refusal_and_a_listing_need_no_tensorflow(tmp_path):
  commands = [*REFUSED, ['ppo', '--list-settings'], ['dqn', '--print-config']]
  done = subprocess.run(
    [sys.executable, '-c', SCRIPT, json.dumps(commands)],
    capture_output=True,
    text=True,
    cwd=tmp_path,
    env={'PYTHONPATH': str(ROOT), 'TF_CPP_MIN_LOG_LEVEL': '2'},
    timeout=200,
  )
  assert done.returncode == 0, done.stderr
  codes, needed = json.loads(done.stdout.splitlines()[-1])
  assert codes == [2] * len(REFUSED) + [0, 0]
  assert done.stderr.count('error: ') == len(REFUSED)
  assert needed == []


@pytest.fixture
def package(tmp_path, monkeypatch):
  """Makes a package whose code leaves a file behind; forgets it again."""

  def make(name):
    directory = tmp_path / name
    directory.mkdir()
    (directory / '__init__.py').write_text(
      'import pathlib\n'
      "pathlib.Path(__file__).with_name('ran').write_text('')\n"
      'three = 3\n'
    )
    (directory / 'inner.py').write_text('four = 4\n')
    made.append(name)
    return directory / 'ran'

  made = []
  monkeypatch.syspath_prepend(tmp_path)
  yield make
  for name in list(sys.modules):
    if name.partition('.')[0] in made:
      del sys.modules[name]


def test_a_module_runs_when_it_is_first_used(package):
  ran = package('used_later')
  later.put_off(['used_later'])
  import used_later
  import used_later as again

  assert again is used_later and not ran.exists()
  assert used_later.three == 3 and ran.exists()
  with pytest.raises(AttributeError, match='five'):
    _ = used_later.five


def test_a_module_inside_brings_the_one_around_it(package):
  ran = package('around')
  later.put_off(['around'])
  from around import inner

  assert inner.four == 4 and ran.exists()


def test_all_are_loaded_at_once_and_what_is_there_stays(package):
  ran = package('loaded_at_once')
  later.put_off(['loaded_at_once', 'json', 'no_such_module'])
  assert sys.modules['json'] is json and 'no_such_module' not in sys.modules
  later.load(['loaded_at_once', 'json'])
  assert ran.exists() and sys.modules['loaded_at_once'].three == 3


def test_a_process_of_others_finds_nothing_half_imported(package):
  ran = package('deferred')
  with later.deferred(['deferred', 'json']):
    import deferred
  # matplotlib, for one, takes what is there for loaded.
  assert 'deferred' not in sys.modules and sys.modules['json'] is json
  assert not ran.exists()
  assert deferred.three == 3 and ran.exists()
  assert sys.modules['deferred'].three == deferred.three
  with pytest.raises(AttributeError, match='five'):
    _ = deferred.five
  with later.deferred(['deferred']):
    import deferred as again
  assert again is sys.modules['deferred']
