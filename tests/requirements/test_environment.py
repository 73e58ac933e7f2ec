"""The set-up does what is needed, or says why not."""

import errno
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from tests.requirements import scripts


def test_a_finished_environment_is_left_alone(environment, venv):
  assert venv.needed() == 'nothing'
  environment.make(venv)  # and needs no network


def test_a_missing_environment_is_created(environment, tmp_path):
  venv = environment.Environment('', root=str(tmp_path))
  assert venv.needed() == 'create'
  os.makedirs(venv.directory)
  assert venv.needed() == 'create'


@pytest.mark.parametrize('change', [{'pins': 'z'}, {'root': '/there'}])
def test_other_pins_or_a_moved_checkout_mean_anew(venv, change):
  venv.write_stamp({**venv.wanted(), **change})
  assert venv.needed() == 'create'


@pytest.mark.parametrize('changed', ['STUB', 'SETUP', '__file__'])
def test_another_stub_for_courier_or_another_script_is_installed(
  environment, venv, monkeypatch, tmp_path, changed
):
  copy = tmp_path / 'copy.py'
  copy.write_bytes(pathlib.Path(getattr(environment, changed)).read_bytes())
  monkeypatch.setattr(environment, changed, str(copy))
  assert venv.needed() == 'nothing'
  copy.write_text('another')
  assert venv.needed() == 'finish'


def test_a_vanished_interpreter_means_anew(venv):
  os.unlink(venv.bin)
  os.symlink('/no/python', venv.bin)
  assert venv.needed() == 'create'


def test_an_interrupted_install_is_taken_up(venv):
  stamp = venv.wanted()
  del stamp['script']
  venv.write_stamp(stamp)
  assert venv.needed() == 'finish'


@pytest.mark.parametrize('writable', [True, False])
def test_on_nfs_the_lock_is_of_a_file_that_can_be_written(
  environment, unfinished, monkeypatch, capsys, writable
):
  def opened(path, mode='r', **more):
    if mode == 'r+' and not writable:
      raise PermissionError(errno.EACCES, 'Permission denied', path)
    return open(path, mode, **more)

  def flock(file, operation):
    if not file.writable():
      raise OSError(errno.EBADF, 'Bad file descriptor')

  monkeypatch.setattr(environment.fcntl, 'flock', flock)
  before = unfinished.pins.read_bytes()
  monkeypatch.setattr(pathlib.Path, 'open', opened)
  environment.make(unfinished)
  assert unfinished.needed() == 'nothing'
  assert ('no lock here' in capsys.readouterr().out) is not writable
  monkeypatch.undo()
  assert unfinished.pins.read_bytes() == before


def test_another_set_up_is_waited_for(
  environment, unfinished, monkeypatch, capsys
):
  operations = []

  def flock(file, operation):
    operations.append(operation)
    if len(operations) == 1:
      raise BlockingIOError(errno.EAGAIN, 'held')

  monkeypatch.setattr(environment.fcntl, 'flock', flock)
  environment.make(unfinished)
  assert operations == [
    environment.fcntl.LOCK_EX | environment.fcntl.LOCK_NB,
    environment.fcntl.LOCK_EX,
  ]
  assert 'waiting for it' in capsys.readouterr().out


def test_a_link_that_leads_nowhere_makes_room(
  environment, tmp_path, monkeypatch
):
  venv = environment.Environment('', root=str(tmp_path))
  os.symlink(str(tmp_path / 'gone'), venv.directory)
  assert venv.needed() == 'create'
  monkeypatch.setattr(environment.machine, 'refuse', lambda root: None)
  monkeypatch.setattr(environment.machine, 'find', lambda *unused: 'python')
  monkeypatch.setattr(environment, 'run', lambda *unused: None)
  environment.create(venv)
  assert os.path.isdir(venv.directory) and not os.path.islink(venv.directory)


