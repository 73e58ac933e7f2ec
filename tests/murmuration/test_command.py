"""The command `murmuration`, and the zoo that it plays."""

import os
import shlex
import subprocess
import sys

import gymnasium
import numpy as np
import psutil
import pytest

from murmuration import command
from murmuration import episodes
from murmuration import export
from murmuration import play
from murmuration import playing
from murmuration.agents import ppo
from murmuration.environment_loops import environments
from murmuration.launch import command_line
from murmuration.run_records import film


def test_help_names_every_command(capsys):
  assert command.main(['--help']) == 0
  shown = capsys.readouterr().out
  for word in (*command.COMMANDS, 'doctor'):
    assert f'murmuration {word}' in shown


def test_a_misspelt_command_is_refused_with_a_near_one(capsys):
  assert command.main(['evalute']) == 2
  assert "Did you mean 'evaluate'?" in capsys.readouterr().err


@pytest.mark.parametrize('word', ['run', 'evaluate', 'export', 'play'])
def test_a_word_is_the_command_of_its_module(word, capsys, monkeypatch):
  monkeypatch.setattr(sys, 'path', [*sys.path])
  monkeypatch.setattr(sys, 'argv', [*sys.argv])
  # A private network is for a process of its own.
  flags = ['--isolate=off'] if word == 'run' else []
  assert command.main([word, *flags, '--help']) == 0
  assert f'usage: murmuration {word}' in capsys.readouterr().out


def test_the_doctor_of_a_clone_is_run_by_its_own_python(monkeypatch):
  monkeypatch.setattr(sys, 'argv', [*sys.argv])
  called = []

  def execv(path, argv):
    called.append(argv)
    raise SystemExit  # it does not come back

  monkeypatch.setattr(os, 'execv', execv)
  with pytest.raises(SystemExit):
    command.main(['doctor'])
  script = str(command.ROOT / 'requirements' / 'doctor.py')
  assert called == [[sys.executable, script]]


@pytest.mark.parametrize(
  ('missing', 'fix'),
  [
    (['numpy', 'gymnasium'], "'gymnasium[mujoco]>=1.3' 'numpy<2,>=1.26'"),
    (['protobuf'], "'tensorflow-cpu<2.16,>=2.15.1'"),
    (['dm-acme', 'cloudpickle'], 'cloudpickle'),
    (['dm-acme'], None),
  ],
)
def test_the_doctor_of_a_wheel_prescribes_versions_that_fit(
  monkeypatch, capsys, tmp_path, missing, fix
):
  def version(name):
    if name in missing:
      raise command.importlib.metadata.PackageNotFoundError(name)
    return '1'

  listed = [
    'cloudpickle',
    'gymnasium[mujoco]>=1.3',
    'numpy<2,>=1.26',
    'tensorflow-cpu<2.16,>=2.15.1',
    'wandb; extra == "wandb"',
  ]
  monkeypatch.setattr(command, 'ROOT', tmp_path)
  monkeypatch.setattr(sys, 'argv', ['murmuration doctor'])
  monkeypatch.setattr(command.importlib.metadata, 'version', version)
  monkeypatch.setattr(
    command.importlib.metadata, 'requires', {'murmuration': listed}.get
  )
  assert command._doctor() == 1
  said = f'pip install {fix}' if fix else 'murmuration setup'
  assert capsys.readouterr().err.splitlines()[-1] == f'  fix: {said}'


def test_the_doctor_of_a_wheel_refuses_arguments(monkeypatch, capsys, tmp_path):
  monkeypatch.setattr(sys, 'path', [*sys.path])
  monkeypatch.setattr(sys, 'argv', [*sys.argv])
  monkeypatch.setattr(command, 'ROOT', tmp_path)
  assert command.main(['doctor', '--python=python3.10']) == 2
  assert 'got --python=python3.10' in capsys.readouterr().err
  command.main(['doctor'])
  assert 'python ' in capsys.readouterr().out


@pytest.mark.parametrize(
  ('flags', 'said'),
  [
    (['ppo', '--env=CartPole-v1'], '--config.environment'),
    (['ppo', '--environment=CartPole-v1'], '--config.environment'),
    (['ppo', '--total-timesteps=9'], '--config.run.steps_per_agent'),
    (['ppo', '--steps', '9'], '--config.run.steps_per_agent'),
    (['ppo', '--engine=local_mt'], '--lp_launch_type'),
  ],
)
def test_what_is_nearly_a_flag_gets_a_hint(flags, said, capsys):
  assert command_line.main(flags) == 2
  error = capsys.readouterr().err
  assert 'Did you mean' in error and said in error


