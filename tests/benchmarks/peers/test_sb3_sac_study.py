"""SB3's SAC as a variant of a study: its settings, its policy, its rows."""

import json
import sys

import numpy as np
import pytest

from murmuration import jobs
from murmuration.launch import cell as cell_lib
from murmuration.run_records import curves
from murmuration.run_records import jsonable
from murmuration.run_records import run_directory
from tests.benchmarks.peers import sb3_sac_study


def _cell(preset='pendulum', **overrides):
  return cell_lib.resolve('sac', preset, 'single_process', overrides)


def _arrays(rng, sizes):
  arrays = {'elapsed_s': np.array(1.5), 'updates': np.array(60)}
  for i, (ins, outs) in enumerate(zip(sizes[:-1], sizes[1:])):
    arrays[f'weights_{i}'] = rng.standard_normal((ins, outs), np.float32)
    arrays[f'bias_{i}'] = rng.standard_normal(outs, np.float32)
  return arrays


@pytest.mark.parametrize(
  ('preset', 'sizes', 'waits'), [('pendulum', 64, 100), ('hopper', 256, 10_000)]
)
def test_sb3_is_told_the_numbers_of_the_preset(preset, sizes, waits):
  cell = _cell(preset)
  found = sb3_sac_study.model_settings(cell.config)
  assert found['policy_kwargs']['net_arch'] == {
    'pi': [sizes] * 2,
    'qf': [sizes] * 2,
  }
  assert found['learning_starts'] == waits
  assert (found['train_freq'], found['gradient_steps']) == (1, 1)
  agent = cell.config['agent']
  assert found['learning_rate'] == agent['critic_learning_rate']
  assert found['buffer_size'] == agent['max_replay_size']


@pytest.mark.parametrize(
  ('name', 'value', 'said'),
  [
    ('agent.n_step', '3', 'n_step'),
    ('agent.normalize_observations', 'True', 'normalize'),
    ('agent.policy_learning_rate', '1e-4', 'one learning rate'),
    ('agent.random_steps', '7', 'random actions'),
    ('pace.samples_per_insert', '64', 'one update'),
  ],
)
def test_what_sb3_cannot_be_told_is_refused(name, value, said):
  with pytest.raises(ValueError, match=said):
    sb3_sac_study.model_settings(_cell(**{name: value}).config)


def test_the_policy_is_tanh_of_the_mean():
  arrays = _arrays(np.random.default_rng(0), (3, 5, 5, 2))
  x = np.random.default_rng(1).standard_normal((4, 3), np.float32)
  y = np.maximum(x @ arrays['weights_0'] + arrays['bias_0'], 0)
  y = np.maximum(y @ arrays['weights_1'] + arrays['bias_1'], 0)
  wanted = np.tanh(y @ arrays['weights_2'] + arrays['bias_2'])
  np.testing.assert_allclose(sb3_sac_study.policy(arrays)(x), wanted, atol=1e-6)


def test_seeds_of_a_study_share_a_config_and_sb3_has_its_own(
  tmp_path, monkeypatch, capsys
):
  digests = set()
  for seed in (0, 1):
    argv = ['sb3_sac', 'sac:pendulum', f'--seed={seed}', '--print-config']
    monkeypatch.setattr(sys, 'argv', argv)
    assert sb3_sac_study.main() == 0
    digests.add(jobs.digest(json.loads(capsys.readouterr().out)))
  assert len(digests) == 1
  cell = cell_lib.resolve('sac', 'pendulum', 'single_process', {}, 7)
  run = run_directory.create(tmp_path / 'run', cell.config, {})
  monkeypatch.setattr(sb3_sac_study, 'PYTHON', sys.executable)
  monkeypatch.setattr(sb3_sac_study, 'SCRIPT', tmp_path / 'script.py')
  sb3_sac_study.SCRIPT.write_text('exit(3)')
  model = sb3_sac_study.model_settings(cell.config)
  assert sb3_sac_study.learn(cell, model, run) == 3
  told = jsonable.read(run.path / 'settings.json')['model']
  assert told == {**model, 'seed': 7}


def _kept(tmp_path, *kept):
  """A cell, and a run in which SB3 kept its policy after these steps."""
  cell = _cell(**{'run.steps_per_agent': '160', 'run.eval_episodes': '2'})
  run = run_directory.create(tmp_path / 'run', cell.config, {})
  rng = np.random.default_rng(0)
  for steps in kept:
    np.savez(run.checkpoints / f'{steps}.npz', **_arrays(rng, (3, 4, 1)))
  return cell, run


def test_what_was_kept_is_played_and_becomes_a_curve(tmp_path):
  cell, run = _kept(tmp_path, 160, 80)
  jsonable.write(run.checkpoints / 'versions.json', {'torch': '2'})
  sb3_sac_study.evaluate(cell, run, 0)
  curve = curves.of_run(run.path)
  assert list(curve.steps) == [80, 160] and (curve.returns < 0).all()
  assert run.summary()['totals'] == {'actor_steps': 160, 'learner_steps': 60}


@pytest.mark.parametrize('kept', [(), (80,)])
def test_a_crash_of_sb3_leaves_what_was_kept_before_it(
  tmp_path, monkeypatch, kept
):
  cell, run = _kept(tmp_path, *kept)
  (run.checkpoints / 'new.npz').write_bytes(b'half of i')
  monkeypatch.setattr(cell_lib, 'resolve', lambda *unused: cell)
  monkeypatch.setattr(run_directory, 'create', lambda *unused: run)
  monkeypatch.setattr(sb3_sac_study, 'PYTHON', tmp_path)
  monkeypatch.setattr(sb3_sac_study, 'learn', lambda *unused: 9)
  argv = ['sb3_sac', 'sac:pendulum', f'--run_dir={run.path}']
  monkeypatch.setattr(sys, 'argv', argv)
  assert sb3_sac_study.main() == 9
  assert list(curves.of_run(run.path).steps) == list(kept)
  assert run.summary() is None