@pytest.fixture
def linked(environment, venv, tmp_path, monkeypatch):
  """It is on another disk, with a link to it, and made without a Python."""
  disk = tmp_path / 'disk'
  venv.directory.rename(disk)
  os.symlink(disk, venv.directory)
  os.symlink('python3.11', disk / 'lib' / 'link')
  os.symlink('lib', disk / 'lib64')
  monkeypatch.setattr(environment.machine, 'find', lambda *unused: 'python')
  made = []
  monkeypatch.setattr(
    environment, 'run', lambda command, *unused: made.append(command[-1])
  )
  yield venv
  # venv refuses a link.
  assert [path.is_symlink() for path in made] == [False]


@pytest.mark.parametrize('mounted', [False, True])
def test_a_link_to_a_directory_stays_and_its_disk_is_the_one_that_counts(
  environment, linked, tmp_path, monkeypatch, free, mounted
):
  def rmtree(path, **unused):
    subprocess.check_call(['find', path, '-mindepth', '1', '-delete'])

  if mounted:
    monkeypatch.setattr(environment.shutil, 'rmtree', rmtree)
  asked = free(10**10)
  environment.create(linked)
  assert asked == [linked.directory]  # statvfs follows the link
  assert os.path.realpath(linked.directory) == str(tmp_path / 'disk')
  assert os.listdir(tmp_path / 'disk') == ['murmuration.json']


def test_a_link_to_what_another_checkout_made_is_replaced(
  environment, linked, tmp_path, free
):
  linked.write_stamp({**linked.wanted(), 'root': '/there'})
  free(10**10)
  environment.create(linked)
  assert not linked.directory.is_symlink()
  assert (tmp_path / 'disk' / 'bin' / 'python').exists()


def test_a_file_in_the_way_is_named_and_not_touched(
  environment, doctor, tmp_path, monkeypatch
):
  venv = environment.Environment('', root=str(tmp_path))
  venv.directory.write_text('mine')
  with pytest.raises(environment.machine.SetupError, match='left alone'):
    environment.make(venv)
  monkeypatch.setattr(environment.machine, 'find', lambda *unused: 'python')
  assert any('left alone' in what for what, _ in doctor.examine(venv))
  assert venv.directory.read_text() == 'mine'


@pytest.mark.parametrize('name', ['', 'next'])
def test_a_directory_that_cannot_be_read_is_no_traceback(
  environment, venv, tmp_path, monkeypatch, name
):
  def refused(path):
    raise PermissionError(errno.EACCES, 'Permission denied', path)

  monkeypatch.setattr(environment.os, 'listdir', refused)
  if not name:
    with pytest.raises(environment.machine.SetupError, match='cannot read it'):
      venv.needed()
  else:
    os.makedirs(tmp_path / '.venv-next')
    venv = environment.Environment(name, root=str(tmp_path))
    assert venv.needed() == 'create'


@pytest.mark.parametrize(
  'number', [errno.EROFS, errno.ENOSPC, errno.EACCES, errno.EEXIST]
)
def test_what_the_disk_refuses_is_a_sentence_and_exit_code_1(
  environment, monkeypatch, capsys, number
):
  def make(place):
    raise OSError(number, os.strerror(number), place.stamp)

  monkeypatch.setattr(environment, 'make', make)
  monkeypatch.setattr(sys, 'argv', ['environment.py'])
  assert environment.main() == 1
  said = capsys.readouterr().err
  assert os.strerror(number) in said and 'same command again' in said


def test_an_environment_of_the_user_is_not_touched(environment, venv):
  os.unlink(venv.stamp)
  with pytest.raises(environment.machine.SetupError, match='left alone'):
    venv.needed()


def test_another_interpreter_has_a_directory_of_its_own(environment):
  venv = environment.Environment('', '/opt/bin/python3.10', '/here')
  assert str(venv.directory) == '/here/.venv-python3.10'