# The zoo.


@pytest.mark.parametrize('name', play.policies())
def test_a_policy_of_the_zoo_is_small_and_as_good_as_it_says(name):
  assert play.policies()[name].stat().st_size < 100_000
  policy = play.load(name)
  about = policy.about
  assert name in about['command'] and about['seed'] >= 0
  low, high = about['interval']
  assert low <= about['score'] <= high and about['episodes'] == 100
  environment = gymnasium.make(about['environment'])
  returns = np.array(
    [sum(episodes.rewards(policy, environment, 77 + i)) for i in range(5)]
  )
  # Five episodes of a policy that scored so over a hundred.
  spread = (high - low) / 3.92 * np.sqrt(99 / 5)
  assert returns.mean() >= about['score'] - 4 * spread - 1e-6


def test_the_zoo_has_what_the_pages_name():
  assert 'impala:cartpole' in play.policies()
  with pytest.raises(ValueError, match='impala:cartpole'):
    play.load('impala:cartpol')


def test_a_file_of_another_ending_is_told_which_are_played(tmp_path):
  (tmp_path / 'policy.onnx').touch()
  with pytest.raises(ValueError, match=r"ends in '.onnx'; .* \.py or \.npz"):
    play.load(str(tmp_path / 'policy.onnx'))


def test_a_run_is_no_policy_and_is_told_what_plays_it(tmp_path):
  with pytest.raises(ValueError, match='murmuration evaluate'):
    play.load(str(tmp_path))


