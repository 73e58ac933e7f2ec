"""Fields of dataclasses from text and as text."""

from __future__ import annotations

import dataclasses
import re

import pytest

from murmuration.run_records import settings


@dataclasses.dataclass(frozen=True)
class _Base:
  size: int = 3  # units
  rate: float | None = 0.5  # per update; None: it stays


@dataclasses.dataclass(frozen=True)
class _Config(_Base):
  rate: float | None = 0.25  # of this one
  # A chance that
  # takes two lines.
  chance: float = 0.0
  kinds: tuple[int, ...] = (1, 2)
  point: tuple[int, float] | None = None
  on: bool = False
  word: str = 'a'


@pytest.mark.parametrize(
  'name, text, value',
  [
    ('size', '1_000', 1000),
    ('rate', '1e-3', 1e-3),
    ('size', '1e5', 100_000),
    ('rate', '2', 2.0),
    ('rate', 'None', None),
    ('kinds', '(3,)', (3,)),
    ('kinds', '[3, 4]', (3, 4)),
    ('kinds', '5', (5,)),
    ('point', '(1, 0.5)', (1, 0.5)),
    ('on', 'true', True),
    ('on', 'False', False),
    ('word', 'None', 'None'),
  ],
)
def test_a_text_is_what_its_field_can_be(name, text, value):
  found = settings.parse('agent', _Config, name, text)
  assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
  'name, text, needed',
  [
    ('size', '1.5', 'a whole number'),
    ('size', '1.5e0', 'a whole number'),
    ('size', '1e999', 'a whole number'),
    ('size', '2.0', 'a whole number'),
    ('size', 'True', 'a whole number'),
    ('size', 'None', 'a whole number'),
    ('rate', 'fast', 'a number or None'),
    ('point', '(1, 2, 3)', '(a whole number, a number) or None'),
    ('on', '2', 'True or False'),
    ('kinds', '(1', 'whole numbers between commas, such as 64,64'),
  ],
)
def test_another_text_is_refused_with_the_flag_to_change(name, text, needed):
  said = f'={text!r} is not {needed}. Set --config.agent.{name}.'
  with pytest.raises(ValueError, match=re.escape(said)):
    settings.parse('agent', _Config, name, text)


def test_lists_of_json_are_tuples_and_unknown_names_are_refused():
  assert settings.make('agent', _Config, {'kinds': [7]}).kinds == (7,)
  with pytest.raises(settings.Unknown, match='Did you mean "agent.chance"'):
    settings.make('agent', _Config, {'chanse': 1.0})


@pytest.mark.parametrize(
  'word, meant',
  [
    ('agent.lr', 'agent.learning_rate'),
    ('run.step', 'run.steps_per_agent'),
    ('run.total_steps', 'run.steps_per_agent'),
    ('agent.replay_size', 'agent.max_replay_size'),
    ('agent.epsilonend', 'agent.epsilon_end'),
    ('agent.n_steps', 'agent.n_step'),
    ('agent.update_period', 'agent.target_update_period'),
    ('target', 'run.target_return'),
    ('agent.a', None),
    ('agent.tua', 'agent.target_update_tau'),
    ('env', 'environment'),
    ('agent.zzz', None),
    ('agent.num', None),
    ('actors.envs', 'actors.envs_per_actor'),
  ],
)
def test_the_setting_that_was_meant_is_named(word, meant):
  known = [
    'environment',
    *('agent.n_step', 'agent.batch_size', 'agent.max_replay_size'),
    *('agent.learning_rate', 'agent.epsilon_end', 'single.lr_spread'),
    *('actors.num_actors', 'actors.envs_per_actor', 'agent.anneal_env_steps'),
    *('run.eval_max_steps', 'run.steps_per_agent', 'run.target_return'),
    *('agent.target_update_period', 'agent.target_update_tau'),
    *('agent.anneal_env_steps', 'agent.rollout_steps', 'agent.activation'),
  ]
  said = f' Did you mean "{meant}"?'
  if meant is None:
    said = ' --list-settings shows all that there are.'
  assert settings.near(word, known) == said


@pytest.mark.parametrize(
  'word, meant',
  [
    ('agent.buffer_size', 'agent.max_replay_size'),
    ('agent.learning_starts', 'agent.min_replay_size'),
    ('actors.num_envs', 'actors.envs_per_actor'),
    ('run.total_timesteps', 'run.steps_per_agent'),
    ('run.num_steps', 'run.steps_per_agent'),  # not the agent's n_step
    ('agent.num_steps', 'agent.n_step'),
    ('agent.gradient_steps', 'pace.samples_per_insert'),
    ('agent.n_steps', 'agent.n_step'),  # PPO's is rollout_steps
    ('agent.tau', 'agent.target_update_tau'),
    ('pace.tau', 'gossip.tau'),
  ],
)
def test_names_of_other_libraries_are_known(word, meant):
  known = [
    *('agent.learning_rate', 'agent.epsilon_steps', 'agent.n_step'),
    *('agent.max_replay_size', 'agent.min_replay_size', 'actors.error_buffer'),
    *('actors.envs_per_actor', 'pace.samples_per_insert'),
    *('run.eval_max_steps', 'run.steps_per_agent'),
    *('agent.target_update_tau', 'gossip.tau'),
  ]
  assert settings.near(word, known) == f' Did you mean "{meant}"?'


def test_a_pace_is_not_meant_where_none_is_taken():
  known = ['agent.unroll_length', 'pace.samples_per_insert']
  assert 'samples_per_insert' not in settings.near('agent.train_freq', known)