def test_another_interpreter_of_the_same_name_means_anew(
  environment, venv, tmp_path
):
  def named(path):
    return environment.Environment('', str(tmp_path / path), venv.root)

  first = named('a/python')
  assert named('b/python').directory == first.directory
  venv.directory.rename(first.directory)
  first.write_stamp(first.wanted())
  assert named('a/python').needed() == 'nothing'
  assert named('b/python').needed() == 'create'
  os.symlink(tmp_path / 'a', tmp_path / 'link')
  assert named('link/python').needed() == 'nothing'


def test_what_is_extra_is_made_anew_where_its_stack_is_of_another_python(
  environment, venv
):
  extras = environment.Environment('extras', root=venv.root)
  scripts.program(extras.bin, 'true')
  extras.write_stamp(extras.wanted())
  assert extras.needed() == 'nothing'
  lib = venv.directory / 'lib'
  (lib / 'python3.11').rename(lib / 'python3.10')
  assert extras.needed() == 'create'


def test_what_is_extra_lies_beside_its_stack_and_holds_nothing_of_it(
  environment, tmp_path, monkeypatch
):
  extras = environment.Environment('extras', 'python3.10', str(tmp_path))
  assert extras.directory == tmp_path / '.venv-extras-python3.10'
  assert extras.stack.directory == tmp_path / '.venv-python3.10'
  with pytest.raises(
    environment.machine.SetupError, match='has to be there first'
  ):
    environment.create(extras)
  twice = environment.read_pins(extras.pins).keys() & environment.read_pins(
    extras.stack.pins
  )
  assert not twice
  assert environment.Environment('site', '', '/here').stack is None


def test_a_full_disk_is_refused(environment, monkeypatch):
  monkeypatch.setattr(environment.machine, 'NEEDED_DISK', 10**18)
  with pytest.raises(
    environment.machine.SetupError, match='are free on the disk of'
  ):
    environment.machine.refuse(environment.Environment())


def test_what_is_deleted_first_counts_as_free(
  environment, venv, tmp_path, free
):
  old = venv.directory / 'lib' / 'old'
  with old.open('wb') as f:
    f.write(os.urandom(2_000_000))  # which no disk compresses
    f.flush()
    os.fsync(f.fileno())  # some disks count blocks when they are written
  free(environment.machine.NEEDED_DISK - 1_000_000)
  environment.machine.refuse(venv)
  os.link(old, tmp_path / 'cache')  # as of uv, whose files stay
  with pytest.raises(environment.machine.SetupError, match='are free'):
    environment.machine.refuse(venv)


def test_what_is_small_needs_neither_the_room_nor_the_system_of_the_stack(
  environment, tmp_path, monkeypatch, free
):
  places = {
    name: environment.Environment(name, '', str(tmp_path))
    for name in ('', 'extras', 'site', 'next', 'sb3')
  }
  free(2 * 10**9)
  for name in ('extras', 'site'):
    environment.machine.refuse(places[name])
  for name in ('', 'next', 'sb3'):
    with pytest.raises(environment.machine.SetupError, match='need 4 GB'):
      environment.machine.refuse(places[name])
  free(10**10)
  monkeypatch.setattr(environment.machine.sys, 'platform', 'darwin')
  environment.machine.refuse(places['site'])
  with pytest.raises(environment.machine.SetupError, match='this is darwin'):
    environment.machine.refuse(places[''])


def test_no_interpreter_gives_exit_code_1_and_leaves_nothing_behind(tmp_path):
  copy = tmp_path / 'requirements'
  ignored = shutil.ignore_patterns('__pycache__')
  shutil.copytree(scripts.REQUIREMENTS, copy, ignore=ignored)
  process = subprocess.run(
    [sys.executable, str(copy / 'environment.py'), '--python=/no/python'],
    capture_output=True,
    text=True,
  )
  assert process.returncode == 1
  assert '/no/python does not run' in process.stderr
  assert 'Traceback' not in process.stderr
  assert [path.name for path in tmp_path.iterdir()] == ['requirements']
