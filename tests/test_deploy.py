"""The form of the files for clusters; nothing here runs one."""

import pathlib
import re
import shlex
import subprocess

import yaml

from launch import command_line

DEPLOY = pathlib.Path(__file__).resolve().parents[1] / 'deploy'


def test_the_batch_script_is_a_script():
  subprocess.run(['bash', '-n', DEPLOY / 'ray.sbatch'], check=True)


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
