"""The supervisor's rules, and the config of the swarm."""

import math

import numpy as np
import pytest

from murmuration.agents.swarm import explorers
from murmuration.agents.swarm import supervisor_rules

INF = math.inf


def _number(value):
  """A number of the vectors: null and strings stand for what is not finite."""
  return -INF if value is None else float(value)


def _candidate(explorer, claim=0.0):
  theta = np.full(3, explorer, np.float32)
  return supervisor_rules.Candidate(theta, claim, explorer, 10)


def _rules(b=2, k=200.0, c_max=None, window=5, idle_episodes=4):
  return supervisor_rules.Rules(
    explorers.Config(
      b=b, k=k, c_max=c_max, window=window, idle_episodes=idle_episodes
    )
  )


def _restored(rules, config=None):
  """New rules with the checkpointed state of these."""
  fresh = supervisor_rules.Rules(config or rules.config)
  fresh.restore(rules.save())
  return fresh


def _star(rules):
  return None if rules.star is None else rules.star.explorer


@pytest.mark.vectors('pso_supervisor', mode='default')
@pytest.mark.parametrize('through_checkpoints', [False, True])
def test_the_rules_are_those_of_the_vectors(vector, through_checkpoints):
  inputs = vector.inputs
  names = ('b', 'k', 'c_max', 'window', 'idle_episodes')
  rules = _rules(**{name: inputs[name] for name in names if name in inputs})
  rows = iter(vector.expected['after_each_episode'])
  for kind, *event in inputs['events']:
    if through_checkpoints:
      rules = _restored(rules)
    if kind == 'candidate':
      rules.offer(_candidate(*event))
      continue
    row, version = next(rows), rules.version
    tested = rules.next()
    assert (tested and tested.explorer) == row['tested']
    if through_checkpoints and tested is not None:
      # The process ends during the episode, which is then played again.
      rules = _restored(rules)
      assert rules.next().explorer == tested.explorer
    if tested is not None:
      rules.finish(event[0])
    assert _star(rules) == row['star']
    assert rules.x == row['x']
    assert rules.c == pytest.approx(row['c'], rel=1e-10)
    assert rules.claim_bar == _number(row['claim_bar'])
    assert rules.r_star == pytest.approx(_number(row['r_global']), rel=1e-10)
    published = _star(rules) if rules.version > version else None
    assert published == row['published']
  assert next(rows, None) is None


@pytest.mark.vectors('pso_supervisor', mode='weight')
def test_the_weight_is_equation_4(vector):
  inputs = vector.inputs
  got = supervisor_rules.weight(inputs['x'], inputs['b'], inputs['k'])
  assert got == pytest.approx(vector.expected['c'], rel=1e-10)


def _play(rules, *returns):
  """Plays episodes; says whether each was of a trial."""
  trials = []
  for episode_return in returns:
    assert rules.next() is not None
    trials.append(rules.trial is not None)
    rules.finish(episode_return)
  return trials


def _with_star(returns=(1.0, 2.0, 3.0), claim=0.0, **options):
  """Rules whose star is of explorer 0, accepted with these returns."""
  rules = _rules(b=len(returns) - 1, **options)
  assert rules.offer(_candidate(0, claim))
  assert all(_play(rules, *returns))
  assert _star(rules) == 0
  return rules


def test_without_a_candidate_no_episode_is_played():
  assert _rules().next() is None


def test_the_highest_claim_waits_and_of_equals_the_first():
  rules = _rules()
  assert rules.bar == -INF
  claims = [1.0, 3.0, 3.0, 2.0, math.nan, INF, -INF]
  kept = [rules.offer(_candidate(i, claim)) for i, claim in enumerate(claims)]
  assert kept == [True, True, False, False, False, False, False]
  assert rules.bar == 3.0
  assert rules.next().explorer == 1
  assert rules.bar == -INF  # free while the trial runs
  assert rules.offer(_candidate(7, -5.0))


def test_a_candidate_below_the_claim_bar_waits_until_the_swarm_idles():
  rules = _with_star(claim=10.0, idle_episodes=2)
  assert rules.offer(_candidate(1, 10.0))  # not above the bar
  assert _play(rules, 0.0, 0.0) == [False, False]
  assert rules.next().explorer == 1
  # The next one waits as long again.
  rules.reject()
  assert rules.offer(_candidate(2, 10.0))
  assert rules.next().explorer == 0


