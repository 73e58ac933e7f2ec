"""Programs that stand for interpreters, and where the scripts are."""

import pathlib

REQUIREMENTS = pathlib.Path(__file__).resolve().parents[2] / 'requirements'


def program(path, *lines):
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text('\n'.join(['#!/bin/sh', *lines]) + '\n')
  path.chmod(0o755)
  return str(path)


def interpreter(path, version, kind='CPython'):
  """Writes a program that answers as such an interpreter would."""
  return program(path, f'echo {path}', f'echo {kind} {version}')