@pytest.mark.parametrize(
  'name',
  ['best.npz', 'cut.npz', 'empty.npz', 'array.npz', 'other.npz', 'other.py',
   'bare.py', 'broken.py'],
)  # fmt: skip
def test_a_file_that_is_no_policy_is_refused(
  tmp_path, monkeypatch, capsys, name
):
  whole = play.policies()['impala:cartpole'].read_bytes()
  np.savez(tmp_path / 'best.npz', theta=np.zeros(3))
  (tmp_path / 'cut.npz').write_bytes(whole[: len(whole) // 2])
  (tmp_path / 'empty.npz').write_bytes(b'')
  with open(tmp_path / 'array.npz', 'wb') as file:
    np.save(file, np.zeros(3))
  np.savez(tmp_path / 'other.npz', about=np.array('[1]'))
  (tmp_path / 'other.py').write_text('policy = print\n')
  (tmp_path / 'bare.py').write_text('')
  (tmp_path / 'broken.py').write_text('policy = (\n')
  monkeypatch.setattr(sys, 'path', [*sys.path])
  monkeypatch.setattr(sys, 'argv', ['play', str(tmp_path / name)])
  assert play.main() == 2
  said = capsys.readouterr().err
  assert f'{name} is no policy that murmuration export made' in said


def test_an_exported_policy_plays_an_environment_of_the_user_s_own(
  tmp_path, monkeypatch, capsys
):
  (tmp_path / 'own_poles.py').write_text(
    'from gymnasium.envs.classic_control import cartpole\n'
    'class Poles(cartpole.CartPoleEnv):\n'
    '  max_episode_steps = 5\n'
  )
  about = {'environment': 'own_poles:Poles'}
  agent = ppo.PPO(ppo.Config(), environments.spec('CartPole-v1'))
  kept = playing.Kept(agent, agent.initial(0), 'a test')
  data = export.packed(kept, **about)
  (tmp_path / 'policy.py').write_text(export._source(data))
  (tmp_path / 'policy.npz').write_bytes(data)
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(sys, 'path', [*sys.path])
  for name in ('policy.py', 'policy.npz'):
    monkeypatch.setattr(sys, 'argv', ['play', name, '--episodes=2'])
    assert play.main() == 0
    assert 'mean 5.0' in capsys.readouterr().out
  (tmp_path / 'own_poles.py').unlink()
  monkeypatch.delitem(sys.modules, 'own_poles')
  assert play.main() == 2
  assert 'own_poles' in capsys.readouterr().err


def test_a_film_that_cannot_be_is_refused_before_an_episode(
  tmp_path, monkeypatch, capsys
):
  monkeypatch.setattr(sys, 'path', [*sys.path])
  monkeypatch.setattr(
    episodes, 'rewards', lambda *unused: pytest.fail('it played')
  )
  (tmp_path / 'dir.gif').mkdir()
  for name, said in (
    ('a.avi', '.gif or .mp4'),
    ('dir.gif', 'cannot be written'),
  ):
    flags = ['impala:cartpole', f'--video={tmp_path / name}']
    monkeypatch.setattr(sys, 'argv', ['play', *flags])
    assert play.main() == 2
    assert said in capsys.readouterr().err


def test_a_task_without_a_limit_is_played_so_many_steps(
  tmp_path, monkeypatch, capsys
):
  (tmp_path / 'endless_poles.py').write_text(
    'import gymnasium\n'
    'from gymnasium.envs.classic_control import cartpole\n'
    'class Endless(cartpole.CartPoleEnv):\n'
    '  def step(self, action):\n'
    '    return self.reset()[0], 1.0, False, False, {}\n'
    'def limited(**options):\n'
    '  return gymnasium.wrappers.TimeLimit(Endless(**options), 7)\n'
  )
  agent = ppo.PPO(ppo.Config(), environments.spec('CartPole-v1'))
  kept = playing.Kept(agent, agent.initial(0), 'a test')
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(sys, 'path', [*sys.path])
  monkeypatch.setattr(play, '_MAX_STEPS', 50)
  filmed = []
  monkeypatch.setattr(
    film, 'record', lambda frames, *unused: filmed.extend(frames)
  )
  for name, flags, steps in (
    ('Endless', [], 50),
    ('Endless', ['--max_steps=9'], 9),
    ('Endless', ['--max_steps=9', '--video=a.gif', '--film_steps=4'], 9),
    ('limited', [], 7),
    ('limited', ['--max_steps=3'], 3),
  ):
    about = {'environment': f'endless_poles:{name}'}
    (tmp_path / 'policy.npz').write_bytes(export.packed(kept, **about))
    argv = ['play', 'policy.npz', '--episodes=1', *flags]
    monkeypatch.setattr(sys, 'argv', argv)
    assert play.main() == 0
    said = capsys.readouterr()
    assert f'mean {steps}.0' in said.out
    assert ('cut after 50 steps' in said.err) == (steps == 50)
  assert len(filmed) == 5  # with the first observation


def test_a_task_that_says_no_speed_is_filmed_all_the_same(
  tmp_path, monkeypatch
):
  (tmp_path / 'mute_poles.py').write_text(
    'from gymnasium.envs.classic_control import cartpole\n'
    'class Poles(cartpole.CartPoleEnv):\n'
    "  metadata = {'render_modes': ['rgb_array'], 'render_fps': None}\n"
    '  max_episode_steps = 2\n'
  )
  agent = ppo.PPO(ppo.Config(), environments.spec('CartPole-v1'))
  kept = playing.Kept(agent, agent.initial(0), 'a test')
  about = {'environment': 'mute_poles:Poles'}
  (tmp_path / 'policy.npz').write_bytes(export.packed(kept, **about))
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(sys, 'path', [*sys.path])
  argv = ['play', 'policy.npz', '--episodes=1', '--video=a.gif']
  monkeypatch.setattr(sys, 'argv', argv)
  assert play.main() == 0
  assert (tmp_path / 'a.gif').is_file()


def test_a_film_that_cannot_be_written_after_all_is_a_sentence(
  tmp_path, monkeypatch, capsys
):
  def refuse(*unused):
    raise RuntimeError('no codec here')

  monkeypatch.setattr(sys, 'path', [*sys.path])
  monkeypatch.setattr(film, 'record', refuse)
  flags = ['impala:cartpole', '--episodes=1', f'--video={tmp_path / "a.gif"}']
  monkeypatch.setattr(sys, 'argv', ['play', *flags])
  assert play.main() == 1
  said = capsys.readouterr()
  assert 'mean' in said.out and 'no codec here' in said.err


@pytest.mark.parametrize(
  ('flags', 'said'),
  [
    (['--episode=3'], 'Did you mean --episodes?'),
    (['--episodes=0'], '0 is below 1'),
    (['impala:cartpole', 'too'], 'one word too many'),
  ],
)
def test_a_wrong_word_for_play_is_one_sentence(
  monkeypatch, capsys, flags, said
):
  monkeypatch.setattr(sys, 'path', [*sys.path])
  monkeypatch.setattr(sys, 'argv', ['play', *flags])
  assert play.main() == 2
  (line,) = capsys.readouterr().err.splitlines()
  assert line.startswith('error: ') and said in line


@pytest.mark.parametrize('ended', [0, 2])
def test_play_that_is_interrupted_shows_what_was_played(
  monkeypatch, capsys, ended
):
  made = play._made

  def interrupted(name):
    environment = made(name)
    reset, resets = environment.reset, iter(range(ended))

    def begin(**options):
      if next(resets, None) is None:
        raise KeyboardInterrupt
      return reset(**options)

    environment.reset = begin
    return environment

  monkeypatch.setattr(sys, 'path', [*sys.path])
  monkeypatch.setattr(play, '_made', interrupted)
  monkeypatch.setattr(sys, 'argv', ['play', 'impala:cartpole', '--episodes=9'])
  assert play.main() == 130
  said = capsys.readouterr()
  assert said.err == 'interrupted\n'
  assert said.out.endswith('  500 500  mean 500.0\n' if ended else '')
  assert bool(said.out) == bool(ended)


@pytest.mark.parametrize(
  'words', [['play'], ['run', 'ppo', '--isolate=off', '--list-settings']]
)
def test_a_list_may_be_cut_by_who_reads_it(words):
  reads, writes = os.pipe()
  os.close(reads)
  done = subprocess.run(
    [sys.executable, '-m', 'murmuration', *words],
    cwd=command.ROOT,
    stdout=writes,
    stderr=subprocess.PIPE,
    text=True,
    timeout=200,
  )
  os.close(writes)
  assert (done.returncode, done.stderr) == (0, '')


RUDE = """
import signal, subprocess
from gymnasium.envs.classic_control import cartpole

class Rude(cartpole.CartPoleEnv):
  max_episode_steps = 9

  def __init__(self, render_mode=None):
    super().__init__(render_mode=render_mode)
    signal.signal(signal.SIGALRM, lambda *unused: None)
    signal.setitimer(signal.ITIMER_REAL, 1.0, 1.0)
    for words in (['sleep', 'SECONDS'], ['sh', '-c', 'sleep SECONDS &']):
      subprocess.Popen(words, start_new_session=True)
"""
PLAYED = """
import sys, types
import numpy as np
name = 'rude:Rude'

class Zeros:
  about = {'environment': name, 'agent': 'zeros', 'what': 'a test'}

  def __call__(self, seen):
    return np.zeros(seen.shape[:-1], int)

  def reset(self):
    pass

def played():
  from murmuration import play
  play.load = lambda name: Zeros()
  sys.argv = ['play', 'zeros', '--video=film.gif']
  return play.main()

def evaluated():
  from murmuration import playing
  from murmuration.launch import evaluate
  from murmuration.run_records import run_directory
  run_directory.create('run', {'environment': name}, {})
  agent = types.SimpleNamespace(
    greedy=lambda theta: Zeros(), spec=types.SimpleNamespace(name=name)
  )
  evaluate.playing.load = lambda run: playing.Kept(agent, [], 'a test')
  sys.argv = ['evaluate.py', 'run', '--episodes=2', '--video=']
  return evaluate.main()

def looked():
  from murmuration.launch import cell
  cell.resolve('dqn', overrides={'environment': name})

"""


@pytest.mark.parametrize('how', ['looked', 'played', 'evaluated'])
def test_timers_and_processes_end_with_the_environment_that_began_them(
  tmp_path, how
):
  seconds = f'{9_000_000 + os.getpid()}.{len(how)}'
  (tmp_path / 'rude.py').write_text(RUDE.replace('SECONDS', seconds))
  ended = 'import time; time.sleep(1.5); sys.exit(found)'
  done = subprocess.run(
    [sys.executable, '-c', f'{PLAYED}found = {how}()\n{ended}'],
    cwd=tmp_path,
    env={**os.environ, 'PYTHONPATH': str(command.ROOT)},
    capture_output=True,
    text=True,
    timeout=180,
  )
  assert done.returncode == 0, done
  left = [
    process
    for process in psutil.process_iter(['cmdline'])
    if seconds in (process.info['cmdline'] or ())
  ]
  for process in left:
    process.kill()
  assert left == []


class Zeros:
  """Always the first action."""

  def __init__(self):
    self.acted = 0

  def __call__(self, observation):
    self.acted += 1
    return 0

  def reset(self):
    pass


def test_a_film_is_written_while_its_episode_is_played(monkeypatch):
  policy = Zeros()

  def record(frames, path, fps):
    assert fps == 50
    return [policy.acted for _ in frames]

  monkeypatch.setattr(film, 'record', record)
  found = episodes.record(policy, 'CartPole-v1', 0, 'a.gif', 5)
  assert found == [0, 1, 2, 3, 4, 5]
  policy.acted = 0
  found = episodes.record(policy, 'CartPole-v1', 0, 'a.gif')
  assert 5 < policy.acted < 20 and found == [*range(policy.acted + 1)]


class Counted(gymnasium.Env):
  """A white picture; each of five steps brings 1. May break in the third."""

  render_mode = 'rgb_array'
  breaks = False

  def reset(self, **unused):
    self.steps = 0
    return np.zeros(1), {}

  def step(self, action):
    self.steps += 1
    if self.breaks and self.steps == 3:
      raise ValueError('broken')
    return np.zeros(1), 1.0, self.steps == 5, False, {}

  def render(self):
    return np.full([2, 2, 3], 255, np.uint8)


def test_make_takes_a_run_whose_path_has_a_space():
  done = subprocess.run(
    ['make', '--no-print-directory', '-n', 'evaluate', 'RUN=my runs/a'],
    cwd=command.ROOT,
    capture_output=True,
    text=True,
    check=True,
  )
  last = shlex.split(done.stdout.splitlines()[-1])
  assert last[-2:] == ['launch/evaluate.py', 'my runs/a']


def test_a_film_that_cannot_be_drawn_says_which_driver_can(
  monkeypatch, tmp_path
):
  build = episodes.build

  def fail(*unused, **unused_too):
    raise RuntimeError('no OpenGL here')

  def built(*words):
    environment = build(*words)
    monkeypatch.setattr(environment.unwrapped.mujoco_renderer, 'render', fail)
    return environment

  monkeypatch.setattr(episodes, 'build', built)
  policy = play.load('ddpg:reacher')
  with pytest.raises(environments.EnvironmentRefused, match='MUJOCO_GL=egl'):
    episodes.record(policy, 'Reacher-v5', 0, tmp_path / 'a.gif')


def test_an_environment_that_raises_in_a_film_is_a_fault(tmp_path):
  with pytest.raises(environments.EnvironmentFault, match='broken'):
    episodes.record(Zeros(), f'{__name__}:Stuck', 0, tmp_path / 'a.gif')
  assert [*tmp_path.iterdir()] == []


class Stuck(Counted):
  """Its third step raises."""

  observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)
  action_space = gymnasium.spaces.Discrete(2)
  breaks = True

  def __init__(self, render_mode=None):
    self.render_mode = render_mode


def test_an_environment_that_raises_while_it_is_played_is_a_sentence(
  monkeypatch, capsys
):
  policy = Anything(2)
  policy.about = {'environment': f'{__name__}:Stuck'}
  monkeypatch.setattr(play, 'load', lambda name: policy)
  monkeypatch.setattr(sys, 'path', [*sys.path])
  monkeypatch.setattr(sys, 'argv', ['play', 'policy.py'])
  assert play.main() == 1
  line = capsys.readouterr().err.splitlines()[-1]
  assert 'Stuck broke off: ValueError: broken' in line


class Anything:
  """A policy that plays anything."""

  def __init__(self, actions):
    self._actions, self._random = actions, np.random.default_rng(0)

  def reset(self):
    pass

  def __call__(self, observation):
    return int(self._random.integers(self._actions))


def test_a_policy_that_learned_from_lives_plays_whole_games(monkeypatch):
  monkeypatch.delenv('DISPLAY', raising=False)
  environment = play._made('ALE/Breakout-v5?life_loss=1')
  assert sum(episodes.rewards(Anything(4), environment, 0)) >= 0
  assert environment.unwrapped.ale.lives() == 0
  environment.close()