def test_without_a_star_any_candidate_gets_a_trial():
  rules = _rules()
  rules.offer(_candidate(0, 9.0))
  rules.next()
  rules.reject()
  assert rules.offer(_candidate(1, 3.0))
  assert rules.next().explorer == 1


def test_a_rejection_raises_the_claim_bar_and_changes_nothing_else():
  rules = _with_star(claim=1.0)
  before = (_star(rules), rules.x, rules.c, rules.r_star, rules.hist)
  assert rules.offer(_candidate(1, 9.0))
  _play(rules, 2.0, 2.0, 2.0)  # an equal mean is no reason to change
  assert before == (_star(rules), rules.x, rules.c, rules.r_star, rules.hist)
  assert (rules.claim_bar, rules.rejected, rules.idle) == (9.0, 1, 0)
  assert rules.offer(_candidate(2, 8.0))
  assert rules.next().explorer == 0
  assert rules.offer(_candidate(3, 9.5))
  assert rules.next().explorer == 3


def test_an_accepted_candidate_brings_its_own_claim_even_if_it_is_lower():
  rules = _with_star(claim=10.0, idle_episodes=1)
  rules.offer(_candidate(1, 4.0))
  assert _play(rules, 0.0, 1.5, 1.0, 6.0) == [False, True, True, True]
  assert (_star(rules), rules.version, rules.claim_bar) == (1, 2, 4.0)
  # R_star was 1.5: two of the three returns are wins, and b is not exceeded.
  assert (rules.x, rules.c, rules.accepted) == (2, 0.0, 2)


def test_wins_count_from_r_star_on_and_pull_above_b():
  rules = _with_star((2.0, 2.0, 2.0), window=100)
  assert rules.x == 3  # against minus infinity all are wins
  assert rules.c == pytest.approx(math.atan(3 / 400))
  for episode_return, x in ((2.0, 4), (1.0, 4), (1.7, 4), (9.0, 5)):
    _play(rules, episode_return)
    assert rules.x == x
    assert rules.c == pytest.approx(math.atan(x / 400))


def test_the_weight_stays_below_c_max():
  assert math.atan(2 / 2) > 0.3
  assert _with_star((1.0, 1.0), k=2.0, c_max=0.3).c == 0.3
  assert _with_star((1.0, 1.0), k=2.0, c_max=0.0).c == 0.0


def test_r_star_is_the_mean_of_the_last_window():
  rules = _with_star((1.0, 2.0, 3.0), window=4)
  _play(rules, 10.0, 20.0)
  assert rules.hist == [2.0, 3.0, 10.0, 20.0]
  assert rules.r_star == 8.75


def test_restored_rules_go_by_their_own_config():
  rules = _with_star((1.0, 2.0, 3.0), k=2.0, c_max=0.1)
  rules.offer(_candidate(1, 5.0))
  _play(rules, 4.0, 5.0)
  config = explorers.Config(b=1, k=1.0, c_max=0.7, window=2, idle_episodes=9)
  restored = _restored(rules, config)
  # Three wins are more than b: c would be atan(3 / 1), above the clamp of now.
  assert (restored.x, restored.c) == (3, 0.7)
  assert restored.hist == [2.0, 3.0]
  # A whole trial of now has run: one more episode decides it.
  _play(restored, 6.0)
  assert _star(restored) == 1


def test_a_checkpoint_is_a_copy():
  rules = _with_star()
  saved = rules.save()
  before = {name: array.copy() for name, array in saved.items()}
  rules.offer(_candidate(1, 5.0))
  _play(rules, 50.0)
  for name, array in before.items():
    np.testing.assert_array_equal(saved[name], array)


@pytest.mark.parametrize(
  ('options', 'message'),
  [
    ({'lr_spread': 'x'}, 'swarm.lr_spread'),
    ({'num_explorers': 0}, 'swarm.num_explorers'),
    ({'b': 5, 'window': 5}, 'swarm.b=5 must be below swarm.window=5'),
    ({'c_max': -0.1}, 'swarm.c_max'),
  ],
)
def test_a_config_that_cannot_work_is_refused(options, message):
  with pytest.raises(ValueError, match=message):
    explorers.Config(**options)
