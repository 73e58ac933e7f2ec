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

from murmuration.launch import command_line

DEPLOY = pathlib.Path(__file__).resolve().parents[1] / 'deploy'


def test_the_batch_script_is_a_script():
  subprocess.run(['bash', '-n', DEPLOY / 'ray.sbatch'], check=True)


# Slurm's dies of SIGTERM, and what it runs with it.
SRUN = """
while [ "${1#--}" != "$1" ]; do
  case $1 in --nodelist=*) on=${1#*=} ;; esac
  shift
done
case "$1 $on" in
  hostname*) echo 127.0.1.1 fe80::1; exit ;;  # as on Debian
  'getent one') echo 127.0.1.1 STREAM one; exit ;;
  'getent two')
    if [ -n "$UNKNOWN" ]; then exit 2; fi
    printf '10.0.0.%s STREAM one\\n' 1 2
    exit
    ;;
esac
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


def test_a_batch_job_whose_nodes_do_not_know_each_other_says_so(slurm):
  job = subprocess.run(
    ['bash', DEPLOY / 'ray.sbatch', 'dqn:cartpole'],
    env={**slurm, 'UNKNOWN': '1'},
    capture_output=True,
    text=True,
    timeout=60,
  )
  assert job.returncode == 1
  assert 'two knows no address of one' in job.stderr


def test_the_image_has_the_packages_that_the_docs_say_go_with_the_dashboard():
  def pins(text):
    return set(re.findall(r'[\w\-\[\]]+==[\d.]+', text))

  page = (DEPLOY.parent / 'docs' / 'clusters.md').read_text()
  (command,) = re.findall(r'pip install "ray(?:.*\\\n)*.*', page)
  assert len(pins(command)) == 4
  assert pins((DEPLOY / 'Dockerfile').read_text()) == pins(command)


def test_the_claim_is_what_the_pods_mount_and_may_all_write():
  claim = yaml.safe_load((DEPLOY / 'claim.yaml').read_text())
  assert claim['kind'] == 'PersistentVolumeClaim'
  assert claim['spec']['accessModes'] == ['ReadWriteMany']
  job = (DEPLOY / 'rayjob.yaml').read_text()
  assert job.count(f'{{claimName: {claim["metadata"]["name"]}}}') == 2


def test_a_login_shell_of_the_image_finds_our_python_too():
  image = (DEPLOY / 'Dockerfile').read_text()
  (path,) = re.findall(r'^ENV PATH=(.*):\$PATH$', image, re.M)
  assert f"'PATH={path}:$PATH' > /etc/profile.d/" in image


def test_the_page_resumes_with_a_command_that_there_is(tmp_path, capsys):
  page = (DEPLOY.parent / 'docs' / 'clusters.md').read_text()
  (line,) = re.findall(r'^ +python (.*--resume=/runs/.*)$', page, re.M)
  run = tmp_path / 'first'
  for name in ('metrics', 'logs', 'checkpoints'):
    (run / name).mkdir(parents=True)
  assert command_line.main(['apex_dqn:cartpole', '--print-config']) == 0
  (run / 'config.json').write_text(capsys.readouterr().out)
  script, *words = shlex.split(line.replace('/runs', str(tmp_path)))
  assert script == '/murmuration/launch/run.py'
  assert command_line.main([*words, '--print-config']) == 0


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
