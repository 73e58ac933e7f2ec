"""The process beside a caller: its calls, its end, and how many there are."""

import concurrent.futures
import copy
import itertools
import json
import os
import pathlib
import pickle
import tempfile
import threading

import numpy as np
import pytest

from murmuration import objects
from murmuration import policy
from murmuration import process
from murmuration import runs
from murmuration import service


def test_what_cannot_be_sent_leaves_no_call_behind(tmp_path):
  helper = process.Helper(objects.Objects())
  try:
    with pytest.raises(Exception, match='pickle'):
      helper.call('config', path=lambda: None)
    for _ in range(2):
      with pytest.raises(ValueError, match='config.json|no run'):
        helper.call('config', path=tmp_path)
  finally:
    helper.close()
  with pytest.raises(process.MadeRoom):
    helper.call('config', path=tmp_path)


def test_a_refusal_names_what_the_caller_may_change():
  helper = process.Helper.__new__(process.Helper)
  with pytest.raises(OSError, match=r'^Give another run_dir\.$'):
    helper.result(('error', ('OSError', 'Give another --run_dir.'), 1))


class Process:
  """Answers all that a policy asks."""

  remembers = False

  def __init__(self, given):
    self.process = self
    self.owner = os.getpid()
    self.called, self.closed, self.gone = [], 0, []
    self.remembering = set()
    self._lock = process.threading.Lock()

  def poll(self):
    return 0 if self.closed else None

  @property
  def lives(self):
    return not self.closed

  def call(self, operation, **arguments):
    if self.closed:
      raise process.MadeRoom
    self.called.append(operation)
    return (len(self.called), self.remembers) if operation == 'policy' else 1

  def close(self):
    self.closed += 1


class Given:
  own = False

  def __init__(self, key):
    self._key = key

  def pickled(self):
    return self._key


@pytest.fixture
def services(monkeypatch):
  monkeypatch.setattr(process, 'Helper', Process)
  monkeypatch.setattr(process, '_services', {})


def test_the_one_that_was_asked_longest_ago_makes_room(services, tmp_path):
  a, b, c = map(Given, (b'a', b'b', b'c'))
  played = policy.Policy(a, tmp_path)
  first, second = process.service(a), process.service(b)
  assert process.service(a) is first
  process.service(c)
  assert (first.closed, second.closed) == (0, 1)
  process.service(b)
  assert first.closed == 1
  played(np.zeros(2))
  again = process.service(a)
  assert again is not first and again.called == ['policy', 'act']


def test_who_remembers_an_episode_makes_no_room_in_it(
  services, monkeypatch, tmp_path
):
  monkeypatch.setattr(Process, 'remembers', True)
  sets = [Given(key) for key in (b'a', b'b', b'c', b'd')]
  played = []
  for given in sets[:3]:
    played.append(policy.Policy(given, tmp_path))
    played[-1](np.zeros(2))
  first, second, _ = helpers = [process.service(given) for given in sets[:3]]
  for i, helper in enumerate(helpers):
    played[i](np.zeros(2))
    assert helper.called[-3:] == ['reset', 'act', 'act'], 'it went on elsewhere'
  # What begins anew, and what nobody has any more, remembers nothing.
  played[1].reset()
  process.service(sets[3])
  assert (first.closed, second.closed) == (0, 1)
  del played[0]
  process.service(sets[1])
  assert first.closed == 1


def test_who_is_busy_makes_room_later_and_nobody_waits_for_it(services):
  a, b, c, d = map(Given, (b'a', b'b', b'c', b'd'))
  first, second = process.service(a), process.service(b)

  def ask(*given):
    thread = threading.Thread(target=lambda: [*map(process.service, given)])
    thread.daemon = True
    thread.start()
    thread.join(60)
    return not thread.is_alive()

  with first._lock:
    with second._lock:
      assert ask(c, b), 'it waits for who is busy'
      assert (first.closed, second.closed) == (0, 0)
    third = process.service(c)
    assert ask(d, b), 'it waits for who is busy'
    assert (first.closed, third.closed) == (0, 1)
  process.service(c)
  assert (first.closed, len(process._services)) == (1, 2)


@pytest.mark.parametrize('remembers', [False, True])
def test_who_made_room_before_it_was_asked_is_asked_anew(
  services, monkeypatch, tmp_path, remembers
):
  monkeypatch.setattr(Process, 'remembers', remembers)
  service, others = process.service, []

  def and_others_ask(given):
    found = service(given)
    while others:  # in other threads, just then
      service(others.pop())
    return found

  monkeypatch.setattr(process, 'service', and_others_ask)
  played = policy.Policy(Given(b'a'), tmp_path)
  others += [Given(b'b'), Given(b'c')]
  assert played(np.zeros(2)) == 1
  others += [Given(b'd'), Given(b'e')]
  assert runs.Run(tmp_path, Given(b'a')).summary() == 1
  assert not others


