"""Sweeps without the package that they need; tests/extras has the others."""

import signal
import sys

from murmuration import sweep


def test_without_optuna_a_sweep_says_what_to_install(monkeypatch, capsys):
  monkeypatch.setitem(sys.modules, 'optuna', None)  # as if it were not there
  monkeypatch.setattr(signal, 'signal', lambda *unused: None)
  monkeypatch.setattr(sys, 'argv', ['sweep', 'ppo', 'gamma=0.9,0.99'])
  assert sweep.main() == 2
  (line,) = capsys.readouterr().err.splitlines()
  assert 'pip install optuna' in line
