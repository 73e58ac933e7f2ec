"""The lists of pins."""

import pathlib
import re

REQUIREMENTS = pathlib.Path(__file__).resolve().parents[2] / 'requirements'


def test_every_locked_package_has_one_version_and_a_hash():
  text = (REQUIREMENTS / 'lock.txt').read_text()
  entries = re.findall(r'^(\S.*)\n((?: +.*\n)*)', text, re.M)
  assert len(entries) > 90
  for first, rest in entries:
    assert re.match(r'[\w.-]+==[^\s;]+ \\$', first), first
    assert '--hash=sha256:' in rest, first


def test_no_list_of_pins_names_an_index():
  for path in REQUIREMENTS.rglob('*.txt'):
    text = path.read_text()
    assert '://' not in text and '--' not in text.replace('--hash', ''), path


def test_what_is_asked_for_is_locked():
  text = (REQUIREMENTS / 'lock.txt').read_text()
  locked = re.findall(r'^([\w.-]+)==', text, re.M)
  for line in (REQUIREMENTS / 'requirements.in').read_text().splitlines():
    if line and not line.startswith('#'):
      name = re.split(r'[\[=<>]', line)[0].replace('_', '-').lower()
      assert name in locked, line