def test_a_policy_whose_process_died_in_an_episode_says_so(
  services, monkeypatch, tmp_path
):
  for remembers in (False, True):
    monkeypatch.setattr(Process, 'remembers', remembers)
    given = Given(b'a')
    played = policy.Policy(given, tmp_path)
    played(np.zeros(2))
    process.service(given).close()
    if remembers:
      for _ in range(2):
        with pytest.raises(RuntimeError, match=r'Call reset\(\)'):
          played(np.zeros(2))
      played.reset()
    played(np.zeros(2))
    assert process.service(given).called[-1] == 'act'


def test_a_policy_that_has_played_can_be_sent_and_copied(services, tmp_path):
  played = policy.Policy(Given(b'a'), tmp_path)
  played(np.zeros(2))
  (helper,) = process._services.values()
  played._helper.pipe = open(tmp_path / 'pipe', 'w+b')  # as a helper's
  sent = pickle.loads(pickle.dumps(played))
  assert sent._path == tmp_path and sent(np.zeros(2)) == 1
  assert copy.deepcopy(played)._number != played._number
  helper.pipe.close()


def test_a_policy_that_nobody_has_any_more_makes_room(monkeypatch, tmp_path):
  class Here(Process):
    def call(self, operation, **arguments):
      return service.OPERATIONS[operation](**arguments)

  class Played:
    remembers = False

    def __init__(self, path):
      self.path = path

    def __call__(self, observation):
      return self.path

    def reset(self):
      pass

  monkeypatch.setattr(process, 'Helper', Here)
  monkeypatch.setattr(process, '_services', {})
  monkeypatch.setattr(service, '_policies', {})
  monkeypatch.setattr(service.run_directory, 'open', lambda path: path)
  monkeypatch.setattr(service.playing, 'load', lambda path: path)
  monkeypatch.setattr(service.playing, 'Native', Played)
  given = Given(b'a')
  kept = policy.Policy(given, tmp_path / 'kept')
  for _ in range(5):
    last = policy.Policy(given, tmp_path / 'last')
  assert len(service._policies) == 3  # and the one before the last
  assert (kept(0), last(0)) == (tmp_path / 'kept', tmp_path / 'last')


def test_two_threads_that_ask_at_first_start_one_process(services, monkeypatch):
  made, two = [], threading.Event()

  class Slow(Process):
    def __init__(self, given):
      super().__init__(given)
      made.append(self)
      if len(made) == 2:
        two.set()
      two.wait(0.5)  # for another thread that does not wait for this one

  monkeypatch.setattr(process, 'Helper', Slow)
  with concurrent.futures.ThreadPoolExecutor(2) as pool:
    found = [*pool.map(process.service, 2 * [Given(b'a')])]
  assert made == found[:1] and found[0] is found[1]


LIMIT = 'Endless-v0 has no step limit.'


class Training:
  """A process that trains: it says what its run is said to say."""

  def __init__(self, given, trains=False):
    tick = {'steps': 1, 'budget': 2, 'elapsed_s': 1.0, 'totals': {}}
    self.printed = [f'note: {LIMIT}', '[0:05] running: learner/0', 'warning: w']
    self._says = iter(
      [
        ('tick', tick),
        ('evaluation', {'return_mean': 1.0}),
        ('tick', tick),
        ('evaluation', {'return_mean': 2.0}),
        ('done', (0, {}), 1),
      ]
    )

  def begin(self, operation, **arguments):
    pass

  def receive(self, timeout_s):
    return next(self._says)

  def said(self):
    said, self.printed = self.printed, []
    return said

  def result(self, message):
    return message[1]

  def close(self):
    return ''


def _named(environment):
  given = objects.Objects()
  given.name('dqn:cartpole', 'agent')
  given.name(environment, 'environment')
  return given


def test_code_that_was_trained_is_played_by_a_process_that_imports_it_then(
  services, monkeypatch
):
  def trained(make, *words):
    with monkeypatch.context() as patch:
      patch.setattr(process, 'Helper', Training)
      return make(*words, progress=False)

  own, plain = _named('my_env:Corridor'), _named('CartPole-v1')
  before, kept = process.service(own), process.service(plain)
  trained(runs.train, 'dqn:cartpole', 'CartPole-v1')
  assert process.service(own) is before and process.service(plain) is kept
  run = trained(runs.train, 'dqn:cartpole', 'my_env:Corridor')
  after = process.service(run._given)
  assert after is not before and process.service(own) is after
  assert process.service(plain) is kept
  trained(run.resume)
  newest = process.service(own)
  assert newest is not after
  # What nobody can ask any more makes room, and not what is of use.
  assert process.service(plain) is kept
  assert (after.closed, kept.closed) == (1, 0)


