"""The form of the files for clusters; nothing here runs one."""

import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import time

import pytest
import yaml

from launch import command_line

DEPLOY = pathlib.Path(__file__).resolve().parents[1] / 'deploy'


def test_the_batch_script_is_a_script():
  subprocess.run(['bash', '-n', DEPLOY / 'ray.sbatch'], check=True)


# Slurm's dies of SIGTERM, and what it runs with it.
SRUN = """
while [ "${1#--}" != "$1" ]; do shift; done
if [ "$1" = hostname ]; then echo 10.0.0.1 fe80::1; exit; fi
"$@" &
trap "kill -9 $!; exit 137" TERM
wait
"""
LAUNCHER = """
import pathlib, signal, sys
def save(*unused):
  pathlib.Path('saved').write_text(' '.join(sys.argv[1:]))
  sys.exit(143)
signal.signal(signal.SIGTERM, save)
pathlib.Path('ready').touch()
while True:
  signal.pause()
"""


@pytest.fixture
def slurm(tmp_path):
  """The environment of a job on two nodes, with commands that are played."""
  for path, interpreter, text in (
    ('bin/scontrol', '/bin/sh', 'echo one; /bin/sleep 0.1; echo two'),
    ('bin/sleep', '/bin/sh', 'true'),
    ('bin/srun', '/bin/sh', SRUN),
    ('.venv/bin/ray', '/bin/sh', 'exec tail -f /dev/null'),
    ('.venv/bin/python', sys.executable, LAUNCHER),
  ):
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).write_text(f'#!{interpreter}\n{text}\n')
    (tmp_path / path).chmod(0o700)
  return {
    **os.environ,
    'PATH': f'{tmp_path / "bin"}:{os.environ["PATH"]}',
    'SLURM_SUBMIT_DIR': str(tmp_path),
    'SLURM_JOB_NODELIST': 'nodes[1-2]',
    'SLURM_JOB_NUM_NODES': '2',
    'SLURM_CPUS_PER_TASK': '16',
  }


def test_a_batch_job_that_is_told_to_end_lets_the_launcher_save(
  slurm, tmp_path
):
  words = ['bash', DEPLOY / 'ray.sbatch', 'dqn:cartpole', '--config.seed=1']
  job = subprocess.Popen(words, env=slurm, start_new_session=True)
  try:
    deadline = time.monotonic() + 60
    while not (tmp_path / 'ready').exists():
      assert time.monotonic() < deadline and job.poll() is None
      time.sleep(0.02)
    while job.poll() is None:  # one may come before it knows its launcher
      assert time.monotonic() < deadline
      job.terminate()  # the script alone, as Slurm does
      time.sleep(0.5)
    assert job.poll() == 143
  finally:
    os.killpg(job.pid, signal.SIGKILL)  # Ray, which Slurm would end now
  assert (tmp_path / 'saved').read_text() == (
    'launch/run.py --lp_launch_type=ray --ray_address=10.0.0.1:6379 '
    'dqn:cartpole --config.seed=1'
  )


def test_the_image_has_the_packages_that_the_docs_say_go_with_the_dashboard():
  def pins(text):
    return set(re.findall(r'[\w\-\[\]]+==[\d.]+', text))

  page = (DEPLOY.parent / 'docs' / 'clusters.md').read_text()
  (command,) = re.findall(r'pip install "ray(?:.*\\\n)*.*', page)
  assert len(pins(command)) == 4
  assert pins((DEPLOY / 'Dockerfile').read_text()) == pins(command)


def test_the_ray_job_runs_a_command_that_there_is():
  job = yaml.safe_load((DEPLOY / 'rayjob.yaml').read_text())
  assert (job['apiVersion'], job['kind']) == ('ray.io/v1', 'RayJob')
  groups = job['spec']['rayClusterSpec']
  for group in (groups['headGroupSpec'], *groups['workerGroupSpecs']):
    (container,) = group['template']['spec']['containers']
    mounts = {mount['name'] for mount in container['volumeMounts']}
    volumes = {v['name'] for v in group['template']['spec']['volumes']}
    assert mounts == volumes == {'runs'}
  python, script, *words = shlex.split(job['spec']['entrypoint'])
  assert (python, script) == ('python', '/murmuration/launch/run.py')
  assert command_line.main([*words, '--print-config']) == 0
