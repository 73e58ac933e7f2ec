"""A real actor that is killed, and one that is resumed, goes on counting."""

import pathlib

import pytest

from murmuration.run_records import counter_file
from murmuration.run_records import run_directory

HERE = pathlib.Path(__file__).parent
STEPS, MORE = 2_000, 2_600


class _Acts:
  """What actors have noted of each act: process, steps, random number."""

  def __init__(self, path):
    self.path = path

  def lives(self):
    """[(steps, random numbers)] of each life, oldest first."""
    found = {}
    for line in self.path.read_text().splitlines():
      pid, steps, drawn = line.split()
      life = found.setdefault(pid, ([], []))
      life[0].append(int(steps))
      life[1].append(float(drawn))
    return list(found.values())


@pytest.fixture(scope='module')
def killed(start_run, tmp_path_factory):
  """A run whose only actor was killed, and that was then resumed."""
  directory = tmp_path_factory.mktemp('noted')
  acts, release = _Acts(directory / 'noted'), directory / 'released'
  options = {
    'modules': HERE,
    'environment': {
      'NOTED': str(acts.path),
      'FAULTY_RELEASE': str(release),
      'FAULTY_SLOW_S': '0.01',
    },
  }
  run = start_run(
    'noting_agent:Noting',
    '--topology=actor_learner',
    '--config.environment=faulty_environments:Slow-v0',
    f'--config.run.steps_per_agent={STEPS}',
    '--config.run.evaluations=1',
    '--config.run.eval_episodes=1',
    '--config.actors.num_actors=1',
    '--config.actors.envs_per_actor=1',
    '--config.agent.hidden_sizes=(8,)',
    '--config.agent.batch_size=8',
    '--config.agent.min_replay_size=50',
    **options,
  )

  def counted():
    found = counter_file.counted(run.directory / 'metrics')
    return found.get('totals', {}).get('actor_steps', 0)

  run.wait_until(lambda: counted() > 200, 'steps')
  told = run.kill('actor/0', counted)
  release.touch()
  assert run.wait() == 0, run.output
  ended = counted()
  more = start_run(
    f'--config.run.steps_per_agent={MORE}', resume=run.directory, **options
  )
  assert more.wait() == 0, more.output
  return acts.lives(), told, ended, run_directory.open(run.directory)


def test_an_actor_goes_on_with_its_steps_and_exploration_follows(killed):
  (first, _), (second, _), (third, _) = killed[0]
  told = killed[1]
  assert first[0] == 0 and told <= second[0] <= len(first)
  assert third[0] == STEPS
  for steps in (first, second, third):
    assert steps == list(range(steps[0], steps[0] + len(steps)))


def test_no_step_is_counted_twice_and_none_is_lost(killed):
  lives, _, ended, run = killed
  assert ended == STEPS
  assert run.summary()['totals']['actor_steps'] == MORE
  # What was not reported is made again, and nothing else.
  second, third = (steps for steps, _ in lives[1:])
  assert (second[-1], third[-1]) == (STEPS - 1, MORE - 1)


def test_no_life_repeats_the_random_numbers_of_another(killed):
  drawn = [number for _, numbers in killed[0] for number in set(numbers)]
  assert len(drawn) == len(set(drawn))