def test_code_is_looked_for_where_the_caller_looks_now(
  services, monkeypatch, tmp_path
):
  own, plain = _named('my_env:Corridor'), _named('CartPole-v1')
  before, kept = process.service(own), process.service(plain)
  monkeypatch.syspath_prepend(tmp_path)
  assert process.service(plain) is kept
  assert process.service(own) is not before


def test_an_episode_is_played_to_its_end_where_it_was_begun(
  services, monkeypatch, tmp_path
):
  monkeypatch.setattr(Process, 'remembers', True)
  played = policy.Policy(_named('my_env:Corridor'), tmp_path)
  played(np.zeros(2))
  (first,) = process._services.values()
  monkeypatch.syspath_prepend(tmp_path)
  played(np.zeros(2))
  assert first.called == ['policy', 'reset', 'act', 'act']
  played.reset()
  played(np.zeros(2))
  assert len(process._services) == 2 and first.called[-1] == 'act'
  assert not first.remembering and len(first.gone) == 1


def test_a_policy_is_loaded_anew_after_an_evaluation_and_at_the_end(
  monkeypatch,
):
  numbers = itertools.count()
  monkeypatch.setattr(process, 'Helper', Training)
  monkeypatch.setattr(policy, 'Policy', lambda *unused: next(numbers))
  played = []

  def play(run, content):
    played.append(run.policy)

  run = runs.train('dqn', progress=False, on_tick=play, on_evaluation=play)
  assert played == [0, 1, 1, 2]
  assert run.policy == run.policy == 3


def test_who_has_returned_stop_is_not_called_again(monkeypatch):
  monkeypatch.setattr(process, 'Helper', Training)
  monkeypatch.setattr(Training, 'stop', lambda self: None, raising=False)
  called = []

  def callback(kind, answer):
    return lambda run, content: (called.append(kind), answer)[1]

  run = runs.train(
    'dqn',
    progress=False,
    on_tick=callback('tick', None),
    on_evaluation=callback('evaluation', runs.STOP),
    on_end=callback('end', runs.STOP),
  )
  assert called == ['tick', 'evaluation', 'tick', 'end']
  run.resume(progress=False)  # which is another run
  assert called == 2 * ['tick', 'evaluation', 'tick', 'end']
  # One that is given takes the place of the one before; others stay.
  run.resume(progress=False, on_tick=callback('other', None))
  assert called[8:] == ['other', 'evaluation', 'other', 'end']
  with pytest.raises(ValueError, match='on_end=3'):
    run.resume(progress=False, on_end=3)


def test_a_callback_that_returns_what_means_nothing_is_told_so_once(
  monkeypatch, capsys
):
  monkeypatch.setattr(process, 'Helper', Training)
  monkeypatch.setattr(Training, 'stop', lambda self: None, raising=False)
  runs.train(
    'dqn',
    progress=False,
    on_tick=lambda run, tick: True,
    on_evaluation=lambda run, row: runs.STOP,
    on_end=lambda run, summary: None,
  )
  said = [
    line for line in capsys.readouterr().err.splitlines() if 'returned' in line
  ]
  assert said == [
    'warning: on_tick returned True, which does nothing: murmuration.STOP ends '
    'the run, None lets it go on.'
  ]


@pytest.mark.parametrize(
  'shown, own', [(True, ''), (False, ', environment=Mine')]
)
def test_who_interrupts_a_run_is_told_where_it_is_kept(
  monkeypatch, capsys, tmp_path, shown, own
):
  config = {'environment': 'murmuration.given:Mine'} if own else {}
  (tmp_path / 'config.json').write_text(json.dumps(config))

  class Interrupted(Training):
    def __init__(self, *unused, **unused_too):
      super().__init__(*unused)
      self._says = iter([('path', tmp_path), next(self._says)])

    def receive(self, timeout_s):
      for message in self._says:
        return message
      raise KeyboardInterrupt

    def stop(self):
      pass

    drain = stop

  monkeypatch.setattr(process, 'Helper', Interrupted)
  with pytest.raises(KeyboardInterrupt):
    runs.train('dqn', progress=shown)
  path = str(tmp_path)
  *before, last, end = capsys.readouterr().err.split('\n')
  assert (
    last == f'interrupted: kept in {path}; mm.load({path!r}{own})' and not end
  )
  # The bar stands above it.
  assert ('1 of 2 steps' in before[-1]) == shown


@pytest.mark.parametrize('shown', [True, False])
def test_what_a_run_notes_is_shown_as_its_command_shows_it(
  monkeypatch, capsys, shown
):
  monkeypatch.setattr(process, 'Helper', Training)
  runs.train('dqn', progress=shown)
  said = capsys.readouterr().err
  lines = [line for line in said.split('\n') if 'steps,' not in line]
  assert lines == [f'note: {LIMIT}', 'warning: w', '']
  assert ('steps,' in said) == shown


def test_lines_are_read_whole_and_once_while_they_are_printed():
  helper = process.Helper.__new__(process.Helper)
  helper._told = 0
  with tempfile.TemporaryFile() as helper._output:
    said = []
    for text in ('note: a\nwarn', 'ing: b', '\nlast\n', 'no end'):
      # Through the same open file, as what a process has inherited is.
      os.write(helper._output.fileno(), text.encode())
      said.append(helper.said())
    assert said == [['note: a'], [], ['warning: b', 'last'], []]
    assert helper.output() == 'note: a\nwarning: b\nlast\nno end'


def test_a_run_that_trains_is_copied_without_what_is_being_written(tmp_path):
  run, copy = tmp_path / 'run', tmp_path / 'copy'
  (run / 'metrics').mkdir(parents=True)
  kept = ['config.json', 'metrics/counter.json', 'metrics/counter.json.older']
  for name in (*kept, 'launcher.json', 'metrics/.counter.json.12.older'):
    (run / name).write_text('{}')
  # What is gone when its turn comes looks like this: listed, and not there.
  for name in ('metrics/.counter.json.12.34', 'replay'):
    (run / name).symlink_to('nowhere')
  runs.load(run).save(copy)
  found = [str(p.relative_to(copy)) for p in copy.rglob('*') if p.is_file()]
  assert sorted(found) == kept
  os.mkfifo(run / 'pipe')
  with pytest.raises(OSError, match='named pipe'):
    runs.load(run).save(tmp_path / 'other')
  assert {path.name for path in tmp_path.iterdir()} == {'run', 'copy'}


def _kept(path, seed):
  (path / 'checkpoints').mkdir(parents=True)
  (path / 'config.json').write_text(f'{{"seed": {seed}}}')
  return runs.load(path)


def test_a_run_is_not_copied_into_itself(tmp_path):
  outer, inner = tmp_path / 'run', tmp_path / 'run' / 'checkpoints' / 'run'
  run, within = _kept(outer, 0), _kept(inner, 1)
  (tmp_path / 'link').symlink_to(outer)
  before = sorted(tmp_path.rglob('*'))
  for copied, path in (
    (run, outer / 'checkpoints' / 'copy'),
    (run, tmp_path / 'link' / 'copy'),
    (within, outer),
  ):
    with pytest.raises(ValueError, match='run'):
      copied.save(path, overwrite=True)
  assert sorted(tmp_path.rglob('*')) == before
  assert run.save(outer) == outer  # it is there already


def test_a_run_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
  run, there = _kept(tmp_path / 'run', 0), _kept(tmp_path / 'there', 1)
  link = tmp_path / 'link'
  link.symlink_to(there.path)
  rename = pathlib.Path.rename

  def fail(path, target):
    if path.name.endswith(str(os.getpid())):
      raise OSError('the disk is gone')
    return rename(path, target)

  with monkeypatch.context() as patched:
    patched.setattr(pathlib.Path, 'rename', fail)
    with pytest.raises(OSError, match='the disk is gone'):
      run.save(there.path, overwrite=True)
  assert there.path.joinpath('config.json').read_text() == '{"seed": 1}'
  assert run.save(link, overwrite=True) == link and link.is_symlink()
  assert there.path.joinpath('config.json').read_text() == '{"seed": 0}'
  assert {p.name for p in tmp_path.iterdir()} == {'run', 'there', 'link'}


def test_an_interrupt_after_a_run_was_replaced_leaves_nothing(
  tmp_path, monkeypatch
):
  run, there = _kept(tmp_path / 'run', 0), _kept(tmp_path / 'there', 1)
  rename = pathlib.Path.rename

  def interrupted(path, target):
    rename(path, target)
    if path.name.endswith(str(os.getpid())):
      raise KeyboardInterrupt

  with monkeypatch.context() as patched:
    patched.setattr(pathlib.Path, 'rename', interrupted)
    with pytest.raises(KeyboardInterrupt):
      run.save(there.path, overwrite=True)
  assert there.path.joinpath('config.json').read_text() == '{"seed": 0}'
  assert {p.name for p in tmp_path.iterdir()} == {'run', 'there'}


@pytest.mark.parametrize('size', [0, 10_000_000])
def test_a_helper_that_cannot_start_shows_what_it_said(monkeypatch, size):
  monkeypatch.setenv('PYTHONHOME', '/nowhere')
  with pytest.raises(RuntimeError, match='Fatal Python error'):
    process.Helper(Given(bytes(size))).call('config')
